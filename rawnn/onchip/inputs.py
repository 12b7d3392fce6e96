"""The text by which the examples of a step come to a training kernel: asked for a turn ahead, and
made the numbers that the first layer reads."""

from __future__ import annotations

from rawnn.onchip.decompose import SLICED
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

    # -- input -----------------------------------------------------------------------------------
    def fetch(self, step: str) -> None:
        """Ask for all that step `step` needs."""
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
        w(f"if (kBulk && thread == {d.threads - 32}) ptx::arrive_expecting({barrier}, {present} * "
          f"({expected}));")
        w("__syncwarp();")
        w(f"fetch_rows<Shape, {ordered}, {d.ins(0)}, {pitch}>({to}, images, ldimages, {start}, "
          f"{self.count(0)}, {rows}, first_of({step}), {present}, {barrier});")
        if p.labelled:
            w(f"labels_ahead.fetch<{ordered}>(labels, {rows}, first_of({step}), {present});")
        elif not p.reconstruct:
            last = p.depth
            start = f"rank * {d.slices[last]}" if d.types[last] == SLICED else "0"
            w(f"fetch_rows<Shape, {ordered}, {found.target_width}, {found.target_pitch}>("
              f"{self.at('y')} + {buffer} * {d.columns * found.target_pitch}, targets, ldtargets, "
              f"{start}, {self.count(last)}, {rows}, first_of({step}), {present}, {barrier});")
        w("ptx::commit_copies();")

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

    def make_rule(self, step: str, rate: str) -> None:
        """One thread makes the optimizer's rule of a step."""
        p = self.p
        time = f"clock[1] + cursor_now + {step} + 1" if p.timed else "0"
        settings = "".join(f", {literal(value)}" for value in p.settings)
        scale = "scaling->scale, " if p.scaled else ""
        first = "part == 0 && " if self.d.turns > 1 else ""
        self.w(f"if ({first}thread == {self.d.threads - 1}) *rule_of_step = Rule({scale}{rate}, "
               f"{time}{settings});")

    def wait_for_input(self, step: str) -> None:
        self.w("ptx::wait_for_copies<0>();")
        self.w(f"if constexpr (kBulk) ptx::wait_for(barriers + 8 * (({step}) & 1), "
               f"({step}) >> 1 & 1);")

    def fetch_once(self) -> None:
        """Once a turn, while others are waited for: asking for the next turn takes some 500 cycles
        (H200)."""
        if self.fetched:
            return
        self.fetched = True
        self.fetch_ahead()
        self.stamp(BETWEEN, "fetch")

    def fetch_ahead(self) -> None:
        w, d = self.w, self.d
        t = self.turn
        w(f"if ({t} + 1 < {self.turns}) {{")
        self.fetch(f"{t} + 1")
        if self.p.ordered:
            w(f"if ({t} + 2 < {self.turns}) {{")
            w(f"fetch_order<Shape>(fetched + ({t} & 1) * {d.columns}, order, first_of({t} + 2), "
              f"{self.present(f'{t} + 2')});")
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
        w("__syncthreads();")

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
            w("__syncthreads();")
            self.stamp("input")
        else:
            w(f"float* const x = {self.at('x')} + ({t} & 1) * {found.input_floats};")
        if p.partial and d.turns == 1:  # no rows of another step, whose infinities times 0 are NaN
            w("if (cursor_now + u >= whole) {")
            w(f"clear_rows<Shape, {found.input_pitch}>(x, present);")
            w("__syncthreads();")
            w("}")
