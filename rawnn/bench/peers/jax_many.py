"""JAX on ensembles: `vmap` of a step, an epoch as one `lax.scan` with donated buffers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from rawnn.bench.peers.ensemble import Ensemble
from rawnn.bench.peers.jax_system import (
    PRECISION,
    Scan,
    State,
    is_wanted,
    scanned,
    step_of,
    versions,
)
from rawnn.bench.peers.worker import Offer

__all__ = ["offers", "versions"]

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


def offers(problem: Ensemble, device: str, forms: list[str]) -> Iterator[Offer]:
    """Every form in every precision that `forms` asks for."""
    target = jax.devices("cpu" if device == "host" else "gpu")[0]
    x, y = (jax.device_put(a, target) for a in problem.arrays())
    problem.initial(), problem.order(0)  # which no program's own time covers
    for precision in ("float32",) if device == "host" else PRECISION:
        for name, form in FORMS.items():
            if is_wanted(precision, name, forms, FORMS):
                yield Offer(precision, name, "wall",
                            partial(scan_of, problem, precision, form, x, y, target))


def scan_of(problem: Ensemble, precision: str, form: Form, x: jax.Array, y: jax.Array,
            target: Any) -> Scan:
    """An epoch of all members; where sizes are padded, on padded examples."""
    if form.is_padded:
        x = jnp.pad(x, ((0, 0), (0, _rounded(problem.layers[0]) - problem.layers[0])))
    return Scan(problem, compiled(problem, precision, form),
                [_placed(a, form) for a in problem.initial()], x, y, target)


@lru_cache(64)
def compiled(problem: Ensemble, precision: str, form: Form) -> Any:
    """The epoch, which compiles once, however often a program of it is made."""
    return jax.jit(partial(epoch, problem, precision, form), donate_argnums=0)


def epoch(problem: Ensemble, precision: str, form: Form, state: State, x: jax.Array, y: jax.Array,
          order: jax.Array) -> tuple[State, jax.Array]:
    """All steps of an epoch: the new state, and the mean loss of each member [members]. `order` is
    [steps, members, batch]."""
    axes = (form.axis, form.axis, None)
    step = jax.vmap(step_of(problem, precision, x, y, problem.layers[-1]), in_axes=(*axes, 0),
                    out_axes=(axes, 0))
    after, losses = scanned(step, precision, form.unroll, state, order)
    return after, losses.mean(axis=0)


def _rounded(size: int) -> int:
    return -(-size // PADDED) * PADDED


def _placed(array: NDArray[np.float32], form: Form) -> NDArray[np.float32]:
    """Parameters [members, ...] as a form has them. What is padded is 0 and stays so: its inputs
    are 0, the slope of ReLU at 0 is, and padded outputs do not reach the loss."""
    if form.is_padded:
        array = np.pad(array, [(0, 0), *((0, _rounded(n) - n) for n in array.shape[1:])])
    return np.moveaxis(array, 0, form.axis).copy(order="C")  # as donated buffers are written
