"""`pool`: a caching allocator keeps what is freed and gives it out again."""

from __future__ import annotations

from dataclasses import replace

from rawnn.opts.registry import Rewritten, Toggle, register
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy


def apply(plan: Plan, policy: Policy, value: str | int | None) -> Rewritten:
    return plan, replace(policy, allocator="pool")


register(Toggle(
    "pool",
    claim="memory that is freed is kept and given out again by a caching allocator of our own",
    source="the caching allocators of PyTorch and CuPy; the driver is asked in the first step only",
    group="memory", apply=apply, conflicts=("arena", "async"),
))
