"""Structs that kernels take by value, read from CUDA C text: their members and where these lie.

A struct is data and nothing else: numbers, pointers, arrays of them, and such structs, laid out as
C lays them out. One with functions, bases, bit fields or an alignment of its own is not read; a
kernel that takes it by value cannot be launched.
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
"""Bytes by `struct` code, or by the name that ml_dtypes gives a type to NumPy."""
_STRUCT = re.compile(r"\b(typedef\s+)?struct\s+(\w*)\s*\{([^{}]*)\}\s*(\w*)\s*;")
_ALIAS = (r"\busing\s+{0}\s*=\s*([\w\s:]+);", r"\btypedef\s+([\w\s:]+?)\s+{0}\s*;")
_DEEP = 8
"""Names of names of a type that are followed."""
_TEMPLATE = re.compile(r"\btemplate\s*<[^;{}]*>\s*$")
_DECLARATOR = re.compile(r"(\*?)\s*(\w+)\s*((?:\[\s*\w+\s*\]\s*)*)")
_FIRST = re.compile(rf"((?:[\w\s]|::)+?(?=[\s*]))\s*({_DECLARATOR.pattern})")
_CONSTANT = r"\bconstexpr\s+(?:unsigned\s+)?int\s+{}\s*=\s*(\d+)\s*;"


@dataclass(frozen=True)
class Member:
    """One member: `code` of its elements ("Q" for a pointer), or the `struct` that they are;
    `shape` of an array, () of one that is none; `offset` in bytes from the struct's beginning."""

    name: str
    code: str
    shape: tuple[int, ...]
    offset: int
    struct: Struct | None = None
    pointer: bool = False


@dataclass(frozen=True)
class Struct:
    """A struct's name and members, its bytes and what its address is a multiple of. One without
    members is opaque: nothing but these is known of it."""

    name: str
    members: tuple[Member, ...]
    size: int
    align: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type of the same layout: pointers are addresses, in uint64."""
        import numpy as np  # here, as most kernels take no struct

        if not self.members:
            return np.dtype(f"V{self.size}")
        formats = [(m.struct.dtype if m.struct else np.dtype(m.code), m.shape)
                   for m in self.members]
        return np.dtype({"names": [m.name for m in self.members], "formats": formats,
                         "offsets": [m.offset for m in self.members], "itemsize": self.size})

    @property
    def pointers(self) -> bool:
        """Whether any member, of it or of structs in it, is a pointer, or may be."""
        return not self.members or any(m.pointer or (m.struct is not None and m.struct.pointers)
                   for m in self.members)

    def packed(self, value: object) -> bytes:
        """The bytes of a value: a structured scalar of `dtype`, or bytes of that size; members in
        a tuple; an array of the members of a vector, a complex number for a pair of floats. An
        opaque struct takes any NumPy scalar of its size. Raises ConfigError, naming the first
        member that lies or is otherwise, for what does not fit.
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
        made: Any = value
        if isinstance(value, complex) and not isinstance(value, np.generic) and number is not None:
            made = number.type(value)
        elif isinstance(value, tuple) and self.members:
            try:
                made = np.array(value, self.dtype)
            except (TypeError, ValueError, OverflowError) as error:
                raise ConfigError(f"the struct '{self.name}' has the members "
                                  f"{', '.join(m.name for m in self.members)}, which cannot hold "
                                  f"{value!r}: {error}") from None
        if isinstance(made, np.generic | np.ndarray):
            if made.shape == () and made.dtype.names and self.members:
                self.check(made.dtype)
                return made.tobytes()
            fits = made.dtype == plain if made.shape == (len(self.members),) else \
                not made.shape and (not self.members or made.dtype == number)
            if fits and made.nbytes == self.size:
                return made.tobytes()
        takes = "a NumPy structured scalar or its" if self.members else \
            "a NumPy scalar of its size, structured or not, or its"
        raise ConfigError(f"the struct '{self.name}' takes {takes} {self.size} bytes, not "
                          f"{value!r}")

    def check(self, given: np.dtype[Any]) -> None:
        """Raises ConfigError, naming the first member that lies or is otherwise, where a NumPy type
        is not laid out like this."""
        wanted: Mapping[str, Any] = self.dtype.fields or {}
        found: Mapping[str, Any] = given.fields or {}
        for name, (here, offset, *_) in wanted.items():
            if name not in found:
                raise ConfigError(f"the struct '{self.name}' has the member '{name}', and the "
                                  f"value has not")
            there, place = found[name][:2]
            if (here, offset) != (there, place):
                raise ConfigError(f"member '{name}' of the struct '{self.name}' is {here} at byte "
                                  f"{offset}, and the value's is {there} at byte {place}")
        extra = [name for name in found if name not in wanted]
        if extra:
            raise ConfigError(f"the struct '{self.name}' has no member '{extra[0]}'")
        if given.itemsize != self.size:
            raise ConfigError(f"the struct '{self.name}' has {self.size} bytes, and the value "
                              f"{given.itemsize}")


_VECTOR = re.compile(r"((?:u?(?:char|short|int)|u?longlong|u?long|float|double))([1-4])")
_WIDEST = 16
"""Bytes: the most that a built-in vector's address is a multiple of."""
_PAIRS = {"half2": "e", "__half2": "e", "nv_bfloat162": "bfloat16", "__nv_bfloat162": "bfloat16"}
_COMPLEX = re.compile(r"(?:\w+::)*complex<(float|double)>")


def built_in(name: str) -> Struct | None:
    """The layout of a type of CUDA's own: a vector such as float4, dim3, half2, a complex number;
    None of any other type."""
    if name in _PAIRS:
        import ml_dtypes  # noqa: F401  (NumPy knows bfloat16 by its name from then on)

        return _row(name, _PAIRS[name], "xy", 4)
    if found := _COMPLEX.fullmatch(name):
        code = FORMATS[found[1]]
        return _row(name, code, ("real", "imag"), 2 * _SIZES[code])
    return vector(name)


def vector(name: str) -> Struct | None:
    """The layout of a built-in vector type such as float4, or of dim3; None of any other type."""
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
    """Members of one type, one behind the other."""
    size = _SIZES[code]
    return Struct(name, tuple(Member(member, code, (), size * i)
                              for i, member in enumerate(members)), size * len(members), align)


def layout_of(ctype: str, texts: Sequence[str]) -> Struct | None:
    """The layout of a type that a pointer points at or a variable has: of a number, a struct with
    one member without a name. None where it is not known."""
    if ctype in FORMATS and FORMATS[ctype] in _SIZES:
        code = FORMATS[ctype]
        return Struct(ctype, (Member("", code, (), 0),), _SIZES[code], _SIZES[code])
    return read_struct(ctype, texts)


def read_struct(name: str, texts: Sequence[str]) -> Struct | None:
    """The struct `name` as `texts` declare it; None where none does.

    `texts` are free of comments and preprocessor lines (code_of). Raises ConfigError for a member
    that is no number, pointer, such a struct, or array of them, and for a struct that is declared
    in two ways.
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
    """The type that a name stands for by `using` or `typedef`; the name itself where none says."""
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
    """Of "6", or of the name of a `constexpr int`."""
    if text.isdigit():
        return int(text)
    for each in texts:
        if found := re.search(_CONSTANT.format(text), each):
            return int(found[1])
    raise ConfigError(f"the struct '{struct}' has an array of '{text}' elements, a number that "
                      f"cannot be read")
