"""The text of a step's updates: weight gradients, sums of clusters, and whether a step counts."""

from __future__ import annotations

from collections.abc import Callable

from rawnn.onchip.decompose import ceil
from rawnn.onchip.exchanges import ExchangeWriter
from rawnn.onchip.layout import ALL, TILE
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
                turn = "(u & 1)" if self.layout.sync == ALL else "0"
                many = self.layout.tiles
                way, adds = ("AddTiles", ", part > 0") if d.turns > 1 else ("PublishTiles", "")
                w(f"const {way}<{part.across}, {part.tiles}> finish = {{"
                  f"reinterpret_cast<float4*>(gradients) + ((({turn} * {d.groups} + group) * "
                  f"{d.ranks}ll + rank) * {many} + {part.base})"
                  f" * {TILE // 4}{adds}}};")
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
            self.stamp(f"gradient {n}")
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
        w(f"float* const flags = overflows + (u & 1) * {d.blocks} + rank;")
        w(f"if (thread == 0) __stcg(flags + group * {d.ranks}, seen ? 1.0f : 0.0f);")

    def meet(self, meanwhile: Callable[[bool], None]) -> None:
        """Clusters that share the batch add up their gradients. `meanwhile(last)` writes what is
        done while they wait for each other, for the last time or not."""
        d, w, found = self.d, self.w, self.layout
        if not found.sync:
            return
        many, quads = found.tiles, TILE // 4
        if self.p.scaled:
            w("bool left_out;")
        far = literal(found.shared_state is None and bool(self.p.states))
        w("{")
        w("// gradients of all clusters")
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
        w("unsigned int* const met = counters + 1 + rank * 32;")
        stride = f"{d.ranks * many * quads}ll"
        unless = "if (!left_out) " if self.p.scaled else ""
        if found.sync == ALL:
            w("ptx::arrive_at_grid(met);")
            meanwhile(True)
            w(f"ptx::wait_for_grid(met, (u + 1u) * {d.groups}u, 1);")
            self.stamp("all clusters sum", "wait")
            self.hear_clusters()
            w(f"{unless}update_all<Shape, Rule, {far}, {many}>("
              "reinterpret_cast<const float4*>(gradients) "
              f"+ ((u & 1) * {d.blocks}ll + rank) * {many * quads}, {stride}, rule, place, state"
              f"{how});")
            self.stamp("all clusters sum")
        else:
            w("ptx::arrive_at_grid(met);")
            meanwhile(False)
            w(f"ptx::wait_for_grid(met, (2u * u + 1u) * {d.groups}u, 1);")
            self.stamp("clusters sum and share", "wait")
            w("float4* const new_weights = reinterpret_cast<float4*>(fresh) + rank * "
              f"{many * quads};")
            self.hear_clusters()
            w(f"{unless}update_share<Shape, Rule, {far}, {many}, {found.shares}>("
              "reinterpret_cast<const float4*>(gradients) + rank * "
              f"{many * quads}, {stride}, rule, group, {self.at('scratch')}, new_weights, place, "
              f"state{how});")
            self.stamp("clusters sum and share")
            w("ptx::arrive_at_grid(met);")
            meanwhile(True)
            w(f"ptx::wait_for_grid(met, (2u * u + 2u) * {d.groups}u, 2);")
            self.stamp("clusters sum and share", "second wait")
            w(f"{unless}copy_fresh<Shape, {many}>(new_weights, place);")
            self.stamp("clusters sum and share", "copy")
        w("}")

    def hear_clusters(self) -> None:
        if self.p.scaled:
            self.w("left_out = any_group<Shape>(flags);")
