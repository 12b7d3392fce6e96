"""`async`: the driver's stream-ordered memory pool, which keeps freed memory.

`Policy.allocator` is read by engine/runners/arenas.py, and by opts/shards.py: copy engines
move gradients between ranks only with `arena`.
"""

from __future__ import annotations

from dataclasses import replace

from rawnn.opts.registry import Machine, Rewritten, Toggle, register
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy


def apply(plan: Plan, policy: Policy, value: str | int | None) -> Rewritten:
    return plan, replace(policy, allocator="async")


def needs(machine: Machine) -> str | None:
    if machine.memory_pools:
        return None
    return "needs a GPU and driver with memory pools"


register(Toggle(
    "async",
    claim="cuMemAllocAsync and cuMemFreeAsync, with a pool that keeps freed memory",
    source="CUDA's stream-ordered memory allocator, its release threshold raised",
    group="memory", apply=apply, needs=needs, needs_text="memory pools",
    conflicts=("arena", "pool"),
))
