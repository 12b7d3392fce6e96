"""Forward and backward GEMMs, on the tensor cores of a block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rawnn.persistent.phases.epilogue import Epilogue
from rawnn.persistent.phases.exchange import ALL_GATHER
from rawnn.persistent.phases.learning_rate import prepare_optimizer
from rawnn.persistent.phases.loss import declare_elementwise_loss
from rawnn.persistent.phases.phase import TENSOR_CORES, Line, Phase
from rawnn.persistent.sharding import Sharding, ceil, up
from rawnn.persistent.tiles import Tiling, tiling
from rawnn.persistent.writer import literal

if TYPE_CHECKING:
    from rawnn.persistent.cost import CostModel
    from rawnn.persistent.interpreter import Block, Interpreter
    from rawnn.persistent.layout import Layout
    from rawnn.persistent.writer import Kernel

FORWARD, BACKWARD, GRADIENT = "forward", "backward", "gradient"
"""Kinds of GEMMs. GRADIENT is that of weights and biases (weight_gradient.py)."""


@dataclass(frozen=True)
class Gemm(Phase):
    """`m` x `n` sums over `k` of the buffers `left` and `right`. layer: 0 .. depth - 1."""

    kind: str
    layer: int
    left: str
    right: str
    m: int
    n: int
    k: int
    epilogue: Epilogue

    lane = TENSOR_CORES
    part_at_barrier: ClassVar[str | None] = "barrier"

    def tiling(self, d: Sharding) -> Tiling:
        """How the warps share it. The layout may choose another one for a GRADIENT."""
        return tiling(ceil(self.m, 16), ceil(self.n, 8), ceil(self.k, 8), d.warps,
                      d.problem.numbers, may_split=self.kind != GRADIENT)

    @property
    def is_first(self) -> bool:
        """Whether it is the first GEMM of a step."""
        return self.kind == FORWARD and self.layer == 0

    # -- memory ------------------------------------------------------------------------------------
    def reads(self, d: Sharding) -> set[str]:
        return {self.left, self.right} | self.epilogue.reads

    def writes(self, d: Sharding) -> set[str]:
        return self.epilogue.writes | ({"scratch"} if self.tiling(d).split > 1 else set())

    def scratch_floats(self, d: Sharding) -> int:
        """The partial sums of a GEMM that is split."""
        split = self.tiling(d).split
        return split * up(self.m, 16) * d.pitch if split > 1 else 0

    # -- order and time ----------------------------------------------------------------------------
    def stamps(self, d: Sharding) -> Sequence[str]:
        return ("work", "parts") if self.tiling(d).split > 1 else ("work",)

    def next_warp(self, layout: Layout, first: int) -> int:
        d, tiles = layout.sharding, self.tiling(layout.sharding)
        alone = self.kind == BACKWARD and not self.epilogue.send and tiles.split == 1
        return tiles.tasks % d.warps if alone else 0

    def cost(self, model: CostModel) -> Iterator[Line]:
        cycles = model.costs.gemm_begin + model.costs.gemm * self.tiling(model.d).cycles
        yield Line(self.name, model.rest * cycles + self.epilogue.cycles(model))

    # -- text --------------------------------------------------------------------------------------
    def describe(self, d: Sharding) -> str:
        return f"{self.m} x {self.n} over {self.k}{self.epilogue.describe(d)}"

    def emit(self, k: Kernel) -> None:
        d, p, w, end = k.d, k.p, k.w, self.epilogue
        n, boundary = self.layer + 1, self.layer + (self.kind == FORWARD)
        if self.is_first and not k.schedule.prefetch.first_thread:
            declare_for_epilogues(k)
        w(f"// {self.kind} {n}: {d.layer_kinds[self.layer]}")
        if self.kind == FORWARD and n == p.depth > 1 and not p.labelled:
            declare_elementwise_loss(k)
        if end.send:
            end.send.begin(k)
        if self.is_first:
            prepare_optimizer(k)
        # All rows of partial sums are sent; of values, those that the block has.
        whole = end.own_rows or (end.send and end.send.kind != ALL_GATHER)
        limit = str(p.layers[boundary]) if whole else k.count(boundary)
        assert not limit.isdecimal() or int(limit) == self.m
        self._emit_sums(k, end.text(k, boundary, limit), limit)

    def _emit_sums(self, k: Kernel, finish: str, limit: str) -> None:
        """Gemm<...>::run(weights, right operand, first warp, what happens to the sums)."""
        d, w, part, tiles = k.d, k.w, k.layout.layers[self.layer], self.tiling(k.d)
        sent, bias = self.epilogue.send is not None, self.epilogue.biases
        if self.kind == FORWARD:
            ways, right = f"false, {literal(self.layer == 0)}", self.layer
            pitch = d.pitch if self.layer else k.layout.input_pitch
        else:
            ways, right, pitch = "true, false", self.layer + 1, d.pitch
        type_, weights = k.weights_of(self.layer)
        head = f"Gemm<Shape, {ways}, {ceil(self.m, 16)}, {d.columns // 8}, {ceil(self.k, 8)}, " \
               f"{tiles.split}, {tiles.down}, {tiles.across}, {part.pitch}, {pitch}, false, " \
               f"{type_}, {k.type_of(right)}>::run({weights}, {k.buffer(self.right)}, 0, "
        if tiles.split == 1:
            ends = self.epilogue.whole_text(k, limit) or \
                f"{'quads' if sent else 'pairs'}({finish})"
            w(f"{head}{f'biased({bias}, {ends})' if bias else ends});")
            k.stamp(self.name)
            return
        rows, scratch = ceil(self.m, 16) * 16, k.at("scratch")
        w(f"{head}store_parts<Shape, {rows}>({scratch}));")
        k.stamp(self.name)
        w("__syncthreads();")
        body = finish if sent else f"by_pairs({finish})"
        w(f"add_parts<Shape, {tiles.split}, {rows}>({scratch}, {limit}, "
          f"{f'with_bias({bias}, {body})' if bias else body});")
        k.stamp(self.name, "parts")

    # -- meaning -----------------------------------------------------------------------------------
    def interpret(self, run: Interpreter, block: Block) -> None:
        w, forward = block.at[self.left], self.kind == FORWARD
        sums = (w if forward else w.T) @ block.at[self.right]
        self.epilogue.interpret(run, block, sums, self.layer + forward)


def declare_for_epilogues(k: Kernel) -> None:
    """Declares what epilogues use, ahead of the first GEMM and of a prefetch beside it."""
    if k.p.scaled:
        k.w("int* const found = scaling->found + (u & 1);")
    if k.p.depth == 1 and not k.p.labelled:
        declare_elementwise_loss(k)
