"""The types that kernels take by value: their spellings in CUDA C, and their codes in Python's
`struct` and NumPy."""

from __future__ import annotations

import os
import re

_LONG = "i" if os.name == "nt" else "q"  # NVRTC follows the host's data model
FORMATS = {
    "bool": "?",
    "char": "b", "signed char": "b", "unsigned char": "B",
    "short": "h", "unsigned short": "H",
    "int": "i", "unsigned int": "I",
    "long": _LONG, "unsigned long": _LONG.upper(),
    "long long": "q", "unsigned long long": "Q",
    "float": "f", "double": "d",
    "size_t": "Q", "ptrdiff_t": "q", "intptr_t": "q", "uintptr_t": "Q",
    "int8_t": "b", "uint8_t": "B", "int16_t": "h", "uint16_t": "H",
    "int32_t": "i", "uint32_t": "I", "int64_t": "q", "uint64_t": "Q",
    "uint": "I", "ushort": "H", "ulong": _LONG.upper(),
    # Small floats are passed as their raw bits.
    "__half": "H", "half": "H", "__nv_bfloat16": "H", "nv_bfloat16": "H",
    "float16": "H", "bfloat16": "H", "float8_e4m3": "B", "float8_e5m2": "B",
    "__nv_fp8_e4m3": "B", "__nv_fp8_e5m2": "B",
    "TensorMap": "128s", "CUtensorMap": "128s",  # the result of cuTensorMapEncodeTiled
}  # fmt: skip
MAP_SIZE, MAP_ALIGNMENT = 128, 64
"""Bytes of a tensor map, and their alignment."""
MAP_SUFFIX = "_map"
"""`w_map` is the map of operand `w`."""
SIZES = {"?": 1, "b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "I": 4, "f": 4, "128s": MAP_SIZE}
"""Bytes by `struct` code; 8 for all others."""
QUALIFIERS = {
    "const", "volatile", "__restrict__", "__restrict", "restrict", "__grid_constant__",
    "struct", "class", "enum", "typename",
}  # fmt: skip
TYPE_WORDS = {"unsigned", "signed", "short", "long", "int", "char", "float", "double", "bool"}
_BLANK = re.compile(
    r'//(?:\\\n|[^\n])*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\''
    r"|^[ \t]*#(?:\\\n|/\*.*?\*/|[^\n])*",
    re.DOTALL | re.MULTILINE,
)


def code_of(text: str) -> str:
    """CUDA C `text` with its comments, strings and preprocessor lines replaced by spaces."""
    return _BLANK.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text.replace("\\\n", "  "))


_COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\')|//(?:\\\n|[^\n])*|/\*.*?\*/',
                      re.DOTALL)


def without_comments(text: str) -> str:
    """CUDA C `text` with a space for each comment."""
    return _COMMENT.sub(lambda match: match[1] or " ", text)


def type_words(text: str) -> list[str]:
    found = re.findall(r"[A-Za-z_][\w:]*(?:\s*<.*>)?", text, re.DOTALL)
    return [word for word in found if word not in QUALIFIERS]


def canonical(words: list[str]) -> str:
    """The type's words in a fixed order: "long unsigned int" -> "unsigned long"."""
    words = [word.removeprefix("std::") for word in words]
    if not words or not set(words) <= TYPE_WORDS:
        return " ".join(words)
    sign = "unsigned " if "unsigned" in words else ""
    if "char" in words:
        return "signed char" if "signed" in words else sign + "char"
    for base in ("bool", "float", "double", "short"):
        if base in words:
            return sign + base
    return sign + (" ".join(["long"] * words.count("long")) or "int")
