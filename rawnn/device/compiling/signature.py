"""Kernel signatures read from CUDA C text, so that arguments are checked and packed from the
source itself and never from a second list kept by hand.

This reads declarations of `__global__` functions, and of the structs that these take by value
(structs.py), and nothing else of C++: comments, strings and preprocessor lines are blanked first
(so both branches of an `#if` are seen), then every `__global__` is taken as the start of a
declarator. Kernels made by macros are not seen: libclang would, after all of CUDA's headers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

from rawnn.common.words import counted
from rawnn.device.compiling.c_types import (
    FORMATS,
    MAP_ALIGNMENT,
    MAP_SIZE,
    MAP_SUFFIX,
    QUALIFIERS,
    SIZES,
    TYPE_WORDS,
    canonical,
    code_of,
    type_words,
)
from rawnn.device.compiling.includes import with_included
from rawnn.device.compiling.structs import Struct, read_struct
from rawnn.errors import ConfigError, nearest
from rawnn.ptx import SOURCES

_WORD = re.compile(r"[A-Za-z_]\w*")
_OPEN, _CLOSE = "(<[{", ")>]}"


@dataclass(frozen=True)
class Parameter:
    """One kernel parameter. `ctype` is the pointee's type for a pointer, else the type itself,
    in canonical words ("unsigned int", "float", or a template parameter's name); `const` says
    that the pointee (or the value) is const. `struct` is how a struct by value is laid out,
    `unread` why that of one is not known."""

    name: str
    ctype: str
    pointer: bool
    const: bool
    struct: Struct | None = None
    unread: str = ""

    @cached_property
    def format(self) -> str:
        """The `struct` code of the argument: "P" for a pointer.

        Raises ConfigError for a type passed by value that rawnn cannot pack.
        """
        if self.pointer:
            return "P"
        if self.struct is not None:
            return f"{self.struct.size}s"
        try:
            return FORMATS[self.ctype]
        except KeyError:
            raise ConfigError(
                f"parameter '{self.name}' has type '{self.ctype}', which cannot be passed by value"
                + (f": {self.unread}" if self.unread else
                   f"; pass a pointer, a struct of plain members that the source declares, or one "
                   f"of: {', '.join(FORMATS)}")
            ) from None

    @cached_property
    def size(self) -> int:
        """Bytes of the argument."""
        return self.struct.size if self.struct else SIZES.get(self.format, 8)

    @cached_property
    def align(self) -> int:
        """Alignment in bytes: that of a number or a pointer is its size."""
        if self.struct:
            return self.struct.align
        return MAP_ALIGNMENT if self.tensor_map else self.size

    @cached_property
    def tensor_map(self) -> bool:
        """Whether it is a tensor map, by value."""
        return FORMATS.get(self.ctype) == f"{MAP_SIZE}s" and not self.pointer

    @property
    def number(self) -> bool:
        """Whether nothing in it can be an address: neither a pointer, nor a tensor map, nor a
        struct with pointers."""
        return not (self.pointer or self.tensor_map
                    or (self.struct is not None and self.struct.pointers))

    @property
    def mapped(self) -> str:
        """The operand that a tensor map describes: "w" of `w_map`; "" of any other parameter."""
        named = self.tensor_map and self.name.endswith(MAP_SUFFIX)
        return self.name.removesuffix(MAP_SUFFIX) if named else ""


@dataclass(frozen=True)
class TemplateParameter:
    """One template parameter: `kind` is "typename" or the value's type ("bool", "int")."""

    name: str
    kind: str
    default: str | None


@dataclass(frozen=True)
class KernelSignature:
    """A kernel's name, parameters and template parameters, as its source declares them.

    `arguments` holds the template arguments once `instantiate` has put them in.
    """

    name: str
    parameters: tuple[Parameter, ...]
    template_parameters: tuple[TemplateParameter, ...] = ()
    arguments: tuple[str, ...] = ()

    @property
    def template(self) -> tuple[str, ...]:
        """Names of the template parameters; empty for a plain kernel."""
        return tuple(parameter.name for parameter in self.template_parameters)

    def instantiate(self, expression: str) -> KernelSignature:
        """The signature of `expression`, such as "matmul_nt<float,true,false>", with template
        arguments in place of template parameters.

        Raises ConfigError where the expression names another kernel, gives too few or too many
        arguments, or leaves a parameter that cannot be passed by value.
        """
        found = self._instances.get(expression)
        if found is None:
            found = self._instances[expression] = self._instantiated(expression)
        return found

    @cached_property
    def _instances(self) -> dict[str, KernelSignature]:
        return {}

    def _instantiated(self, expression: str) -> KernelSignature:
        name, arguments = _split_expression(expression)
        if name != self.name:
            raise ConfigError(f"'{expression}' does not name the kernel '{self.name}'")
        values: dict[str, str] = {}
        for index, parameter in enumerate(self.template_parameters):
            value = arguments[index] if index < len(arguments) else parameter.default
            if value is None:
                break
            values[parameter.name] = values.get(value, value)
        wanted = len(self.template_parameters)
        if len(arguments) > wanted or len(values) < wanted:
            declared = f"<{', '.join(self.template)}>" if wanted else "no template parameters"
            example = ", ".join("float" if p.kind == "typename" else "1"
                                for p in self.template_parameters)
            cure = f'"{self.name}<{example}>"' if wanted else f'"{self.name}"'
            raise ConfigError(
                f"'{expression}' gives {counted(len(arguments), 'template argument')}, but kernel "
                f"'{self.name}' has {declared}: write it such as {cure}"
            )
        types = {p.name: values[p.name] for p in self.template_parameters if p.kind == "typename"}
        made = replace(
            self,
            parameters=tuple(_substitute(parameter, types) for parameter in self.parameters),
            template_parameters=(),
            arguments=tuple(values.values()),
        )
        made.layout()
        return made

    def layout(self) -> tuple[tuple[int, ...], int]:
        """(offset of each parameter, total bytes) of the parameter buffer, laid out as a C
        struct: each parameter at a multiple of its alignment.

        Raises ConfigError naming a parameter that cannot be passed by value.
        """
        return self._layout

    @cached_property
    def _layout(self) -> tuple[tuple[int, ...], int]:
        offsets, end = [], 0
        for parameter in self.parameters:
            try:
                size, align = parameter.size, parameter.align
            except ConfigError as error:
                raise ConfigError(f"kernel '{self.name}': {error}") from None
            end = -(-end // align) * align
            offsets.append(end)
            end += size
        return tuple(offsets), end


def parse_kernels(text: str, folders: Sequence[Path] = (SOURCES,)) -> dict[str, KernelSignature]:
    """Signatures of every `__global__` function template or function in CUDA C `text`, by name.

    A text that has none takes those of the headers that it includes in quotes from `folders`, and
    there structs are declared, too, that kernels take by value. A declaration before the definition
    is replaced by the definition; explicit specialisations and instantiations are skipped. Raises
    ConfigError for an overloaded kernel, a parameter passed by reference, and a declaration that
    cannot be read.
    """
    structs = _Structs(text, folders)
    kernels = _declared(text)
    if not kernels:
        for header in with_included(text, folders)[1:]:
            kernels = kernels | _declared(header)
    return {name: structs.filled(kernel) for name, kernel in kernels.items()}


@lru_cache(256)  # a run reads a source when it loads it and again when it proves what it compiled
def _declared(text: str) -> dict[str, KernelSignature]:
    """The kernels, with structs by value not looked up."""
    text = code_of(text)
    kernels: dict[str, KernelSignature] = {}
    defined: set[str] = set()
    for match in re.finditer(r"\b__global__\b", text):
        found = _declarator(text, match.end())
        if found is None:
            continue
        name, start, end = found
        prefix = text[max(text.rfind(c, 0, match.start()) for c in ";{}") + 1 : match.start()]
        template = _template(prefix, name)
        if template is None:
            continue
        signature = KernelSignature(name, tuple(_parameters(text[start:end], name)), template)
        definition = text[end + 1 :].lstrip().startswith("{")
        if name in defined and definition and kernels[name] != signature:
            raise ConfigError(
                f"kernel '{name}' is defined twice with different parameters; give overloaded "
                f"kernels different names"
            )
        if definition or name not in defined:
            kernels[name] = signature
        if definition:
            defined.add(name)
    return kernels


class _Structs:
    """Looks structs up in a source and its headers, which are read when the first is wanted."""

    def __init__(self, text: str, folders: Sequence[Path]) -> None:
        self._text, self._folders = text, folders
        self._texts: list[str] | None = None

    def filled(self, kernel: KernelSignature) -> KernelSignature:
        """The kernel, with the structs that it takes by value; itself where it takes none."""
        types = {p.name for p in kernel.template_parameters}
        if all(p.pointer or p.ctype in FORMATS or p.ctype in types for p in kernel.parameters):
            return kernel
        return replace(kernel, parameters=tuple(
            p if p.pointer or p.ctype in FORMATS or p.ctype in types else self._given(p)
            for p in kernel.parameters))

    def _given(self, parameter: Parameter) -> Parameter:
        if self._texts is None:
            self._texts = [code_of(text) for text in with_included(self._text, self._folders)]
        try:
            return replace(parameter, struct=read_struct(parameter.ctype, self._texts))
        except ConfigError as error:
            return replace(parameter, unread=str(error))


def find_kernel(kernels: dict[str, KernelSignature], expression: str) -> KernelSignature:
    """The signature that `expression` ("softmax<float>") names, instantiated.

    Raises ConfigError with the nearest name where no kernel has that name.
    """
    name = _split_expression(expression)[0]
    if name not in kernels:
        raise ConfigError(f"there is no kernel '{name}'{nearest(name, kernels)}")
    return kernels[name].instantiate(expression)


def _closing(text: str, start: int) -> int:
    """Index of the bracket closing the one at `start`; inside parentheses `<` and `>` may be
    comparisons, so they count only where no parenthesis is open."""
    stack: list[str] = []
    for index in range(start, len(text)):
        char = text[index]
        if char in "<>" and any(opened != "<" for opened in stack):
            continue
        if char in _OPEN:
            stack.append(char)
        elif char in _CLOSE and stack:
            stack.pop()
            if not stack:
                return index
    line = text.count("\n", 0, start) + 1
    raise ConfigError(f"kernel source: the '{text[start]}' on line {line} is never closed")


def _split(text: str) -> list[str]:
    """`text` split at commas outside every bracket; empty text has no parts."""
    parts, begin, index = [], 0, 0
    while index < len(text):
        if text[index] in _OPEN:
            index = _closing(text, index)
        elif text[index] == ",":
            parts.append(text[begin:index].strip())
            begin = index + 1
        index += 1
    last = text[begin:].strip()
    return [*parts, last] if parts or last else []


def _split_expression(expression: str) -> tuple[str, list[str]]:
    match = re.fullmatch(r"\s*(?:::)?([A-Za-z_]\w*)\s*(?:<(.*)>)?\s*", expression, re.DOTALL)
    if match is None:
        raise ConfigError(f"'{expression}' is not a kernel name such as softmax<float>")
    return match[1], [" ".join(part.split()) for part in _split(match[2] or "")]


def _declarator(text: str, index: int) -> tuple[str, int, int] | None:
    """(name, start, end) of a kernel and its parameter list, reading on from `__global__` over
    the return type and attributes; None for an explicit specialisation."""
    while True:
        match = _WORD.search(text, index)
        if match is None or re.search(r"[;{}()]", text[index : match.start()]):
            line = text.count("\n", 0, index) + 1
            raise ConfigError(f"kernel source: cannot read the __global__ function on line {line}")
        index = match.end()
        while index < len(text) and text[index].isspace():
            index += 1
        follows = text[index : index + 1]
        attribute = match[0].startswith("__") and match[0].endswith("__")
        if follows == "<" and not attribute:
            return None
        if follows == "(":
            end = _closing(text, index)
            if not attribute:
                return match[0], index + 1, end
            index = end + 1


def _template(prefix: str, kernel: str) -> tuple[TemplateParameter, ...] | None:
    """Template parameters declared before a kernel; None for a specialisation or an explicit
    instantiation."""
    match = re.search(r"\btemplate\b\s*(<?)", prefix)
    if match is None:
        return ()
    if not match[1]:
        return None
    start = match.end() - 1
    parts = _split(prefix[start + 1 : _closing(prefix, start)])
    if not parts:
        return None
    made = []
    for part in parts:
        declared, _, default = part.partition("=")
        words = _WORD.findall(declared)
        if "..." in declared or "template" in words or len(words) < 2:
            raise ConfigError(f"kernel '{kernel}': cannot read its template parameter '{part}'")
        kind = "typename" if words[0] in ("typename", "class") else " ".join(words[:-1])
        made.append(TemplateParameter(words[-1], kind, default.strip() or None))
    return tuple(made)


def _parameters(text: str, kernel: str) -> Iterator[Parameter]:
    parts = _split(text)
    if parts == ["void"]:
        return
    for index, part in enumerate(parts):
        declared = part.partition("=")[0].strip()
        if "&" in declared:
            raise ConfigError(f"kernel '{kernel}': '{part}' is a reference; pass a pointer")
        if "(" in declared:
            raise ConfigError(f"kernel '{kernel}': cannot read its parameter '{part}'")
        before_star = declared.partition("*")[0]
        const = re.search(r"\bconst\b", before_star) is not None
        pointer = "*" in declared or "[" in declared
        declared = re.sub(r"\[[^\]]*\]", " ", declared)
        # A parameter may go without a name: then nothing but type words is left.
        type_text, name = declared, f"arg{index}"
        match = re.search(r"([A-Za-z_]\w*)\s*$", declared)
        if match is not None and match[1] not in TYPE_WORDS | QUALIFIERS:
            rest = declared[: match.start()]
            if "*" in rest or type_words(rest):
                type_text, name = rest, match[1]
        ctype = canonical(type_words(type_text.partition("*")[0]))
        yield Parameter(name, ctype, pointer, const)


def _substitute(parameter: Parameter, types: dict[str, str]) -> Parameter:
    given = types.get(parameter.ctype)
    if given is None:
        return parameter
    pointee, star, _ = given.partition("*")
    return replace(
        parameter,
        ctype=canonical(type_words(pointee)),
        pointer=parameter.pointer or bool(star),
        const=parameter.const or (bool(re.search(r"\bconst\b", pointee))),
    )
