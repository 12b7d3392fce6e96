"""The text of a step's updates: weight gradients, sums of clusters, and whether a step counts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from rawnn.onchip.cost import Beside, early_meetings
from rawnn.onchip.decompose import ceil
from rawnn.onchip.exchanges import ExchangeWriter
from rawnn.onchip.layout import TILE
from rawnn.onchip.meeting import ALL, SHARE, TILE_WORDS
from rawnn.onchip.writer import literal


class UpdateWriter(ExchangeWriter):
    """Writes what becomes of gradients."""

    @cached_property
    def meetings(self) -> Beside:
        return early_meetings(self.d)

    def gradients(self, layers: list[int], first: int = 0) -> None:
        """The weight gradients of `layers`, with their updates or for the other clusters to see;
        the warps from `first` on begin."""
        d, p, w = self.d, self.p, self.w
        for layer in layers:
            n, part, tiles = layer + 1, self.layout.layers[layer], self.layout.layers[layer].update
            pitch = d.pitch if layer else self.layout.input_pitch
            w("{")
            w(f"// gradient {n}")
            if self.layout.sync:
                adds = d.turns > 1
                w(f"const PublishTiles<{part.across}, {part.tiles}, {literal(adds)}> finish = {{"
                  f"{self.words('group')} + {part.base * TILE_WORDS}, stamp, "
                  f"{'part > 0' if adds else 'false'}}};")
            else:
                far = literal(part.near is None and bool(p.states))
                w("const Rule rule = *rule_of_step;")
                chance = bool(self.p.streams)
                how = f", ByChance<{self.p.layers[layer]}>" if chance else ""
                w(f"const UpdateTiles<Rule, {far}, {part.pitch}, {part.rows}, {part.across}, "
                  f"{part.tiles}{how}> finish = {{rule, weights{n}, biases{n}, "
                  f"{self.states_at(layer)}{f', chance{n}' if chance else ''}}};")
            w(f"Product<Shape, {literal(layer > 0)}, true, {ceil(d.ins(layer), 16)}, "
              f"{ceil(d.outs(layer), 8)}, {d.columns // 8}, 1, {tiles.down}, {tiles.across}, "
              f"{pitch}, {d.pitch}, {literal(p.bias)}>::run({self.a(layer)}, {self.z(layer + 1)}, "
              f"{first}, finish);")
            w("}")
            sums = ceil(ceil(d.outs(layer), 8), tiles.across) if p.bias else 0
            first = (first + tiles.tasks + sums) % d.warps
        layers.clear()

    def hear_overflow(self) -> None:
        """Whether the step is left out; of several clusters, what this one tells the others."""
        d, w = self.d, self.w
        said = self.overflowed()
        if not self.layout.sync:
            w(f"const bool left_out = {said};")
            return
        w(f"const bool seen = {said};")
        w("ptx::Stamped* const flags = reinterpret_cast<ptx::Stamped*>(overflows) + (u & 1) * "
          f"{d.blocks} + rank;")
        w(f"if (thread == 0) ptx::store_stamped(flags + group * {d.ranks}, seen ? 1.0f : 0.0f, "
          "0.0f, 0.0f, stamp);")

    def stamp(self, turn: str) -> None:
        """The stamp of what clusters hand to each other in a turn."""
        if self.layout.sync:
            self.w(f"const unsigned int stamp = stamps + static_cast<unsigned int>({turn});")

    def words(self, group: str) -> str:
        """Where the words of this block's tiles lie, or of the same rank's of another cluster."""
        d, turn = self.d, "(u & 1)" if self.layout.sync == ALL else "0"
        return f"reinterpret_cast<ptx::Stamped*>(gradients) + (({turn} * {d.groups} + {group}) * " \
               f"{d.ranks}ll + ptx::made_here(rank)) * {self.layout.tiles * TILE_WORDS}"

    def places(self) -> None:
        """Where tiles lie that clusters update, and how they are kept, for all of a step."""
        w, p, found = self.w, self.p, self.layout
        if not found.sync:
            return
        w("const auto place = [=](int tile) {")
        for layer in range(p.depth - 1, -1, -1):
            part, n = found.layers[layer], layer + 1
            text = f"return place_of<{part.pitch}, {part.rows}, {part.across}, {part.tiles}>(" \
                   f"tile - {part.base}, weights{n}, biases{n});"
            w(f"if (tile >= {part.base}) {text}" if layer else text)
        w("};")
        if p.streams:
            w("const auto how = [=](int tile) {")
            for layer in range(p.depth - 1, -1, -1):
                part = found.layers[layer]
                text = f"return chance{layer + 1}.numbered<{part.across}, {part.tiles}>(" \
                       f"tile - {part.base});"
                w(f"if (tile >= {part.base}) {text}" if layer else text)
            w("};")
        w(f"const auto state = [=](int slot) {{ return {self.states_at(0)} + slot * "
          f"{len(p.states) * TILE // 4}; }};")

    def update(self, layers: Sequence[int], copied: Sequence[int]) -> None:
        """Gradients of `layers`, neighbours, are added up over the clusters, and weights updated;
        new weights of the layers `copied` come from the clusters whose share they are."""
        d, w, found = self.d, self.w, self.layout
        w("{")
        if layers:
            far = literal(found.shared_state is None and bool(self.p.states))
            many = found.tiles * TILE_WORDS
            how = ", how" if self.p.streams else ""
            w("const Rule rule = *rule_of_step;")
            w(f"const ptx::Stamped* const parts = {self.words('0')};")
            shared = f"Shape, Rule, {far}, {self.tiles_of(layers)}"
            if found.sync == ALL:
                w(f"update_all<{shared}>(parts, {d.ranks * many}ll, stamp, rule, place, "
                  f"state{how});")
            else:
                w(f"update_share<{shared}, {found.shares}>(parts, {d.ranks * many}ll, stamp, rule, "
                  f"group, {self.at('scratch')}, {self.fresh}, place, state{how});")
        if copied and found.sync == SHARE:
            w(f"copy_fresh<Shape, {self.tiles_of(copied)}>({self.fresh}, stamp, group, place);")
        w("}")

    @property
    def fresh(self) -> str:
        """Where the words of this rank's new weights lie."""
        return "reinterpret_cast<ptx::Stamped*>(fresh) + ptx::made_here(rank) * " \
               f"{self.layout.tiles * TILE_WORDS}"

    def tiles_of(self, layers: Sequence[int]) -> str:
        """The first of the layers' tiles, and the end of them."""
        last = self.layout.layers[max(layers)]
        return f"{self.layout.layers[min(layers)].base}, {last.base + last.all_tiles}"

    def meet_beside(self, layer: int) -> None:
        """What clusters add up beside the backward product of a layer."""
        if layers := self.meetings.get(layer):
            self.w("// gradients of all clusters that have come")
            self.update(*layers)

    def meet(self) -> None:
        """Clusters that share the batch add up the gradients that are left."""
        w = self.w
        if not self.layout.sync:
            return
        if self.p.scaled:
            w("const bool left_out = any_group<Shape>(flags, stamp);")
        w("// gradients of all clusters")
        if self.p.scaled:
            w("if (!left_out) {")
        done = self.meetings.values()
        self.update(*([layer for layer in range(self.p.depth)
                       if not any(layer in each[i] for each in done)] for i in (0, 1)))
        if self.p.scaled:
            w("}")
