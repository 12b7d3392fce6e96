"""Splits CUDA C text at its brackets and names: kernel declarators, lists, namespaces. The text
must be free of comments, strings and preprocessor lines (c_types.code_of)."""

from __future__ import annotations

import re

from rawnn.common.errors import ConfigError

WORD = re.compile(r"[A-Za-z_]\w*")
_OPEN, _CLOSE = "(<[{", ")>]}"
_EXPRESSION = re.compile(r"\s*(?:::)?\s*([A-Za-z_]\w*(?:\s*::\s*[A-Za-z_]\w*)*)\s*(?:<(.*)>)?\s*",
                         re.DOTALL)
_NAMESPACE = re.compile(r"\b(inline\s+)?namespace\b\s*"
                        r"((?:\w+(?:\s*::\s*(?:inline\s+)?\w+)*)?)\s*\{")
_BRACE = re.compile(r"[{}]")


def closing(text: str, start: int) -> int:
    """Index of the bracket that closes the one at `start`. Inside parentheses `<` and `>` may be
    comparisons, so that they count only outside."""
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


def split(text: str) -> list[str]:
    """`text` split at commas outside all brackets; empty text has no parts."""
    parts, begin, index = [], 0, 0
    while index < len(text):
        if text[index] in _OPEN:
            index = closing(text, index)
        elif text[index] == ",":
            parts.append(text[begin:index].strip())
            begin = index + 1
        index += 1
    last = text[begin:].strip()
    return [*parts, last] if parts or last else []


def split_expression(expression: str) -> tuple[str, list[str]]:
    """(name, template arguments) of "a::softmax<float>". Raises ConfigError for other text."""
    match = _EXPRESSION.fullmatch(expression)
    if match is None:
        raise ConfigError(f"'{expression}' is not a kernel name such as softmax<float>")
    return re.sub(r"\s", "", match[1]), [" ".join(part.split()) for part in split(match[2] or "")]


def declarator(text: str, index: int) -> tuple[str, int, int] | None:
    """(name, start, end) of a kernel and its parameter list. Reads from `__global__` over the
    return type and attributes. None for an explicit specialisation."""
    while True:
        match = WORD.search(text, index)
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
            end = closing(text, index)
            if not attribute:
                return match[0], index + 1, end
            index = end + 1


def namespaces(text: str) -> list[tuple[int, int, str]]:
    """(begin, end, name) of every namespace, outer ones first; "" for one that names may omit."""
    found = []
    for match in _NAMESPACE.finditer(text):
        depth, end = 1, match.end()
        while depth and (brace := _BRACE.search(text, end)):
            depth, end = depth + (1 if brace[0] == "{" else -1), brace.end()
        name = "" if match[1] else re.sub(r"\binline\b|\s", "", match[2])
        found.append((match.end(), len(text) if depth else end, name))
    return found
