"""How often interleaved measurements are repeated: as often as asked for, or as time allows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from time import monotonic


class Rounds:
    """The numbers of rounds, 0, 1, ... below `repeats`. Behind the first, none is begun that is not
    expected to end within `budget` seconds from now on, if it takes as long as the one before;
    `repeats` is then as many as there were, and `short` says so."""

    def __init__(self, repeats: int, budget: float = math.inf) -> None:
        self.repeats, self._budget, self.short = repeats, budget, False
        self._begun = monotonic()

    def __iter__(self) -> Iterator[int]:
        last = monotonic()
        for number in range(self.repeats):
            now = monotonic()
            if number and now - self._begun + (now - last) > self._budget:
                self.repeats, self.short = number, True
                return
            last = now
            yield number

    def room(self, seconds: float) -> bool:
        """Whether so many seconds are left of the budget."""
        return monotonic() - self._begun + seconds <= self._budget
