#!/usr/bin/env python3
"""Write the tutorial: the blocks of its page, what its cells print, and the notebook.

    python tools/tutorial.py

`tools/pages.py` does all of this, too. The page docs/learn/tutorial.md is the source. Its text is
written by hand. Blocks between `<!-- name -->` and `<!-- /name -->` are generated: code out of the
sources by name (`EXCERPTS`), figures out of results/, and behind each Python cell its output on the
simulated GPU. The notebook next to it has the same text and cells, with the outputs stored.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from rawnn.bench.record import Results, read_results  # noqa: E402
from rawnn.bench.render import training  # noqa: E402
from rawnn.bench.render.charts import Chart  # noqa: E402
from rawnn.bench.render.grid import Grid  # noqa: E402
from rawnn.bench.render.schedule_chart import choice_of, schedule_chart  # noqa: E402
from rawnn.bench.render.tables import compared, interval, unequal  # noqa: E402
from rawnn.bench.render.texts import factor, milliseconds  # noqa: E402
from rawnn.bench.render.timeline import timeline  # noqa: E402
from rawnn.opts import TOGGLES  # noqa: E402
from tools.site import repository  # noqa: E402

PAGE = "docs/learn/tutorial.md"
NOTEBOOK = "docs/learn/tutorial.ipynb"
LADDER = "ladder-h200"
SCHEDULED = ((784, 32, 10), "persistent=8x4")
"""The network whose schedule is drawn, and its sharding."""
ON_THE_SIMULATED_GPU = {"NOTEBOOK_DEVICE": "sim", "NOTEBOOK_DATASET": "synthetic",
                        "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
"""The environment in which outputs are made."""

EXCERPTS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "nosync": (("rawnn/engine/runners/gpu.py", "GpuRunner._epoch_with_waits"),
               ("rawnn/engine/runners/metrics.py", "Metrics.fetch_step")),
    "cublas": (("rawnn/ptx/gemm/matmul.cu", "matmul_nt"),),
    "report": (("rawnn/opts/report.py", "apply"), ("rawnn/plan/plan.py", "_only_gradient")),
    "fuse": (("rawnn/ptx/losses/loss.cu", "softmax_loss_gradient"),),
    "cudnn": (("rawnn/opts/cudnn.py", "apply"),),
    "graphs": (("rawnn/graphs/graph_programs.py", "fill"),),
    "streams": (("rawnn/graphs/unrolling.py", "GraphPlan.edges"),),
    "epoch": (("rawnn/graphs/unrolling.py", "graph_plans"),),
    "best": (("rawnn/ptx/fused/linear.cu", ""),),
    "persistent": (("rawnn/persistent/schedule.py", "build"),),
}
"""A step of the tutorial -> the files and names in them that its code block shows; the comment at
the head of the file where no name is given."""
RUNGS = {"nosync": "nosync", "cublas": "cublas", "report": "report=10", "fuse": "fuse",
         "cudnn": "cudnn", "graphs": "graphs", "streams": "streams", "epoch": "graphs=epoch",
         "best": "best"}
"""A step of the tutorial -> its rung of the ladder."""


# -- code out of the sources -----------------------------------------------------------------------


def excerpt(path: str, name: str) -> str:
    """A function, method or class of a Python file, or a function of a CUDA file, as it stands
    there. Raises ValueError for a name that the file does not have."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return _of_python(text, name, path) if path.endswith(".py") else _of_cuda(text, name, path)


def _of_python(text: str, name: str, path: str) -> str:
    body: Any = ast.parse(text).body
    for part in name.split("."):
        node = next((n for n in body if getattr(n, "name", None) == part), None)
        if node is None:
            raise ValueError(f"{path} has no {name}")
        body = getattr(node, "body", [])
    lines = text.splitlines()[node.lineno - 1:node.end_lineno]
    indent = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(line[indent:] for line in lines)


def _of_cuda(text: str, name: str, path: str) -> str:
    if not name:
        return text[:text.index("\n#")].rstrip()
    begin = re.search(rf"^(?:template <[^;{{]*?>\n)?__global__[^;{{]*?\b{name}\(", text,
                      re.MULTILINE)
    end = text.find("\n}\n", begin.start()) if begin else -1
    if begin is None or end < 0:
        raise ValueError(f"{path} has no kernel {name}")
    return text[begin.start():end + 2]


def code_block(step: str) -> str:
    """The code of a step, each part with a link to its file."""
    parts = []
    for path, name in EXCERPTS[step]:
        language = "py" if path.endswith(".py") else "cuda"
        parts.append(f"[{path}](../../{path})" + (f", `{name}`" if name else "") + f":\n\n"
                     f"```{language}\n{excerpt(path, name)}\n```\n")
    return "\n".join(parts)


