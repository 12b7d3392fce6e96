"""A plan carried out in float64 by the references of its ops, in any order asked for."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace

import numpy as np

from rawnn.data import Dataset
from rawnn.model.layers import Parameters
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Role

Arrays = dict[str, np.ndarray]


def arrays_of(plan: Plan, data: Dataset, parameters: Parameters) -> Arrays:
    """Every tensor of the plan as an array: floats are float64, and NaN until they are written."""
    known = {
        "images": data.train_images, "host_images": data.normalisation.apply(
            data.train_images, np.float64),
        "cursor": np.zeros(1, np.int32), "clock": np.zeros(2, np.int32),
        "order": np.arange(len(data.train_images), dtype=np.int32)[::-1],
        "rates": np.linspace(0.1, 0.2, len(data.train_images)),
        **{f"{home}{kind}": array for home in ("", "host_") for kind, array in
           (("labels", data.train_labels), ("targets", data.train_targets)) if array is not None},
        **{name: array.astype(np.float64) for name, array in parameters.items()},
    }
    if "order" in plan.tensors:  # what comes from the host comes in the epoch's order
        known |= {n: a[known["order"]] for n, a in known.items() if n.startswith("host_")}
    for name, tensor in plan.tensors.items():
        if name not in known:
            floating = tensor.floating and tensor.role is not Role.STATE
            known[name] = np.full(tensor.shape, np.nan if floating else 0,
                                  np.float64 if floating else tensor.dtype)
    return known


def execute(plan: Plan, arrays: Arrays, order: Iterable[int] | None = None) -> None:
    """Run the ops once, in the plan's order or in that of the indices `order`."""
    for index in range(len(plan.ops)) if order is None else order:
        op = plan.ops[index]
        operands = SimpleNamespace(**{role: arrays[name] for role, name in op.operands.items()})
        op.spec.reference(operands, op.attributes)


def epoch(plan: Plan, arrays: Arrays, steps: int) -> None:
    """Run a one-step plan for every step of an epoch."""
    for step in range(steps):
        arrays["cursor"][0] = step
        execute(plan, arrays)
