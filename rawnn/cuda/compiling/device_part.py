"""The device part of CUDA files that also have host code.

What NVRTC cannot compile is replaced by blanks, so that line numbers stay valid: functions without
`__device__` or `__global__`, host variables, and types, aliases and constants that no device code
mentions. Kernels that launch others from the device are left out, too, by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rawnn.cuda.compiling.declarations import Declaration, Token, Unit
from rawnn.cuda.compiling.translation import DYNAMIC, Omission

_DEVICE = frozenset({"__global__", "__device__", "__constant__", "__shared__", "__managed__"})
_DEFINE = re.compile(r"[ \t]*#[ \t]*define[ \t]+([A-Za-z_]\w*)(.*)", re.DOTALL)
_DROPPED = re.compile(r"[ \t]*#[ \t]*(?:include|import|pragma|line)\b")
_WORD = re.compile(r"[A-Za-z_]\w*")
_LEGACY = {"texture", "surface"}


@dataclass(frozen=True)
class LaunchSite:
    """A launch in the source: its `expression` ("scale<float, 256>") as written, its line."""

    kernel: str
    expression: str
    line: int


@dataclass(frozen=True)
class DevicePart:
    """The texts by file name, with blanks for what was left out; `namespaces` are those that `using
    namespace` names."""

    texts: dict[str, str]
    left_out: tuple[Omission, ...]
    namespaces: tuple[str, ...]


def find_device_part(texts: Mapping[str, str], wanted: Iterable[str] = ()) -> DevicePart:
    """The device part of a source and of the project's headers that it includes, by file name (""
    for the source). Types that the name expressions `wanted` or host launches mention are included.

    Raises UnbalancedBrackets for a text whose brackets do not match.
    """
    units = {file: Unit(text) for file, text in texts.items()}
    return _Selection(units, {word for text in wanted for word in _WORD.findall(text)}).part()


def find_launches(text: str) -> tuple[LaunchSite, ...]:
    """The launches `kernel<arguments><<<...>>>` of a text, each expression once. Raises
    UnbalancedBrackets."""
    unit = Unit(text)
    found: dict[str, LaunchSite] = {}
    for index, token in enumerate(unit.tokens):
        if token.text != "<<<" or not index:
            continue
        first = last = index - 1
        if unit.tokens[last].text == ">":
            depth = 0
            while first >= 0:
                depth += {">": 1, "<": -1}.get(unit.tokens[first].text, 0)
                first -= 1
                if not depth:
                    break
        if first < 0 or unit.tokens[first].kind != "word":
            continue
        kernel = unit.tokens[first]
        expression = " ".join(text[kernel.start : unit.tokens[last].end].split())
        found.setdefault(expression,
                         LaunchSite(kernel.text, expression, unit.line(kernel.start)))
    return tuple(found.values())


def find_dynamic_kernels(text: str) -> dict[str, int]:
    """The functions of a text that launch kernels from the device, or call one that does, with the
    lines where they begin. Raises UnbalancedBrackets."""
    unit = Unit(text)
    dynamic = _Selection({"": unit}, set()).dynamic
    return {each.name: unit.line(each.start) for each in unit.declarations if id(each) in dynamic}


class _Selection:
    """Selects the device's declarations from several texts, which are read as one."""

    def __init__(self, units: dict[str, Unit], wanted: set[str]) -> None:
        self.units = units
        self.macros: dict[str, set[str]] = {}
        for unit in units.values():
            for directive in unit.directives:
                if found := _DEFINE.match(directive.text):
                    self.macros.setdefault(found[1], set()).update(_WORD.findall(found[2]))
        self.markers = _expanding(self.macros, _DEVICE)
        self.all = [(file, each) for file, unit in units.items() for each in unit.declarations]
        self.dynamic = self._dynamic()
        self.device = {each.name for _, each in self.all if self._is_device(each)}
        launched = {word for unit in units.values() for word in _launch_words(unit)}
        self.reached = self._reach(wanted | launched)
        self.lacking: set[str] = set()

    def _is_device(self, declaration: Declaration) -> bool:
        return bool(self.markers & declaration.head_words) or (
            declaration.kind == "variable" and bool(_LEGACY & declaration.head_words))

    def _dynamic(self) -> set[int]:
        """Device functions that contain a launch, and those that call them, by id."""
        found: set[int] = set()
        names: set[str] = set()
        functions = [each for _, each in self.all if each.kind == "function"
                     and self._is_device(each)]
        while True:
            more = [each for each in functions if id(each) not in found and (
                any(token.text == "<<<" for token in each.tokens) or names & each.words)]
            if not more:
                return found
            found |= {id(each) for each in more}
            names |= {each.name for each in more}

    def _reach(self, words: set[str]) -> set[str]:
        """All words of device code, of the declarations that these words name, and so on."""
        waiting = []
        for _, each in self.all:
            if self._is_device(each) and id(each) not in self.dynamic:
                words |= each.words
            elif self._is_candidate(each):
                waiting.append((each.names, set(_words(each, self))))
        waiting += [(frozenset([name]), used) for name, used in self.macros.items()]
        while True:
            reached = [used for names, used in waiting if names & words]
            if not reached:
                return words
            waiting = [(names, used) for names, used in waiting if not names & words]
            words = words.union(*reached)

    def _is_candidate(self, each: Declaration) -> bool:
        """Whether it belongs to the device part if device code mentions it."""
        if self._is_device(each):
            return False
        head = each.head_words
        if each.kind in ("function", "prototype"):
            guide = any(token.text == "->" for token in each.head[:3]) and each.kind == "prototype"
            return bool({"constexpr", "consteval"} & head) or guide
        if each.kind == "variable":
            return bool({"const", "constexpr", "constinit"} & head)
        return each.kind == "type" or bool(each.names)

    def part(self) -> DevicePart:
        """The texts that remain."""
        blanks: dict[str, list[Declaration]] = {file: [] for file in self.units}
        left: list[Omission] = []
        spaces: set[str] = set()
        late: list[tuple[str, Declaration]] = []
        for file, each in self.all:
            begin = [token.text for token in each.tokens[:2]]
            if begin == ["using", "namespace"]:
                spaces.add("".join(token.text for token in each.tokens[2:-1]))
            elif begin[:1] == ["static_assert"] or (each.kind == "other" and each.name
                                                    and len(each.head) <= 2):
                late.append((file, each))
            elif what := self._left_out(each):
                self._leave(file, each, what, blanks, left)
            elif each.kind == "type":
                for member in self._host_members(each):
                    self._leave(file, member, f"function {each.name}::", blanks, left)
        for file, each in late:  # a macro call or assertion goes with what it mentions
            if self.lacking & (each.words | self._expanded(each)):
                self._leave(file, each, "statement", blanks, left)
        texts = {file: _blanked(unit, blanks[file]) for file, unit in self.units.items()}
        return DevicePart(texts, tuple(left), tuple(sorted(spaces)))

    def _expanded(self, each: Declaration) -> set[str]:
        return set().union(*(self.macros.get(word, ()) for word in each.words))

    def _left_out(self, each: Declaration) -> str:
        """What messages call it if it is left out; "" if it stays."""
        if self._is_device(each):
            return "function" if id(each) in self.dynamic else ""
        if self._is_candidate(each):
            used = each.names & self.reached
            known = {"variable": "constant", "other": "declaration"}.get(each.kind, each.kind)
            return "" if used or not each.names else known
        if each.kind in ("function", "prototype"):
            is_instance = each.head[0].text == "template" and each.name in self.device
            return "" if is_instance else "function"
        return "variable" if each.kind == "variable" else ""

    def _leave(self, file: str, each: Declaration, what: str,
               blanks: dict[str, list[Declaration]], left: list[Omission]) -> None:
        unit = self.units[file]
        blanks[file].append(each)
        if each.kind in ("function", "prototype", "variable", "type"):
            self.lacking |= each.names
        name = each.name if what != "statement" else each.tokens[0].text
        kind, _, owner = what.partition(" ")
        left.append(Omission(kind, owner + name, file, unit.line(each.start),
                            unit.line(each.end - 1), DYNAMIC if id(each) in self.dynamic else ""))

    def _host_members(self, each: Declaration) -> Iterator[Declaration]:
        """Host-only functions of a class. A class with virtual functions keeps all of them, because
        they determine its layout."""
        if any("virtual" in member.head_words for member in each.members):
            return
        for member in each.members:
            if member.kind == "type":
                yield from self._host_members(member)
            elif member.kind in ("function", "prototype") and not self._is_device(member) and not (
                    {"constexpr", "consteval", "default", "delete"} & member.head_words):
                yield member


