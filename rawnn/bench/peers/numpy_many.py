"""NumPy on ensembles: the members' matrix products stacked; in float64 what losses ought to be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rawnn.bench.peers.ensemble import Ensemble
from rawnn.bench.peers.numpy_system import Loop, Tensor, unchanged, versions
from rawnn.bench.peers.worker import Offer

__all__ = ["Stacked", "offers", "versions"]


def offers(problem: Ensemble, device: str, forms: list[str]) -> Iterator[Offer]:
    yield Offer("float32", "stacked", "wall", lambda: Stacked(problem))


class Stacked(Loop):
    """Some members of an ensemble (all unless some are given): all arrays have an axis of
    members."""

    def __init__(self, problem: Ensemble, members: Sequence[int] | None = None,
                 kind: DTypeLike = np.float32,
                 operand: Callable[[Tensor], Tensor] = unchanged) -> None:
        self._whole = problem
        self._members = range(problem.members) if members is None else members
        super().__init__(problem, operand, kind)

    def initial(self) -> list[Tensor]:
        return [*self._whole.initial_of(self._members)]

    def order(self, epoch: int) -> NDArray[np.int32]:
        return self._whole.order_of(epoch, self._members)

    def losses(self) -> NDArray[np.floating[Any]]:
        """The mean loss of the last epoch of each member [members]."""
        return np.asarray(np.mean(self._losses, axis=0, dtype=np.float64))

    def block(self, epochs: int) -> float:
        begun = perf_counter()
        for _ in range(epochs):
            self._losses = [self.step(rows) for rows in self.batches(self._order)]
        return (perf_counter() - begun) * 1e3 / epochs
