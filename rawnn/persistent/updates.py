"""Emits weight gradients, the gradient all-reduce of data-parallel groups, and updates."""

from __future__ import annotations

from collections.abc import Callable

from rawnn.persistent.exchanges import ExchangeWriter
from rawnn.persistent.layout import ALL, TILE, LayerLayout
from rawnn.persistent.sharding import ceil
from rawnn.persistent.writer import literal


class UpdateWriter(ExchangeWriter):
    """Emits what follows the gradients of a step."""

    @property
    def told_as(self) -> str:
        """Four numbers that clusters tell each other, in C++."""
        return "uint2" if self.d.publishes_bf16 else "float4"

    def gradients(self, layers: list[int], first: int = 0) -> None:
        """Emits the weight gradients of `layers` with their updates, or publishes them for the
        gradient all-reduce. The GEMM begins at warp `first`."""
        d, p, w = self.d, self.p, self.w
        for layer in layers:
            n, part, tiles = layer + 1, self.layout.layers[layer], self.layout.layers[layer].update
            pitch = d.pitch if layer else self.layout.input_pitch
            w("{")
            w(f"// gradient {n}")
            if self.layout.sync:
                turn = "(meeting & 1)" if self.layout.sync == ALL else "0"
                many = self.layout.tiles
                way, adds = "PublishTiles", ""
                if d.micro_batches > 1:
                    way = "AccumulateTiles"
                    adds = f" ^ (part < {d.micro_batches - 1} ? 1u : 0u), part > 0"
                told = self.told_as
                kind = f", {told}" if d.publishes_bf16 else ""
                w(f"const {way}<{part.across}, {part.tiles}{kind}> finish = {{"
                  f"reinterpret_cast<{told}*>(gradients) + ((({turn} * {d.dp_size} + group) * "
                  f"{d.tp_size}ll + rank) * {many} + {part.base})"
                  f" * {TILE // 4}, flag_bit{adds}}};")
            else:
                far = literal(part.near is None and bool(p.states))
                w("const Rule rule = *rule_of_step;")
                chance = bool(self.p.streams)
                how = f", StochasticRounding<{self.p.layers[layer]}>" if chance else ""
                w(f"const UpdateTiles<Shape, Rule, {far}, {part.pitch}, {part.rows}, "
                  f"{part.across}, {part.tiles}{how}> finish = {{rule, weights{n}, biases{n}, "
                  f"{self.states_at(layer)}{f', chance{n}' if chance else ''}}};")
            w(f"Product<Shape, {literal(layer > 0)}, true, {ceil(d.ins(layer), 16)}, "
              f"{ceil(d.outs(layer), 8)}, {d.columns // 8}, 1, {tiles.down}, {tiles.across}, "
              f"{pitch}, {d.pitch}, {literal(p.bias)}, {self.type_of(layer)}, "
              f"{self.type_of(layer + 1)}>::run({self.a(layer)}, "
              f"{self.z(layer + 1)}, {first}, finish);")
            w("}")
            self.stamp(f"gradient {n}")
            sums = ceil(ceil(d.outs(layer), 8), tiles.across) if p.bias else 0
            first = (first + tiles.tasks + sums) % d.warps
        layers.clear()

    def receive_overflow(self) -> None:
        """Decides whether the step is left out. One of several data-parallel groups publishes
        what it has found."""
        d, w = self.d, self.w
        found = self.overflowed()
        if not self.layout.sync:
            w(f"const bool left_out = {found};")
            return
        w(f"const bool seen = {found};")
        w("const unsigned int overflow_flag_bit = ~(meeting >> 1) & 1u;")
        w("float4* const of_groups = reinterpret_cast<float4*>(overflows) + (meeting & 1) * "
          f"{d.blocks} + rank;")
        w(f"if (thread == 0) send_flagged(of_groups + group * {d.tp_size}, "
          "make_float4(seen ? 1.0f : 0.0f, 0.0f, 0.0f, 0.0f), overflow_flag_bit);")

    def emit_flag_bit(self) -> None:
        """Emits the number of the step since the workspaces were made, and the flag bit of what
        data-parallel groups publish in it, which differs from the one in memory."""
        if self.layout.sync:
            self.w("const unsigned int meeting = meetings_before + u;")
            uses = "(meeting >> 1)" if self.layout.sync == ALL else "meeting"
            self.w(f"const unsigned int flag_bit = ~{uses} & 1u;")

    def emit_tile_places(self) -> None:
        """Emits the table of the tiles' places, for the gradient all-reduce."""
        d, w, found = self.d, self.w, self.layout
        if not found.sync:
            return
        assert found.nbytes <= 4 << 16, "an entry has 16 bits for a float's place"
        w(f"uint2* const places = reinterpret_cast<uint2*>{self.at('places')};")
        w("const auto place_of_tile = [](int tile) {")
        self.by_layer(lambda part, n: f"place_of<{part.pitch}, {part.rows}, {part.across}, "
                                      f"{part.tiles}>(tile - {part.base}, {part.weights}u, "
                                      f"{part.bias}u)")
        w("};")
        w(f"for (int i = thread; i < {found.tiles}; i += {d.threads}) "
          "places[i] = place_of_tile(i);")

    def all_reduce_gradients(self, meanwhile: Callable[[bool], None]) -> None:
        """Emits the gradient all-reduce of data-parallel groups with its updates. `meanwhile(last)`
        emits what overlaps with the exchange, in the last place for it or not."""
        d, w, found = self.d, self.w, self.layout
        if not found.sync:
            return
        many, quads = found.tiles, TILE // 4
        if self.p.scaled:
            w("bool left_out;")
        far = literal(found.shared_state is None and bool(self.p.states))
        w("{")
        w("// gradients of all clusters")
        w("const auto place = [=](int tile) { return place_in(shared, places[tile]); };")
        how = ""
        if self.p.streams:
            how = ", how"
            w("const auto how = [=](int tile) {")
            self.by_layer(lambda part, n: f"chance{n}.numbered<{part.across}, {part.tiles}>("
                                          f"tile - {part.base})")
            w("};")
        w(f"float4* const states = {self.states_at(0)};")
        w(f"const auto state = [=](int slot) {{ return states + slot * "
          f"{len(self.p.states) * quads}; }};")
        w("const Rule rule = *rule_of_step;")
        stride = f"{d.tp_size * many * quads}ll"
        turn = f"(meeting & 1) * {d.blocks}ll + " if found.sync == ALL else ""
        sent = self.sent_type
        w(f"const {sent}* const parts = reinterpret_cast<const {sent}*>(gradients) + ({turn}rank) "
          f"* {many * quads};")
        counts = "!left_out" if self.p.scaled else "true"
        meanwhile(found.sync == ALL)
        if self.p.scaled:
            w("left_out = any_group<Shape>(of_groups, overflow_flag_bit);")
        if found.sync == ALL:
            w(f"update_all<Shape, Rule, {far}, {many}>(parts, {stride}, flag_bit, {counts}, "
              f"rule, place, state{how});")
            self.stamp("all clusters sum")
        else:
            w(f"{sent}* const changes = reinterpret_cast<{sent}*>(fresh) + rank * {many * quads};")
            w(f"update_share<Shape, Rule, {far}, {many}, {found.shares}>(parts, {stride}, "
              f"flag_bit, {counts}, rule, group, {self.at('scratch')}, changes, place, "
              f"state{how});")
            self.stamp("clusters sum and share")
            meanwhile(True)
            w(f"receive_changes<Shape, {many}>(changes, flag_bit, {counts}, group, place{how});")
            self.stamp("clusters sum and share", "changes")
        w("}")

    def by_layer(self, text: Callable[[LayerLayout, int], str]) -> None:
        """Emits `return text(layer, number)` for the layer that a tile belongs to; layers are
        numbered from 1."""
        parts = self.layout.layers
        for n, part in enumerate(parts, 1):
            found = f"return {text(part, n)};"
            self.w(f"if (tile >= {part.base}) {found}" if n < len(parts) else found)
