"""How the examples of a step come to a block: fetched one micro-batch ahead, and converted to what
the first layer's GEMMs read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rawnn.persistent.phases.exchange import end_exchanges
from rawnn.persistent.phases.gemm import declare_for_epilogues
from rawnn.persistent.phases.phase import BETWEEN, INPUTS, Line, Phase
from rawnn.persistent.sharding import REPLICATED, WARP, Sharding, ceil, up
from rawnn.persistent.writer import literal

if TYPE_CHECKING:
    from rawnn.persistent.cost import CostModel
    from rawnn.persistent.interpreter import Block, Interpreter
    from rawnn.persistent.writer import Kernel

INPUT = "input"
ORDERED_AT_ONCE, ORDERS_OF_A_THREAD = 256, 4
"""Most examples whose order is computed at once, if that is several micro-batches: in all, and per
thread."""


# -- a micro-batch ---------------------------------------------------------------------------------
@dataclass(frozen=True)
class ConvertInput(Phase):
    """Rows as the data set stores them become the operand `x` of layer 1."""

    lane = INPUTS

    def reads(self, d: Sharding) -> set[str]:
        return {"raw"}

    def writes(self, d: Sharding) -> set[str]:
        return {"x"}

    def cost(self, model: CostModel) -> Iterator[Line]:
        d, costs = model.d, model.costs
        shards = d.tp_size if d.boundaries[0] != REPLICATED else 1
        quads = d.columns * ceil(ceil(model.p.layers[0], 4), shards)
        rounds = costs.convert_round * ceil(quads, d.threads)
        yield Line(self.name, model.rest * (costs.convert + rounds))

    def emit(self, k: Kernel) -> None:
        d, p, found = k.d, k.p, k.layout
        raw = f"reinterpret_cast<const {p.input_type}*>{k.at('raw')}" \
              f"{k.of_buffer(f'({k.counter} & 1)', d.columns * found.raw_pitch)}"
        vectors = f"{k.at('mean')}, {k.at('inverse_std')}" if p.normalised else "nullptr, nullptr"
        k.w(f"convert_rows<Shape, {literal(p.normalised)}, {d.ins(0)}, {found.input_pitch}, "
            f"{found.raw_pitch}>(x, {raw}, {literal(float(p.scale))}f, {vectors}, "
            f"{k.count(0)}, present);")

    def interpret(self, run: Interpreter, block: Block) -> None:
        block.at["x"] = block.at.pop("raw")


@dataclass(frozen=True)
class ClearInput(Phase):
    """A partial batch clears the rows of `x` that it has no examples for, and then has a block
    barrier of its own. Rows of an earlier step may be infinite, and infinity times 0 is NaN."""

    lane = INPUTS

    def reads(self, d: Sharding) -> set[str]:
        return {"x"}

    def emit(self, k: Kernel) -> None:
        k.w("if (cursor_now + u >= whole) {")
        k.w(f"clear_rows<Shape, {k.layout.input_pitch}>(x, present);")
        k.w("__syncthreads();")
        k.w("}")


def declare_input(k: Kernel) -> None:
    """Declares x, as the first layer's GEMMs read it."""
    d, p, w, t = k.d, k.p, k.w, k.counter
    if p.partial or d.micro_batches > 1:
        w(f"const int present = present_in({t});")
    if d.splits_examples:
        return
    if p.converted:
        w(f"float* const x = {k.at('x')};")
        return
    size = k.layout.input_floats * (2 if p.rounded else 1)
    place = k.values("x") if p.rounded else k.at("x")
    w(f"{k.type_of(0)}* const x = {place}{k.of_buffer(f'({t} & 1)', size)};")


