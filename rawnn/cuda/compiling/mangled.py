"""Reads types from a mangled name: the part of the Itanium C++ ABI (5.1, "Mangling") that types of
kernel parameters need."""

from __future__ import annotations

from dataclasses import dataclass, replace

_BUILT_IN = {
    "v": "void", "b": "bool", "c": "char", "a": "signed char", "h": "unsigned char", "s": "short",
    "t": "unsigned short", "i": "int", "j": "unsigned int", "l": "long", "m": "unsigned long",
    "x": "long long", "y": "unsigned long long", "n": "__int128", "o": "unsigned __int128",
    "f": "float", "d": "double", "e": "long double", "g": "__float128", "w": "wchar_t",
    "z": "...",
}  # fmt: skip
_BUILT_IN_D = {"Dn": "nullptr_t", "Dh": "_Float16", "Di": "char32_t", "Ds": "char16_t",
               "Du": "char8_t"}
_STANDARD = {"St": "std", "Sa": "std::allocator", "Sb": "std::basic_string", "Ss": "std::string",
             "Si": "std::istream", "So": "std::ostream", "Sd": "std::iostream"}
_UNNAMED = ("_GLOBAL__N_", "_INTERNAL_")
"""Prefixes of the compiler's names for unnamed namespaces."""


@dataclass(frozen=True)
class CType:
    """A type: its `name` with namespaces and its template `arguments`; for a pointer or a reference
    `name` is "*" or "&" and `target` the type referred to."""

    name: str
    target: CType | None = None
    const: bool = False
    arguments: tuple[CType, ...] = ()

    def __str__(self) -> str:
        if self.target is not None:
            return f"{self.target}{self.name}{' const' if self.const else ''}"
        arguments = f"<{', '.join(map(str, self.arguments))}>" if self.arguments else ""
        return f"{'const ' if self.const else ''}{self.name}{arguments}"


def read_variable(lowered: str) -> CType:
    """The type in the mangled name of a variable template's instance, as a type with arguments.
    Raises ValueError for another name, or for elements that no parameter's type has."""
    reader = _Reader(lowered.removeprefix("_Z"))
    found = reader.type()
    if not lowered.startswith("_Z") or reader.rest:
        raise ValueError(f"cannot read {lowered!r}")
    return found


class _Reader:
    """Reads a mangled text from left to right. `known` are the components that later ones may refer
    to by number."""

    def __init__(self, text: str) -> None:
        self.rest = text
        self.known: list[CType] = []

    def take(self, *words: str) -> str:
        """Consume and return the first of the words that comes next; "" if none does."""
        for word in words:
            if self.rest.startswith(word):
                self.rest = self.rest[len(word):]
                return word
        return ""

    def added(self, found: CType) -> CType:
        self.known.append(found)
        return found

    def type(self) -> CType:
        qualifiers = ""
        while word := self.take("r", "V", "K"):
            qualifiers += word
        if qualifiers:
            return self.added(replace(self.type(), const="K" in qualifiers))
        if word := self.take("P", "R", "O"):
            return self.added(CType("*" if word == "P" else "&", self.type()))
        if self.take("F"):
            return self.added(self._function())
        if self.take("A"):
            self._digits()
            self._expect("_")
            return self.added(CType("*", self.type()))
        if word := self.take(*_BUILT_IN_D):
            return CType(_BUILT_IN_D[word])
        if self.take("u"):
            return self.added(CType(self._source_name()))
        if self.take("N"):
            return self._nested()
        if self.rest[:1] in ("S", *"0123456789"):
            return self._with_arguments(self._unscoped())
        if word := self.take(*_BUILT_IN):
            return CType(_BUILT_IN[word])
        raise ValueError(f"cannot read a type at {self.rest!r}")

    def _function(self) -> CType:
        self.take("Y")
        while not self.take("E"):
            self.type()
        return CType("function")

    def _unscoped(self) -> CType:
        if self.rest.startswith("S"):
            found = self._substitution()
            if found.name != "std":
                return found
            return self.added(CType(f"std::{self._source_name()}"))
        return self.added(CType(self._source_name()))

    def _with_arguments(self, name: CType) -> CType:
        return self.added(replace(name, arguments=self._arguments())) if self.take("I") else name

    def _nested(self) -> CType:
        const = False
        while word := self.take("r", "V", "K"):
            const = const or word == "K"
        current: CType | None = None
        while not self.take("E"):
            if current is None and self.rest.startswith("S"):
                current = self._substitution()
            elif current is not None and self.take("I"):
                current = self.added(replace(current, arguments=self._arguments()))
            else:
                self.take("L")
                inner = self._source_name()
                parts = [str(current or ""), "" if inner.startswith(_UNNAMED) else inner]
                current = self.added(CType("::".join(filter(None, parts))))
        if current is None:
            raise ValueError("a nested name without parts")
        return self.added(replace(current, const=True)) if const else current

    def _arguments(self) -> tuple[CType, ...]:
        found: list[CType] = []
        while not self.take("E"):
            if self.take("J"):
                found += self._arguments()
            elif self.take("L"):
                kind = self.type()
                value = ("-" if self.take("n") else "") + self._digits()
                self._expect("E")
                found.append(CType({"0": "false", "1": "true"}[value] if kind.name == "bool"
                                   else value))
            else:
                found.append(self.type())
        return tuple(found)

    def _substitution(self) -> CType:
        if word := self.take(*_STANDARD):
            return CType(_STANDARD[word])
        self._expect("S")
        number, _, self.rest = self.rest.partition("_")
        place = int(number, 36) + 1 if number else 0
        if place >= len(self.known):
            raise ValueError(f"S{number}_ stands for nothing")
        return self.known[place]

    def _source_name(self) -> str:
        length = int(self._digits() or "0")
        if not 0 < length <= len(self.rest):
            raise ValueError(f"cannot read a name at {self.rest!r}")
        found, self.rest = self.rest[:length], self.rest[length:]
        return found

    def _digits(self) -> str:
        stripped = self.rest.lstrip("0123456789")
        found = self.rest[:len(self.rest) - len(stripped)]
        self.rest = stripped
        return found

    def _expect(self, word: str) -> None:
        if not self.take(word):
            raise ValueError(f"expected {word!r} at {self.rest!r}")
