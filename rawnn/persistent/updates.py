"""Emits how gradients become new weights: the all-reduce of data-parallel groups, and whether an
fp16 step counts."""

from __future__ import annotations

from collections.abc import Callable

from rawnn.persistent.block_memory import LayerLayout
from rawnn.persistent.exchanges import ExchangeEmitter
from rawnn.persistent.layout import ALL
from rawnn.persistent.phases import CheckOverflow, GradientAllReduce, Phase, WeightAllGather
from rawnn.persistent.sharding import TILE
from rawnn.persistent.writer import Emitter, Kernel, literal

QUADS = TILE // 4


class UpdateEmitter(Emitter):
    """Emits `GradientAllReduce`, `WeightAllGather`, `CheckOverflow`, `AgreeOnStep` and
    `AdjustLossScale`."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.exchanges = ExchangeEmitter(kernel)

    @property
    def counts(self) -> str:
        """C++: whether the step counts."""
        return "!skipped" if self.p.scaled else "true"

    # -- overflows ---------------------------------------------------------------------------------
    def check_overflow(self, phase: CheckOverflow) -> None:
        """Publishes whether this block saw a gradient that overflows fp16."""
        if phase.send:
            self.exchanges.begin_exchange(phase.send)
            self.w(f"transport.publish_flag<{self.k.type_of_exchange(phase.send)}>(rank, "
                   "*found != 0 ? 1.0f : 0.0f);")
        if self.d.dp_size > 1:
            self.k.stamp(phase.name, "send")

    def agree_on_step(self, phase: Phase) -> None:
        """Decides whether the step is left out. One of several data-parallel groups publishes
        what it has found."""
        d, w = self.d, self.w
        found = "*found != 0" if d.tp_size == 1 else \
            f"transport.any<{self.k.type_of_exchange(self.schedule.exchanges[-1])}>()"
        if d.dp_size == 1:
            w(f"const bool skipped = {found};")
        else:
            w(f"const bool seen = {found};")
            w("const unsigned int overflow_flag_bit = ~(all_reduce >> 1) & 1u;")
            w("float4* const of_groups = reinterpret_cast<float4*>(overflows) + (all_reduce & 1) * "
              f"{d.blocks} + rank;")
            w(f"if (thread == 0) send_flagged(of_groups + group * {d.tp_size}, "
              "make_float4(seen ? 1.0f : 0.0f, 0.0f, 0.0f, 0.0f), overflow_flag_bit);")
        self.k.stamp(phase.name)

    def prepare_optimizer(self) -> None:
        """One thread makes the object of the optimizer step."""
        p = self.p
        if self.d.evaluates:
            return
        time = "steps_before + u + 1" if p.timed else "0"
        settings = "".join(f", {self.k.setting(i)}" for i in range(len(p.settings)))
        scale = "scaling->scale, " if p.scaled else ""
        rate = "rate" if p.scheduled else self.k.rate("")
        first = "micro_batch == 0 && " if self.d.micro_batches > 1 else ""
        self.w(f"if ({first}thread == {self.d.threads - 1}) *rule_of_step = Rule({scale}{rate}, "
               f"{time}{settings});")

    def adjust_loss_scale(self) -> None:
        self.w(f"if (thread == 0) scaling->adjust(skipped, {self.p.growth}, (u + 1) & 1);")

    # -- several groups ----------------------------------------------------------------------------
    def emit_flag_bit(self) -> None:
        """Emits the number of the step since the workspaces were made, and the flag bit of what
        data-parallel groups publish in it, which differs from the one in memory."""
        if self.layout.sync:
            self.w("const unsigned int all_reduce = all_reduces_before + u;")
            uses = "(all_reduce >> 1)" if self.layout.sync == ALL else "all_reduce"
            self.w(f"const unsigned int flag_bit = ~{uses} & 1u;")

    def tile_places(self) -> None:
        """A table of where each tile of weights lies, for updates of tiles of several layers."""
        d, w, found = self.d, self.w, self.layout
        if not found.sync:
            return
        assert found.nbytes <= 4 << 16, "an entry has 16 bits for a float's place"
        w(f"uint2* const places = reinterpret_cast<uint2*>{self.k.at('places')};")
        w("const auto place_of_tile = [](int tile) {")
        self.by_layer(lambda part, n: f"place_of<{part.pitch}, {part.rows}, {part.across}, "
                                      f"{part.tiles}>(tile - {part.base}, {part.weights}u, "
                                      f"{part.bias}u)")
        w("};")
        w(f"for (int i = thread; i < {found.tiles}; i += {d.threads}) "
          "places[i] = place_of_tile(i);")

    def begin_all_reduce(self) -> None:
        """Opens the scope of the gradient all-reduce, with what its phases use."""
        d, w, found = self.d, self.w, self.layout
        if self.p.scaled:
            w("bool skipped;")
        w("{")
        w("// gradients of all clusters")
        w("const auto place = [=](int tile) { return place_in(shared, places[tile]); };")
        if self.p.streams:
            w("const auto how = [=](int tile) {")
            self.by_layer(lambda part, n: f"rounding{n}.numbered<{part.across}, {part.tiles}>("
                                          f"tile - {part.base})")
            w("};")
        w(f"float4* const states = {self.k.states_at(0)};")
        w(f"const auto state = [=](int slot) {{ return states + slot * "
          f"{len(self.p.states) * QUADS}; }};")
        w("const Rule rule = *rule_of_step;")
        copy = f"(all_reduce & 1) * {d.blocks}ll + " if found.sync == ALL else ""
        w(f"const {self.k.published_type}* const parts = reinterpret_cast<const "
          f"{self.k.published_type}*>(gradients) + ({copy}rank) * {found.tiles * QUADS};")

    def all_reduce(self, phase: GradientAllReduce) -> None:
        d, w, found, many = self.d, self.w, self.layout, self.layout.tiles
        how = ", how" if self.p.streams else ""
        far = literal(found.shared_state is None and bool(self.p.states))
        stride = f"{d.tp_size * many * QUADS}ll"
        if self.p.scaled:
            w("skipped = any_group<Shape>(of_groups, overflow_flag_bit);")
        if not phase.sharded:
            w(f"update_all<Shape, Rule, {far}, {many}>(parts, {stride}, flag_bit, {self.counts}, "
              f"rule, place, state{how});")
        else:
            published = self.k.published_type
            w(f"{published}* const changes = reinterpret_cast<{published}*>(weight_changes) + "
              f"rank * {many * QUADS};")
            w(f"update_share<Shape, Rule, {far}, {many}, {found.shares}>(parts, {stride}, "
              f"flag_bit, {self.counts}, rule, group, {self.k.at('scratch')}, changes, place, "
              f"state{how});")
        self.k.stamp(phase.name)

    def all_gather(self, phase: WeightAllGather) -> None:
        how = ", how" if self.p.streams else ""
        self.w(f"receive_changes<Shape, {self.layout.tiles}>(changes, flag_bit, {self.counts}, "
               f"group, place{how});")
        self.k.stamp(phase.name, "changes")

    def by_layer(self, text: Callable[[LayerLayout, int], str]) -> None:
        """Emits `return text(layer, number)` for the layer that a tile belongs to; layers are
        numbered from 1."""
        parts = self.layout.layers
        for n, part in enumerate(parts, 1):
            found = f"return {text(part, n)};"
            self.w(f"if (tile >= {part.base}) {found}" if n < len(parts) else found)
