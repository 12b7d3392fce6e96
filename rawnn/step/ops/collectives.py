"""What ranks do together: every one of them has the op, and it ends where all have come to it."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

from rawnn.step.op import OPS, Attributes, Op, OpSpec
from rawnn.step.tensor import Role, Tensor

KIND = "all_reduce"
SUMMARY = "Each operand becomes the sum over ranks of its values times a weight, or the largest."
TURN = Tensor("nccl.turn", (1,), "int32", Role.SCRATCH)
"""What every collective reads and writes, so that they have one order, the same on all ranks. It
holds nothing."""


def all_reduce(name: str, tensors: Mapping[str, str], weight: float, reduce: str = "sum") -> Op:
    """The op that reduces `tensors` (operand -> tensor) in place; `reduce` is "sum" or "max"."""
    return Op(KIND, name, {**tensors, "turn": TURN.name}, {"weight": weight, "reduce": reduce},
              "nccl")


def reduced(op: Op) -> list[str]:
    """The operands of a reduction that are reduced."""
    return [role for role in op.operands if role != "turn"]


def _reference(t: SimpleNamespace, a: Attributes) -> None:
    """The other ranks are reached through the attribute `team`, which a runner adds."""
    arrays = [array for role, array in vars(t).items() if role != "turn"]
    a["team"].reduce(arrays, a["weight"], a["reduce"])


def _spec(op: Op) -> OpSpec:
    roles = tuple(op.operands)
    return OpSpec(KIND, roles, roles, _reference, summary=SUMMARY)


OPS[KIND] = OpSpec(KIND, (), (), _reference, summary=SUMMARY, of=_spec)