# -- figures and pictures --------------------------------------------------------------------------


@cache
def results_of(name: str) -> Results:
    return read_results(ROOT / "results" / f"{name}.json")


def number(step: str) -> str:
    """What a step made of an epoch, in one sentence."""
    results = results_of(LADDER)
    found = training.rungs(results)
    at = next(n for n, entry in enumerate(found) if entry.variant == RUNGS[step])
    before, after = found[at - 1:at + 1]
    if why := unequal(results, [before, after]):
        raise ValueError(f"{PAGE}, number {step}: {why}")
    ratio = compared(before, after)
    assert ratio is not None
    times = [milliseconds(entry.median("epoch_ms") or 0.0) for entry in (before, after)]
    noise = "; the difference may be noise" if ratio.is_noise else ""
    return (f"{training.subtitle(results, found[at:at + 1])}: an epoch takes {times[0]} ms before "
            f"and\n**{times[1]} ms** after, {factor(ratio.value)} x ({interval(ratio)}){noise}.\n")


def whole() -> str:
    """What all steps together made of an epoch, and the kernel behind the last of them."""
    results = results_of(LADDER)
    first, *_, last = training.rungs(results)
    return (f"On one {results.place(last).machine.partition(',')[0]} an epoch of MNIST goes from "
            f"**{milliseconds(first.median('epoch_ms') or 0)} ms** to "
            f"**{milliseconds(last.median('epoch_ms') or 0)} ms**\nin nine steps, and the kernel "
            f"at the end of this page takes **{_persistent()[1]} ms**, as `bench toggles` measured "
            f"it.\n")


def _persistent() -> tuple[str, str, str, str]:
    """Milliseconds without and with `persistent`, the speedup, and where it was measured."""
    results = results_of("toggles-h200")
    row = next(row for row in training.toggle_rows(
        TOGGLES["persistent"], results.entries("toggles")) if row.base is not None)
    assert row.base is not None
    times = [milliseconds(e.median("epoch_ms") or 0.0) for e in (row.base, row.entry)]
    return times[0], times[1], row.speedup(), training.subtitle(results, [row.entry])


def persistent_number() -> str:
    before, after, speedup, where = _persistent()
    return (f"{where}: beside the toggles of its [page](../toggles/persistent.md) an epoch takes "
            f"{before} ms without\nit and **{after} ms** with it, {speedup}.\n")


@cache
def charts() -> dict[str, Chart]:
    """The pictures of the tutorial, by their files."""
    results = results_of(LADDER)
    made = {f"results/tutorial-{step}.svg": timeline(results, rung)
            for step, rung in RUNGS.items()}
    layers, sharding = SCHEDULED
    made["results/tutorial-schedule.svg"] = schedule_chart(choice_of(layers, opt=sharding))
    return made


# -- where the repository is -----------------------------------------------------------------------


def badge(address: str) -> str:
    """The badge that opens the notebook in Colab; what to do without where the repository has no
    address on GitHub."""
    host, _, path = address.removeprefix("https://").partition("/")
    if host != "github.com" or not path:
        return "As a notebook: [tutorial.ipynb](tutorial.ipynb), for Jupyter or Colab.\n"
    return (f"[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
            f"(https://colab.research.google.com/github/{path}/blob/main/{NOTEBOOK})\n"
            f"or as a notebook: [tutorial.ipynb](tutorial.ipynb).\n")


BLOCKS: Mapping[str, Callable[[], str]] = {
    "whole": whole, "badge": lambda: badge(repository()),
    **{f"code {step}": partial(code_block, step) for step in EXCERPTS},
    **{f"number {step}": partial(number, step) for step in RUNGS},
    "number persistent": persistent_number}
"""The blocks of the page that need no cell to be run."""


# -- cells -----------------------------------------------------------------------------------------

