"""Kernel signatures read from CUDA C text, so that arguments are checked and packed by the source
itself instead of a second list. For a user's kernel the compiler decides (compiled_signature.py),
and this module gives the names.

It reads declarations of `__global__` functions and of the structs that these take by value
(structs.py), and nothing else of C++. Comments, strings and preprocessor lines are blanked first
(so that both branches of an `#if` are read); then every `__global__` starts a declarator. Kernels
made by macros are not found: libclang would find them, but needs all of CUDA's headers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

from rawnn.common.errors import ConfigError, nearest
from rawnn.common.words import counted
from rawnn.cuda.compiling.c_text import (
    WORD,
    closing,
    declarator,
    namespaces,
    split,
    split_expression,
)
from rawnn.cuda.compiling.c_types import (
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
from rawnn.cuda.compiling.includes import with_included
from rawnn.cuda.compiling.structs import Struct, read_struct, resolved
from rawnn.ptx import INCLUDE


@dataclass(frozen=True)
class Parameter:
    """One kernel parameter.

    ctype: the target's type for a pointer, else the type itself, in canonical words ("unsigned
        int", "float", "float*", or a template parameter's name).
    const: whether the pointer's target (or the value) is const.
    struct: the layout of a struct by value.
    unread: why the layout, or without a `ctype` the type, is unknown.
    code: the `struct` code of a type whose name does not determine it, such as an enumeration.
    """

    name: str
    ctype: str
    pointer: bool
    const: bool
    struct: Struct | None = None
    unread: str = ""
    code: str = ""

    @cached_property
    def format(self) -> str:
        """The `struct` code of the argument: "P" for a pointer.

        Raises ConfigError for a type passed by value that rawnn cannot pack.
        """
        if self.pointer:
            return "P"
        if self.struct is not None:
            return f"{self.struct.size}s"
        if self.code:
            return self.code
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
        """Alignment in bytes; for a number or a pointer this is its size."""
        if self.struct:
            return self.struct.align
        return MAP_ALIGNMENT if self.tensor_map else self.size

    @cached_property
    def tensor_map(self) -> bool:
        """Whether it is a tensor map passed by value."""
        return FORMATS.get(self.ctype) == f"{MAP_SIZE}s" and not self.pointer

    @property
    def number(self) -> bool:
        """Whether nothing in it can be an address: it is neither a pointer, nor a tensor map, nor a
        struct with pointers."""
        return not (self.pointer or self.tensor_map
                    or (self.struct is not None and self.struct.pointers))

    @property
    def mapped(self) -> str:
        """The operand that a tensor map describes: "w" for `w_map`; "" for other parameters."""
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
    """A kernel's name (with its namespaces: "a::b::k"), parameters and template parameters, as its
    source declares them.

    `arguments` holds the template arguments after `instantiate`. `note` says what the source does
    not reveal about the compiled kernel.
    """

    name: str
    parameters: tuple[Parameter, ...]
    template_parameters: tuple[TemplateParameter, ...] = ()
    arguments: tuple[str, ...] = ()
    note: str = ""

    @property
    def template(self) -> tuple[str, ...]:
        """Names of the template parameters; empty for a plain kernel."""
        return tuple(parameter.name for parameter in self.template_parameters)

    def instantiate(self, expression: str) -> KernelSignature:
        """The signature of `expression`, such as "matmul_nt<float,true,false>", with template
        arguments substituted for template parameters.

        Raises ConfigError if the expression names another kernel, gives too few or too many
        arguments, or leaves a parameter that cannot be passed by value.
        """
        found = self._instances.get(expression)
        if found is None:
            found = self._instances[expression] = self.substituted(expression)
            found.layout()
        return found

    @cached_property
    def _instances(self) -> dict[str, KernelSignature]:
        return {}

    def substituted(self, expression: str) -> KernelSignature:
        """Like `instantiate`, but parameters that cannot be passed are allowed."""
        name, arguments = split_expression(expression)
        if _last(name) != _last(self.name):
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
            fix = f'"{self.name}<{example}>"' if wanted else f'"{self.name}"'
            raise ConfigError(
                f"'{expression}' gives {counted(len(arguments), 'template argument')}, but kernel "
                f"'{self.name}' has {declared}: write it such as {fix}"
            )
        types = {p.name: values[p.name] for p in self.template_parameters if p.kind == "typename"}
        return replace(
            self,
            parameters=tuple(_substitute(parameter, types) for parameter in self.parameters),
            template_parameters=(),
            arguments=tuple(values.values()),
        )

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


def parse_kernels(text: str, folders: Sequence[Path] = INCLUDE) -> dict[str, KernelSignature]:
    """Signatures of every `__global__` function template or function in CUDA C `text`, by name.

    If the text has none, the headers that it includes in quotes from `folders` are read; they may
    also declare structs that kernels take by value. A definition replaces an earlier declaration;
    explicit specialisations and instantiations are skipped. Raises ConfigError for an overloaded
    kernel, a parameter passed by reference, and a declaration that cannot be read.
    """
    structs = Structs(text, folders)
    kernels = _kernels(text)
    if not kernels:
        for header in with_included(text, folders)[1:]:
            kernels = kernels | _kernels(header)
    return {name: structs.filled(kernel) for name, kernel in kernels.items()}


@lru_cache(256)  # a run reads a source to load it and again to prove the result
def _kernels(text: str) -> dict[str, KernelSignature]:
    """The kernels, before structs by value are looked up."""
    kernels: dict[str, KernelSignature] = {}
    defined: set[str] = set()
    for each in declarations(text):
        name, signature = each.name, each.signature
        unread = each.unread if signature is None else \
            next((p.unread for p in signature.parameters if p.unread), "")
        if signature is None or unread:
            raise ConfigError(unread)
        if name in defined and each.definition and kernels[name] != signature:
            raise ConfigError(
                f"kernel '{name}' is defined twice with different parameters; give overloaded "
                f"kernels different names"
            )
        if each.definition or name not in defined:
            kernels[name] = signature
        if each.definition:
            defined.add(name)
    return kernels


@dataclass(frozen=True)
class Declaration:
    """One declaration of a kernel: `signature` is None if it cannot be read, for the reason
    `unread`; `name` is "" if not even that can be read."""

    name: str
    signature: KernelSignature | None
    definition: bool = False
    unread: str = ""


@lru_cache(256)
def declarations(text: str) -> tuple[Declaration, ...]:
    """Every declaration in the text, in order, from all branches of an `#if`, before structs by
    value are looked up. Explicit specialisations and instantiations are left out."""
    text = code_of(text)
    spaces = namespaces(text)
    found: list[Declaration] = []
    for match in re.finditer(r"\b__global__\b", text):
        name = ""
        try:
            found_at = declarator(text, match.end())
            if found_at is None:
                continue
            last, start, end = found_at
            name = "::".join([*(inner for begin, close, inner in spaces
                                if begin <= match.start() < close and inner), last])
            prefix = text[max(text.rfind(c, 0, match.start()) for c in ";{}") + 1 : match.start()]
            template = _template(prefix, name)
            if template is None:
                continue
            signature = KernelSignature(name, _parameters(text[start:end], name), template)
            found.append(Declaration(name, signature,
                                     text[end + 1 :].lstrip().startswith("{")))
        except ConfigError as error:
            found.append(Declaration(name, None, unread=str(error)))
    return tuple(found)


class Structs:
    """Looks up structs in a source and its headers, which are read at the first look-up."""

    def __init__(self, text: str, folders: Sequence[Path]) -> None:
        self._text, self._folders = text, folders
        self._texts: list[str] | None = None

    def filled(self, kernel: KernelSignature) -> KernelSignature:
        """The kernel with the layouts of structs by value; unchanged if it takes none."""
        types = {p.name for p in kernel.template_parameters}
        if all(p.pointer or p.ctype in FORMATS or p.ctype in types for p in kernel.parameters):
            return kernel
        return replace(kernel, parameters=tuple(
            p if p.pointer or p.ctype in FORMATS or p.ctype in types else self._given(p)
            for p in kernel.parameters))

    def _given(self, parameter: Parameter) -> Parameter:
        ctype = resolved(parameter.ctype, self.texts)
        try:
            return replace(parameter, ctype=ctype,
                           struct=None if ctype in FORMATS else read_struct(ctype, self.texts))
        except ConfigError as error:
            return replace(parameter, unread=str(error))

    @property
    def texts(self) -> list[str]:
        """The source and its headers, as code_of returns them."""
        if self._texts is None:
            self._texts = [code_of(text) for text in with_included(self._text, self._folders)]
        return self._texts


def find_kernel(kernels: Mapping[str, KernelSignature], expression: str) -> KernelSignature:
    """The signature that `expression` ("softmax<float>") names, instantiated.

    Raises ConfigError with the nearest name if no kernel has that name.
    """
    return kernels[known_name(kernels, expression)].instantiate(expression)


def known_name(names: Collection[str], expression: str) -> str:
    """The name among `names` of the kernel that an expression refers to. Raises ConfigError, with
    the nearest name, if there is none."""
    name = split_expression(expression)[0]
    if name in names:
        return name
    others = [each for each in names if _last(each) == _last(name)]
    raise ConfigError(f"there is no kernel '{name}'" + (
        f": it is in a namespace, write '{others[0]}'" if others else nearest(name, names)
        or f"; there {'is' if len(names) == 1 else 'are'} {', '.join(names)}" * bool(names)))


def _last(name: str) -> str:
    """A name without its namespaces."""
    return name.rpartition("::")[2]


def _template(prefix: str, kernel: str) -> tuple[TemplateParameter, ...] | None:
    """Template parameters declared before a kernel; None for a specialisation or an explicit
    instantiation."""
    match = re.search(r"\btemplate\b\s*(<?)", prefix)
    if match is None:
        return ()
    if not match[1]:
        return None
    start = match.end() - 1
    parts = split(prefix[start + 1 : closing(prefix, start)])
    if not parts:
        return None
    result = []
    for part in parts:
        declared, _, default = part.partition("=")
        words = WORD.findall(declared)
        if "..." in declared or "template" in words or len(words) < 2:
            raise ConfigError(f"kernel '{kernel}': cannot read its template parameter '{part}'")
        kind = "typename" if words[0] in ("typename", "class") else " ".join(words[:-1])
        result.append(TemplateParameter(words[-1], kind, default.strip() or None))
    return tuple(result)


def _parameters(text: str, kernel: str) -> tuple[Parameter, ...]:
    parts = split(text)
    if parts == ["void"]:
        return ()
    found: dict[str, Parameter] = {}
    for index, part in enumerate(parts):
        declared = part.partition("=")[0].strip()
        unread = f"kernel '{kernel}': '{part}' is a reference; pass a pointer" \
            if "&" in declared else f"kernel '{kernel}': cannot read its parameter '{part}'" \
            if "(" in declared else ""
        if unread:  # void (*f)(int), float& x
            named = re.search(r"[*&]\s*(\w+)", declared)
            declared = named[1] if named else ""
        depth = declared.count("*") + ("[" in declared)
        declared = re.sub(r"\[[^\]]*\]", " ", declared)
        pointee = declared.split("*")[max(depth - 1, 0)]
        const = re.search(r"\bconst\b", pointee) is not None
        # A parameter may have no name: then only type words are left.
        type_text, name = declared, f"arg{index}"
        match = re.search(r"([A-Za-z_]\w*)\s*$", declared)
        if match is not None and match[1] not in TYPE_WORDS | QUALIFIERS:
            rest = declared[: match.start()]
            if "*" in rest or type_words(rest):
                type_text, name = rest, match[1]
        if unread:
            type_text, name = "", declared or name
        ctype = canonical(type_words(type_text.partition("*")[0])) + "*" * (depth - 1)
        while name in found:
            name += "_"
        found[name] = Parameter(name, ctype, depth > 0, const, unread=unread)
    return tuple(found.values())


def _substitute(parameter: Parameter, types: dict[str, str]) -> Parameter:
    base = parameter.ctype.rstrip("*")
    given = types.get(base)
    if given is None:
        return parameter
    depth, levels = given.count("*"), given.split("*")
    beyond = len(parameter.ctype) - len(base)  # further levels of pointers
    # Of `const T x`, where T is a pointer, x is constant, and not what it points to.
    const = parameter.const and (parameter.pointer or not depth)
    if not beyond:
        inner = levels[depth if parameter.pointer else max(depth - 1, 0)]
        const = const or re.search(r"\bconst\b", inner) is not None
    depth += beyond + parameter.pointer
    ctype = canonical(type_words(levels[0])) + "*" * (depth - 1)
    return replace(parameter, ctype=ctype, pointer=depth > 0, const=const)
