"""The text of a step's updates: weight gradients, sums of clusters, and whether a step counts."""

from __future__ import annotations

from rawnn.onchip.decompose import ceil
from rawnn.onchip.exchanges import ExchangeWriter
from rawnn.onchip.layout import TILE
from rawnn.onchip.meeting import ALL, TILE_WORDS
from rawnn.onchip.writer import literal


class UpdateWriter(ExchangeWriter):
    """Writes what becomes of gradients."""

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

    def meet(self) -> None:
        """Clusters that share the batch add up their gradients."""
        d, w, found = self.d, self.w, self.layout
        if not found.sync:
            return
        many, quads = found.tiles, TILE // 4
        if self.p.scaled:
            w("bool left_out;")
        w("{")
        w("// gradients of all clusters")
        if self.p.scaled:
            w("left_out = any_group<Shape>(flags, stamp);")
        w("const auto place = [=](int tile) {")
        for layer in range(self.p.depth - 1, -1, -1):
            part, n = found.layers[layer], layer + 1
            text = f"return place_of<{part.pitch}, {part.rows}, {part.across}, {part.tiles}>(" \
                   f"tile - {part.base}, weights{n}, biases{n});"
            w(f"if (tile >= {part.base}) {text}" if layer else text)
        w("};")
        how = ""
        if self.p.streams:
            how = ", how"
            w("const auto how = [=](int tile) {")
            for layer in range(self.p.depth - 1, -1, -1):
                part = found.layers[layer]
                text = f"return chance{layer + 1}.numbered<{part.across}, {part.tiles}>(" \
                       f"tile - {part.base});"
                w(f"if (tile >= {part.base}) {text}" if layer else text)
            w("};")
        w(f"float4* const states = {self.states_at(0)};")
        w(f"const auto state = [=](int slot) {{ return states + slot * "
          f"{len(self.p.states) * quads}; }};")
        w("const Rule rule = *rule_of_step;")
        w(f"const ptx::Stamped* const parts = {self.words('0')};")
        far = literal(found.shared_state is None and bool(self.p.states))
        stride = f"{d.ranks * many * TILE_WORDS}ll"
        if self.p.scaled:
            w("if (!left_out) {")
        if found.sync == ALL:
            w(f"update_all<Shape, Rule, {far}, 0, {many}>(parts, {stride}, stamp, rule, place, "
              f"state{how});")
        else:
            w("ptx::Stamped* const new_weights = reinterpret_cast<ptx::Stamped*>(fresh) + "
              "ptx::made_here(rank) * "
              f"{many * TILE_WORDS};")
            w(f"update_share<Shape, Rule, {far}, 0, {many}, {found.shares}>(parts, {stride}, stamp,"
              f" rule, group, {self.at('scratch')}, new_weights, place, state{how});")
            w(f"copy_fresh<Shape, 0, {many}>(new_weights, stamp, group, place);")
        if self.p.scaled:
            w("}")
        w("}")
