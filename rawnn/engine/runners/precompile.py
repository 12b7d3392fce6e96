"""Compiles the kernels of several runs together, before the first of them.

A run compiles its own kernels in parallel, but many runs have one that takes much longer than the
rest (that of `persistent`: seconds). The runs of a measurement follow one another, so compiling all
of their kernels at once keeps every core busy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rawnn.cuda.device import Device
from rawnn.engine.runners.lowering import Lowering, compilation_of
from rawnn.engine.runners.prepared_run import PreparedRun
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy


def precompile(device: Device, prepared_runs: Iterable[PreparedRun]) -> None:
    """Compile and load the kernels of the runs' steps, evaluations and epoch boundaries, each once,
    on all cores. The runs themselves compile what graphs need in addition and what `tune` tries.
    Does nothing on a simulated device. Raises CompileError."""
    if not device.backend.parallel:
        return
    plans_of: dict[Policy, list[Plan]] = {}
    for prepared in prepared_runs:
        plans_of.setdefault(compilation_of(prepared.policy), []).extend(_plans(prepared))
    for policy, plans in plans_of.items():
        lowering = Lowering(device, policy)
        try:
            lowering.compile(plans)
        finally:
            lowering.close()


def _plans(prepared: PreparedRun) -> Iterator[Plan]:
    yield from prepared.step_plans
    yield from (prepared.start, prepared.refresh, prepared.epoch_begin, prepared.epoch_end,
                prepared.epoch_boundary, prepared.assemble)
    yield from (part.plan for part in prepared.evaluate)
