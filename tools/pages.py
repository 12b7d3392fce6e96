#!/usr/bin/env python3
"""Write every table and picture of README.md and docs that was measured, from results/.

    python tools/pages.py

A table stands between two comments of its page, `<!-- name -->` and `<!-- /name -->`; what is
around them is written by hand and names no measured figure. `BLOCKS` says which block of which page
is made from which file, `PICTURES` the same of the pictures. The toggles' pages have a column for
each GPU, all of it from one run of `rawnn bench toggles --json results/toggles-NAME.json`. What was
measured once and by no command of rawnn's stands in `results/trials` (`tools/trials.py`).
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from rawnn.bench import ablation, curves, scaling_model  # noqa: E402
from rawnn.bench.columns import markdown_table  # noqa: E402
from rawnn.bench.compare import Comparison, Pair  # noqa: E402
from rawnn.bench.figures import (  # noqa: E402
    ablation_figure,
    curves_figure,
    random_figure,
    sizes_figure,
    standalone,
    sweep_figure,
)
from rawnn.bench.floors import read_floors  # noqa: E402
from rawnn.bench.footprint import x_floor  # noqa: E402
from rawnn.bench.launches import read_launches  # noqa: E402
from rawnn.bench.peers import summary, workload_table  # noqa: E402
from rawnn.bench.peers.problem import BATCHES, DEPTHS, WIDTHS, draws  # noqa: E402
from rawnn.bench.peers.records import NUMBERS, OURS, read_contests  # noqa: E402
from rawnn.bench.plot import plot_ladder, plot_scaling  # noqa: E402
from rawnn.bench.records import read_ladder  # noqa: E402
from rawnn.bench.scaling import read_scaling  # noqa: E402
from rawnn.bench.sets import SetsResult, read_sets  # noqa: E402
from rawnn.bench.table import markdown_rows, provenance  # noqa: E402
from rawnn.bench.worth import has_all, markdown  # noqa: E402
from rawnn.opts import TOGGLES  # noqa: E402
from rawnn.opts.registry import Toggle  # noqa: E402
from tools import false_alarms, full_walk, gpu_record, lab_series, lab_tables, trials  # noqa: E402

RESULTS = ROOT / "results"
TOGGLE_PAGES = "docs/toggles"
NOT_MEASURED = "Not measured by `bench toggles` yet.\n"
NOT_YET = "Not measured by `bench {name}` yet.\n"
PICTURED = ("float32 against tf32", "fastest against fastest")
"""The classes in the picture of the random draw: what the other systems take for float32 unless
told otherwise, and whatever is fastest on both sides."""
FLOPS, ALPHA, BETA = (float(trials.cell("scaling.toml", "constants", letter, "value"))
                      for letter in ("F", "alpha", "beta"))
NVLINK = scaling_model.Link(ALPHA, BETA)
NETWORK_CARD = 50e9
"""Bytes a second of a link of 400 Gbit/s."""
FLOORS_PAGE = "docs/floors.md#x-floor"
SYSTEMS = {"torch": "PyTorch", "jax": "JAX", "numpy": "NumPy"}
DRAWN = RESULTS / "random-peers-h100.json"
"""The random draw that the first page shows; other files of draws have a row each on the page of
the peers."""


def ladder() -> str:
    """The ladder, less the comparison with the reference, and where it was measured."""
    found = read_ladder(RESULTS / "ladder-h200.json")
    lines = markdown_rows(found, ("reference",))
    machine, clocks, _, runs = provenance(found)
    return "\n".join([*lines, "", f"{machine}; {clocks}; {runs}.", ""])


def random_headline() -> str:
    """The random draw: `best` against the best of the peers, a class of numbers a row."""
    found = read_contests(DRAWN)
    peers = [SYSTEMS.get(s, s) for s in found.systems if s != OURS]
    lines = summary.summary(found)
    best = [line for line in lines if line.against == lines[0].against]
    head = [h for h in summary.HEADINGS if h != "against"]
    rows = [[name, *figures] for name, _, *figures in map(summary.cells, best)]
    table = markdown_table(head, rows, head[:1])
    left = len(found.asked) - len(found.contests)
    if left:
        table += ["", f"{left} more {'was' if left == 1 else 'were'} drawn and not reached: "
                  f"{found.ended or 'left out'}."]
    for each in filter(None, (summary.tensor_bound_line(found), summary.draws_line(found),
                              summary.setups(found))):
        table += ["", f"{each[0].upper()}{each[1:]}."]
    count = len(draws(found.asked))
    several = f" in {count} draws" if count > 1 else ""
    return "\n".join([
        f"{len(found.contests)} networks drawn at random{several}, that nobody has tuned to: time "
        f"of the best of {' and '.join(peers)} over",
        f"that of `best`, so **above 1 rawnn is faster, below 1 slower**. All have {DEPTHS[0]} to "
        f"{DEPTHS[1]} layers of {WIDTHS[0]} to",
        f"{WIDTHS[1]} units and batches of {BATCHES[0]} to {BATCHES[1]}, few of them at once the "
        "widest and the largest.", "", *table, "",
        f"{summary.provenance(found)}.", ""])


def other_draws() -> str:
    """A row for each file of other draws, the newest first: what they gave, at which commit."""
    others = [(path, read_contests(path)) for path in RESULTS.glob("random-peers*.json")
              if path != DRAWN]
    rows = []
    for path, found in sorted(others, key=lambda pair: pair[1].environment.date, reverse=True):
        means = {line.name: f"{line.mean:.2f} x" for line in summary.summary(found)
                 if line.against == "the best peer"}
        rows.append([found.environment.date[:10], str(len(found.contests)),
                     *(means[name] for name in PICTURED), (found.environment.gpu or {})["name"],
                     f"{found.environment.commit[:7]} ([samples](../results/{path.name}))"])
    return "\n".join([*markdown_table(("date", "networks", *PICTURED, "GPU", "commit"), rows,
                                      ("date", "GPU", "commit")), ""])


def random_whole() -> str:
    """All of the random draw: every peer, every network, and what failed."""
    return summary.markdown(read_contests(DRAWN))


def peers_of_workloads() -> str:
    """Every program of the built-in workloads that were measured beside the peers."""
    return workload_table.markdown(read_contests(RESULTS / "peers-h200.json"))


PEERS_HEADINGS = ("workload", "network", "numbers", "rawnn", "PyTorch", "JAX", "NumPy",
                  "best peer over rawnn", "x floor")


def peers_headline() -> str:
    """The built-in workloads beside the fastest form of each peer, a class of numbers a row."""
    found = read_contests(RESULTS / "peers-h200.json")
    rows = []
    for contest in found.contests:
        problem = contest.problem
        sizes = "-".join(map(str, problem.layers))
        for numbers in NUMBERS:
            each = {s: contest.best((s,), (numbers,)) for s in (OURS, "torch", "jax", "numpy")}
            ours = each[OURS]
            theirs = [e.time for s, e in each.items() if e is not None and s != OURS]
            rows.append([f"`{problem.name}`" if numbers == NUMBERS[0] else "",
                         f"{sizes}, batch {problem.batch}" if numbers == NUMBERS[0] else "",
                         numbers, *(f"{e.time:.1f}" if e else "" for e in each.values()),
                         f"**{min(theirs) / ours.time:.2f} x**" if ours and theirs else "",
                         x_floor(ours.time if ours else None, contest.footprint(numbers))])
    lines = markdown_table(PEERS_HEADINGS, rows, PEERS_HEADINGS[:3])
    return "\n".join([*lines, "", f"Microseconds a step, the fastest form of each; the last "
                      f"column is our time over the [least]({FLOORS_PAGE}) that any could take; "
                      f"{summary.provenance(found)}.", ""])


def workloads(name: str) -> Callable[[], str]:
    """The built-in workloads on one GPU."""
    return lambda: read_sets(RESULTS / name).markdown()


def measured_toggles() -> list[SetsResult]:
    """Everything that `bench toggles` has measured, the newest first."""
    found = [msgspec.json.decode(path.read_bytes(), type=SetsResult)
             for path in RESULTS.glob("toggles-*.json")]
    return sorted(found, key=lambda result: result.environment.date, reverse=True)


def worth(toggle: Toggle, measured: Sequence[SetsResult]) -> str:
    """What a toggle is worth, with a column for each GPU: of the newest result there that has all
    the sets of the toggle. Without any it says so."""
    newest: dict[str, SetsResult] = {}
    for result in measured:
        if has_all(result, toggle):
            newest.setdefault(result.machine(), result)
    if not newest:
        return NOT_MEASURED
    return (f"Milliseconds an epoch of MNIST by the device's clock, and in brackets how many times "
            f"faster than without, with the 95 % interval; `python -m rawnn bench toggles "
            f"{toggle.name}` measures this "
            f"([how we measure](../measuring.md)).\n\n"
            f"{markdown(toggle, [newest[machine] for machine in sorted(newest)])}")


def ranks_worth() -> str:
    """What batch so many GPUs are worth, by the model of docs/scaling.md, in bfloat16."""
    rows = []
    for link, beta in (("as measured", BETA), ("400 Gbit/s a GPU", NETWORK_CARD)):
        least = 2 * FLOPS / (3 * beta)
        rows.append([link, *(f"{times * least:,.0f}" for times in (1, 1.5, 3, 12, 384))])
    heads = ("link", "`b*`", "3/2 `b*`", "a batch worth 2 GPUs", "8 GPUs", "256 GPUs")
    return "\n".join([*markdown_table(heads, rows, heads[:1]), ""])


def float32_error() -> str:
    """How far float32 on the chip is from float64, beside NumPy's."""
    kept = json.loads((RESULTS / "float32-error.json").read_text(encoding="utf-8"))
    worst, median, draws = kept["worst"], kept["median"], kept["draws"]
    far = max(draws, key=lambda row: float(row["gradient"]))
    return (f"Of {len(draws)} networks drawn at random, one step's change of the weights, as "
            f"stored in float32, is\nat most **{worst['update']:.2f} times** as far from float64 "
            f"as NumPy's in float32 is; the gradients that it is made of,\nin which storing hides "
            f"nothing, at most **{worst['gradient']:.2f} times**, in the median "
            f"{median['gradient']:.2f} times. The worst:\n{far['what']}.\n")


