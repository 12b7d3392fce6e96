"""Which phases of a schedule need a barrier between them: what one writes to shared memory and
another reads or writes."""

from __future__ import annotations

from dataclasses import dataclass

from rawnn.persistent.schedule import (
    ACTIVATE,
    ACTIVATE_BACKWARD,
    UPDATE,
    Barrier,
    ClearInput,
    ConvertInput,
    Exchange,
    Gemm,
    GradientAllReduce,
    Phase,
    Schedule,
    Softmax,
    StoreTallies,
    SumLoss,
    WaitForInput,
    WeightAllGather,
)
from rawnn.persistent.sharding import Sharding


def touched(d: Sharding, phase: Phase) -> tuple[set[str], set[str]]:
    """The buffers in shared memory that a phase reads and writes."""
    reads: set[str] = set()
    writes: set[str] = set()
    match phase:
        case Gemm(epilogue=end) | Exchange(epilogue=end):
            reads = {end.bias, end.saved if end.function == ACTIVATE_BACKWARD else ""}
            writes = {end.to, end.saved if end.function == ACTIVATE else "",
                      end.to.replace("w", "b") if end.function == UPDATE else ""}
            if isinstance(phase, Gemm):
                reads |= {phase.left, phase.right}
                writes |= {"scratch"} if phase.tiling(d).split > 1 else set()
            elif end.to == "statistics":
                writes = set()  # the exchange waits for all of them, and for all threads
            elif phase.parts > 1 and d.via_l2 and d.teams(phase.rows // d.tp_size) > 1:
                writes |= {"scratch"}
                if phase.scratch_busy:  # which has a barrier of its own
                    writes -= {"scratch"}
        case ConvertInput() | ClearInput():
            writes = {"x"}
        case Softmax(statistics=True):
            reads = {phase.logits}
            writes = {phase.logits, "" if phase.send else "statistics"}
        case Softmax():
            reads, writes = {phase.logits, "y", "statistics"}, {phase.to, "tallies"}
        case StoreTallies():
            writes = {"tallies"}
        case SumLoss():
            reads = {"tallies"}
        case GradientAllReduce() | WeightAllGather():
            layers = range(1, d.problem.depth + 1)
            writes = {f"{name}{n}" for n in layers for name in "wb"}
    return reads - {""}, writes - {""}


@dataclass(frozen=True)
class Hazard:
    """Two phases without a barrier between them, and a buffer that one of them writes."""

    first: Phase
    second: Phase
    buffer: str


def hazards(schedule: Schedule) -> list[Hazard]:
    """Those of two micro-batches and two steps, one behind the other."""
    d, found = schedule.sharding, []
    since: list[Phase] = []
    for phase in (*schedule.micro_batch * min(d.micro_batches, 2), *schedule.step) * 2:
        if isinstance(phase, (Barrier, WaitForInput)):
            since = []
            continue
        reads, writes = touched(d, phase)
        for other in since:
            other_reads, other_writes = touched(d, other)
            both = (reads & other_writes) | (writes & (other_reads | other_writes))
            if isinstance(phase, Softmax) and isinstance(other, Softmax):
                both -= {phase.logits, phase.to}  # each warp has the same logits in both halves
            if isinstance(phase, (GradientAllReduce, WeightAllGather)) and not isinstance(
                    other, Gemm):
                both = set()  # a warp updates the same tiles in both
            found += [Hazard(other, phase, name) for name in sorted(both)]
        since.append(phase)
    return found
