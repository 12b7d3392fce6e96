"""`nosync`: losses stay on the device until a report is due.

`Policy.sync` is read by engine/runners/gpu.py, which waits after each step or not, and by
engine/runners/prepared_run.py: only with `nosync` can an epoch be one launch.
"""

from __future__ import annotations

from dataclasses import replace

from rawnn.opts.registry import Rewritten, Toggle, register
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy


def apply(plan: Plan, policy: Policy, value: str | int | None) -> Rewritten:
    return plan, replace(policy, sync="report")


register(Toggle(
    "nosync",
    claim="loss and accuracy stay on the GPU; the baseline copies them and waits at every step",
    source="the report's first rung: reduced synchronization",
    group="scheduling", apply=apply,
))
