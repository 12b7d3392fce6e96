#!/usr/bin/env python3
"""Write every table and picture of README.md and docs that was measured, from results/.

    python tools/pages.py

A table stands between two comments of its page, `<!-- name -->` and `<!-- /name -->`; what is
around them is written by hand and names no measured figure. `BLOCKS` declares them: the page, the
name, the results file, and the table of rawnn/bench/render. `PICTURES` declares the charts. A table
whose rows are of unequal epochs, GPUs or commits is refused. What was measured once and by no
command of rawnn's stands in `results/trials` (`tools/trials.py`). The outputs of the tutorial's
cells and its notebook are written last (`tools/tutorial.py`).
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from examples.lab.series import HERE, TOPICS, learned  # noqa: E402
from rawnn.bench.peers.training_problem import BATCHES, DEPTHS, WIDTHS  # noqa: E402
from rawnn.bench.record import Results, read_results  # noqa: E402
from rawnn.bench.render import (  # noqa: E402
    ensembles,
    loss_curves,
    peer_programs,
    random_networks,
    training,
)
from rawnn.bench.render.charts import Chart  # noqa: E402
from rawnn.bench.render.grid import Grid  # noqa: E402
from rawnn.bench.render.networks import NAMES, networks, peers_of, system  # noqa: E402
from rawnn.bench.render.suites import SUITES  # noqa: E402
from rawnn.bench.render.tables import unequal  # noqa: E402
from rawnn.bench.render.texts import milliseconds  # noqa: E402
from rawnn.bench.render.view import Grids  # noqa: E402
from rawnn.opts import TOGGLES  # noqa: E402
from rawnn.opts.registry import Toggle  # noqa: E402
from tools import full_walk, gpu_record, trials, tutorial  # noqa: E402

RESULTS = ROOT / "results"
TOGGLE_PAGES = "docs/toggles"
RESULTS_PAGE = "docs/benchmarks/results.md"
TOGGLE_FILES = ("toggles-h200", "toggles-h100")
NOT_MEASURED = "Not measured by `bench toggles` yet.\n"
MANY, GRID = ("many-h100", "many-h200"), ("grid-h100", "grid-h200")
"""Files of a suite that need not be there: the first that is is shown."""
SAMPLE = "sample-h200-98001"
"""The random networks that the first page shows; other samples have a line each on RESULTS_PAGE."""


# -- blocks made of results files ------------------------------------------------------------------


@cache
def results_of(name: str) -> Results:
    """A file of results/. Raises ConfigError."""
    return read_results(RESULTS / f"{name}.json")


def first_kept(names: Sequence[str]) -> str:
    """The first of some files that results/ has; "" where it has none."""
    return next((name for name in names if (RESULTS / f"{name}.json").exists()), "")


@dataclass(frozen=True)
class Block:
    """A block: its page and name, its file in results/, the tables made of it, the columns that are
    left out, whether notes are shown, sentences above, and, if tables are folded, the line that
    stands for them and the first of them."""

    page: str
    name: str
    file: str
    grids: Grids
    without: tuple[str, ...] = ()
    notes: bool = True
    above: Callable[[Results], str] | None = None
    folded: tuple[str, int] | None = None

    def text(self) -> str:
        """Raises ValueError for a table whose rows are not of equal epochs, GPU and commit."""
        results = results_of(self.file)
        texts = [self.above(results)] if self.above else []
        for number, grid in enumerate(self.grids(results)):
            checked(results, grid, f"{self.page}, {self.name}")
            shown = grid.without(self.without)
            if self.folded and self.folded[1] == number:
                texts.append(f'<details markdown="1"><summary>{self.folded[0]}</summary>\n')
            texts.append((shown if self.notes else replace(shown, notes=())).markdown())
        return "\n".join([*texts, *["</details>\n"] * (self.folded is not None)])


def checked(results: Results, grid: Grid, where: str) -> Grid:
    """The table. Raises ValueError where its rows are not of equal epochs, GPU and commit, or not
    known to be."""
    if not grid.entries:
        raise ValueError(f"{where}: a table does not say what its rows were made of")
    if why := unequal(results, grid.entries):
        raise ValueError(f"{where}: {why}")
    return grid


def suite(name: str) -> Grids:
    """All tables of a suite."""
    return SUITES[name].grids


FRONT_CLASSES = ("float32 against tf32", "tf32 against tf32", "bf16 against bf16",
                 "fastest against fastest")
"""The precisions of rawnn against those of the peers that the first page shows; RESULTS_PAGE has
all of them."""


def about_the_sample(results: Results) -> str:
    """What a speedup is, what the random networks are, and where they were measured."""
    found = networks(results, "sample")
    place = results.place(found[0].entries[0])
    names = " and ".join(NAMES[p] for p in peers_of(found))
    return textwrap.fill(
        f"Speedup: step time of the faster of {names} over that of rawnn's `best`, without "
        f"compilation. {len(found)} random networks: {DEPTHS[0]}-{DEPTHS[1]} layers, widths "
        f"{WIDTHS[0]}-{WIDTHS[1]}, batches {BATCHES[0]}-{BATCHES[1]}, log-uniform "
        f"({place.machine.partition(',')[0]}, {place.date[:10]}, commit {place.commit[:7]}).",
        120, break_on_hyphens=False) + "\n"


def against_the_best(results: Results) -> list[Grid]:
    """The random networks against the better of the peers, a row for each of FRONT_CLASSES; below
    them many networks at once, where those were measured."""
    _, every = random_networks.sample(results)
    rows = []
    for line in random_networks.against_best(networks(results, "sample")):
        if line.name in FRONT_CLASSES:
            mean, low, high = line.mean
            rows.append([line.name, f"**{mean:.2f} x**", f"{low:.2f}-{high:.2f}",
                         f"{line.worst[0]:.2f} x", str(len(line.speedups))])
    heads = ("rawnn's precision against the peers'", "geometric mean", "95 % interval", "worst",
             "networks")
    together = first_kept(MANY)
    notes = [ensembles.headline(results_of(together))] if together else []
    return [Grid(heads, rows, heads[:1], notes=notes, entries=every.entries)]


MOST_SLOWER = 3
"""Networks on which rawnn is slower that the first page names; its page of limits has all."""
SLOWER_FILES = {SAMPLE: "sample", "sample-h100": "sample", "sweep-h200": "sweep",
                "peers-h200": "peers", "grid-h200": "grid", "grid-h200-rest": "grid",
                "grid-h200-0": "grid"}
"""Results files -> their suite, which networks on which rawnn is slower are looked for in."""


@dataclass(frozen=True, order=True)
class Loss:
    """A network on which a peer is faster: the time of the peer over that of rawnn."""

    ratio: float
    network: str
    batch: int
    precisions: str
    peer: str
    where: str


@cache
def losses() -> list[Loss]:
    """All that are known, the worst first. Those of results/trials name their GPU and commit, or
    say that nobody recorded it."""
    found = []
    for file, name in SLOWER_FILES.items():
        results = results_of(file)
        for ratio, network, words, mine, other in random_networks.losses(networks(results, name)):
            place = results.place(mine)
            found.append(Loss(
                ratio, "-".join(map(str, network.layers)), network.batch, words,
                NAMES[system(other)],
                f"{place.machine.partition(',')[0]}, commit {place.commit[:7]}"))
    large = trials.table("peers.toml", "slower")
    for commit, rows in large.by_commit().items():
        found += [Loss(float(ratio.removesuffix(" x")), network, int(batch),
                       f"{precision} against tf32", "JAX",
                       f"{large.gpu}, {trials.commit_words(commit)}")
                  for network, batch, precision, ratio in rows]
    return sorted(found)


def all_slower() -> str:
    """Every network on which rawnn is slower, with where it was measured."""
    return "\n".join([
        "The time of the faster peer over that of `best`: below 1 rawnn is slower. Each row says "
        "where it was measured;\nrows are not to be compared with each other.\n", *Grid(
            ("network", "batch", "precisions", "faster peer", "ratio", "measured on"),
            [[loss.network, f"{loss.batch:,}", loss.precisions, loss.peer, f"{loss.ratio:.2f} x",
              loss.where] for loss in losses()],
            ("network", "precisions", "faster peer", "measured on")).lines(), ""])


def slower() -> str:
    """The networks on which rawnn is slowest, and compilation."""
    lines = [f"- {loss.network}, batch {loss.batch:,}: {loss.ratio:.2f} x in {mine} against "
             f"{loss.peer}'s {other} ({loss.where})" for loss in losses()[:MOST_SLOWER]
             for mine, _, other in [loss.precisions.partition(" against ")]]
    found = networks(results_of(SAMPLE), "sample")
    steps = random_networks.break_even_steps(found)
    seconds = ", ".join(f"{NAMES[name]} {value:.1f} s"
                        for name, value in random_networks.setup_medians(found).items())
    return "\n".join([*(textwrap.fill(line, 120, subsequent_indent="  ") for line in (
        *lines,
        f"- **Compilation takes seconds**: {seconds} in the median of the random networks. A run "
        f"must last {round(median(steps), -3):,.0f} steps in the median, "
        f"{round(max(steps), -3):,.0f} at most, until that is earned back. Kernels stay on disk."
        )), ""])


def first_run() -> str:
    """What README's first command printed on a GPU, epochs left out."""
    place, *lines = (RESULTS / "first-run.txt").read_text(encoding="utf-8").splitlines()
    return "\n".join([f"It trains softmax regression on MNIST in a clone ({place}; epochs are "
                      "left out):", "```", *lines, "```", ""])


