"""A readable log of every call that allocates device memory from the driver or frees it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

from rawnn.common.files import TextSink

if TYPE_CHECKING:
    from rawnn.cuda.memory import Memory

_HEAD = (f"{'time ms':>10}  {'epoch':>5}  {'step':>5}  {'call':<15}  {'bytes':>15}  {'held':>15}  "
         f"{'address':<14}  purpose")


class AllocationLog:
    """Writes one line per call to `sink`. `held` is what rawnn has from the driver after the call.

    The caller sets `epoch` and `step` (both from 1; 0: outside). `calls` counts the lines of each
    epoch, with those before and between epochs under 0. The last line gives these counts: if memory
    is reused, all epochs but the first have none.
    """

    def __init__(self, sink: TextSink, clock: Callable[[], float] = perf_counter) -> None:
        self._sink, self._clock, self._start = sink, clock, clock()
        self.epoch = self.step = 0
        self.epochs = 0
        self.calls: Counter[int] = Counter()
        print(_HEAD, file=sink)

    def begin_epoch(self, epoch: int) -> None:
        """Assign later calls to `epoch` (0: to none)."""
        self.epoch, self.step = epoch, 0
        self.epochs = max(self.epochs, epoch)

    def record(self, call: str, nbytes: int, held: int, address: int, purpose: str) -> None:
        """Log one call after it has succeeded; `nbytes` is negative if memory was freed."""
        self.calls[self.epoch] += 1
        milliseconds = (self._clock() - self._start) * 1e3
        epoch = str(self.epoch) if self.epoch else "-"
        step = str(self.step) if self.epoch and self.step else "-"
        print(f"{milliseconds:>10.3f}  {epoch:>5}  {step:>5}  {call:<15}  {nbytes:>+15,}  "
              f"{held:>15,}  {address:<#14x}  {purpose}", file=self._sink)

    def summary(self) -> str:
        """Calls before and between the epochs, and in each: "9 outside; epoch 1: 7, epochs 2-5:
        none"."""
        parts = []
        first = 1
        while first <= self.epochs:
            last = first
            while last < self.epochs and self.calls[last + 1] == self.calls[first]:
                last += 1
            name = f"epoch {first}" if last == first else f"epochs {first}-{last}"
            each = " each" if last > first and self.calls[first] else ""
            parts.append(f"{name}: {self.calls[first] or 'none'}{each}")
            first = last + 1
        inside = f"; in {', '.join(parts)}" if parts else ""
        return f"driver calls: {self.calls[0]} outside the epochs{inside}"

    def close(self) -> None:
        """Write the summary."""
        print(self.summary(), file=self._sink, flush=True)


@contextmanager
def logged(memory: Memory, sink: TextSink) -> Iterator[None]:
    """Log each call to the driver that `memory` makes within this context to `sink`."""
    memory.log = log = AllocationLog(sink)
    try:
        yield
    finally:
        memory.log = None
        log.close()
