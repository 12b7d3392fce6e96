"""Exchanges between the thread blocks of a tensor-parallel group. The code is the same for both
transports, DSMEM and L2 (ptx/persistent/exchange.cuh)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rawnn.persistent import buffers
from rawnn.persistent.buffers import Slot
from rawnn.persistent.phases.epilogue import Epilogue
from rawnn.persistent.phases.phase import OTHER_BLOCKS, Line, Phase
from rawnn.persistent.sharding import ALL_GATHERED, Sharding, ceil, up

if TYPE_CHECKING:
    from rawnn.persistent.cost import CostModel, Costs
    from rawnn.persistent.interpreter import Array, Block, Interpreter
    from rawnn.persistent.writer import Kernel

ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE = "all-gather", "reduce-scatter", "all-reduce"
C_KINDS = {ALL_GATHER: "kAllGather", REDUCE_SCATTER: "kReduceScatter", ALL_REDUCE: "kAllReduce"}


@dataclass(frozen=True, kw_only=True)
class Exchange(Phase):
    """The receiving end of an exchange in a tensor-parallel group. An earlier epilogue sends.

    kind: ALL_GATHER (each block gets the features of all), REDUCE_SCATTER (each block gets all
        partial sums of its shard and adds them) or ALL_REDUCE (each block gets all partial sums of
        all features and adds them: one-shot).
    boundary: 0 .. depth.
    features: of all blocks together.
    rows: rows of `Sharding.sent` floats in a receive buffer.
    parts: partial sums of each row; 1 of an all-gather.
    idle: the last blocks, which have no features of the boundary. They still take part: a block
        without data sends or receives flags, so that no block runs ahead of another.
    flags: single numbers behind the rows of a receive buffer.
    second: it follows the reduce-scatter of a two-shot all-reduce.
    scratch_busy: the sending GEMM may still read its scratch memory, which the reduction needs. The
        exchange then has a block barrier of its own.
    """

    kind: str
    boundary: int
    features: int
    rows: int
    epilogue: Epilogue
    parts: int = 1
    idle: int = 0
    flags: int = 0
    second: bool = False
    scratch_busy: bool = False

    lane = OTHER_BLOCKS

    # -- memory ------------------------------------------------------------------------------------
    def reads(self, d: Sharding) -> set[str]:
        return self.epilogue.reads

    def writes(self, d: Sharding) -> set[str]:
        return self.epilogue.writes | ({"scratch"} if self.teams(d) > 1 and not self.scratch_busy
                                       else set())

    def scratch_floats(self, d: Sharding) -> int:
        """For sums that several threads share."""
        teams = self.teams(d)
        return teams * (self.rows // self.parts) * d.sent if teams > 1 else 0

    def teams(self, d: Sharding) -> int:
        """Threads that share a sum."""
        return d.teams(self.rows // self.parts) if self.parts > 1 else 1

    def floats_of_block(self, d: Sharding) -> int:
        """Floats of a block's receive buffer in shared memory."""
        return self.rows * d.sent + up(self.flags, 4)

    def floats_via_l2(self, d: Sharding) -> int:
        """Floats of a group's receive buffer for an exchange via L2, in whole lines. What all
        blocks get is stored once; partial sums have a place for each block that adds them up."""
        if self.kind == REDUCE_SCATTER:
            return d.tp_size * self.rows * d.sent
        return up(self.rows * d.sent + 4 * self.flags, buffers.LINE)

    def rows_of_block(self, d: Sharding) -> tuple[int, str]:
        """Rows that belong to a block, and a C++ expression for those of this block."""
        if self.kind == ALL_REDUCE:
            return self.rows // d.tp_size, str(self.rows // d.tp_size)
        if d.boundaries[self.boundary] == ALL_GATHERED:
            return d.shards[self.boundary], f"n{self.boundary}"
        return share_of(self.features, d.tp_size)

    # -- time --------------------------------------------------------------------------------------
    def stamps(self, d: Sharding) -> Sequence[str]:
        """Via L2, waiting and reducing interleave."""
        return [*["wait"] * (not d.via_l2), *["share"] * bool(self.epilogue.send)]

    def cost(self, model: CostModel) -> Iterator[Line]:
        yield Line(self.name, self.cycles(model) + self.epilogue.cycles(model))

    def cycles(self, model: CostModel) -> float:
        """Of the exchange without its epilogue."""
        d, costs = model.d, model.costs
        if d.via_l2:
            rate = costs.via_l2_sums if self.kind == REDUCE_SCATTER else costs.via_l2_bytes
            return costs.via_l2 + costs.via_l2_block * d.tp_size \
                + self.rows * d.sent * 4 / rate
        return self.latency(costs) + self.features * d.sent * 4 / costs.exchange_bytes

    def latency(self, costs: Costs) -> float:
        """Through DSMEM."""
        return costs.second_exchange if self.second else costs.exchange

    # -- text --------------------------------------------------------------------------------------
    def describe(self, d: Sharding) -> str:
        nbytes = self.rows * d.sent * 4
        return f"{self.kind}, {nbytes:,} bytes a block{self.epilogue.describe(d)}" \
            if nbytes else self.kind

    def c_type(self, k: Kernel) -> str:
        return f"E{k.schedule.exchanges.index(self)}"

    def begin(self, k: Kernel) -> None:
        """Declares the C++ type of the exchange and announces it. Must precede its sends."""
        d, name = k.d, self.c_type(k)
        share, own = self.rows_of_block(d)
        number = k.schedule.exchanges.index(self)
        slots = buffers.l2_slots(k.schedule)
        slot = slots[number] if slots else Slot(0)
        # A block without rows of a reduce-scatter gets a flag from each block in their place.
        in_place = self.kind == REDUCE_SCATTER and self.idle
        flags = d.tp_size if in_place else self.flags
        k.w(f"using {name} = Exchange<{C_KINDS[self.kind]}, {self.rows}, "
            f"{share}, {self.parts}, {self.idle}, {flags}, "
            f"{slot.offset}, {slot.uses}, {slot.number}, {self.teams(d)}>;")
        k.w(f"transport.expect<{name}>({own});")
        if self.idle:
            k.w(f"send_flags<{name}>(transport, {own});")

    def send_row(self, k: Kernel) -> str:
        """C++ that sends `v`, row `m` of the examples e .. e + 3."""
        return f"send_row<{self.c_type(k)}>(transport, m, e, v);"

    def emit(self, k: Kernel) -> None:
        """Waits for the exchange, and hands what it brings to the epilogue. Via L2, receiving
        waits, so the stamp of a traced kernel would say nothing ahead of it."""
        end, name = self.epilogue, self.c_type(k)
        k.w(f"const auto received_{name} = transport.wait<{name}>();")
        if not k.d.via_l2:
            k.stamp(self.name, "wait")
        if end.send:  # the announcement must follow the wait
            end.send.begin(k)
        count = self.rows_of_block(k.d)[1] if self.kind == REDUCE_SCATTER \
            else str(k.p.layers[self.boundary])
        body = end.text(k, self.boundary, count)
        if not end.send:
            body = f"by_pairs({body})"
        if end.biases:
            body = f"with_bias({end.biases}, {body})"
        self._receive(k, count, body)
        if end.send:
            k.stamp(self.name, "share")

    def _receive(self, k: Kernel, count: str, body: str) -> None:
        """Hands the first `count` rows to `body`, each reduced in the order of the blocks."""
        name = self.c_type(k)
        scratch = k.at("scratch") if self.teams(k.d) > 1 else "nullptr"
        if self.scratch_busy:
            k.w("__syncthreads();")
        k.w(f"transport.recv<{name}>(received_{name}, {count}, {scratch}, {body});")
        if self.idle:
            k.w(f"receive_flags<{name}>(transport, received_{name}, "
                f"{self.rows_of_block(k.d)[1]});")

    # -- meaning -----------------------------------------------------------------------------------
    def send(self, run: Interpreter, block: Block, v: Array) -> None:
        """`v` [features, examples], or of a reduce-scatter each other block's rows of it."""
        share = self.rows // run.d.tp_size
        for other in run.group(block):
            rows = slice(other.tp_rank * share, (other.tp_rank + 1) * share) \
                if self.kind == REDUCE_SCATTER else slice(None)
            other.received.setdefault(f"{self.kind} {self.name}", {})[block.tp_rank] = v[rows]

    def received(self, run: Interpreter, block: Block) -> list[Array]:
        """What the blocks of the group sent, in their order."""
        found = block.received.pop(f"{self.kind} {self.name}")
        return [found[rank] for rank in range(run.d.tp_size)]

    def interpret(self, run: Interpreter, block: Block) -> None:
        parts = self.received(run, block)
        v = np.concatenate(parts) if self.kind == ALL_GATHER else sum(parts[1:], parts[0])
        assert self.kind != ALL_GATHER or len(v) == self.features
        self.epilogue.interpret(run, block, v, self.boundary)


