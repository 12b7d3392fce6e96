"""Emits how the examples of a step come to a block: fetched one micro-batch ahead, and converted to
what the first layer's GEMMs read."""

from __future__ import annotations

from rawnn.persistent.exchanges import ExchangeEmitter
from rawnn.persistent.layout import orders_at_once
from rawnn.persistent.phases import Phase, Prefetch
from rawnn.persistent.sharding import WARP, up
from rawnn.persistent.writer import Emitter, Kernel, literal


class InputEmitter(Emitter):
    """Emits `ConvertInput`, `ClearInput`, `Prefetch` and `WaitForInput`."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.exchanges = ExchangeEmitter(kernel)

    # -- prefetch ----------------------------------------------------------------------------------
    @property
    def hides_prefetch(self) -> bool:
        """Whether the gradient all-reduce hides the prefetch."""
        return any(isinstance(phase, Prefetch) for phase in self.schedule.step)

    @property
    def first_thread(self) -> int:
        """The first thread that fetches, which takes some 500 cycles (H200)."""
        return next(phase.first_thread for phase in
                    (*self.schedule.micro_batch, *self.schedule.step)
                    if isinstance(phase, Prefetch))

    def prefetch(self, phase: Prefetch) -> None:
        w, t = self.w, self.k.counter
        some = f" && thread >= {phase.first_thread}" if phase.first_thread else ""
        w(f"if ({t} + 1 < {self.k.count_of_launch}{some}) {{")
        self.fetch(f"{t} + 1")
        w("ptx::commit_copies();")
        if (ahead := orders_at_once(self.d)) > 1:
            w(f"if (({t} + 2) % {ahead} == 0) {{")
            self.order_ahead(f"{t} + 2", phase.first_thread)
            w("ptx::commit_copies();")
            w("}")
        elif self.p.ordered:
            w(f"if ({t} + 2 < {self.k.count_of_launch}) {{")
            w(f"fetch_order<Shape, {phase.first_thread}, kBehindTargets>(fetched + ({t} & 1) * "
              f"{self.d.columns}, order, first_of({t} + 2), {self.k.present(f'{t} + 2')});")
            w("ptx::commit_copies();")
            w("}")
        w("}")
        self.k.stamp(phase.name, "fetch")

    def order_ahead(self, first: str, first_thread: int) -> None:
        """Computes the order of the micro-batches from `first` on."""
        self.w(f"order_ahead<Shape, {first_thread}, {orders_at_once(self.d)}>(fetched, order, "
               f"{first}, {self.k.count_of_launch}, first_of, [=](int step) {{ return "
               f"{self.k.present('step')}; }});")

    def fetch(self, step: str) -> None:
        """Starts all copies of a micro-batch, but for the commit."""
        d, p, w, found = self.d, self.p, self.w, self.layout
        ordered = literal(p.ordered)
        buffer = f"(({step}) & 1)"
        rows = "nullptr"
        if p.ordered:
            ahead = orders_at_once(d)
            slot = buffer if ahead == 1 else f"(({step}) % {ahead + 1})"
            rows = f"fetched + {slot} * {d.columns}"
        start = self.k.first(0)
        if p.converted:
            size = d.columns * found.raw_pitch
            to = f"reinterpret_cast<{p.input_type}*>{self.k.at('raw')} + {buffer} * {size}"
            pitch = found.raw_pitch
        elif p.rounded:
            to = f"reinterpret_cast<{p.input_type}*>({self.k.at('x')} + {buffer} * " \
                 f"{found.input_floats})"
            pitch = found.input_pitch
        else:
            to = f"{self.k.at('x')} + {buffer} * {found.input_floats}"
            pitch = found.input_pitch
        barrier = f"barriers + 8 * {buffer}"
        expected = f"engine_bytes<Shape, {d.ins(0)}, {p.input_type}>({self.k.count(0)})"
        if not p.labelled and not p.reconstruct:
            expected += f" + engine_bytes<Shape, {found.target_width}, float>(" \
                        f"{self.k.count(p.depth)})"
        present = self.k.present(step)
        w(f"if (kBulk && thread == {d.threads - 32}) ptx::arrive_expecting({barrier}, {present} * "
          f"({expected}));")
        w("__syncwarp();")
        w(f"fetch_rows<Shape, {self.first_thread}, 0, {ordered}, {d.ins(0)}, {pitch}>({to}, "
          f"images, ldimages, {start}, {self.k.count(0)}, {rows}, first_of({step}), {present}, "
          f"{barrier});")
        if p.labelled:
            w(f"labels_ahead.fetch<{ordered}>(labels, {rows}, first_of({step}), {present});")
        elif not p.reconstruct:
            last = p.depth
            start = self.k.first(last)
            w(f"fetch_rows<Shape, {self.first_thread}, kBehindRows, {ordered}, "
              f"{found.target_width}, {found.target_pitch}>({self.k.at('y')} + {buffer} * "
              f"{d.columns * found.target_pitch}, "
              f"targets, ldtargets, {start}, {self.k.count(last)}, {rows}, first_of({step}), "
              f"{present}, {barrier});")

    def threads_of_prefetch(self) -> None:
        """The first threads that fetch labels or targets, and the order, counted from the first
        that fetches anything: behind those that fetch rows, and labels or targets. The last warp
        has other work. While groups wait for each other, all threads have time."""
        d, p, w = self.d, self.p, self.w
        many = max(d.threads - self.first_thread - WARP, WARP)
        rows = f"fetching_threads<Shape, {d.ins(0)}, {p.input_type}>()"
        targets = str(up(d.columns, WARP)) if p.labelled else "0" if p.reconstruct else \
            f"fetching_threads<Shape, {self.layout.target_width}, float>()"
        found = ("0", "0") if self.hides_prefetch else (rows, f"({rows} + {targets})")
        for name, threads in zip(("kBehindRows", "kBehindTargets"), found, strict=True):
            w(f"[[maybe_unused]] constexpr int {name} = {threads} % {many};")

    def wait_for_input(self, step: str) -> None:
        self.w("ptx::wait_for_copies<0>();")
        self.w(f"if constexpr (kBulk) ptx::wait_for(barriers + 8 * (({step}) & 1), "
               f"({step}) >> 1 & 1);")

    def wait_for_next_input(self, phase: Phase) -> None:
        """The input of the next micro-batch is there. Ends the exchanges of this one."""
        w, t = self.w, self.k.counter
        w(f"if ({t} + 1 < {self.k.count_of_launch}) {{")
        self.wait_for_input(f"{t} + 1")
        w("}")
        if self.p.labelled:
            w("labels_ahead.store(y);")
        self.exchanges.end_exchanges()
        w("__syncthreads();")
        self.k.stamp(phase.name, "next input")

    # -- a micro-batch -----------------------------------------------------------------------------
    def begin_micro_batch(self) -> None:
        """Declares x, as the first layer's GEMMs read it."""
        d, p, w, t = self.d, self.p, self.w, self.k.counter
        if p.partial or d.micro_batches > 1:
            w(f"const int present = present_in({t});")
        if p.converted:
            w(f"float* const x = {self.k.at('x')};")
            return
        size = self.layout.input_floats * (2 if p.rounded else 1)
        w(f"{self.k.type_of(0)}* const x = {self.k.values('x', p.rounded)} + ({t} & 1) * {size};")

    def convert_input(self) -> None:
        d, p, found = self.d, self.p, self.layout
        raw = f"reinterpret_cast<const {p.input_type}*>{self.k.at('raw')} + " \
              f"({self.k.counter} & 1) * {d.columns * found.raw_pitch}"
        vectors = f"{self.k.at('mean')}, {self.k.at('inverse_std')}" if p.normalised \
            else "nullptr, nullptr"
        self.w(f"convert_rows<Shape, {literal(p.normalised)}, {d.ins(0)}, {found.input_pitch}, "
               f"{found.raw_pitch}>(x, {raw}, {literal(float(p.scale))}f, {vectors}, "
               f"{self.k.count(0)}, present);")

    def clear_input(self) -> None:
        """Rows of an earlier step may be infinite, and infinity times 0 is NaN."""
        w = self.w
        w("if (cursor_now + u >= whole) {")
        w(f"clear_rows<Shape, {self.layout.input_pitch}>(x, present);")
        w("__syncthreads();")
        w("}")
