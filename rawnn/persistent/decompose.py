"""How the blocks of a group share the layers: a thread-block cluster, or any that run at once.

Between two layers the values of a boundary are *full* in every block, *sliced* (each block has its
share of the features), or *gathered*: made in slices, then handed to all. The two types at a
layer's ends say what a block does of the layer:

    inputs            outputs     the layer is        its weights
    full, gathered    full        done by every block all of them, in every block
    full, gathered    sliced, g.  cut by outputs      some rows of [outputs, inputs]
    sliced            full        cut by inputs       some columns; partial sums are added up
    sliced            sliced, g.  (not done: it would need two exchanges)

Backwards the same boundaries hold for gradients: a layer cut by outputs gives partial sums of its
input's gradient. Narrow layers are best done by every block, for that needs no exchange.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from rawnn.persistent.problem import Problem

FULL, SLICED, GATHERED = "F", "S", "G"
CLUSTER, L2 = "cluster", "l2"
"""Where the blocks of a group exchange: in each other's shared memory, or through the L2 cache."""
EVERYWHERE, BY_OUTPUTS, BY_INPUTS = "everywhere", "by outputs", "by inputs"
WARP = 32
LINE = 32
"""Floats of a line of the L2 cache."""
ASKED_FOR = 8
"""Parts of a sum that a thread asks the L2 cache for at once (kLoadsInFlight in onchip_far.cuh)."""


