"""What a step on the chip is expected to take, in cycles, phase by phase.

A step is a chain of phases: small networks take their number times a latency. The constants were
fitted to kernels on an H200 and serve another GPU by the ratio of the clocks, unless constants were
fitted to that.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from rawnn.common.errors import ConfigError
from rawnn.common.target import Target
from rawnn.persistent.layout import TILE, Layout, summed_by_all
from rawnn.persistent.sharding import (
    ALL_GATHERED,
    COLUMN_PARALLEL,
    REPLICATED,
    ROW_PARALLEL,
    Message,
    Sharding,
    ceil,
    up,
)
from rawnn.persistent.tiles import softmax_of, tiling


@dataclass(frozen=True)
class Costs:
    """Cycles: of an exchange in a cluster, of a second one that sums need, and the bytes of it a
    cycle; of one through the L2 cache (`far`, `far_rank` for each block of a group), the bytes a
    cycle of what comes to all and of parts that each block has for each other, what a step takes
    besides that has any, and how many times as long all else takes then (five kernels are within 13
    %); of a softmax, besides `softmax_rows` times what its outputs are expected to take; of a
    conversion, and of each round of the threads there and in an elementwise loss; of a meeting of
    all clusters, and of all groups whose blocks exchange through the L2 cache (`far_meeting`), the
    bytes of gradients a cycle that are summed there, by all or each its share, of which `halves`
    times as many come where numbers are told in 16 bits, and those that a state is updated of; of
    what every step begins and ends with. What the products are expected to take is multiplied by
    `product`, and each takes `product_begin` more; weight gradients with their updates by
    `gradient`, those left for other clusters by `published`; those of layers above the first by
    `overlapped` besides, as warps that are done go on to the first layer's. A tile whose state
    comes from the L2 cache takes `far_tile` more. Micro-batches in clusters take `turn` times as
    long as batches of their size. Whether a step of float16 counts takes a block `decision`, and
    `decision_between` more where clusters tell each other. Rounding a tile's weights by chance
    takes `draws`, four draws of each lane, on one of four sub-cores. A launch takes `launch`
    besides its steps, and loads and stores so many `launch_bytes` of weights and state a cycle.
    `clock` is in cycles a microsecond. (What a launch takes is fitted to kernels that were traced;
    all else to the times of 355 forms of 49 networks in float32 and bf16 on an H100, and of 183
    runs of draws in float32 and tf32 on an H200, which results/forms.csv keeps. Two in three took
    0.92 to 1.08 of what is expected, of networks that a fit had not seen 0.91 to 1.10. Where
    several forms of a network were timed, the one that is chosen took 2 % longer than the fastest
    of them in the mean: tests/opts/test_persistent_payoff.py.)"""

    product: float = 1.46
    product_begin: float = 15.9
    gradient: float = 1.61
    published: float = 1.39
    overlapped: float = 1.46
    exchange: float = 409.0
    second: float = 940.0
    exchange_bytes: float = 12.1
    far: float = 968.0
    far_rank: float = 0.580
    far_bytes: float = 30.6
    far_parts: float = 8.46
    far_rest: float = 0.997
    far_step: float = 51.7
    softmax: float = 248.0
    softmax_rows: float = 1.39
    elementwise_round: float = 397.0
    convert: float = 112.0
    convert_round: float = 40.5
    meeting: float = 1540.0
    far_meeting: float = 1820.0
    summed_bytes: float = 39.4
    shared_bytes: float = 23.0
    state_bytes: float = 96.2
    halves: float = 1.31
    step: float = 45.6
    while_meeting: float = 279.0
    far_tile: float = 57.3
    turn: float = 1.30
    decision: float = 900.0
    decision_between: float = 1500.0
    draws: float = 300.0
    launch: float = 20000.0
    launch_bytes: float = 8.00
    clock: float = 1760.0

    def __hash__(self) -> int:  # of what is looked up for each layer of each candidate
        return hash((self.clock, self.exchange))


@dataclass(frozen=True)
class Phase:
    """A part of the step by its name, and its cycles."""

    name: str
    cycles: float


FITTED = Costs()
FITTED_AT = 1980.0
"""MHz: the greatest clock of the GPU that they were fitted to, an H200."""


def costs_of(target: Target) -> Costs:
    """Of a GPU: those fitted to it (`tools/fit_costs.py --keep`), or else the H200's, whose cycles
    are as much longer as its greatest clock is slower. Raises ConfigError for a constant that there
    is not."""
    known = {each.name for each in fields(Costs)}
    if unknown := sorted(set(target.costs) - known):
        raise ConfigError(f"constants kept of {target.name}: none is called {', '.join(unknown)}; "
                          f"fit them anew")
    slower = {"clock": FITTED.clock * target.clock / FITTED_AT} if target.clock else {}
    return replace(FITTED, **(target.costs or slower))


def layer_phases(d: Sharding, layer: int, costs: Costs = FITTED) -> list[Phase]:
    """The phases of one layer, which depend on the types at its ends alone."""
    p, kind = d.problem, d.layer_kinds[layer]
    ins, outs, columns = d.ins(layer), d.outs(layer), d.columns // 8
    n = layer + 1

    def exchange(features: int) -> float:
        if d.via_l2:
            return far_cycles(d, Message(features, True), costs)
        return costs.exchange + features * d.sent * 4 / costs.exchange_bytes

    def summed(features: int) -> float:
        if d.via_l2:
            return sum(far_cycles(d, message, costs) for message in d.summed(features))
        if d.is_one_shot(features):
            return exchange(features * d.tp_size)
        return 2 * exchange(features) - costs.exchange + costs.second

    def shared_out(features: int) -> float:
        if d.via_l2:
            return far_cycles(d, Message(d.shards[layer] * d.tp_size, False), costs)
        return exchange(features)

    rest = beside_exchanges(d, costs)
    forward = tiling(ceil(outs, 16), columns, ceil(ins, 8), d.warps, p.numbers)
    found = [Phase(f"forward {n}", rest * (costs.product_begin + costs.product * forward.cycles))]
    if kind == ROW_PARALLEL:
        found.append(Phase(f"sum {n}", summed(p.layers[n])))
    if kind == COLUMN_PARALLEL and d.boundaries[n] == ALL_GATHERED:
        found.append(Phase(f"gather {n}", exchange(p.layers[n])))
    if n == p.depth and not p.labelled:
        ends = found.pop()
        found.append(Phase(ends.name, ends.cycles + elementwise_cycles(d, costs)))
    if layer:
        backward = tiling(ceil(ins, 16), columns, ceil(outs, 8), d.warps, p.numbers)
        found.append(Phase(f"backward {n}", rest * (
            costs.product_begin + costs.product * backward.cycles)))
        if kind == COLUMN_PARALLEL:
            gathered = d.boundaries[layer] == ALL_GATHERED
            found.append(Phase(f"sum of gradient {layer}", shared_out(p.layers[layer]) if gathered
                               else summed(p.layers[layer])))
    gradient = tiling(ceil(ins, 16), ceil(outs, 8), columns, d.warps, p.numbers, may_split=False)
    # With a loss scale and one cluster all weight gradients wait for the first layer's gradient.
    alone = layer == 0 or (p.scaled and d.dp_size == 1)
    seen = costs.gradient if d.dp_size == 1 else costs.published
    seen *= 1.0 if alone else costs.overlapped
    found.append(Phase(f"gradient {n}", rest * gradient.cycles * seen))
    if p.streams:
        tiles = ceil(ceil(ins, 16) * ceil(outs, 8), d.dp_size)
        found.append(Phase(f"rounding {n}", rest * costs.draws * ceil(tiles, 4)))
    return found


def far_cycles(d: Sharding, message: Message, costs: Costs = FITTED) -> float:
    """A message through the L2 cache: as much as it brings, a block also writes where it is not the
    same for all."""
    nbytes = message.rows * d.sent * 4
    return costs.far + costs.far_rank * d.tp_size + nbytes / (
        costs.far_bytes if message.to_all else costs.far_parts)


def beside_exchanges(d: Sharding, costs: Costs = FITTED) -> float:
    """By what all that is no exchange is multiplied."""
    return costs.far_rest if d.via_l2 and d.messages else 1.0


def layer_cycles(d: Sharding, layer: int, costs: Costs = FITTED) -> float:
    """What one layer adds to a step: its phases, and its part of the clusters' meeting."""
    found = sum(phase.cycles for phase in layer_phases(d, layer, costs))
    if d.dp_size > 1:
        nbytes = layer_tiles(d, layer) * TILE * d.published_bytes
        found += min(summed_cycles(d, nbytes, costs), shared_cycles(d, nbytes, costs))
    return found


