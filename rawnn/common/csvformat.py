"""The options for reading a CSV file: its encoding, its decimal mark, its columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rawnn.common.errors import ConfigError

Columns: TypeAlias = str | Sequence[str] | None
"""Names or indices of columns: a list, or one comma-separated text, in which a name with a comma is
in double quotes."""


@dataclass(frozen=True)
class CsvFormat:
    """How the text of a file is read: its `encoding` (None: UTF-8), the `decimal` mark of its
    numbers, "." or ",", and the columns to `skip`. Raises ConfigError for invalid values."""

    encoding: str | None = None
    decimal: str = "."
    skip: Columns = None

    def __post_init__(self) -> None:
        try:
            "".encode(self.encoding or "utf-8")
        except (LookupError, ValueError):
            raise ConfigError(f"encoding = '{self.encoding}': Python knows no text encoding of "
                              f"that name; common ones are utf-8, utf-16, latin-1 and cp1252"
                              ) from None
        if self.decimal not in (".", ","):
            raise ConfigError(f"decimal = '{self.decimal}': use '.' or ','")

    def given(self) -> str:
        """The first option that differs from its default, "" for none."""
        return "encoding" if self.encoding is not None else "decimal" if self.decimal != "." else \
            "skip" if self.skip else ""


DEFAULT_FORMAT = CsvFormat()


def columns_of(columns: Columns) -> list[str]:
    """The names or indices in a text or list of columns."""
    if columns is None:
        return []
    if isinstance(columns, str):
        row = next(csv.reader([columns], skipinitialspace=True), [])
        return [name.strip() for name in row]
    return [str(name).strip() for name in columns]


def joined_columns(columns: Sequence[object]) -> str:
    """A list of columns as the text that `columns_of` parses."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(columns)
    return text.getvalue()
