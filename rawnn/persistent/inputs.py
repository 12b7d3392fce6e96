"""The text by which the examples of a step come to a training kernel: asked for a turn ahead, and
made the numbers that the first layer reads."""

from __future__ import annotations

from rawnn.persistent.layout import AT_ONCE, tallies
from rawnn.persistent.sharding import (
    ALL_GATHERED,
    COLUMN_PARALLEL,
    ROW_PARALLEL,
    SHARDED,
    WARP,
    up,
)
from rawnn.persistent.updates import UpdateWriter
from rawnn.persistent.writer import literal

BETWEEN = "begin and end"
"""The phase of what a step does between the others."""

MOST_ROWS = 4
"""Examples that a warp asks for beside a product without being later than that."""


class InputWriter(UpdateWriter):
    """Writes what fetches, converts and counts the examples of each turn."""

    @property
    def turn(self) -> str:
        """Of a micro-batch, counted from the launch; a step where it has but one."""
        return "t" if self.d.micro_batches > 1 else "u"

    @property
    def turns(self) -> str:
        """How many there are in a launch."""
        return "turns" if self.d.micro_batches > 1 else "span"

    # -- input -----------------------------------------------------------------------------------
    def fetch(self, step: str) -> None:
        """Ask for all that step `step` needs, but for the commit."""
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
        w(f"fetch_rows<Shape, {self.free}, 0, {ordered}, {d.ins(0)}, {pitch}>({to}, images, "
          f"ldimages, {start}, {self.count(0)}, {rows}, first_of({step}), {present}, {barrier});")
        if p.labelled:
            w(f"labels_ahead.fetch<{ordered}>(labels, {rows}, first_of({step}), {present});")
        elif not p.reconstruct:
            last = p.depth
            start = f"rank * {d.shards[last]}" if d.boundaries[last] == SHARDED else "0"
            w(f"fetch_rows<Shape, {self.free}, kBehindRows, {ordered}, {found.target_width}, "
              f"{found.target_pitch}>({self.at('y')} + {buffer} * "
              f"{d.columns * found.target_pitch}, "
              f"targets, ldtargets, {start}, {self.count(last)}, {rows}, first_of({step}), "
              f"{present}, {barrier});")

    def places_in_turn(self) -> None:
        """The first threads that ask for the labels or targets and for the order, counted from the
        first that ask for anything: behind those that ask for rows, and for labels or targets. The
        last warp has rules and losses to work out. While clusters meet there is time enough."""
        d, p, w = self.d, self.p, self.w
        many = max(d.threads - self.free - WARP, WARP)
        rows = f"fetching_threads<Shape, {d.ins(0)}, {p.input_type}>()"
        targets = str(up(d.columns, WARP)) if p.labelled else "0" if p.reconstruct else \
            f"fetching_threads<Shape, {self.layout.target_width}, float>()"
        found = ("0", "0") if self.meets_ahead else (rows, f"({rows} + {targets})")
        for name, threads in zip(("kBehindRows", "kBehindTargets"), found, strict=True):
            w(f"[[maybe_unused]] constexpr int {name} = {threads} % {many};")

    def present(self, step: str) -> str:
        """Examples of this cluster in a step."""
        return f"present_in({step})" if self.p.partial or self.d.micro_batches > 1 else "present"

    def share(self, terms: int) -> str:
        """What a step's mean over a batch of `terms` numbers divides by, as a factor."""
        whole = f"{literal(1.0 / terms)}f"
        if not self.p.partial:
            return whole
        left = f"1.0f / static_cast<float>(left * {terms // self.p.batch})"
        return f"(cursor_now + u < whole ? {whole} : {left})"

    def rate(self, step: str) -> str:
        return f"rates[cursor_now + {step}]" if self.p.scheduled else f"{literal(self.p.lr)}f"

    def make_rule(self, step: str, rate: str) -> None:
        """One thread makes the optimizer's rule of a step."""
        p = self.p
        time = f"steps_before + {step} + 1" if p.timed else "0"
        settings = "".join(f", {literal(value)}" for value in p.settings)
        scale = "scaling->scale, " if p.scaled else ""
        first = "part == 0 && " if self.d.micro_batches > 1 else ""
        self.w(f"if ({first}thread == {self.d.threads - 1}) *rule_of_step = Rule({scale}{rate}, "
               f"{time}{settings});")

    def wait_for_input(self, step: str) -> None:
        self.w("ptx::wait_for_copies<0>();")
        self.w(f"if constexpr (kBulk) ptx::wait_for(barriers + 8 * (({step}) & 1), "
               f"({step}) >> 1 & 1);")

    @property
    def free(self) -> int:
        """The first of the threads that ask for the next turn, which takes some 500 cycles (H200):
        all do where blocks or clusters wait for each other; where nobody waits, those that the
        first product leaves without a task."""
        if self.meets_ahead or self.waits_for_others:
            return 0
        idle = self.d.warps - self.layout.layers[0].forward.tasks
        return self.d.threads - WARP * idle if idle * MOST_ROWS >= self.d.columns else 0

    def waits(self, layer: int) -> bool:
        """Whether the layer's forward product is followed by a wait for other blocks."""
        kind = self.d.layer_kinds[layer]
        return kind == ROW_PARALLEL or (
            kind == COLUMN_PARALLEL and self.d.boundaries[layer + 1] == ALL_GATHERED)

    @property
    def waits_for_others(self) -> bool:
        """Whether a forward product is, or the loss has a wait of its own."""
        return self.d.shards_softmax or any(map(self.waits, range(self.p.depth)))

    def fetch_once(self, *, meeting: bool = False) -> None:
        """Once a turn, where it costs least: while clusters meet (`meeting`), or else other blocks
        are waited for."""
        if self.fetched or meeting != self.meets_ahead:
            return
        self.fetched = True
        self.fetch_ahead()
        self.stamp(BETWEEN, "fetch")

    def while_meeting(self, last: bool) -> None:
        """While clusters wait for each other, for the `last` time in a step or not."""
        self.fetch_once(meeting=True)
        if last and self.meets_ahead:
            self.tally()

    def tally(self) -> None:
        """The last warp adds up what the examples or threads left of the loss."""
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
            w(f"reinterpret_cast<float2*>(tally)[{self.turn} * {self.layout.parts}ll + {place}] = "
              "make_float2(total.loss, __int_as_float(total.right));")
        w("}")
        w("}")
        self.stamp(BETWEEN, "tally")

    def terms(self, step: str) -> str:
        """The numbers that the loss of a step is the mean of."""
        each = 1 if self.p.labelled else self.p.outputs
        if self.p.partial:
            return f"static_cast<float>(batch_of({step}) * {each})"
        return f"{literal(float(self.p.batch * each))}f"

    def fetch_ahead(self) -> None:
        w, d = self.w, self.d
        t = self.turn
        loads = f" && thread >= {self.free}" if self.free else ""
        w(f"if ({t} + 1 < {self.turns}{loads}) {{")
        self.fetch(f"{t} + 1")
        w("ptx::commit_copies();")
        if self.p.ordered:
            w(f"if ({t} + 2 < {self.turns}) {{")
            w(f"fetch_order<Shape, {self.free}, kBehindTargets>(fetched + ({t} & 1) * "
              f"{d.columns}, order, first_of({t} + 2), {self.present(f'{t} + 2')});")
            w("ptx::commit_copies();")
            w("}")
        w("}")

    # -- a step ------------------------------------------------------------------------------------
    def next_turn(self) -> None:
        """The input of the next turn is there."""
        w, t = self.w, self.turn
        w(f"if ({t} + 1 < {self.turns}) {{")
        self.wait_for_input(f"{t} + 1")
        w("}")
        if self.p.labelled:
            w("labels_ahead.store(y);")
        self.end_exchanges()
        w("__syncthreads();")

    def input(self) -> None:
        """x, as the first layer's products read it."""
        d, p, w, found, t = self.d, self.p, self.w, self.layout, self.turn
        if p.partial or d.micro_batches > 1:
            w(f"const int present = present_in({t});")
        if p.converted:
            w(f"float* const x = {self.at('x')};")
            raw = f"reinterpret_cast<const {p.input_type}*>{self.at('raw')} + ({t} & 1) * " \
                  f"{d.columns * found.raw_pitch}"
            vectors = f"{self.at('mean')}, {self.at('inverse_std')}" if p.normalised \
                else "nullptr, nullptr"
            w(f"convert_rows<Shape, {literal(p.normalised)}, {d.ins(0)}, {found.input_pitch}, "
              f"{found.raw_pitch}>(x, {raw}, {literal(float(p.scale))}f, {vectors}, "
              f"{self.count(0)}, present);")
            w("__syncthreads();")
            self.stamp("input")
        else:
            type_ = self.type_of(0)
            size = found.input_floats * (2 if p.rounded else 1)
            w(f"{type_}* const x = {self.values('x', p.rounded)} + ({t} & 1) * {size};")
        if p.partial and d.micro_batches == 1:
            # Rows of an earlier step may be infinite, and infinity times 0 is NaN.
            w("if (cursor_now + u >= whole) {")
            w(f"clear_rows<Shape, {found.input_pitch}>(x, present);")
            w("__syncthreads();")
            w("}")
