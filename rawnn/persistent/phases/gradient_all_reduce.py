"""How the published gradients of several groups become new weights, via L2."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rawnn.persistent.phases.learning_rate import declare_rule
from rawnn.persistent.phases.phase import OTHER_BLOCKS, Line, Phase
from rawnn.persistent.sharding import TILE, Sharding, ceil
from rawnn.persistent.writer import literal

if TYPE_CHECKING:
    from rawnn.persistent.block_memory import LayerLayout
    from rawnn.persistent.cost import CostModel
    from rawnn.persistent.interpreter import Block, Interpreter
    from rawnn.persistent.writer import Kernel

ALL, SHARE = "all", "share"
"""How data-parallel groups update (`Layout.sync`)."""
SUM_ALL, SUM_SHARES = "all clusters sum", "clusters sum and share"
QUADS = TILE // 4


@dataclass(frozen=True)
class GradientAllReduce(Phase):
    """Sums the published gradients of all data-parallel groups, in the order of the groups, and
    updates the weights: all `tiles` of a block, or if `sharded` the share of this group, whose
    changes it publishes."""

    tiles: int
    sharded: bool = False

    lane, label = OTHER_BLOCKS, "gradient all-reduce"

    def owned(self, d: Sharding) -> int:
        """Tiles that a group updates, and keeps the optimizer state of."""
        return ceil(self.tiles, d.dp_size) if self.sharded else self.tiles

    def warps_of_tile(self, d: Sharding) -> int:
        """Warps that share the sum of a tile in a sharded update: with few tiles, more than one."""
        found = 1
        while self.sharded and found * 2 <= min(d.warps, d.dp_size) \
                and self.owned(d) * found < d.warps:
            found *= 2
        return found

    # -- memory ------------------------------------------------------------------------------------
    def writes(self, d: Sharding) -> set[str]:
        return parameters(d)

    def scratch_floats(self, d: Sharding) -> int:
        warps = self.warps_of_tile(d)
        return self.owned(d) * warps * TILE if warps > 1 else 0

    def own_floats(self, d: Sharding) -> Mapping[str, tuple[int, str]]:
        return {"places": (2 * self.tiles, "places of the tiles of gradients")}

    # -- time --------------------------------------------------------------------------------------
    def stamps(self, d: Sharding) -> Sequence[str]:
        return ("work",)

    def cost(self, model: CostModel) -> Iterator[Line]:
        costs = model.costs
        latency = costs.via_l2_all_reduce if model.exchanges_via_l2 else costs.all_reduce
        cycles = 2 * latency + summed_in_shares(model, self.tiles) if self.sharded \
            else latency + summed_by_all(model, self.tiles)
        yield Line(self.name, model.rest * cycles)

    # -- text --------------------------------------------------------------------------------------
    def describe(self, d: Sharding) -> str:
        group = "group" if d.via_l2 else "cluster"
        return f"each {group} sums and updates its share of {self.tiles} tiles" \
            if self.sharded else f"every {group} sums and updates all {self.tiles} tiles"

    def begin_launch(self, k: Kernel) -> None:
        """A table of where each tile of weights lies, for updates of tiles of several layers."""
        w, found = k.w, k.layout
        assert found.nbytes <= 4 << 16, "an entry has 16 bits for a float's place"
        w(f"uint2* const places = reinterpret_cast<uint2*>{k.at('places')};")
        w("const auto place_of_tile = [](int tile) {")
        _emit_by_layer(k, lambda part, n: f"place_of<{part.pitch}, {part.rows}, {part.across}, "
                                          f"{part.tiles}>(tile - {part.base}, {part.weights}u, "
                                          f"{part.bias}u)")
        w("};")
        if found.tiles <= k.d.threads:
            w(f"if (thread < {found.tiles}) places[thread] = place_of_tile(thread);")
        else:
            w("#pragma unroll 1")
            w(f"for (int i = thread; i < {found.tiles}; i += {k.d.threads}) "
              "places[i] = place_of_tile(i);")

    def begin_step(self, k: Kernel) -> None:
        """The number of the step since the workspaces were made, and the flag bit of what groups
        publish in it, which differs from the one in memory."""
        k.w("const unsigned int all_reduce = all_reduces_before + u;")
        uses = "all_reduce" if self.sharded else "(all_reduce >> 1)"
        k.w(f"const unsigned int flag_bit = ~{uses} & 1u;")

    def begin(self, k: Kernel) -> None:
        """Opens a scope with what it and the all-gather of weights use."""
        w, found = k.w, k.layout
        if k.p.scaled:
            w("bool skipped;")
        w("{")
        w("// gradients of all clusters")
        w("const auto place = [=](int tile) { return place_in(shared, places[tile]); };")
        if k.p.streams:
            w("const auto how = [=](int tile) {")
            _emit_by_layer(k, lambda part, n: f"rounding{n}.numbered<{part.across}, {part.tiles}>("
                                              f"tile - {part.base})")
            w("};")
        w(f"float4* const states = {k.states_at(0)};")
        w(f"const auto state = [=](int slot) {{ return states + slot * "
          f"{len(k.p.states) * QUADS}; }};")
        declare_rule(k)
        copy = "" if self.sharded else f"(all_reduce & 1) * {k.d.blocks}ll + "
        w(f"const {k.published_type}* const parts = reinterpret_cast<const "
          f"{k.published_type}*>(gradients) + ({copy}rank) * {found.tiles * QUADS};")

    def emit(self, k: Kernel) -> None:
        w, found, many, warps = k.w, k.layout, k.layout.tiles, self.warps_of_tile(k.d)
        far = literal(found.shared_state is None and bool(k.p.states))
        stride = f"{k.d.tp_size * many * QUADS}ll"
        if k.p.scaled:
            w("skipped = any_group<Shape>(of_groups, overflow_flag_bit);")
        if not self.sharded:
            w(f"update_all<Shape, Rule, {far}, {many}>(parts, {stride}, flag_bit, {_counts(k)}, "
              f"rule, place, state{_rounding(k)});")
        else:
            published = k.published_type
            w(f"{published}* const changes = reinterpret_cast<{published}*>(weight_changes) + "
              f"rank * {many * QUADS};")
            w(f"update_share<Shape, Rule, {far}, {many}, {warps}>(parts, {stride}, "
              f"flag_bit, {_counts(k)}, rule, group, {k.at('scratch')}, changes, place, "
              f"state{_rounding(k)});")
        k.stamp(self.name)
        if not self.sharded:
            w("}")

    # -- meaning -----------------------------------------------------------------------------------
    def interpret(self, run: Interpreter, block: Block) -> None:
        same = run.replicas(block)
        block.changes = {}
        if block.left_out:
            return
        for name in same[0].gradients:
            parts = [other.gradients[name] for other in same]
            owned = run.owned(parts[0], block.group) if self.sharded else slice(None)
            before = block.at[name].reshape(-1)[owned].copy()
            run.update(block, name, sum(parts[1:], parts[0]), owned)
            if self.sharded:
                block.changes[name] = block.at[name].reshape(-1)[owned] - before


@dataclass(frozen=True)
class WeightAllGather(Phase):
    """Adds the changes of weights that the other groups published."""

    tiles: int

    lane, label = OTHER_BLOCKS, "weight all-gather"

    def writes(self, d: Sharding) -> set[str]:
        return parameters(d)

    def stamps(self, d: Sharding) -> Sequence[str]:
        return ("changes",)

    def emit(self, k: Kernel) -> None:
        k.w(f"receive_changes<Shape, {k.layout.tiles}>(changes, flag_bit, {_counts(k)}, "
            f"group, place{_rounding(k)});")
        k.stamp(self.name, "changes")
        k.w("}")

    def interpret(self, run: Interpreter, block: Block) -> None:
        for other in run.replicas(block):
            for name, change in other.changes.items():
                if other is not block:
                    owned = run.owned(block.at[name], other.group)
                    block.at[name].reshape(-1)[owned] += change


def parameters(d: Sharding) -> set[str]:
    """The buffers of all weights and biases."""
    return {f"{name}{n}" for n in range(1, d.problem.depth + 1) for name in "wb"}


# -- cycles ----------------------------------------------------------------------------------------
def summed_by_all(model: CostModel, tiles: int) -> float:
    """What every group takes to sum and update so many tiles, besides the latency."""
    nbytes = tiles * TILE * model.d.published_bytes
    factor = model.costs.bf16_summed if model.d.publishes_bf16 else 1.0
    return model.d.dp_size * nbytes / model.costs.summed_bytes / factor + _state(model, nbytes)


def summed_in_shares(model: CostModel, tiles: int) -> float:
    """The same for a group that updates its share, and takes in the others' changes."""
    nbytes = tiles * TILE * model.d.published_bytes
    factor = model.costs.bf16 if model.d.publishes_bf16 else 1.0
    return nbytes / model.costs.sharded_bytes / factor + _state(model, nbytes / model.d.dp_size)


def _state(model: CostModel, nbytes: float) -> float:
    """The optimizer state of gradients that are published in so many bytes."""
    return len(model.p.states) * nbytes * 4 / model.d.published_bytes / model.costs.state_bytes


# -- text ------------------------------------------------------------------------------------------
def _counts(k: Kernel) -> str:
    """C++: whether the step counts."""
    return "!skipped" if k.p.scaled else "true"


def _rounding(k: Kernel) -> str:
    """C++: the last argument of updates that round stochastically."""
    return ", how" if k.p.streams else ""


def _emit_by_layer(k: Kernel, text: Callable[[LayerLayout, int], str]) -> None:
    """Emits `return text(layer, number)` for the layer that a tile belongs to; layers are numbered
    from 1."""
    parts = k.layout.layers
    for n, part in enumerate(parts, 1):
        found = f"return {text(part, n)};"
        k.w(f"if (tile >= {part.base}) {found}" if n < len(parts) else found)
