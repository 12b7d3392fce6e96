"""Activations: each is one small file with its NumPy function and slope; the CUDA functor of the
same name stands in ptx/elementwise/activations.cuh."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import NDArray

from rawnn.common.errors import unknown

Array = NDArray[Any]


@dataclass(frozen=True)
class Activation:
    """`function(z)` and `slope(saved)`, its derivative at the element that gave `saved`.

    `saves` says what the backward pass needs: the output a (then a product can apply the
    activation in its epilogue and z is never stored) or the input z. `functor` is its name in
    CUDA C, `code` the text that declares it where ptx/elementwise/activations.cuh does not.
    """

    name: str
    functor: str
    saves: Literal["output", "input"]
    function: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    code: str = ""


ACTIVATIONS: dict[str, Activation] = {}


def register(activation: Activation) -> Activation:
    ACTIVATIONS[activation.name] = activation
    return activation


def activation(name: str) -> Activation:
    """The activation `name`. Raises ConfigError for an unknown one."""
    if name not in ACTIVATIONS:
        raise unknown("activation", name, ACTIVATIONS)
    return ACTIVATIONS[name]


def declarations(words: Collection[str]) -> str:
    """CUDA C that declares those functors among `words` that activations.cuh does not."""
    return "\n".join(a.code for a in ACTIVATIONS.values() if a.code and a.functor in words)


def functor(name: str) -> str:
    """The CUDA functor of an activation; "" is the identity."""
    return activation(name).functor if name else "None"


from rawnn.model.activations import gelu as _gelu  # noqa: E402
from rawnn.model.activations import relu as _relu  # noqa: E402
from rawnn.model.activations import tanh as _tanh  # noqa: E402

del _gelu, _relu, _tanh
