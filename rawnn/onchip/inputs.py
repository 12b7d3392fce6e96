"""The text by which the examples of a step come to a training kernel: asked for a turn ahead by a
warp of its own, and made the numbers that the first layer reads."""

from __future__ import annotations

from rawnn.onchip.decompose import SLICED
from rawnn.onchip.layout import keeps_tallies, tallies
from rawnn.onchip.updates import UpdateWriter
from rawnn.onchip.writer import literal

BETWEEN = "begin and end"
"""The phase of what a step does between the others."""


class InputWriter(UpdateWriter):
    """Writes what fetches, converts and counts the examples of each turn."""

    @property
    def turn(self) -> str:
        """Of a micro-batch, counted from the launch; a step where it has but one."""
        return "t" if self.d.turns > 1 else "u"

    @property
    def turns(self) -> str:
        """How many there are in a launch."""
        return "turns" if self.d.turns > 1 else "span"

    # -- what the warp that fetches does ---------------------------------------------------------
    def fetcher(self) -> None:
        """The warp behind those that train: it asks for what the next turn needs, makes the rule of
        its update and adds up what the turn at hand leaves of the loss."""
        d, p, w = self.d, self.p, self.w
        t, turns = self.turn, self.turns
        cluster = d.ranks > 1 and not d.far
        w(f"if (thread >= {d.threads}) {{")
        w("if (kBulk && lane_index() == 0) {")
        w("for (int i = 0; i < 4; ++i) ptx::init_barrier(barriers + 8 * i, 1);")
        w("ptx::publish_barriers();")
        w("}")
        if p.ordered:
            w(f"fetch_order(fetched, order, first_of(0), {self.present('0')});")
            w(f"if ({turns} > 1) fetch_order(fetched + {d.columns}, order, first_of(1), "
              f"{self.present('1')});")
            w("ptx::commit_copies();")
            w("ptx::wait_for_copies<0>();")
        w("__syncwarp();")
        self.fetch("0")
        w("ptx::commit_copies();")
        self.make_rule("0")
        self.wait_for_input("0")
        w("__syncthreads();")
        if cluster:
            w("cluster_arrive<Shape>();")
            w("cluster_wait<Shape>();")
        w(f"for (int {t} = 0; {t} < {turns}; ++{t}) {{")
        w(f"if ({t} + 1 < {turns}) {{")
        self.fetch(f"{t} + 1")
        if p.ordered:
            w(f"if ({t} + 2 < {turns}) fetch_order(fetched + ({t} & 1) * {d.columns}, order, "
              f"first_of({t} + 2), {self.present(f'{t} + 2')});")
        w("ptx::commit_copies();")
        if d.turns == 1:
            self.make_rule("u + 1")
        elif not p.scaled:
            w(f"if ((t + 1) % {d.turns} == 0) {{")
            self.make_rule(f"(t + 1) / {d.turns}")
            w("}")
        w("}")
        if not keeps_tallies(d):
            self.tally()
        w(f"if ({t} + 1 < {turns}) {{")
        self.wait_for_input(f"{t} + 1")
        w("}")
        w("__syncthreads();")
        w("}")
        if cluster:
            w("cluster_arrive<Shape>();")
            w("cluster_wait<Shape>();")
        w("return;")
        w("}")

    def fetch(self, step: str) -> None:
        """Ask for all that step `step` needs, but for the commit."""
        d, p, w, found = self.d, self.p, self.w, self.layout
        ordered = "true" if p.ordered else "false"
        buffer = f"(({step}) & 1)"
        rows = f"fetched + {buffer} * {d.columns}" if p.ordered else "nullptr"
        start = f"rank * {d.slices[0]}" if d.types[0] == SLICED else "0"
        if p.converted:
            size = d.columns * found.raw_pitch
            to = f"reinterpret_cast<{p.input_type}*>{self.at('raw')} + {buffer} * {size}"
            pitch = found.raw_pitch
        else:
            to = f"{self.at('x')} + {buffer} * {found.input_floats}"
            pitch = found.input_pitch
        barrier = f"barriers + 8 * {buffer}"
        expected = f"engine_bytes<Shape, {d.ins(0)}, {p.input_type}>({self.count(0)})"
        if not p.labelled and not p.reconstruct:
            expected += f" + engine_bytes<Shape, {found.target_width}, float>(" \
                        f"{self.count(p.depth)})"
        present = self.present(step)
        w(f"if (kBulk && lane_index() == 0) ptx::arrive_expecting({barrier}, {present} * "
          f"({expected}));")
        w("__syncwarp();")
        w(f"fetch_rows<Shape, {ordered}, {d.ins(0)}, {pitch}>({to}, images, "
          f"ldimages, {start}, {self.count(0)}, {rows}, first_of({step}), {present}, {barrier});")
        if p.labelled:
            w(f"fetch_labels<Shape, {ordered}>(labels_of({step}), labels, {rows}, "
              f"first_of({step}), {present});")
        elif not p.reconstruct:
            last = p.depth
            start = f"rank * {d.slices[last]}" if d.types[last] == SLICED else "0"
            w(f"fetch_rows<Shape, {ordered}, {found.target_width}, "
              f"{found.target_pitch}>({self.at('y')} + {buffer} * "
              f"{d.columns * found.target_pitch}, "
              f"targets, ldtargets, {start}, {self.count(last)}, {rows}, first_of({step}), "
              f"{present}, {barrier});")

    def present(self, step: str) -> str:
        """Examples of this cluster in a step."""
        return f"present_in({step})" if self.p.partial or self.d.turns > 1 else "present"

    def share(self, terms: int) -> str:
        """What a step's mean over a batch of `terms` numbers divides by, as a factor."""
        whole = f"{literal(1.0 / terms)}f"
        if not self.p.partial:
            return whole
        left = f"1.0f / static_cast<float>(left * {terms // self.p.batch})"
        return f"(cursor_now + u < whole ? {whole} : {left})"

    def rate(self, step: str) -> str:
        return f"rates[cursor_now + {step}]" if self.p.scheduled else f"{literal(self.p.lr)}f"

    def make_rule(self, step: str) -> None:
        """A thread of the warp that fetches makes the optimizer's rule of a step; with a loss
        scale, which is known when the step begins, one of those that train."""
        p = self.p
        if p.scaled and step != "u":
            return
        time = f"steps_before + {step} + 1" if p.timed else "0"
        settings = "".join(f", {literal(value)}" for value in p.settings)
        scale = "scaling->scale, " if p.scaled else ""
        first = "part == 0 && " if self.d.turns > 1 and p.scaled else ""
        thread = f"thread == {self.d.threads - 1 if p.scaled else self.d.threads}"
        self.w(f"if ({first}{thread}) {self.rule(step)} = Rule({scale}{self.rate(step)}, "
               f"{time}{settings});")

    def rule(self, step: str = "u") -> str:
        """The rule of a step."""
        return f"rules[{'0' if self.p.scaled else f'({step}) & 1'}]"

    def wait_for_input(self, step: str) -> None:
        self.w("ptx::wait_for_copies<0>();")
        self.w(f"if constexpr (kBulk) ptx::wait_for(barriers + 8 * (({step}) & 1), "
               f"({step}) >> 1 & 1);")

    def tally(self) -> None:
        """What the examples or threads left of the loss, once they have."""
        d, w = self.d, self.w
        repeated = d.types[-1] != SLICED
        place = "group" if repeated else "blockIdx.x"
        w("ptx::sync_some<kTallied, Shape::kThreads + 32>();")
        if repeated:
            w("if (rank == 0) {")
        w(f"const Tally total = add_tallies<{tallies(d)}, {literal(self.p.labelled)}>(tallies);")
        w("if (lane_index() == 0) {")
        w(f"reinterpret_cast<float2*>(tally)[{self.turn} * {self.layout.parts}ll + {place}] = "
          "make_float2(total.loss, __int_as_float(total.right));")
        w("}")
        if repeated:
            w("}")

    # -- a step ------------------------------------------------------------------------------------
    def next_turn(self) -> None:
        """The input of the next turn is there, and the warp that fetches goes on."""
        self.end_exchanges()
        self.w("__syncthreads();")

    def input(self) -> None:
        """x, as floats."""
        d, p, w, found, t = self.d, self.p, self.w, self.layout, self.turn
        if p.partial or d.turns > 1:
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
            w("sync_block<Shape>();")
            self.stamp("input")
        else:
            w(f"float* const x = {self.at('x')} + ({t} & 1) * {found.input_floats};")
        if p.partial and d.turns == 1:  # no rows of another step, whose infinities times 0 are NaN
            w("if (cursor_now + u >= whole) {")
            w(f"clear_rows<Shape, {found.input_pitch}>(x, present);")
            w("sync_block<Shape>();")
            w("}")
