"""`arena`: all tensors are placed once, before training starts.

`Policy.allocator` is read by engine/runners/arenas.py, and by opts/shards.py: copy engines
move gradients between ranks only with `arena`.
"""

from __future__ import annotations

from dataclasses import replace

from rawnn.opts.registry import Rewritten, Toggle, register
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy


def apply(plan: Plan, policy: Policy, value: str | int | None) -> Rewritten:
    return plan, replace(policy, allocator="arena")


register(Toggle(
    "arena",
    claim="all tensors are placed once in one allocation; the baseline allocates at each use",
    source="cuMemAlloc and cuMemFree cost microseconds each, and cuMemFree waits for the GPU",
    group="memory", apply=apply,
))
