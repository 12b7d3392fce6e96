"""Emits the exchanges between the thread blocks of a tensor-parallel group. The code is the same
for both transports, DSMEM and L2 (ptx/persistent/exchange.cuh)."""

from __future__ import annotations

from rawnn.persistent import buffers, phases
from rawnn.persistent.buffers import Slot
from rawnn.persistent.phases import Exchange
from rawnn.persistent.sharding import ALL_GATHERED, Sharding, ceil
from rawnn.persistent.tiles import softmax_of
from rawnn.persistent.writer import Emitter

KINDS = {phases.ALL_GATHER: "kAllGather", phases.REDUCE_SCATTER: "kReduceScatter",
         phases.ALL_REDUCE: "kAllReduce"}


def share_of(features: int, tp_size: int) -> tuple[int, str]:
    """Rows per block of a reduce-scatter, and a C++ expression for the rows of this block (the last
    blocks may have fewer)."""
    size = ceil(features, tp_size)
    return size, f"max(0, min({size}, {features} - rank * {size}))"


def rows_of_block(d: Sharding, exchange: Exchange) -> tuple[int, str]:
    """Rows of an exchange that belong to a block, and a C++ expression for those of this block."""
    if exchange.name == phases.OVERFLOW:
        return 0, "0"
    if exchange.name == phases.STATISTICS or exchange.kind == phases.ALL_REDUCE:
        return exchange.rows // d.tp_size, str(exchange.rows // d.tp_size)
    if d.boundaries[exchange.boundary] == ALL_GATHERED:
        return d.shards[exchange.boundary], f"n{exchange.boundary}"
    return share_of(exchange.features, d.tp_size)


class ExchangeEmitter(Emitter):
    """Emits exchanges, and the set-up of the transport."""

    def begin_exchange(self, exchange: Exchange) -> None:
        """Declares the C++ type of an exchange and announces it. Must precede its sends."""
        d, name = self.d, self.k.type_of_exchange(exchange)
        share, own = rows_of_block(d, exchange)
        number = self.schedule.exchanges.index(exchange)
        slots = buffers.l2_slots(self.schedule)
        slot = slots[number] if slots else Slot(0)
        # A block without rows of a reduce-scatter gets a flag from each block in their place.
        in_place = exchange.kind == phases.REDUCE_SCATTER and exchange.idle
        flags = d.tp_size if in_place else exchange.flags
        self.w(f"using {name} = Exchange<{KINDS[exchange.kind]}, {exchange.rows}, "
               f"{share}, {exchange.parts}, {exchange.idle}, {flags}, "
               f"{slot.offset}, {slot.uses}, {slot.number}, {self.teams(exchange)}>;")
        self.w(f"transport.expect<{name}>({own});")
        if exchange.idle:
            self.w(f"send_flags<{name}>(transport, {own});")

    def teams(self, exchange: Exchange) -> int:
        """Threads that share a sum."""
        return self.d.teams(exchange.rows // exchange.parts) if exchange.parts > 1 else 1

    def send_row(self, exchange: Exchange) -> str:
        """C++ that sends `v`, row `m` of the examples e .. e + 3."""
        return f"send_row<{self.k.type_of_exchange(exchange)}>(transport, m, e, v);"

    def publish_statistics(self, exchange: Exchange) -> str:
        """C++ functor that publishes what warps have found of a shard of the outputs."""
        return f"publish_statistics<{self.k.type_of_exchange(exchange)}, " \
               f"{softmax_of(self.d).lanes}>(transport)"

    def wait(self, exchange: Exchange) -> None:
        """Waits for the receive buffer. Via L2, `recv` waits instead, so the stamp of a traced
        kernel would say nothing there."""
        name = self.k.type_of_exchange(exchange)
        self.w(f"const auto received_{name} = transport.wait<{name}>();")
        if not self.d.via_l2:
            self.k.stamp(exchange.name, "wait")

    def recv(self, exchange: Exchange, count: int | str, body: str) -> None:
        """Hands the first `count` rows to `body`, each reduced in the order of the blocks."""
        name = self.k.type_of_exchange(exchange)
        scratch = self.k.at("scratch") if self.teams(exchange) > 1 else "nullptr"
        if exchange.scratch_busy:
            self.w("__syncthreads();")
        self.w(f"transport.recv<{name}>(received_{name}, {count}, {scratch}, {body});")
        if exchange.idle:
            self.w(f"receive_flags<{name}>(transport, received_{name}, "
                   f"{rows_of_block(self.d, exchange)[1]});")

    def set_up_transport(self) -> None:
        """Emits the transport. Must precede the first exchange."""
        d, w, found = self.d, self.w, self.layout
        if d.tp_size == 1:
            return
        if not d.via_l2:
            w("cluster_wait<Shape>();")
        if not found.receive_floats:
            return
        if d.via_l2:
            floats, copies = buffers.group_floats(self.schedule), buffers.copies(self.schedule)
            w(f"ViaL2<Shape, {floats if copies > 1 else 0}ll> transport = {{"
              f"receive_buffers + group * {copies * floats}ll, rank, generations[blockIdx.x]}};")
        else:
            w(f"Dsmem<Shape, {found.receive_floats}> transport = {{{self.k.at('exchange')}, "
              f"barriers + 16, rank, 0}};")

    def end_exchanges(self) -> None:
        """Ends the exchanges of a micro-batch. A block barrier must follow."""
        if self.schedule.exchanges:
            self.w("transport.end_micro_batch();")

    def store_micro_batch(self) -> None:
        """Stores the count of micro-batches via L2, from which the next launch continues."""
        if self.d.via_l2 and self.schedule.exchanges:
            self.w("if (thread == 0) generations[blockIdx.x] = transport.micro_batch;")
