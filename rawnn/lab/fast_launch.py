"""The usual launch as one generated function: our own arrays and Python's numbers, checked, packed
and handed to the driver without a call for each argument.

Beside `cuda.bindings` with arguments packed beforehand, a function to check each of four arguments
and others to pack and launch took 1.2 us more; the generated function took 0.25 us where they are
the very objects of the launch before, and 0.44 us where they have to be packed (the host of an
H200, Python 3.12; a slower one 0.48 and 0.62). Called as a bound method, not as an object, and with
the numbers of the launch before not looked at again, it takes 0.05 and 0.09 us less (another host,
Python 3.11). What it does not know, arrays of other libraries and everything that is wrong,
it leaves to the careful way (rawnn.lab.arguments), which says what is wrong. So it does with a call
that comes while another is under way, of another thread or of a signal's handler. A flag tells:
CPython changes threads at calls and loops alone, of which there is none between its test and its
setting. It costs 20 ns, the thread's number 50, a lock 200.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Sequence
from functools import cache
from types import CodeType, FunctionType
from typing import Any

from rawnn.common.words import python_name
from rawnn.cuda.device import Device, Function
from rawnn.cuda.launch import KernelLaunch
from rawnn.lab.arguments import Convert, UsualArgument
from rawnn.lab.arrays import Array, kind_of
from rawnn.lab.maps import TensorMap

Careful = Callable[[Any, tuple[Any, ...]], Any]
"""What launches, given the launcher and its arguments, where the generated function does not."""

_TEXT = """
def made({scope}):
    busy = False
    {begin}

    def launch(self, /, {defaults}*more):
        nonlocal {kept}busy
        if more or recording or busy:
            return careful(self, given(({names}*more,)))
        busy = True
        try:
            try:
                if not ({arrays}):
                    usual = False
                elif {same}:
                    usual = True
                elif {numbers}:
                    {forget}
                    {made}
                    pack({values})
                    {keep}
                    usual = True
                else:
                    usual = False
            except unfit:
                usual = False
            if usual:
                result = call(config, function, address, 0)
        finally:
            busy = False
        if not usual:
            return careful(self, given(({names})))
        if result[0]:
            failed(result)

    return launch
"""
_TESTS = {
    "array": "{0}.kind is kind{1}",
    "array of several": "{0}.kind in kind{1}",
    "any array": "type({0}) is Array and {0}.kind.device is device",
    "map": "type({0}) is TensorMap and type({0}.array) is Array",
    "other": "{0} is not missing",
    "number": "({2}type({0}) is float or type({0}) is int)",
    "whole": "({2}type({0}) is int)",
    "truth": "({2}type({0}) is bool)",
}
"""By kind of a parameter, what its argument is where it is a usual one; a number may be the very
one of the launch before."""
_VALUES = {"array": "{}.pointer", "array of several": "{}.pointer", "any array": "{}.pointer",
           "map": "{}.content"}
"""What is packed of an argument that is no number: bytes, another object where they differ."""


def has_gil() -> bool:
    """Whether Python runs one thread at a time: where it does not, a flag tells nothing."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def generate_fast_launch(kernel: Function, usual: Sequence[UsualArgument],
                         converters: Sequence[Convert],
                         device: Device, launch: KernelLaunch, careful: Careful,
                         recording: Sequence[Any]
                         ) -> Callable[..., Any]:
    """A method that launches with the arguments given, in the memory of `launch`, which is its own;
    with others, and while there is a graph in `recording`, by `careful`. Structs and small floats
    are made by their `converters` here, too. Arguments may go by the names that the `kernel` has
    for them: the function's own are changed to these, as text with them would be of the user's
    making, and a dictionary of names (**) takes 50 ns in every call."""
    pack, buffer, first = launch.arguments.packing
    call, (config, function, address, _), failed = launch.ready
    scope: dict[str, Any] = {
        "Array": Array, "TensorMap": TensorMap, "device": device, "careful": careful,
        "recording": recording, "missing": _MISSING, "never": _NEVER, "given": _given,
        "unfit": (struct.error, OverflowError, AttributeError), "pack": pack, "buffer": buffer,
        "first": first, "call": call, "config": config, "function": function, "address": address,
        "failed": failed}
    kinds: list[str] = [each.kind for each in usual]
    for i, (each, convert) in enumerate(zip(usual, converters, strict=True)):
        of_arrays = tuple(kind_of(type_, device) for type_ in each.types)
        if len(of_arrays) > 1:
            kinds[i] = "array of several"
        scope[f"kind{i}"] = of_arrays[0] if len(of_arrays) == 1 else of_arrays
        scope[f"convert{i}"] = convert
    space: dict[str, Any] = {}
    exec(_code(tuple(kinds), tuple(scope)), space)
    method: FunctionType = space["made"](**scope)
    names = [python_name(p.name) for p in kernel.signature.parameters]
    code = method.__code__
    method.__code__ = code.replace(
        co_name=kernel.expression, co_qualname=kernel.expression,
        co_varnames=("self", *names, *code.co_varnames[len(names) + 1:]))
    method.__qualname__ = kernel.expression
    return method


_MISSING, _NEVER = object(), object()


def _given(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(argument for argument in arguments if argument is not _MISSING)


@cache
def _code(kinds: tuple[str, ...], scope: tuple[str, ...]) -> CodeType:
    """The function's code for parameters of these kinds; nothing of the user's text is in it.

    Where all values are of objects that never change, those of the last launch are kept (addresses
    and numbers, no arrays) and compared by identity. Before packing, which may fail half way, the
    first of them is forgotten, and set last."""
    names = [f"a{i}" for i in range(len(kinds))]
    again = "" if "other" in kinds else "{0} is last{1} or "
    tests = [_TESTS[kind].format(name, i, again.format(name, i))
             for i, (name, kind) in enumerate(zip(names, kinds, strict=True))]
    first = [kind in _VALUES or kind == "other" for kind in kinds]
    values = [f"c{i}" if kind == "other" else _VALUES.get(kind, "{}").format(name)
              for i, (name, kind) in enumerate(zip(names, kinds, strict=True))]
    kept = [] if "other" in kinds else [f"last{i}" for i in range(len(kinds))]
    same = [f"{value} is {last}" for value, last in zip(values, kept, strict=False)]
    text = _TEXT.format(
        scope=", ".join(scope),
        names="".join(f"{name}, " for name in names),
        defaults="".join(f"{name}=missing, " for name in names),
        kept="".join(f"{last}, " for last in kept),
        begin=" = ".join([*kept, "never"]),
        forget=f"{kept[0]} = never" if kept else "pass",
        arrays=" and ".join(t for t, is_first in zip(tests, first, strict=True) if is_first)
        or "True",
        numbers=" and ".join(t for t, is_first in zip(tests, first, strict=True) if not is_first)
        or "True",
        same="False" if "other" in kinds else " and ".join(same) or "True",
        made="; ".join(f"c{i} = convert{i}(a{i}, [])"
                       for i, kind in enumerate(kinds) if kind == "other") or "pass",
        values=", ".join(("buffer", "first", *values)),
        keep="; ".join(f"{last} = {value}" for last, value in
                       reversed([*zip(kept, values, strict=False)])) or "pass")
    return compile(text, "<a launch's arguments>", "exec")
