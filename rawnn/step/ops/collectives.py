"""What ranks do together: every one of them has the op, and it ends where all have come to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from rawnn.step.op import OPS, Attributes, Op, OpSpec
from rawnn.step.tensor import Role, Tensor

KIND = "all_reduce"
SUMMARY = "Each operand becomes the sum over ranks of its values times a weight, or the largest."
SCATTER, GATHER = "reduce_scatter", "all_gather"
SUMMARIES = {SCATTER: "Each part becomes this rank's rows of the weighted sum over ranks.",
             GATHER: "Each whole becomes the parts of all ranks, one behind the other."}
TURN = Tensor("nccl.turn", (1,), "int32", Role.SCRATCH)
"""What every collective of a communicator reads and writes, so that they have one order, the same
on all ranks. It holds nothing."""
COPIES, EXCHANGES = (replace(TURN, name=f"nccl.{name}") for name in ("copies", "exchanges"))
"""Those of communicators for what copy engines do, which wait for nobody else: weights that are
gathered, and parts of gradients that two ranks send each other."""


def all_reduce(name: str, tensors: Mapping[str, str], weight: float, reduce: str = "sum") -> Op:
    """The op that reduces `tensors` (operand -> tensor) in place; `reduce` is "sum" or "max"."""
    return Op(KIND, name, {**tensors, "turn": TURN.name}, {"weight": weight, "reduce": reduce},
              "nccl")


def reduce_scatter(name: str, parts: Sequence[tuple[str, str]], weight: float) -> Op:
    """The op that sums each whole of (whole, part) and leaves this rank's rows in the part, a view
    of it; the rest of the whole means nothing then."""
    return Op(SCATTER, name, {**_paired(parts), "turn": TURN.name},
              {"weight": weight, "reduce": "sum"}, "nccl")


def all_gather(name: str, parts: Sequence[tuple[str, str]], turn: str = TURN.name) -> Op:
    """The op that makes each whole of (whole, part) from the parts of all ranks."""
    return Op(GATHER, name, {**_paired(parts), "turn": turn}, {}, "nccl")


def _paired(parts: Sequence[tuple[str, str]]) -> dict[str, str]:
    named: dict[str, str] = {}
    for i, (whole, part) in enumerate(parts):
        named |= {f"g{i}": whole, f"p{i}": part}
    return named


def wholes(op: Op) -> list[str]:
    """The operands of a collective that are whole tensors."""
    return [role for role in op.operands if role[0] in "go" and role != "turn"]


def part_of(role: str) -> str:
    """The operand that is this rank's part of a whole."""
    return f"p{role[1:]}"


def _reference(t: SimpleNamespace, a: Attributes) -> None:
    """The other ranks are reached through the attribute `team`, which a runner adds."""
    arrays = [array for role, array in vars(t).items() if role[0] in "go"]
    a["team"].reduce(arrays, a["weight"], a["reduce"])


def _gathered(t: SimpleNamespace, a: Attributes) -> None:
    """As `_reference`."""
    for role, whole in vars(t).items():
        if role[0] == "g":
            mine = getattr(t, part_of(role))
            parts = a["team"].gather(f"rows of {whole.size}", mine.tobytes())
            whole[...] = np.frombuffer(b"".join(parts), whole.dtype).reshape(whole.shape)


def _spec(op: Op) -> OpSpec:
    roles = tuple(op.operands)
    if op.kind == GATHER:
        return OpSpec(GATHER, tuple(r for r in roles if r[0] in "pt"),
                      tuple(r for r in roles if r[0] in "gt"), _gathered,
                      summary=SUMMARIES[GATHER])
    reads = tuple(r for r in roles if r[0] != "p")
    return OpSpec(op.kind, reads, roles, _reference, summary=OPS[op.kind].summary)


OPS[KIND] = OpSpec(KIND, (), (), _reference, summary=SUMMARY, of=_spec)
OPS[SCATTER] = OpSpec(SCATTER, (), (), _reference, summary=SUMMARIES[SCATTER], of=_spec)
OPS[GATHER] = OpSpec(GATHER, (), (), _gathered, summary=SUMMARIES[GATHER], of=_spec)
