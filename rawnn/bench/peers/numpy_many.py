"""NumPy on ensembles: the members' matrix products stacked; in float64 what losses ought to be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rawnn.bench.peers.ensemble import Ensemble
from rawnn.bench.peers.numpy_system import as_it_is
from rawnn.bench.peers.worker import Offer

Tensor = NDArray[Any]


def offers(problem: Ensemble, device: str, forms: list[str]) -> Iterator[Offer]:
    yield Offer("float32", "stacked", "wall", lambda: Stacked(problem))


def versions() -> dict[str, str]:
    return {"numpy": np.__version__}


class Stacked:
    """Some members of an ensemble (all unless some are given), a layer at a time. What `operand`
    makes of them is multiplied in the place of a product's operands."""

    def __init__(self, problem: Ensemble, members: Sequence[int] | None = None,
                 kind: DTypeLike = np.float32,
                 operand: Callable[[Tensor], Tensor] = as_it_is) -> None:
        self._problem, self._operand, self._kind = problem, operand, np.dtype(kind)
        self._members = range(problem.members) if members is None else members
        x, y = problem.arrays()
        self._x = x.astype(kind)
        self._y: Tensor = y if problem.loss == "cross_entropy" else y.astype(kind)
        self.parameters = [a.astype(kind) for a in problem.initial_of(self._members)]
        self._moments = [(np.zeros_like(a), np.zeros_like(a)) for a in self.parameters]
        self._order = problem.order_of(0, self._members)
        self._losses: Tensor = np.zeros(len(self._members))
        self._done = 0

    def reorder(self, order: NDArray[np.int32]) -> None:
        self._order = order

    def losses(self) -> NDArray[np.floating[Any]]:
        return self._losses

    def block(self, epochs: int) -> float:
        begun, batch, steps = perf_counter(), self._problem.batch, self._problem.steps
        for _ in range(epochs):
            self._losses = np.stack([self.step(self._order[:, i * batch:(i + 1) * batch])
                                     for i in range(steps)]).mean(axis=0, dtype=np.float64)
        return (perf_counter() - begun) * 1e3 / epochs

    def step(self, rows: NDArray[np.int32]) -> Tensor:
        """Train each member on its rows [members, batch]; their losses [members]."""
        of, each = self._operand, 2 if self._problem.bias else 1
        layers = self.parameters[::each]
        values = [self._x[rows]]
        for index, w in enumerate(layers):
            z = of(values[-1]) @ of(w).swapaxes(1, 2)
            if self._problem.bias:
                z += self.parameters[2 * index + 1][:, None, :]
            values.append(z if index + 1 == len(layers) else np.maximum(z, 0))
        losses, dz = loss_and_gradient(self._problem.loss, values.pop(), self._y[rows])
        gradients: list[Tensor] = []
        for index in reversed(range(len(layers))):
            a = values[index]
            change = of(dz).swapaxes(1, 2) @ of(a)
            gradients[:0] = [change, dz.sum(axis=1)] if self._problem.bias else [change]
            if index:
                dz = (of(dz) @ of(layers[index])) * (a > 0)
        self._update(gradients)
        return losses

    def _update(self, gradients: list[Tensor]) -> None:
        self._done += 1
        number: Callable[[float], Any] = self._kind.type
        lr = number(self._problem.lr)
        for p, g, (m, v) in zip(self.parameters, gradients, self._moments, strict=True):
            if self._problem.optimizer == "sgd":
                p -= lr * g
                continue
            m += number(0.1) * (g - m)
            v += number(0.001) * (g * g - v)
            scale = number(np.sqrt(1 - 0.999**self._done))
            p -= lr / number(1 - 0.9**self._done) * m / (np.sqrt(v) / scale + number(1e-8))


def loss_and_gradient(loss: str, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss of each member's batch [members], and its derivative by the outputs
    [members, batch, outputs]."""
    batch = z.shape[1]
    if loss == "cross_entropy":
        e = np.exp(z - z.max(axis=2, keepdims=True))
        p = e / e.sum(axis=2, keepdims=True)
        picked = np.take_along_axis(p, y[:, :, None], axis=2)
        np.put_along_axis(p, y[:, :, None], picked - 1, axis=2)
        return -np.log(picked[:, :, 0]).mean(axis=1), p / z.dtype.type(batch)
    if loss == "mse":
        d = z - y
        return np.square(d).mean(axis=(1, 2)), d * z.dtype.type(2 / d[0].size)
    terms = np.maximum(z, 0) - z * y + np.log1p(np.exp(-np.abs(z)))
    return terms.mean(axis=(1, 2)), (1 / (1 + np.exp(-z)) - y) / z.dtype.type(y[0].size)