def _words(each: Declaration, selection: _Selection) -> Iterator[str]:
    """The words of the remaining part of a declaration."""
    dropped = list(selection._host_members(each)) if each.kind == "type" else []
    for token in each.tokens:
        if token.kind == "word" and not any(m.start <= token.start < m.end for m in dropped):
            yield token.text


def _expanding(macros: Mapping[str, set[str]], words: frozenset[str]) -> set[str]:
    """The macros that expand to one of the words, directly or through others, and the words."""
    found = set(words)
    while more := {name for name, used in macros.items() if used & found} - found:
        found |= more
    return found


def _launch_words(unit: Unit) -> Iterator[str]:
    """The words of template arguments of launches."""
    depth = 0
    for index in range(len(unit.tokens) - 1, 0, -1):
        text = unit.tokens[index].text
        if depth or (text == ">" and unit.tokens[index + 1 : index + 2]
                     and unit.tokens[index + 1].text == "<<<"):
            depth += {">": 1, "<": -1}.get(text, 0)
            if text in (";", "{"):
                depth = 0
            elif unit.tokens[index].kind == "word":
                yield text


def _blanked(unit: Unit, declarations: Sequence[Declaration]) -> str:
    """The text with spaces for declarations. Directives within them stay, because later lines may
    depend on them, except those that include text or change settings."""
    if not declarations:
        return unit.text
    directives = [token for token in unit.directives if not _DROPPED.match(token.text)]
    parts, begin = [], 0
    for each in sorted(declarations, key=lambda each: each.start):
        parts.append(unit.text[begin : each.start])
        begin = each.start
        for token in [*_within(directives, each), None]:
            end = each.end if token is None else token.start
            parts.append(re.sub(r"[^\n]", " ", unit.text[begin:end]))
            if token is not None:
                parts.append(token.text)
                end = token.end
            begin = end
    return "".join([*parts, unit.text[begin:]])


def _within(directives: Sequence[Token], each: Declaration) -> list[Token]:
    return [token for token in directives if each.start <= token.start < each.end]
