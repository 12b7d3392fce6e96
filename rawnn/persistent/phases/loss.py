"""What a step's examples contribute to its loss: tallies of an example or a thread, their sum in a
step, and the losses of all steps behind the steps. Also the epilogue of a mean over elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rawnn.persistent.phases.phase import Phase
from rawnn.persistent.sharding import SHARDED, Sharding, up
from rawnn.persistent.writer import literal

if TYPE_CHECKING:
    from rawnn.persistent.writer import Kernel

AT_ONCE, BY_FIRST, BY_LAST = "at once", "by the first block", "by the last block"
"""When a step's loss is stored (`Layout.reports`)."""


def tallies(d: Sharding) -> int:
    """Tallies of a step in shared memory: of each example, or where the loss is a mean over
    elements, of each thread that may have some, two or more as the last GEMM ends."""
    p = d.problem
    if d.stores_tallies:
        return 1
    most = up(d.outs(p.depth - 1), 16) * d.columns // 2
    return d.columns if p.labelled else min(d.threads, most)


@dataclass(frozen=True)
class StoreTallies(Phase):
    """Each thread stores what its elements contribute to a loss in an epilogue."""

    label, part_at_barrier = "tallies", None

    def writes(self, d: Sharding) -> set[str]:
        return {"tallies"}

    def emit(self, k: Kernel) -> None:
        k.w(f"if (thread < {tallies(k.d)}) tallies[thread] = tallied;")


@dataclass(frozen=True)
class SumLoss(Phase):
    """The last warp adds up what the examples of the step contribute to the loss: the tallies of a
    block, or of a group where all blocks have the same outputs."""

    label, part_at_barrier = "sum of losses", None

    def reads(self, d: Sharding) -> set[str]:
        return {"tallies"}

    def stamps(self, d: Sharding) -> Sequence[str]:
        return ("tally",)

    def emit(self, k: Kernel) -> None:
        d, w = k.d, k.w
        repeated = d.boundaries[-1] != SHARDED
        place = "group" if repeated else "rank" if d.members else "blockIdx.x"
        w(f"if (warp_index() == {d.warps - 1}{' && rank == 0' if repeated else ''}) {{")
        w(f"const Tally total = add_tallies<{tallies(d)}, {literal(k.p.labelled)}>(tallies);")
        w("if (lane_index() == 0) {")
        if d.evaluates:
            w("evaluated.loss += static_cast<double>(total.loss);")
            w("evaluated.right += total.right;")
        elif k.layout.reports == AT_ONCE:
            w(f"loss[cursor_now + u] = total.loss / {k.terms('u')};")
            if k.p.measured:
                w("correct[cursor_now + u] = total.right;")
        else:
            w(f"reinterpret_cast<float2*>(tally)[{k.counter} * {k.layout.parts}ll + "
              f"{place}] = make_float2(total.loss, __int_as_float(total.right));")
        w("}")
        w("}")
        k.stamp(self.name, "tally")


# -- in an epilogue --------------------------------------------------------------------------------
def gradient_scaling(k: Kernel) -> str:
    """C++: what becomes of gradients of the outputs in fp16; "" in other dtypes."""
    return "ScaledGradient{scaling->scale, found}" if k.p.scaled else ""


def declare_elementwise_loss(k: Kernel) -> None:
    """The epilogue of the last phase of the forward pass, of a mean over elements."""
    d, p, w, last = k.d, k.p, k.w, k.p.depth
    if p.reconstruct:
        offset = f" + rank * {d.shards[last]}" \
            if d.boundaries[0] != SHARDED and d.boundaries[last] == SHARDED else ""
        targets, pitch = f"x{offset}", k.layout.input_pitch
    else:
        pitch = k.layout.target_pitch
        targets = f"{k.at('y')}{k.of_buffer(f'({k.counter} & 1)', d.columns * pitch)}"
    scaled = f", {k.type_of(last)}" + (", ScaledGradient" if p.scaled else "")
    w("Tally tallied = {0.0f, 0};")
    w(f"const OutputsLoss<Shape, {p.loss}, {pitch}, {d.outs(last - 1)}{scaled}> of_outputs = {{"
      f"{k.z(last)}, {targets}, {k.count(last)}, present, "
      f"{k.mean(p.batch * p.outputs)}, &tallied, {gradient_scaling(k) or '{}'}}};")


# -- behind the steps ------------------------------------------------------------------------------
def take_ticket(k: Kernel) -> None:
    """Finds out which block is the last one while weights are stored."""
    if k.layout.reports == BY_LAST:
        k.w(f"int* const last = reinterpret_cast<int*>{k.at('tallies')};")
        k.w("take_ticket<Shape>(counters, last);")


def report(k: Kernel) -> None:
    """Adds up and stores the losses of all steps, unless each step has stored its own."""
    d, p, w, found = k.d, k.p, k.w, k.layout
    if found.reports == AT_ONCE:
        return
    w("const auto report = [=](int step, const Tally& total) {")
    w(f"loss[cursor_now + step] = total.loss / {k.terms('step')};")
    if p.measured:
        w("correct[cursor_now + step] = total.right;")
    w("};")
    left, parts = "reinterpret_cast<const float2*>(tally)", found.parts * d.micro_batches
    total = f"sum_kept<Shape>({left}, {parts}, span, report);" if d.stores_tallies else \
        f"sum_parts<Shape, {parts}, {found.dynamic_bytes // 4}>({left}, shared, span, report);"
    if found.reports == BY_FIRST and d.splits_examples:
        w(f"const int steps_of_block = (span + {d.tp_size - 1}) / {d.tp_size};")
        w("const int first_step = rank * steps_of_block;")
        w(f"sum_kept<Shape>({left} + first_step * {parts}ll, {parts}, "
          "max(0, min(steps_of_block, span - first_step)), [=](int step, const Tally& total) { "
          "report(first_step + step, total); });")
        return
    if found.reports == BY_FIRST:
        w(f"{'if (rank == 0) ' * (d.tp_size > 1)}{total}")
        return
    w("__syncthreads();")
    w("if (*last != 0) {")
    w(total)
    w(f"if (thread <= {found.counters}) counters[thread] = 0u;")
    if found.has_epoch_boundary:
        w("if (thread == 0) tick_clock(clock, steps);")
    w("}")
