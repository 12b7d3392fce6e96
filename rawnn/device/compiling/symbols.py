"""Variables of a CUDA C source that the host can set: `__constant__` and `__device__` ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from rawnn.device.compiling.c_types import canonical, code_of, type_words
from rawnn.device.compiling.structs import Struct, layout_of
from rawnn.errors import ConfigError

_DECLARED = re.compile(
    r"\b__(?:constant|device|managed)__\s+((?:[\w:]+\s+)*?[\w:]+[\s*]+)(\w+)\s*"
    r"((?:\[[^\]]*\]\s*)*)(?=[;={])")
_QUALIFIERS = {"static", "extern", "inline", "constexpr", "__constant__", "__device__",
               "__managed__", "alignas"}


@dataclass(frozen=True)
class SymbolType:
    """A variable's name, the type of its elements in canonical words and that type's layout, None
    where it is not known; `shape` where the source gives it in plain numbers, else None."""

    name: str
    ctype: str
    layout: Struct | None
    shape: tuple[int, ...] | None

    @property
    def nbytes(self) -> int | None:
        """None where it is not known from the source."""
        if self.layout is None or self.shape is None:
            return None
        return self.layout.size * prod(self.shape)


def symbols(text: str) -> Iterator[SymbolType]:
    """Every variable that `text` declares with __constant__ or __device__."""
    code = code_of(text)
    for match in _DECLARED.finditer(code):
        words = [word for word in type_words(match[1]) if word not in _QUALIFIERS]
        pointer = "*" in match[1]
        ctype = canonical(words)
        extents = [_number(e, code) for e in re.findall(r"\[([^\]]*)\]", match[3])]
        shape = None if None in extents else tuple(e for e in extents if e is not None)
        try:
            layout = layout_of("unsigned long long" if pointer else ctype, [code])
        except ConfigError:
            layout = None
        yield SymbolType(match[2], ctype + "*" * pointer, layout, shape)


def find_symbol(text: str, name: str) -> SymbolType | None:
    """The variable `name` of `text`; None where it declares none."""
    return next((each for each in symbols(text) if each.name == name), None)


def _number(extent: str, code: str) -> int | None:
    """Of "6", a product such as "4 * 6", or the name of a constant."""
    total = 1
    for factor in extent.split("*"):
        factor = factor.strip()
        if not factor.isdigit():
            found = re.search(rf"\b{re.escape(factor)}\s*=\s*(\d+)\s*;", code) if factor else None
            if found is None:
                return None
            factor = found[1]
        total *= int(factor)
    return total
