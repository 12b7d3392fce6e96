"""Kernels that gather a batch, and those that run once in an epoch or once in a run."""

from __future__ import annotations

from rawnn.common.dtypes import c_type
from rawnn.model.schedules import functor as schedule_functor
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from rawnn.ptx.family import Family
from rawnn.ptx.kernel_registry import (
    Geometry,
    KernelImpl,
    Scalars,
    ceil,
    elements,
    matrix,
    no_sizes,
    plain,
    typed,
    types,
)

FAMILY = Family("epoch", "what brings a batch, and what runs once in an epoch or in a run")


def _gather(op: Op, plan: Plan) -> list[str]:
    labels = c_type(plan[op.operands["labels"]].dtype) if "labels" in op.operands else "int"
    return [*types(op, plan, "images", "x"), labels]


def _gather_sizes(op: Op, plan: Plan) -> Scalars:
    features = plan[op.operands["x"]].shape[1] if "x" in op.operands else 0
    batch = next(plan[op.operands[r]].shape[0] for r in ("x", "y", "t") if r in op.operands)
    outputs = plan[op.operands["t"]].shape[1] if "t" in op.operands else 0
    found: Scalars = {"batch": batch, "features": features, "outputs": outputs}
    return found if features else {**found, "itemsize_x": 4}


MOST = 768
"""Largest grid of `gather`, which a large GPU runs in one wave. Each thread then copies several
pieces: a block of a second wave would wait for the cursor and the order again."""


def _gather_geometry(s: Scalars) -> Geometry:
    """One thread for each piece of the outputs x, t and y (gather.cu)."""
    blocks = ceil(s["batch"] * pieces(s), 256)
    return (ceil(blocks, max(ceil(blocks, MOST), 1)), 1, 1), (256, 1, 1)


def pieces(s: Scalars) -> int:
    """Pieces of a row: 16 bytes each of x and of t, and one for the label, present or not."""
    return ceil(s["features"] * s["itemsize_x"], 16) + ceil(s["outputs"], 4) + 1


FAMILY.register("gather", "naive", KernelImpl(
    "elementwise/gather.cu", "gather", _gather, _gather_sizes, _gather_geometry,
    {"images": ("@batch", "features"), "labels": ("@batch",), "targets": ("@batch", "outputs"),
     "order": ("@batch",), "mean": ("features",), "inverse_std": ("features",), "cursor": ("1",),
     "x": ("batch", "features"), "y": ("batch",), "t": ("batch", "outputs")}, strided=True))


MOST_Y = 65535
"""Blocks of a grid along y."""


def _rows_of_member(op: Op, plan: Plan) -> Scalars:
    rows, cols = plan[op.operands["w"]].shape
    return {"rows": rows // op.attributes["networks"], "cols": cols}


def _member_geometry(s: Scalars) -> Geometry:
    blocks = ceil(s["rows"] * s["cols"], 1024)
    return (max(blocks, 1), min(int(s["networks"]), MOST_Y), 1), (256, 1, 1)


def _one_thread(s: Scalars) -> Geometry:
    return (1, 1, 1), (1, 1, 1)


FAMILY.register("initialise", "naive", KernelImpl(
    "elementwise/initialise.cu", "initialise", typed("w"), matrix("w"), elements(256, 4),
    {"w": ("rows", "cols")}))
FAMILY.register("initialise_members", "naive", KernelImpl(
    "elementwise/initialise.cu", "initialise_members", typed("w"), _rows_of_member,
    _member_geometry, {"w": ("networks*rows", "cols"), "members": ("networks", "ldmembers")}))
FAMILY.register("member_schedule", "naive", KernelImpl(
    "elementwise/schedule.cu", "member_schedule", lambda op,
    plan: [schedule_functor(op.attributes["kind"])], no_sizes,
    lambda s: ((ceil(s["steps"], 256), min(int(s["launched"]), MOST_Y), 1), (256, 1, 1)),
    {"active": ("launched",), "members": ("networks", "ldmembers"), "clock": ("networks*2",),
     "rates": ("networks*steps",)}))
FAMILY.register("member_orders", "naive", KernelImpl(
    "elementwise/members.cu", "member_orders", plain, no_sizes,
    lambda s: ((ceil(s["count"], 256), min(int(s["launched"]), MOST_Y), 1), (256, 1, 1)),
    {"active": ("launched",), "members": ("networks", "ldmembers"), "clock": ("networks*2",),
     "rows": ("folds*count",), "order": ("networks", "count")}))
FAMILY.register("member_means", "naive", KernelImpl(
    "elementwise/members.cu", "member_means", plain, no_sizes,
    lambda s: ((1, min(int(s["launched"]), MOST_Y), 1), (32, 1, 1)),
    {"active": ("launched",), "loss": ("networks", "steps"), "correct": ("networks", "steps"),
     "mean": ("networks",), "score": ("networks",)}))
FAMILY.register("shuffle", "naive", KernelImpl(
    "elementwise/shuffle.cu", "shuffle", plain, no_sizes,
    lambda s: ((ceil(s["count"], 256), 1, 1), (256, 1, 1)),
    {"clock": ("2",), "order": ("count",)}))
FAMILY.register("epoch_boundary", "naive", KernelImpl(
    "elementwise/epoch_boundary.cu", "epoch_boundary", plain, no_sizes,
    lambda s: ((ceil(s["count"], 256), 1, 1), (256, 1, 1)),
    {"clock": ("2",), "order": ("count",)}))
FAMILY.register("schedule", "naive", KernelImpl(
    "elementwise/schedule.cu", "schedule", lambda op,
    plan: [schedule_functor(op.attributes["kind"])], no_sizes,
    lambda s: ((ceil(s["steps"], 256), 1, 1), (256, 1, 1)),
    {"clock": ("2",), "rates": ("steps",)}))
FAMILY.register("tick", "naive", KernelImpl(
    "elementwise/cursor.cu", "tick", plain, no_sizes, _one_thread, {"clock": ("2",)}))
FAMILY.register("adjust_scale", "naive", KernelImpl(
    "optimizers/loss_scale.cu", "adjust_scale", plain, no_sizes, _one_thread,
    {"overflow": ("1",), "loss_scale": ("2",)}))
FAMILY.register("advance", "naive", KernelImpl(
    "elementwise/cursor.cu", "advance", plain, no_sizes, _one_thread,
    {"cursor": ("1",)}))
FAMILY.register("advance", "while", KernelImpl(
    "elementwise/while.cu", "advance_while", plain, no_sizes, _one_thread,
    {"cursor": ("1",)}, relocatable=True))
