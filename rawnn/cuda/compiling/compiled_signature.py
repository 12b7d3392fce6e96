"""The signature of a user's kernel. The compiler determines number, sizes, order and types of the
parameters; the source gives their names."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rawnn.common.errors import ConfigError
from rawnn.cuda.compiling.c_text import split_expression
from rawnn.cuda.compiling.c_types import FORMATS, MAP_SIZE, without_comments
from rawnn.cuda.compiling.includes import with_included
from rawnn.cuda.compiling.probe import CompiledKernel, CompiledParameter
from rawnn.cuda.compiling.signature import (
    KernelSignature,
    Parameter,
    Structs,
    declarations,
    find_kernel,
    known_name,
    parse_kernels,
)
from rawnn.cuda.compiling.structs import Member, Struct, read_struct
from rawnn.ptx import INCLUDE

_SAME = {
    "half": "__half", "half2": "__half2", "nv_bfloat16": "__nv_bfloat16",
    "nv_bfloat162": "__nv_bfloat162", "cuComplex": "float2", "cuFloatComplex": "float2",
    "cuDoubleComplex": "double2", "CUtensorMap": "CUtensorMap_st",
}  # fmt: skip
"""CUDA's type names -> the types that its headers define them as."""
_SMALL = re.compile(r"half|float\d|fp8|bfloat")
_NUMBERS = {name: code for name, code in FORMATS.items()
            if not (code.endswith("s") or _SMALL.search(name))}
"""Types that are equal if their codes are."""


_MACRO = re.compile(r"^[ \t]*#[ \t]*define\b(?:\\\r?\n|[^\n])*", re.MULTILINE)
"""The definition of a macro, with the lines that it continues on."""

_TRAILER = "\n//rawnn: compiled kernels: "


class Declarations:
    """What a source, and the headers that it includes in quotes from `folders`, declare about its
    kernels. Reading never fails, because the compiler decides what is valid."""

    def __init__(self, text: str, folders: Sequence[Path] = INCLUDE) -> None:
        self._text, self._folders = text, tuple(folders)
        found = declarations(text)
        if not found:
            found = tuple(each for header in with_included(text, self._folders)[1:]
                          for each in declarations(header))
        self._found = found
        self._structs = Structs(text, self._folders)

    @property
    def names(self) -> tuple[str, ...]:
        """The kernels in order, with their namespaces."""
        return tuple(dict.fromkeys(each.name for each in self._found if each.name))

    @property
    def has_pasted_names(self) -> bool:
        """Whether a macro makes kernels and puts their names together (`copy_##T`)."""
        texts = with_included(self._text, self._folders)
        return any("__global__" in macro and "##" in macro
                   for text in texts for macro in _MACRO.findall(text))

    def of(self, name: str) -> tuple[KernelSignature, ...]:
        """Every readable definition of a kernel, or its declarations if there is none."""
        every = [each for each in self._found if each.name == name and each.signature is not None]
        chosen = [each for each in every if each.definition] or every
        return tuple(dict.fromkeys(each.signature for each in chosen
                                   if each.signature is not None))

    def instance(self, signature: KernelSignature) -> Instance:
        """A signature with the names of its template arguments in the source."""
        declared = next(iter(self.of(signature.name)), None)
        names = declared.template if declared else ()
        return Instance(signature, dict(zip(names, signature.arguments, strict=False)))

    def check(self, expression: str) -> None:
        """Raise ConfigError, with the fix, for a kernel that the source cannot have: it is neither
        declared nor made by a macro, or has other template parameters."""
        name = split_expression(expression)[0]
        last = name.rpartition("::")[2]
        if name not in self.names:
            texts = with_included(self._text, self._folders)
            if any(each.rpartition("::")[2] == last for each in self.names) \
                    or not (any(re.search(rf"\b{last}\b", without_comments(t)) for t in texts)
                            or self.has_pasted_names):
                known_name(self.names, expression)
        found = self.of(name)
        for place, each in enumerate(found, 1):
            try:
                each.substituted(expression)
                return
            except ConfigError:
                if place == len(found) and all(e.signature for e in self._found if e.name == name):
                    raise

    def signature(self, expression: str, compiled: CompiledKernel | None = None
                  ) -> KernelSignature:
        """The signature of a kernel or an instance of one. Without `compiled` it is the source's
        alone. Its `note` lists unknown names. Raises ConfigError for a kernel that does not exist,
        a parameter that cannot be passed, and a source that does not say enough."""
        if compiled is None:
            return find_kernel(parse_kernels(self._text, self._folders), expression)
        name, arguments = split_expression(expression)
        declared = []
        for each in self.of(name):
            try:
                declared.append(each.substituted(expression))
            except ConfigError:  # it has other template parameters: another branch of an #if
                continue
        same = [each for each in declared if len(each.parameters) == len(compiled.parameters)]
        fitting = [each for each in same if all(map(_agree, each.parameters, compiled.parameters))]
        chosen = fitting or same
        parameters, known = [], True
        for index, actual in enumerate(compiled.parameters):
            named = {each.parameters[index].name: each.parameters[index] for each in chosen}
            known = known and len(named) == 1
            source = next(iter(named.values())) if len(named) == 1 else None
            parameters.append(self._joined(source.name if source else f"arg{index}", source,
                                           actual))
        found = KernelSignature(name, tuple(parameters), (),
                                declared[0].arguments if declared else tuple(arguments),
                                "" if known else _note(expression, parameters, declared))
        found.layout()
        return found

    def _joined(self, name: str, source: Parameter | None, actual: CompiledParameter) -> Parameter:
        """A compiled parameter, spelled as in the source if that means the same."""
        if actual.reference:
            raise ConfigError(f"the kernel's parameter '{name}' is a reference; pass a pointer")
        if source is not None and source.ctype and _agree(source, actual):
            if source.pointer or source.ctype in FORMATS:
                return source
            return replace(source, struct=self._struct(actual))
        if actual.pointer or actual.code:
            return Parameter(name, actual.ctype, actual.pointer, actual.const, code=actual.code)
        ctype = "CUtensorMap" if actual.ctype == "CUtensorMap_st" else actual.ctype
        parameter = Parameter(name, ctype or "type without a name", False, actual.const)
        if ctype in FORMATS and (parameter.size, parameter.align) == (actual.size, actual.align):
            return parameter
        return replace(parameter, struct=self._struct(actual))

    def _struct(self, actual: CompiledParameter) -> Struct:
        """The layout of a struct by value, opaque unless the source declares the compiled one."""
        try:
            found = read_struct(actual.ctype, self._structs.texts)
        except ConfigError:
            found = None
        if found is None or (found.size, found.align) != (actual.size, actual.align):
            found = Struct(actual.ctype, (), actual.size, actual.align)
        return found


