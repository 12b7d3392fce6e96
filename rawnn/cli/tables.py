"""Tables of any width on a terminal of any width."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import click
from rich.table import Table

from rawnn.bench.columns import filled
from rawnn.cli.screen import table_console

NARROW = 14
"""Characters that a column of words keeps at least; shorter ones, as figures are, keep all."""


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """A table on the screen, less optional columns that are empty. Where it does not fit, columns
    of words are folded; where that does not suffice, each row becomes lines of its own. Nothing is
    cut off."""
    headings, rows = filled(headings, rows)
    console = table_console()
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    room = console.width - 3 * len(widths) - 1
    whole = sum(widths) <= room
    if not whole and sum(min(width, NARROW) for width in widths) > room:
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
    """Each row as its first cell, and under it what the others are."""
    if title:
        click.echo(title)
    for row in rows:
        if row[0]:
            click.echo(textwrap.fill(row[0], width, subsequent_indent="  "))
        said = " | ".join(f"{heading} {cell}" for heading, cell in
                          zip(headings[1:], row[1:], strict=True) if cell)
        click.echo(textwrap.fill(said, width, initial_indent="  ", subsequent_indent="    ",
                                 break_long_words=False, break_on_hyphens=False))
