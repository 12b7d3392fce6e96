"""Emits a step: a walk over the phases of the schedule, and what stands around them."""

from __future__ import annotations

from collections.abc import Iterable

from rawnn.persistent.phases.input import declare_input
from rawnn.persistent.phases.phase import Phase
from rawnn.persistent.writer import Kernel


def emit_step(k: Kernel) -> None:
    """The micro-batches of a step, and the phases behind them."""
    d, w = k.d, k.w
    for layer, stream in enumerate(() if d.evaluates else k.p.streams):
        n = layer + 1
        w(f"const StochasticRounding<{k.p.layers[layer]}> rounding{n} = {{seed, {stream}u, "
          f"steps_before + u, shard{n}.out, shard{n}.in}};")
    all_reduce = k.schedule.all_reduce
    if all_reduce:
        all_reduce.begin_step(k)
    if d.micro_batches > 1:
        w(f"for (int micro_batch = 0; micro_batch < {d.micro_batches}; ++micro_batch) {{")
        w(f"const int t = u * {d.micro_batches} + micro_batch;")
    k.in_micro_batch = True
    declare_input(k)
    emit_phases(k, k.schedule.micro_batch)
    k.in_micro_batch = False
    if d.micro_batches > 1:
        w("}")
    if all_reduce:
        all_reduce.begin(k)
    emit_phases(k, k.schedule.step)


def emit_phases(k: Kernel, listed: Iterable[Phase]) -> None:
    """The phases in their order; neighbors that run only if the step counts, in one scope."""
    conditional = False
    for phase in with_first_warps(k, listed):
        if conditional != phase.is_conditional:
            conditional = not conditional
            k.w("if (!skipped) {" if conditional else "}")
        phase.emit(k)
    if conditional:
        k.w("}")


def with_first_warps(k: Kernel, listed: Iterable[Phase]) -> Iterable[Phase]:
    """The phases, each with its first warp in `k`. Without a barrier between them, a weight
    gradient begins at the first warp that has no task of the GEMM before it."""
    k.first_warp = 0
    for phase in listed:
        yield phase
        k.first_warp = phase.next_warp(k.layout, k.first_warp)