def _agree(source: Parameter, actual: CompiledParameter) -> bool:
    """Whether a parameter of the source, as far as it can be read, matches the compiled one."""
    if not source.ctype:
        return True
    if not actual.ctype:
        try:
            return source.size == actual.size
        except ConfigError:
            return False
    if source.pointer != actual.pointer or (source.pointer and source.const != actual.const):
        return False
    if actual.code or (source.ctype in FORMATS and FORMATS[source.ctype] == f"{MAP_SIZE}s"
                       and actual.size != MAP_SIZE):
        return False
    words = re.sub(r"\bconst\b", "", actual.ctype).replace(" *", "*")
    a, b = source.ctype.rstrip("*"), " ".join(words.rstrip("*").split())
    if len(source.ctype) - len(a) != words.count("*"):
        return False
    return _SAME.get(a, a) == _SAME.get(b, b) or (
        a in _NUMBERS and b in _NUMBERS and _NUMBERS[a] == _NUMBERS[b])


def _note(expression: str, parameters: Sequence[Parameter], declared: Sequence[KernelSignature]
          ) -> str:
    """The note on parameters whose names are unknown."""
    counts = sorted({len(each.parameters) for each in declared})
    if not counts:
        why = "the source does not say its parameters' names"
    elif len(parameters) not in counts:
        why = f"the source declares {' or '.join(map(str, counts))} (an #if may leave some out)"
    else:
        why = "the source declares it more than once, with other names"
    return (f"{expression} was compiled with {len(parameters)} parameters, and {why}: they go by "
            f"their places ({', '.join(p.name for p in parameters)})")



@dataclass(frozen=True)
class Instance:
    """A kernel's signature with its template arguments substituted, and these by name."""

    signature: KernelSignature
    template: Mapping[str, str]


def annotated(text: str, instances: Mapping[str, Instance]) -> str:
    """The source with a final comment that holds the signatures that the compiler found for
    expressions: the simulated GPU has no compiler."""
    return text + _TRAILER + json.dumps({name: asdict(each) for name, each in instances.items()}) \
        if instances else text


def annotation(text: str) -> dict[str, Instance]:
    """What `annotated` appended to a text, by expression; {} for any other text."""
    _, found, stated = text.rpartition(_TRAILER)
    return {name: Instance(_signature(each["signature"]), each["template"])
            for name, each in json.loads(stated).items()} if found else {}


def _signature(stated: Mapping[str, Any]) -> KernelSignature:
    parameters = tuple(Parameter(**{**each, "struct": _struct(each["struct"])})
                       for each in stated["parameters"])
    return KernelSignature(stated["name"], parameters, (), tuple(stated["arguments"]))


def _struct(stated: Mapping[str, Any] | None) -> Struct | None:
    if stated is None:
        return None
    members = (Member(**{**each, "shape": tuple(each["shape"]), "struct": _struct(each["struct"])})
               for each in stated["members"])
    return Struct(**{**stated, "members": tuple(members)})
