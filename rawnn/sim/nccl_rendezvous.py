"""Where the ranks of a simulated NCCL meet, each of them driven by a thread of its own.

A collective runs where all ranks have come to it: whoever comes first waits. What NCCL would answer
with a hang or with wrong numbers is reported with both ops named: ranks that come to different
collectives, a rank that has left or never comes.
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
"""Seconds that a rank waits for the others before they are said to be missing."""
ABORTED, NOTICE = "has aborted", 1.0
"""Of a rank that is lost NCCL tells the others nothing: they have so many seconds to hear of it by
themselves and to abort, too."""
STORED = {"float32": "R_32F", "float16": "R_16F", "bfloat16": "R_16BF"}
"""Types that are added up, by cuBLASLt's name of them."""


@dataclass(frozen=True)
class Part:
    """One call of a group: `weight` is what this rank's values count for."""

    send: int
    receive: int
    count: int
    dtype: str
    reduction: str
    weight: float

    @property
    def words(self) -> str:
        """What all ranks must have in common."""
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
        """What this rank brings: in float32, or as it is where nothing is computed."""
        if self.reduction == "gathering":
            return raw.reshape(-1).copy()
        if self.dtype not in STORED:
            return raw.reshape(-1).view(self.dtype).copy()
        return np.float32(self.weight) * load(raw, STORED[self.dtype]).reshape(-1)

    def stored(self, result: NDArray[Any], rank: int) -> NDArray[np.uint8]:
        """What of the result is this rank's, as bytes."""
        if self.reduction == "scattered sum":
            result = result[rank * self.count : (rank + 1) * self.count]
        if self.reduction == "gathering" or self.dtype not in STORED:
            return result.view(np.uint8)
        return store(result, STORED[self.dtype]).view(np.uint8)


@dataclass(eq=False)
class _Round:
    """One collective of all ranks: what each brought, and what came out."""

    words: dict[int, str] = field(default_factory=dict)
    labels: dict[int, str] = field(default_factory=dict)
    contributions: dict[int, list[NDArray[Any]]] = field(default_factory=dict)
    result: list[NDArray[Any]] | None = None


class Rendezvous:
    """The ranks of one unique id. All state is guarded by `changed`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.changed = threading.Condition()
        self.present: set[int] = set()
        self.gone: dict[int, str] = {}
        self.last: dict[int, str] = {}
        self.rounds: dict[int, _Round] = {}
        self.error = ""

    def join(self, rank: int) -> None:
        """Come together. Raises SimulationError where some rank never comes."""
        with self.changed:
            self.present.add(rank)
            self.changed.notify_all()
            self._wait(lambda: len(self.present) == self.size, rank, "ncclCommInitRankConfig",
                       lambda: set(range(self.size)) - self.present)

    def leave(self, rank: int, how: str) -> None:
        with self.changed:
            self.gone[rank] = how
            self.changed.notify_all()

    def reduce(self, rank: int, number: int, label: str, words: str, parts: list[Part],
               contributions: list[NDArray[Any]], meanwhile: Callable[[], bool] = lambda: False
               ) -> list[NDArray[Any]]:
        """The result of collective `number` of this rank, once all ranks have come to it; `words`
        are what all must have in common. `meanwhile` does something else that the rank has to do,
        if there is any."""
        with self.changed:
            here = self.rounds.setdefault(number, _Round())
            here.words[rank] = words
            here.labels[rank] = self.last[rank] = label
            here.contributions[rank] = contributions
            self.changed.notify_all()
            for other, words in here.words.items():
                if words != here.words[rank] and not self.error:
                    self.error = (f"collective {number} differs between ranks: rank {rank} is in "
                                  f"{label} ({here.words[rank]}), rank {other} in "
                                  f"{here.labels[other]} ({words})")
                    self.changed.notify_all()
            if len(here.contributions) == self.size and here.result is None and not self.error:
                here.result = [_combined(part, [here.contributions[r][i] for r in range(self.size)])
                               for i, part in enumerate(parts)]
            self._wait(lambda: here.result is not None, rank, label,
                       lambda: set(range(self.size)) - here.contributions.keys(), meanwhile)
            assert here.result is not None
            return here.result

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


def _combined(part: Part, values: list[NDArray[Any]]) -> NDArray[Any]:
    """In the order of the ranks, in float32."""
    if part.reduction == "gathering":
        return np.concatenate(values)
    total = values[0]
    for value in values[1:]:
        total = np.maximum(total, value) if part.reduction == "max" else total + value
    return total