def layer_tiles(d: Sharding, layer: int) -> int:
    """Tiles of a layer's gradient in a block."""
    tiles = ceil(d.ins(layer), 16) * ceil(d.outs(layer), 8)
    return tiles + (ceil(d.outs(layer), TILE) if d.problem.bias else 0)


def layer_bytes(d: Sharding, layer: int) -> int:
    """About the bytes of shared memory that a layer takes of a block: weights, state, values, and
    mailboxes."""
    p, ins, outs = d.problem, d.ins(layer), d.outs(layer)
    states = 1 + (len(p.states) if d.dp_size == 1 else 0)
    size = 2 if p.halved else 1  # values between layers may be of 16 bits
    values = up(outs, 8) * d.pitch // size
    if layer:
        values += up(ins, 16) * d.pitch // size
    else:
        inputs = d.columns * (up(ins, 8) + 8)
        values += inputs if p.converted or p.rounded else 2 * inputs  # two, each of half the bits
        values += d.columns * up(ins, 16) * p.input_size // 2 if p.converted else 0
    if layer == p.depth - 1:
        values += outs * d.pitch if p.labelled and p.halved else 0
        values += 0 if p.labelled else 2 * d.columns * (up(outs, 4) + 4)
    mail = 0
    if d.layer_kinds[layer] == ROW_PARALLEL:
        mail = p.layers[layer + 1]
    elif d.layer_kinds[layer] == COLUMN_PARALLEL:
        mail = p.layers[layer] if layer else 0
    if d.boundaries[layer + 1] == ALL_GATHERED:
        mail = max(mail, p.layers[layer + 1])
    mail = 0 if d.via_l2 else mail
    return 4 * (up(ins, 16) * (up(outs, 8) + 8) * states + values + 2 * mail * d.sent)


