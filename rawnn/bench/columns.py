"""Tables in Markdown, and without the columns that nothing is known of."""

from __future__ import annotations

from collections.abc import Sequence

TRAFFIC = ("launches", "nodes", "MB/step")
"""Columns that say why a time is what it is: launches of a step, nodes of the graph, and the bytes
that a step moves by the plan (rawnn/bench/footprint.py)."""
WHY = (*TRAFFIC, "J/epoch")
"""The same with the energy of an epoch."""
OPTIONAL = ("x floor", "95 %", *WHY)
"""Columns that are left out where no row has a text in them."""


def filled(headings: Sequence[str], rows: Sequence[Sequence[str]]
           ) -> tuple[list[str], list[list[str]]]:
    """Headings and rows, less the optional columns that are empty."""
    shown = [n for n, heading in enumerate(headings)
             if heading not in OPTIONAL or any(row[n] for row in rows)]
    return [headings[n] for n in shown], [[row[n] for n in shown] for row in rows]


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]],
                   left: Sequence[str]) -> list[str]:
    """The same as lines of Markdown; columns are set right but for those of the headings `left`."""
    heads, cells = filled(headings, rows)
    lines = ["| " + " | ".join(heads) + " |",
             "|" + "|".join("---" if h in left else "---:" for h in heads) + "|"]
    return lines + ["| " + " | ".join(row) + " |" for row in cells]
