"""Emits a step: a walk over the schedule, with one method for each class of phase."""

from __future__ import annotations

from rawnn.persistent.gemms import GemmEmitter
from rawnn.persistent.inputs import InputEmitter
from rawnn.persistent.layout import Layout
from rawnn.persistent.loss import LossEmitter
from rawnn.persistent.phases import (
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
from rawnn.persistent.updates import UpdateEmitter
from rawnn.persistent.writer import Emitter, Kernel


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


class StepEmitter(Emitter):
    """Emits the phases of a step in their order."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.gemms, self.loss = GemmEmitter(kernel), LossEmitter(kernel)
        self.inputs, self.updates = InputEmitter(kernel), UpdateEmitter(kernel)

    def step(self) -> None:
        d, w = self.d, self.w
        for layer, stream in enumerate(() if d.evaluates else self.p.streams):
            n = layer + 1
            w(f"const StochasticRounding<{self.p.layers[layer]}> rounding{n} = {{seed, {stream}u, "
              f"steps_before + u, shard{n}.out, shard{n}.in}};")
        self.updates.emit_flag_bit()
        if d.micro_batches > 1:
            w(f"for (int micro_batch = 0; micro_batch < {d.micro_batches}; ++micro_batch) {{")
            w(f"const int t = u * {d.micro_batches} + micro_batch;")
        self.micro_batch()
        if d.micro_batches > 1:
            w("}")
        self.behind_micro_batches()

    def micro_batch(self) -> None:
        self.k.in_micro_batch = True
        self.inputs.begin_micro_batch()
        phases = self.schedule.micro_batch
        begin = next(i for i, phase in enumerate(phases) if isinstance(phase, (Gemm, Prefetch)))
        conditional = False
        for i, (phase, first_warp) in enumerate(zip(phases, first_warps(self.layout), strict=True)):
            if i == begin:
                self.gemms.begin_forward()
            if conditional != (isinstance(phase, Gemm) and phase.conditional):
                conditional = not conditional
                self.w("if (!skipped) {" if conditional else "}")
            self.emit(phase, first_warp)
        if conditional:
            self.w("}")
        self.k.in_micro_batch = False

    def behind_micro_batches(self) -> None:
        reduction = [phase for phase in self.schedule.step
                     if isinstance(phase, (GradientAllReduce, WeightAllGather))]
        if reduction:
            self.updates.begin_all_reduce()
        for phase in self.schedule.step:
            self.emit(phase)
            if reduction and phase is reduction[-1]:
                self.w("}")

    def emit(self, phase: Phase, first_warp: int = 0) -> None:
        match phase:
            case Gemm(kind=kind) if kind == GRADIENT:
                self.gemms.weight_gradient(phase, first_warp)
            case Gemm():
                self.gemms.gemm(phase)
            case Exchange():
                self.gemms.exchange(phase)
            case Barrier():
                self.barrier(phase)
            case ConvertInput():
                self.inputs.convert_input()
            case ClearInput():
                self.inputs.clear_input()
            case Prefetch():
                self.inputs.prefetch(phase)
            case WaitForInput():
                self.inputs.wait_for_next_input(phase)
            case Softmax():
                self.loss.softmax(phase)
            case StoreTallies():
                self.loss.store_tallies()
            case LoadRate():
                self.loss.load_rate()
            case SumLoss():
                self.inputs.sum_loss(phase)
            case CheckOverflow():
                self.updates.check_overflow(phase)
            case AgreeOnStep():
                self.updates.agree_on_step(phase)
            case AdjustLossScale():
                self.updates.adjust_loss_scale()
            case GradientAllReduce():
                self.updates.all_reduce(phase)
            case WeightAllGather():
                self.updates.all_gather(phase)
            case _:
                raise TypeError(f"no emitter for the phase {type(phase).__name__}")

    def barrier(self, phase: Barrier) -> None:
        self.w("__syncthreads();")
        if phase.part:
            self.k.stamp(phase.name, phase.part)
