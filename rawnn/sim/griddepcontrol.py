"""What a kernel does about its programmatic edges, read from its CUDA source and headers.

A consumer waits for its producers with cudaGridDependencySynchronize() (PTX: griddepcontrol.wait);
a producer lets its consumers begin early with cudaTriggerProgrammaticLaunchCompletion() (PTX:
griddepcontrol.launch_dependents). CUDA C++ Programming Guide, "Programmatic Dependent Launch".
pdl_wait() and pdl_trigger() of rawnn/ptx/primitives/pdl.cuh are these calls if RAWNN_PDL is
defined, otherwise empty.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from functools import lru_cache

_WAIT = r"cudaGridDependencySynchronize|griddepcontrol\s*\.\s*wait"
_TRIGGER = r"cudaTriggerProgrammaticLaunchCompletion|griddepcontrol\s*\.\s*launch_dependents"
_MACROS = re.compile(r"\bpdl_(wait|trigger)\s*\(\s*\)")
_MEANINGS = {"wait": "cudaGridDependencySynchronize()",
             "trigger": "cudaTriggerProgrammaticLaunchCompletion()"}
_LEFT_OUT = re.compile(r"//[^\n]*|/\*.*?\*/|^[ \t]*#(?:\\\n|[^\n])*", re.DOTALL | re.MULTILINE)
_NAMED = re.compile(r"(::|\.|->)\s*template\b\s*")
_STRING = re.compile(r'"(?:\\.|[^"\\\n])*"')
_WORD = re.compile(r"(?:if|else|for|while|switch|do|return)\b")
_NAME = re.compile(r"\b(?!(?:if|for|while|switch)\b)([A-Za-z_]\w*)\s*(?:<[\w\s,:]*>)?\s*\(")
_CALL = re.compile(r"(?:[\w:]+\s*(?:\.|->)\s*)?(?:::)?(?:\w+\s*::\s*)*([A-Za-z_]\w*)"
                   r"\s*(?:<[\w\s,:]*>)?\s*(?=\()")
"""A call, such as f(x), a::f<3>(x) or object.f(x), up to its parenthesis."""
_LAST_WORD = re.compile(r"([A-Za-z_]\w*)\s*\Z")
_BODY = re.compile(r"\s*(?:(?:const|noexcept)\s*)*(?=\{)")
_EITHER = {"(": re.compile(r"[()]"), "{": re.compile(r"[{}]"), "[": re.compile(r"[\[\]]")}


class _Path(Enum):
    """What every thread that reaches a statement has done before it."""

    GOES_ON = auto()
    WAITS = auto()
    LEAVES = auto()  # some thread may have returned without waiting


@lru_cache(256)
def waits(source: str, kernel: str, defined: bool = False) -> bool:
    """Whether every thread of the kernel waits for its producers: each path through its body has a
    wait, or a call of a function or method that always waits, before any `return`. A conditional
    wait counts if both branches wait, or if the branch without one continues to another wait.
    `source` is the kernel's with its headers; `defined` says whether RAWNN_PDL is."""
    return _always_waits(_text(source, defined), kernel, ())


@lru_cache(256)
def triggers(source: str, kernel: str, defined: bool = False) -> bool:
    """Whether the kernel, or a function that it calls, may let its consumers begin before it
    ends."""
    text = _text(source, defined)
    todo, seen = [kernel], set[str]()
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            for start, end in _bodies(text, name):
                if re.search(_TRIGGER, text[start:end]):
                    return True
                todo += _NAME.findall(text, start, end)
    return False


@lru_cache(32)
def _text(source: str, defined: bool) -> str:
    """The source without comments, directives, irrelevant strings and the keyword `template` of
    LOOP::template multiply<...>(), with the macros expanded."""
    text = _STRING.sub(lambda found: found[0] if "griddepcontrol" in found[0] else '""',
                       _LEFT_OUT.sub("", source))
    text = _NAMED.sub(r"\1", text)
    return _MACROS.sub(lambda found: _MEANINGS[found[1]] if defined else "", text)


