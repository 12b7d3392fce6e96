"""Proves from a kernel's PTX that it may be launched programmatically.

A kernel at the end of a programmatic edge begins before its producers end. It is correct only if

- every path from its entry to an end passes `griddepcontrol.wait`: then it ends after its
  producers, and whoever waits for it also waits for them;
- before the wait it writes no global memory, and reads only through named pointer parameters
  (`early`), or through the tensor maps of these, which the producers must not write;
- if anything is read early, the producers trigger after their own wait (`ordered`): they are then
  the only kernels still running when this one begins.

The proof is conservative. A wait under a predicate does not count. An address counts as derived
from every parameter that any instruction lets flow into it, on whatever path. Before the wait, the
kernel is refused for an address that was itself loaded from memory, for a call of a function that
accesses global memory or has no body, and for a box copied through a map that is no parameter's.
Three things are assumed: pointer arithmetic stays inside the tensor, as C++ demands; the map
`w_map` is one of the operand `w` (the simulated device checks it); and ptxas moves no access across
`griddepcontrol.wait`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rawnn.common.errors import CompileError
from rawnn.cuda.compiling.signature import KernelSignature

WAIT, TRIGGER = "griddepcontrol.wait", "griddepcontrol.launch_dependents"
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|^[ \t]*\.(?:loc|file)\b[^\n]*", re.DOTALL | re.MULTILINE)
_LABEL = re.compile(r"\s*([$A-Za-z_][\w$]*)\s*:(?!:)")
_STATEMENT = re.compile(r"\s*([^;]*);")
_PREDICATE = re.compile(r"@!?(\S+)\s+")
_WORD = re.compile(r"(?<![\w$%.])[%$A-Za-z_][\w$%]*")  # excludes the suffix of %tid.x and 0f3F80
_SPACES = {"param", "shared", "shared::cta", "shared::cluster", "local", "const", "global"}
_LOADS = {"ld", "ldu", "wmma"}
_STORES = {"st", "atom", "red", "multimem", "discard", "applypriority", "sust", "sured"}
_OPAQUE = {"tex", "tld4", "suld", "tensormap"}
_HARMLESS_CALLS = {"vprintf", "__assertfail"}
_LOADED = "a loaded value"


@dataclass(frozen=True)
class Proof:
    """What holds for one kernel.

    waits: it may be at the end of a programmatic edge; `reason` says why not.
    triggers: its consumers may begin before it ends.
    ordered: it never triggers before its own wait.
    early: the pointer parameters through which it reads before its wait.
    """

    waits: bool = False
    triggers: bool = False
    ordered: bool = True
    early: tuple[str, ...] = ()
    reason: str = "its PTX was not examined"

    def allows_early_reads(self, starts_early: bool) -> bool:
        """Whether a kernel that starts before this one ends may read, before its own wait, what
        kernels before this one wrote: they have ended when this one triggers, or, unless this one
        `starts_early` itself, when it starts."""
        return self.ordered or not starts_early


@dataclass(frozen=True)
class _Place:
    """The address of a parameter as a root, in contrast to its value."""

    number: int


@dataclass
class _Instruction:
    """One statement: `parts` of the opcode, the operands' text, whether it is predicated, and its
    successors (indices; the number of instructions stands for the end)."""

    parts: tuple[str, ...]
    operands: str
    guarded: bool
    scope: tuple[int, ...]
    following: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        return ".".join(self.parts)

    def __str__(self) -> str:
        return f"{self.name} {self.operands}".strip()


def prove(ptx: str, lowered: str, signature: KernelSignature) -> Proof:
    """The proof for the entry `lowered` (a mangled name) of `ptx`, with the parameters of
    `signature` in order. Raises CompileError if the PTX has no such entry."""
    parameter = re.compile(re.escape(lowered) + r"_param_(\d+)$")
    text = _COMMENT.sub("", ptx)
    instructions = _parse(_body(text, ".entry", lowered))
    early = _before_wait(instructions)
    triggers = [i for i, found in enumerate(instructions) if found.name == TRIGGER]
    known = Proof(triggers=bool(triggers), ordered=not early.intersection(triggers))
    reads: set[str] = set()
    roots: _Roots | None = None
    for index in sorted(early):
        if index == len(instructions):
            return _refused(known, "a path through it ends without griddepcontrol.wait")
        instruction = instructions[index]
        if _leaves(instruction):
            return _refused(known, f"'{instruction}' ends it ahead of griddepcontrol.wait")
        base = instruction.parts[0]
        if base == "call":
            callee = _called(instruction)
            if callee not in _HARMLESS_CALLS and not _harmless(text, callee, ()):
                return _refused(known, f"it calls {callee} ahead of griddepcontrol.wait")
        access = _global_access(instruction)
        if access is None:
            continue
        kind, address = access
        roots = roots or _Roots(text, instructions, parameter)
        found = {root for root in roots.of(address) if not _is_number(root, signature)}
        if kind == "box":
            mapped = _mapped(found, signature)
            if mapped is None:
                return _refused(known, f"it reads through a map that is no parameter's ahead of "
                                       f"griddepcontrol.wait: {instruction}")
            reads |= mapped
            continue
        if found and found <= roots.on_chip:
            continue  # a generic access to shared or local memory
        if kind == "write":
            return _refused(known, f"it writes global memory ahead of griddepcontrol.wait: "
                                   f"{instruction}")
        names = _pointers(found - roots.on_chip, signature)
        if names is None:
            return _refused(known, f"it reads an address that is no parameter's ahead of "
                                   f"griddepcontrol.wait: {instruction}")
        reads |= names
    return Proof(True, known.triggers, known.ordered, tuple(sorted(reads)), "")


def _refused(known: Proof, reason: str) -> Proof:
    return Proof(False, known.triggers, known.ordered, (), reason)


def _pointers(found: Iterable[object], signature: KernelSignature) -> set[str] | None:
    """Names of the pointer parameters among the roots of an address; None if there is none, or if
    there are other roots."""
    names = set()
    for root in found:
        if not isinstance(root, int) or not signature.parameters[root].pointer:
            return None
        names.add(signature.parameters[root].name)
    return names or None


def _mapped(found: Iterable[object], signature: KernelSignature) -> set[str] | None:
    """Names of the operands whose maps are the roots of a map's address; None if there are other
    roots."""
    pointers = {p.name for p in signature.parameters if p.pointer}
    names = {signature.parameters[root.number].mapped if isinstance(root, _Place) else ""
             for root in found}
    return names if names and names <= pointers else None


def _is_number(root: object, signature: KernelSignature) -> bool:
    """Whether a root is a parameter that holds no address, such as an index."""
    return isinstance(root, int) and signature.parameters[root].number


# -- reading PTX ----------------------------------------------------------------------------------
def _body(text: str, kind: str, name: str) -> str:
    """The text between the braces of an entry or function."""
    found = re.search(rf"\{kind}\b[^;{{]*?(?<![\w$]){re.escape(name)}(?![\w$])[^;{{]*\{{", text)
    if found is None:
        raise CompileError(f"the PTX has no {kind} {name}")
    depth, at = 1, found.end()
    while depth:
        step = re.compile(r"[{}]").search(text, at)
        if step is None:
            raise CompileError(f"the braces of {kind} {name} do not close")
        depth, at = depth + (1 if step[0] == "{" else -1), step.end()
    return text[found.end():at - 1]


def _parse(body: str) -> list[_Instruction]:
    """The statements of a body with their successors. Raises CompileError for a branch to a missing
    label."""
    instructions: list[_Instruction] = []
    labels: dict[tuple[tuple[int, ...], str], int] = {}
    tables: dict[str, list[str]] = {}
    scope: tuple[int, ...] = ()
    scopes = at = 0
    pending = ""
    while at < len(body):
        if body[at].isspace():
            at += 1
        elif body[at] == "{":
            scopes += 1
            scope = (*scope, scopes)
            at += 1
        elif body[at] == "}":
            scope = scope[:-1]
            at += 1
        elif label := _LABEL.match(body, at):
            pending = label[1]
            labels[scope, pending] = len(instructions)
            at = label.end()
        else:
            statement = _STATEMENT.match(body, at)
            if statement is None:
                raise CompileError(f"cannot read the PTX: {body[at:at + 60]!r}")
            at = statement.end()
            words = " ".join(statement[1].split())
            if words.startswith(".branchtargets"):
                tables[pending] = _WORD.findall(words.partition(" ")[2])
            elif words and not words.startswith("."):
                guard = _PREDICATE.match(words)
                opcode, _, operands = words[guard.end() if guard else 0:].partition(" ")
                instructions.append(
                    _Instruction(tuple(opcode.split(".")), operands, bool(guard), scope))
    for index, instruction in enumerate(instructions):
        instruction.following = _successors(index, instruction, labels, tables)
    return instructions


def _successors(index: int, instruction: _Instruction,
                labels: Mapping[tuple[tuple[int, ...], str], int],
                tables: Mapping[str, list[str]]) -> list[int]:
    base = instruction.parts[0]
    if base == "bra":
        targets = [instruction.operands.strip()]
    elif base == "brx":
        targets = tables[instruction.operands.rpartition(",")[2].strip()]
    elif base == "trap" or _leaves(instruction):
        targets = []
    else:
        return [index + 1]
    found = [_target(target, instruction.scope, labels) for target in targets]
    return [*found, index + 1] if instruction.guarded else found


def _target(label: str, scope: tuple[int, ...],
            labels: Mapping[tuple[tuple[int, ...], str], int]) -> int:
    """The index of a label in this scope or the nearest enclosing one."""
    for depth in range(len(scope), -1, -1):
        found = labels.get((scope[:depth], label))
        if found is not None:
            return found
    raise CompileError(f"the PTX branches to {label}, which is not there")


def _leaves(instruction: _Instruction) -> bool:
    return instruction.parts[0] in ("ret", "exit")


def _before_wait(instructions: list[_Instruction]) -> set[int]:
    """Indices that some path reaches without having waited; the number of instructions stands for
    the end of the body."""
    found: set[int] = set()
    todo = [0]
    while todo:
        index = todo.pop()
        if index in found:
            continue
        if index < len(instructions):
            instruction = instructions[index]
            if instruction.name == WAIT and not instruction.guarded:
                continue
            todo += instruction.following
        found.add(index)
    return found


# -- accesses of instructions ---------------------------------------------------------------------
def _global_access(instruction: _Instruction) -> tuple[str, str] | None:
    """("read" or "write", the address) of a possible access to global memory, or ("box", the map's
    address) of a read through a tensor map; None for any other instruction."""
    parts, addresses = instruction.parts, re.findall(r"\[([^\]]*)\]", instruction.operands)
    base = parts[0]
    if base == "prefetch" or base == "prefetchu" or (base == "cp" and "prefetch" in parts):
        # A prefetch to L2, which all SMs share, is harmless. One to L1 would cache old data.
        return ("read", addresses[0]) if "L1" in parts else None
    if base in ("st", "red") and "async" in parts:
        return None  # an access to shared memory of the cluster
    if base == "cp":
        if "global" not in parts:  # a commit, wait or arrival, or a copy between SMs
            return ("write", "") if "tensor" in parts else None
        spaces = [part for part in parts if part in _SPACES]
        if "tensor" in parts:
            # Coordinates are no addresses: outside the tensor nothing is read.
            return ("write", "") if spaces[0] == "global" or "reduce" in parts \
                else ("box", addresses[1].partition(",")[0])
        if "reduce" in parts or spaces[0] == "global":
            return "write", addresses[0]
        return "read", addresses[1]
    if base in _OPAQUE:
        return "write", addresses[0] if addresses else ""
    if base not in _LOADS | _STORES:
        return None
    space = next((part for part in parts if part in _SPACES), "generic")
    if space not in ("global", "generic") or (base == "wmma" and "mma" in parts):
        return None
    write = base in _STORES or (base == "wmma" and "store" in parts)
    return "write" if write else "read", addresses[0] if addresses else ""


def _called(instruction: _Instruction) -> str:
    """The function that a call names; "" for a call through a pointer."""
    operands = re.sub(r"\([^)]*\)", " ", instruction.operands).replace(",", " ").split()
    return operands[0] if operands and not operands[0].startswith("%") else ""


def _harmless(text: str, function: str, callers: tuple[str, ...]) -> bool:
    """Whether a function, with all that it calls, accesses no global memory."""
    if not function or function in callers:
        return False
    try:
        instructions = _parse(_body(text, ".func", function))
    except CompileError:
        return False
    return all(
        _global_access(i) is None and i.parts[0] != "griddepcontrol"
        and (i.parts[0] != "call" or _called(i) in _HARMLESS_CALLS
             or _harmless(text, _called(i), (*callers, function)))
        for i in instructions
    )


class _Roots:
    """The parameters (their numbers, or a _Place), variables and loads from which the value of each
    register may come, on any path. `parameter` matches the entry's parameters."""

    def __init__(self, text: str, instructions: list[_Instruction],
                 parameter: re.Pattern[str]) -> None:
        self._parameter = parameter
        self.on_chip: set[object] = set(
            re.findall(r"\.(?:shared|local)\b[^;=]*?\s([$\w]+)\s*(?:\[[^\]]*\])?\s*;", text))
        self._found: dict[str, set[object]] = {}
        flows: list[tuple[list[str], set[str], set[object]]] = []
        for instruction in instructions:
            base = instruction.parts[0]
            destination, _, sources = _first_operand(instruction.operands)
            into = _WORD.findall(destination)
            if base == "ld" and "param" in instruction.parts:
                number = parameter.match(sources.strip(" []").partition("+")[0])
                flows.append((into, set(), {int(number[1])} if number else {_LOADED}))
            elif base in ("ld", "ldu", "atom", "ldmatrix"):
                wide = instruction.parts[-1] in ("u64", "s64", "b64", "b128")
                flows.append((into, set(), {_LOADED} if wide else set()))
            elif base not in ("st", "red", "bra", "brx", "call", "ret", "exit"):
                flows.append((into, set(_WORD.findall(sources)), set()))
        registers = {name for into, _, _ in flows for name in into}
        changed = True
        while changed:
            changed = False
            for into, sources_of, roots in flows:
                value = set(roots)
                for source in sources_of:
                    if source in registers:
                        value |= self._found.get(source, set())
                    elif not source.startswith("%"):  # excludes %tid and other special registers
                        value.add(self._named(source))
                for name in into:
                    known = self._found.setdefault(name, set())
                    if not value <= known:
                        known |= value
                        changed = True

    def of(self, address: str) -> set[object]:
        """The roots of an address as written between brackets."""
        found: set[object] = set()
        for word in _WORD.findall(address):
            found |= self._found.get(word, set() if word.startswith("%") else {self._named(word)})
        return found

    def _named(self, word: str) -> object:
        """The root for a name."""
        number = self._parameter.match(word)
        return _Place(int(number[1])) if number else word


def _first_operand(operands: str) -> tuple[str, str, str]:
    """Split after the first operand, which may be a list in braces."""
    if operands.startswith("{"):
        head, brace, rest = operands.partition("}")
        return head + brace, ",", rest.lstrip(", ")
    return operands.partition(",")
