"""A user's kernel as the implementation of an op: checks that it fits, and its launches."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rawnn.common.dtypes import CUDA_TYPES, c_type
from rawnn.common.errors import ConfigError, nearest
from rawnn.cuda.compiling.signature import KernelSignature, Parameter, parse_kernels
from rawnn.lab.expressions import evaluate, names_in, whole
from rawnn.lab.kernel_source import Source
from rawnn.model.activations import functor
from rawnn.plan.op import AFTER, Op, OpSpec, Reference
from rawnn.plan.plan import Plan
from rawnn.ptx import INCLUDE
from rawnn.ptx.kernel_registry import KERNELS, NEUTRAL, Geometry, KernelImpl, Scalars
from rawnn.ptx.user_kernels import REPLACES, UserKernel, base_of, shapes_of

MOST_THREADS = 1024
"""Threads that a block may have on any GPU (CUDA C++ Programming Guide, compute capabilities)."""
_WITHOUT = {"seed", "stream", "offset", *NEUTRAL}
"""Parameters of an op that a kernel may lack: those of stochastic rounding and of the step, which
other checks cover, and those whose value changes nothing."""
_NEUTRAL_TEXT = {"compute": "float32"}
_OF_GRAPHS = (REPLACES, AFTER, "urgent")
"""Attributes that say nothing to kernels."""
_LABELS: dict[str, tuple[object, ...]] = {}
"""Labels of sources -> the sources that have them."""


class Implementation:
    """Makes the entry of one kernel, checked against the op."""

    def __init__(self, spec: OpSpec, source: Source, expression: str | None, name: str,
                 how: Mapping[str, Any]) -> None:
        self.spec, self.source, self.how, self.name = spec, source, how, name
        self.word = f"{spec.kind}={name}"
        kernels = parse_kernels(source.declarations,
                                (Path(source.name).parent, *source.include, *INCLUDE))
        self.kernel, self.arguments = _named(kernels, expression, source.name)
        self.signature = kernels[self.kernel]
        self.pointers = {p.name: p for p in self.signature.parameters if p.pointer}
        self.numbers = [p for p in self.signature.parameters if not p.pointer]
        self.values = dict(how.get("values", {}))
        self.require = [how["require"]] if isinstance(how.get("require"), str) else \
            list(how.get("require", ()))
        self.shapes = shapes_of(spec.kind)
        self.sites: dict[Any, Any] = {}
        self.defines = {key: value for key, value in _macros(source.preamble).items()
                        if key not in self.values}
        self._check()

    # -- checks without a plan --------------------------------------------------------------------
    def _check(self) -> None:
        known = {*self.spec.reads, *self.spec.writes}
        listed = ", ".join(dict.fromkeys((*self.spec.reads, *self.spec.writes)))
        if self.source.waits_for_grid(self.kernel) and not self.how.get("cooperative"):
            raise ConfigError(f"{self._what}: it waits for the whole grid (grid.sync()), whose "
                              f"blocks have to be on the GPU at once for that: say cooperative = "
                              f"true")
        for parameter in self.signature.parameters:
            if parameter.tensor_map or parameter.struct is not None:
                raise ConfigError(f"{self._what}: the parameter '{parameter.name}' is a "
                                  f"{parameter.ctype}: in a training step pass pointers and "
                                  f"numbers")
        for name, parameter in self.pointers.items():
            if name not in known:
                raise ConfigError(f"{self._what}: its pointer '{name}' is no operand of the op "
                                  f"'{self.spec.kind}'{nearest(name, known)}; its operands are "
                                  f"{listed}, and pointers are matched by these names")
            if parameter.const and name in self.spec.writes and name not in self.spec.reads:
                raise ConfigError(f"{self._what}: the op writes '{name}', and the kernel's pointer "
                                  f"is const: take the const away")
            if not parameter.const and name not in self.spec.writes:
                raise ConfigError(f"{self._what}: the op only reads '{name}', and the kernel could "
                                  f"write it: declare it const {parameter.ctype}* {name}")
        for name in (*self.spec.reads, *self.spec.writes):
            if name not in self.pointers and name not in self.spec.optional:
                does = "writes" if name in self.spec.writes else "reads"
                raise ConfigError(f"{self._what}: the op '{self.spec.kind}' {does} '{name}', and "
                                  f"the kernel has no pointer of that name (operands: {listed})")

    @property
    def _what(self) -> str:
        return f"{self.source.name}, {self.kernel}"

    # -- values from an op ------------------------------------------------------------------------
    def names(self, op: Op, plan: Plan) -> dict[str, Any]:
        """All names that expressions may use: the op's attributes and sizes, and leading
        dimensions."""
        found: dict[str, Any] = dict(self.defines)
        base = base_of(self.spec.kind, str(op.attributes.get("layout", "")))
        if base is not None:
            original = Op(base.kind, op.name, op.operands, op.attributes, base.impl)
            found |= KERNELS[base].sizes(original, plan)
        main = next((r for r in (*self.spec.writes, *self.spec.reads) if r in op.operands
                     and len(plan[op.operands[r]].shape) == 2), None) or next(iter(op.operands))
        shape = plan[op.operands[main]].shape
        rows, cols = shape if len(shape) == 2 else (1, *shape)
        found = {"rows": rows, "cols": cols, **found}
        found |= {k: v for k, v in op.attributes.items() if k != REPLACES}
        found |= {f"ld{role}": plan[op.operands[role]].ld if role in op.operands else 0
                  for role in self.pointers
                  if role not in op.operands or len(plan[op.operands[role]].shape) == 2
                  or any(p.name == f"ld{role}" for p in self.numbers)}
        for name, expression in self.values.items():
            if name not in found:
                found[name] = evaluate(expression, found, f"{self._what}: values: {name}")
        return found

    def sizes(self, op: Op, plan: Plan) -> Scalars:
        names = self.names(op, plan)
        expression = self.impl.expression(op, plan)
        numbers = {k: v for k, v in names.items() if isinstance(v, int | float)}
        key = expression, tuple(sorted((k, v) for k, v in numbers.items() if k != "offset"))
        self.sites[key] = expression, {**names, "shapes": shapes_of(
            self.spec.kind, str(op.attributes.get("layout", "")))}
        return numbers

    def template(self, op: Op, plan: Plan) -> list[str]:
        names = self.names(op, plan)

        def filled(match: re.Match[str]) -> str:
            word = match[1].strip()
            if word in op.operands:
                return self._type(plan[op.operands[word]].dtype)
            if word in self.spec.optional:
                return "float"  # the type of an operand that the op leaves out
            if word not in names:
                raise ConfigError(f"{self._what}: {{{word}}} is no operand and no number of the op "
                                  f"'{op.name}'{nearest(word, (*op.operands, *names))}")
            value = names[word]
            return str(value).lower() if isinstance(value, bool) else \
                functor(value) if isinstance(value, str) else str(value)

        return [re.sub(r"\{(.*?)\}", filled, argument) for argument in self.arguments]

    def _type(self, dtype: str) -> str:
        """The C type of a storage dtype: CUDA's own if the source includes its header."""
        header_of = {"float16": "cuda_fp16.h", "bfloat16": "cuda_bf16.h",
                     "float8_e4m3": "cuda_fp8.h", "float8_e5m2": "cuda_fp8.h"}
        if dtype in header_of and header_of[dtype] in self.source.text:
            return next(c for c, stored in CUDA_TYPES.items() if stored == dtype and c[:2] == "__")
        return c_type(dtype)

    def _extents(self, key: str, s: Mapping[str, Any]) -> tuple[int, int, int]:
        given, s = self.how[key], {**self.defines, **s}
        each = list(given) if isinstance(given, list | tuple) else [given]
        if not 1 <= len(each) <= 3:
            raise ConfigError(f"{self._what}: {key} = {given!r}: give one to three extents")
        x, y, z = (*(whole(e, s, f"{self._what}: {key}") for e in each), 1, 1)[:3]
        return x, y, z

    def geometry(self, s: Scalars) -> Geometry:
        grid, block = self._extents("grid", s), self._extents("block", s)
        if math.prod(block) > MOST_THREADS:
            raise ConfigError(f"{self._what}: a block {block} has {math.prod(block):,} threads, and"
                              f" it can have at most {MOST_THREADS:,}: take smaller blocks and "
                              f"more of them")
        return grid, block

    def shared(self, s: Scalars) -> int:
        return whole(self.how.get("shared", 0), s, f"{self._what}: shared", least=0)

    def cluster(self, s: Scalars) -> int:
        return whole(self.how.get("cluster", 1), s, f"{self._what}: cluster")

    def where(self, op: Op, plan: Plan) -> str:
        """Why rawnn's kernel is used for an op."""
        condition = self.how.get("where")
        if condition is None:
            return ""
        names = self.names(op, plan)
        if evaluate(condition, names, f"{self._what}: where"):
            return ""
        return f"{condition} does not hold: {_values_of(condition, names)}"

    # -- checks of an op --------------------------------------------------------------------------
    def fits(self, op: Op, plan: Plan) -> None:
        """Raise ConfigError for an op that this kernel would compute wrongly."""
        names = self.names(op, plan)
        what = f"{self.word} cannot run {op.name}"
        for condition in self.require:
            if not evaluate(condition, names, f"{self._what}: require"):
                raise ConfigError(f"{what}: it requires {condition}, and here "
                                  f"{_values_of(condition, names)}: leave it out there with where "
                                  f"= \"{condition}\"")
        self._check_operands(op, plan, what)
        signature = self.signature.instantiate(self.impl.expression(op, plan))
        for parameter in signature.parameters:
            if parameter.pointer:
                self._check_type(parameter, op, plan, what)
            elif parameter.name not in names and parameter.name not in _lds(self.pointers):
                raise ConfigError(f"{what}: nothing fills its parameter '{parameter.name}'"
                                  f"{nearest(parameter.name, names)}; the op gives "
                                  f"{', '.join(k for k in names if k not in self.defines)}, and "
                                  f"others come from values = {{{parameter.name} = ...}}")
        self._check_numbers(op, names, signature, what)
        self.geometry(names)
        self.shared(names)
        self.cluster(names)

    def _check_operands(self, op: Op, plan: Plan, what: str) -> None:
        asked = {name for e in self.values.values() for name in names_in(e, "values")}
        taken = {p.name for p in self.numbers} | asked
        for role, tensor in op.operands.items():
            if role not in self.pointers:
                raise ConfigError(f"{what}: the op has the operand '{role}' here ({plan[tensor]}), "
                                  f"and the kernel takes none: add a pointer of that name")
            shape, ld = plan[tensor].shape, plan[tensor].ld
            if len(shape) == 2 and ld != shape[1] and f"ld{role}" not in taken:
                raise ConfigError(f"{what}: rows of '{role}' ({shape[1]} elements) lie {ld} apart, "
                                  f"as they are padded to 16 bytes: take int ld{role} and address "
                                  f"{role}[row * ld{role} + column]")

    def _check_type(self, parameter: Parameter, op: Op, plan: Plan, what: str) -> None:
        tensor = op.operands.get(parameter.name)
        if tensor is None:
            return
        dtype = plan[tensor].dtype
        same = {c_type(dtype), *(c for c, stored in CUDA_TYPES.items() if stored == dtype),
                *{"int32": ("int32_t",), "uint8": ("uint8_t",)}.get(dtype, ())}
        if parameter.ctype not in same:
            raise ConfigError(f"{what}: its '{parameter.name}' points to {parameter.ctype}, and "
                              f"the tensor {tensor} holds {dtype}: make it a template parameter "
                              f"and name the kernel \"{self.kernel}<{{{parameter.name}}}>\", or "
                              f"leave the number format out of --opt")

    def _check_numbers(self, op: Op, names: Mapping[str, Any], signature: KernelSignature,
                       what: str) -> None:
        """Check that every number and flag of the op reaches the kernel, unless it has no
        effect."""
        mentioning = [self.how.get("where", ""), *self.require, *self.values.values()]
        mentioned = {p.name for p in signature.parameters}
        mentioned |= {name for e in mentioning if e for name in names_in(e, "header")}
        mentioned |= {m.strip() for a in self.arguments for m in re.findall(r"\{(.*?)\}", a)}
        for key, value in op.attributes.items():
            if key in mentioned or key in _OF_GRAPHS or value is False:
                continue
            if isinstance(value, str):
                if value == _NEUTRAL_TEXT.get(key, ""):
                    continue
                raise ConfigError(f"{what}: the op's {key} is '{value}', which the kernel does not "
                                  f"get: say for which it is made, where = \"{key} == '{value}'\"")
            if not isinstance(value, int | float):
                continue
            random = key in ("seed", "stream") and bool(op.attributes.get("stochastic"))
            moves = key == "offset" and "cursor" in op.operands
            if random or moves or (key not in _WITHOUT and value is not True) or (
                    key in NEUTRAL and value != NEUTRAL[key]) or value is True:
                kind = "bool" if value is True else "float" if isinstance(value, float) else "int"
                raise ConfigError(f"{what}: the op has {key} = {value}, and the kernel does not "
                                  f"take it: add a parameter {kind} {key}, or say for which it is "
                                  f"made, where = \"{key} == {value}\"")

    def user_kernel(self, reference: Reference | None) -> UserKernel:
        source = self.source
        self.impl = KernelImpl(
            _label(source, self.word), self.kernel, self.template, self.sizes, self.geometry,
            self.shapes, self.shared, self.cluster, cooperative=bool(self.how.get("cooperative")),
            code=replace(source, include=(Path(source.name).resolve().parent, *source.include)))
        return UserKernel(self.spec.kind, self.name, self.impl, self.where, self.fits,
                          reference or self.spec.reference, self.sites)