# -- the next micro-batch --------------------------------------------------------------------------
@dataclass(frozen=True)
class Prefetch(Phase):
    """Threads from `first_thread` on start to copy the input of the next micro-batch, to the other
    buffer or, if it `overwrites` that of this one, to the same. That takes some 500 cycles (H200).
    """

    first_thread: int = 0
    overwrites: bool = False

    lane, label, part_at_barrier = INPUTS, "prefetch", None

    @property
    def runs_beside_next(self) -> bool:
        return self.first_thread > 0

    def writes(self, d: Sharding) -> set[str]:
        if not self.overwrites:
            return set()
        p = d.problem
        return {"raw" if p.converted else "x", *(() if p.labelled or p.reconstruct else ("y",))}

    def stamps(self, d: Sharding) -> Sequence[str]:
        return ("fetch",)

    def fetching(self, model: CostModel) -> float:
        size = 2 if model.p.rounded else model.p.input_size
        nbytes = model.d.micro_batch * model.d.ins(0) * size
        return model.costs.fetch + nbytes / model.costs.fetch_bytes

    def emit(self, k: Kernel) -> None:
        w, t = k.w, k.counter
        if self.first_thread:  # it stands ahead of the first GEMM
            declare_for_epilogues(k)
        some = f" && thread >= {self.first_thread}" if self.first_thread else ""
        w(f"if ({t} + 1 < {k.count_of_launch}{some}) {{")
        fetch(k, f"{t} + 1")
        w("ptx::commit_copies();")
        if (ahead := orders_at_once(k.d)) > 1:
            w(f"if (({t} + 2) % {ahead} == 0) {{")
            order_ahead(k, f"{t} + 2", self.first_thread)
            w("ptx::commit_copies();")
            w("}")
        elif k.p.ordered:
            w(f"if ({t} + 2 < {k.count_of_launch}) {{")
            w(f"fetch_order<Shape, {self.first_thread}, kBehindTargets>(fetched + ({t} & 1) * "
              f"{k.d.columns}, order, first_of({t} + 2), {k.present(f'{t} + 2')});")
            w("ptx::commit_copies();")
            w("}")
        w("}")
        k.stamp(self.name, "fetch")

    def interpret(self, run: Interpreter, block: Block) -> None:
        run.fetch(block, run.part + 1)


@dataclass(frozen=True)
class WaitForInput(Phase):
    """The input of the next micro-batch is complete, and all threads of the block are here. Ends
    the exchanges of this one."""

    lane, label = INPUTS, "wait for input"

    def stamps(self, d: Sharding) -> Sequence[str]:
        return ("next input",)

    def cost(self, model: CostModel) -> Iterator[Line]:
        d, costs = model.d, model.costs
        hidden = d.dp_size > 1 and d.micro_batches == 1
        yield Line(BETWEEN, model.rest * (costs.step - (costs.hidden_step if hidden else 0.0)))
        if model.exchanges_via_l2:
            yield Line("exchanges begin", costs.via_l2_step)

    def emit(self, k: Kernel) -> None:
        w, t = k.w, k.counter
        w(f"if ({t} + 1 < {k.count_of_launch}) {{")
        wait_for_input(k, f"{t} + 1")
        w("}")
        if k.p.labelled:
            w("labels_ahead.store(y);")
        end_exchanges(k)
        w("__syncthreads();")
        k.stamp(self.name, "next input")

    def interpret(self, run: Interpreter, block: Block) -> None:
        if not block.fetched:
            raise KeyError("nothing was fetched")
        block.at |= block.fetched
        block.fetched = {}


def wait_for_input(k: Kernel, step: str) -> None:
    k.w("ptx::wait_for_copies<0>();")
    k.w(f"if constexpr (kBulk) ptx::wait_for(barriers + 8 * (({step}) & 1), ({step}) >> 1 & 1);")


def orders_at_once(d: Sharding) -> int:
    """Micro-batches whose order a kernel of members computes at once, a power of two; 1 where
    nothing is computed."""
    if d.members is None or not d.members.shuffled:
        return 1
    found = 2
    while 2 * found * d.columns <= min(ORDERED_AT_ONCE, ORDERS_OF_A_THREAD * d.threads):
        found *= 2
    return found


