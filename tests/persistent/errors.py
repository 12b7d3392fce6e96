"""How far one step of training is from float64: computed as on the chip, and in plain float32 by
NumPy, for networks drawn at random."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common.dtypes import numpy_dtype
from rawnn.model.layers import Network
from rawnn.model.optimizers import Optimizer
from rawnn.persistent.choose import Choice, choose
from rawnn.persistent.problem import problem_of
from rawnn.plan.plan import Plan
from tests.catalogue import MORE_ACTIVATIONS
from tests.persistent.arithmetic import Arithmetic
from tests.persistent.problems import HOPPER, prepared

Arrays = dict[str, NDArray[Any]]

DRAWS = 100
BOUND = 2.0
"""Error of a step on the chip over that of NumPy's float32: no more."""
WIDTHS, BATCHES = (8, 256), (2, 256)
"""Least and largest, drawn evenly by their logarithms."""
SEEDS = 5
"""Of the errors of approximations in a loss: with a few examples what a step is off by depends on a
few of them, so a median is taken."""
AHEAD = 6
"""Steps in float64 ahead of the one that is measured: optimizers' first are all of one length."""
OPTIMIZERS = (Optimizer("sgd", 0.1), Optimizer("sgd", 0.1, {"momentum": 0.9}),
              Optimizer("adam", 1e-3))


@dataclass(frozen=True)
class Draw:
    """A network with its batch and optimizer."""

    seed: int
    network: Network
    batch: int
    optimizer: Optimizer

    @property
    def plan(self) -> Plan:
        return prepared(self.network, self.batch, optimizer=self.optimizer)

    def __str__(self) -> str:
        layers = "-".join(map(str, self.network.layers))
        rule = "momentum" if self.optimizer.given else self.optimizer.name
        return f"{layers}, batch {self.batch}, {self.network.activation}, {self.network.loss}, " \
               f"{rule}"


def draw(seed: int) -> Draw:
    """The network of a seed."""
    rng = np.random.default_rng(seed)

    def size(bounds: tuple[int, int]) -> int:
        return int(np.exp(rng.uniform(*np.log(bounds))))

    layers = tuple(size(WIDTHS) for _ in range(int(rng.integers(2, 6))))
    network = Network(layers, loss=str(rng.choice(["cross_entropy", "mse", "bce"])),
                      activation=str(rng.choice(["relu", "tanh", "gelu", *MORE_ACTIVATIONS])))
    return Draw(seed, network, size(BATCHES), OPTIMIZERS[int(rng.integers(len(OPTIMIZERS)))])


def begun(drawn: Draw) -> Arrays:
    """All tensors of a draw's plan, float32, some steps after the first."""
    plan, rng = drawn.plan, np.random.default_rng(drawn.seed + 1_000_000)
    arrays: Arrays = {}
    for tensor in plan.tensors.values():
        values: Any = np.zeros(tensor.shape)
        if tensor.name == "labels":
            values = rng.integers(0, drawn.network.outputs, tensor.shape)
        elif tensor.name == "images":
            values = rng.integers(0, 256, tensor.shape)
        elif tensor.name == "targets":
            values = rng.integers(0, 2, tensor.shape)
        arrays[tensor.name] = values.astype(numpy_dtype(tensor.dtype))
    arrays |= drawn.network.initial(drawn.seed)
    arrays = wide(plan, arrays)
    for step in range(AHEAD):
        by_references(plan, arrays, step)
    return {name: array.astype(numpy_dtype(plan[name].dtype)) for name, array in arrays.items()}


def wide(plan: Plan, arrays: Arrays) -> Arrays:
    """The same in float64."""
    return {name: array.astype(np.float64) if plan[name].floating else array.copy()
            for name, array in arrays.items()}


def by_references(plan: Plan, arrays: Arrays, offset: int) -> None:
    """The plan's step by NumPy, in the arrays' types."""
    for op in plan.ops:
        operands = SimpleNamespace(**{role: arrays[name] for role, name in op.operands.items()})
        stored = {role: plan[name].dtype for role, name in op.operands.items()}
        op.spec.reference(operands, {**op.attributes, "offset": offset, "stored": stored})


@dataclass(frozen=True)
class Errors:
    """Relative errors (Euclidean norms over all parameters) of what a step changed, as stored in
    float32, and of its gradients, on the chip (medians) and in NumPy's float32."""

    drawn: Draw
    chosen: Choice = field(repr=False)
    update: tuple[float, float]
    gradient: tuple[float, float]

    @property
    def ratios(self) -> tuple[float, float]:
        """On the chip over NumPy: of the update, of the gradients."""
        return self.update[0] / self.update[1], self.gradient[0] / self.gradient[1]


def relative(found: NDArray[Any], exact: NDArray[Any]) -> float:
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def measured(drawn: Draw, nearest: bool = False) -> Errors:
    """The errors of a draw's step, by the model of the arithmetic on the chip."""
    plan, start = drawn.plan, begun(drawn)
    chosen = choose(problem_of(plan), HOPPER)
    exact, plain = wide(plan, start), dict_of(start)
    by_references(plan, exact, AHEAD)
    by_references(plan, plain, AHEAD)
    several = [dict_of(start) for _ in range(1 if drawn.network.loss == "mse" else SEEDS)]
    for seed, ours in enumerate(several):
        Arithmetic(chosen, nearest, seed).step(plan, ours, AHEAD)
    names = [tensor.name for tensor in drawn.network.parameters()]
    gradients = [f"d{'w' if n.endswith('weight') else 'b'}{n[2 : n.index('.')]}" for n in names]

    def changed(arrays: Arrays) -> NDArray[Any]:
        return np.concatenate([(arrays[n].astype(np.float64) - start[n]).ravel() for n in names])

    def passed_back(arrays: Arrays) -> NDArray[Any]:
        return np.concatenate([arrays[n].astype(np.float64).ravel() for n in gradients])

    update, gradient = (
        (float(np.median([relative(of(ours), of(exact)) for ours in several])),
         relative(of(plain), of(exact)))
        for of in (changed, passed_back))
    return Errors(drawn, chosen, update, gradient)


def dict_of(arrays: Arrays) -> Arrays:
    return {name: array.copy() for name, array in arrays.items()}
