"""JAX: an epoch as one `lax.scan`, unrolled 1 and 8, with donated buffers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache, partial
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from rawnn.bench.peers.training_problem import Problem
from rawnn.bench.peers.worker import Offer

PRECISION = {"float32": "float32", "tf32": "tensorfloat32", "bf16": "tensorfloat32"}
"""What JAX calls the precision of float32 products; of bf16 the operands are cast."""
FORMS = {"scan, unrolled 8": 8, "scan": 1}
"""Form -> steps that are unrolled; the one that is faster for most networks first."""

State = Any


def versions() -> dict[str, str]:
    return {"jax": jax.__version__}


def offers(problem: Problem, device: str, forms: list[str]) -> Iterator[Offer]:
    """Every form in every precision that `forms` asks for."""
    target = jax.devices("cpu" if device == "host" else "gpu")[0]
    x, y = (jax.device_put(a, target) for a in problem.arrays())
    for form, unroll in FORMS.items():
        for precision in ("float32",) if device == "host" else PRECISION:
            if is_wanted(precision, form, forms, FORMS):
                yield Offer(precision, form, "wall",
                            partial(scan_of, problem, precision, unroll, x, y, target))


def is_wanted(precision: str, form: str, forms: Collection[str], known: Collection[str]) -> bool:
    """Whether `forms` asks for a form, of those that are `known`, in a precision: by both names
    ("tf32:scan"), or by names of either kind, which leave the others of that kind out."""
    if f"{precision}:{form}" in forms:
        return True
    names = {name for name in forms if ":" not in name}
    return (not forms or bool(names)) and all(
        name in names or not names.intersection(kind)
        for name, kind in ((precision, PRECISION), (form, known)))


class Scan:
    """A compiled epoch, and the state that it trains on, from the parameters `given` on."""

    def __init__(self, problem: Problem, run: Any, given: Sequence[Any], x: jax.Array, y: jax.Array,
                 target: Any) -> None:
        moments = tuple([np.zeros_like(a) for a in given] for _ in "mv") \
            if problem.optimizer == "adam" else ()
        self._state: State = jax.device_put(([*given], moments, np.float32(0)), target)
        self._problem, self._run, self._x, self._y, self._target = problem, run, x, y, target
        self._losses: jax.Array = jnp.zeros(0)
        self.reorder(problem.order(0))

    def reorder(self, order: NDArray[np.int32]) -> None:
        self._order = jax.device_put(self._problem.by_step(order), self._target)

    def losses(self) -> NDArray[np.floating[Any]]:
        return np.asarray(self._losses)

    def block(self, epochs: int) -> float:
        begun = perf_counter()
        for _ in range(epochs):
            self._state, self._losses = self._run(self._state, self._x, self._y, self._order)
        self._losses.block_until_ready()
        return (perf_counter() - begun) * 1e3 / epochs


def scan_of(problem: Problem, precision: str, unroll: int, x: jax.Array, y: jax.Array,
            target: Any) -> Scan:
    return Scan(problem, compiled(problem, precision, unroll), problem.initial(), x, y, target)


@lru_cache(64)
def compiled(problem: Problem, precision: str, unroll: int) -> Any:
    """The epoch, which compiles once, however often a program of it is made."""
    return jax.jit(partial(epoch, problem, precision, unroll), donate_argnums=0)


def epoch(problem: Problem, precision: str, unroll: int, state: State, x: jax.Array, y: jax.Array,
          order: jax.Array) -> tuple[State, jax.Array]:
    """All steps of an epoch: the new state, and the loss of each step. `order` is
    [steps, batch]."""
    return scanned(step_of(problem, precision, x, y), precision, unroll, state, order)


Step = Callable[..., tuple[State, jax.Array]]
"""Parameters, moments, count of steps and rows [batch] -> the new state and the loss."""


def scanned(step: Step, precision: str, unroll: int, state: State,
            order: jax.Array) -> tuple[State, jax.Array]:
    """A step for each of the rows of an order: the last state, and all losses."""
    with jax.default_matmul_precision(PRECISION[precision]):
        found: tuple[State, jax.Array] = lax.scan(
            lambda state, rows: step(*state, rows), state, order, unroll=unroll)
        return found


def step_of(problem: Problem, precision: str, x: jax.Array, y: jax.Array,
            outputs: int | None = None) -> Step:
    """A step of one network on rows of the examples."""

    def step(parameters: list[jax.Array], moments: Any, count: jax.Array,
             rows: jax.Array) -> tuple[State, jax.Array]:
        xb, yb = (a.at[rows].get(mode="promise_in_bounds", unique_indices=True) for a in (x, y))
        value, gradients = jax.value_and_grad(
            lambda p: loss_of(problem, precision, p, xb, yb, outputs))(parameters)
        return updated(problem, parameters, moments, count + 1, gradients), value

    return step


def loss_of(problem: Problem, precision: str, parameters: list[jax.Array], x: jax.Array,
            y: jax.Array, outputs: int | None = None) -> jax.Array:
    """The mean loss of a batch, of the first `outputs` of the last layer."""
    kind = jnp.bfloat16 if precision == "bf16" else jnp.float32
    each = 2 if problem.bias else 1
    depth, h = len(parameters) // each, x.astype(kind)
    for layer in range(depth):
        h = h @ parameters[each * layer].astype(kind).T
        if problem.bias:
            h = h + parameters[each * layer + 1].astype(kind)
        if layer + 1 < depth:
            h = jax.nn.relu(h)
    z = h.astype(jnp.float32)[:, :outputs]
    if problem.loss == "cross_entropy":
        picked = jnp.take_along_axis(z, y[:, None], axis=1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(z, axis=1) - picked)
    if problem.loss == "mse":
        return jnp.mean(jnp.square(z - y))
    return jnp.mean(jnp.maximum(z, 0) - z * y + jnp.log1p(jnp.exp(-jnp.abs(z))))


def updated(problem: Problem, parameters: list[jax.Array], moments: Any, count: jax.Array,
            gradients: list[jax.Array]) -> State:
    """The state after a step of the optimizer."""
    lr = problem.lr
    if problem.optimizer == "sgd":
        return [p - lr * g for p, g in zip(parameters, gradients, strict=True)], moments, count
    first = [0.9 * m + 0.1 * g for m, g in zip(moments[0], gradients, strict=True)]
    second = [0.999 * v + 0.001 * g * g for v, g in zip(moments[1], gradients, strict=True)]
    rate, scale = lr / (1 - 0.9**count), jnp.sqrt(1 - 0.999**count)
    moved = [p - rate * m / (jnp.sqrt(v) / scale + 1e-8)
             for p, m, v in zip(parameters, first, second, strict=True)]
    return moved, (first, second), count
