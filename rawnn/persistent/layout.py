"""Where everything lies: the shared memory of a block, and the workspaces in global memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from rawnn.persistent.problem import Problem
from rawnn.persistent.sharding import ALL_GATHERED, SHARDED, Sharding, ceil, pitch, up
from rawnn.persistent.tiles import Tiling, far_tiling, softmax_floats, tiling

TILE = 128
"""Floats of a tile: 16 inputs x 8 outputs of a weight, or 128 biases."""

ALL, SHARE = "all", "share"
AT_ONCE, BY_FIRST, BY_LAST = "at once", "by the first block", "by the last block"
STATE = "state of the optimizer"
MOST_MORE, SUMMED_BYTES, STATE_BYTES = 1100.0, 53.0, 47.0
"""By shares, clusters tell each other twice, which takes so many cycles; by all, each takes in so
many bytes of the others' gradients a cycle, and updates so many of a state (ten networks that an
H200 trained in both ways). They are no costs that a GPU may keep of its own: on them depend the
last bits of a run, which must go on as it began."""

COUNTS = ("counters", "generations", "meetings", "trace")
"""Workspaces of integers."""

LAUNCH_STAMPS, NANOSECOND_WORDS = 4, 4
"""Stamps of a warp ahead of and behind the steps, and words of a block's time by the GPU's clock
(persistent/trace.cuh)."""

RULE_BYTES = 64
FIXED_BYTES = 1024
"""Static shared memory of the templates."""


def settled(problem: Problem) -> int:
    """Tensors that the optimizer keeps for each parameter."""
    return len(problem.states)


def summed_by_all(groups: int, nbytes: int, states: int) -> bool:
    """Whether every cluster adds up and updates all gradients, of which a block has so many bytes,
    and not each its share."""
    others = (groups - 1) * nbytes
    return others / SUMMED_BYTES + states * others / groups / STATE_BYTES <= MOST_MORE


@dataclass(frozen=True)
class LayerLayout:
    """A layer's part in a block: `rows` x `pitch` floats of weights at float `weights`, biases at
    `bias`; `tiles` of its gradient are weights, `across` side by side, `bias_tiles` biases, the
    first of all is number `base`: tiles are numbered as their gradients are made, from the last
    layer on. `near` is the float where its state lies, None where that is in a
    workspace; `far` its first tile there."""

    rows: int
    pitch: int
    weights: int
    bias: int
    across: int
    tiles: int
    bias_tiles: int
    base: int
    near: int | None
    far: int
    forward: Tiling
    backward: Tiling | None
    update: Tiling

    @property
    def all_tiles(self) -> int:
        return self.tiles + self.bias_tiles


@dataclass(frozen=True)
class Layout:
    """`places` are floats from the start of a block's shared memory by name, and `held` says in
    words what lies in each; `nbytes` are all of it.
    `copies` is the float where copies of the first `copied` floats in 16 bits begin, which products
    read: weights, and biases among them; None where there are none.
    `sync` says how clusters update: "" (there is one), "all" or "share". `shares` warps share the
    sum of a tile. A batch of inputs takes `input_floats`, its rows `input_pitch` numbers each.
    `shared_state` is where the state lies that a block keeps of all layers, where there are several
    clusters. Of the first `traced` steps of a launch all `stamps` of a step are kept, where phases
    are traced (tracing.py). A kernel that is `turning` is launched once an epoch and also does what
    stands between two."""

    sharding: Sharding
    layers: tuple[LayerLayout, ...]
    places: dict[str, int] = field(hash=False)
    held: dict[str, str] = field(hash=False)
    nbytes: int
    sync: str
    shares: int
    input_pitch: int
    input_floats: int
    raw_pitch: int
    target_pitch: int
    target_width: int
    exchange: int
    shared_state: int | None
    far_tiles: int
    traced: int = 0
    stamps: int = 0
    copies: int | None = None
    copied: int = 0
    turning: bool = False

    @property
    def dynamic_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return self.nbytes - FIXED_BYTES

    def with_partial_batch(self) -> Layout:
        """The same for epochs that end with a smaller batch."""
        d = self.sharding
        return replace(self, sharding=replace(d, problem=replace(d.problem, partial=True)))

    @property
    def tiles(self) -> int:
        return sum(layer.all_tiles for layer in self.layers)

    @property
    def owned(self) -> int:
        """Tiles that a cluster updates, where each updates its share."""
        return ceil(self.tiles, self.sharding.dp_size)

    @property
    def parts(self) -> int:
        """Parts of a step's loss: of each example, where tallies are kept, or of blocks: one a
        cluster, unless the outputs are sliced."""
        d = self.sharding
        if keeps_tallies(d):
            return d.group_batch
        return d.blocks if d.boundaries[-1] == SHARDED else d.dp_size

    @property
    def reports(self) -> str:
        """When a step's loss goes to memory: at once, where its sum is a block's own; behind the
        steps by the first block, where the parts are its own or its cluster's; or by the last block
        that comes there."""
        d = self.sharding
        if self.counters:  # which the last block puts back
            return BY_LAST
        if not keeps_tallies(d) and self.parts * d.micro_batches == 1:
            return AT_ONCE
        return BY_FIRST if d.dp_size == 1 and not (d.via_l2 and self.told_by_all) else BY_LAST

    @property
    def told_by_all(self) -> bool:
        """Whether each block of a group has parts of a step's loss."""
        d = self.sharding
        return d.tp_size > 1 and (
            d.shards_softmax if keeps_tallies(d) else d.boundaries[-1] == SHARDED)

    def workspaces(self, steps: int) -> dict[str, int]:
        """4-byte words of each workspace of an epoch of so many steps."""
        d = self.sharding
        found = {"counters": self.counters + 1}
        if self.reports != AT_ONCE:
            found["tally"] = 2 * self.parts * d.micro_batches * steps
        if self.sync:
            copies = 2 if self.sync == ALL else 1
            found["gradients"] = copies * d.blocks * self.tiles * TILE * d.published_bytes // 4
        if self.sync == SHARE:
            found["fresh"] = d.tp_size * self.tiles * TILE * d.published_bytes // 4
        if self.sync and d.problem.scaled:
            found["overflows"] = 2 * d.blocks * 4
        if self.sync:
            found["meetings"] = d.blocks
        if d.mail_floats:
            found["generations"] = d.blocks
            found["parcels"] = d.boxes * d.dp_size * d.mail_floats
        if self.far_tiles:
            found["far"] = d.blocks * self.far_tiles * settled(d.problem) * TILE
        if self.traced:
            of_warps = (self.traced * self.stamps + LAUNCH_STAMPS) * d.blocks * d.warps
            found["trace"] = of_warps + NANOSECOND_WORDS * d.blocks
        return found

    @property
    def counters(self) -> int:
        """Words of the counter at which blocks meet that tell each other nothing in a step, or
        nothing but to those of their rank."""
        d = self.sharding
        if d.via_l2:
            return 0 if d.mail_floats else 1
        return 1 if self.sync and d.tp_size > 1 and not self.exchange else 0


