"""Inputs that products of 16 bits take lie so in device memory: rounded once, ahead of the steps.

A kernel that trains on the chip then has each row as its first layer's products read it: half the
bytes of float32 in shared memory, twice, for a step and the next; four matrices with an instruction
in place of 12 loads and 6 conversions; and no step converts, scales or normalises anything. The
numbers are those that rounding behind each load gave.
"""

from __future__ import annotations

from dataclasses import replace

from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Role, Tensor

STORED = ("bfloat16", "float16")
MOST_BYTES = 2 << 30
"""Of a copy of the inputs in device memory: of more, a step takes them as they are."""


def with_rounded_inputs(plan: Plan) -> Plan:
    """`plan`, a step, whose batch comes of inputs that are rounded already, as a tensor that is
    made of the data set's at the start (plan/epoch_plans.py); `plan` itself where nothing is to be
    done: where products read inputs as float32, where they are compared with outputs, which is done
    in float32, and where the copy is too large."""
    gathers = plan.find(kind="gather")
    if len(gathers) != 1:
        return plan
    gather = gathers[0]
    images, x = plan[gather.operands["images"]], plan[gather.operands["x"]]
    if x.dtype not in STORED or images.role is not Role.DATA:
        return plan
    if any(op.kind != "matmul" for op in plan.consumers(x.name)):
        return plan
    normalised = "mean" in gather.operands
    if images.dtype == x.dtype and gather.attributes["scale"] == 1.0 and not normalised:
        return plan
    rounded = Tensor(f"{images.name}.{x.dtype}", images.shape, x.dtype, Role.ROUNDED, lines=True,
                     source=images.name, symbol=images.symbol or images.name)
    if rounded.nbytes > MOST_BYTES:
        return plan
    operands = {role: name for role, name in gather.operands.items()
                if role not in ("mean", "inverse_std")} | {"images": rounded.name}
    changed = replace(gather, operands=operands, attributes={**gather.attributes, "scale": 1.0})
    return plan.with_tensors(rounded).substitute([gather], [changed])
