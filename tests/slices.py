"""Which of many cases the default run takes: a tenth or more of them, another share at each commit,
so that ten commits take all. RAWNN_FULL=1 takes all at once (`python tools/full_walk.py`)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

SLICES = 10
FULL = bool(os.environ.get("RAWNN_FULL"))
"""Whether tests take all cases, which is a matter of an hour."""


def _slice() -> int:
    """RAWNN_SLICE, or else the number of commits modulo SLICES; 0 without git."""
    if asked := os.environ.get("RAWNN_SLICE"):
        return int(asked) % SLICES
    counted = ["git", "rev-list", "--count", "HEAD"]
    try:
        found = subprocess.run(counted, cwd=Path(__file__).parent, capture_output=True, text=True)
    except OSError:
        return 0
    return int(found.stdout) % SLICES if found.returncode == 0 else 0


SLICE = _slice()


def sliced(cases: Iterable[T], count: int = 1, of: int | None = None,
           kind: Callable[[T], Hashable] | None = None) -> list[T]:
    """`count` of the cases, evenly spread and other ones in each slice; more where ten slices would
    not come to all of them. With `of` the slice is that one, else this run's. With `kind` every
    slice has `count` cases of each kind: for mistakes that show in cases of one kind alone."""
    every = list(cases)
    if kind is not None:
        kinds: dict[Hashable, list[T]] = {}
        for case in every:
            kinds.setdefault(kind(case), []).append(case)
        return [case for alike in kinds.values() for case in sliced(alike, count, of)]
    count = max(count, -(-len(every) // SLICES))
    if FULL or count >= len(every):
        return every
    start = SLICE if of is None else of
    taken = {(i * len(every) // count + start) % len(every) for i in range(count)}
    return [every[i] for i in sorted(taken)]


def header() -> str:
    """The line that pytest prints ahead of the tests."""
    return ("cases: all (RAWNN_FULL)" if FULL else
            f"cases: slice {SLICE} of {SLICES} (RAWNN_SLICE={SLICE} takes them again)")