def keeps_tallies(d: Sharding) -> bool:
    """Whether the tally of each example goes to global memory, and is added up behind the steps: of
    one cluster, where a step would wait for the warp that adds them up; of few examples."""
    return d.problem.labelled and d.dp_size == 1


def apart(d: Sharding) -> bool:
    """Whether a softmax leaves gradients elsewhere than where its logits lie: those of all blocks,
    or gradients in 16 bits."""
    return d.boundaries[-1] == ALL_GATHERED or (d.problem.labelled and d.problem.halved)


def tallies(d: Sharding) -> int:
    """Tallies of a step in shared memory: of an example, or where the loss is a mean over elements,
    of each thread that may have some, two or more as the last product ends."""
    p = d.problem
    if keeps_tallies(d):
        return 1
    most = up(d.outs(p.depth - 1), 16) * d.columns // 2
    return d.columns if p.labelled else min(d.threads, most)


def flags(d: Sharding) -> int:
    """Floats by which the blocks of a cluster tell each other that gradients overflowed."""
    return up(d.tp_size, 4) if d.problem.scaled and d.tp_size > 1 else 0


def far_sums(d: Sharding) -> int:
    """Floats of scratch memory for sums that several threads share, of parts that come through the
    L2 cache."""
    if not d.via_l2:
        return 0
    sums = (message.rows // d.tp_size for message in d.messages if message.parts > 1)
    return max((d.teams(rows) * rows * d.sent for rows in sums if d.teams(rows) > 1), default=0)


def beyond(features: int, step: int) -> int:
    """Floats behind the last row that a tile of 16 features reads, though nobody wants them."""
    return max(up(features, 16) - step, 0)


def least_bytes(problem: Problem, ranks: int, columns: int = 8) -> int:
    """Shared memory that a block takes at least of any layout by so many blocks or fewer, for so
    many examples or more: of each layer its weights and biases, its inputs and sums, cut as is best
    for it."""
    def floats(ins: int, outs: int, first: bool) -> int:
        inputs = 0 if first else up(ins, 16)  # the first layer's lie otherwise
        weights = up(ins, 8) * up(outs, 8)
        values = (inputs + up(outs, 8)) * pitch(columns)
        return weights + TILE * problem.bias + (values // 2 if problem.halved else values)

    layers = Counter((pair, not n) for n, pair in enumerate(pairwise(problem.layers)))
    return 4 * sum(times * min(floats(ins, outs, first), floats(ins, ceil(outs, ranks), first),
                               floats(ceil(ins, ranks), outs, first))
                   for ((ins, outs), first), times in layers.items())


def layout_of(d: Sharding, room: int) -> Layout:
    """Where everything of a sharding lies, whether or not it fits; state of the optimizer lies
    in shared memory as far as that has `room`, in bytes, and so do copies of weights in 16 bits for
    products that take such, where no state makes room for them."""
    found = _layout(d, room, False)
    if d.problem.halved and found.nbytes < room:
        copied = _layout(d, room, True)
        if copied.nbytes <= room and copied.far_tiles == found.far_tiles:
            return copied
    return found


def _layout(d: Sharding, room: int, copied: bool) -> Layout:
    p, states = d.problem, settled(d.problem)
    cursor, places, held = 0, {}, {}

    def take(name: str, floats: int, what: str) -> int:
        nonlocal cursor
        held[name] = what
        places[name] = cursor = up(cursor, 4)
        cursor += floats
        return places[name]

    parts = []
    base = 0
    for layer in range(p.depth):
        ins, outs = d.ins(layer), d.outs(layer)
        wide = up(outs, 8)
        # The first layer's inputs lie by examples, so that pairs of rows are read: 4 more than a
        # multiple of 16 then gives 32 banks.
        step = pitch(wide) if layer or copied else wide + (4 - wide) % 16
        # The backward product takes whole tiles of 16 rows.
        rows = up(ins, 16 if layer else 8)
        tiles = ceil(ins, 16) * ceil(outs, 8)
        bias_tiles = ceil(outs, TILE) if p.bias else 0
        weights = take(f"w{layer}", rows * step + beyond(outs, step), "weights")
        bias = take(f"b{layer}", bias_tiles * TILE, "biases")
        parts.append((rows, step, weights, bias, ceil(outs, 8), tiles, bias_tiles, base))
        base += tiles + bias_tiles
    copied_floats = up(cursor, 4) if copied else 0
    if copied:
        take("copies", copied_floats // 2, "weights in 16 bits")
    parts = [(*part[:-1], base - part[-1] - part[5] - part[6]) for part in parts]
    sync = "" if d.dp_size == 1 else \
        ALL if summed_by_all(d.dp_size, base * TILE * d.published_bytes, states) else SHARE
    ins = d.ins(0)
    input_pitch = pitch(up(ins, 8))
    raw_pitch = up(ins * p.input_size, 16) // p.input_size
    inputs = d.columns * input_pitch + beyond(ins, input_pitch)
    input_floats = up(inputs, 8) // 2 if p.rounded else up(inputs, 4)
    take("x", (1 if p.converted else 2) * input_floats, "inputs")
    if p.converted:
        take("raw", 2 * d.columns * raw_pitch * p.input_size // 4, "inputs as they come")
    if p.normalised:
        take("mean", up(ins, 4), "means of inputs")
        take("inverse_std", up(ins, 4), "scales of inputs")
    # What is between layers is operands alone: of 16 bits, where products take these.
    size = 2 if p.halved else 1
    for layer in range(1, p.depth):
        take(f"a{layer}", up(d.ins(layer), 16) * d.pitch // size, "activations")
    for layer in range(1, p.depth + 1):
        take(f"z{layer}", up(d.outs(layer - 1), 8) * d.pitch // size, "sums and gradients")
    if apart(d):
        rows = p.outputs if d.boundaries[-1] == ALL_GATHERED else d.outs(p.depth - 1)
        take("logits", rows * d.pitch, "outputs")
    target_width = 0 if p.labelled or p.reconstruct else d.outs(p.depth - 1)
    target_pitch = up(target_width, 4) + (4 - up(target_width, 4)) % 16 if target_width else 0
    take("y", d.columns if p.labelled else 2 * d.columns * target_pitch, "targets")
    if p.ordered:
        take("order", 2 * d.columns, "numbers of examples")
    take("rules", RULE_BYTES // 4, "rule of the update")
    take("barriers", 8, "barriers")
    if sync:
        take("places", 2 * base, "places of the tiles of gradients")
    take("tallies", 2 * tallies(d), "losses")
    if p.scaled:
        take("scaling", 4, "loss scale")
    exchange = max(d.exchanged() * d.sent, flags(d), *(
        p.layers[n] * d.sent + up(d.idle(n), 4) for n, type_ in enumerate(d.boundaries)
        if type_ == ALL_GATHERED and d.idle(n)))
    if exchange and not d.via_l2:
        take("exchange", 2 * exchange, "exchange")
    scratch, tilings = softmax_floats(d), []
    eighths = d.columns // 8
    for layer in range(p.depth):
        ins, outs = d.ins(layer), d.outs(layer)
        forward = tiling(ceil(outs, 16), eighths, ceil(ins, 8), d.warps, p.numbers)
        backward = tiling(ceil(ins, 16), eighths, ceil(outs, 8), d.warps, p.numbers) \
            if layer else None
        for found, rows in ((forward, outs), (backward, ins)):
            if found and found.split > 1:
                scratch = max(scratch, found.split * up(rows, 16) * d.pitch)
        tilings.append((forward, backward))
    shares = 1
    if sync == SHARE:
        owned = ceil(base, d.dp_size)
        while shares * 2 <= min(d.warps, d.dp_size) and owned * shares < d.warps:
            shares *= 2
        scratch = max(scratch, owned * shares * TILE if shares > 1 else 0)
    take("scratch", max(scratch, far_sums(d)), "scratch")
    return _with_state(d, parts, places, held, cursor, sync, shares, input_pitch, input_floats,
                       raw_pitch, target_pitch, target_width, exchange, tilings, states,
                       room - FIXED_BYTES, copied_floats)


def _with_state(d: Sharding, parts: Sequence[tuple[int, ...]], places: dict[str, int],
                held: dict[str, str], cursor: int, sync: str, shares: int, input_pitch: int,
                input_floats: int, raw_pitch: int, target_pitch: int, target_width: int,
                exchange: int, tilings: list[tuple[Tiling, Tiling | None]], states: int,
                room: int, copied: int) -> Layout:
    """State of the largest layers lies in shared memory as far as there is room, the rest in a
    workspace, where it costs round trips to the L2 cache. Where clusters share the batch, it is in
    one piece in either place."""
    p = d.problem
    cursor = up(cursor, 4)
    near: dict[int, int] = {}
    far: dict[int, int] = {}
    shared_state, far_tiles = None, 0
    sizes = [part[5] + part[6] for part in parts]
    if states and sync:
        owned = sum(sizes) if sync == ALL else ceil(sum(sizes), d.dp_size)
        if (cursor + owned * states * TILE) * 4 <= room:
            shared_state = places["state"] = cursor
            held["state"] = STATE
            cursor += owned * states * TILE
        else:
            far_tiles = owned
    elif states:
        for layer in sorted(range(p.depth), key=lambda i: -sizes[i]):
            if (cursor + sizes[layer] * states * TILE) * 4 <= room:
                near[layer] = places[f"m{layer}"] = cursor
                held[f"m{layer}"] = STATE
                cursor += sizes[layer] * states * TILE
            else:
                far[layer] = far_tiles
                far_tiles += sizes[layer]
    layers = []
    for layer, (rows, step, weights, bias, across, tiles, bias_tiles, base) in enumerate(parts):
        forward, backward = tilings[layer]
        update = tiling(ceil(d.ins(layer), 16), across, d.columns // 8, d.warps, p.numbers,
                        may_split=False, most_tiles=1 if layer in near and states > 1 else 8)
        if layer in far:
            update = far_tiling(ceil(d.ins(layer), 16), across, d.warps)
        layers.append(LayerLayout(rows, step, weights, bias, across, tiles, bias_tiles, base,
                                  near.get(layer), far.get(layer, 0), forward, backward, update))
    return Layout(d, tuple(layers), places, held, cursor * 4 + FIXED_BYTES, sync, shares,
                  input_pitch, input_floats, raw_pitch, target_pitch, target_width, exchange,
                  shared_state, far_tiles, copies=places.get("copies"), copied=copied)
