"""CUDA C++ text as the declarations of its namespaces and classes, found by matching brackets.

This is no compiler: it knows tokens, brackets, conditional directives and the head of a
declaration. That is enough to find where each function begins and ends. Text with unbalanced
brackets is refused as UnbalancedBrackets.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

_TOKEN = re.compile(
    r"""
    (?P<comment>//(?:\\\n|[^\n])*|/\*.*?(?:\*/|\Z))
  | (?P<directive>^[ \t]*\#(?:\\\n|/\*.*?\*/|//(?:\\\n|[^\n])*|[^\n])*)
  | (?P<string>(?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"
             | (?:u8|[uUL])?"(?:\\.|[^"\\\n])*")
  | (?P<char>(?:u8|[uUL])?'(?:\\.|[^'\\\n])+')
  | (?P<number>\.?\d(?:'?\w|[eEpP][+-]|\.)*)
  | (?P<word>[A-Za-z_$][\w$]*)
  | (?P<mark_>::|->|<<<|\S)
    """, re.VERBOSE | re.DOTALL | re.MULTILINE)
_OPENING = {"(": ")", "[": "]", "{": "}"}
_CLOSING = {closing: opening for opening, closing in _OPENING.items()}
_CONDITION = re.compile(r"[ \t]*#[ \t]*(if|ifdef|ifndef|elif|elifdef|elifndef|else|endif)\b"
                        r"[ \t]*([^\n]*)")
_DEFINED = re.compile(r"[ \t]*#[ \t]*define[ \t]+(\w+)")
_ASKED = re.compile(r"(!?)[ \t]*defined[ \t]*\(?[ \t]*(\w+)[ \t]*\)?")
_TRUE, _FALSE = ("1", "true"), ("0", "false")
_ALWAYS = {"__cplusplus", "__CUDACC__", "__NVCC__", "__linux__"}
"""Macros that nvcc defines on Linux."""
_ATTRIBUTES = {"__attribute__", "__align__", "alignas", "__declspec", "decltype", "noexcept",
               "__launch_bounds__", "__cluster_dims__", "__block_size__", "__maxnreg__", "explicit",
               "requires", "typeof", "__typeof__", "throw"}
"""Words whose parentheses are no list of parameters."""
_KEYS = {"class", "struct", "union", "enum"}
_ACCESS = {"public", "private", "protected"}
_NO_VARIABLES = {"using", "typedef", "namespace", "template", "friend", "static_assert", "asm"}


class UnbalancedBrackets(ValueError):
    """Brackets do not match; the message names the line."""


class Token(NamedTuple):
    """A token of `kind` word, number, string, char, mark or directive. In the head of a
    declaration, brackets with their content are one token of the kind "group"."""

    kind: str
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Declaration:
    """One declaration from `start` to `end` (offsets into the text).

    kind: function, prototype, type, variable or other.
    names, name: what it declares, and the first of these.
    head: its tokens outside of brackets, without a template's parameters.
    tokens: all of its tokens.
    members: the declarations of a class.
    """

    kind: str
    name: str
    names: frozenset[str]
    head: tuple[Token, ...]
    tokens: Sequence[Token]
    start: int
    end: int
    template: bool = False
    members: tuple[Declaration, ...] = field(default=())

    @cached_property
    def words(self) -> frozenset[str]:
        """All words in the declaration."""
        return frozenset(token.text for token in self.tokens if token.kind == "word")

    @cached_property
    def head_words(self) -> frozenset[str]:
        """The words of its head."""
        return frozenset(token.text for token in self.head if token.kind == "word")


class Unit:
    """A text in parts: its `declarations` in order, including those in namespaces and `extern "C"`
    blocks; its preprocessor `directives`; `tokens` without comments and directives.

    All branches of a conditional directive are read if the brackets of each match, otherwise only
    the first. A single branch is read unless the text shows that its condition is false, as with
    `#if 0`. Raises UnbalancedBrackets.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._lines = [match.start() for match in re.finditer("\n", text)]
        found = [Token(match.lastgroup or "", match[0], *match.span())
                 for match in _TOKEN.finditer(text)]
        found = [Token("mark" if token.kind == "mark_" else token.kind, *token[1:])
                 for token in found if token.kind != "comment"]
        self.directives = [token for token in found if token.kind == "directive"]
        defined = {match[1] for token in self.directives if (match := _DEFINED.match(token.text))}
        self.tokens = _Conditions(iter(found), defined | _ALWAYS).read()
        self._closing = self._matched()
        self.declarations = list(self._scope(0, len(self.tokens), ""))

    def line(self, offset: int) -> int:
        """The line of an offset, from 1."""
        return bisect_right(self._lines, offset - 1) + 1

    def _matched(self) -> dict[int, int]:
        """The closing bracket of every opening one, by index into the tokens."""
        matched: dict[int, int] = {}
        opened: list[int] = []
        for index, token in enumerate(self.tokens):
            if token.text in _OPENING:
                opened.append(index)
            elif token.text in _CLOSING and token.kind == "mark":
                if not opened or self.tokens[opened[-1]].text != _CLOSING[token.text]:
                    raise UnbalancedBrackets(f"the '{token.text}' on line "
                                             f"{self.line(token.start)} closes nothing")
                matched[opened.pop()] = index
        if opened:
            token = self.tokens[opened[-1]]
            raise UnbalancedBrackets(f"the '{token.text}' on line {self.line(token.start)} is "
                                     f"never closed")
        return matched

    def _scope(self, index: int, end: int, owner: str) -> Iterator[Declaration]:
        """The declarations of a namespace, or of the class `owner`."""
        while index < end:
            inner = self._inner(index, end)
            if inner is not None:
                yield from self._scope(inner + 1, self._closing[inner], owner)
                index = self._closing[inner] + 1
            else:
                declaration, index = self._declaration(index, end, owner)
                yield declaration

    def _inner(self, index: int, end: int) -> int | None:
        """Index of the brace that opens a namespace or an `extern "C"` block here."""
        texts = [token.text for token in self.tokens[index : index + 2]]
        if texts[:1] == ["extern"] and texts[1:] in (['"C"'], ['"C++"']):
            brace = index + 2
            return brace if brace < end and self.tokens[brace].text == "{" else None
        if "namespace" not in texts or texts[0] not in ("namespace", "inline"):
            return None
        while index < end and self.tokens[index].text not in ("{", ";", "="):
            index = self._closing.get(index, index) + 1
        return index if index < end and self.tokens[index].text == "{" else None

    def _declaration(self, index: int, end: int, owner: str) -> tuple[Declaration, int]:
        """The declaration that begins here, and the index after it."""
        first, tokens = index, self.tokens
        template = False
        head: list[Token] = []
        assigned = initialises = False
        body: tuple[int, int] | None = None

        def ended(last: int, kind: str = "other") -> tuple[Declaration, int]:
            return self._declare(first, last, head, kind, owner, template, body), last + 1

        while [token.text for token in tokens[index : index + 2]] == ["template", "<"]:
            index, template = (self._angle(index + 1, end) or index + 1) + 1, True
        while index < end:
            token = tokens[index]
            if token.text == ";" and token.kind == "mark":
                return ended(index, "type" if body else "other")
            if token.text == "{" and not assigned:
                closing = self._closing[index]
                if body is None and _is_class(head):
                    body = index, closing
                elif body is None and _parameters(head) is not None:
                    if not (initialises and (head[-1].kind == "word" or head[-1].text == "<")):
                        return ended(self._after_handlers(closing, end), "function")
                elif closing + 1 < end and tokens[closing + 1].text not in (";", ",") and (
                        self._is_line_end(closing)):
                    return ended(closing)
                head.append(Token("group", "{", token.start, tokens[closing].end))
                index = closing + 1
            elif token.text in _OPENING:
                index = self._append_group(head, index)
                if len(head) == 2 and self._is_macro_call(head, index, end, owner):
                    return ended(index - 1)
            elif token.text == "<" and not assigned and head and head[-1].text != "operator" and (
                    (angle := self._angle(index, end)) is not None):
                head.append(Token("group", "<", token.start, tokens[angle].end))
                index = angle + 1
            else:
                if token.text == "=" and "operator" not in [each.text for each in head[-2:]]:
                    assigned = True
                elif token.text == ":" and not assigned:
                    if owner and head and head[0].text in _ACCESS:
                        return ended(index)
                    initialises = _parameters(head) is not None
                head.append(token)
                index += 1
        return ended(end - 1)

    def _append_group(self, head: list[Token], index: int) -> int:
        """Append the brackets that open here to the head as one token; the index after them."""
        token, closing = self.tokens[index], self._closing[index]
        end = self.tokens[closing].end
        if token.text == "(" and head and head[-1].text == "operator":
            head.append(Token("mark", "()", token.start, end))
        else:
            is_pointer = token.text == "(" and self.tokens[index + 1].text in ("*", "&", "^")
            head.append(Token("group", "(*" if is_pointer else token.text, token.start, end))
        return closing + 1

    def _after_handlers(self, closing: int, end: int) -> int:
        """Index of the last brace of a function, whose body may be followed by `catch`."""
        while closing + 1 < end and self.tokens[closing + 1].text == "catch":
            closing = self._closing[self._closing[closing + 2] + 1]
        return closing

    def _is_line_end(self, index: int) -> bool:
        return "\n" in self.text[self.tokens[index].end : self.tokens[index + 1].start]

    def _is_macro_call(self, head: Sequence[Token], index: int, end: int, owner: str) -> bool:
        """Whether `NAME(...)` that ends here is a statement: a macro that needs no semicolon."""
        name = head[0]
        return (index < end and head[1].text == "(" and bool(re.fullmatch("[A-Z][A-Z0-9_]+",
                                                                          name.text))
                and name.text != owner and self.tokens[index].kind == "word"
                and self._is_line_end(index - 1))

    def _declare(self, first: int, last: int, head: Sequence[Token], kind: str, owner: str,
              template: bool, body: tuple[int, int] | None = None) -> Declaration:
        tokens = self.tokens[first : last + 1]
        parameters = _parameters(head)
        names: list[str] = []
        members: tuple[Declaration, ...] = ()
        if kind == "type" and body is not None:
            brace = next(n for n, token in enumerate(head) if token.text == "{")
            names = [_class_name(head[:brace]), *self._declared(head[brace:])]
            if "enum" in [token.text for token in head]:
                names += [token.text for token in self.tokens[body[0] : body[1]]
                          if token.kind == "word"]
            else:
                members = tuple(self._scope(body[0] + 1, body[1], names[0] or "(unnamed)"))
        elif kind == "function" or (parameters is not None and _is_prototype(head, parameters,
                                                                             owner)):
            kind = kind if kind == "function" else "prototype"
            names = [_function_name(head, parameters or 0)]
        elif head:
            names = self._declared(head)
            if kind == "other" and len(head) > 1 and parameters != 1 and (
                    head[0].text not in (*_NO_VARIABLES, *_KEYS, *_ACCESS)):
                kind = "variable"
        names = [name for name in names if name]
        return Declaration(kind, names[0] if names else "", frozenset(names), tuple(head), tokens,
                           tokens[0].start, tokens[-1].end, template, members)

    def _declared(self, head: Sequence[Token]) -> list[str]:
        """The names of variables or of an alias: the last word before an initialiser or extents, or
        in the parentheses of a pointer to a function, and the first one after each comma."""
        names, name, wanted = [], "", True
        for token in head:
            if token.text == ",":
                names.append(name)
                name, wanted = "", True
            elif wanted and token.text == "(*":
                inner = re.match(r"\([\s*&^]*(?:const\b\s*)?(\w*)", self.text[token.start :])
                name, wanted = inner[1] if inner else "", False
            elif wanted and token.text in ("=", "[", "(", ":"):
                wanted = False
            elif wanted and token.kind == "word":
                name = token.text
        return [*names, name]

    def _angle(self, index: int, end: int) -> int | None:
        """Index of the `>` that closes the `<` here; None for a comparison."""
        depth = 0
        while index < end:
            text = self.tokens[index].text
            if text == "<":
                depth += 1
            elif text == ">":
                depth -= 1
                if not depth:
                    return index
            elif text in (";", "{", "<<<"):
                return None
            index = self._closing.get(index, index) + 1
        return None


class _Conditions:
    """Reads tokens past conditional directives; `defined` are the known macros."""

    def __init__(self, tokens: Iterator[Token], defined: set[str]) -> None:
        self._tokens, self._defined = tokens, defined

    def read(self) -> list[Token]:
        """The tokens without directives and without the text that these exclude."""
        return self._branch()[0]

    def _branch(self) -> tuple[list[Token], str, str]:
        """The tokens up to the directive that ends this branch, its name, and its condition."""
        found: list[Token] = []
        for token in self._tokens:
            if token.kind != "directive":
                found.append(token)
            elif condition := _CONDITION.match(token.text):
                name, asked = condition[1], condition[2].split("//")[0].strip()
                if not name.startswith("if"):
                    return found, name, asked
                branches: list[tuple[bool | None, list[Token]]] = []
                is_decided = False
                while name not in ("endif", ""):
                    inner, following, next_asked = self._branch()
                    if not (is_decided or asked in _FALSE):
                        branches.append((self._is_true(name, asked), inner))
                    is_decided = is_decided or asked in _TRUE
                    name, asked = following, next_asked
                found += _chosen(branches)
        return found, "", ""

    def _is_true(self, name: str, asked: str) -> bool | None:
        """Whether a condition holds, as far as the text shows."""
        if name == "else":
            return True
        if name in ("ifdef", "ifndef", "elifdef", "elifndef"):
            return (asked in self._defined) == name.endswith("fdef")
        match = _ASKED.fullmatch(asked)
        return None if match is None else (match[2] in self._defined) != bool(match[1])


def _chosen(branches: Sequence[tuple[bool | None, list[Token]]]) -> list[Token]:
    """The tokens to read of a conditional directive's branches."""
    if all(_is_balanced(tokens) for _, tokens in branches):
        return [token for _, tokens in branches for token in tokens]
    # Only one contiguous text can be read, so that the first of several branches is used.
    return branches[0][1] if len(branches) > 1 or branches[0][0] is not False else []


def _is_balanced(tokens: Sequence[Token]) -> bool:
    opened: list[str] = []
    for token in tokens:
        if token.text in _OPENING:
            opened.append(token.text)
        elif token.text in _CLOSING and (not opened or opened.pop() != _CLOSING[token.text]):
            return False
    return not opened


def _parameters(head: Sequence[Token]) -> int | None:
    """Index of the parentheses that may be a list of parameters: the first after a word that is no
    attribute; if that word begins the declaration, as a macro does, the second."""
    found: list[int] = []
    for index, token in enumerate(head):
        operator = any(each.text == "operator" for each in head[max(0, index - 2) : index])
        if not operator and token.text in ("=", ":"):
            break
        if token.kind == "group" and token.text == "(" and index and (
                head[index - 1].text not in _ATTRIBUTES):
            found.append(index)
    return None if not found else found[1] if found[0] == 1 and len(found) > 1 else found[0]


def _is_class(head: Sequence[Token]) -> bool:
    keys = [index for index, token in enumerate(head) if token.text in _KEYS]
    return bool(keys) and _parameters(head[keys[0]:]) is None


def _is_prototype(head: Sequence[Token], parameters: int, owner: str) -> bool:
    """Whether a declaration that ends in a semicolon declares a function."""
    if head[0].text in _NO_VARIABLES - {"template", "friend"}:
        return False
    before = head[parameters - 1]
    if before.kind == "group" and before.text in ("(", "(*", "["):
        return False
    named = _function_name(head, parameters)
    return parameters > 1 or named == owner


def _function_name(head: Sequence[Token], parameters: int) -> str:
    texts = [token.text for token in head[:parameters]]
    if "operator" in texts:
        return "operator"
    words = [token.text for token in head[:parameters] if token.kind == "word"]
    return words[-1] if words else ""


def _class_name(head: Sequence[Token]) -> str:
    """The word before the body, base classes and template arguments."""
    name, key = "", False
    for index, token in enumerate(head):
        if token.text in _KEYS:
            key = True
        elif key and token.kind == "word" and token.text not in ("final", *_ATTRIBUTES):
            name = token.text
        elif key and token.text in (":", "<") and head[index - 1].text not in _KEYS:
            break
    return name
