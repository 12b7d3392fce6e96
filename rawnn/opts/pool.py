"""`pool`: a caching allocator reuses freed memory.

`Policy.allocator` is read by engine/runners/arenas.py, and by opts/shards.py: copy engines
move gradients between ranks only with `arena`.
"""

from __future__ import annotations

from dataclasses import replace

from rawnn.opts.registry import Rewritten, Toggle, register
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy


def apply(plan: Plan, policy: Policy, value: str | int | None) -> Rewritten:
    return plan, replace(policy, allocator="pool")


register(Toggle(
    "pool",
    claim="a caching allocator of our own keeps freed memory and reuses it",
    source="the caching allocators of PyTorch and CuPy; only the first step calls the driver",
    group="memory", apply=apply, conflicts=("arena", "async"),
))
