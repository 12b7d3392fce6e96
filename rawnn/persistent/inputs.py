"""Emits how the examples of a step come to a block: fetched one micro-batch ahead, and converted to
what the first layer's GEMMs read."""

from __future__ import annotations

from rawnn.persistent.layout import AT_ONCE, tallies
from rawnn.persistent.schedule import Phase, Prefetch
from rawnn.persistent.sharding import SHARDED, WARP, up
from rawnn.persistent.updates import UpdateWriter
from rawnn.persistent.writer import literal


class InputWriter(UpdateWriter):
    """Emits `ConvertInput`, `ClearInput`, `Prefetch`, `WaitForInput` and `SumLoss`."""

    @property
    def counter(self) -> str:
        """C++ variable that counts micro-batches from the launch on; steps where there is one."""
        return "t" if self.d.micro_batches > 1 else "u"

    @property
    def count_of_launch(self) -> str:
        """C++ variable: micro-batches of a launch."""
        return "turns" if self.d.micro_batches > 1 else "span"

    def present(self, step: str) -> str:
        """C++: examples of this group in a micro-batch."""
        return f"present_in({step})" if self.p.partial or self.d.micro_batches > 1 else "present"

    def mean(self, terms: int) -> str:
        """C++ factor of a mean over a batch with so many terms."""
        whole = f"{literal(1.0 / terms)}f"
        if not self.p.partial:
            return whole
        left = f"1.0f / static_cast<float>(left * {terms // self.p.batch})"
        return f"(cursor_now + u < whole ? {whole} : {left})"

    def rate(self, step: str) -> str:
        """C++: the learning rate of a step."""
        return f"rates[cursor_now + {step}]" if self.p.scheduled else f"{literal(self.p.lr)}f"

    def prepare_optimizer(self) -> None:
        """One thread makes the object of the optimizer step."""
        p = self.p
        time = "steps_before + u + 1" if p.timed else "0"
        settings = "".join(f", {literal(value)}" for value in p.settings)
        scale = "scaling->scale, " if p.scaled else ""
        rate = "rate" if p.scheduled else self.rate("")
        first = "part == 0 && " if self.d.micro_batches > 1 else ""
        self.w(f"if ({first}thread == {self.d.threads - 1}) *rule_of_step = Rule({scale}{rate}, "
               f"{time}{settings});")

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
        w, t = self.w, self.counter
        some = f" && thread >= {phase.first_thread}" if phase.first_thread else ""
        w(f"if ({t} + 1 < {self.count_of_launch}{some}) {{")
        self.fetch(f"{t} + 1")
        w("ptx::commit_copies();")
        if self.p.ordered:
            w(f"if ({t} + 2 < {self.count_of_launch}) {{")
            w(f"fetch_order<Shape, {phase.first_thread}, kBehindTargets>(fetched + ({t} & 1) * "
              f"{self.d.columns}, order, first_of({t} + 2), {self.present(f'{t} + 2')});")
            w("ptx::commit_copies();")
            w("}")
        w("}")
        self.stamp(phase.name, "fetch")

    def fetch(self, step: str) -> None:
        """Starts all copies of a micro-batch, but for the commit."""
        d, p, w, found = self.d, self.p, self.w, self.layout
        ordered = "true" if p.ordered else "false"
        buffer = f"(({step}) & 1)"
        rows = f"fetched + {buffer} * {d.columns}" if p.ordered else "nullptr"
        start = f"rank * {d.shards[0]}" if d.boundaries[0] == SHARDED else "0"
        if p.converted:
            size = d.columns * found.raw_pitch
            to = f"reinterpret_cast<{p.input_type}*>{self.at('raw')} + {buffer} * {size}"
            pitch = found.raw_pitch
        elif p.rounded:
            to = f"reinterpret_cast<{p.input_type}*>({self.at('x')} + {buffer} * " \
                 f"{found.input_floats})"
            pitch = found.input_pitch
        else:
            to = f"{self.at('x')} + {buffer} * {found.input_floats}"
            pitch = found.input_pitch
        barrier = f"barriers + 8 * {buffer}"
        expected = f"engine_bytes<Shape, {d.ins(0)}, {p.input_type}>({self.count(0)})"
        if not p.labelled and not p.reconstruct:
            expected += f" + engine_bytes<Shape, {found.target_width}, float>(" \
                        f"{self.count(p.depth)})"
        present = self.present(step)
        w(f"if (kBulk && thread == {d.threads - 32}) ptx::arrive_expecting({barrier}, {present} * "
          f"({expected}));")
        w("__syncwarp();")
        w(f"fetch_rows<Shape, {self.first_thread}, 0, {ordered}, {d.ins(0)}, {pitch}>({to}, "
          f"images, ldimages, {start}, {self.count(0)}, {rows}, first_of({step}), {present}, "
          f"{barrier});")
        if p.labelled:
            w(f"labels_ahead.fetch<{ordered}>(labels, {rows}, first_of({step}), {present});")
        elif not p.reconstruct:
            last = p.depth
            start = f"rank * {d.shards[last]}" if d.boundaries[last] == SHARDED else "0"
            w(f"fetch_rows<Shape, {self.first_thread}, kBehindRows, {ordered}, "
              f"{found.target_width}, {found.target_pitch}>({self.at('y')} + {buffer} * "
              f"{d.columns * found.target_pitch}, "
              f"targets, ldtargets, {start}, {self.count(last)}, {rows}, first_of({step}), "
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
        w, t = self.w, self.counter
        w(f"if ({t} + 1 < {self.count_of_launch}) {{")
        self.wait_for_input(f"{t} + 1")
        w("}")
        if self.p.labelled:
            w("labels_ahead.store(y);")
        self.end_exchanges()
        w("__syncthreads();")
        self.stamp(phase.name, "next input")

    # -- a micro-batch -----------------------------------------------------------------------------
    def begin_micro_batch(self) -> None:
        """Declares x, as the first layer's GEMMs read it."""
        d, p, w, t = self.d, self.p, self.w, self.counter
        if p.partial or d.micro_batches > 1:
            w(f"const int present = present_in({t});")
        if p.converted:
            w(f"float* const x = {self.at('x')};")
            return
        size = self.layout.input_floats * (2 if p.rounded else 1)
        w(f"{self.type_of(0)}* const x = {self.values('x', p.rounded)} + ({t} & 1) * {size};")

    def convert_input(self) -> None:
        d, p, found = self.d, self.p, self.layout
        raw = f"reinterpret_cast<const {p.input_type}*>{self.at('raw')} + ({self.counter} & 1) * " \
              f"{d.columns * found.raw_pitch}"
        vectors = f"{self.at('mean')}, {self.at('inverse_std')}" if p.normalised \
            else "nullptr, nullptr"
        self.w(f"convert_rows<Shape, {literal(p.normalised)}, {d.ins(0)}, {found.input_pitch}, "
               f"{found.raw_pitch}>(x, {raw}, {literal(float(p.scale))}f, {vectors}, "
               f"{self.count(0)}, present);")

    def clear_input(self) -> None:
        """Rows of an earlier step may be infinite, and infinity times 0 is NaN."""
        w = self.w
        w("if (cursor_now + u >= whole) {")
        w(f"clear_rows<Shape, {self.layout.input_pitch}>(x, present);")
        w("__syncthreads();")
        w("}")

    def sum_loss(self, phase: Phase) -> None:
        """The last warp adds up the tallies of a block, or of a group where all blocks have the
        same outputs."""
        d, w = self.d, self.w
        repeated = d.boundaries[-1] != SHARDED
        place = "group" if repeated else "blockIdx.x"
        w(f"if (warp_index() == {d.warps - 1}{' && rank == 0' if repeated else ''}) {{")
        w(f"const Tally total = add_tallies<{tallies(d)}, {literal(self.p.labelled)}>(tallies);")
        w("if (lane_index() == 0) {")
        if self.layout.reports == AT_ONCE:
            w(f"loss[cursor_now + u] = total.loss / {self.terms('u')};")
            if self.p.measured:
                w("correct[cursor_now + u] = total.right;")
        else:
            w(f"reinterpret_cast<float2*>(tally)[{self.counter} * {self.layout.parts}ll + "
              f"{place}] = make_float2(total.loss, __int_as_float(total.right));")
        w("}")
        w("}")
        self.stamp(phase.name, "tally")

    def terms(self, step: str) -> str:
        """C++: the number of terms that the loss of a step is the mean of."""
        each = 1 if self.p.labelled else self.p.outputs
        if self.p.partial:
            return f"static_cast<float>(batch_of({step}) * {each})"
        return f"{literal(float(self.p.batch * each))}f"