def _named(kernels: Mapping[str, KernelSignature], expression: str | None,
           name: str) -> tuple[str, list[str]]:
    """The selected kernel and its template arguments."""
    if not kernels:
        raise ConfigError(f"{name} has no __global__ function")
    if expression is None:
        if len(kernels) > 1:
            raise ConfigError(f"{name} has several kernels ({', '.join(kernels)}): say which, "
                              f"kernel = \"{next(iter(kernels))}\"")
        expression = next(iter(kernels))
    found = re.fullmatch(r"\s*(?:::)?(\w+(?:::\w+)*)\s*(?:<(.*)>)?\s*", expression, re.DOTALL)
    if found is None or found[1] not in kernels:
        raise ConfigError(f"{name} has no kernel '{expression}'"
                          f"{nearest(expression, kernels) or '; it has ' + ', '.join(kernels)}")
    arguments = [part.strip() for part in found[2].split(",")] if found[2] else []
    wanted = kernels[found[1]].template_parameters
    if len(arguments) < sum(p.default is None for p in wanted) or len(arguments) > len(wanted):
        raise ConfigError(f"{name}: {found[1]} is a template of {', '.join(p.name for p in wanted)}"
                          f": name an instance, kernel = \"{found[1]}<float>\", or of an operand's "
                          f"type, \"{found[1]}<{{z}}>\"")
    return found[1], arguments


def _label(source: Source, word: str) -> str:
    """The compiler's name of a source: its absolute path, or another name if another op or text has
    that one, because devices keep what they loaded."""
    mine = (word, source.text, source.preamble, source.options)
    label = f"{word}.cu" if source.name == "kernel.cu" else str(Path(source.name).resolve())
    number = 1
    while _LABELS.setdefault(label, mine) != mine:
        number += 1
        label = f"{Path(source.name).name} ({number})"
    return label


def _lds(pointers: Mapping[str, Parameter]) -> set[str]:
    return {f"ld{name}" for name in pointers}


def _values_of(condition: str, names: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {names[name]}" for name in sorted(names_in(condition, "where"))
                     if name in names)


def _macros(preamble: str) -> dict[str, int]:
    """Macros whose value is a whole number, for expressions."""
    found = re.findall(r"^#define (\w+) (-?\d+)$", preamble, re.MULTILINE)
    return {name: int(value) for name, value in found}
