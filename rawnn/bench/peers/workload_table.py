"""The table of `rawnn bench peers`: every program of every workload."""

from __future__ import annotations

from rawnn.bench.columns import markdown_table
from rawnn.bench.footprint import x_floor
from rawnn.bench.peers.records import OURS, Contest, ContestsResult, Entry
from rawnn.bench.peers.summary import provenance
from rawnn.bench.statistics import ratio_interval
from rawnn.bench.table import times_text

HEADINGS = ("workload", "system", "numbers", "form", "us/step", "x floor", "ours is faster",
            "95 % interval", "losses")


def table_rows(result: ContestsResult) -> list[tuple[str, ...]]:
    """The texts under HEADINGS, a program a row, the fastest of each system first."""
    made: list[tuple[str, ...]] = []
    for contest in result.contests:
        order = {s: n for n, s in enumerate(result.systems)}
        entries = sorted(contest.entries, key=lambda e: (
            order.get(e.system, 9), e.numbers, e.time if e.us else float("inf")))
        for index, entry in enumerate(entries):
            made.append((contest.problem.name if not index else "", entry.system, entry.numbers,
                         entry.form, *_figures(contest, entry)))
    return made


def _figures(contest: Contest, entry: Entry) -> tuple[str, ...]:
    if not entry.us:
        return (entry.status, "", "", "", "")
    checked = "WRONG" if entry.status == "wrong" else \
        "agree" if entry.error is not None else "not compared"
    mine = contest.best((OURS,), (entry.numbers,))
    floor = x_floor(entry.time, contest.footprint(entry.numbers))
    if entry.system == OURS or mine is None:
        return (f"{entry.time:.2f}", floor, "", "", checked)
    low, high = ratio_interval(entry.us, mine.us)
    unsure = ", in the noise" if low <= 1 <= high else ""
    return (f"{entry.time:.2f}", floor, f"{times_text(entry.time / mine.time)} x{unsure}",
            f"{low:.2f}-{high:.2f}", checked)


def markdown(result: ContestsResult) -> str:
    """The table in Markdown, with its provenance below."""
    lines = markdown_table(HEADINGS, table_rows(result),
                           ("workload", "system", "numbers", "form", "losses"))
    return "\n".join([*lines, "", *(f"- {text}" for text in remarks(result)), "",
                      provenance(result), ""])


def remarks(result: ContestsResult) -> list[str]:
    """Why programs are wrong or have no time, and which GPU slowed down."""
    found = []
    for contest in result.contests:
        for entry in contest.entries:
            name = f"{contest.problem.name}: {entry.system} {entry.numbers} {entry.form}"
            if entry.reason:
                found.append(f"{name} {entry.status}: {entry.reason}")
            if entry.throttled:
                found.append(f"{name} ran on a slowed-down GPU ({', '.join(entry.throttled)})")
    return found
