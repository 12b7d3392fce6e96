"""The text of an exchange between the blocks of a group: through the mailboxes of a cluster, or
through the L2 cache."""

from __future__ import annotations

from rawnn.persistent.decompose import Message, ceil
from rawnn.persistent.writer import KernelWriter


class Exchange:
    """One message. Through the L2 cache it has a place in a box."""

    def __init__(self, writer: KernelWriter, message: Message) -> None:
        self.writer, self.w, self.d, self.message = writer, writer.w, writer.d, message
        self.far = self.d.far
        self.first, self.mail, self.heard = 0, "mail", ""
        if self.far:
            expected = self.d.messages[writer.posted]
            assert (message.rows, message.to_all) == (expected.rows, expected.to_all)
            self.first, self.mail = writer.next_place()

    def expect(self, nbytes: str | int) -> None:
        """Ahead of all sending: what comes to this block."""
        if not self.far:
            self.w(f"mail.expect({nbytes});")

    def send_to_all(self, place: str) -> str:
        return f"{self.mail}.send({self.first} + {place}, v);" if self.far \
            else f"mail.send_to_all({place}, v);"

    def send(self, to: str, place: str) -> str:
        return f"{self.mail}.send({self._own(to)} + {place}, v);" if self.far \
            else f"mail.send({to}, {place}, v);"

    def _own(self, of: str) -> str:
        """Where a block's own places begin."""
        return f"{self.first} + {of} * {self.message.rows * self.d.sent}"

    def received(self) -> str:
        """The filled mailbox; through L2 where what comes will lie."""
        if not self.far:
            return "mail.receive()"
        return str(self.first) if self.message.to_all else self._own("rank")

    def awaited(self, phase: str) -> str:
        """The same; where phases are stamped, behind the wait."""
        if not self.writer.layout.traced or self.far:
            return self.received()
        name = f"box_{len(self.writer.of_turn)}"
        self.w(f"const float* const {name} = {self.received()};")
        self.writer.stamp(phase, "wait")
        return name

    def add(self, box: str, parts: int, rows: int, count: int | str, finish: str) -> None:
        """The first `count` of `rows` rows, each the sum of `parts` parts."""
        if not self.far:
            self.w(f"add_parts<Shape, {parts}, {rows}, {self.d.sent}>({box}, {count}, {finish});")
        elif parts == 1:
            self.w(f"take_received<Shape, {rows}>({self.mail}, {box}, {count}, {finish});")
        else:
            teams = self.d.teams(rows)
            scratch = self.writer.at("scratch") if teams > 1 else "nullptr"
            if teams > 1 and self.writer.scratched:
                self.w("__syncthreads();")
                self.writer.scratched = False
            self.w(f"add_received<Shape, {parts}, {rows}, {teams}>({self.mail}, {box}, {count}, "
                   f"{scratch}, {finish});")
        if self.heard:
            self.w(self.heard)

    # -- blocks without a part of a message --------------------------------------------------------
    def say_nothing(self, unless: str, blocks: int, place: int) -> None:
        """A block that has nothing for the others says so to all, where it has not `unless`: one
        of the last `blocks`, which have a place each."""
        first = self.d.ranks - blocks
        if self.far:
            self.w(f"if ({unless} == 0 && thread == 0) "
                   f"{self.mail}.send_one({self.first + place} + (rank - {first}) * 4, 0.0f);")
        else:
            self.w(f"if ({unless} == 0 && thread < {self.d.ranks}) mail.send_one(thread, {place} "
                   f"+ rank - {first}, 0.0f);")

    def say_to_idle(self, idle: int) -> None:
        """To the last blocks, for which there is nothing, that this one is as far."""
        to = f"{self.d.ranks - idle} + thread"
        if self.far:
            self.w(f"if (thread < {idle}) {self.mail}.send_one("
                   f"{self._own(f'({to})')} + rank * 4, 0.0f);")
        else:
            self.w(f"if (thread < {idle}) mail.send_one({to}, rank, 0.0f);")

    def hear(self, name: str, place: int, count: int, condition: str = "", *,
             phase: str) -> str:
        """Receives what says nothing but that it came; returns the mailbox's name."""
        if self.far:
            self.heard = f"{f'if ({condition}) ' if condition else ''}{self.mail}.any<{count}>(" \
                         f"{self.received()} + {place});"
            return self.received()
        self.w(f"const float* const {name} = {self.received()};")
        self.writer.stamp(phase, "wait")
        self.w(f"{f'if ({condition}) ' if condition else ''}hear({name}"
               f"{f' + {place}' if place else ''}, {count});")
        return name


class ExchangeWriter(KernelWriter):
    """Writes what exchanges need ahead of the steps, and whether a step counts."""

    def exchange(self, rows: int, to_all: bool, idle: int = 0) -> Exchange:
        return Exchange(self, Message(rows, to_all, idle))

    def mailboxes(self) -> None:
        """Ahead of the first exchange."""
        d, w, found = self.d, self.w, self.layout
        if d.ranks == 1:
            return
        if not d.far:
            w("cluster_wait<Shape>();")
            if found.exchange:
                w(f"Mailboxes<Shape, {found.exchange}> mail = {{{self.at('exchange')}, "
                  f"barriers + 16, rank, 0}};")
        elif d.mail_floats:
            w("unsigned int exchanged = generations[blockIdx.x];")
            w(f"const FarMail<Shape, {d.mail_floats if d.boxes > 1 else 0}ll> mail = {{"
              f"parcels + group * {d.boxes * d.mail_floats}ll, rank, exchanged}};")

    def end_exchanges(self) -> None:
        """Behind those of a turn, and ahead of a barrier of the block."""
        if self.d.mail_floats:
            assert self.posted == len(self.d.places), "every message has its place"
            self.w("++exchanged;")

    def keep_generation(self) -> None:
        """Behind the steps: the next launch goes on from here."""
        if self.d.mail_floats:
            self.w("if (thread == 0) generations[blockIdx.x] = exchanged;")

    def tell_overflow(self) -> None:
        """The blocks of a group tell each other whether they saw a gradient that cannot be
        stored."""
        ranks, said = self.d.ranks, "*found != 0 ? 1.0f : 0.0f"
        if self.d.far:
            self.told, self.telling = self.next_place()
            self.w(f"if (thread == 0) {self.telling}.send_one({self.told} + rank * 4, {said});")
        elif ranks > 1:
            self.w(f"mail.expect({4 * ranks});")
            self.w(f"if (thread < {ranks}) mail.send_one(thread, rank, {said});")

    def overflowed(self) -> str:
        """Whether a block of the group did, in C++."""
        if self.d.ranks == 1:
            return "*found != 0"
        return f"__syncthreads_or({self.telling}.any<{self.d.ranks}>({self.told}) ? 1 : 0) != 0" \
            if self.d.far else "any_rank<Shape>(mail.receive())"


def share_of(features: int, ranks: int) -> tuple[int, str]:
    """Rows of each block's share of sums, and C++ for those that a block has."""
    size = ceil(features, ranks)
    return size, f"max(0, min({size}, {features} - rank * {size}))"