def _always_waits(text: str, function: str, callers: tuple[str, ...]) -> bool:
    """Whether all functions of that name wait: a method's call is not resolved further."""
    bodies = _bodies(text, function)
    callers = (*callers, function)
    return bool(bodies) and all(_block(text, start, callers)[0] is _Path.WAITS
                                for start, _ in bodies)


def _block(text: str, at: int, callers: tuple[str, ...]) -> tuple[_Path, int]:
    """The effect of the statements in the braces at `at`, and the index after them."""
    end = _matching(text, at)
    found, at = _Path.GOES_ON, at + 1
    while found is _Path.GOES_ON:
        at = _next(text, at)
        if at >= end - 1:
            break
        found, at = _statement(text, at, callers)
    return found, end


def _statement(text: str, at: int, callers: tuple[str, ...]) -> tuple[_Path, int]:
    if text[at] == "{":
        return _block(text, at, callers)
    word = _WORD.match(text, at)
    if word is None or word[0] == "return":
        end = _end_of_simple(text, at)
        if word:
            return _Path.LEAVES, end
        return (_Path.WAITS if _is_wait(text, at, end, callers) else _Path.GOES_ON), end
    if word[0] in ("do", "else"):
        return _statement(text, _next(text, word.end()), callers)
    behind = _next(text, _matching(text, text.index("(", at)))
    found, end = _statement(text, behind, callers)
    other, following = _Path.GOES_ON, _next(text, end)
    if word[0] == "if" and re.compile(r"else\b").match(text, following):
        other, end = _statement(text, following, callers)
    if found is other:
        return found, end
    return (_Path.LEAVES if _Path.LEAVES in (found, other) else _Path.GOES_ON), end


def _is_wait(text: str, at: int, end: int, callers: tuple[str, ...]) -> bool:
    """Whether a simple statement is a wait, or a call of a function that always waits."""
    statement = text[at:end]
    if re.match(r"asm\b", statement):
        return re.search(_WAIT, statement) is not None
    call = _CALL.match(text, at, end)
    if call is None or text[_matching(text, call.end()):end].strip(" \t\n;"):
        return False
    name = call[1]
    return re.fullmatch(_WAIT, name) is not None or (
        name not in callers and _always_waits(text, name, callers))


def _next(text: str, at: int) -> int:
    """Index of the next character that is no space."""
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _end_of_simple(text: str, at: int) -> int:
    """Index after a statement that ends in a semicolon."""
    while at < len(text) and text[at] not in ";}":
        at = _matching(text, at) if text[at] in _EITHER else at + 1
    return at + (text[at:at + 1] == ";")


def _bodies(text: str, function: str) -> list[tuple[int, int]]:
    """Begin and end of the braces of each definition of a function."""
    return _definitions(text).get(function, [])


@lru_cache(32)
def _definitions(text: str) -> dict[str, list[tuple[int, int]]]:
    """By name, begin and end of the braces after a name and its parentheses."""
    found: dict[str, list[tuple[int, int]]] = {}
    opened: list[int] = []
    for bracket in re.finditer(r"[()]", text):
        if bracket[0] == "(":
            opened.append(bracket.start())
        elif opened:
            start = opened.pop()
            body = _BODY.match(text, bracket.end())
            name = body and _LAST_WORD.search(text[max(start - 80, 0):start])
            if body and name:
                at = body.end()
                found.setdefault(name[1], []).append((at, _matching(text, at)))
    return found


def _matching(text: str, at: int) -> int:
    """Index after the bracket that closes the one at `at`."""
    opening, depth = text[at], 0
    for found in _EITHER[opening].finditer(text, at):
        depth += 1 if found[0] == opening else -1
        if not depth:
            return found.end()
    return len(text)