def expected() -> str:
    """What `bench ladder` gave, for those who repeat it."""
    rungs = training.rungs(results := results_of("ladder-h200"))
    gpu = results.place(rungs[0]).machine.partition(",")[0]
    words = []
    for rung in (rungs[0], rungs[-1]):
        times = rung.samples("epoch_ms")
        low, mid, high = map(milliseconds, (min(times), median(times), max(times)))
        words.append(f"`{rung.variant}` {mid} ms ({low}-{high})")
    return (f"Median and spread of {len(rungs[0].samples('epoch_ms'))} runs on one {gpu}: "
            f"{', '.join(words)} an epoch.\n")


def about_the_peers(results: Results) -> str:
    return ("Microseconds a step, the fastest variant of each; the last column is the time of "
            "rawnn over the\n[lower bound](../floors.md#x-lower-bound) of any program.\n")


def pictured(names: Sequence[str]) -> Callable[[Results], str]:
    """The pictures above a table."""
    return lambda results: "\n".join(
        f"![{name.replace('-', ' ')}](../../results/{name}.svg)" for name in names
        ) + "\n"


SCALING = ("scaling", "scaling-four", "scaling-small")
MEASURED = (
    Block("README.md", "random", SAMPLE, against_the_best, above=about_the_sample),
    Block("docs/measuring.md", "ladder", "ladder-h200", suite("ladder"), ("reference",),
          notes=False),
    Block(RESULTS_PAGE, "peers", "peers-h200", peer_programs.headline, above=about_the_peers),
    Block(RESULTS_PAGE, "random", SAMPLE, suite("sample"), folded=("Every network", 1)),
    Block(RESULTS_PAGE, "workloads", "peers-h200", peer_programs.programs("peers"),
          folded=("Every variant", 0)),
    Block(RESULTS_PAGE, "h200", "workloads-h200", suite("workloads")),
    Block(RESULTS_PAGE, "h100", "workloads-h100", suite("workloads")),
    Block("docs/floors.md", "floors", "lower-bounds-h200", suite("lower-bounds")),
    Block("docs/lab.md", "launches", "launches-h200", suite("launches")),
    Block(RESULTS_PAGE, "ablation", "ablation-h200", suite("ablation"),
          above=pictured(("ablation",))),
    Block(RESULTS_PAGE, "sweep", "sweep-h200", suite("sweep"),
          above=pictured(("sweep-batch", "sweep-width")), folded=("Every variant", 0)),
    Block(RESULTS_PAGE, "curves", "curves-h200", suite("curves"),
          above=lambda results: pictured(list(loss_curves.curve_charts(results)))(results),
          folded=("Where each curve begins and ends", 0)),
    *(Block("docs/scaling.md", name, f"{name}-h200", suite("scaling")) for name in SCALING),
)
"""Every block that is made of one results file."""

