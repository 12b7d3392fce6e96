"""Tables of what was measured once, and by no command of rawnn's: figures as TOML, for the pages.

A file of results/trials holds the tables of one page, which tools/pages.py writes between the
comments of that page. A table says what was measured, on which GPU and at which commit:

    page = "docs/toggles/mma.md"

    [products]                    # the block <!-- products --> of the page
    about = "What the rows are, in which unit, under which conditions."
    gpu = "NVIDIA H200"
    commit = "abc1234"
    columns = ["what", "us"]
    rows = [["a variant", "1.5"]]

A table with a `page` of its own (a page of docs/notes that keeps the history) stands there.
`commit` is the one that was measured or, where nobody kept that, the first whose pages have the
figure; "unknown" where neither is known. Rows that differ in it have a column `commit` instead: no
table mixes them, so that they become a table for each commit. Of many commits, or of comparisons of
before and after, they become a list, a comparison a line; so do figures of several GPUs together.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from rawnn.bench.render.grid import Grid

FOLDER = Path(__file__).resolve().parents[1] / "results" / "trials"
COMMIT = re.compile(r"[0-9a-f]{7}|unknown")
GPU = re.compile(r"\b[A-Z]{1,3}\d{2,3}\b")
"""The name of a GPU: H100. Of two of them, a figure is no row of a table either."""
MOST_TABLES = 3
"""Commits of a block up to which each has a table; rows of more are a list."""


class Trials(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One block: figures as they were measured, as text, so that their digits stay."""

    about: str
    gpu: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    commit: str = ""
    page: str = ""

    def checked(self) -> Trials:
        """Itself. Raises ValueError for a row of another length, no row or no commit."""
        if not self.rows or any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"every row needs {len(self.columns)} cells: {self.about}")
        if not self.by_commit() or not all(map(COMMIT.fullmatch, self.by_commit())):
            raise ValueError(f"seven digits of a commit, or \"unknown\", are missing: {self.about}")
        return self

    def by_commit(self) -> dict[str, list[Sequence[str]]]:
        """The rows of each commit, without it."""
        if self.commit:
            return {self.commit: list(self.rows)}
        if "commit" not in self.columns:
            return {}
        at = self.columns.index("commit")
        found: dict[str, list[Sequence[str]]] = {}
        for row in self.rows:
            found.setdefault(row[at], []).append((*row[:at], *row[at + 1:]))
        return found

    def markdown(self, source: str) -> str:
        """The text of its block, with the file that owns it."""
        heads = [head for head in self.columns if head != "commit"]
        groups = self.by_commit()
        left = [head for n, head in enumerate(heads) if not all(
            re.match(r"\d|$", row[n]) for rows in groups.values() for row in rows)]
        is_history = len(groups) > 1 and {"before", "after"} <= set(heads)
        if len(groups) > MOST_TABLES or is_history or len(set(GPU.findall(self.gpu))) > 1:
            at = self.columns.index("commit") if "commit" in self.columns else len(self.columns)
            lines = [f"- {_line(heads, (*row[:at], *row[at + 1:]))} "
                     f"({commit_words([*row, self.commit][at])})" for row in self.rows]
            return "\n".join([self.about, "", *lines, "",
                              f"{self.gpu}; kept in `results/trials/{source}`.", ""])
        return "\n".join([self.about, "", *(
            Grid(heads, rows, left, source=f"{self.gpu}, {commit_words(commit)}; kept in "
                                           f"`results/trials/{source}`").markdown()
            for commit, rows in groups.items())])


def _line(heads: Sequence[str], row: Sequence[str]) -> str:
    """A row as a sentence: "what, on this: before 2, after 1 us"."""
    cells = {head: cell for head, cell in zip(heads, row, strict=True) if cell}
    if {"before", "after"} <= cells.keys():
        unit = f" {cells['unit']}" if "unit" in cells else ""
        where = f", {cells['on']}" if "on" in cells else ""
        return f"{cells['what']}{where}: {cells['before']} before, {cells['after']}{unit} after"
    name, *others = cells.items()
    return f"{name[1]}: " + ", ".join(f"{head} {cell}" for head, cell in others)


def commit_words(commit: str) -> str:
    """Of a commit, or that nobody recorded it."""
    return "commit not recorded" if commit == "unknown" else f"commit {commit}"


def table(source: str, name: str, folder: Path = FOLDER) -> Trials:
    """One table, for a page that shows it otherwise than the one that its file names. Raises
    KeyError, and ValueError for a table that says it otherwise."""
    found = tomllib.loads((folder / source).read_text(encoding="utf-8"))[name]
    return msgspec.convert(found, Trials).checked()


def read_trials(folder: Path = FOLDER) -> Iterator[tuple[str, str, str]]:
    """Page, block and text of every table. Raises ValueError for a file that says it otherwise."""
    for path in sorted(folder.glob("*.toml")):
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        page = tables.pop("page")
        for name, each in tables.items():
            found = msgspec.convert(each, Trials).checked()
            yield found.page or page, name, found.markdown(path.name)
