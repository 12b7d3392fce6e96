"""The rendezvous of a simulated NCCL's ranks, each of them driven by its own thread.

A collective runs once all ranks have reached it; the others wait. Mistakes for which NCCL would
hang or give wrong results are reported with both ops: ranks in different collectives, a rank that
has left or never arrives.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common.dtypes import itemsize
from rawnn.sim.cublaslt import load, store
from rawnn.sim.errors import SimulationError

PATIENCE = 20.0
"""Seconds that a rank waits for the others before they are reported missing."""
ABORTED, NOTICE = "has aborted", 1.0
"""NCCL does not notify the others of a lost rank: they have this many seconds to find out and to
abort, too."""
STORED = {"float32": "R_32F", "float16": "R_16F", "bfloat16": "R_16BF"}
"""Dtypes that are summed, by cuBLASLt's names."""


@dataclass(frozen=True)
class GroupCall:
    """One call of a group: `weight` is the factor of this rank's values."""

    send: int
    receive: int
    count: int
    dtype: str
    reduction: str
    weight: float

    @property
    def words(self) -> str:
        """A description that must be the same on all ranks."""
        return f"{self.reduction} of {self.count:,} {self.dtype}"

    @property
    def call(self) -> str:
        return {"scattered sum": "ncclReduceScatter", "gathering": "ncclAllGather"}.get(
            self.reduction, "ncclAllReduce")

    @property
    def itemsize(self) -> int:
        return itemsize(self.dtype)

    def sent(self, ranks: int) -> int:
        """Bytes of the send buffer."""
        return self.count * self.itemsize * (ranks if self.reduction == "scattered sum" else 1)

    def received(self, ranks: int) -> int:
        """Bytes of the receive buffer."""
        return self.count * self.itemsize * (ranks if self.reduction == "gathering" else 1)

    def values(self, raw: NDArray[np.uint8]) -> NDArray[Any]:
        """This rank's contribution: in float32, or unconverted if nothing is computed."""
        if self.reduction == "gathering":
            return raw.reshape(-1).copy()
        if self.dtype not in STORED:
            return raw.reshape(-1).view(self.dtype).copy()
        return np.float32(self.weight) * load(raw, STORED[self.dtype]).reshape(-1)

    def stored(self, result: NDArray[Any], rank: int) -> NDArray[np.uint8]:
        """This rank's part of the result, as bytes."""
        if self.reduction == "scattered sum":
            result = result[rank * self.count : (rank + 1) * self.count]
        if self.reduction == "gathering" or self.dtype not in STORED:
            return result.view(np.uint8)
        return store(result, STORED[self.dtype]).view(np.uint8)


@dataclass(eq=False)
class _Round:
    """One collective of all ranks: their contributions, and the result."""

    words: dict[int, str] = field(default_factory=dict)
    labels: dict[int, str] = field(default_factory=dict)
    contributions: dict[int, list[NDArray[Any]]] = field(default_factory=dict)
    result: list[NDArray[Any]] | None = None


class Rendezvous:
    """The ranks of one unique id. `changed` guards all state."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.changed = threading.Condition()
        self.present: set[int] = set()
        self.gone: dict[int, str] = {}
        self.last: dict[int, str] = {}
        self.rounds: dict[int, _Round] = {}
        self.error = ""

    def join(self, rank: int) -> None:
        """Wait for all ranks. Raises SimulationError if one never arrives."""
        with self.changed:
            self.present.add(rank)
            self.changed.notify_all()
            self._wait(lambda: len(self.present) == self.size, rank, "ncclCommInitRankConfig",
                       lambda: set(range(self.size)) - self.present)

    def leave(self, rank: int, how: str) -> None:
        with self.changed:
            self.gone[rank] = how
            self.changed.notify_all()

    def reduce(self, rank: int, number: int, label: str, words: str, parts: list[GroupCall],
               contributions: list[NDArray[Any]], meanwhile: Callable[[], bool] = lambda: False
               ) -> list[NDArray[Any]]:
        """The result of collective `number` of this rank, once all ranks have reached it; `words`
        must be the same on all. `meanwhile` does other pending work of the rank, if there is
        any."""
        with self.changed:
            state = self.rounds.setdefault(number, _Round())
            state.words[rank] = words
            state.labels[rank] = self.last[rank] = label
            state.contributions[rank] = contributions
            self.changed.notify_all()
            for other, words in state.words.items():
                if words != state.words[rank] and not self.error:
                    self.error = (f"collective {number} differs between ranks: rank {rank} is in "
                                  f"{label} ({state.words[rank]}), rank {other} in "
                                  f"{state.labels[other]} ({words})")
                    self.changed.notify_all()
            if len(state.contributions) == self.size and state.result is None and not self.error:
                state.result = [
                    _combined(part, [state.contributions[r][i] for r in range(self.size)])
                    for i, part in enumerate(parts)]
            self._wait(lambda: state.result is not None, rank, label,
                       lambda: set(range(self.size)) - state.contributions.keys(), meanwhile)
            assert state.result is not None
            return state.result

    def _wait(self, done: Callable[[], bool], rank: int, label: str,
              missing: Callable[[], set[int]], meanwhile: Callable[[], bool] = lambda: False
              ) -> None:
        until, aborted = monotonic() + PATIENCE, 0.0
        while not done():
            if self.error:
                raise SimulationError(self.error)
            if rank in self.gone:
                raise SimulationError(f"rank {rank} {self.gone[rank]} while it waited in {label}")
            lost = sorted(missing() & self.gone.keys())
            if lost:
                aborted = aborted or monotonic() + NOTICE
                lost = lost if monotonic() > aborted else []
            if lost or monotonic() > until:
                other = lost[0] if lost else min(missing())
                did = f"its last collective was {self.last[other]}" if other in self.last \
                    else "it came to no collective"
                how = self.gone.get(other, f"has not come within {PATIENCE:g} s")
                raise SimulationError(f"rank {rank} waits in {label} for rank {other}, which "
                                      f"{how}; {did}")
            self.changed.release()
            try:
                worked = meanwhile()
            finally:
                self.changed.acquire()
            if not worked:
                self.changed.wait(0.05)


def _combined(part: GroupCall, values: list[NDArray[Any]]) -> NDArray[Any]:
    """The reduction in the order of the ranks, in float32."""
    if part.reduction == "gathering":
        return np.concatenate(values)
    total = values[0]
    for value in values[1:]:
        total = np.maximum(total, value) if part.reduction == "max" else total + value
    return total
