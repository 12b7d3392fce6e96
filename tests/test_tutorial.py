"""The tutorial: its cells run by themselves and print what is stored, page and notebook agree, and
its pictures say what plan, simulated driver and results say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rawnn.bench.driver_calls import driver_calls
from rawnn.bench.record import read_results
from rawnn.bench.render.ladder_comparison import ladder_comparison
from rawnn.bench.render.schedule_chart import LANES, choice_of, schedule_chart
from rawnn.bench.render.timeline import PYTHON, WAIT, boxes, calls_of, timeline
from rawnn.bench.render.training import rungs
from rawnn.common.errors import ConfigError
from rawnn.persistent.phases.gemm import Gemm
from rawnn.persistent.phases.phase import Phase
from tests import requires
from tools import site, tutorial

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / tutorial.PAGE).read_text(encoding="utf-8")
CELLS = {name: (code, output) for name, code, output in tutorial.cells(PAGE)}
OURS = read_results(ROOT / "results" / "ladder-h200.json")
STALE = "run python tools/pages.py"


# -- the page and the notebook ---------------------------------------------------------------------


def test_every_python_block_is_a_cell_with_a_stored_output() -> None:
    assert len(CELLS) == len(re.findall(r"^```python$", PAGE, re.MULTILINE)) > 20
    assert all(output for _, output in CELLS.values())


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_runs_by_itself_and_gives_what_is_stored(
        name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    requires.module("matplotlib")
    for variable, value in tutorial.ON_THE_SIMULATED_GPU.items():
        monkeypatch.setenv(variable, value)
    code, output = CELLS[name]
    assert tutorial.executed(code).markdown() == output, STALE


def stored_outputs(page: str) -> dict[str, tutorial.Output]:
    """The outputs as the page has them."""
    found = {}
    drawn = {f"../../{file}": chart for file, chart in tutorial.charts().items()}
    for name, _, text in tutorial.cells(page):
        image = re.match(r"!\[.*\]\((.*)\)\n$", text)
        if image:
            found[name] = tutorial.Output(chart=drawn[image[1]])
        elif text.startswith("|"):
            found[name] = tutorial.Output(table=text)
        else:
            found[name] = tutorial.Output(text.removeprefix("```text\n").removesuffix("```\n"))
    return found


def test_the_notebook_is_made_of_the_page() -> None:
    requires.module("matplotlib")
    kept = json.loads((ROOT / tutorial.NOTEBOOK).read_text(encoding="utf-8"))
    made = tutorial.notebook(PAGE, stored_outputs(PAGE), tutorial.repository())
    made = json.loads(tutorial.encoded(made))

    def without_pictures(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Another version of matplotlib may draw otherwise; test_pages.py compares pictures."""
        for cell in cells:
            for output in cell.get("outputs", ()):
                output.get("data", {}).pop("image/svg+xml", None)
        return cells

    pictures = sum("image/svg+xml" in output.get("data", {})
                   for cell in kept["cells"] for output in cell.get("outputs", ()))
    assert pictures == len(tutorial.charts())
    assert without_pictures(kept["cells"]) == without_pictures(made["cells"]), STALE
    assert (kept["nbformat"], kept["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in kept["cells"]}) == len(kept["cells"])
    for cell in kept["cells"]:
        if cell["cell_type"] == "code":
            compile("".join(cell["source"]), cell["id"], "exec")
            assert cell["outputs"] or "importlib" in "".join(cell["source"])


def test_there_is_a_step_for_each_rung_of_the_ladder() -> None:
    names = re.findall(r"^## Step (\d+): `(.*)`$", PAGE, re.MULTILINE)
    assert [name for _, name in names] == [entry.variant for entry in rungs(OURS)[1:]]
    assert [int(number) for number, _ in names] == list(range(1, len(names) + 1))
    assert PAGE.count("**Exercise.**") == PAGE.count("<summary>Answer</summary>") == len(names) + 1


# -- code by name ----------------------------------------------------------------------------------


@pytest.mark.parametrize("step", tutorial.EXCERPTS)
def test_code_stands_on_the_page_as_in_its_file(step: str) -> None:
    for path, name in tutorial.EXCERPTS[step]:
        code, text = tutorial.excerpt(path, name), (ROOT / path).read_text(encoding="utf-8")
        indent = re.search(r"^( *)" + re.escape(code.splitlines()[0]), text, re.MULTILINE)
        assert indent
        whole = "".join(f"{indent[1]}{line}\n" if line else "\n" for line in code.splitlines())
        assert whole in text
        assert code in PAGE, STALE
        assert len(code.splitlines()) < 50


@pytest.mark.parametrize(("path", "name"), [
    ("rawnn/opts/report.py", "nothing"), ("rawnn/graphs/unrolling.py", "GraphPlan.nothing"),
    ("rawnn/ptx/gemm/matmul.cu", "nothing")])
def test_code_that_is_gone_is_refused(path: str, name: str) -> None:
    with pytest.raises(ValueError, match="nothing"):
        tutorial.excerpt(path, name)


def test_the_address_of_the_repository_is_in_one_place() -> None:
    address = "https://github.com/someone/rawnn"
    assert f"github/someone/rawnn/blob/main/{tutorial.NOTEBOOK}" in tutorial.badge(address)
    assert "colab.research" not in tutorial.badge("")
    made = tutorial.notebook(PAGE, stored_outputs(PAGE), address)
    setup = "".join(next(c for c in made["cells"] if c["cell_type"] == "code")["source"])
    compile(setup, "setup", "exec")
    assert f'"git", "clone", "-q", "{address}"' in setup


def test_the_site_links_the_repository_where_it_has_an_address(
        monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"site_name": "rawnn", "repo_url": None, "repo_name": None}
    monkeypatch.setattr(site, "repository", lambda: "")
    assert site.on_config(dict(config)) == config
    monkeypatch.setattr(site, "repository", lambda: "https://github.com/someone/rawnn")
    assert site.on_config(dict(config))["repo_url"] == "https://github.com/someone/rawnn"


def test_a_notebook_shows_charts_and_tables() -> None:
    requires.module("matplotlib")
    assert timeline(OURS, "nosync")._repr_svg_().startswith("<svg")
    assert ladder_comparison(OURS, OURS)._repr_markdown_().startswith("| rung |")


# -- timelines -------------------------------------------------------------------------------------


def test_the_baseline_waits_at_every_step_and_nosync_once() -> None:
    with_waits = driver_calls("none,preload,arena")
    without = driver_calls("none,preload,arena,nosync")
    assert with_waits.steps == without.steps == 46
    assert with_waits.waits > 46
    assert without.waits < 3
    assert len(with_waits.ops) * 46 == with_waits.calls.count("cuLaunchKernel") == 506
    assert "506 x cuLaunchKernel" in str(without)


def test_an_epoch_without_a_report_has_no_op_for_it() -> None:
    toggles = "none,preload,arena,nosync,report=10"
    with_report, without = (driver_calls(toggles, is_reported=said) for said in (True, False))
    gone = {op.kind for op in with_report.ops} - {op.kind for op in without.ops}
    assert gone == {"cross_entropy", "accuracy"}


def test_a_timeline_has_the_lanes_of_a_step() -> None:
    found = {entry.variant: boxes(calls_of(entry), 20.0, 40.0) for entry in rungs(OURS)}
    assert any(box.kind == WAIT for box in found["baseline"])
    assert not any(box.kind == WAIT for box in found["nosync"])
    assert {box.lane for box in found["graphs"]} == {"Python", "GPU"}
    assert "GPU, branch 2" in {box.lane for box in found["streams"]}
    # Two steps of 11 launches each in the window, and one launch of a graph of sixteen.
    launches = [box for box in found["nosync"] if box.kind == PYTHON and box.start < 40 - 1e-6]
    assert len(launches) == 22
    assert len([box for box in found["graphs"] if box.kind == PYTHON]) == 1


def test_a_timeline_names_both_times_the_gpu_and_the_date() -> None:
    chart = timeline(OURS, "fuse")
    before, after = (entry.median("step_us") for entry in rungs(OURS)[3:5])
    assert f"{before:.1f}" in chart.title
    assert f"{after:.1f}" in chart.title
    assert OURS.place(rungs(OURS)[4]).date[:10] in chart.subtitle
    with pytest.raises(ConfigError, match="no rung 'baseline' with one before it"):
        timeline(OURS, "baseline")


def test_two_ladders_stand_side_by_side() -> None:
    grid = ladder_comparison(OURS, OURS)
    assert [row[0] for row in grid.rows] == [f"`{e.variant}`" for e in rungs(OURS)]
    assert all(row[1:3] == row[3:] for row in grid.rows)
    first, last = (entry.median("epoch_ms") for entry in (rungs(OURS)[0], rungs(OURS)[-1]))
    assert float(grid.rows[-1][2]) == pytest.approx(first / last, rel=0.01)


# -- the schedule ----------------------------------------------------------------------------------


def test_every_kind_of_phase_has_a_lane() -> None:
    def kinds(of: type[Phase]) -> set[type[Phase]]:
        return set().union(*({each, *kinds(each)} for each in of.__subclasses__()))

    assert {kind.lane for kind in kinds(Phase)} == set(LANES)


def test_the_schedule_shows_each_phase_in_its_place() -> None:
    requires.module("matplotlib")
    choice = choice_of((784, 32, 10), opt="persistent=8x4")
    schedule = choice.layout.schedule
    listed = [*schedule.micro_batch, *schedule.step]
    words = re.findall(r">(\d+)\. ([^<]*)<", schedule_chart(choice).svg())
    assert [int(number) for number, _ in words] == list(range(1, len(listed) + 1))
    assert [word for (_, word), phase in zip(words, listed, strict=True)
            if isinstance(phase, Gemm)] == [p.name for p in listed if isinstance(p, Gemm)]


def test_the_first_lines_say_what_measured_the_last_figure() -> None:
    _, last = tutorial.whole().split("in nine steps, ")
    assert f"**{tutorial._persistent()[1]} ms**, as `bench toggles` measured it." in last
