"""One self-contained HTML page of results files: no network, no script, light and dark.

A part of the page is about one GPU: four numbers, what is slower next to what is faster, then a
folded block for each suite. Jinja2 makes the page, matplotlib its charts; both come with the extra
`report`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rawnn.bench.record import Results, read_all
from rawnn.bench.render import networks as nets
from rawnn.bench.render import random_networks, variation
from rawnn.bench.render.charts import PAGE_VARIABLES
from rawnn.bench.render.grid import Grid
from rawnn.bench.render.suites import SUITES
from rawnn.bench.render.tables import compared, is_measured
from rawnn.bench.render.texts import factor, milliseconds
from rawnn.bench.render.training import rungs
from rawnn.common.errors import ConfigError, MissingLibrary
from rawnn.common.files import write_atomically
from rawnn.common.words import counted
from rawnn.engine.result import Environment

TEMPLATE = Path(__file__).with_name("report.html.j2")
NETWORK_SUITES = ("sample", "peers", "sweep")
ORDER = ("ladder", *NETWORK_SUITES, "ablation", "curves", "workloads", "toggles", "lower-bounds",
         "launches", "scaling", "phases", "compare", "check")
"""Suites that the page has first, in this order; the others come behind them by their names."""
MOST_LOSSES = 5
"""Rows of losses that are shown at once; the others are in the blocks below."""


@dataclass(frozen=True)
class Card:
    """A number, what it is, and its interval or what it is compared with."""

    number: str
    words: str
    small: str = ""
    colour: str = ""


@dataclass(frozen=True)
class Block:
    """One suite of one file, folded. `badge` is its date and commit where those are not the part's,
    `fact` its most useful number; `is_older` says that there is a newer file of the suite."""

    anchor: str
    title: str
    fact: str
    badge: str
    text: str
    figures: Sequence[str]
    grids: Sequence[Grid]
    is_older: bool = False


@dataclass
class Part:
    """All that is known of one GPU."""

    anchor: str
    machine: str
    meta: str
    cards: list[Card] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    hero: str = ""
    wins: Grid | None = None
    losses: Grid | None = None
    blocks: list[Block] = field(default_factory=list)
    environments: Grid | None = None

    @property
    def newest(self) -> list[Block]:
        """The newest block of each suite."""
        return [block for block in self.blocks if not block.is_older]

    @property
    def older(self) -> list[Block]:
        """The others."""
        return [block for block in self.blocks if block.is_older]


Found = tuple[str, str, Results]
"""The name of a file, a suite in it, and what the file says of it."""


def write_report(files: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str],
                 title: str | None = None) -> list[str]:
    """Write the page of some results files, or of all in some directories, and return the titles of
    its blocks. Raises ConfigError for a file that is none or where there are none, MissingLibrary
    without Jinja2."""
    try:
        import jinja2
    except ImportError as error:
        raise MissingLibrary(f"a report needs Jinja2, which cannot be imported ({error}): pip "
                             f"install 'rawnn[report]'") from None
    many = {path: values for path in _json_files(files)
            if (values := variation.read_many(path)) is not None}
    found = [each for file in files if Path(file) not in many for each in read_all(file)]
    parts = parts_of(found)
    for path, values in many.items():
        _add_many(parts, path.stem, values)
    if not parts:
        raise ConfigError("there are no results to report on")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    page = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        title=title or ("The speedup of every optimization" if found else "Many networks"),
        measured=bool(found), parts=parts, variables=PAGE_VARIABLES,
        files=[*(name for name, _ in found), *(path.stem for path in many)])
    write_atomically(out, page.encode())
    return [block.title for part in parts for block in part.blocks]


def _json_files(files: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """The files, and those of directories."""
    return [path for file in files for path in (
        sorted(Path(file).glob("*.json")) if Path(file).is_dir() else [Path(file)])]


def _add_many(parts: list[Part], name: str, found: Mapping[str, Any]) -> None:
    """A block on many networks (`rawnn many --json`), in the part of the machine that trained
    them."""
    place = variation.environment_of(found)
    part = next((part for part in parts if part.machine == place.machine), None)
    if part is None:
        meta = f"{place.date[:10]}, commit {place.commit[:7]}" if place.commit else place.date[:10]
        part = Part(f"gpu-{len(parts) + 1}", place.machine, meta)
        part.environments = Grid(("file", *ENVIRONMENT), [])
        parts.append(part)
    assert part.environments is not None
    rows = [*part.environments.rows, [name, *_described(place)]]
    part.environments = replace(part.environments, rows=rows)
    try:
        figures = [variation.chart_of(found).svg(is_inline=True)]
    except ConfigError:  # nothing but seeds varied
        figures = []
    part.blocks.append(Block(
        f"{part.anchor}-many-{len(part.blocks)}", f"Many networks: {name}",
        f"{found['members']:,} members", place.date[:10], "", figures, [variation.best_of(found)]))


def parts_of(files: Sequence[tuple[str, Results]]) -> list[Part]:
    """A part for each GPU, the one measured last first; in it the suites in their order, of each
    the newest first."""
    by_machine: dict[str, list[Found]] = {}
    for name, results in files:
        for machine in dict.fromkeys(e.machine for e in results.environments.values()):
            mine = _of_machine(results, machine)
            for suite in mine.suites:
                if suite in SUITES:
                    by_machine.setdefault(machine, []).append((name, suite, mine))
    order = sorted(by_machine, key=lambda m: max(_date(r, s) for _, s, r in by_machine[m]),
                   reverse=True)
    return [_part(machine, by_machine[machine], number) for number, machine in enumerate(order)]


def _of_machine(results: Results, machine: str) -> Results:
    """What was measured on one GPU: rows of two never share a table."""
    places = {key for key, e in results.environments.items() if e.machine == machine}
    return Results(environments={k: results.environments[k] for k in places}, ended=results.ended,
                   records=[r for r in results.records if r.environment in places])


def _place(results: Results, suite: str) -> Environment:
    """Where and when the last record of a suite was measured."""
    return max((results.place(r) for r in results.where(suite)), key=lambda e: e.date)


def _date(results: Results, suite: str) -> str:
    return _place(results, suite).date


def _part(machine: str, found: Sequence[Found], number: int) -> Part:
    ordered = sorted(found, key=lambda f: _date(f[2], f[1]), reverse=True)
    ordered.sort(key=lambda f: [*ORDER, *sorted(SUITES)].index(f[1]))
    _, lead_suite, lead = ordered[0]
    place = _place(lead, lead_suite)
    gpu = place.gpu or {}
    versions = ", ".join(f"{nets.NAMES.get(name, name)} {version}"
                         for name, version in place.libraries.items())
    part = Part(f"gpu-{number + 1}", machine, ", ".join(filter(None, (
        place.date[:10], f"commit {place.commit[:7]}" if place.commit else "", versions,
        f"driver {gpu['driver']}" if "driver" in gpu else ""))))
    part.cards, part.warnings = _cards(ordered), _warnings(ordered, place)
    part.wins, part.losses = _wins(ordered), _losses(ordered)
    part.environments = _environments(ordered)
    titles: dict[str, int] = {}
    for file, suite, results in ordered:
        shown = SUITES[suite]
        same = titles[suite] = titles.get(suite, 0) + 1
        figures = [chart.svg(is_inline=True) for chart in shown.charts(results).values()]
        if not part.hero and figures and suite in ("sample", "ladder"):
            part.hero = figures.pop(0)
        mine = _place(results, suite)
        old = mine.commit != place.commit or same > 1
        several = sum(s == suite for _, s, _ in ordered) > 1
        part.blocks.append(Block(
            "-".join(filter(None, (part.anchor if number else "", suite,
                                   str(same) if same > 1 else ""))),
            f"{shown.title}: {file}" if several else shown.title, _fact(suite, results),
            f"{mine.date[:10]}, {mine.commit[:7] or 'no commit'}" if old else "", shown.text,
            figures, shown.grids(results), is_older=same > 1))
    return part


# -- the first screen ------------------------------------------------------------------------------


def _first(found: Sequence[Found], suite: str) -> Results | None:
    """The newest results of a suite."""
    return next((results for _, name, results in found if name == suite), None)


def _cards(found: Sequence[Found]) -> list[Card]:
    """Four numbers of the random networks; without those, of the ladder."""
    if (results := _first(found, "sample")) and (networks := nets.networks(results, "sample")):
        lines = {s.name: s for s in random_networks.against_best(networks)}
        cards = []
        for name, colour in zip(random_networks.CHARTED, ("blue", "orange"), strict=True):
            if name in lines:
                mean, low, high = lines[name].mean
                cards.append(Card(f"{mean:.2f}x", name, f"{low:.2f}-{high:.2f}, "
                                  f"{len(lines[name].speedups)} networks", colour))
        if line := next(iter(lines.values()), None):
            line = lines.get(random_networks.CHARTED[0], line)
            slower = sum(value < 1 for value, _ in line.speedups)
            cards.append(Card(f"{line.worst[0]:.2f}x", f"worst network, {line.name}",
                              f"slower in {slower} of {len(line.speedups)}",
                              "red" if slower else ""))
        cards += _compilation(networks)
        return cards
    if results := _first(found, "ladder"):
        measured = [e for e in rungs(results) if is_measured(e)]
        if measured:
            first, last = measured[0], measured[-1]
            ratio = compared(first, last)
            return [Card(f"{milliseconds(e.median('epoch_ms') or 0)} ms", f"an epoch, {e.variant}")
                    for e in (first, last)] + (
                [Card(f"{factor(ratio.value)}x", f"{last.variant} over {first.variant}")]
                if ratio else [])
    return []


def _compilation(networks: Sequence[nets.Network]) -> list[Card]:
    """Seconds until the fastest program of a network was ready, in the median."""
    seconds = random_networks.setup_medians(networks)
    if nets.OURS not in seconds:
        return []
    mine = seconds.pop(nets.OURS)
    return [Card(f"{mine:.1f} s", "to compile, median", ", ".join(
        f"{nets.NAMES.get(name, name)} {value:.1f} s" for name, value in seconds.items()))]


def _warnings(found: Sequence[Found], place: Environment) -> list[str]:
    built = []
    older = [SUITES[suite].title for _, suite, results in found
             if _place(results, suite).commit != place.commit]
    if older:
        built.append(f"Not all of one commit: {', '.join(dict.fromkeys(older))} "
                    f"{'is' if len(set(older)) == 1 else 'are'} of another one. Do not compare "
                    f"figures across blocks.")
    if place.device == "sim":
        built.append("The GPU is SIMULATED: the times say nothing about a real one.")
    early: dict[str, list[str]] = {}
    for _, suite, results in found:
        if why := results.ended.get(suite):
            early.setdefault(suite, []).append(why)
    built += [f"{SUITES[suite].title} ended early: {whys[0]}." if len(whys) == 1 else
              f"{SUITES[suite].title} ended early in {len(whys)} files: the lines below their "
              f"tables say why." for suite, whys in early.items()]
    for _, suite, results in found:
        bad = [e for e in results.entries(suite) if e.status in ("failed", "wrong")
               and nets.system(e) == nets.OURS]
        if bad:
            built.append(f"{SUITES[suite].title}: {counted(len(bad), 'entry', 'entries')} of rawnn "
                        f"failed or {'is' if len(bad) == 1 else 'are'} wrong.")
    return list(dict.fromkeys(built))


def _wins(found: Sequence[Found]) -> Grid | None:
    """In how many networks of the first suite with peers rawnn is the faster, a class of precisions
    a row. The blocks have the other suites."""
    rows = []
    for suite, networks, _ in _newest(found)[:1]:
        for line in random_networks.against_best(networks):
            if line.name not in random_networks.CLASSES:
                continue
            mean, low, high = line.mean
            faster = sum(value > 1 for value, _ in line.speedups)
            rows.append([SUITES[suite].title, line.name, f"{mean:.2f}x", f"{low:.2f}-{high:.2f}",
                         f"{faster} of {len(line.speedups)}", f"{line.worst[0]:.2f}x"])
    return Grid(("suite", "precisions", "mean speedup", "95 %", "faster in", "worst"), rows,
                ("suite", "precisions"), "Where rawnn is faster") if rows else None


def _newest(found: Sequence[Found]) -> list[tuple[str, list[nets.Network], Results]]:
    """The networks of the newest results of each suite with peers."""
    return [(suite, networks, results) for suite in NETWORK_SUITES
            if (results := _first(found, suite)) and (networks := nets.networks(results, suite))]


def _losses(found: Sequence[Found]) -> Grid | None:
    """Every network and class in which a peer is faster, the worst first; None without peers."""
    several = _newest(found)
    if not several:
        return None
    losses = sorted((
        (ratio, [SUITES[suite].title, str(network), name, nets.NAMES.get(nets.system(other), ""),
                 f"{ratio:.2f}x"])
        for suite, networks, _ in several
        for ratio, network, name, _, other in random_networks.losses(networks)),
        key=lambda loss: loss[0])
    more = len(losses) - MOST_LOSSES
    notes = [f"{more} more {'is' if more == 1 else 'are'} in the blocks below"] \
        if len(losses) > MOST_LOSSES else [] if losses else ["No network of these is slower."]
    return Grid(("suite", "network", "precisions", "faster peer", "speedup"),
                [row for _, row in losses[:MOST_LOSSES]],
                ("suite", "network", "precisions", "faster peer"), "Where rawnn is slower", notes)


def _fact(suite: str, results: Results) -> str:
    """The most useful number of a suite."""
    if suite in ("sample", "peers", "sweep", "curves"):
        networks = nets.networks(results, suite)
        lines = random_networks.against_best(networks)
        words = f"; {lines[-1].name} {lines[-1].mean[0]:.2f}x in the mean" if lines else ""
        return f"{counted(len(networks), 'network')}{words}"
    if suite == "ladder":
        measured = [e for e in rungs(results) if is_measured(e)]
        ratio = compared(measured[0], measured[-1]) if len(measured) > 1 else None
        return (f"{milliseconds(measured[-1].median('epoch_ms') or 0)} ms an epoch with "
                f"{measured[-1].variant}, {factor(ratio.value)}x the first") if ratio else ""
    entries = results.entries(suite)
    found = sum(e.status == "measured" for e in entries)
    return f"{found} of {len(entries)} measured"


def _environments(found: Sequence[Found]) -> Grid:
    """Where each block was measured."""
    rows: dict[str, list[str]] = {}
    for file, suite, results in found:
        for place in {e.environment: results.place(e) for e in results.entries(suite)}.values():
            rows[f"{file} {place.key}"] = [file, *_described(place)]
    return Grid(("file", *ENVIRONMENT), list(rows.values()))


ENVIRONMENT = ("date", "commit", "rawnn", "Python", "platform", "driver", "CUDA", "libraries",
               "clocks")


def _described(place: Environment) -> list[str]:
    """The cells of ENVIRONMENT."""
    gpu = place.gpu or {}
    return [place.date, place.commit[:12] or "none", place.rawnn, place.python,
            place.platform, str(gpu.get("driver", "")), str(gpu.get("cuda", "")),
            ", ".join(f"{n} {v}" for n, v in place.libraries.items()),
            ", ".join(f"{n} {v}" for n, v in place.clocks.items()) or "not locked"]