def lab(topic: str) -> Callable[[], str]:
    """The steps of a series of examples/lab, with what each taught and takes on each GPU."""
    return lambda: lab_tables.table(
        topic, [lab_tables.read_lab(path) for path in sorted(RESULTS.glob("lab-*.json"))])


def once_measured(name: str, table: Callable[[Path], str]) -> Callable[[], str]:
    """What `bench NAME` gave on an H200, once somebody has measured it."""

    def made() -> str:
        path = RESULTS / f"{name}-h200.json"
        return table(path) if path.exists() else NOT_YET.format(name=name)

    return made


def two_runs() -> str:
    """What `bench compare` says of two runs of `bench all` of one commit, and of a run in which a
    slowdown was planted."""
    same, planted = (RESULTS / f"compare{which}-h200.json" for which in ("", "-planted"))
    if not same.exists():
        return "Not measured yet.\n"
    found = msgspec.json.decode(same.read_bytes(), type=Comparison)
    lines = ["Two runs of `bench all` of one commit, one after the other on one GPU (the first is "
             "what `results/` has; the second has those suites that time no peers). Ours: "
             f"{_counted(found.ours)}{_mean(found.overall)}."]
    if found.peers:
        lines += [f"The peers': {_counted(found.peers)}{_mean(found.overall_peers)}."]
    if found.between:
        low, high = min(found.between.values()), max(found.between.values())
        lines += [f"Beyond what repetitions explain the two differ by {low:.1%} to {high:.1%}, by "
                  f"kind of sets."]
    lines += ["", *_pairs([p for p in found.pairs if p.verdict in ("slower", "faster", "lost")])]
    if planted.exists():
        other = msgspec.json.decode(planted.read_bytes(), type=Comparison)
        lines += ["Workloads of the second run, and some of them again, where a kernel makes each "
                  "epoch of one set 5 % longer (exit status 1):", "",
                  *_pairs([p for p in other.pairs if p.ratio])]
    return "\n".join(lines)