CHARTS = {
    "README.md": ((SAMPLE, "sample"), ("ladder-h200", "ladder")),
    "docs/scaling.md": (("scaling-four-h200", "scaling"),),
    RESULTS_PAGE: (("ablation-h200", "ablation"), ("sweep-h200", "sweep"),
                       ("curves-h200", "curves")),
}
"""Page -> results files whose suite's charts results/ has for it."""


# -- blocks made otherwise -------------------------------------------------------------------------


def speedups(toggle: Toggle, measured: Sequence[Results]) -> str:
    """The speedup of a toggle, a table for each GPU and number of epochs."""
    made = [checked(results, grid, toggle.name).markdown()
            for results in measured for grid in training.toggle_grids(toggle, results)]
    if not made:
        return NOT_MEASURED
    return "\n".join([
        f"Milliseconds an epoch of MNIST by the device's clock, and how many times faster than "
        f"without, with the 95 %\ninterval, or of few runs the range; `python -m rawnn bench "
        f"toggles {toggle.name}` measures this\n([how we measure](../measuring.md)).\n", *made])


MECHANISMS = {"memory": "Memory", "scheduling": "Launches and order", "kernels": "Kernels",
              "numbers": "Precision and batch", "scale": "Several GPUs"}
"""A toggle's group -> its heading in the index of toggles."""


