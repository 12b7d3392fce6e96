"""Arenas of tensors: one of what ranks gather, in memory that all of them map, and one of
everything else."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import ExitStack

from rawnn.device.cuda.memory import Memory, Source
from rawnn.step.ops.collectives import GATHER, TURN
from rawnn.step.plan import Plan
from rawnn.step.tensor import Tensor, whole


def shared_by_ranks(plans: Iterable[Plan]) -> set[str]:
    """The tensors that ranks gather; they are of the same size on all of them."""
    return {whole(name) for plan in plans for op in plan.ops if op.kind == GATHER
            for name in op.operands.values()} - {TURN.name}


def place(tensors: Sequence[Tensor], purpose: str, memory: Memory, shared: Container[str],
          symmetric: Callable[[], Source], closing: ExitStack) -> dict[str, int]:
    """The address of every tensor: those that are `shared` lie in memory from `symmetric`, which is
    asked for where there are any, all others in `memory`. All goes back when `closing` ends."""
    addresses: dict[str, int] = {}
    for group, source in (
            ([t for t in tensors if t.name in shared], symmetric),
            ([t for t in tensors if t.name not in shared], lambda: memory)):
        if group:
            giving = source()
            block, placed = memory.arena([(t.name, t.nbytes) for t in group], purpose, giving)
            closing.callback(giving.free, block)
            addresses |= placed
    return addresses
