"""Why a step takes as long as it does: its launches, the bytes that they move, and what no program
could do without."""

from __future__ import annotations

from typing import Any

from rawnn.bench.costing import least_time
from rawnn.bench.gpu_limits import kept
from rawnn.bench.moved import least, moved
from rawnn.engine.machine import Opened
from rawnn.engine.runners.prepared_run import PreparedRun


def footprint(work: PreparedRun, facts: dict[str, Any], opened: Opened) -> dict[str, float]:
    """Metrics of a run's measured step; `facts` are what its runner describes.

    `launches` of kernels, library calls and copies, 0 on the host; `step_bytes` that they read and
    write by the plan, a tensor counted as often as an op touches it (what a library keeps for
    itself is not known); `least_bytes` that any program must move: each example and its answer
    once, parameters and optimizer state read and written once; `graph_nodes`, where there is a
    graph; `steps` of an epoch. `lower_bound_us` and its parts are the least time of a step by this
    GPU's limits, where they are kept."""
    plan = work.train
    found: dict[str, float] = {
        "launches": len(plan.ops) / plan.steps if opened.device else 0.0,
        "step_bytes": moved(plan) // plan.steps, "least_bytes": least(plan) // plan.steps,
        "steps": work.updates}
    if facts.get("graph_nodes") is not None:
        found["graph_nodes"] = facts["graph_nodes"]
    device = opened.device
    limits = kept(device.info.name, device.info.driver) if device else None
    bound = least_time(work.train, limits) if limits else None
    if bound is not None:
        found |= {"lower_bound_us": bound.us, "lower_bound_memory_us": bound.memory_us,
                  "lower_bound_arithmetic_us": bound.arithmetic_us,
                  "lower_bound_waiting_us": bound.waiting_us,
                  "lower_bound_exchanges": bound.exchanges}
    return found
