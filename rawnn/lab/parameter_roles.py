"""The role of each kernel parameter in its work: an input, an output, a size, another number."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np

from rawnn.common.errors import ConfigError, nearest
from rawnn.cuda.compiling.signature import Parameter
from rawnn.lab.arguments import ELEMENTS
from rawnn.lab.expressions import names_in
from rawnn.lab.kernel import Kernel
from rawnn.lab.kernel_problem import KernelProblem, Operand
from rawnn.lab.time_limit import time_limit
from rawnn.lab.work import Extents, Reference, Work, reference_of


def problem_of(candidate: Kernel | Callable[..., Any], work: Work, limit: float | None = None
               ) -> KernelProblem:
    """A candidate with its work. Loading the reference, and each call of it, may take `limit`
    seconds (None: any time). Raises ConfigError, with the fix, for what is missing or does not
    fit."""
    if limit is not None and not (isinstance(limit, Real) and limit > 0):
        raise ConfigError(f"limit = {limit}: give seconds above 0")
    with time_limit(limit, "the file of the reference"):
        reference = reference_of(work.reference, work.folder)
    if isinstance(candidate, Kernel):
        return replace(_of_kernel(candidate, work, reference), limit=limit)
    if not callable(candidate):
        raise ConfigError(f"{candidate!r} is neither a rawnn.Kernel nor a function that launches")
    return replace(_of_function(candidate, work, reference), limit=limit)


def _of_kernel(kernel: Kernel, work: Work, reference: Reference) -> KernelProblem:
    label, parameters = kernel.expression, kernel.signature.parameters
    work = work.of_parameters([p.name for p in parameters])
    for what in ("grid", "block"):
        if getattr(work, what) is None:
            raise ConfigError(f"{label}: say how it is launched: grid=\"(n + 255) // 256\", "
                              f"block=256 ({what} is missing)")
    scalars = {p.name: p for p in parameters if not p.pointer}
    macros = _macros(kernel)
    automatic = [name for name, p in scalars.items()
                 if name not in work.values and _whole_number(p)]
    pointers = [p for p in parameters if p.pointer]
    _known_names(work, {p.name for p in pointers}, set(scalars), label)
    operands = []
    for p in pointers:
        elements = kernel.elements[p.name]
        if p.ctype.endswith("*") and p.name not in work.inputs:
            raise ConfigError(f"{label}: '{p.name}' points to pointers ({p.ctype}), and no address "
                              f"can be drawn: let the kernel take each array by itself")
        dtype = _type(work, p.name, elements.dtype)
        if dtype is None:
            raise ConfigError(f"{label}: what '{p.name}' points at ({p.ctype}) is not known: say "
                              f"types={{\"{p.name}\": np.float32}}")
        extents = _extents(p.name, work, automatic, label)
        written = not p.const if work.writes is None else p.name in work.writes
        operands.append(Operand(
            p.name, dtype, (*extents, elements.width) if elements.width > 1 else extents,
            p.const or not written or p.name in work.inputs or reference.asks_for(p.name),
            written))
    for name, p in scalars.items():
        if p.tensor_map:
            _map(p, kernel, work, label)
            continue
        drawn = p.ctype in ELEMENTS and np.dtype(ELEMENTS[p.ctype]).kind in "fVb"
        if name not in work.values and name not in automatic and not drawn:
            raise ConfigError(f"{label}: give a value for '{name}' ({p.ctype}): "
                              f"values={{\"{name}\": ...}}")
    return _problem(kernel, label, work, reference, operands, [p.name for p in parameters],
                    scalars, automatic, macros)


def _type(work: Work, name: str, otherwise: np.dtype[Any] | None) -> np.dtype[Any] | None:
    """The element type that a work gives an array. Raises ConfigError for what is none."""
    if name not in work.types:
        return otherwise
    try:
        found: np.dtype[Any] = np.dtype(work.types[name])
        return found
    except TypeError as error:
        raise ConfigError(f"types: {name} = {work.types[name]!r}: {error}") from None


def _map(parameter: Parameter, kernel: Kernel, work: Work, label: str) -> None:
    """Raise ConfigError if the array of a tensor map is unknown."""
    name, mapped = parameter.name, parameter.mapped
    if mapped not in kernel.elements:
        raise ConfigError(f"{label} takes the tensor map '{name}', and of what array is not known: "
                          f"let it take the array's pointer as well, x beside x_map, whose type "
                          f"and const say what is copied and whether it is written")
    if mapped not in work.maps:
        raise ConfigError(f"{label}: say what '{name}' copies at once: maps={{\"{mapped}\": "
                          f"(64, 32)}}, a box of '{mapped}'")
    given_box = work.maps[mapped]
    box = given_box.get("box") if isinstance(given_box, Mapping) else given_box
    extra = set(given_box) - {"box", "swizzle"} if isinstance(given_box, Mapping) else set()
    if not isinstance(box, Sequence) or isinstance(box, str) or extra:
        raise ConfigError(f"maps: {mapped} = {given_box!r}: give the extents of a box such as "
                          f"(64, 32), or {{\"box\": ..., \"swizzle\": ...}}")


def _of_function(function: Callable[..., Any], work: Work, reference: Reference) -> KernelProblem:
    label = getattr(function, "__name__", repr(function))
    names = list(inspect.signature(function).parameters)
    if not work.shapes:
        raise ConfigError(f"{label}: say what arrays it takes: shapes={{\"x\": \"n\"}}, and in "
                          f"types= those that are not float32")
    _known_names(work, set(names), set(names), label)
    operands = []
    for name in (n for n in names if n in work.shapes):
        asked = reference.asks_for(name)
        written = name in work.writes if work.writes is not None else not asked
        dtype = _type(work, name, np.dtype(np.float32))
        assert dtype is not None
        operands.append(Operand(name, dtype,
                                _extents(name, work, (), label), not written or asked
                                or name in work.inputs, written))
    free = [n for n in names if n not in work.shapes and n not in work.values]
    return _problem(function, label, work, reference, operands, names,
                    {n: Parameter(n, "int", False, False) for n in names if n not in work.shapes},
                    free, {})


def _problem(candidate: Any, label: str, work: Work, reference: Reference,
             operands: Sequence[Operand], parameters: Sequence[str],
             scalars: Mapping[str, Parameter], automatic: Sequence[str],
             macros: Mapping[str, Any]) -> KernelProblem:
    if not any(o.written for o in operands):
        raise ConfigError(f"{label} writes nothing: all of its pointers are const"
                          + (" or left out of writes=" if work.writes is not None else ""))
    known = {*macros, *work.values}
    asked: dict[str, None] = dict.fromkeys(automatic)
    together = 1
    for operand in operands:
        of_array = {n: None for e in operand.extents
                    for n in sorted(names_in(e, f"shapes: {operand.name}")) if n not in known}
        asked |= of_array
        together = max(together, len(of_array))
    _check_mentioned(work, parameters, reference, label)
    for name in work.sizes:
        asked.setdefault(name)
    names = tuple(n for n in asked if n not in known)
    return KernelProblem(candidate, label, work, reference, tuple(operands), tuple(parameters),
                         scalars, names, together, macros)


def _check_mentioned(work: Work, parameters: Sequence[str], reference: Reference, label: str
                     ) -> None:
    """Raise ConfigError for sizes and values whose name is not used; a function may use any, so
    that its names are unknown."""
    launch = (work.grid, work.block, work.shared, work.cluster, *work.inputs.values())
    if reference.wants is None or any(callable(each) for each in launch):
        return
    text = repr((launch, [*work.shapes.values()], [*work.values.values()], [*work.require],
                 work.length, work.bytes, work.flops, [*work.maps.values()]))
    asked = {*parameters, *reference.wants, *reference.takes,
             *re.findall(r"[A-Za-z_]\w*", text)}
    for what, given in (("sizes", work.sizes), ("values", work.values)):
        for name in given:
            if name not in asked:
                raise ConfigError(f"{what}: nothing of {label} asks for '{name}'"
                                  f"{nearest(name, parameters)}; its parameters are "
                                  f"{', '.join(parameters)}")


def _known_names(work: Work, arrays: set[str], scalars: set[str], label: str) -> None:
    for what, given, known in (("shapes", work.shapes, arrays), ("types", work.types, arrays),
                               ("inputs", work.inputs, arrays), ("writes", work.writes or (),
                                                                 arrays),
                              ("maps", work.maps, arrays)):
        for name in given:
            if name not in known:
                raise ConfigError(f"{what}: {label} has no array '{name}'{nearest(name, known)} "
                                  f"({', '.join(sorted(known))})")


def _extents(name: str, work: Work, automatic: Sequence[str], label: str) -> tuple[Any, ...]:
    given: Extents | None = work.shapes.get(name)
    if given is None:
        if len(automatic) != 1:
            raise ConfigError(f"{label}: how large is '{name}'? Say "
                              f"shapes={{\"{name}\": (\"rows\", \"cols\")}} in terms of sizes"
                              + (f" ({', '.join(automatic)})" if automatic else ""))
        return (automatic[0],)
    return tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,)


def _whole_number(parameter: Parameter) -> bool:
    return parameter.ctype in ELEMENTS and np.dtype(ELEMENTS[parameter.ctype]).kind in "iu"


def _macros(kernel: Kernel) -> dict[str, Any]:
    """The kernel's macros that are numbers."""
    found: dict[str, Any] = {}
    for name, value in kernel.defines.items():
        if isinstance(value, str):
            try:
                value = int(value, 0)
            except ValueError:
                continue
        if isinstance(value, int | float):
            found[name] = value
    return found