def most_bytes(d: Sharding) -> int:
    """About the bytes of shared memory that a sharding takes."""
    return sum(layer_bytes(d, layer) for layer in range(d.problem.depth))


def fixed_phases(d: Sharding, costs: Costs = FITTED) -> list[Phase]:
    """What does not depend on the types: input, loss, the meeting of clusters, begin and end."""
    p = d.problem
    hidden = costs.while_meeting if d.dp_size > 1 and d.micro_batches == 1 else 0.0
    found = [Phase("begin and end", costs.step - hidden)]
    if p.converted:
        shards = d.tp_size if d.boundaries[0] != REPLICATED else 1
        quads = d.columns * ceil(ceil(p.layers[0], 4), shards)
        found.append(Phase("input", costs.convert
                           + costs.convert_round * ceil(quads, d.threads)))
    found += loss_phases(d, costs)
    if p.scaled:
        told = far_cycles(d, Message(0, True), costs) if d.via_l2 else \
            costs.exchange if d.tp_size > 1 else 0.0
        between = costs.decision_between if d.dp_size > 1 else 0.0
        found.append(Phase("overflow", costs.decision + told + between))
    found = [phase if phase.name == SHARED_SOFTMAX
             else Phase(phase.name, beside_exchanges(d, costs) * phase.cycles) for phase in found]
    if d.via_l2 and d.messages:
        found.append(Phase("exchanges begin", costs.far_step))
    return found


SHARED_SOFTMAX = "exchange of softmax"
"""The phase in which blocks tell each other of their slices of the outputs."""


