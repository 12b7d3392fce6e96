"""The usual launch as one generated function: our own arrays and Python's numbers, checked, packed
and handed to the driver without a call for each argument.

With a function to check each argument and others to pack and launch, a launch with four arguments
took 2.0 us of Python, the driver's call left out; with the generated function it takes 0.8 us on
the same machine. What it does not know, arrays of other libraries and everything that is wrong, it
leaves to the careful way (rawnn.lab.arguments), which says what is wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cache
from threading import Lock
from types import CodeType
from typing import Any

from rawnn.device.cuda.device import Device
from rawnn.device.cuda.launch import KernelLaunch
from rawnn.lab.arguments import Convert, Usual
from rawnn.lab.arrays import Array
from rawnn.lab.maps import TensorMap

Quick = Callable[[tuple[Any, ...]], bool]
"""Launches with the arguments if it knows them all; False where nothing was done."""

_TEXT = """
def launch(arguments):
    try:
        {names}
    except ValueError:
        return False
    if not ({tests}):
        return False
    {made}
    with lock:  # the arguments' buffer is this launcher's
        try:
            pack({values})
        except unfit:
            return False
        result = call(*prepared)
    if result[0]:
        failed(result)
    return True
"""
_TESTS = {
    "array": "type({0}) is Array and {0}.device is device and {0}.dtype in types{1}",
    "any array": "type({0}) is Array and {0}.device is device",
    "number": "(type({0}) is float or type({0}) is int)",
    "whole": "type({0}) is int",
    "truth": "type({0}) is bool",
    "map": "type({0}) is TensorMap and type({0}.array) is Array",
}
"""By kind of a parameter, what its argument is where it is a usual one."""


def quick_launch(usual: Sequence[Usual], converters: Sequence[Convert], device: Device,
                 launch: KernelLaunch, lock: Lock) -> Quick:
    """A function that launches with the arguments given, in the memory of `launch`, under `lock`.
    Structs and small floats are made by their `converters` here, too."""
    pack, buffer, first = launch.arguments.packing
    call, prepared, failed = launch.ready
    scope: dict[str, Any] = {
        "Array": Array, "TensorMap": TensorMap, "device": device, "lock": lock,
        "unfit": (struct.error, OverflowError),
        "pack": pack, "buffer": buffer, "first": first,
        "call": call, "prepared": prepared, "failed": failed,
        **{f"types{i}": each.types for i, each in enumerate(usual)},
        **{f"convert{i}": convert for i, convert in enumerate(converters)}}
    exec(_code(tuple(each.kind for each in usual)), scope)
    made: Quick = scope["launch"]
    return made


@cache
def _code(kinds: tuple[str, ...]) -> CodeType:
    """The function's code for parameters of these kinds; nothing of the user's text is in it."""
    names = [f"a{i}" for i in range(len(kinds))]
    made = [f"a{i} = convert{i}(a{i}, [])" for i, kind in enumerate(kinds) if kind == "other"]
    values = [f"{name}.address" if kind.endswith("array") else
              f"{name}.content" if kind == "map" else name
              for name, kind in zip(names, kinds, strict=True)]
    tests = [_TESTS[kind].format(name, i)
             for i, (name, kind) in enumerate(zip(names, kinds, strict=True)) if kind in _TESTS]
    text = _TEXT.format(
        names=f"{', '.join(names)}, = arguments" if names else "() = arguments",
        tests=" and ".join(tests) or "True", made="; ".join(made),
        values=", ".join(("buffer", "first", *values)))
    return compile(text, "<a launch's arguments>", "exec")