CELL = re.compile(r"^```python\n(?P<code>.*?)^```\n\n<!-- (?P<name>output \d+) -->\n"
                  r"(?P<output>.*?)<!-- /(?P=name) -->\n", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Output:
    """What a cell gave: printed text, a table in Markdown, or a chart."""

    text: str = ""
    table: str = ""
    chart: Chart | None = None

    def markdown(self) -> str:
        """As it stands on the page."""
        if self.chart is not None:
            return f"![{self.chart.title}](../../{file_of(self.chart)})\n"
        return self.table or f"```text\n{self.text}```\n"

    def cell(self) -> list[dict[str, Any]]:
        """As it stands in the notebook."""
        if self.chart is not None:
            return _display(self.chart.title, "image/svg+xml", self.chart.svg())
        if self.table:
            return _display(self.table, "text/markdown", self.table)
        return [{"name": "stdout", "output_type": "stream",
                 "text": self.text.splitlines(keepends=True)}]


def _display(text: str, kind: str, data: str) -> list[dict[str, Any]]:
    return [{"output_type": "display_data", "metadata": {},
             "data": {kind: data.splitlines(keepends=True),
                      "text/plain": text.splitlines(keepends=True)}}]


def file_of(chart: Chart) -> str:
    """The picture in results/ that shows a chart. Raises ValueError where none does."""
    for file, known in charts().items():
        if known.title == chart.title:
            return file
    raise ValueError(f"no picture of the tutorial shows '{chart.title}'")


def executed(code: str) -> Output:
    """Run a cell by itself, in a folder that has results/, as a notebook does: the value of its
    last line is shown."""
    tree = ast.parse(code)
    shown = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), \
            contextlib.redirect_stdout(printed):
        Path("results").symlink_to(ROOT / "results")
        exec(compile(tree, PAGE, "exec"), names)
        value = eval(compile(ast.Expression(shown.value), PAGE, "eval"), names) \
            if isinstance(shown, ast.Expr) else None
    return Output(printed.getvalue(), value.markdown() if isinstance(value, Grid) else "",
                  value if isinstance(value, Chart) else None)


def cells(page: str) -> Iterator[tuple[str, str, str]]:
    """Name of its output, code and stored output of each cell of the page."""
    for match in CELL.finditer(page):
        yield match["name"], match["code"], match["output"]


def notebook(page: str, outputs: Mapping[str, Output], address: str) -> dict[str, Any]:
    """The notebook of the page: text, cells, and the outputs by their names."""
    head = page.index("\n## ")
    made = [_text(page[:head]), _text(SETUP_TEXT), _code(SETUP.format(clone=_clone(address)), [])]
    at = head
    for match in CELL.finditer(page):
        made += [_text(page[at:match.start()]),
                 _code(match["code"], outputs[match["name"]].cell())]
        at = match.end()
    made.append(_text(page[at:]))
    kept = [cell for cell in made if cell["source"]]
    return {"cells": [{**cell, "id": f"cell-{n}"} for n, cell in enumerate(kept)],
            "metadata": {"accelerator": "GPU",
                         "kernelspec": {"display_name": "Python 3", "language": "python",
                                        "name": "python3"},
                         "language_info": {"name": "python"}},
            "nbformat": 4, "nbformat_minor": 5}


SETUP_TEXT = """Run this cell first. It installs rawnn from the clone that has this notebook, if it
is not installed. Without a GPU set `NOTEBOOK_DEVICE=sim`: a simulated GPU computes with NumPy."""
SETUP = """import importlib.util
import os
import subprocess
import sys
from pathlib import Path
{clone}
while not Path("results").is_dir() and Path.cwd() != Path.cwd().parent:
    os.chdir("..")  # the root of the clone
if importlib.util.find_spec("rawnn") is None:
    install = [sys.executable, "-m", "pip", "install", "-q", "-e", ".[cu12,report]"]
    subprocess.run(install, check=True)
    sys.path.insert(0, os.getcwd())
"""


def _clone(address: str) -> str:
    """Lines that clone the repository where the notebook was opened alone, as in Colab."""
    if not address:
        return ""
    name = address.rpartition("/")[2]
    return (f'\nif not Path("../../rawnn").is_dir() and not Path("rawnn").is_dir():\n'
            f'    subprocess.run(["git", "clone", "-q", "{address}"], check=True)\n'
            f'    os.chdir("{name}")\n')


def _text(source: str) -> dict[str, Any]:
    """A cell of text, without the comments that begin and end generated blocks."""
    text = re.sub(r"^<!-- .*? -->\n", "", source, flags=re.MULTILINE).strip("\n")
    return {"cell_type": "markdown", "metadata": {}, "source": text.splitlines(keepends=True)}


def _code(source: str, outputs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": outputs,
            "source": source.rstrip("\n").splitlines(keepends=True)}


def encoded(made: Mapping[str, Any]) -> str:
    return json.dumps(made, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def main() -> None:
    from tools.pages import filled

    path = ROOT / PAGE
    os.environ.update(ON_THE_SIMULATED_GPU)
    page = filled(path.read_text(encoding="utf-8"),
                  {name: make() for name, make in BLOCKS.items()})
    outputs = {name: executed(code) for name, code, _ in cells(page)}
    page = filled(page, {name: output.markdown() for name, output in outputs.items()})
    path.write_text(page, encoding="utf-8")
    (ROOT / NOTEBOOK).write_text(encoded(notebook(page, outputs, repository())), encoding="utf-8")


if __name__ == "__main__":
    main()
