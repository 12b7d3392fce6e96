"""NumPy on the host: the same steps written with matrix products, in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.bench.peers.loss_check import WINDOW
from rawnn.bench.peers.training_problem import Problem
from rawnn.bench.peers.worker import CHECKED_EPOCHS, Offer

LIMIT_S = 0.5
"""A block is broken off after so long; the time of an epoch then follows from the steps done."""
LEAST = 2
"""Steps of a block at least; WINDOW of those whose losses are compared."""


def offers(problem: Problem, device: str, forms: list[str]) -> Iterator[Offer]:
    yield Offer("float32", "arrays", "wall", lambda: Loop(problem))


def versions() -> dict[str, str]:
    return {"numpy": np.__version__}


def as_it_is(array: NDArray[Any]) -> NDArray[Any]:
    return array


class Loop:
    """The training loop, a layer at a time. What `operand` makes of them is multiplied in the place
    of a product's operands."""

    def __init__(self, problem: Problem,
                 operand: Callable[[NDArray[Any]], NDArray[Any]] = as_it_is) -> None:
        self._problem, self._operand = problem, operand
        self._x, self._y = problem.arrays()
        given = problem.initial()
        self._parameters = [a.copy() for a in given]
        self._moments = [(np.zeros_like(a), np.zeros_like(a)) for a in given]
        self._order = problem.order(0)
        self._done = 0
        self._losses: list[float] = []
        self._blocks = 0

    def reorder(self, order: NDArray[np.int32]) -> None:
        self._order = order

    def losses(self) -> NDArray[np.floating[Any]]:
        return np.array(self._losses)

    def block(self, epochs: int) -> float:
        begun, batch, steps = perf_counter(), self._problem.batch, 0
        least = LEAST if self._blocks >= CHECKED_EPOCHS else WINDOW
        self._blocks += 1
        for _ in range(epochs):
            self._losses = []
            for step in range(self._problem.steps):
                rows = self._order[step * batch:(step + 1) * batch]
                self._losses.append(self.step(rows))
                steps += 1
                if steps >= least and perf_counter() - begun > LIMIT_S:
                    return (perf_counter() - begun) * 1e3 / steps * self._problem.steps
        return (perf_counter() - begun) * 1e3 / epochs

    def step(self, rows: NDArray[np.int32]) -> float:
        """Train on the examples of one batch; its loss."""
        x, y = self._x[rows], self._y[rows]
        bias, of = self._problem.bias, self._operand
        layers = self._parameters[::2] if bias else self._parameters
        values = [x]
        for index, w in enumerate(layers):
            z = of(values[-1]) @ of(w).T
            if bias:
                z += self._parameters[2 * index + 1]
            values.append(z if index + 1 == len(layers) else np.maximum(z, 0))
        loss, dz = gradient(self._problem.loss, values.pop(), y)
        gradients: list[NDArray[Any]] = []
        for index in reversed(range(len(layers))):
            a = values[index]
            change = of(dz).T @ of(a)
            gradients[:0] = [change, dz.sum(axis=0)] if bias else [change]
            if index:
                dz = (of(dz) @ of(layers[index])) * (a > 0)
        self._update(gradients)
        return loss

    def _update(self, gradients: list[NDArray[Any]]) -> None:
        self._done += 1
        lr = np.float32(self._problem.lr)
        for p, g, (m, v) in zip(self._parameters, gradients, self._moments, strict=True):
            if self._problem.optimizer == "sgd":
                p -= lr * g
                continue
            m += np.float32(0.1) * (g - m)
            v += np.float32(0.001) * (g * g - v)
            scale = np.float32(np.sqrt(1 - 0.999**self._done))
            p -= lr / np.float32(1 - 0.9**self._done) * m / (np.sqrt(v) / scale + np.float32(1e-8))


def gradient(loss: str, z: NDArray[Any], y: NDArray[Any]) -> tuple[float, NDArray[Any]]:
    """The mean loss of a batch, and its derivative by the last outputs."""
    rows = np.arange(len(z))
    if loss == "cross_entropy":
        e = np.exp(z - z.max(axis=1, keepdims=True))
        p = e / e.sum(axis=1, keepdims=True)
        value = float(-np.log(p[rows, y]).mean())
        p[rows, y] -= 1
        return value, p / np.float32(len(z))
    if loss == "mse":
        d = z - y
        return float(np.square(d).mean()), d * np.float32(2 / d.size)
    terms = np.maximum(z, 0) - z * y + np.log1p(np.exp(-np.abs(z)))
    return float(terms.mean()), (1 / (1 + np.exp(-z)) - y) / np.float32(z.size)
