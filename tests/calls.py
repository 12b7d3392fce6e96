"""Work counted in lines that run: unlike a time, it is the same on a busy machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def untraced() -> Iterator[None]:
    """Lines that run in this thread are not recorded, which takes longer than many of them do."""
    before = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(before)


def count_lines(act: Callable[[], Any]) -> int:
    """How many lines of Python `act` runs in this thread, one for each turn of a comprehension."""
    count, before = 0, sys.gettrace()

    def count_one(frame: object, event: str, argument: object) -> Any:
        nonlocal count
        count += 1
        return count_one

    sys.settrace(count_one)
    try:
        act()
    finally:
        sys.settrace(before)
    return count
