"""The signature of a user's kernel: what was compiled decides number, sizes, order and types of the
parameters, and the source gives their names."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rawnn.common.errors import ConfigError
from rawnn.cuda.compiling.c_text import split_expression
from rawnn.cuda.compiling.c_types import FORMATS, MAP_SIZE
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
"""Names of CUDA's types -> what its headers make them of."""
_SMALL = re.compile(r"half|float\d|fp8|bfloat")
_NUMBERS = {name: code for name, code in FORMATS.items()
            if not (code.endswith("s") or _SMALL.search(name))}
"""Types that are the same where their codes are."""


_TRAILER = "\n//rawnn: compiled kernels: "


class Declarations:
    """What a source, and the headers that it includes in quotes from `folders`, declare of its
    kernels; reading it never fails, as the compiler has the last word."""

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

    def of(self, name: str) -> tuple[KernelSignature, ...]:
        """Every definition of a kernel that can be read; where there is none, its declarations."""
        every = [each for each in self._found if each.name == name and each.signature is not None]
        chosen = [each for each in every if each.definition] or every
        return tuple(dict.fromkeys(each.signature for each in chosen
                                   if each.signature is not None))

    def instance(self, signature: KernelSignature) -> Instance:
        """A signature with the names that its template arguments have in the source."""
        declared = next(iter(self.of(signature.name)), None)
        names = declared.template if declared else ()
        return Instance(signature, dict(zip(names, signature.arguments, strict=False)))

    def check(self, expression: str) -> None:
        """Raises ConfigError, with the cure, for a kernel that the source cannot have: neither
        declared nor made by a macro, or with other template parameters."""
        name = split_expression(expression)[0]
        last = name.rpartition("::")[2]
        if name not in self.names:
            texts = with_included(self._text, self._folders)
            if any(each.rpartition("::")[2] == last for each in self.names) \
                    or not any(re.search(rf"\b{last}\b", text) for text in texts):
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
        """Of a kernel or an instance of one. Without what was `compiled` it is the source's alone.
        Its `note` says which names are not known. Raises ConfigError for a kernel that there is
        not, a parameter that cannot be passed, and a source that says less than needed."""
        if compiled is None:
            return find_kernel(parse_kernels(self._text, self._folders), expression)
        name, arguments = split_expression(expression)
        declared = []
        for each in self.of(name):
            try:
                declared.append(each.substituted(expression))
            except ConfigError:  # of other template parameters: another branch of an #if
                continue
        same = [each for each in declared if len(each.parameters) == len(compiled.parameters)]
        fitting = [each for each in same if all(map(_agree, each.parameters, compiled.parameters))]
        chosen = fitting or same
        parameters, known = [], True
        for index, made in enumerate(compiled.parameters):
            named = {each.parameters[index].name: each.parameters[index] for each in chosen}
            known = known and len(named) == 1
            said = next(iter(named.values())) if len(named) == 1 else None
            parameters.append(self._joined(said.name if said else f"arg{index}", said, made))
        found = KernelSignature(name, tuple(parameters), (),
                                declared[0].arguments if declared else tuple(arguments),
                                "" if known else _note(expression, parameters, declared))
        found.layout()
        return found

    def _joined(self, name: str, said: Parameter | None, made: CompiledParameter) -> Parameter:
        """A parameter as it was compiled, in the source's words where these mean the same."""
        if made.reference:
            raise ConfigError(f"the kernel's parameter '{name}' is a reference; pass a pointer")
        if said is not None and said.ctype and _agree(said, made):
            if said.pointer or said.ctype in FORMATS:
                return said
            return replace(said, struct=self._struct(made))
        if made.pointer or made.code:
            return Parameter(name, made.ctype, made.pointer, made.const, code=made.code)
        ctype = "CUtensorMap" if made.ctype == "CUtensorMap_st" else made.ctype
        parameter = Parameter(name, ctype or "type without a name", False, made.const)
        if ctype in FORMATS and (parameter.size, parameter.align) == (made.size, made.align):
            return parameter
        return replace(parameter, struct=self._struct(made))

    def _struct(self, made: CompiledParameter) -> Struct:
        """The layout of a struct by value, opaque where the source does not say that of the
        compiled one."""
        try:
            found = read_struct(made.ctype, self._structs.texts)
        except ConfigError:
            found = None
        if found is None or (found.size, found.align) != (made.size, made.align):
            found = Struct(made.ctype, (), made.size, made.align)
        return found


def _agree(said: Parameter, made: CompiledParameter) -> bool:
    """Whether a parameter of the source, as far as it can be read, is the one that was compiled."""
    if not said.ctype:
        return True
    if not made.ctype:
        try:
            return said.size == made.size
        except ConfigError:
            return False
    if said.pointer != made.pointer or (said.pointer and said.const != made.const):
        return False
    if made.code or (said.ctype in FORMATS and FORMATS[said.ctype] == f"{MAP_SIZE}s"
                     and made.size != MAP_SIZE):
        return False
    words = re.sub(r"\bconst\b", "", made.ctype).replace(" *", "*")
    a, b = said.ctype.rstrip("*"), " ".join(words.rstrip("*").split())
    if len(said.ctype) - len(a) != words.count("*"):
        return False
    return _SAME.get(a, a) == _SAME.get(b, b) or (
        a in _NUMBERS and b in _NUMBERS and _NUMBERS[a] == _NUMBERS[b])


def _note(expression: str, parameters: Sequence[Parameter], declared: Sequence[KernelSignature]
          ) -> str:
    """What is said of parameters whose names are not known."""
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
    """A kernel's signature with its template arguments put in, and by name which these are."""

    signature: KernelSignature
    template: Mapping[str, str]


def annotated(text: str, instances: Mapping[str, Instance]) -> str:
    """A source that says in its last line, a comment, which signatures the compiler found for
    expressions: for the simulated GPU, which has no compiler."""
    return text + _TRAILER + json.dumps({name: asdict(each) for name, each in instances.items()}) \
        if instances else text


def annotation(text: str) -> dict[str, Instance]:
    """What `annotated` put into a text, by expression; {} for any other text."""
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
