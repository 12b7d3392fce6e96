"""Cross-entropy with labels: whole, or in two halves with the statistics of warps or blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rawnn.persistent.phases.exchange import Exchange
from rawnn.persistent.phases.loss import gradient_scaling
from rawnn.persistent.phases.phase import Line, Phase
from rawnn.persistent.sharding import ALL_GATHERED, Sharding
from rawnn.persistent.tiles import softmax_floats, softmax_of, statistics_floats
from rawnn.persistent.writer import literal

if TYPE_CHECKING:
    from rawnn.persistent.cost import CostModel, Costs
    from rawnn.persistent.interpreter import Block, Interpreter
    from rawnn.persistent.writer import Kernel

SOFTMAX, STATISTICS = "softmax", "exchange of softmax"


@dataclass(frozen=True)
class StatisticsExchange(Exchange):
    """Each block gets the statistics of all. All threads wait in it, so that it needs no barrier
    behind it."""

    def writes(self, d: Sharding) -> set[str]:
        return set()

    def rows_of_block(self, d: Sharding) -> tuple[int, str]:
        return self.rows // d.tp_size, str(self.rows // d.tp_size)

    def stamps(self, d: Sharding) -> Sequence[str]:
        return ("wait",)

    def latency(self, costs: Costs) -> float:
        return super().latency(costs) + costs.second_exchange

    def array(self, k: Kernel) -> str:
        """C++: the statistics of all blocks."""
        return f"received_{self.c_type(k)}"

    def emit(self, k: Kernel) -> None:
        k.w(f"const float* const {self.array(k)} = transport.gather<"
            f"{self.c_type(k)}>({k.at('scratch')} + {statistics_floats(k.d)});")
        k.stamp(self.name, "wait")


@dataclass(frozen=True)
class Softmax(Phase):
    """The gradient of `logits` goes to the buffer `to`.

    If warps or blocks share an example, a phase with `statistics` comes first: each finds the
    maximum and the sum of exponentials of its logits, and may send them.
    """

    logits: str
    to: str
    statistics: bool = False
    send: StatisticsExchange | None = None

    # -- memory ------------------------------------------------------------------------------------
    def reads(self, d: Sharding) -> set[str]:
        return {self.logits} if self.statistics else {self.logits, "y", "statistics"}

    def writes(self, d: Sharding) -> set[str]:
        if self.statistics:  # exponentials take the place of logits
            return {self.logits} if self.send else {self.logits, "statistics"}
        return {self.to, "tallies", "overflow"}

    def unshared(self, earlier: Iterable[Phase]) -> set[str]:
        """Each warp has the same logits in both halves."""
        return {self.logits, self.to} if any(isinstance(each, Softmax) for each in earlier) \
            else set()

    def scratch_floats(self, d: Sharding) -> int:
        return softmax_floats(d) if self.statistics else 0

    # -- time --------------------------------------------------------------------------------------
    @property
    def part_at_barrier(self) -> str | None:
        return "" if self.statistics else "work"

    def stamps(self, d: Sharding) -> Sequence[str]:
        return ("slice",) if self.statistics else ()

    def cost(self, model: CostModel) -> Iterator[Line]:
        if not self.statistics:
            rows = model.costs.softmax_rows * softmax_of(model.d).cycles
            yield Line(self.name, model.rest * (model.costs.softmax + rows))

    # -- text --------------------------------------------------------------------------------------
    def emit(self, k: Kernel) -> None:
        d, p, w, last = k.d, k.p, k.w, k.p.depth
        scaling = f", {gradient_scaling(k)}" if p.scaled else ""
        ends = f"y, present, {k.mean(p.batch)}, {place_of_tallies(k)}{scaling});"
        if not d.shards_softmax and softmax_of(d).warps == 1:
            w(f"softmax_loss<Shape, {p.outputs}, {softmax_of(d).lanes}>({k.logits}, "
              f"{k.z(last)}, {k.first(last)}, {k.count(last)}, {ends}")
            return
        warps, lanes = softmax_of(d).warps, softmax_of(d).lanes
        statistics = f"reinterpret_cast<float4*>{k.at('scratch')}"
        shape = f"{d.outs(last - 1)}, {lanes}, {warps}"
        mine = f"{k.first(last)}, {k.count(last)}, {statistics}"
        if self.statistics:
            w("{")
            publish = "PublishNothing{}"
            if self.send:
                self.send.begin(k)
                publish = f"publish_statistics<{self.send.c_type(k)}, {lanes}>(transport)"
            w(f"exponentials_of_slice<Shape, {shape}>({k.logits}, {mine}, {publish});")
            k.stamp(self.name, "slice")
            return
        parts, columns = warps, d.columns
        if d.shards_softmax:
            parts, columns = d.tp_size, d.sent
            (sums,) = (e for e in k.schedule.exchanges if isinstance(e, StatisticsExchange))
            statistics = f"reinterpret_cast<const float4*>({sums.array(k)})"
        w(f"loss_of_slice<Shape, {p.outputs}, {shape}, {parts}, {columns}, "
          f"{literal(d.stores_tallies)}>({k.logits}, {k.z(last)}, {mine}, {statistics}, {ends}")
        w("}")

    # -- meaning -----------------------------------------------------------------------------------
    def interpret(self, run: Interpreter, block: Block) -> None:
        """Statistics have four rows, of which two say which output is the largest."""
        z, depth = block.at[self.logits], run.p.depth
        mine = z.max(axis=0, initial=-np.inf)
        most = np.where(np.isfinite(mine), mine, 0)  # of a block without outputs
        own = np.stack([mine, np.exp(z - most).sum(axis=0), 0 * most, 0 * most])
        if self.send:
            self.send.send(run, block, own)
        elif self.statistics:
            block.at["statistics"] = own
        if self.statistics:
            return
        found = block.at.pop("statistics", None)
        if found is None:
            assert not run.d.shards_softmax
            found = own
        highest = found[::4].max(axis=0)
        total = (found[1::4] * np.exp(found[::4] - highest)).sum(axis=0)
        hot = np.arange(run.p.outputs)[:, None] == block.at["y"][None]
        if run.d.boundaries[-1] == ALL_GATHERED:
            z = z[run.own(block, depth)]
        gradient = np.exp(z - highest) / total - hot[run.shard(block, depth)]
        block.at[self.to] = run.scaled(block, gradient / len(run.inputs))


def place_of_tallies(k: Kernel) -> str:
    """C++: where tallies of examples go, and of how many."""
    d = k.d
    if not d.stores_tallies:
        return f"tallies, {d.columns}"
    each = d.shards_softmax or d.splits_examples or d.tp_size == 1
    mine = str(d.group_batch) if each else f"rank == 0 ? {d.group_batch} : 0"
    return f"reinterpret_cast<Tally*>(tally) + {k.counter} * {d.group_batch}ll, {mine}"
