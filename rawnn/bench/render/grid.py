"""A table as texts: one object that a terminal, a page in Markdown and the report show."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rawnn.bench.record import Entry

NUMBER = re.compile(r"[-+]?[\d.,]+(\D|$)")
LONGEST_NUMBER = 30
"""Characters of a cell from which on it is a text, whatever it begins with."""


@dataclass(frozen=True)
class Grid:
    """Headings and rows of texts. Columns of the headings `left` are set left, the others right;
    `notes` are sentences below the table, `source` says where and when it was measured, `entries`
    what its rows were made of. A narrow terminal does without the columns `dispensable`, the first
    of them first."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Sequence[str] = ()
    title: str = ""
    notes: Sequence[str] = ()
    source: str = ""
    entries: Sequence[Entry] = field(default=(), repr=False, compare=False)
    dispensable: Sequence[str] = ()

    def without_empty(self, optional: Sequence[str]) -> Grid:
        """The same less those of the `optional` columns in which no row has a text."""
        shown = [n for n, heading in enumerate(self.headings)
                 if heading not in optional or any(row[n] for row in self.rows)]
        return self._only(shown)

    def without(self, headings: Sequence[str]) -> Grid:
        """The same less some columns."""
        return self._only([n for n, h in enumerate(self.headings) if h not in headings])

    def _only(self, shown: Sequence[int]) -> Grid:
        return replace(self, headings=[self.headings[n] for n in shown],
                       rows=[[row[n] for n in shown] for row in self.rows])

    def lines(self) -> list[str]:
        """The table alone, as lines of Markdown."""
        rule = "|" + "|".join("---" if h in self.left else "---:" for h in self.headings) + "|"
        first, *others = (f"| {' | '.join(map(_escaped, row))} |"
                          for row in (self.headings, *self.rows))
        return [first, rule, *others]

    def markdown(self) -> str:
        """The table in Markdown, with its title above and its notes and its source below."""
        built = [self.title, ""] if self.title else []
        built += self.lines()
        if self.notes:
            built += ["", *(f"- {note}" for note in self.notes)]
        if self.source:
            built += ["", f"{self.source}."]
        return "\n".join([*built, ""])

    def _repr_markdown_(self) -> str:
        """What a notebook shows."""
        return self.markdown()

    @staticmethod
    def is_number(cell: str) -> bool:
        """Whether a cell of the report is set right."""
        return bool(NUMBER.match(cell)) and len(cell) < LONGEST_NUMBER


def _escaped(cell: str) -> str:
    """A cell in Markdown, where a bar begins the next one."""
    return re.sub(r"(?<!\\)\|", r"\\|", cell)
