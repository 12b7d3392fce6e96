"""The text of an exchange between the blocks of a group: through the mailboxes of a cluster, or
through the L2 cache."""

from __future__ import annotations

from rawnn.onchip.decompose import ceil
from rawnn.onchip.writer import KernelWriter


class Exchange:
    """One message: to all blocks alike (`to_all`), or to each its own."""

    def __init__(self, writer: KernelWriter, to_all: bool) -> None:
        self.writer, self.w, self.d, self.to_all = writer, writer.w, writer.d, to_all
        self.far = self.d.far

    def expect(self, nbytes: str | int) -> None:
        """Ahead of all sending: what comes to this block."""
        if not self.far:
            self.w(f"mail.expect({nbytes});")

    @staticmethod
    def send_to_all(place: str) -> str:
        return f"mail.send_to_all({place}, v);"

    @staticmethod
    def send(to: str, place: str) -> str:
        return f"mail.send({to}, {place}, v);"

    def sent(self, phase: str = "") -> None:
        """Behind all sending, which is of a phase."""
        if self.far:
            self.w("mail.sent();")
            if phase:
                self.writer.stamp(phase, "send")

    def received(self) -> str:
        """The filled mailbox."""
        if not self.far:
            return "mail.receive()"
        return f"mail.{'gathered' if self.to_all else 'received'}()"

    def awaited(self, phase: str) -> str:
        """The same; where phases are stamped, behind the wait."""
        if not self.writer.layout.traced:
            return self.received()
        name = f"box_{len(self.writer.of_turn)}"
        self.w(f"const float* const {name} = {self.received()};")
        self.writer.stamp(phase, "wait")
        return name

    def add(self, box: str, parts: int, rows: int, count: int | str, finish: str) -> None:
        """The first `count` of `rows` rows, each the sum of `parts` parts."""
        last = self.d.sent if not self.far else self.d.lanes(rows) if parts > 1 else 1
        self.w(f"{'add_received' if self.far else 'add_parts'}<Shape, {parts}, {rows}, {last}>("
               f"{box}, {count}, {finish});")

    # -- blocks without a part of a message; through L2 every block has every other's flag --------
    def say_nothing(self, unless: str, place: str) -> None:
        """A block that has nothing for the others says so to all, where it has not `unless`."""
        if not self.far:
            self.w(f"if ({unless} == 0 && thread < {self.d.ranks}) mail.send_one(thread, {place}, "
                   "0.0f);")

    def say_to_idle(self, idle: int) -> None:
        """To the last blocks, for which there is nothing, that this one is as far."""
        if not self.far:
            self.w(f"if (thread < {idle}) mail.send_one({self.d.ranks - idle} + thread, "
                   "rank, 0.0f);")

    def hear(self, name: str, place: int, count: int, condition: str = "", *,
             phase: str) -> str:
        """Receives what says nothing but that it came; returns the mailbox's name."""
        if self.far:
            return self.awaited(phase)
        self.w(f"const float* const {name} = {self.received()};")
        self.writer.stamp(phase, "wait")
        self.w(f"{f'if ({condition}) ' if condition else ''}hear({name}"
               f"{f' + {place}' if place else ''}, {count});")
        return name


class ExchangeWriter(KernelWriter):
    """Writes what exchanges need ahead of the steps, and whether a step counts."""

    def exchange(self, to_all: bool) -> Exchange:
        return Exchange(self, to_all)

    def mailboxes(self) -> None:
        """Ahead of the first exchange."""
        d, w, found = self.d, self.w, self.layout
        if d.ranks == 1:
            return
        if not d.far:
            w("cluster_arrive<Shape>();")
            w("cluster_wait<Shape>();")
            if found.exchange:
                w(f"Mailboxes<Shape, {found.exchange}> mail = {{{self.at('exchange')}, "
                  f"barriers + 16, rank, 0}};")
        elif any(boxes := d.boxes):
            w("unsigned int exchanges = generations[blockIdx.x];")
            w(f"const FarMail<Shape, {boxes[0]}, {boxes[1]}> mail = {{"
              f"parcels + group * {d.box_floats}ll, generations + {found.first_flag} + group * "
              f"{found.flags_of_group}, rank, exchanges}};")

    def keep_generation(self) -> None:
        """Behind the steps: the next launch goes on from here."""
        if self.d.far and any(self.d.boxes):
            self.w("if (thread == 0) generations[blockIdx.x] = exchanges;")

    def tell_overflow(self) -> None:
        """The blocks of a group tell each other whether they saw a gradient that cannot be
        stored."""
        ranks, said = self.d.ranks, "*found != 0 ? 1.0f : 0.0f"
        if self.d.far:
            self.w(f"if (thread == 0) mail.send_one_to_all(rank, {said});")
            self.w("mail.sent();")
        elif ranks > 1:
            self.w(f"mail.expect({4 * ranks});")
            self.w(f"if (thread < {ranks}) mail.send_one(thread, rank, {said});")

    def overflowed(self) -> str:
        """Whether a block of the group did, in C++."""
        if self.d.ranks == 1:
            return "*found != 0"
        return "any_far_rank<Shape>(mail.gathered())" if self.d.far \
            else "any_rank<Shape>(mail.receive())"


def share_of(features: int, ranks: int) -> tuple[int, str]:
    """Rows of each block's share of sums, and C++ for those that a block has."""
    size = ceil(features, ranks)
    return size, f"max(0, min({size}, {features} - rank * {size}))"
