"""One or more complete training steps in one op, computed by a kernel that trains on the chip.

The op's attribute `step` is the plan of one step that it computes. Its operands are those tensors
of that plan that live longer than a step, under the roles that `role_of` gives them, and workspaces
of its kernel. Its reference runs the plan's ops in order. With an attribute `rest`, the epoch's
step number `whole`, from 0, is that plan's, on the `left` examples that the full batches leave.
With the attribute `steps` of an epoch it also does the op `boundary` between epochs: `offset` is
then the number of the next epoch, and the first step is the cursor's.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from rawnn.common.dtypes import LOW_PRECISION, rounded
from rawnn.plan.op import OPS, Attributes, Op, OpSpec
from rawnn.plan.ops.common import Array
from rawnn.plan.tensor import Role, Tensor

if TYPE_CHECKING:
    from rawnn.plan.plan import Plan

KIND = "train_steps"
SUMMARY = "Complete training steps, one after the other."
WORKSPACE = "train_steps."
"""Prefix of the names of the kernel's workspaces; the rest is their symbol."""


def role_of(tensor: Tensor) -> str:
    """The role of a tensor, and the name of its kernel parameter."""
    return tensor.symbol or tensor.name


def _inside(tensor: Tensor) -> bool:
    """Whether the tensor lives within the op."""
    return tensor.role.temporary or tensor.role is Role.SCRATCH


def train_steps(step: Plan, workspaces: tuple[Tensor, ...], impl: str,
                **attributes: object) -> Op:
    """The op that does one step of the plan `step`."""
    touched = [step[name] for op in step.ops for name in op.tensors if not _inside(step[name])]
    operands = {role_of(t): t.name for t in (*touched, *workspaces)}
    return Op(KIND, KIND, operands, {"step": step, "offset": 0, "span": 1, **attributes}, impl)


def spanning(op: Op, steps: int) -> Op:
    """The op over `steps` steps from its own on."""
    return Op(op.kind, f"{op.own_name}@{op.offset}", op.operands,
              {**op.attributes, "span": steps}, op.impl, op.own_name)


def with_partial(op: Op, partial: Plan, whole: int) -> Op:
    """The op that also does the step `partial`, on the partial batch after `whole` full ones."""
    return replace(op, attributes={**op.attributes, "rest": partial, "whole": whole,
                                   "left": partial.batch})


def with_boundary(op: Op, boundary: Op) -> Op:
    """The op that also does the op `boundary` after its steps, which are all of an epoch."""
    numbers = {"order_seed": boundary.attributes["seed"], "count": boundary.attributes["count"],
               "steps": boundary.attributes["steps"]}
    return replace(op, operands={**op.operands, **boundary.operands},
                   attributes={**op.attributes, **numbers})


def has_boundary(op: Op) -> bool:
    """Whether the op is a result of `with_boundary`."""
    return "order_seed" in op.attributes


def _spec(op: Op) -> OpSpec:
    if "step" not in op.attributes:
        return OPS[KIND]
    step: Plan = op.attributes["step"]

    def roles(names: list[str]) -> tuple[str, ...]:
        found = dict.fromkeys(role_of(step[n]) for n in names if not _inside(step[n]))
        return tuple(found)

    reads = roles([name for inner in step.ops for name, _ in inner.reads])
    writes = roles([name for inner in step.ops for name, _ in inner.writes])
    if has_boundary(op):
        reads, writes = (tuple(dict.fromkeys((*names, "clock", *more))) for names, more in
                         ((reads, ()), (writes, ("order",))))
    known = {*reads, *writes}
    workspaces = tuple(role for role in op.operands if role not in known)

    def reference(t: SimpleNamespace, a: Attributes) -> None:
        first, span = 0 if has_boundary(op) else int(a["offset"]), int(a["span"])
        _steps(t, a, first, span)
        if has_boundary(op):
            OPS["epoch_boundary"].reference(t, {
                **op.attributes, "seed": op.attributes["order_seed"], "offset": a["offset"]})

    def _steps(t: SimpleNamespace, a: Attributes, first: int, span: int) -> None:
        if "rest" not in op.attributes:
            run_steps(step, t, first, span)
            return
        full_batches = int(a.get("whole", op.attributes["whole"]))
        whole = max(min(full_batches - int(t.cursor[0]) - first, span), 0)
        run_steps(step, t, first, whole)
        run_steps(op.attributes["rest"], t, first + whole, span - whole)

    return OpSpec(KIND, reads, (*writes, *workspaces), reference,
                  tuple(r for r in ("loss", "correct") if r in writes),
                  summary=SUMMARY)


def run_steps(step: Plan, t: SimpleNamespace, offset: int, span: int) -> None:
    """`span` steps, the first of them `offset` after the cursor."""
    number = t.w1.dtype
    arrays: dict[str, Array] = {}
    for op in step.ops:
        for name in op.tensors:
            tensor = step[name]
            if name not in arrays:
                # The op has no partial sums of metrics: the ops of `rest` may write and add some.
                inside = _inside(tensor) or (tensor.role is Role.METRIC
                                             and not hasattr(t, role_of(tensor)))
                arrays[name] = np.zeros(tensor.shape, number if tensor.floating else tensor.dtype) \
                    if inside else getattr(t, role_of(tensor))
    calls = [(op, SimpleNamespace(**{r: arrays[n] for r, n in op.operands.items()}),
              {r: step[n].dtype for r, n in op.operands.items()},
              [(arrays[n], step[n].dtype) for n, _ in op.writes
               if step[n].dtype in LOW_PRECISION and arrays[n].dtype == np.float32])
             for op in step.ops]
    for s in range(offset, offset + span):
        for op, operands, stored, low in calls:
            op.spec.reference(operands, {**op.attributes, "offset": s, "stored": stored})
            for array, dtype in low:
                array[...] = rounded(array, dtype)


def _undefined(t: SimpleNamespace, a: Attributes) -> None:
    raise NotImplementedError("the reference of train_steps follows from each op")


OPS[KIND] = OpSpec(KIND, (), (), _undefined, summary=SUMMARY, of=_spec)
