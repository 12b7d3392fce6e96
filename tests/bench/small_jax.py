"""As much of JAX as the peers' programs call, in NumPy, for networks of some dozen numbers.

Gradients are central differences in float64. A state that was donated is overwritten, as its
buffers are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from tests.bench.small_torch import as_bf16

ASKED: list[str | int] = []
"""The precisions of products and the steps that are unrolled, in the order of the calls."""


class Device(np.ndarray[Any, Any]):
    """An array on a device."""

    is_exact = False
    """Whether differences are taken, through which bfloat16 passes unrounded."""

    def astype(self, kind: Any, **how: Any) -> Any:  # type: ignore[override]
        if kind != "bfloat16":
            return super().astype(kind, **how)
        return self if Device.is_exact else as_bf16(self).view(Device)

    def block_until_ready(self) -> Device:
        return self

    @property
    def at(self) -> Any:
        return Rows(self)


class Rows:
    """`x.at[rows].get(...)`"""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __getitem__(self, rows: Any) -> Any:
        return SimpleNamespace(get=lambda mode, unique_indices: self.array[rows])


def mapped(function: Callable[..., Any], tree: Any) -> Any:
    """A tree of lists and tuples with what a function makes of its arrays."""
    if isinstance(tree, (list, tuple)):
        return type(tree)(mapped(function, each) for each in tree)
    return function(tree)


def joined(trees: Sequence[Any], axis: Any) -> Any:
    """Trees of the same form, stacked along their axes (None: the first of them)."""
    if isinstance(trees[0], (list, tuple)):
        axes = axis if isinstance(axis, tuple) else [axis] * len(trees[0])
        return type(trees[0])(joined(each, a) for each, a in
                              zip(zip(*trees, strict=True), axes, strict=True))
    return trees[0] if axis is None else np.stack(trees, axis).view(Device)


def vmap(function: Callable[..., Any], in_axes: Any, out_axes: Any) -> Callable[..., Any]:
    def over_all(*arguments: Any) -> Any:
        first = arguments[0][0]
        return joined([function(*(
            each if axis is None else mapped(lambda a, axis=axis, i=i: np.take(a, i, axis), each)
            for each, axis in zip(arguments, in_axes, strict=True)))
            for i in range(first.shape[in_axes[0]])], out_axes)

    return over_all


def scan(step: Callable[..., Any], state: Any, rows: Any, unroll: int) -> tuple[Any, Any]:
    ASKED.append(unroll)
    losses = []
    for each in rows:
        state, loss = step(state, each)
        losses.append(loss)
    return state, np.stack(losses).view(Device)


def value_and_grad(function: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, Any]]:
    def both(parameters: list[Any]) -> tuple[Any, list[Any]]:
        precise = [np.array(p, np.float64).view(Device) for p in parameters]
        found, Device.is_exact = [], True
        for parameter in precise:
            slopes = np.zeros(parameter.shape)
            for place in np.ndindex(*parameter.shape):
                parameter[place] += 1e-6
                above = function(precise)
                parameter[place] -= 2e-6
                slopes[place] = (above - function(precise)) / 2e-6
                parameter[place] += 1e-6
            found.append(slopes)
        Device.is_exact = False
        return np.float32(function(parameters)), found

    return both


def jit(function: Callable[..., Any], donate_argnums: int) -> Callable[..., Any]:
    def compiled(state: Any, *more: Any) -> Any:
        after = mapped(lambda a: np.asarray(a, np.float32).view(Device), function(state, *more))
        mapped(lambda a: a.fill(np.nan) if np.ndim(a) else None, state)
        return after

    assert donate_argnums == 0
    return compiled


def put(value: Any, target: str) -> Any:
    assert target in ("cpu 0", "gpu 0")
    return mapped(lambda a: np.array(a).view(Device), value)


def precision(name: str) -> Any:
    ASKED.append(name)
    return nullcontext()


def small_jax() -> dict[str, Any]:
    """The modules by their names."""
    numpy: Any = ModuleType("jax.numpy")
    vars(numpy).update({name: getattr(np, name) for name in np.__all__ if hasattr(np, name)},
                       bfloat16="bfloat16", float32=np.float64,
                       pad=lambda array, widths: np.pad(array, widths).view(Device))
    jax: Any = ModuleType("jax")
    jax.numpy, jax.Array, jax.__version__ = numpy, np.ndarray, "0.7"
    jax.lax = SimpleNamespace(scan=scan)
    jax.nn = SimpleNamespace(relu=lambda x: np.maximum(x, 0),
                             logsumexp=lambda z, axis: np.log(np.exp(z).sum(axis=axis)))
    jax.device_put, jax.jit, jax.vmap, jax.value_and_grad = put, jit, vmap, value_and_grad
    jax.devices = lambda kind: [f"{kind} {n}" for n in (0, 1)]
    jax.default_matmul_precision = precision
    return {"jax": jax, "jax.numpy": numpy}
