"""The table of planted faults in docs/testing.md, as text."""

from __future__ import annotations

from pathlib import Path

from tests.proof.plants import CLASSES, PLANS, Tally

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "testing.md"
BEGIN, END = "<!-- planted faults: begin -->", "<!-- planted faults: end -->"


def row(plan: str, found: dict[str, Tally]) -> str:
    """planted / caught for every class; "-" where there is nothing to plant."""
    cells = []
    for name in CLASSES:
        tally = found.get(name)
        cells.append(f"{tally.planted} / {tally.planted - len(tally.missed)}"
                     if tally and tally.planted else "-")
    return f"| {plan} | " + " | ".join(cells) + " |"


def table(found: dict[str, dict[str, Tally]]) -> str:
    """The whole table, with totals and what was skipped."""
    lines = ["| plan | " + " | ".join(CLASSES) + " |", "|---" * (len(CLASSES) + 1) + "|"]
    lines += [row(plan, found[plan]) for plan in PLANS]
    tallies = {name: [tallies[name] for tallies in found.values() if name in tallies]
               for name in CLASSES}
    lines.append(row("**all**", {
        name: Tally(sum(t.planted for t in group), sum(t.skipped for t in group),
                    tuple(missed for t in group for missed in t.missed))
        for name, group in tallies.items()
    }))
    skipped = ", ".join(f"{name} {sum(t.skipped for t in group)}"
                        for name, group in tallies.items() if any(t.skipped for t in group))
    return "\n".join([*lines, "", f"Left out because they change nothing: {skipped}."])


def committed() -> str:
    """What stands between the markers of the document."""
    text = DOCUMENT.read_text()
    return text[text.index(BEGIN) + len(BEGIN):text.index(END)].strip()


def commit(text: str) -> None:
    """Write `text` between the markers."""
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    DOCUMENT.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")
