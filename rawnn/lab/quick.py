"""The usual launch as one generated function: our own arrays and Python's numbers, checked, packed
and handed to the driver without a call for each argument.

With a function to check each argument and others to pack and launch, a launch with four arguments
took 2.0 us of Python, the driver's call left out; with the generated function it takes 0.5 us on
the same machine. It serves the thread that launched first, whose memory the arguments are packed
into: a lock would take 0.2 us. What it does not know, arrays of other libraries, other threads and
everything that is wrong, it leaves to the careful way (rawnn.lab.arguments), which says what is
wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cache
from threading import get_ident
from types import CodeType
from typing import Any

from rawnn.device.cuda.device import Device
from rawnn.device.cuda.launch import KernelLaunch
from rawnn.lab.arguments import Convert, Usual
from rawnn.lab.arrays import Array
from rawnn.lab.maps import TensorMap

Careful = Callable[[Any, tuple[Any, ...]], Any]
"""What launches, given the launcher and its arguments, where the generated function does not."""

_TEXT = """
def launch(self, {defaults}/, *more):
    if more or recording or thread() != owner or not ({tests}):
        return careful(self, given(({names}*more,)))
    {made}
    try:
        pack({values})
    except unfit:
        return careful(self, ({names}))
    result = call(*prepared)
    if result[0]:
        failed(result)
"""
_TESTS = {
    "array": "type({0}) is Array and {0}.device is device and {0}.dtype in types{1}",
    "any array": "type({0}) is Array and {0}.device is device",
    "number": "(type({0}) is float or type({0}) is int)",
    "whole": "type({0}) is int",
    "truth": "type({0}) is bool",
    "other": "{0} is not missing",
    "map": "type({0}) is TensorMap and type({0}.array) is Array",
}
"""By kind of a parameter, what its argument is where it is a usual one."""


def quick_launch(usual: Sequence[Usual], converters: Sequence[Convert], device: Device,
                 launch: KernelLaunch, careful: Careful, recording: Sequence[Any]
                 ) -> Callable[..., Any]:
    """A method that launches with the arguments given, in the memory of `launch`, which is the
    calling thread's; with others, in other threads and while there is a graph in `recording`, by
    `careful`. Structs and small floats are made by their `converters` here, too."""
    pack, buffer, first = launch.arguments.packing
    call, prepared, failed = launch.ready
    scope: dict[str, Any] = {
        "Array": Array, "TensorMap": TensorMap, "device": device,
        "thread": get_ident, "owner": get_ident(), "careful": careful, "recording": recording,
        "missing": _MISSING, "given": _given, "unfit": (struct.error, OverflowError),
        "pack": pack, "buffer": buffer, "first": first,
        "call": call, "prepared": prepared, "failed": failed,
        **{f"types{i}": each.types for i, each in enumerate(usual)},
        **{f"convert{i}": convert for i, convert in enumerate(converters)}}
    exec(_code(tuple(each.kind for each in usual)), scope)
    made: Callable[..., Any] = scope["launch"]
    return made


_MISSING = object()


def _given(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(argument for argument in arguments if argument is not _MISSING)


@cache
def _code(kinds: tuple[str, ...]) -> CodeType:
    """The function's code for parameters of these kinds; nothing of the user's text is in it."""
    names = [f"a{i}" for i in range(len(kinds))]
    made = [f"c{i} = convert{i}(a{i}, [])" for i, kind in enumerate(kinds) if kind == "other"]
    values = [f"{name}.address" if kind.endswith("array") else
              f"{name}.content" if kind == "map" else f"c{i}" if kind == "other" else name
              for i, (name, kind) in enumerate(zip(names, kinds, strict=True))]
    tests = [_TESTS[kind].format(name, i)
             for i, (name, kind) in enumerate(zip(names, kinds, strict=True))]
    text = _TEXT.format(
        names="".join(f"{name}, " for name in names),
        defaults="".join(f"{name}=missing, " for name in names),
        tests=" and ".join(tests) or "True", made="; ".join(made),
        values=", ".join(("buffer", "first", *values)))
    return compile(text, "<a launch's arguments>", "exec")
