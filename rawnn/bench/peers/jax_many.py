"""JAX on ensembles: `vmap` of a step, an epoch as one `lax.scan` with donated buffers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from rawnn.bench.peers.ensemble import Ensemble
from rawnn.bench.peers.jax_system import PRECISION, is_wanted, loss_of, updated, versions
from rawnn.bench.peers.worker import Offer

__all__ = ["Scan", "offers", "versions"]

PADDED = 8
"""Sizes of layers are rounded up to a multiple of this in padded forms: what tensor cores take."""


@dataclass(frozen=True)
class Form:
    """Steps that are unrolled, whether sizes are padded, and the place of the members' axis."""

    unroll: int = 1
    is_padded: bool = False
    axis: int = 0


FORMS = {"scan": Form(), "scan, unrolled 8": Form(8), "scan, unrolled 4": Form(4),
         "scan, padded": Form(is_padded=True), "scan, padded, unrolled 4": Form(4, True),
         "scan, members last": Form(axis=-1)}

State = Any


def offers(problem: Ensemble, device: str, forms: list[str]) -> Iterator[Offer]:
    """Every form in every precision that `forms` asks for."""
    target = jax.devices("cpu" if device == "host" else "gpu")[0]
    x, y = (jax.device_put(a, target) for a in problem.arrays())
    problem.initial(), problem.order(0)  # which no program's own time covers
    for numbers in ("float32",) if device == "host" else PRECISION:
        for name, form in FORMS.items():
            if is_wanted(numbers, name, forms, FORMS):
                yield Offer(numbers, name, "wall",
                            partial(Scan, problem, numbers, form, x, y, target))


class Scan:
    """A compiled epoch of all members, and the state that it trains on."""

    def __init__(self, problem: Ensemble, numbers: str, form: Form, x: jax.Array, y: jax.Array,
                 target: Any) -> None:
        self._problem, self._target = problem, target
        given = [_placed(a, form) for a in problem.initial()]
        moments = tuple([np.zeros_like(a) for a in given] for _ in "mv") \
            if problem.optimizer == "adam" else ()
        self._state: State = jax.device_put((given, moments, np.float32(0)), target)
        self._x = x if not form.is_padded else _padded_columns(x, _rounded(problem.layers[0]))
        self._y = y
        self._losses: jax.Array = jnp.zeros(0)
        self._run = compiled(problem, numbers, form)
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


@lru_cache(64)
def compiled(problem: Ensemble, numbers: str, form: Form) -> Any:
    """The epoch, which compiles once, however often a program of it is made."""
    return jax.jit(partial(epoch, problem, numbers, form), donate_argnums=0)


def epoch(problem: Ensemble, numbers: str, form: Form, state: State, x: jax.Array, y: jax.Array,
          order: jax.Array) -> tuple[State, jax.Array]:
    """All steps of an epoch: the new state, and the mean loss of each member [members]. `order` is
    [steps, members, batch]."""
    outputs = problem.layers[-1]

    def one(parameters: list[jax.Array], moments: Any, count: jax.Array, rows: jax.Array
            ) -> tuple[State, jax.Array]:
        xb, yb = (a.at[rows].get(mode="promise_in_bounds", unique_indices=True) for a in (x, y))
        value, gradients = jax.value_and_grad(
            lambda p: loss_of(problem, numbers, p, xb, yb, outputs))(parameters)
        return updated(problem, parameters, moments, count + 1, gradients), value

    axes = (form.axis, form.axis, None)
    step = jax.vmap(one, in_axes=(*axes, 0), out_axes=(axes, 0))

    def body(state: State, rows: jax.Array) -> tuple[State, jax.Array]:
        after, value = step(*state, rows)
        return after, value

    with jax.default_matmul_precision(PRECISION[numbers]):
        after, losses = lax.scan(body, state, order, unroll=form.unroll)
        return after, losses.mean(axis=0)


def _rounded(size: int) -> int:
    return -(-size // PADDED) * PADDED


def _placed(array: NDArray[np.float32], form: Form) -> NDArray[np.float32]:
    """Parameters [members, ...] as a form has them. What is padded is 0 and stays so: its inputs
    are 0, the slope of ReLU at 0 is, and padded outputs do not reach the loss."""
    if form.is_padded:
        array = np.pad(array, [(0, 0), *((0, _rounded(n) - n) for n in array.shape[1:])])
    return np.moveaxis(array, 0, form.axis).copy(order="C")  # as donated buffers are written


def _padded_columns(x: jax.Array, columns: int) -> jax.Array:
    return jnp.pad(x, ((0, 0), (0, columns - x.shape[1])))