def loss_phases(d: Sharding, costs: Costs = FITTED) -> list[Phase]:
    """The gradient of the outputs, as far as a block has them."""
    p = d.problem
    if p.labelled:
        found = [Phase("softmax", costs.softmax + costs.softmax_rows * softmax_of(d).cycles)]
        if d.shards_softmax:
            told = d.slices_told
            nbytes = told.rows * d.sent * 4
            found.append(Phase(SHARED_SOFTMAX, far_cycles(d, told, costs) if d.via_l2 else
                               costs.exchange + costs.second + nbytes / costs.exchange_bytes))
        return found
    return []


def elementwise_cycles(d: Sharding, costs: Costs = FITTED) -> float:
    """What the last product takes longer, as it ends in a loss that is a mean over elements."""
    elements = d.columns * d.outs(d.problem.depth - 1)
    return costs.elementwise_round * ceil(elements, d.threads)


def meeting_phases(d: Sharding, costs: Costs = FITTED) -> list[Phase]:
    """How clusters add up their gradients: all of them by every cluster, or each its share."""
    if d.dp_size == 1:
        return []
    tiles = sum(layer_tiles(d, layer) for layer in range(d.problem.depth))
    nbytes = TILE * d.published_bytes * tiles
    meeting = costs.far_meeting if d.via_l2 and d.messages else costs.meeting
    if summed_by_all(d.dp_size, nbytes, len(d.problem.states)):
        return [Phase("all clusters sum", meeting + summed_cycles(d, nbytes, costs))]
    return [Phase("clusters sum and share", 2 * meeting + shared_cycles(d, nbytes, costs))]


def summed_cycles(d: Sharding, nbytes: int, costs: Costs = FITTED) -> float:
    """What every cluster takes for all gradients, so many bytes of a block, besides the meeting."""
    return d.dp_size * nbytes / costs.summed_bytes / _told(d, costs) \
        + state_cycles(d, nbytes, costs)


def shared_cycles(d: Sharding, nbytes: int, costs: Costs = FITTED) -> float:
    """The same of a cluster that updates its share, and takes in what others tell of theirs."""
    return nbytes / costs.shared_bytes / _told(d, costs) \
        + state_cycles(d, nbytes / d.dp_size, costs)


def _told(d: Sharding, costs: Costs) -> float:
    """By how much more bytes a cycle come than of float32."""
    return costs.halves if d.publishes_bf16 else 1.0


def state_cycles(d: Sharding, nbytes: float, costs: Costs = FITTED) -> float:
    """What the state takes of numbers that are told in so many bytes."""
    return len(d.problem.states) * nbytes * 4 / d.published_bytes / costs.state_bytes


LAUNCH = "launch"
LAUNCHED = 64
"""Steps that share what a launch takes, where nobody says how many there are."""


def launch_cycles(d: Sharding, costs: Costs = FITTED) -> float:
    """What a launch takes besides its steps: a block loads and stores what it trains."""
    p = d.problem
    kept = 4 * (1 + len(p.states)) * sum(d.ins(i) * d.outs(i) for i in range(p.depth))
    return costs.launch + kept / costs.launch_bytes


def phases(d: Sharding, costs: Costs = FITTED) -> list[Phase]:
    """All phases of a step, and its share of a launch."""
    layers = [phase for layer in range(d.problem.depth) for phase in layer_phases(d, layer, costs)]
    turn = [*layers, *fixed_phases(d, costs)]
    many = d.micro_batches * (costs.turn if d.micro_batches > 1 and not d.via_l2 else 1.0)
    rest = beside_exchanges(d, costs)
    return [*(Phase(phase.name, many * phase.cycles) for phase in turn),
            *(Phase(phase.name, rest * phase.cycles) for phase in meeting_phases(d, costs)),
            Phase(LAUNCH, launch_cycles(d, costs) / LAUNCHED)]


def cycles(d: Sharding, costs: Costs = FITTED) -> float:
    return sum(phase.cycles for phase in phases(d, costs))


def microseconds(d: Sharding, costs: Costs = FITTED) -> float:
    """What a step is expected to take."""
    return cycles(d, costs) / costs.clock


def state_microseconds(found: Layout, costs: Costs = FITTED) -> float:
    """What the optimizer's state takes besides that comes from the L2 cache."""
    return found.far_tiles * costs.far_tile / costs.clock
