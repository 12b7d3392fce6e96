"""Emits a step: a walk over the schedule, with one method for each class of phase."""

from __future__ import annotations

from rawnn.persistent.gemms import GemmWriter
from rawnn.persistent.layout import Layout
from rawnn.persistent.schedule import (
    BACKWARD,
    GRADIENT,
    AdjustLossScale,
    AgreeOnStep,
    Barrier,
    CheckOverflow,
    ClearInput,
    ConvertInput,
    Exchange,
    Gemm,
    GradientAllReduce,
    LoadRate,
    Phase,
    Prefetch,
    Softmax,
    StoreTallies,
    SumLoss,
    WaitForInput,
    WeightAllGather,
)
from rawnn.persistent.sharding import ceil


def first_warps(layout: Layout) -> list[int]:
    """The warp that has the first task of each phase of a micro-batch. Without a barrier between
    them, a weight gradient begins at the first warp that has no task of the GEMM before it."""
    d, first, found = layout.sharding, 0, []
    for phase in layout.schedule.micro_batch:
        found.append(first)
        if isinstance(phase, Gemm) and phase.kind == GRADIENT:
            tiles = layout.layers[phase.layer].update
            sums = ceil(ceil(phase.n, 8), tiles.across) if d.problem.bias else 0
            first = (first + tiles.tasks + sums) % d.warps
        elif isinstance(phase, Gemm):
            tiles = phase.tiling(d)
            alone = phase.kind == BACKWARD and not phase.epilogue.send and tiles.split == 1
            first = tiles.tasks % d.warps if alone else 0
        elif isinstance(phase, Barrier):
            first = 0
    return found


class StepWriter(GemmWriter):
    """Emits the phases of a step in their order."""

    def step(self) -> None:
        d, w = self.d, self.w
        for layer, stream in enumerate(self.p.streams):
            n = layer + 1
            w(f"const ByChance<{self.p.layers[layer]}> chance{n} = {{seed, {stream}u, "
              f"steps_before + u, part{n}.out, part{n}.in}};")
        self.emit_flag_bit()
        if d.micro_batches > 1:
            w(f"for (int part = 0; part < {d.micro_batches}; ++part) {{")
            w(f"const int t = u * {d.micro_batches} + part;")
        self.micro_batch()
        if d.micro_batches > 1:
            w("}")
        self.behind_micro_batches()

    def micro_batch(self) -> None:
        self.in_micro_batch = True
        self.begin_micro_batch()
        conditional = False
        warps = first_warps(self.layout)
        for phase, first_warp in zip(self.schedule.micro_batch, warps, strict=True):
            if conditional != (isinstance(phase, Gemm) and phase.conditional):
                conditional = not conditional
                self.w("if (!left_out) {" if conditional else "}")
            self.emit(phase, first_warp)
        if conditional:
            self.w("}")
        self.in_micro_batch = False

    def behind_micro_batches(self) -> None:
        reduction = [phase for phase in self.schedule.step
                     if isinstance(phase, (GradientAllReduce, WeightAllGather))]
        if reduction:
            self.begin_all_reduce()
        for phase in self.schedule.step:
            self.emit(phase)
            if reduction and phase is reduction[-1]:
                self.w("}")

    def emit(self, phase: Phase, first_warp: int = 0) -> None:
        match phase:
            case Gemm(kind=kind) if kind == GRADIENT:
                self.weight_gradient(phase, first_warp)
            case Gemm():
                self.gemm(phase)
            case Exchange():
                self.exchange(phase)
            case Barrier():
                self.barrier(phase)
            case ConvertInput():
                self.convert_input()
            case ClearInput():
                self.clear_input()
            case Prefetch():
                self.prefetch(phase)
            case WaitForInput():
                self.wait_for_next_input(phase)
            case Softmax():
                self.softmax(phase)
            case StoreTallies():
                self.store_tallies()
            case LoadRate():
                self.load_rate()
            case SumLoss():
                self.sum_loss(phase)
            case CheckOverflow():
                self.check_overflow(phase)
            case AgreeOnStep():
                self.agree_on_step(phase)
            case AdjustLossScale():
                self.adjust_loss_scale()
            case GradientAllReduce():
                self.all_reduce(phase)
            case WeightAllGather():
                self.all_gather(phase)
            case _:
                raise NotImplementedError(type(phase).__name__)

    def barrier(self, phase: Barrier) -> None:
        self.w("__syncthreads();")
        if phase.part:
            self.stamp(phase.name, phase.part)
