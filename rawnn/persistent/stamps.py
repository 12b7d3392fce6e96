"""The stamps of a traced kernel: which phase of the schedule ends at each, and what part of it."""

from __future__ import annotations

from dataclasses import dataclass

from rawnn.persistent.phases import (
    GRADIENT,
    OVERFLOW,
    STATISTICS,
    AgreeOnStep,
    Barrier,
    CheckOverflow,
    Exchange,
    Gemm,
    GradientAllReduce,
    Phase,
    Prefetch,
    Softmax,
    SumLoss,
    WaitForInput,
    WeightAllGather,
)
from rawnn.persistent.schedule import Schedule
from rawnn.persistent.sharding import Sharding


@dataclass(frozen=True)
class Stamp:
    """The end of a part of a phase. `phase` is its line in the cost table; `part` says what a block
    did in it."""

    phase: str
    part: str = "work"


def stamps(schedule: Schedule) -> list[Stamp]:
    """The stamps of a step in order."""
    return [*stamps_of(schedule.sharding, schedule.micro_batch) * schedule.sharding.micro_batches,
            *stamps_of(schedule.sharding, schedule.step)]


def stamps_of(d: Sharding, phases: tuple[Phase, ...]) -> list[Stamp]:
    """The stamps of some phases. The barrier behind a phase often stamps in its place."""
    return [Stamp(phase.name, part) for phase in phases for part in _parts(d, phase)]


def _parts(d: Sharding, phase: Phase) -> list[str]:
    match phase:
        case Gemm(kind=kind):
            return ["work", "parts"] if kind != GRADIENT and phase.tiling(d).split > 1 else ["work"]
        case Barrier(part=part):
            return [part] if part else []
        case Exchange(name=name) if name == OVERFLOW:
            return []
        case Exchange(name=name) if name == STATISTICS:
            return ["wait"]
        case Exchange():  # via L2, waiting and reducing interleave
            return [*["wait"] * (not d.via_l2), *["share"] * bool(phase.epilogue.send)]
        case Softmax():
            return ["slice"] if phase.statistics else []
        case CheckOverflow():
            return ["send"] if d.dp_size > 1 else []
        case AgreeOnStep() | GradientAllReduce():
            return ["work"]
        case Prefetch():
            return ["fetch"]
        case SumLoss():
            return ["tally"]
        case WeightAllGather():
            return ["changes"]
        case WaitForInput():
            return ["next input"]
    return []
