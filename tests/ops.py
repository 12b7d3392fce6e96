"""Fails where an op on a device is farther from its reference than it may be."""

from __future__ import annotations

from rawnn.cuda.device import Device
from rawnn.engine.runners.lowering import Lowering
from rawnn.lab.ops import examine
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan


def check_op(device: Device, lowering: Lowering, op: Op, plan: Plan, seed: int = 0) -> None:
    for outcome in examine(device, lowering, op, plan, seed, repeat=False).outcomes:
        assert outcome.error <= outcome.tolerance, f"{op}: {outcome}"
