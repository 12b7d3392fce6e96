"""`streams`: independent work runs in parallel.

Launch by launch, a second stream fetches the next batch while the current step computes. In a
graph, ops are ordered by their reads and writes alone, so that independent ones (a layer's weight
gradient, the gradient for the layer below, the next batch) get branches of their own. Without
`streams` they form one chain.

`Policy.streams` is read by engine/runners/gpu.py (the second stream is engine/runners/overlap.py),
by graphs/unrolling.py (the chain), by engine/runners/arenas.py, which places batches once for the
second stream, and by engine/runners/prepared_run.py, which counts both buffers of a batch.
"""

from __future__ import annotations

from dataclasses import replace

from rawnn.opts.registry import Rewritten, Toggle, register
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy


def apply(plan: Plan, policy: Policy, value: str | int | None) -> Rewritten:
    return plan, replace(policy, streams=True)


register(Toggle(
    "streams",
    claim="the next batch is fetched while a step computes; in a graph, independent ops run on "
          "parallel branches",
    source="copy engines and SMs work side by side; double buffering",
    group="scheduling", apply=apply,
))
