"""How blocks share the passes of a step (passes.cuh), and about how long it takes them.

A cluster of `ranks` blocks has `rows` rows of the batch all the way; each of its blocks computes a
slice of the units of each layer that is not narrow, and gets the others' from them. What a block
reads from the L2 cache are its slices' weights, once for each pass; what it gets from others are
all values of its rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

from rawnn.device.target import Target
from rawnn.ptx.table import ceil

TILE = 32
"""Units of a warp's tile."""
RANKS = (1, 2, 4, 8, 16)
ROWS = (8, 16, 24, 32, 40, 48, 56, 64, 80, 96)
WARPS = (8, 16)
MANY_ROWS = 32
"""Rows up to which 16 warps have registers enough."""
RESERVED = 1024
"""Bytes of shared memory that are left for what is declared in functions."""


@dataclass(frozen=True)
class Network:
    """What passes go through: `layers` are sizes, `size` bytes of a value, `times` tensor products
    for one, `kept` bytes of each number that a slope is taken at (an eighth where it is a bit)."""

    layers: tuple[int, ...]
    batch: int
    size: int
    times: int
    kept: float
    softmax: bool
    bias: bool

    @property
    def depth(self) -> int:
        return len(self.layers) - 1

    @property
    def piece(self) -> int:
        """Elements of 16 bytes."""
        return 16 // self.size

    def chunks(self, features: int) -> int:
        """Of 64 bytes."""
        return ceil(features, 4 * self.piece)

    def pitch(self, features: int) -> int:
        """Bytes from row to row of values: an odd number of chunks."""
        return 64 * (self.chunks(features) | 1)


@dataclass(frozen=True)
class Sharing:
    """How a block's warps share a product: tiles of `groups` units of 32 at once, each by `parts`
    warps that share its terms, in `rounds`."""

    groups: int
    parts: int
    rounds: int


