"""Collectives: every rank has the op, and it ends once all ranks have reached it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from rawnn.plan.op import OPS, Attributes, Op, OpSpec
from rawnn.plan.tensor import Role, Tensor

KIND = "all_reduce"
SUMMARY = "Each operand becomes the sum over ranks of its values times a weight, or the largest."
SCATTER, GATHER = "reduce_scatter", "all_gather"
SUMMARIES = {SCATTER: "Each part becomes this rank's rows of the weighted sum over ranks.",
             GATHER: "Each whole becomes the parts of all ranks, one behind the other."}
ORDERING_TOKEN = Tensor("nccl.token", (1,), "int32", Role.SCRATCH, communicator="sums")
"""A tensor that every collective of a communicator reads and writes, so that they have one order,
the same on all ranks. It holds no data."""
COPIES, EXCHANGES = (replace(ORDERING_TOKEN, name=f"nccl.{name}", communicator=name)
                     for name in ("copies", "exchanges"))
"""The tokens of communicators for copy engines, which wait for no other collective: weights that
are all-gathered, and parts of gradients that two ranks exchange."""


def all_reduce(name: str, tensors: Mapping[str, str], weight: float, reduce: str = "sum") -> Op:
    """The op that reduces `tensors` (operand -> tensor) in place; `reduce` is "sum" or "max"."""
    return Op(KIND, name, {**tensors, "token": ORDERING_TOKEN.name},
              {"weight": weight, "reduce": reduce}, "nccl")


def reduce_scatter(name: str, parts: Sequence[tuple[str, str]], weight: float) -> Op:
    """The op that sums each tensor of (tensor, part) and leaves this rank's rows in the part, a
    view of it; the rest of the tensor is undefined then."""
    return Op(SCATTER, name, {**_paired(parts), "token": ORDERING_TOKEN.name},
              {"weight": weight, "reduce": "sum"}, "nccl")


def all_gather(name: str, parts: Sequence[tuple[str, str]], token: str = ORDERING_TOKEN.name) -> Op:
    """The op that makes each tensor of (tensor, part) from the parts of all ranks."""
    return Op(GATHER, name, {**_paired(parts), "token": token}, {}, "nccl")


def _pairs(operands: int) -> list[tuple[str, str]]:
    """Names of the operands that are a tensor and this rank's part of it. `operands` is the number
    of all operands of the op, `token` included."""
    return [(f"g{i}", f"p{i}") for i in range(operands // 2)]


def _paired(parts: Sequence[tuple[str, str]]) -> dict[str, str]:
    return {role: tensor for roles, tensors in zip(_pairs(2 * len(parts)), parts, strict=True)
            for role, tensor in zip(roles, tensors, strict=True)}


def pairs(op: Op) -> list[tuple[str, str]]:
    """The operands (tensor, this rank's part of it) of an op that has parts."""
    return _pairs(len(op.operands))


def wholes(op: Op) -> list[str]:
    """The operands of a collective that are complete tensors."""
    if op.kind == KIND:
        return [role for role in op.operands if role != "token"]
    return [whole for whole, _ in pairs(op)]


def _reference(t: SimpleNamespace, a: Attributes) -> None:
    """A runner adds the attribute `team`, through which the other ranks are reached."""
    arrays = [array for role, array in vars(t).items() if role != "token"]
    a["team"].reduce(arrays, a["weight"], a["reduce"])


def _scattered(t: SimpleNamespace, a: Attributes) -> None:
    """Like `_reference`; a part is a view of its tensor."""
    a["team"].reduce([getattr(t, whole) for whole, _ in _pairs(len(vars(t)))], a["weight"],
                     a["reduce"])


def _gathered(t: SimpleNamespace, a: Attributes) -> None:
    """Like `_reference`."""
    for role, part in _pairs(len(vars(t))):
        whole = getattr(t, role)
        parts = a["team"].gather(f"rows of {whole.size}", getattr(t, part).tobytes())
        whole[...] = np.frombuffer(b"".join(parts), whole.dtype).reshape(whole.shape)


def _spec(op: Op) -> OpSpec:
    roles = tuple(op.operands)
    if op.kind == KIND:
        return OpSpec(KIND, roles, roles, _reference, summary=SUMMARY)
    reads, parts = (*wholes(op), "token"), (*(part for _, part in pairs(op)), "token")
    if op.kind == GATHER:
        return OpSpec(GATHER, parts, reads, _gathered, summary=SUMMARIES[GATHER])
    return OpSpec(SCATTER, reads, roles, _scattered, summary=SUMMARIES[SCATTER])


OPS[KIND] = OpSpec(KIND, (), (), _reference, summary=SUMMARY, of=_spec)
OPS[SCATTER] = OpSpec(SCATTER, (), (), _scattered, summary=SUMMARIES[SCATTER], of=_spec)
OPS[GATHER] = OpSpec(GATHER, (), (), _gathered, summary=SUMMARIES[GATHER], of=_spec)