def toggle_index() -> str:
    """A table of toggles for each mechanism."""
    lines = []
    for group, heading in MECHANISMS.items():
        rows = [[f"[`{t.name}`]({t.name}.md)", t.claim, t.needs_text or ""]
                for t in TOGGLES.values() if t.group == group]
        lines += [f"## {heading}\n", Grid(("toggle", "what it does", "needs"), rows,
                                          ("toggle", "what it does", "needs")).markdown()]
    return "\n".join(lines)


def other_samples() -> str:
    """A line for each file of other samples, the newest first: what they gave, at which commit."""
    lines = []
    for path in RESULTS.glob("sample-*.json"):
        if path.stem == SAMPLE:
            continue
        results = results_of(path.stem)
        found = networks(results, "sample")
        means = {s.name: s.mean[0] for s in random_networks.against_best(found)}
        place = results.place(found[0].entries[0])
        said = ", ".join(f"{name} {means[name]:.2f} x" for name in random_networks.CHARTED)
        where = f"{place.date[:10]}, {place.machine}, commit {place.commit[:7]}"
        lines.append((place.date, f"- {where}: {said} ({len(found)} networks, "
                                  f"[samples](../../results/{path.name}))"))
    return "\n".join([*(line for _, line in sorted(lines, reverse=True)), ""])


def where_kept(suite: str, files: Sequence[str], results_folder: str) -> str:
    """The pictures and tables of a suite, or that nothing has been measured."""
    file = first_kept(files)
    if not file:
        return (f"Nothing has been measured yet: `python -m rawnn bench {suite} --json "
                f"results/{files[0]}.json` does it.\n")
    results = results_of(file)
    shown = [f"![{name.replace('-', ' ')}]({results_folder}/{name}.svg)"
             for name in SUITES[suite].charts(results)]
    tables = [checked(results, grid, suite).markdown() for grid in SUITES[suite].grids(results)]
    return "\n".join(["\n".join(shown) + "\n", *tables])


def lessons(topic: str) -> str:
    """What each step of a series in examples/lab taught, as a list."""
    return "".join(f"- [{path.stem}]({topic}/{path.name}): {learned(path.read_text())}\n"
                   for path in sorted((HERE / topic).glob("[1-9]_*.cu")))


def float32_error() -> str:
    """How far float32 of `persistent` is from float64, and NumPy's."""
    record = json.loads((RESULTS / "float32-error.json").read_text(encoding="utf-8"))
    worst, median, networks = record["worst"], record["median"], record["draws"]
    far = max(networks, key=lambda row: float(row["gradient"]))
    update, gradient = (f"{worst[name]:.2f} times" for name in ("update", "gradient"))
    return (f"Of {len(networks)} random networks, one step's change of the weights, as stored in "
            f"float32, is\nat most **{update}** as far from float64 as NumPy's in float32 is; the "
            f"gradients that it is made of,\nin which storing hides nothing, at most "
            f"**{gradient}**, in the median {median['gradient']:.2f} times. The worst:\n"
            f"{far['what']}.\n")


