"""Variables of a CUDA C source: `__constant__` and `__device__` ones, which the host can set, and
the bytes that a kernel declares `__shared__`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import prod

from rawnn.common.errors import ConfigError
from rawnn.cuda.compiling.c_types import canonical, code_of, type_words
from rawnn.cuda.compiling.structs import Struct, layout_of

_VARIABLE = r"\s+((?:[\w:]+\s+)*?[\w:]+[\s*]+)(\w+)\s*((?:\[[^\]]*\]\s*)*)"
_DECLARED = re.compile(rf"\b__(?:constant|device|managed)__{_VARIABLE}(?=[;,={{])")
_SHARED = re.compile(
    rf"\b__shared__(?:\s+(?:alignas|__align__)\s*\([^)]*\))?{_VARIABLE}(?=[;,])")
_FURTHER = re.compile(r"\s*,\s*(\*?)\s*(\w+)\s*((?:\[[^\]]*\]\s*)*)(?=[;,={])")
"""A further variable of the same declaration, behind one without an initialiser."""
_DEEP = 4
"""Levels of constants by which an extent may be defined."""
_QUALIFIERS = {"static", "extern", "inline", "constexpr", "__constant__", "__device__",
               "__managed__", "alignas"}


@dataclass(frozen=True)
class SymbolType:
    """A variable's name, the type of its elements in canonical words and that type's layout (None
    if unknown); its `shape` if the source gives it by numbers, constants and macros, else None."""

    name: str
    ctype: str
    layout: Struct | None
    shape: tuple[int, ...] | None

    @property
    def nbytes(self) -> int | None:
        """None if the source does not determine it."""
        if self.layout is None or self.shape is None:
            return None
        return self.layout.size * prod(self.shape)


def symbols(text: str) -> Iterator[SymbolType]:
    """Every variable that `text` declares with __constant__ or __device__."""
    code = code_of(text)
    yield from _variables(_DECLARED, code, code, text)


@cache
def static_shared(text: str, kernel: str) -> int:
    """Bytes that the body of a kernel declares `__shared__`, as far as numbers, constants and
    macros in the source give them, without functions that it calls."""
    code = code_of(text) if "__shared__" in text else ""
    return sum(each.nbytes or 0
               for each in _variables(_SHARED, body_of(code, kernel), code, text))


def body_of(code: str, kernel: str) -> str:
    """The text between the braces of a kernel, whose name is without namespaces; "" if `code`,
    which must be free of comments (code_of), does not define it."""
    named = re.search(rf"\b__global__\b[^;{{]*\b{kernel}\s*\([^{{;]*{{", code)
    if named is None:
        return ""
    depth, end = 1, named.end()
    while depth and (brace := re.compile(r"[{}]").search(code, end)):
        depth, end = depth + (1 if brace[0] == "{" else -1), brace.end()
    return code[named.end():end]


def _variables(pattern: re.Pattern[str], part: str, code: str, text: str) -> Iterator[SymbolType]:
    """The variables that a part of the code declares."""
    for match in pattern.finditer(part):
        ctype = canonical([word for word in type_words(match[1]) if word not in _QUALIFIERS])
        declarator: re.Match[str] | None = match
        while declarator is not None:
            pointer = "*" in declarator[1]
            extents = [_number(e, code, text) for e in re.findall(r"\[([^\]]*)\]", declarator[3])]
            shape = None if None in extents else tuple(e for e in extents if e is not None)
            try:
                layout = layout_of("unsigned long long" if pointer else ctype, [code])
            except ConfigError:
                layout = None
            yield SymbolType(declarator[2], ctype + "*" * pointer, layout, shape)
            declarator = _FURTHER.match(part, declarator.end())


def find_symbol(text: str, name: str) -> SymbolType | None:
    """The variable `name` of `text`; None if it declares none."""
    return next((each for each in symbols(text) if each.name == name), None)


def _number(extent: str, code: str, text: str) -> int | None:
    """The value of "6", or of an expression of numbers, constants and macros: "2 * RADIUS + 1"."""
    def value(match: re.Match[str]) -> str:
        name = re.escape(match[0])
        found = re.search(rf"\b{name}\s*=\s*([^;,{{}}]+);", code) \
            or re.search(rf"\bconst(?:expr)?\s[^;{{}}()<>]*\b{name}\s*=\s*([^;,{{}}]+),", code) \
            or re.search(rf"^[ \t]*#[ \t]*define[ \t]+{name}[ \t]+([^\n]+?)[ \t]*(?://.*)?$", text,
                         re.MULTILINE)
        return f"({found[1]})" if found else match[0]

    for _ in range(_DEEP):
        extent = re.sub(r"\b[A-Za-z_]\w*", value, extent)
    if not re.fullmatch(r"[\d\s+\-*/()]+", extent) or "**" in extent:
        return None
    try:
        return int(eval(extent.replace("/", "//"), {"__builtins__": {}}))
    except (SyntaxError, ArithmeticError, TypeError):
        return None
