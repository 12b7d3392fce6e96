"""One self-contained HTML page of results files: no network, no script, light and dark.

Jinja2 makes the page, matplotlib its figures; both come with the extra `report`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from rawnn.bench.ablation import HEADINGS as ABLATION_HEADINGS
from rawnn.bench.ablation import MEANING, ablated_in
from rawnn.bench.ablation import rows as ablation_rows
from rawnn.bench.columns import filled
from rawnn.bench.conditions import Conditions
from rawnn.bench.curves import HEADINGS as CURVES_HEADINGS
from rawnn.bench.curves import provenance as curves_provenance
from rawnn.bench.curves import read_curves
from rawnn.bench.curves import rows as curves_rows
from rawnn.bench.figures import (
    ablation_figure,
    curves_figure,
    ladder_figure,
    random_figure,
    sizes_figure,
    sweep_figure,
)
from rawnn.bench.floors import HEADINGS as FLOORS_HEADINGS
from rawnn.bench.floors import read_floors
from rawnn.bench.launches import HEADINGS as LAUNCHES_HEADINGS
from rawnn.bench.launches import read_launches
from rawnn.bench.peers.records import Contest, read_contests
from rawnn.bench.peers.summary import HEADINGS as SUMMARY_HEADINGS
from rawnn.bench.peers.summary import (
    NETWORK_HEADINGS,
    NETWORKS,
    cells,
    draws_line,
    network_rows,
    provenance,
    setups,
    summary,
    tensor_bound_line,
)
from rawnn.bench.peers.workload_table import HEADINGS as WORKLOAD_HEADINGS
from rawnn.bench.peers.workload_table import remarks as contest_remarks
from rawnn.bench.peers.workload_table import table_rows
from rawnn.bench.records import read_ladder
from rawnn.bench.sets import HEADINGS as SETS_HEADINGS
from rawnn.bench.sets import SetsResult
from rawnn.bench.table import HEADINGS as LADDER_HEADINGS
from rawnn.bench.table import provenance as ladder_provenance
from rawnn.bench.table import remarks, rows
from rawnn.common.errors import ConfigError, MissingLibrary
from rawnn.common.files import write_atomically

TEMPLATE = Path(__file__).with_name("report.html.j2")
CONDITION_HEADINGS = ("what", "SM MHz", "degrees C", "watts", "slowdowns")


@dataclass(frozen=True)
class Grid:
    """A table."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    @staticmethod
    def number(cell: str) -> bool:
        """Whether a cell is set right."""
        return bool(re.match(r"[-+]?[\d.,]+(\D|$)", cell)) and len(cell) < 30


@dataclass(frozen=True)
class Section:
    """A part of the page. Figures are SVG."""

    anchor: str
    title: str
    source: str
    text: str = ""
    figures: Sequence[str] = ()
    tables: Sequence[Grid] = ()
    remarks: Sequence[str] = field(default=())
    file: str = ""


def write_report(files: Sequence[str], path: str | os.PathLike[str],
                 title: str = "What every optimization is worth") -> list[Section]:
    """Write the page of some results files, in the order of the sections below, of each kind the
    newest first, and return its sections. Raises ConfigError for a file that is none,
    MissingLibrary without Jinja2."""
    try:
        import jinja2
    except ImportError as error:
        raise MissingLibrary(f"a report needs Jinja2, which cannot be imported ({error}): pip "
                             f"install 'rawnn[report]'") from None
    sections: list[tuple[int, str, Section]] = []
    for file in files:
        kind, date = _kind_and_date(file)
        if kind not in SECTIONS:
            raise ConfigError(f"{file} holds '{kind}', of which a report has no section; there are "
                              f"{', '.join(SECTIONS)}")
        made = replace(SECTIONS[kind](file), file=Path(file).stem)
        sections.append((list(SECTIONS).index(kind), date, made))
    if not sections:
        raise ConfigError("there are no results to report on")
    sections.sort(key=lambda each: each[1], reverse=True)
    sections.sort(key=lambda each: each[0])
    ordered = _told_apart([section for *_, section in sections])
    page = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(
        TEMPLATE.read_text()).render(
            title=title, sections=ordered,
            subtitle="Made by rawnn bench report from " + ", ".join(
                Path(f).name for f in files))
    write_atomically(path, page.encode())
    return ordered


class _Place(msgspec.Struct, frozen=True):
    date: str = ""


class _Head(msgspec.Struct, frozen=True):
    kind: str
    environment: _Place = _Place()


def _kind_and_date(file: str) -> tuple[str, str]:
    try:
        head = msgspec.json.decode(Path(file).read_bytes(), type=_Head)
        return head.kind, head.environment.date
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{file} is no results file of rawnn bench: {error}") from None


def _told_apart(sections: Sequence[Section]) -> list[Section]:
    """Sections of one kind have anchors of their own, and titles that name their files."""
    made: list[Section] = []
    for s in sections:
        same = sum(other.anchor == s.anchor for other in sections[:len(made)])
        several = sum(other.title == s.title for other in sections) > 1
        made.append(replace(s, anchor=f"{s.anchor}-{same + 1}" if same else s.anchor,
                            title=f"{s.title}: {s.file}" if several else s.title))
    return made


