"""NumPy on the host: the same steps written with matrix products, in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rawnn.bench.peers.training_problem import Problem
from rawnn.bench.peers.worker import CHECKED_EPOCHS, WINDOW, Offer

LIMIT_S = 0.5
"""A block is broken off after so long; the time of an epoch then follows from the steps done."""
LEAST = 2
"""Steps of a block at least; WINDOW of those whose losses are compared."""

Tensor = NDArray[Any]


def offers(problem: Problem, device: str, forms: list[str]) -> Iterator[Offer]:
    yield Offer("float32", "arrays", "wall", lambda: Loop(problem))


def versions() -> dict[str, str]:
    return {"numpy": np.__version__}


def unchanged(array: Tensor) -> Tensor:
    return array


class Loop:
    """The training loop, a layer at a time. What `operand` makes of them is multiplied in the place
    of a product's operands."""

    def __init__(self, problem: Problem, operand: Callable[[Tensor], Tensor] = unchanged,
                 kind: DTypeLike = np.float32) -> None:
        self._problem, self._operand, self._kind = problem, operand, np.dtype(kind)
        x, y = problem.arrays()
        self._x: Tensor = x.astype(kind)
        self._y: Tensor = y if problem.loss == "cross_entropy" else y.astype(kind)
        self.parameters: list[Tensor] = [a.astype(kind) for a in self.initial()]
        self._moments = [(np.zeros_like(a), np.zeros_like(a)) for a in self.parameters]
        self._order = self.order(0)
        self._losses: list[Any] = []
        self._done = 0
        self._blocks = 0

    def initial(self) -> list[Tensor]:
        return [*self._problem.initial()]

    def order(self, epoch: int) -> NDArray[np.int32]:
        """The examples of an epoch [..., examples] in the order in which they are seen."""
        return self._problem.order(epoch)

    def reorder(self, order: NDArray[np.int32]) -> None:
        self._order = order

    def losses(self) -> NDArray[np.floating[Any]]:
        return np.array(self._losses)

    def block(self, epochs: int) -> float:
        begun, steps = perf_counter(), 0
        least = LEAST if self._blocks >= CHECKED_EPOCHS else WINDOW
        self._blocks += 1
        for _ in range(epochs):
            self._losses = []
            for rows in self.batches(self._order):
                self._losses.append(self.step(rows))
                steps += 1
                if steps >= least and perf_counter() - begun > LIMIT_S:
                    return (perf_counter() - begun) * 1e3 / steps * self._problem.steps
        return (perf_counter() - begun) * 1e3 / epochs

    def batches(self, order: NDArray[np.int32]) -> list[NDArray[np.int32]]:
        """The rows [..., batch] of each step of an epoch."""
        batch = self._problem.batch
        return [order[..., i * batch:(i + 1) * batch] for i in range(self._problem.steps)]

    def checked_losses(self) -> NDArray[np.float64]:
        """Train the epochs that are checked; the loss of each step [steps, ...]."""
        return np.array([self.step(rows) for epoch in range(CHECKED_EPOCHS)
                         for rows in self.batches(self.order(epoch))], np.float64)

    def step(self, rows: NDArray[np.int32]) -> Any:
        """Train on the examples of one batch [..., batch]; its loss [...]."""
        of, each = self._operand, 2 if self._problem.bias else 1
        layers = self.parameters[::each]
        values = [self._x[rows]]
        for index, w in enumerate(layers):
            z = of(values[-1]) @ of(w).swapaxes(-1, -2)
            if self._problem.bias:
                z += self.parameters[2 * index + 1][..., None, :]
            values.append(z if index + 1 == len(layers) else np.maximum(z, 0))
        loss, dz = loss_and_gradient(self._problem.loss, values.pop(), self._y[rows])
        gradients: list[Tensor] = []
        for index in reversed(range(len(layers))):
            a = values[index]
            change = of(dz).swapaxes(-1, -2) @ of(a)
            gradients[:0] = [change, dz.sum(axis=-2)] if self._problem.bias else [change]
            if index:
                dz = (of(dz) @ of(layers[index])) * (a > 0)
        self._update(gradients)
        return loss

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


def loss_and_gradient(loss: str, z: Tensor, y: Tensor) -> tuple[Any, Tensor]:
    """The mean loss [...] of a batch, and its derivative by the outputs [..., batch, outputs]."""
    batch, outputs = z.shape[-2:]
    if loss == "cross_entropy":
        below, at = z - z.max(axis=-1, keepdims=True), y[..., None]
        p = np.exp(below)
        total = p.sum(axis=-1, keepdims=True)
        p /= total
        np.put_along_axis(p, at, np.take_along_axis(p, at, axis=-1) - 1, axis=-1)
        terms = np.log(total) - np.take_along_axis(below, at, axis=-1)
        return terms[..., 0].mean(axis=-1), p / z.dtype.type(batch)
    if loss == "mse":
        d = z - y
        return np.square(d).mean(axis=(-2, -1)), d * z.dtype.type(2 / (batch * outputs))
    terms = np.maximum(z, 0) - z * y + np.log1p(np.exp(-np.abs(z)))
    return terms.mean(axis=(-2, -1)), (1 / (1 + np.exp(-z)) - y) / z.dtype.type(batch * outputs)