@dataclass(frozen=True)
class Form:
    """How blocks share a network's passes. `sliced` says it of each layer's units, from 1 on: the
    first entry, of the inputs, is False."""

    network: Network
    ranks: int
    rows: int
    warps: int
    sliced: tuple[bool, ...]

    def __str__(self) -> str:
        return f"{self.ranks}x{self.clusters} blocks of {self.rows} rows, {32 * self.warps} threads"

    @property
    def clusters(self) -> int:
        return ceil(self.network.batch, self.rows)

    @property
    def blocks(self) -> int:
        return self.ranks * self.clusters

    @property
    def products(self) -> int:
        """Forward ones, and those of gradients: the first layer's inputs need none."""
        return 2 * self.network.depth - 1

    def layer_of(self, product: int) -> int:
        """The layer whose units product number 1, 2, ... computes: what number i writes, number
        i + 1 reads; 0 are the inputs."""
        depth = self.network.depth
        return product if product <= depth else 2 * depth - product

    def pieces(self, layer: int) -> int:
        """Of 16 bytes, of a row of all units."""
        return 4 * self.network.chunks(self.network.layers[layer])

    def most_pieces(self, layer: int) -> int:
        """Of the largest slice."""
        return ceil(self.pieces(layer), self.ranks) if self.sliced[layer] else self.pieces(layer)

    def sharing(self, product: int) -> Sharing:
        n, layer = self.network, self.layer_of(product)
        tiles = ceil(self.most_pieces(layer) * n.piece, TILE)
        rounds = ceil(tiles, self.warps)
        groups = ceil(tiles, rounds)
        chunks = n.chunks(n.layers[self.layer_of(product - 1)])
        parts = max(1, min(self.warps // groups, chunks))
        parts = ceil(chunks, ceil(chunks, parts))  # each has some
        return Sharing(groups, parts, rounds)

    @cached_property
    def ahead(self) -> int:
        """Chunks of weights that are asked for at a time, of 16 registers each beside the sums."""
        n = self.network
        eights, three = self.rows // 8, n.times == 3
        most = (4, 3, 2) if three else (6, 4, 2)
        found = most[0] if eights <= 2 else most[1] if eights <= 4 else most[2]
        free = 65536 // (32 * self.warps) - 8 * eights - (95 if three else 60)
        longest = max(ceil(n.chunks(n.layers[self.layer_of(i - 1)]), self.sharing(i).parts)
                      for i in range(1, self.products + 1))
        return max(min(found, free // 16, longest), 1)

    def values_bytes(self, product: int) -> int:
        n = self.network
        return self.rows * n.pitch(n.layers[self.layer_of(product)])

    @cached_property
    def values(self) -> tuple[int, ...]:
        """Where the inputs and what each product writes for the next lie, in bytes from the first.

        Values may take the place of others once all that reads those is over: in this block where
        it has them to itself, in all where others send them, which is known of a slice of all that
        came in between."""
        places: list[int] = []
        for i in range(self.products):
            busy = sorted((places[k], places[k] + self.values_bytes(k)) for k in range(i)
                          if not self._over(k, i))
            place, need = 0, self.values_bytes(i)
            for first, last in busy:
                if place + need <= first:
                    break
                place = max(place, last)
            places.append(place)
        return tuple(places)

    def _over(self, earlier: int, later: int) -> bool:
        if later < earlier + 2:
            return False
        return not self.exchanged(later) or any(map(self.exchanged, range(earlier + 1, later)))

    def exchanged(self, product: int) -> bool:
        return self.ranks > 1 and self.sliced[self.layer_of(product)]

    @cached_property
    def places(self) -> dict[str, int]:
        """Where all that is in shared memory lies, in bytes, and the `end`."""
        n = self.network
        found: dict[str, int] = {}
        at = 0

        def put(name: str, nbytes: int) -> None:
            nonlocal at
            found[name] = at
            at += ceil(nbytes, 128) * 128

        put("barriers", 32)
        put("labels", 4 * self.rows)
        put("table", 96 * self.products)
        for layer in range(1, n.depth + 1):
            s = self.sharing(layer)
            put(f"bias{layer}", 4 * TILE * s.groups * s.rounds)
        if n.softmax:
            shares = self.ranks if self.sliced[n.depth] else 1
            put("totals", 16 * self.rows)
            put("stats", 16 * self.rows * shares * self.sharing(n.depth).groups)
        for layer in range(1, n.depth):
            s = self.sharing(layer)
            put(f"kept{layer}", int(self.rows * TILE * s.groups * s.rounds * n.kept))
        put("values", max(place + self.values_bytes(i) for i, place in enumerate(self.values)))
        put("scratch", max(s.groups * s.parts for s in map(
            self.sharing, range(1, self.products + 1))) * TILE * self.rows * 4)
        found["end"] = at
        return found

    @property
    def shared(self) -> int:
        """Bytes of dynamic shared memory of a block."""
        return self.places["end"]

    @property
    def allowed(self) -> bool:
        """Whether the kernel can do it: each slice of a layer has a piece, and all of a row of a
        softmax is there at once."""
        n = self.network
        if any(sliced and self.pieces(layer) < self.ranks
               for layer, sliced in enumerate(self.sliced)):
            return False
        return not (n.softmax and self.sharing(n.depth).rounds > 1)


# -- what it is expected to take -------------------------------------------------------------------

MMA = 8.0
"""Cycles that a quarter of a multiprocessor takes for one 16 x 8 block of a step."""
FROM_L2 = 27.0
"""Bytes of weights a cycle that a multiprocessor gets from the L2 cache."""
LATENCY = 750.0
PRODUCT, PARTS, ITEM = 350.0, 300.0, 110.0
"""What a product takes besides, what it takes to add up parts, and for eight rows of a tile."""
EXCHANGE, EXCHANGED = 500.0, 15.0
"""For blocks to get others' values, and bytes of them a cycle."""
SOFTMAX = 1200.0
BEGIN = 3500.0
FETCHED = 30.0
"""Bytes a cycle of inputs."""
CLOCK = 1755.0
"""Cycles a microsecond of an H200 at work, whose greatest clock is FITTED_AT."""
FITTED_AT = 1980.0


def cycles(form: Form, target: Target) -> float:
    """Of one launch; infinitely many where the target does not run it."""
    at_once = target.at_once.get(form.ranks, 0)
    if not at_once or form.shared + RESERVED > target.shared_per_block:
        return math.inf
    n = form.network
    waves = ceil(form.blocks, at_once)
    total = form.rows * n.layers[0] * n.size / FETCHED
    for product in range(1, form.products + 1):
        total += _product(form, product)
        if form.exchanged(product) and product < form.products:
            layer = n.layers[form.layer_of(product)]
            total += EXCHANGE + form.rows * layer * n.size * (1 - 1 / form.ranks) / EXCHANGED
            if product == n.depth and n.softmax:
                total += EXCHANGE
    return BEGIN + waves * (total + (SOFTMAX if n.softmax else 0.0))


def _product(form: Form, product: int) -> float:
    n, s = form.network, form.sharing(product)
    chunks = n.chunks(n.layers[form.layer_of(product - 1)])
    each = ceil(chunks, s.parts)
    eights = form.rows // 8
    beside = ceil(s.groups * s.parts, 4)
    multiplied = each * beside * (eights * 4 * MMA * n.times + (64.0 if n.times == 3 else 20.0))
    waited = LATENCY * each / form.ahead
    loaded = chunks * 64 * n.piece * form.most_pieces(form.layer_of(product)) / FROM_L2
    items = ceil(s.groups * eights, form.warps) if s.parts > 1 else eights
    finished = ITEM * items * ceil(min(s.groups * eights, form.warps), 4) / 2
    return max(s.rounds * max(multiplied, waited), loaded) + s.rounds * (
        PRODUCT + (PARTS if s.parts > 1 else 0.0) + finished)


def microseconds(form: Form, target: Target) -> float:
    clock = CLOCK * (target.clock or FITTED_AT) / FITTED_AT
    return cycles(form, target) / clock


def forms(network: Network, target: Target) -> Iterator[Form]:
    """All that the target can run."""
    for ranks in RANKS:
        if not target.at_once.get(ranks, 0):
            continue
        for rows in ROWS:
            if rows >= network.batch + 8:
                continue
            for warps in WARPS:
                if warps == 16 and rows > MANY_ROWS:
                    continue
                form = sliced(network, ranks, rows, warps)
                if form.allowed and form.shared + RESERVED <= target.shared_per_block:
                    yield form


NARROW = 32
"""Units up to which every block computes a layer."""


def sliced(network: Network, ranks: int, rows: int, warps: int) -> Form:
    """The form in which narrow layers are every block's."""
    narrow = max(NARROW, (ranks // 4 - 1) * 4 * network.piece)  # others have a piece each
    return Form(network, ranks, rows, warps,
                (False, *(ranks > 1 and n > narrow for n in network.layers[1:])))


@cache
def choose(network: Network, target: Target) -> Form | None:
    """The form that is expected to be fastest; None where there is none."""
    return min(forms(network, target), key=lambda form: cycles(form, target), default=None)