def _ladder(file: str) -> Section:
    found = read_ladder(file)
    grid = Grid(*filled(LADDER_HEADINGS, [row.cells() for row in rows(found)]))
    seen = [(r.name, r.conditions) for r in found.rungs]
    return Section("ladder", "The ladder", "; ".join([*ladder_provenance(found)]),
                   "The same training with one optimization more at every rung.",
                   [ladder_figure(found)], [grid, *_conditions(seen)], remarks(found))


def _sets(title: str, text: str) -> Callable[[str], Section]:
    def section(file: str) -> Section:
        try:
            found = msgspec.json.decode(Path(file).read_bytes(), type=SetsResult)
        except msgspec.DecodeError as error:
            raise ConfigError(f"{file} is no results file of rawnn bench: {error}") from None
        grid = Grid(*filled(SETS_HEADINGS, [m.cells() for m in found.measurements]))
        seen = [(f"{m.workload} {m.opt}", m.conditions) for m in found.measurements]
        return Section(found.kind, title, found.provenance(), text, (),
                       [grid, *_conditions(seen)])

    return section


def _ablation(file: str) -> Section:
    found = msgspec.json.decode(Path(file).read_bytes(), type=SetsResult)
    worth = Grid(*filled(ABLATION_HEADINGS, ablation_rows(ablated_in(found), found)), MEANING)
    sets = _sets("Ablation", "What each toggle of the fastest set is worth: the fastest set less "
                             "one toggle at a time, and the base with one at a time.")(file)
    return replace(sets, figures=[ablation_figure(found)], tables=[worth, *sets.tables])


def _random(file: str) -> Section:
    found = read_contests(file)
    return Section(
        "random", "Random networks beside the peers", provenance(found),
        "Networks that nobody has tuned to. Ratios are the peers' time over ours: above 1 we are "
        "faster.", [random_figure(found)],
        [Grid(SUMMARY_HEADINGS, [cells(line) for line in summary(found)]),
         Grid(NETWORK_HEADINGS, network_rows(found), NETWORKS)],
        [*filter(None, [tensor_bound_line(found), draws_line(found)]), setups(found),
         *contest_remarks(found)])


def _peers(file: str) -> Section:
    found = read_contests(file)
    return Section("peers", "Built-in workloads beside the peers", provenance(found), "", (),
                   [Grid(*filled(WORKLOAD_HEADINGS, table_rows(found)))], contest_remarks(found))


def _sweep(file: str) -> Section:
    found = read_contests(file)
    groups: dict[str, list[Contest]] = {}
    for contest in found.contests:
        groups.setdefault(contest.problem.name.split()[0], []).append(contest)
    return Section("sweep", "Width and batch", provenance(found),
                   "The fastest form of each system and number class.",
                   [sweep_figure(name, contests) for name, contests in groups.items()],
                   [Grid(*filled(WORKLOAD_HEADINGS, table_rows(found)))], contest_remarks(found))


def _curves(file: str) -> Section:
    found = read_curves(file)
    return Section(
        "curves", "Loss curves", curves_provenance(found),
        "From the same weights on the same batches: curves that lie on top of each other did the "
        "same work. Where networks differ in size: what the fastest form of each system takes for "
        "one, and what it has learnt by the end of its curve.",
        [*(curves_figure(name, found) for name in found.steps),
         *(sizes_figure(found, which) for which in (True, False)
           if len({p.weights for p in found.problems}) > 1 and any(c.us for c in found.curves))],
        [Grid(CURVES_HEADINGS, curves_rows(found))],
        remarks=[f"{c.workload}: {c.system} {c.numbers} {c.form}: {c.reason}"
                 for c in found.curves if c.reason])


def _floors(file: str) -> Section:
    found = read_floors(file)
    return Section(
        "floors", "What limits this GPU", found.provenance(),
        "Launches, barriers, memory and arithmetic by themselves, as fast as they go: what the "
        "columns 'x floor' are counted from.", (),
        [Grid(FLOORS_HEADINGS, [f.cells() for f in found.floors]),
         *_conditions([("all of it", found.conditions)])])


def _launches(file: str) -> Section:
    found = read_launches(file)
    return Section(
        "launches", "What a launch costs the host", found.provenance(),
        "One small kernel, launched from Python by each system that is installed.", (),
        [Grid(*filled(LAUNCHES_HEADINGS, [found.cells(c) for c in found.ways]))])


def _conditions(seen: Sequence[tuple[str, Conditions | None]]) -> list[Grid]:
    """What the GPU was like during each measurement; nothing where nobody looked."""
    made = []
    for name, c in seen:
        if c is None:
            continue
        made.append((name, *("" if s is None else f"{s.min:.0f}-{s.max:.0f}"
                             for s in (c.sm_mhz, c.temperature_c, c.power_w)),
                     ", ".join(c.slowdowns)))
    return [Grid(CONDITION_HEADINGS, made)] if made else []


SECTIONS: dict[str, Callable[[str], Section]] = {
    "ladder": _ladder,
    "random-peers": _random,
    "peers": _peers,
    "sweep": _sweep,
    "ablation": _ablation,
    "curves": _curves,
    "workloads": _sets("Workloads", ""),
    "toggles": _sets("Toggles", "Each toggle without it and with it."),
    "floors": _floors,
    "launches": _launches,
}
"""Kind of a results file -> its section, in the page's order."""
