"""The kernels of several runs compiled beside each other, ahead of the first.

A run compiles its own kernels side by side, but many have one that takes longest by itself (that of
`persistent`: seconds), and runs of a measurement follow one another: all of their kernels at once
keep every core busy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rawnn.cuda.device import Device
from rawnn.engine.runners.lowering import Lowering, compilation_of
from rawnn.engine.runners.prepared_run import PreparedRun
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy


def precompile(device: Device, works: Iterable[PreparedRun]) -> None:
    """Compile and load what the runs' steps, evaluations and what is around them need, each kernel
    once, on all cores. What graphs need besides, and what `tune` tries, is left to the runs.
    Does nothing on a simulated device. Raises CompileError."""
    if not device.backend.parallel:
        return
    plans_of: dict[Policy, list[Plan]] = {}
    for work in works:
        plans_of.setdefault(compilation_of(work.policy), []).extend(_plans(work))
    for policy, plans in plans_of.items():
        lowering = Lowering(device, policy)
        try:
            lowering.compile(plans)
        finally:
            lowering.close()


def _plans(work: PreparedRun) -> Iterator[Plan]:
    yield from work.step_plans
    yield from (work.start, work.refresh, work.epoch_begin, work.epoch_end, work.epoch_boundary,
                work.assemble)
    yield from (part.plan for part in work.evaluate)