def ceil(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def up(a: int, b: int) -> int:
    """The least multiple of b that is at least a."""
    return ceil(a, b) * b


def pitch(n: int) -> int:
    """Floats from one row of a fragment's operand to the next: at least n, and 8 more than a
    multiple of 16, so that 4 rows by 8 columns lie in 32 banks."""
    return n + (8 - n) % 16


@dataclass(frozen=True)
class Decomposition:
    """`ranks` blocks of a group share the widths by the `types` of the boundaries 0 .. depth, and
    `exchange` as a CLUSTER or through L2; `groups` share the batch; a block has `threads`. A group
    takes its share of the batch in so many `turns`, micro-batches whose gradients are added up;
    more than one only where there are several groups, whose gradients have a place in a
    workspace."""

    problem: Problem
    ranks: int
    groups: int
    threads: int
    types: str
    turns: int = 1
    exchange: str = CLUSTER

    def __str__(self) -> str:
        turns = f", {self.turns} micro-batches" if self.turns > 1 else ""
        through = ", through L2" if self.far else ""
        return f"{self.ranks} x {self.groups} blocks of {self.threads} threads, {self.types}" \
               f"{through}{turns}"

    @property
    def far(self) -> bool:
        """Whether blocks of a group exchange through the L2 cache."""
        return self.ranks > 1 and self.exchange != CLUSTER

    @property
    def cluster(self) -> int:
        """Blocks of a thread-block cluster."""
        return 1 if self.far else self.ranks

    @property
    def blocks(self) -> int:
        return self.ranks * self.groups

    @property
    def tells_halves(self) -> bool:
        """Whether clusters tell each other gradients and changes of weights in bfloat16: where
        products take such and weights are float32. Not gradients of micro-batches, which are added
        up where they are told."""
        p = self.problem
        return self.groups > 1 and p.numbers == "bfloat16" and not p.streams and self.turns == 1

    @property
    def told_bytes(self) -> int:
        """Of a number that clusters tell each other."""
        return 2 if self.tells_halves else 4

    @property
    def warps(self) -> int:
        return self.threads // WARP

    @cached_property
    def share(self) -> int:
        """Examples of the largest group."""
        return ceil(self.problem.batch, self.groups)

    @cached_property
    def turn_share(self) -> int:
        """Examples of the largest group's micro-batches."""
        return ceil(self.share, self.turns)

    @cached_property
    def columns(self) -> int:
        return up(self.turn_share, 8)

    @cached_property
    def sent(self) -> int:
        """Columns that blocks send each other: the examples, in fours. All, where a gradient takes
        the place of pre-activations, of which it is to leave nothing."""
        return self.columns if self.problem.saves_input else up(self.turn_share, 4)

    @cached_property
    def pitch(self) -> int:
        return pitch(self.columns)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """What a block does of each layer."""
        return kinds(self.types) or ()

    @cached_property
    def slices(self) -> tuple[int, ...]:
        """Features of a boundary in the first block's share; the last blocks may have fewer."""
        p = self.problem
        whole = 16 // p.input_size
        sizes = [ceil(n, self.ranks) for n in p.layers]
        sizes[0] = up(sizes[0], whole)
        if p.reconstruct:
            sizes[-1] = sizes[0]
        elif self.types[-1] == SLICED and not p.labelled:
            sizes[-1] = up(sizes[-1], 4)
        return tuple(sizes)

    def idle(self, boundary: int) -> int:
        """Blocks, the last ones, that have no features of a gathered boundary."""
        return self.ranks - ceil(self.problem.layers[boundary], self.slices[boundary])

    def ins(self, layer: int) -> int:
        """Inputs of the layer (0 .. depth - 1) in a block, at most."""
        return self.slices[layer] if self.kinds[layer] == BY_INPUTS else self.problem.layers[layer]

    def outs(self, layer: int) -> int:
        return self.slices[layer + 1] if self.kinds[layer] == BY_OUTPUTS \
            else self.problem.layers[layer + 1]

    def exchanged(self) -> int:
        """Rows of a mailbox for the widest exchange; 0 where there is none."""
        return max((message.rows for message in self.messages), default=0)

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """What is exchanged in a turn, in its order, but for what is told of overflows."""
        layers, found = self.problem.layers, []
        for layer, kind in enumerate(self.kinds):
            if kind == BY_INPUTS:
                found += self.summed(layers[layer + 1])
            if self.types[layer + 1] == GATHERED:
                found.append(Message(layers[layer + 1], True, self.idle(layer + 1)))
        if self.slices_softmax:
            found.append(self.slices_told)
        for layer in range(len(self.kinds) - 1, 0, -1):
            if self.kinds[layer] == BY_OUTPUTS:
                found += [self.shared_out(layer)] if self.types[layer] == GATHERED \
                    else self.summed(layers[layer])
        return tuple(found)

    @property
    def slices_softmax(self) -> bool:
        """Whether each block has the softmax of its own slice of the outputs."""
        return self.problem.labelled and self.types[-1] == SLICED

    @property
    def slices_told(self) -> Message:
        """What blocks tell each other for that: four floats of each example (onchip_slices.cuh)."""
        return Message(4 * self.ranks, True)

    def summed(self, features: int) -> list[Message]:
        """The messages by which so many features' partial sums are added up for all."""
        if self.sums_at_once(features):
            return [Message(features * self.ranks, True, parts=self.ranks)]
        return [Message(up(features, self.ranks), False, parts=self.ranks, told=features),
                Message(features, True)]

    def shared_out(self, layer: int) -> Message:
        """The message by which partial sums of a gathered boundary's gradient come to those whose
        features they are."""
        return Message(self.slices[layer] * self.ranks, False, self.idle(layer), self.ranks,
                       self.problem.layers[layer])

    def sums_at_once(self, features: int) -> bool:
        """Whether partial sums of so many features are added up by every block; else each adds up
        its share, and they gather the shares."""
        most = MOST_AT_ONCE_FAR if self.far else MOST_AT_ONCE
        return features * self.sent * 4 * self.ranks <= most

    def box_floats(self, message: Message) -> int:
        """Floats of the places that a message through the L2 cache has in a box: lines of their
        own."""
        if message.to_all:
            return up(message.rows * self.sent + 4 * message.idle, LINE)
        return self.ranks * message.rows * self.sent

    @property
    def overflow_floats(self) -> int:
        """The same of what blocks tell each other of gradients that overflowed."""
        return up(4 * self.ranks, LINE) if self.problem.scaled else 0

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Where the messages of a turn through the L2 cache lie, in their order, the one of
        overflows last. One is written where another of the same form lay that all have read: not
        where the one ahead of it lies (onchip_far.cuh), around the turn's end as well. So they take
        little of the cache, and are written again while they are in it."""
        if not self.far:
            return ()
        told: list[Message | None] = [*self.messages, *([None] if self.problem.scaled else [])]
        uses: list[list[int]] = []
        for i, message in enumerate(told):
            for of in uses:
                if told[of[0]] == message and i - of[-1] >= 2 and of[0] + len(told) - i >= 2:
                    of.append(i)
                    break
            else:
                uses.append([i])
        found: dict[int, Place] = {}
        first = 0
        for of in uses:
            found |= {i: Place(first, len(of), n) for n, i in enumerate(of)}
            message = told[of[0]]
            first += self.box_floats(message) if message else self.overflow_floats
        return tuple(found[i] for i in range(len(told)))

    @property
    def boxes(self) -> int:
        """Of a group: a turn's only message has two that take turns."""
        return 2 if len(self.places) == 1 else 1

    @cached_property
    def mail_floats(self) -> int:
        """Floats of a box of a group, in which all messages of a turn through the L2 cache have
        their places."""
        messages = [*(self.box_floats(message) for message in self.messages), self.overflow_floats]
        return max((place.first + floats for place, floats in
                    zip(self.places, messages, strict=False)), default=0)

    def teams(self, rows: int) -> int:
        """Threads that share a sum of all ranks' parts, where a block adds up so many rows of them
        from the L2 cache: as many as have ASKED_FOR parts each, as far as there are threads."""
        if not self.far:
            return 1
        items = rows * self.sent // 4
        return max(1, min(ceil(self.ranks, ASKED_FOR), self.threads // items))


@dataclass(frozen=True)
class Place:
    """Where a message through the L2 cache begins in a box, by floats: there lie so many messages
    of a turn the one behind the other, of which it is the one with that `number`."""

    first: int
    messages: int = 1
    number: int = 0


@dataclass(frozen=True)
class Message:
    """Rows of floats that come to each block of a group, of `parts` that are added up; the same to
    all, or each its own: of so many features in all as are `told`. Blocks that are `idle` have no
    part of it, and each says so, or hears from all."""

    rows: int
    to_all: bool
    idle: int = 0
    parts: int = 1
    told: int = 0


MOST_AT_ONCE = 8192
"""Bytes of partial sums that a block sends to all others, so that each adds them up for itself."""
MOST_AT_ONCE_FAR = 65_536
"""The same through the L2 cache, where a second exchange takes about as long as these bytes, and
all read one copy."""


def last_types(problem: Problem) -> str:
    """The types that the outputs may have."""
    return FULL + SLICED + (GATHERED if problem.labelled else "")


def kinds(types: str) -> tuple[str, ...] | None:
    """What a block does of each layer between boundaries of the types; None where it cannot."""
    found = []
    for below, above in pairwise(types):
        if below == SLICED and above != FULL:
            return None
        found.append(BY_INPUTS if below == SLICED else EVERYWHERE if above == FULL else BY_OUTPUTS)
    return tuple(found)