def _counted(pairs: Sequence[Pair]) -> str:
    return ", ".join(f"{n} `{verdict}`" for verdict, n in
                     Counter(pair.verdict for pair in pairs).most_common()) or "none"


def _mean(overall: tuple[float, float, float] | None) -> str:
    return "; all together B / A = {:.3f} ({:.3f}-{:.3f})".format(*overall) if overall else ""


def _pairs(pairs: Sequence[Pair]) -> list[str]:
    """A table of pairs, and an empty line; nothing for none."""
    if not pairs:
        return []
    cells = [[p.suite, f"`{p.set}`", f"{p.ratio:.3f}" if p.ratio else "",
              f"{p.low:.3f}-{p.high:.3f}" if p.low and p.high else "", p.verdict] for p in pairs]
    heads = ("suite", "set", "B / A", "95 % interval", "verdict")
    return [*markdown_table(heads, cells, (heads[0], heads[1], heads[-1])), ""]


def pictured(path: Path, text: str) -> str:
    """A block with the pictures of a results file above it."""
    made = {"sweep": sweeps, "curves": loss_curves}[path.stem.partition("-")[0]]()
    words = {name: name.partition("-")[2].replace("-", " ") for name in made}
    return "\n".join([*(f"![{word}](../results/{name}.svg)" for name, word in words.items()), "",
                      text])


