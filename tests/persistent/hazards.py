"""Which phases of a schedule need a barrier between them: what one writes to shared memory and
another reads or writes. Unlike the schedule it looks at all steps, one after the other."""

from __future__ import annotations

from dataclasses import dataclass

from rawnn.persistent.phases.gemm import GRADIENT, Gemm
from rawnn.persistent.phases.gradient_all_reduce import GradientAllReduce, WeightAllGather
from rawnn.persistent.phases.input import WaitForInput
from rawnn.persistent.phases.phase import Barrier, Phase
from rawnn.persistent.phases.softmax import Softmax
from rawnn.persistent.schedule import Schedule


@dataclass(frozen=True)
class Hazard:
    """Two phases without a barrier between them, and a buffer that one of them writes."""

    first: Phase
    second: Phase
    buffer: str


def conflicts(schedule: Schedule, first: Phase, second: Phase) -> set[str]:
    """The buffers for which the second phase must wait for the first."""
    d = schedule.sharding
    read, written, to_read, to_write = (
        {schedule.aliases.get(name, name) for name in names}
        for names in (first.reads(d), first.writes(d), second.reads(d), second.writes(d)))
    both = (written & to_read) | (to_write & (read | written))
    if isinstance(first, Softmax) and isinstance(second, Softmax):
        both -= {second.logits, second.to}  # each warp has the same logits in both halves
    if isinstance(second, (GradientAllReduce, WeightAllGather)) and (
            not isinstance(first, Gemm) or first.kind == GRADIENT):
        return set()  # a warp updates the same tiles in both, and gradients are published
    return both


def hazards(schedule: Schedule) -> list[Hazard]:
    """Those of two micro-batches and two steps, one behind the other."""
    d, found = schedule.sharding, list[Hazard]()
    since: list[Phase] = []
    for phase in (*schedule.micro_batch * min(d.micro_batches, 2), *schedule.step) * 2:
        if isinstance(phase, (Barrier, WaitForInput)):
            since = []
            continue
        found += [Hazard(other, phase, name) for other in since
                  for name in sorted(conflicts(schedule, other, phase))]
        since.append(phase)
    return found
