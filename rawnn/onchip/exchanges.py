"""The text of an exchange between the blocks of a group: through the mailboxes of a cluster, or
through the L2 cache."""

from __future__ import annotations

from rawnn.onchip.decompose import ceil
from rawnn.onchip.writer import KernelWriter


class Exchange:
    """One message: so many rows, that come to all blocks alike or to each its own."""

    def __init__(self, writer: KernelWriter, rows: int, to_all: bool) -> None:
        self.w, self.d, self.to_all = writer.w, writer.d, to_all
        far = "marked" if self.d.marked(rows) else "counted"
        self.name = far if self.d.far else "mail"

    @property
    def box_type(self) -> str:
        return "const float* const" if self.name == "mail" else "const auto"

    def expect(self, nbytes: str | int) -> None:
        """Ahead of all sending: what comes to this block."""
        if self.name == "mail":
            self.w(f"mail.expect({nbytes});")

    def send_to_all(self, place: str) -> str:
        return f"{self.name}.send_to_all({place}, v);"

    def send(self, to: str, place: str) -> str:
        return f"{self.name}.send({to}, {place}, v);"

    def sent(self) -> None:
        """Behind all sending."""
        if self.name == "counted":
            self.w("counted.sent();")

    def received(self) -> str:
        """The filled mailbox."""
        if self.name == "mail":
            return "mail.receive()"
        return f"{self.name}.{'gathered' if self.to_all else 'received'}()"

    def add(self, box: str, parts: int, rows: int, count: int | str, finish: str) -> None:
        """The first `count` of `rows` rows, each the sum of `parts` parts."""
        far = self.name != "mail"
        last = self.d.columns if not far else self.d.lanes(rows) if parts > 1 else 1
        self.w(f"{'add_received' if far else 'add_parts'}<Shape, {parts}, {rows}, {last}>("
               f"{box}, {count}, {finish});")

    # -- blocks without a part of a message; where senders are counted all are -------------------
    def say_nothing(self, unless: str, place: str) -> None:
        """A block that has nothing for the others says so to all, where it has not `unless`."""
        if self.name == "mail":
            self.w(f"if ({unless} == 0 && thread < {self.d.ranks}) mail.send_one(thread, {place}, "
                   "0.0f);")
        elif self.name == "marked":
            self.w(f"if ({unless} == 0 && thread == 0) marked.send_one_to_all({place}, 0.0f);")

    def say_to_idle(self, idle: int) -> None:
        """To the last blocks, for which there is nothing, that this one is as far."""
        if self.name != "counted":
            self.w(f"if (thread < {idle}) {self.name}.send_one({self.d.ranks - idle} + thread, "
                   "rank, 0.0f);")

    def hear(self, name: str, place: int, count: int, condition: str = "") -> str:
        """Receives what says nothing but that it came; returns the mailbox's name."""
        if self.name == "counted":
            return self.received()
        self.w(f"{self.box_type} {name} = {self.received()};")
        at = f"{name} + {place}" if self.name == "mail" else f"{name}, {place}"
        if self.name == "mail" and not place:
            at = name
        self.w(f"{f'if ({condition}) ' if condition else ''}hear({at}, {count});")
        return name


class ExchangeWriter(KernelWriter):
    """Writes what exchanges need ahead of the steps, and whether a step counts."""

    def exchange(self, rows: int, to_all: bool) -> Exchange:
        return Exchange(self, rows, to_all)

    def mailboxes(self) -> None:
        """Ahead of the first exchange."""
        d, w, found = self.d, self.w, self.layout
        if d.ranks > 1 and not d.far:
            w("cluster_arrive<Shape>();")
            w("cluster_wait<Shape>();")
            if found.exchange:
                w(f"Mailboxes<Shape, {found.exchange}> mail = {{{self.at('exchange')}, "
                  f"barriers + 16, rank, 0}};")
        if not d.far:
            return
        w("unsigned int exchanges = generations[2 * blockIdx.x];")
        if any(boxes := d.boxes(True)):
            w(f"const MarkedMail<Shape, {boxes[0]}, {boxes[1]}> marked = {{"
              f"reinterpret_cast<unsigned long long*>(marks) + group * {d.box_floats(True)}ll, "
              "rank, exchanges};")
        if any(boxes := d.boxes(False)):
            w("unsigned int meetings = generations[2 * blockIdx.x + 1];")
            w(f"const CountedMail<Shape, {boxes[0]}, {boxes[1]}> counted = {{"
              f"parcels + group * {d.box_floats(False)}ll, generations + {found.first_counter} + "
              "group * 32, rank, exchanges, meetings};")

    def keep_generation(self) -> None:
        """Behind the steps: the next launch goes on from here."""
        if not self.d.far:
            return
        self.w("if (thread == 0) {")
        self.w("generations[2 * blockIdx.x] = exchanges;")
        if any(self.d.boxes(False)):
            self.w("generations[2 * blockIdx.x + 1] = meetings;")
        self.w("}")

    def tell_overflow(self) -> None:
        """The blocks of a group tell each other whether they saw a gradient that cannot be
        stored."""
        ranks, said = self.d.ranks, "*found != 0 ? 1.0f : 0.0f"
        if self.d.far:
            self.w(f"if (thread == 0) marked.send_one_to_all(rank, {said});")
        elif ranks > 1:
            self.w(f"mail.expect({4 * ranks});")
            self.w(f"if (thread < {ranks}) mail.send_one(thread, rank, {said});")

    def overflowed(self) -> str:
        """Whether a block of the group did, in C++."""
        if self.d.ranks == 1:
            return "*found != 0"
        return f"any_rank<Shape>({'marked.gathered' if self.d.far else 'mail.receive'}())"


def share_of(features: int, ranks: int) -> tuple[int, str]:
    """Rows of each block's share of sums, and C++ for those that a block has."""
    size = ceil(features, ranks)
    return size, f"max(0, min({size}, {features} - rank * {size}))"