BLOCKS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "README.md": {"random": random_headline, "peers": peers_headline, "ladder": ladder,
                  "slower": partial(trials.text, "peers.toml", "slower")},
    "docs/peers.md": {"random": random_whole, "earlier": other_draws,
                      "workloads": peers_of_workloads},
    "docs/workloads.md": {"h200": workloads("workloads-h200.json"),
                          "h100": workloads("workloads-h100.json")},
    "docs/toggles/persistent.md": {"float32": float32_error},
    "docs/scaling.md": {
        **{name: once_measured(name, lambda path: read_scaling(path).markdown())
           for name in ("scaling", "scaling-four", "scaling-small")},
        **{name: once_measured(measured, lambda path: scaling_model.table(
            read_scaling(path), NVLINK))
           for name, measured in (("model", "scaling"), ("model-small", "scaling-small"))},
        "worth": ranks_worth},
    "docs/measuring.md": {"compare": two_runs},
    "docs/floors.md": {"floors": once_measured(
        "floors", lambda path: read_floors(path).markdown())},
    "docs/lab.md": {"launches": once_measured(
        "launches", lambda path: read_launches(path).markdown())},
    "docs/suites.md": {
        "ablation": once_measured("ablation", lambda path: ablation.markdown(read_sets(path))),
        "sweep": once_measured("sweep", lambda path: pictured(
            path, workload_table.markdown(read_contests(path)))),
        "curves": once_measured("curves", lambda path: pictured(
            path, curves.markdown(curves.read_curves(path))))},
    "docs/testing.md": {"walk": lambda: full_walk.table(full_walk.read_record()),
                        "alarms": lambda: false_alarms.table(false_alarms.read_record()),
                        "gpu": lambda: gpu_record.lists_table(gpu_record.read_record()),
                        "checked": lambda: gpu_record.checked_table(gpu_record.read_record())},
    "examples/lab/README.md": {topic: lab(topic) for topic in lab_series.SIZES},
}
"""Page -> name of a block in it -> what makes its text."""


