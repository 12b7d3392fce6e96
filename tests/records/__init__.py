"""Recorded behaviour: what rawnn decides and says for fixed inputs, a fact a line.

A function with `@record` yields the lines of `NAME.txt`, which stands beside it in git. The tests
compare; `python -m tests.records` rewrites the files. A changed line is either a mistake or is
explained in the commit that changes it (docs/testing.md).

Lines must be the same on every machine: no time, path, locale, width of a terminal, number of
cores or version of a library.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
MODULES = (
    "decisions",
    "gemms",
    "launches",
    "measured",
    "shardings",
    "sources",
    "driver_calls",
    "refusals",
    "data",
    "lab",
    "messages",
    "several",
    "commands",
    "tables",
    "charts",
    "interface",
    "asked",
)
Lines = Iterator[str]
RECORDS: dict[str, Callable[[], Lines]] = {}


def record(build: Callable[[], Lines]) -> Callable[[], Lines]:
    """Register a function that yields the lines of the record with its name."""
    name = build.__name__
    assert name not in RECORDS, f"two records are called {name}"
    RECORDS[name] = build
    return build


def load() -> dict[str, Callable[[], Lines]]:
    """All records by name."""
    for name in MODULES:
        importlib.import_module(f"tests.records.{name}")
    return RECORDS


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.txt"


def lines_of(name: str) -> list[str]:
    """The lines of a record as the code has them now."""
    with fixed_environment():
        text = "\n".join(RECORDS[name]())
    return [line.rstrip() for line in text.splitlines()]


@contextlib.contextmanager
def fixed_environment() -> Iterator[None]:
    """An empty cache, no variables of the caller that could change a text, a terminal of 100
    columns."""
    removed = (
        "FORCE_COLOR",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "RAWNN_BEST",
        "RAWNN_DATA",
        "RAWNN_FLOORS",
        "PYTEST_CURRENT_TEST",
    )
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as cache, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for key in removed:
            os.environ.pop(key, None)
        os.environ.update(COLUMNS="100", NO_COLOR="1", TERM="dumb", RAWNN_CACHE=cache)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


def short(value: object) -> str:
    """A value as text; floats with five significant digits, which no rounding of a sum changes."""
    if isinstance(value, float):
        return f"{value:.5g}" if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {short(v)}" for k, v in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return "(" + ", ".join(map(short, value)) + ")"
    return str(value)


def outcome(call: Callable[[], Any]) -> str:
    """What a call returns, or the error it raises, on one line."""
    try:
        found = call()
    except Exception as error:
        text = " / ".join(str(error).splitlines())
        return f"{type(error).__name__}: {text}"
    return short(found)
