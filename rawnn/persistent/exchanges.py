"""Emits the exchanges between the thread blocks of a tensor-parallel group. The code is the same
for both transports, DSMEM and L2 (ptx/onchip_transport.cuh)."""

from __future__ import annotations

from rawnn.persistent.sharding import Message, Place, ceil
from rawnn.persistent.writer import KernelWriter

ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE = "kAllGather", "kReduceScatter", "kAllReduce"


class Exchange:
    """One exchange of a micro-batch: declares its C++ type and announces it, and emits the calls
    that send and receive it.

    kind: ALL_GATHER, REDUCE_SCATTER or ALL_REDUCE.
    message: rows of a receive buffer, partial sums of each result, blocks without rows.
    share: rows that belong to a block; the last blocks may have fewer.
    own: C++ expression for the rows that belong to this block.
    flags: single numbers that a block receives besides its rows, or in place of them.
    """

    def __init__(self, writer: KernelWriter, kind: str, message: Message, share: int, own: str,
                 flags: int = 0) -> None:
        self.writer, self.w, self.own, self.idle = writer, writer.w, own, message.idle
        d, number = writer.d, writer.exchanges
        writer.exchanges += 1
        self.name, self.received = f"E{number}", f"received_E{number}"
        self.teams = d.teams(message.rows // message.parts) if message.parts > 1 else 1
        place = d.places[number] if d.places else Place(0)
        self.w(f"using {self.name} = Exchange<{kind}, {message.rows}, {share}, {message.parts}, "
               f"{self.idle}, {flags}, {place.first}, {place.messages}, {place.number}, "
               f"{self.teams}>;")
        self.w(f"transport.expect<{self.name}>({own});")
        if self.idle:
            self.w(f"send_flags<{self.name}>(transport, {own});")

    def send_row(self) -> str:
        """C++ that sends `v`, row `m` of the examples e .. e + 3."""
        return f"send_row<{self.name}>(transport, m, e, v);"

    def wait(self, phase: str) -> None:
        """Waits for the receive buffer. Via L2, `recv` waits instead, so the stamp of a traced
        kernel would say nothing there."""
        self.w(f"const auto {self.received} = transport.wait<{self.name}>();")
        if not self.writer.d.via_l2:
            self.writer.stamp(phase, "wait")

    def recv(self, count: int | str, body: str) -> None:
        """Hands the first `count` rows to `body`, each reduced in the order of the blocks."""
        scratch = self.writer.at("scratch") if self.teams > 1 else "nullptr"
        if self.teams > 1 and self.writer.scratched:
            self.w("__syncthreads();")
            self.writer.scratched = False
        self.w(f"transport.recv<{self.name}>({self.received}, {count}, {scratch}, {body});")
        if self.idle:
            self.w(f"receive_flags<{self.name}>(transport, {self.received}, {self.own});")


class ExchangeWriter(KernelWriter):
    """Emits the set-up of the transport, and the decision whether an fp16 step counts."""

    def exchange(self, kind: str, rows: int, share: int, own: str, *, parts: int = 1,
                 idle: int = 0, flags: int = 0) -> Exchange:
        """Begins the next exchange of a micro-batch."""
        message = self.d.messages[self.exchanges]
        assert (message.rows, message.to_all, message.parts, message.idle) == (
            rows, kind != REDUCE_SCATTER, parts, idle)
        return Exchange(self, kind, message, share, own, flags)

    def set_up_transport(self) -> None:
        """Emits the transport. Must precede the first exchange."""
        d, w, found = self.d, self.w, self.layout
        if d.tp_size == 1:
            return
        if not d.via_l2:
            w("cluster_wait<Shape>();")
        if not found.exchange:
            return
        if d.via_l2:
            w(f"ViaL2<Shape, {d.mail_floats if d.boxes > 1 else 0}ll> transport = {{"
              f"parcels + group * {d.boxes * d.mail_floats}ll, rank, generations[blockIdx.x]}};")
        else:
            w(f"Dsmem<Shape, {found.exchange}> transport = {{{self.at('exchange')}, "
              f"barriers + 16, rank, 0}};")

    def end_exchanges(self) -> None:
        """Ends the exchanges of a micro-batch. A block barrier must follow."""
        d = self.d
        if d.tp_size > 1 and self.layout.exchange:
            assert self.exchanges == len(d.messages) + d.problem.scaled, "none is left out"
            self.w("transport.end_micro_batch();")

    def store_micro_batch(self) -> None:
        """Stores the count of micro-batches via L2, from which the next launch continues."""
        if self.d.mail_floats:
            self.w("if (thread == 0) generations[blockIdx.x] = transport.micro_batch;")

    def publish_overflow(self) -> None:
        """Publishes whether this block saw a gradient that overflows fp16."""
        ranks = self.d.tp_size
        if ranks > 1:
            self.overflows = Exchange(self, ALL_GATHER, Message(0, True), 0, "0", flags=ranks)
            self.w(f"transport.publish_flag<{self.overflows.name}>(rank, "
                   "*found != 0 ? 1.0f : 0.0f);")

    def overflowed(self) -> str:
        """C++ expression: a block of the group saw an overflow."""
        if self.d.tp_size == 1:
            return "*found != 0"
        return f"transport.any<{self.overflows.name}>()"


def share_of(features: int, ranks: int) -> tuple[int, str]:
    """Rows per block of a reduce-scatter, and a C++ expression for the rows of this block (the last
    blocks may have fewer)."""
    size = ceil(features, ranks)
    return size, f"max(0, min({size}, {features} - rank * {size}))"
