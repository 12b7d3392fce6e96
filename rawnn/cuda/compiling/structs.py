"""Structs that kernels take by value, read from CUDA C text: their members and layout.

A struct may contain numbers, pointers, arrays of them, and such structs, in C's layout. One with
functions, bases, bit fields or an explicit alignment is not read, and a kernel that takes it by
value cannot be launched.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from rawnn.common.errors import ConfigError
from rawnn.cuda.compiling.c_types import FORMATS, canonical, type_words

if TYPE_CHECKING:
    import numpy as np

_SIZES = {**{code: struct.calcsize(f"={code}") for code in "?bBhHeiIfdqQ"}, "bfloat16": 2}
"""Bytes by `struct` code, or by ml_dtypes's name of a NumPy type."""
_STRUCT = re.compile(r"\b(typedef\s+)?struct\s+(\w*)\s*\{([^{}]*)\}\s*(\w*)\s*;")
_ALIAS = (r"\busing\s+{0}\s*=\s*([\w\s:]+);", r"\btypedef\s+([\w\s:]+?)\s+{0}\s*;")
_DEEP = 8
"""Levels of type aliases that are followed."""
_TEMPLATE = re.compile(r"\btemplate\s*<[^;{}]*>\s*$")
_DECLARATOR = re.compile(r"(\*?)\s*(\w+)\s*((?:\[\s*\w+\s*\]\s*)*)")
_FIRST = re.compile(rf"((?:[\w\s]|::)+?(?=[\s*]))\s*({_DECLARATOR.pattern})")
_CONSTANT = r"\bconstexpr\s+(?:unsigned\s+)?int\s+{}\s*=\s*(\d+)\s*;"


@dataclass(frozen=True)
class Member:
    """One member: the `code` of its elements ("Q" for a pointer), or their `struct`; `shape` of an
    array, else (); `offset` in bytes from the struct's beginning."""

    name: str
    code: str
    shape: tuple[int, ...]
    offset: int
    struct: Struct | None = None
    pointer: bool = False