def share_of(features: int, tp_size: int) -> tuple[int, str]:
    """Rows per block of a reduce-scatter, and a C++ expression for the rows of this block (the last
    blocks may have fewer)."""
    size = ceil(features, tp_size)
    return size, f"max(0, min({size}, {features} - rank * {size}))"


# -- the transport of all exchanges ----------------------------------------------------------------
def set_up_transport(k: Kernel) -> None:
    """Emits the transport. Must precede the first exchange."""
    d, w, found = k.d, k.w, k.layout
    if d.tp_size == 1:
        return
    if not d.via_l2:
        w("cluster_wait<Shape>();")
    if not found.receive_floats:
        return
    if d.via_l2:
        floats, copies = buffers.group_floats(k.schedule), buffers.copies(k.schedule)
        w(f"ViaL2<Shape, {floats if copies > 1 else 0}ll> transport = {{"
          f"receive_buffers + group * {copies * floats}ll, rank, generations[blockIdx.x]}};")
    else:
        w(f"Dsmem<Shape, {found.receive_floats}> transport = {{{k.at('exchange')}, "
          f"barriers + 16, rank, 0}};")


def end_exchanges(k: Kernel) -> None:
    """Ends the exchanges of a micro-batch. A block barrier must follow."""
    if k.schedule.exchanges:
        k.w("transport.end_micro_batch();")


def store_micro_batch(k: Kernel) -> None:
    """Stores the count of micro-batches via L2, from which the next launch continues."""
    if k.d.via_l2 and k.schedule.exchanges:
        k.w("if (thread == 0) generations[blockIdx.x] = transport.micro_batch;")
