"""Figures that were measured once and that no command measures again: `results/trials/*.toml`.

What was tried and left out, what a kernel takes alone, what an earlier form of it took. A file
belongs to the page that it names, and each of its tables is written into the block of that name
there by `tools/pages.py`:

    page = "docs/toggles/NAME.md"

    [tried]
    about = "What the rows are, in which unit, under which conditions."
    gpu = "NVIDIA H200"
    commit = "abc1234"
    columns = ["what", "us"]
    rows = [["a form", "1.5"]]

`commit` is the one that was measured or, where nobody kept that, the first whose pages have the
figure; "unknown" where neither is known. Rows that differ in it have a column `commit` instead.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from rawnn.bench.columns import markdown_table

FOLDER = Path(__file__).resolve().parents[1] / "results" / "trials"
COMMIT = re.compile(r"[0-9a-f]{7}|unknown")


class Trials(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table: figures as they were measured, as text, so that their digits stay."""

    about: str
    gpu: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    commit: str = ""

    def checked(self) -> Trials:
        """Itself. Raises ValueError for a row of another length, no row or no commit."""
        if not self.rows or any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"every row needs {len(self.columns)} cells: {self.about}")
        commits = [self.commit] if self.commit else [
            row[self.columns.index("commit")] for row in self.rows if "commit" in self.columns]
        if not commits or not all(COMMIT.fullmatch(each) for each in commits):
            raise ValueError(f"seven digits of a commit, or \"unknown\", are missing: {self.about}")
        return self

    def markdown(self, source: str) -> str:
        """The text of its block, with the file that owns it."""
        left = [head for place, head in enumerate(self.columns)
                if head == "commit" or not all(re.match(r"\d|$", r[place]) for r in self.rows)]
        at = f", commit {self.commit}" if self.commit else ""
        return "\n".join([self.about, "", *markdown_table(self.columns, self.rows, left), "",
                          f"{self.gpu}{at}; kept in `results/trials/{source}`.", ""])


def cell(source: str, table: str, row: str, column: str, folder: Path = FOLDER) -> str:
    """One figure, from the first row whose first cell is `row`. Raises KeyError or StopIteration
    where there is none."""
    found = msgspec.convert(
        tomllib.loads((folder / source).read_text(encoding="utf-8"))[table], Trials)
    return next(each for each in found.rows if each[0] == row)[found.columns.index(column)]


def text(source: str, table: str, folder: Path = FOLDER) -> str:
    """The text of one table, for a page that shows it beside the one that its file names. Raises
    KeyError, and ValueError for a table that says it otherwise."""
    found = tomllib.loads((folder / source).read_text(encoding="utf-8"))[table]
    return msgspec.convert(found, Trials).checked().markdown(source)


def read_trials(folder: Path = FOLDER) -> Iterator[tuple[str, str, str]]:
    """Page, block and text of every table. Raises ValueError for a file that says it otherwise."""
    for path in sorted(folder.glob("*.toml")):
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        page = tables.pop("page")
        for name, table in tables.items():
            yield page, name, msgspec.convert(table, Trials).checked().markdown(path.name)
