"""What `rawnn profile` and the series of the lab find, written and read: files of a kind and a
schema version."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from rawnn.common.errors import ConfigError
from rawnn.common.files import write_atomically


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What a command found, as its file keeps it; `INDENT` spaces a level, none for one line."""

    INDENT: ClassVar[int | None] = 2

    def write_json(self, path: str | os.PathLike[str]) -> None:
        """Write it atomically. Raises RawnnError where the file cannot be written."""
        text = msgspec.json.encode(self)
        if self.INDENT is not None:
            text = msgspec.json.format(text, indent=self.INDENT)
        write_atomically(path, text + b"\n")


def read_measured(path: str | os.PathLike[str],
                  kinds: Mapping[str, tuple[type[Any], int]]) -> Any:
    """Read such a file. `kinds` gives the type and the schema version of
    each kind that is read. Raises ConfigError for anything else."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    try:
        head = msgspec.json.decode(content, type=_Head)
        if head.kind not in kinds:
            raise ConfigError(f"{path} holds a measurement of the kind '{head.kind}'; what can be "
                              f"read here: {', '.join(kinds)}")
        type_, version = kinds[head.kind]
        if head.schema_version != version:
            raise ConfigError(f"{path} holds '{head.kind}' of schema version "
                              f"{head.schema_version}, and this rawnn reads {version}")
        return msgspec.json.decode(content, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not a measurement that rawnn wrote: {error}") from None


class _Head(msgspec.Struct):
    kind: str
    schema_version: int