def random_picture(path: Path) -> None:
    """Draw the random draw: ratio against size, network by network."""
    found = read_contests(DRAWN)
    path.write_text(standalone(random_figure(found, PICTURED)), encoding="utf-8")


def ladder_picture(path: Path) -> None:
    """Draw the ladder's epochs as bars."""
    plot_ladder(read_ladder(RESULTS / "ladder-h200.json"), path)


def sweeps() -> dict[str, Callable[[], str]]:
    """Time against width, and against batch."""
    path = RESULTS / "sweep-h200.json"
    names = {c.problem.name.split()[0] for c in read_contests(path).contests} if path.exists() \
        else set[str]()
    return {f"sweep-{name}": partial(lambda name: sweep_figure(name, [
        c for c in read_contests(path).contests if c.problem.name.split()[0] == name]), name)
        for name in sorted(names)}


def loss_curves() -> dict[str, Callable[[], str]]:
    """The loss curves of each workload, and speed and loss over the size of the networks."""
    path = RESULTS / "curves-h200.json"
    if not path.exists():
        return {}
    found = curves.read_curves(path)
    made: dict[str, Callable[[], str]] = {
        f"curves-{name}": partial(curves_figure, name, found) for name in found.steps}
    for which, name in ((True, "speed"), (False, "loss")):
        made[f"curves-by-size-{name}"] = partial(sizes_figure, found, which)
    return made


def ablations() -> dict[str, Callable[[], str]]:
    """What each toggle is worth alone and beside the others."""
    path = RESULTS / "ablation-h200.json"
    return {"ablation": lambda: ablation_figure(read_sets(path))} if path.exists() else {}


def pictures() -> dict[str, Callable[[Path], None]]:
    """File -> what draws it, for all that was measured."""
    made: dict[str, Callable[[Path], None]] = {
        "results/random-peers.svg": random_picture, "results/ladder.svg": ladder_picture}
    if (RESULTS / "scaling-four-h200.json").exists():
        made["results/scaling.svg"] = lambda path: plot_scaling(
            read_scaling(RESULTS / "scaling-four-h200.json"), path)
    for name, draw in {**sweeps(), **loss_curves(), **ablations()}.items():
        made[f"results/{name}.svg"] = partial(_written, draw)
    return made


def _written(draw: Callable[[], str], path: Path) -> None:
    path.write_text(standalone(draw()), encoding="utf-8")


PICTURES = pictures()


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
    names = dict.fromkeys([*BLOCKS, *(f"{TOGGLE_PAGES}/{name}.md" for name in TOGGLES),
                           *(page for page, _, _ in trials.read_trials())])
    absent = [page for page in names if not (ROOT / page).exists()]
    return f"there is no {', '.join(absent)}: figures go there, and CONTRIBUTING.md says what a " \
           f"toggle's page holds" if absent else ""


def pages() -> dict[str, str]:
    """Every page with blocks, by its path from the root, and what it is to say; those that are
    missing are left out."""
    measured = measured_toggles()
    blocks = {page: {name: make() for name, make in made.items()}
              for page, made in BLOCKS.items()}
    for toggle in TOGGLES.values():
        page = blocks.setdefault(f"{TOGGLE_PAGES}/{toggle.name}.md", {})
        page["worth"] = worth(toggle, measured)
    for where, name, text in trials.read_trials():
        blocks.setdefault(where, {})[name] = text
    return {page: filled((ROOT / page).read_text(encoding="utf-8"), made)
            for page, made in blocks.items() if (ROOT / page).exists()}


def main() -> None:
    if said := missing():
        sys.exit(said)
    for page, text in pages().items():
        (ROOT / page).write_text(text, encoding="utf-8")
    for picture, draw in PICTURES.items():
        draw(ROOT / picture)


if __name__ == "__main__":
    main()
