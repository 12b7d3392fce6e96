"""The stamps of a traced kernel: which phase of the schedule ends at each, and what part of it."""

from __future__ import annotations

from dataclasses import dataclass

from rawnn.persistent import phases
from rawnn.persistent.phases import Phase
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


def stamps_of(d: Sharding, listed: tuple[Phase, ...]) -> list[Stamp]:
    """The stamps of some phases. The barrier behind a phase often stamps in its place."""
    return [Stamp(phase.name, part) for phase in listed for part in _parts(d, phase)]


def _parts(d: Sharding, phase: Phase) -> list[str]:
    match phase:
        case phases.Gemm(kind=kind) if kind != phases.GRADIENT and phase.tiling(d).split > 1:
            return ["work", "parts"]
        case phases.Gemm() | phases.AgreeOnStep() | phases.GradientAllReduce():
            return ["work"]
        case phases.Barrier(part=part):
            return [part] if part else []
        case phases.Exchange(name=phases.OVERFLOW):
            return []
        case phases.Exchange(name=phases.STATISTICS):
            return ["wait"]
        case phases.Exchange():  # via L2, waiting and reducing interleave
            return [*["wait"] * (not d.via_l2), *["share"] * bool(phase.epilogue.send)]
        case phases.Softmax():
            return ["slice"] if phase.statistics else []
        case phases.CheckOverflow():
            return ["send"] if d.dp_size > 1 else []
        case phases.Prefetch():
            return ["fetch"]
        case phases.SumLoss():
            return ["tally"]
        case phases.WeightAllGather():
            return ["changes"]
        case phases.WaitForInput():
            return ["next input"]
    return []