GUIDE = "docs/guides/many-networks.md"
OTHERS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "README.md": {"run": first_run, "slower": slower, "expected": expected},
    tutorial.PAGE: tutorial.BLOCKS,
    RESULTS_PAGE: {"earlier": other_samples,
                   "grid": partial(where_kept, "grid", GRID, "../../results")},
    "docs/benchmarks/limits.md": {"slower": all_slower},
    GUIDE: {"many": partial(where_kept, "many", MANY, "../../results")},
    "docs/toggles/index.md": {"index": toggle_index},
    "docs/toggles/persistent.md": {"float32": float32_error},
    "examples/lab/README.md": {f"{topic}-lessons": partial(lessons, topic) for topic in TOPICS},
    "docs/testing.md": {"walk": lambda: full_walk.table(full_walk.read_record()),
                        "gpu": lambda: gpu_record.lists_table(gpu_record.read_record()),
                        "checked": lambda: gpu_record.checked_table(gpu_record.read_record())},
}
"""Page -> name of a block in it -> what makes its text, where that is not one results file."""


# -- pictures --------------------------------------------------------------------------------------


def pictures() -> dict[str, Chart]:
    """File -> chart, for all that CHARTS declares, of the suites that are there, and those of the
    tutorial."""
    declared = [pair for several in CHARTS.values() for pair in several]
    declared += [(file, suite) for files, suite in ((MANY, "many"), (GRID, "grid"))
                 if (file := first_kept(files))]
    found = {f"results/{name}.svg": chart for file, suite in declared
             for name, chart in SUITES[suite].charts(results_of(file)).items()}
    return {**found, **tutorial.charts()}


PICTURES = pictures()


# -- pages -----------------------------------------------------------------------------------------


def filled(text: str, blocks: Mapping[str, str]) -> str:
    """A page with new text in its blocks. Raises ValueError for a block that it does not have, or
    has more than once."""
    for name, content in blocks.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"the page needs one {begin.strip()} and one {end.strip()}")
        head, _, rest = text.partition(begin)
        _, found, tail = rest.partition(end)
        if not found:
            raise ValueError(f"{end.strip()} stands before {begin.strip()}")
        text = f"{head}{begin}{content}{end}{tail}"
    return text


def missing() -> str:
    """A sentence on pages that there are not; an empty one where all are there."""
    names = dict.fromkeys([*(block.page for block in MEASURED), *OTHERS,
                           *(f"{TOGGLE_PAGES}/{name}.md" for name in TOGGLES),
                           *(page for page, _, _ in trials.read_trials())])
    absent = [page for page in names if not (ROOT / page).exists()]
    return f"there is no {', '.join(absent)}: figures go there, and CONTRIBUTING.md says what a " \
           f"toggle's page holds" if absent else ""


def pages() -> dict[str, str]:
    """Every page with blocks, by its path from the root, and what it is to say; those that are
    missing are left out."""
    blocks: dict[str, dict[str, str]] = {}
    for block in MEASURED:
        blocks.setdefault(block.page, {})[block.name] = block.text()
    for page, others in OTHERS.items():
        blocks.setdefault(page, {}).update({name: make() for name, make in others.items()})
    measured = [results_of(name) for name in TOGGLE_FILES]
    for toggle in TOGGLES.values():
        page = blocks.setdefault(f"{TOGGLE_PAGES}/{toggle.name}.md", {})
        page["worth"] = speedups(toggle, measured)
    for where, name, text in trials.read_trials():
        blocks.setdefault(where, {}).setdefault(name, text)  # OTHERS may show more than a trial
    return {page: filled((ROOT / page).read_text(encoding="utf-8"), made)
            for page, made in blocks.items() if (ROOT / page).exists()}


def main() -> None:
    if said := missing():
        sys.exit(said)
    for page, text in pages().items():
        (ROOT / page).write_text(text, encoding="utf-8")
    for picture, chart in PICTURES.items():
        chart.write(ROOT / picture)
    tutorial.main()


if __name__ == "__main__":
    main()
