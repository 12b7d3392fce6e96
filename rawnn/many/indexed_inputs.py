"""Steps of many networks whose GEMMs read the rows of their batch from a copy of the data set's
inputs, each by its own order: no batch of inputs is gathered, written and read again.

The copy has each row as a gather writes it: converted, scaled, normalised, in the type and with the
pitch of a batch. It is made once, at the start. Products and their order stay as they are.
"""

from __future__ import annotations

from dataclasses import replace

from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Role, Tensor
from rawnn.ptx.gemm.mma import UPDATES
from rawnn.ptx.gemm.tiles import MAIN_LOOPS

LEAST_BYTES = 32 << 20
"""Batches of inputs of all networks, from which on writing and reading them costs more than the
launch that a gather of answers needs anyway: less stays in the L2 cache."""


def with_indexed_inputs(plan: Plan, stored: int, networks: int, batch: int) -> Plan:
    """`plan`, a step of one network, with a Role.ROUNDED copy of the `stored` rows of inputs in
    place of its batch; the gather brings answers alone. Ops that read the copy have the gather's
    `stride` and `offset` and the rows of the step, `batch`.

    It is `plan` itself without an order, if anything but GEMMs of tensor cores reads the inputs, or
    if the batches of so many networks, of `batch` rows each, take less memory than LEAST_BYTES or
    than the copy.
    """
    gathers = plan.find(kind="gather")
    if len(gathers) != 1 or "order" not in gathers[0].operands:
        return plan
    (gather,) = gathers
    x = plan[gather.operands["x"]]
    images = plan[gather.operands["images"]]
    readers = plan.consumers(x.name)
    copy = Tensor(f"{images.name}.{x.dtype}", (stored, *x.shape[1:]), x.dtype, Role.ROUNDED,
                  lines=x.lines, source=images.name, symbol=images.symbol or images.name)
    gathered = networks * batch * x.ld * x.itemsize
    if gathered < max(LEAST_BYTES, copy.nbytes) or copy.ld != x.ld \
            or not all(_reads_rows(op, x.name) for op in readers):
        return plan
    rows = {"stride": gather.attributes["stride"], "offset": gather.attributes["offset"],
            "batch": plan.batch}
    inputs = ("images", "x", "mean", "inverse_std")
    answers = replace(gather, operands={role: name for role, name in gather.operands.items()
                                        if role not in inputs})
    changed = [replace(op, attributes={**op.attributes, **rows}, operands={
        role: copy.name if name == x.name else name for role, name in op.operands.items()})
        for op in readers]
    return plan.with_tensors(copy).substitute_all(
        [([gather], [answers]), *(([old], [new]) for old, new in zip(readers, changed,
                                                                     strict=True))])


def _reads_rows(op: Op, inputs: str) -> bool:
    """Whether the kernel of an op can read rows of its inputs by a list."""
    return MAIN_LOOPS.get(op.impl, False) and op.kind in ("matmul", *UPDATES) \
        and list(op.operands.values()).count(inputs) == 1
