"""Inputs are rounded once, ahead of the steps, if GEMMs read 16 bits.

A copy of the inputs in device memory then has each row as the GEMMs of the first layer read it. In
shared memory it takes half the bytes of float32, for two micro-batches. One instruction loads four
matrices in place of 12 loads and 6 conversions, and no step converts, scales or normalises inputs.
The bits are those of rounding behind each load.
"""

from __future__ import annotations

from dataclasses import replace

from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Role, Tensor

STORED = ("bfloat16", "float16")
MOST_BYTES = 2 << 30
"""Of the copy of the inputs in device memory."""


def with_rounded_inputs(plan: Plan) -> Plan:
    """`plan`, a step, that gathers its batch from a rounded copy of the data set's inputs, which is
    made at the start (plan/epoch_plans.py).

    It is `plan` itself if GEMMs read float32 inputs, if inputs are also the targets, which are
    compared in float32, or if the copy would take more than MOST_BYTES.
    """
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
