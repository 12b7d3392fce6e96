"""Instructions of a cubin that are guarded by a predicate before it is there.

A predicate takes 13 cycles from the comparison that makes it to an instruction that it guards
(compute capability 9.0): ptxas counts them and has the instructions between wait long enough. Here
they are counted again, along the instructions as they lie: jumps to a place between are left out,
so that what is found is wrong, and what is not found may be. Instructions are 16 bytes: an opcode
(12 bits), the guard (3, of which 7 is none, and its sign), two predicates that a comparison makes
(from bit 81 on), and from bit 105 on how long the next one waits.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

CYCLES = 13
_MAKES = {0x00B: 2, 0x00C: 2, 0x01C: 2, 0x012: 1}
"""FSETP, ISETP, PLOP3, LOP3: how many predicates they name as results."""
_LEAVES = 0x947, 0x94D  # BRA, EXIT
_NEVER = 7
_UNIFORM = {*range(0x080, 0x0A6), 0x0B9, 0x1B2}
"""Instructions of a whole warp (the last makes a barrier of shared memory), whose guards are
predicates of their own."""


class Early(NamedTuple):
    """An instruction at `at`, guarded by what the one at `made` makes `cycles` ahead of it."""

    at: int
    made: int
    cycles: int


def texts(cubin: bytes) -> Iterator[tuple[str, bytes]]:
    """Each kernel's name and instructions."""
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    rows = [struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(count)]
    for name, _, _, _, at, length in rows:
        start = rows[names][4] + name
        word = cubin[start:cubin.index(b"\0", start)].decode()
        if word.startswith(".text."):
            yield word.removeprefix(".text."), cubin[at:at + length]


def waits(instruction: int) -> int:
    return max(1, instruction >> 105 & 15)


def _guard(instruction: int) -> int:
    return _NEVER if instruction & 0x1FF in _UNIFORM else instruction >> 12 & 7


def makes(instruction: int, predicate: int) -> bool:
    count = _MAKES.get(instruction & 0x1FF, 0)
    return any(instruction >> 81 + 3 * i & 7 == predicate for i in range(count))


def too_early(text: bytes) -> list[Early]:
    """Those of one kernel's instructions."""
    code = [int.from_bytes(text[i:i + 16], "little") for i in range(0, len(text), 16)]
    found = []
    for at, instruction in enumerate(code):
        predicate, cycles, back = _guard(instruction), 0, at - 1
        while predicate != _NEVER and back >= 0:
            before = code[back]
            cycles += waits(before)
            if cycles >= CYCLES or (before & 0xFFF in _LEAVES and _guard(before) == _NEVER):
                break
            if makes(before, predicate):
                found.append(Early(at * 16, back * 16, cycles))
                break
            back -= 1
    return found
