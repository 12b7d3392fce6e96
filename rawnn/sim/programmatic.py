"""What a kernel does about its programmatic edges, read from its CUDA source.

A consumer waits for its producers with cudaGridDependencySynchronize() (PTX: griddepcontrol.wait),
a producer lets its consumers begin early with cudaTriggerProgrammaticLaunchCompletion() (PTX:
griddepcontrol.launch_dependents). CUDA C++ Programming Guide, "Programmatic Dependent Launch".
pdl_wait() and pdl_trigger() of rawnn/ptx/pdl.cuh are these where RAWNN_PDL is defined, else
nothing.
"""

from __future__ import annotations

import re
from functools import lru_cache

_WAIT = r"cudaGridDependencySynchronize|griddepcontrol\s*\.\s*wait"
_TRIGGER = r"cudaTriggerProgrammaticLaunchCompletion|griddepcontrol\s*\.\s*launch_dependents"
_MACROS = re.compile(r"\bpdl_(wait|trigger)\s*\(\s*\)")
_MEANINGS = {"wait": "cudaGridDependencySynchronize()",
             "trigger": "cudaTriggerProgrammaticLaunchCompletion()"}
_LEFT_OUT = re.compile(r"//[^\n]*|/\*.*?\*/|^[ \t]*#[^\n]*", re.DOTALL | re.MULTILINE)
# What may stand before the call in a statement that is nothing but the call.
_ALONE = re.compile(r'\s*(?:::\s*|asm\s*(?:(?:__)?volatile(?:__)?\s*)?\(\s*"\s*)?')
_NAME = re.compile(r"\b(?!(?:if|for|while|switch)\b)([A-Za-z_]\w*)\s*(?:<[\w\s,:]*>)?\s*\(")
_CLOSING = {"(": ")", "{": "}"}


@lru_cache(256)
def waits(source: str, kernel: str, defined: bool = False) -> bool:
    """Whether every thread of the kernel waits for its producers: the wait is a statement of its
    own at the top level of the body, or of a function called from there so, with no `return`
    ahead of it. A wait under a condition does not count. `defined` says whether RAWNN_PDL is."""
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
            body = _body(text, name)
            if re.search(_TRIGGER, body):
                return True
            todo += _NAME.findall(body)
    return False


def _text(source: str, defined: bool) -> str:
    """The source without comments and directives, and with the macros' meanings."""
    return _MACROS.sub(lambda found: _MEANINGS[found[1]] if defined else "",
                       _LEFT_OUT.sub("", source))


def _always_waits(text: str, function: str, callers: tuple[str, ...]) -> bool:
    body = _body(text, function)
    for call in re.finditer(rf"{_WAIT}|{_NAME.pattern}", body):
        before = body[:call.start()]
        if re.search(r"\breturn\b", before):
            return False
        start = max(before.rfind(mark) for mark in ";{}") + 1
        if before.count("{") - before.count("}") != 1 or not _ALONE.fullmatch(before[start:]):
            continue
        if re.match(_WAIT, call[0]):
            return True
        name = call[1]
        if name not in (*callers, function) and _always_waits(text, name, (*callers, function)):
            return True
    return False


def _body(text: str, function: str) -> str:
    """The braces of the function's definition with what is in them; "" where it has none here."""
    for found in re.finditer(rf"\b{function}\s*\(", text):
        end = _matching(text, found.end() - 1)
        opening = re.compile(r"\s*\{").match(text, end)
        if opening:
            return text[opening.end() - 1:_matching(text, opening.end() - 1)]
    return ""


def _matching(text: str, at: int) -> int:
    """Index behind the bracket that closes the one at `at`."""
    opening, closing, depth = text[at], _CLOSING[text[at]], 0
    for index in range(at, len(text)):
        depth += (text[index] == opening) - (text[index] == closing)
        if not depth:
            return index + 1
    return len(text)