def order_ahead(k: Kernel, first: str, first_thread: int) -> None:
    """Computes the order of the micro-batches from `first` on."""
    k.w(f"order_ahead<Shape, {first_thread}, {orders_at_once(k.d)}>(fetched, order, "
        f"{first}, {k.count_of_launch}, first_of, [=](int step) {{ return "
        f"{k.present('step')}; }});")


def fetch(k: Kernel, step: str) -> None:
    """Starts all copies of a micro-batch, but for the commit."""
    d, p, w, found = k.d, k.p, k.w, k.layout
    first_thread = k.schedule.prefetch.first_thread
    ordered = literal(p.ordered)
    buffer = f"(({step}) & 1)"
    rows = "nullptr"
    if p.ordered:
        ahead = orders_at_once(d)
        slot = buffer if ahead == 1 else f"(({step}) % {ahead + 1})"
        rows = f"fetched + {slot} * {d.columns}"
    start = k.first(0)
    if p.converted:
        size = d.columns * found.raw_pitch
        to = f"reinterpret_cast<{p.input_type}*>{k.at('raw')}{k.of_buffer(buffer, size)}"
        pitch = found.raw_pitch
    elif p.rounded:
        to = f"reinterpret_cast<{p.input_type}*>({k.at('x')}" \
             f"{k.of_buffer(buffer, found.input_floats)})"
        pitch = found.input_pitch
    else:
        to = f"{k.at('x')}{k.of_buffer(buffer, found.input_floats)}"
        pitch = found.input_pitch
    barrier = f"barriers + 8 * {buffer}"
    expected = f"engine_bytes<Shape, {d.ins(0)}, {p.input_type}>({k.count(0)})"
    if not p.labelled and not p.reconstruct:
        expected += f" + engine_bytes<Shape, {found.target_width}, float>({k.count(p.depth)})"
    present = k.present(step)
    # Only who waits for the barrier in each step may let bytes be expected of it in each step.
    engine = f"by_engine<Shape, {d.ins(0)}, {p.input_type}>()" if d.splits_examples else "kBulk"
    w(f"if ({engine} && thread == {d.threads - 32}) ptx::arrive_expecting({barrier}, {present} * "
      f"({expected}));")
    w("__syncwarp();")
    w(f"fetch_rows<Shape, {first_thread}, 0, {ordered}, {d.ins(0)}, {pitch}>({to}, "
      f"images, ldimages, {start}, {k.count(0)}, {rows}, first_of({step}), {present}, "
      f"{barrier});")
    if p.labelled:
        w(f"labels_ahead.fetch<{ordered}>(labels, {rows}, first_of({step}), {present});")
    elif not p.reconstruct:
        last = p.depth
        start = k.first(last)
        w(f"fetch_rows<Shape, {first_thread}, kBehindRows, {ordered}, "
          f"{found.target_width}, {found.target_pitch}>({k.at('y')}"
          f"{k.of_buffer(buffer, d.columns * found.target_pitch)}, "
          f"targets, ldtargets, {start}, {k.count(last)}, {rows}, first_of({step}), "
          f"{present}, {barrier});")


def declare_threads_of_prefetch(k: Kernel) -> None:
    """The first threads that fetch labels or targets, and the order, counted from the first that
    fetches anything: behind those that fetch rows, and labels or targets. The last warp has other
    work. While groups wait for each other, all threads have time."""
    d, p, schedule = k.d, k.p, k.schedule
    many = max(d.threads - schedule.prefetch.first_thread - WARP, WARP)
    rows = f"fetching_threads<Shape, {d.ins(0)}, {p.input_type}>()"
    targets = str(up(d.columns, WARP)) if p.labelled else "0" if p.reconstruct else \
        f"fetching_threads<Shape, {k.layout.target_width}, float>()"
    is_hidden = schedule.prefetch in schedule.step
    found = ("0", "0") if is_hidden else (rows, f"({rows} + {targets})")
    for name, threads in zip(("kBehindRows", "kBehindTargets"), found, strict=True):
        k.w(f"[[maybe_unused]] constexpr int {name} = {threads} % {many};")