@dataclass(frozen=True)
class Struct:
    """A struct's name, members, size and alignment in bytes. One without members is opaque: only
    its size and alignment are known."""

    name: str
    members: tuple[Member, ...]
    size: int
    align: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type of the same layout: pointers are addresses, in uint64."""
        import numpy as np  # imported here because most kernels take no struct

        if not self.members:
            return np.dtype(f"V{self.size}")
        formats = [(m.struct.dtype if m.struct else np.dtype(m.code), m.shape)
                   for m in self.members]
        return np.dtype({"names": [m.name for m in self.members], "formats": formats,
                         "offsets": [m.offset for m in self.members], "itemsize": self.size})

    @property
    def pointers(self) -> bool:
        """Whether it or a nested struct has, or may have, a pointer."""
        return not self.members or any(m.pointer or (m.struct is not None and m.struct.pointers)
                   for m in self.members)

    def packed(self, value: object) -> bytes:
        """The bytes of a value: a structured scalar of `dtype`, or bytes of that size; a tuple of
        members; an array of the members of a vector; a complex number for a pair of floats. An
        opaque struct takes any NumPy scalar of its size. Raises ConfigError for a value that does
        not fit, naming the first member that differs.
        """
        if isinstance(value, bytes):
            if len(value) != self.size:
                raise ConfigError(f"the struct '{self.name}' has {self.size} bytes, not "
                                  f"{len(value)}")
            return value
        import numpy as np

        kinds = {np.dtype(m.code) for m in self.members if not (m.struct or m.shape or m.pointer)}
        plain = kinds.pop() if len(kinds) == 1 and len(self.members) > 1 else None
        number = np.dtype(f"c{self.size}") if plain is not None and plain.kind == "f" \
            and len(self.members) == 2 and self.size in (8, 16) else None
        converted: Any = value
        if isinstance(value, complex) and not isinstance(value, np.generic) and number is not None:
            converted = number.type(value)
        elif isinstance(value, tuple) and self.members:
            try:
                with np.errstate(over="ignore", invalid="ignore"):
                    converted = np.array(value, self.dtype)
            except (TypeError, ValueError, OverflowError) as error:
                raise ConfigError(f"the struct '{self.name}' has the members "
                                  f"{', '.join(m.name for m in self.members)}, which cannot hold "
                                  f"{value!r}: {error}") from None
            lossy = _lossy_member(value, converted)
            if lossy:
                raise ConfigError(f"the struct '{self.name}' cannot hold {lossy}")
        if isinstance(converted, np.generic | np.ndarray):
            if converted.shape == () and converted.dtype.names and self.members:
                self.check(converted.dtype)
                return converted.tobytes()
            wanted = plain if converted.shape == (len(self.members),) else \
                number if not converted.shape else None
            fits = wanted is not None and converted.dtype == wanted  # NumPy takes None for float64
            if (fits or not (self.members or converted.shape)) and converted.nbytes == self.size:
                return converted.tobytes()
        takes = "a NumPy structured scalar or its" if self.members else \
            "a NumPy scalar of its size, structured or not, or its"
        raise ConfigError(f"the struct '{self.name}' takes {takes} {self.size} bytes, not "
                          f"{value!r}")

    def check(self, given: np.dtype[Any]) -> None:
        """Raise ConfigError if a NumPy type has another layout, naming the first member that
        differs."""
        wanted: Mapping[str, Any] = self.dtype.fields or {}
        found: Mapping[str, Any] = given.fields or {}
        for name, (ours, offset, *_) in wanted.items():
            if name not in found:
                raise ConfigError(f"the struct '{self.name}' has the member '{name}', and the "
                                  f"value has not")
            theirs, place = found[name][:2]
            if (ours, offset) != (theirs, place):
                raise ConfigError(f"member '{name}' of the struct '{self.name}' is {ours} at byte "
                                  f"{offset}, and the value's is {theirs} at byte {place}")
        extra = [name for name in found if name not in wanted]
        if extra:
            raise ConfigError(f"the struct '{self.name}' has no member '{extra[0]}'")
        if given.itemsize != self.size:
            raise ConfigError(f"the struct '{self.name}' has {self.size} bytes, and the value "
                              f"{given.itemsize}")


def _lossy_member(value: tuple[Any, ...], converted: Any) -> str:
    """The first member of a structured value whose number `converted` changed, "" for none."""
    import numpy as np

    from rawnn.common.dtypes import first_lossy

    for part, name in zip(value, converted.dtype.names, strict=True):
        found = np.asarray(converted[name])
        if found.dtype.names:
            nested = isinstance(part, tuple) and not found.shape
            if nested and (inner := _lossy_member(part, found)):
                return inner
            continue
        given = np.asarray(part)
        if given.shape != found.shape:
            return f"{part!r} in its member '{name}', of shape {found.shape}"
        place = first_lossy(given, found)
        if place is not None:
            return f"{given[place]} in its member '{name}', of {found.dtype}"
    return ""


_VECTOR = re.compile(r"((?:u?(?:char|short|int)|u?longlong|u?long|float|double))([1-4])")
_WIDEST = 16
"""Largest alignment of a built-in vector, in bytes."""
_PAIRS = {"half2": "e", "__half2": "e", "nv_bfloat162": "bfloat16", "__nv_bfloat162": "bfloat16"}
_COMPLEX = re.compile(r"(?:\w+::)*complex<(float|double)>")


def built_in(name: str) -> Struct | None:
    """The layout of a built-in CUDA type: a vector such as float4, dim3, half2, a complex number;
    None for any other type."""
    if name in _PAIRS:
        import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)

        return _row(name, _PAIRS[name], "xy", 4)
    if found := _COMPLEX.fullmatch(name):
        code = FORMATS[found[1]]
        return _row(name, code, ("real", "imag"), 2 * _SIZES[code])
    return vector(name)


def vector(name: str) -> Struct | None:
    """The layout of a built-in vector type such as float4, or of dim3; None for any other type."""
    if name == "dim3":
        return _row(name, "I", "xyz", 4)
    found = _VECTOR.fullmatch(name)
    if not found:
        return None
    base = found[1].replace("longlong", "long long")
    base = "unsigned " + base[1:] if base.startswith("u") else base
    code, count = FORMATS[base], int(found[2])
    size = _SIZES[code]
    return _row(name, code, "xyzw"[:count], size if count == 3 else min(size * count, _WIDEST))


def _row(name: str, code: str, members: Sequence[str], align: int) -> Struct:
    """A struct of members of one type, without padding between them."""
    size = _SIZES[code]
    return Struct(name, tuple(Member(member, code, (), size * i)
                              for i, member in enumerate(members)), size * len(members), align)


def layout_of(ctype: str, texts: Sequence[str]) -> Struct | None:
    """The layout of a pointer's target or a variable's type; a number becomes a struct with one
    unnamed member. None if it is unknown."""
    if ctype in FORMATS and FORMATS[ctype] in _SIZES:
        code = FORMATS[ctype]
        return Struct(ctype, (Member("", code, (), 0),), _SIZES[code], _SIZES[code])
    return read_struct(ctype, texts)


def read_struct(name: str, texts: Sequence[str]) -> Struct | None:
    """The struct `name` as `texts` declare it; None if none does.

    `texts` must be free of comments and preprocessor lines (code_of). Raises ConfigError for a
    member of an unsupported type, and for a struct that is declared in two ways.
    """
    if (found := built_in(name)) is not None:
        return found
    last = name.rpartition("::")[2]
    bodies = {" ".join(match[3].split()): match[3] for text in texts
              for match in _STRUCT.finditer(text)
              if last in (match[2], match[4] if match[1] else "")
              and not _TEMPLATE.search(text[: match.start()])}
    if len(bodies) > 1:
        raise ConfigError(f"the struct '{name}' is declared more than once, with other members")
    return next((_laid_out(name, body, texts) for body in bodies.values()), None)


def resolved(name: str, texts: Sequence[str]) -> str:
    """The type that `using` or `typedef` gives a name; the name itself if there is none."""
    for _ in range(_DEEP):
        if name in FORMATS or not re.fullmatch(r"\w+", name):
            break
        found = next((found for text in texts for alias in _ALIAS
                      if (found := re.search(alias.format(name), text))), None)
        if found is None:
            break
        name = canonical(type_words(found[1]))
    return name


def _laid_out(name: str, body: str, texts: Sequence[str]) -> Struct:
    members: list[Member] = []
    end, widest = 0, 1
    for kind, pointer, member, extents in _declared(name, body):
        kind = kind if pointer else resolved(kind, texts)
        inner = None if pointer or kind in FORMATS else read_struct(kind, texts)
        code = "Q" if pointer else FORMATS.get(kind, "")
        if inner is None and code not in _SIZES:
            raise ConfigError(f"member '{member}' of the struct '{name}' has type '{kind}', which "
                              f"cannot be passed by value")
        shape = tuple(_extent(extent, name, texts) for extent in extents)
        size, align = (inner.size, inner.align) if inner else (_SIZES[code], _SIZES[code])
        end = -(-end // align) * align
        members.append(Member(member, code, shape, end, inner, pointer))
        end += size * prod(shape)
        widest = max(widest, align)
    if not members:
        raise ConfigError(f"the struct '{name}' has no members")
    return Struct(name, tuple(members), -(-end // widest) * widest, widest)


def _declared(struct: str, body: str) -> Iterator[tuple[str, bool, str, list[str]]]:
    """(type, whether it is a pointer to that, name, extents) of each member."""
    for statement in filter(None, (part.strip() for part in body.split(";"))):
        first, *others = statement.split(",")
        found = _FIRST.fullmatch(first)
        kind = canonical(type_words(found[1])) if found else ""
        declarators = [found[2], *(part.strip() for part in others)] if found else []
        for declarator in declarators or [""]:
            one = _DECLARATOR.fullmatch(declarator)
            if one is None or not kind:
                raise ConfigError(f"cannot read the member '{' '.join(statement.split())}' of the "
                                  f"struct '{struct}'")
            yield kind, bool(one[1]), one[2], re.findall(r"\w+", one[3])


def _extent(text: str, struct: str, texts: Sequence[str]) -> int:
    """The value of "6", or of the name of a `constexpr int`."""
    if text.isdigit():
        return int(text)
    for each in texts:
        if found := re.search(_CONSTANT.format(text), each):
            return int(found[1])
    raise ConfigError(f"the struct '{struct}' has an array of '{text}' elements, a number that "
                      f"cannot be read")
