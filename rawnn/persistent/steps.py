"""Emits a step: a walk over the schedule, with one method for each class of phase."""

from __future__ import annotations

from rawnn.persistent import phases
from rawnn.persistent.gemms import GemmEmitter
from rawnn.persistent.inputs import InputEmitter
from rawnn.persistent.layout import Layout
from rawnn.persistent.loss import LossEmitter
from rawnn.persistent.phases import Phase
from rawnn.persistent.sharding import ceil
from rawnn.persistent.updates import UpdateEmitter
from rawnn.persistent.writer import Emitter, Kernel


def first_warps(layout: Layout) -> list[int]:
    """The warp that has the first task of each phase of a micro-batch. Without a barrier between
    them, a weight gradient begins at the first warp that has no task of the GEMM before it."""
    d, first, found = layout.sharding, 0, []
    for phase in layout.schedule.micro_batch:
        found.append(first)
        if isinstance(phase, phases.Gemm) and phase.kind == phases.GRADIENT:
            tiles = layout.layers[phase.layer].update
            sums = ceil(ceil(phase.n, 8), tiles.across) if d.problem.bias else 0
            first = (first + tiles.tasks + sums) % d.warps
        elif isinstance(phase, phases.Gemm):
            tiles = phase.tiling(d)
            alone = phase.kind == phases.BACKWARD and not phase.epilogue.send and tiles.split == 1
            first = tiles.tasks % d.warps if alone else 0
        elif isinstance(phase, phases.Barrier):
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
        listed = self.schedule.micro_batch
        begin = next(phase for phase in listed if isinstance(phase, (phases.Gemm, phases.Prefetch)))
        conditional = False
        for phase, first_warp in zip(listed, first_warps(self.layout), strict=True):
            if phase is begin:
                self.gemms.begin_forward()
            if conditional != (isinstance(phase, phases.Gemm) and phase.conditional):
                conditional = not conditional
                self.w("if (!skipped) {" if conditional else "}")
            self.emit(phase, first_warp)
        if conditional:
            self.w("}")
        self.k.in_micro_batch = False

    def behind_micro_batches(self) -> None:
        reduction = [phase for phase in self.schedule.step
                     if isinstance(phase, (phases.GradientAllReduce, phases.WeightAllGather))]
        if reduction:
            self.updates.begin_all_reduce()
        for phase in self.schedule.step:
            self.emit(phase)
            if reduction and phase is reduction[-1]:
                self.w("}")

    def emit(self, phase: Phase, first_warp: int = 0) -> None:
        match phase:
            case phases.Gemm(kind=phases.GRADIENT):
                self.gemms.weight_gradient(phase, first_warp)
            case phases.Gemm():
                self.gemms.gemm(phase)
            case phases.Exchange():
                self.gemms.exchange(phase)
            case phases.Barrier():
                self.barrier(phase)
            case phases.ConvertInput():
                self.inputs.convert_input()
            case phases.ClearInput():
                self.inputs.clear_input()
            case phases.Prefetch():
                self.inputs.prefetch(phase)
            case phases.WaitForInput():
                self.inputs.wait_for_next_input(phase)
            case phases.Softmax():
                self.loss.softmax(phase)
            case phases.StoreTallies():
                self.loss.store_tallies()
            case phases.LoadRate():
                self.loss.load_rate()
            case phases.SumLoss():
                self.loss.sum_loss(phase)
            case phases.CheckOverflow():
                self.updates.check_overflow(phase)
            case phases.AgreeOnStep():
                self.updates.agree_on_step(phase)
            case phases.AdjustLossScale():
                self.updates.adjust_loss_scale()
            case phases.GradientAllReduce():
                self.updates.all_reduce(phase)
            case phases.WeightAllGather():
                self.updates.all_gather(phase)
            case _:
                raise TypeError(f"no emitter for the phase {type(phase).__name__}")

    def barrier(self, phase: phases.Barrier) -> None:
        self.w("__syncthreads();")
        if phase.part:
            self.k.stamp(phase.name, phase.part)
