"""Activations: each is one small file with its NumPy function and slope, its CUDA functor (those of
relu, tanh and gelu stand in ptx/elementwise/activations.cuh) and its ONNX operators."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from numpy.typing import NDArray

from rawnn.common.errors import unknown
from rawnn.common.registry import import_all

Array = NDArray[Any]


class OnnxGraph(Protocol):
    """What an activation adds its operators to (rawnn.engine.export); each returns the name of its
    result."""

    def number(self, name: str, value: float) -> str: ...

    def add(self, kind: str, *inputs: str, name: str) -> str: ...


@dataclass(frozen=True)
class Activation:
    """`function(z)` and `slope(saved)`, its derivative at the element that gave `saved`.

    `saves` says what the backward pass needs: the output a (then a product can apply the
    activation in its epilogue and z is never stored) or the input z. `functor` is its name in
    CUDA C, `code` the text that declares it where ptx/elementwise/activations.cuh does not.
    `onnx(graph, z, name)` adds the operators to an ONNX graph and returns their result; without it
    no model is exported. `fast` is a float32 function for predictions, where `function` is slow.
    """

    name: str
    functor: str
    saves: Literal["output", "input"]
    function: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    code: str = ""
    onnx: Callable[[OnnxGraph, str, str], str] | None = None
    fast: Callable[[Array], Array] | None = None


ACTIVATIONS: dict[str, Activation] = {}


def register(activation: Activation) -> Activation:
    ACTIVATIONS[activation.name] = activation
    return activation


def activation(name: str) -> Activation:
    """The activation `name`. Raises ConfigError for an unknown one."""
    if name not in ACTIVATIONS:
        raise unknown("activation", name, ACTIVATIONS)
    return ACTIVATIONS[name]


def functor_text(expressions: Iterable[str]) -> str:
    """CUDA C that declares the functors that instances of kernels name ("activate<float,Silu>"),
    where activations.cuh does not."""
    words = {word for text in expressions for word in re.findall(r"\w+", text)}
    return "\n".join(a.code for a in ACTIVATIONS.values() if a.code and a.functor in words)


def functor(name: str) -> str:
    """The CUDA functor of an activation; "" is the identity."""
    return activation(name).functor if name else "None"


import_all(__name__, __path__)
