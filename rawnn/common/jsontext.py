"""JSON of results. A path may have bytes that are no text, which JSON cannot hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


def json_bytes(value: Any) -> bytes:
    """The value as compact JSON; what of a string is no text stands there as \\udcff, as on the
    screen."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_printable(msgspec.to_builtins(value)))


def indented_json(value: Any) -> bytes:
    """`json_bytes` on lines that are indented by two columns."""
    return msgspec.json.format(json_bytes(value), indent=2)


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {_printable(key): _printable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(item) for item in value]
    return value
