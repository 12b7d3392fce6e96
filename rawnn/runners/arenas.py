"""Arenas of tensors: one of what ranks gather, in memory that all of them map, and one of
everything else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack

from rawnn.device.cuda.memory import Memory, Source
from rawnn.runners.lowering import Lowering
from rawnn.step.ops.collectives import GATHER
from rawnn.step.plan import Plan
from rawnn.step.tensor import Tensor, whole


def shared_by_ranks(plans: Iterable[Plan]) -> dict[str, str]:
    """The tensors that ranks gather, which are of the same size on all of them, and the
    communicator that does it."""
    return {whole(name): plan[op.operands["turn"]].communicator for plan in plans
            for op in plan.ops if op.kind == GATHER for role, name in op.operands.items()
            if role != "turn"}


def place(tensors: Sequence[Tensor], purpose: str, memory: Memory, shared: Mapping[str, str],
          lowering: Lowering, closing: ExitStack) -> dict[str, int]:
    """The address of every tensor: those that are `shared` lie in symmetric memory, which
    `lowering` is asked for where there are any, all others in `memory`. All goes back when
    `closing` ends."""
    addresses: dict[str, int] = {}
    for communicator in (*dict.fromkeys(shared.values()), ""):
        group = [(t.name, t.nbytes) for t in tensors if shared.get(t.name, "") == communicator]
        if group:
            source: Source = lowering.symmetric(communicator) if communicator else memory
            block, placed = memory.arena(group, purpose, source)
            closing.callback(source.free, block)
            addresses |= placed
    return addresses
