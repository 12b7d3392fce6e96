"""The gradient of a layer's weights and biases, updated or published in the registers that it was
summed in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rawnn.persistent.phases.epilogue import ACCUMULATE, UPDATE
from rawnn.persistent.phases.gemm import Gemm
from rawnn.persistent.phases.gradient_all_reduce import ALL
from rawnn.persistent.phases.learning_rate import declare_rule
from rawnn.persistent.phases.phase import Line
from rawnn.persistent.sharding import TILE, Sharding, ceil
from rawnn.persistent.tiles import update_tiling
from rawnn.persistent.writer import literal

if TYPE_CHECKING:
    from rawnn.persistent.cost import CostModel
    from rawnn.persistent.interpreter import Block, Interpreter
    from rawnn.persistent.layout import Layout
    from rawnn.persistent.writer import Kernel


@dataclass(frozen=True)
class WeightGradient(Gemm):
    """A GEMM of the kind GRADIENT, whose epilogue is to UPDATE, PUBLISH or ACCUMULATE.

    conditional: it runs only if the step counts (fp16 without overflow).
    """

    conditional: bool = False

    part_at_barrier = None

    def writes(self, d: Sharding) -> set[str]:
        """With a published gradient as with an update, so that barriers are the same in both."""
        return {f"w{self.layer + 1}", f"b{self.layer + 1}"}

    # -- order and time ----------------------------------------------------------------------------
    @property
    def is_conditional(self) -> bool:
        return self.conditional

    def next_warp(self, layout: Layout, first: int) -> int:
        d, tiles = layout.sharding, layout.layers[self.layer].update
        sums = ceil(ceil(self.n, 8), tiles.across) if d.problem.bias else 0
        return (first + tiles.tasks + sums) % d.warps

    def cost(self, model: CostModel) -> Iterator[Line]:
        d, costs, states = model.d, model.costs, len(model.p.states)
        if d.dp_size == 1:
            # choose_members.py was fitted to the tiling of the schedule.
            found = self.tiling(d) if d.members or d.holds_tiles else update_tiling(
                ceil(self.m, 16), ceil(self.n, 8), ceil(self.k, 8), d.warps, model.p.numbers,
                states)
            tiles = ceil(found.tasks, d.warps) * found.down * found.across
            cycles = found.cycles * costs.gradient + tiles * states * costs.update_state
        else:
            cycles = self.tiling(d).cycles * costs.published
        factor = 1.0 if self.layer == 0 or self.conditional else costs.overlapped
        yield Line(self.name, model.rest * cycles * factor)
        if model.p.streams:  # stochastic rounding of the updated weights
            tiles = ceil(ceil(self.m, 16) * ceil(self.n, 8), d.dp_size)
            yield Line(f"rounding {self.layer + 1}",
                       model.rest * costs.rounding * ceil(tiles, 4))

    # -- text --------------------------------------------------------------------------------------
    def begin_launch(self, k: Kernel) -> None:
        """Declares what registers hold of the weights, and loads it."""
        if not self._is_held(k):
            return
        n, held = self.layer + 1, k.layout.layers[self.layer].in_registers
        k.w(f"HeldTiles<{self._type(k)}, Rule, {literal(held)}, {k.d.micro_batches}, "
            f"{k.first_warp}> held{n};")
        k.w(f"held{n}.clear();")
        for i, state in enumerate(k.p.states if held else ()):
            k.w(f"held{n}.load<{i}>(w{n}_{state}, ldw{n}_{state}, shard{n});")

    def emit(self, k: Kernel) -> None:
        w, n = k.w, self.layer + 1
        w("{")
        w(f"// gradient {n}")
        if self.epilogue.function == UPDATE:
            self.declare_update(k)
        else:
            self._declare_publication(k)
        operands = f"{k.buffer(self.left)}, {k.buffer(self.right)}"
        if self._is_held(k):
            micro_batch = "micro_batch" if k.d.micro_batches > 1 else "0"
            sums = k.at(f"s{self.layer}") if micro_batch != "0" and k.p.bias else "nullptr"
            w(f"held{n}.run({operands}, finish, {micro_batch}, {sums});")
        else:
            w(f"{self._type(k)}::run({operands}, {k.first_warp}, finish);")
        w("}")
        k.stamp(self.name)

    def _is_held(self, k: Kernel) -> bool:
        """Whether registers hold state or sums of the layer's weights."""
        sums = k.d.holds_tiles and k.d.micro_batches > 1
        return sums or k.layout.layers[self.layer].in_registers

    def _type(self, k: Kernel) -> str:
        """The C++ type of the GEMM."""
        d, tiles = k.d, k.layout.layers[self.layer].update
        pitch = d.pitch if self.layer else k.layout.input_pitch
        return f"Gemm<Shape, {literal(self.layer > 0)}, true, {ceil(self.m, 16)}, " \
               f"{ceil(self.n, 8)}, {d.columns // 8}, 1, {tiles.down}, {tiles.across}, {pitch}, " \
               f"{d.pitch}, {literal(k.p.bias)}, {k.type_of(self.layer)}, " \
               f"{k.type_of(self.layer + 1)}>"

    def declare_update(self, k: Kernel) -> None:
        """The epilogue that updates weights and biases."""
        n, part, p = self.layer + 1, k.layout.layers[self.layer], k.p
        far = literal(part.is_state_global and bool(p.states))
        declare_rule(k)
        late = far == "true" and any(other.in_registers for other in k.layout.layers)
        how = f", StochasticRounding<{p.layers[self.layer]}>" if p.streams else ""
        k.w(f"const UpdateTiles<Shape, Rule, {far}, {part.pitch}, {part.rows}, {part.across}, "
            f"{part.state_tiles}, {literal(late)}{how}> finish = {{rule, weights{n}, biases{n}, "
            f"{k.states_at(self.layer)}{f', rounding{n}' if p.streams else ''}}};")

    def _declare_publication(self, k: Kernel) -> None:
        """The epilogue that stores tiles for the other groups, or adds to what earlier
        micro-batches stored. The others wait for the flag bit of the last micro-batch."""
        d, part = k.d, k.layout.layers[self.layer]
        copy = "(all_reduce & 1)" if k.layout.sync == ALL else "0"
        way, adds = "PublishTiles", ""
        if self.epilogue.function == ACCUMULATE:
            way = "AccumulateTiles"
            adds = f" ^ (micro_batch < {d.micro_batches - 1} ? 1u : 0u), micro_batch > 0"
        published = k.published_type
        kind = f", {published}" if d.publishes_bf16 else ""
        k.w(f"const {way}<{part.across}, {part.tiles}{kind}> finish = {{"
            f"reinterpret_cast<{published}*>(gradients) + ((({copy} * {d.dp_size} + group) * "
            f"{d.tp_size}ll + rank) * {k.layout.tiles} + {part.base}) * {TILE // 4}, "
            f"flag_bit{adds}}};")

    # -- meaning -----------------------------------------------------------------------------------
    def interpret(self, run: Interpreter, block: Block) -> None:
        a, z, n = block.at[self.left], block.at[self.right], self.layer + 1
        for name, gradient in ((f"w{n}", z @ a.T), (f"b{n}", z.sum(axis=1))):
            if name not in block.at:
                continue
            total = gradient + block.gradients[name] if run.part else gradient
            if self.epilogue.function == UPDATE and run.part == run.d.micro_batches - 1:
                run.update(block, name, total, slice(None))
            else:
                block.gradients[name] = total


def store_held(k: Kernel, layer: int) -> None:
    """Stores the optimizer state of a layer that registers hold, behind the steps of a launch."""
    n = layer + 1
    for i, state in enumerate(k.p.states if k.layout.layers[layer].in_registers else ()):
        k.w(f"held{n}.store<{i}>(w{n}_{state}, ldw{n}_{state}, shard{n});")
