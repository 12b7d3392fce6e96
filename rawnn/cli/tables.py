"""Tables of any width on a terminal of any width."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from rich.table import Table

from rawnn.cli.screen import sentences, table_console

if TYPE_CHECKING:
    from rawnn.bench.record import Results
    from rawnn.bench.render.grid import Grid

NARROW = 14
"""Least characters of a column of words; shorter columns, as of figures, keep their width."""


def show(results: Results, suite: str) -> None:
    """Print the tables of a suite, their notes and where they were measured."""
    from rawnn.bench.render.suites import SUITES  # all cases: only where tables are shown

    for number, grid in enumerate(SUITES[suite].grids(results)):
        if number:
            click.echo()
        print_grid(grid)


def print_grid(grid: Grid) -> None:
    """Print a table with its title, notes and source."""
    console = table_console()
    left_out = [h for h in grid.dispensable if h in grid.headings]
    for count in range(len(left_out) + 1):
        shown = grid.without(left_out[:count])
        if _fits(shown.headings, shown.rows, console.width):
            break
    else:
        shown, count = grid, 0  # rows become lines, which have room for all
    rows = [[cell.replace("`", "").replace("**", "") for cell in row] for row in shown.rows]
    print_table(shown.headings, rows, grid.title.replace("`", ""))
    if count:
        click.echo(f"no room for {', '.join(left_out[:count])}: a wider terminal, a pipe or "
                   f"--markdown shows all")
    sentences(console, [*(f"- {note}" for note in grid.notes),
                        *([grid.source] if grid.source else [])])


def _fits(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> bool:
    """Whether a table fits, with its columns of words folded."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    return sum(min(each, NARROW) for each in widths) + 3 * len(widths) + 1 <= width


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """A table on the screen. If it does not fit, columns of words are folded; if that does not
    suffice, each row becomes several lines. Nothing is cut off."""
    console = table_console()
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    whole = sum(widths) <= console.width - 3 * len(widths) - 1
    if not _fits(headings, rows, console.width):
        _records(headings, rows, title, console.width)
        return
    table = Table(title=title or None, title_justify="left")
    for heading, width in zip(headings, widths, strict=True):
        fold = not whole and width > NARROW
        table.add_column(heading, no_wrap=not fold, overflow="fold",
                         min_width=NARROW if fold else width)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _records(headings: Sequence[str], rows: Sequence[Sequence[str]], title: str, width: int
             ) -> None:
    """Each row as its first cell, followed by the others with their headings."""
    if title:
        click.echo(title)
    for row in rows:
        if row[0]:
            click.echo(textwrap.fill(row[0], width, subsequent_indent="  "))
        said = " | ".join(f"{heading} {cell}" for heading, cell in
                          zip(headings[1:], row[1:], strict=True) if cell)
        click.echo(textwrap.fill(said, width, initial_indent="  ", subsequent_indent="    ",
                                 break_long_words=False, break_on_hyphens=False))
