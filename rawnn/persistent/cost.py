"""The expected cycles of a schedule: constants, and a walk over the phases, which have the rules.

Small networks take the number of their phases times a latency. The constants were fitted to kernels
on an H200. Another GPU uses them with the ratio of the clocks, unless constants were fitted to it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from rawnn.common.errors import ConfigError
from rawnn.common.target import Target
from rawnn.persistent.layout import Layout
from rawnn.persistent.phases.gradient_all_reduce import summed_by_all, summed_in_shares
from rawnn.persistent.phases.phase import BETWEEN, Line, Phase
from rawnn.persistent.schedule import Schedule, backward, build, forward, loss, weight_gradient
from rawnn.persistent.sharding import ALL_GATHERED, COLUMN_PARALLEL, ROW_PARALLEL, Sharding, up


@dataclass(frozen=True)
class Costs:
    """Constants of the cost model, in cycles where nothing else is said. Files that
    `tools/fit_costs.py --keep` writes have them under these names.

    gemm, gemm_begin: a factor of what tiles.py expects of a forward or backward GEMM, and what each
        takes besides.
    gradient, published: the same factor of weight gradients with their update, and of those that
        are published for other groups.
    update_state: the update of a tile by a warp, for each tensor of optimizer state, with one
        group.
    overlapped: a factor of weight gradients above the first layer besides: warps that are done
        continue with the first layer's.
    exchange, second_exchange: an exchange through DSMEM, and one that follows a reduce-scatter.
    exchange_bytes: bytes of it in a cycle.
    via_l2, via_l2_block: an exchange via L2, and for each block of the group.
    via_l2_bytes, via_l2_sums: bytes in a cycle of what all blocks get, and of partial sums.
    via_l2_rest: a factor of everything else in a kernel with exchanges via L2.
    via_l2_step: what a step with exchanges via L2 takes besides.
    softmax, softmax_rows: a softmax, and a factor of what tiles.py expects of its outputs.
    elementwise_round: each round of a block's threads in an elementwise loss.
    convert, convert_round: a conversion of the input, and each round of threads in it.
    all_reduce, via_l2_all_reduce: the latency of a gradient all-reduce, and the same in a kernel
        with exchanges via L2.
    summed_bytes, sharded_bytes: bytes of gradients in a cycle, if every group sums all of them, or
        its share.
    bf16_summed, bf16: factors of these two rates for gradients in bfloat16.
    state_bytes: bytes of gradients in a cycle whose optimizer state is updated.
    step, hidden_step: the begin and end of a step, and how much of it the all-reduce hides.
    global_state: a tile whose optimizer state lies in global memory.
    fetch, fetch_bytes: from the start of the copies of the next input until it is there, and bytes
        of it in a cycle. What runs meanwhile hides it.
    micro_batch: a factor of micro-batches in clusters, relative to batches of their size.
    overflow_check, group_overflow_check: agreeing on an fp16 step, in a block and between groups.
    rounding: stochastic rounding of a tile on one of four sub-cores, four random numbers a lane.
    launch, launch_bytes: a launch besides its steps, and bytes of weights and optimizer state that
        it loads and stores in a cycle.
    clock: cycles in a microsecond.

    What a launch takes is fitted to traced kernels, everything else to the times in
    results/forms.csv (docs/notes/persistent.md says how well).
    """

    gemm: float = 1.02
    gemm_begin: float = 10.7
    gradient: float = 1.93
    published: float = 2.53
    update_state: float = 87.3
    overlapped: float = 1.25
    exchange: float = 429.0
    second_exchange: float = 955.0
    exchange_bytes: float = 12.9
    via_l2: float = 977.0
    via_l2_block: float = 2.77
    via_l2_bytes: float = 42.8
    via_l2_sums: float = 9.33
    via_l2_rest: float = 0.997
    via_l2_step: float = 15.4
    softmax: float = 268.0
    softmax_rows: float = 0.941
    elementwise_round: float = 270.0
    convert: float = 252.0
    convert_round: float = 45.1
    all_reduce: float = 1670.0
    via_l2_all_reduce: float = 2200.0
    summed_bytes: float = 54.1
    sharded_bytes: float = 26.5
    state_bytes: float = 55.5
    bf16_summed: float = 0.762
    bf16: float = 2.48
    step: float = 92.3
    hidden_step: float = 635.0
    global_state: float = 21.3
    fetch: float = 598.0
    fetch_bytes: float = 16.0
    micro_batch: float = 1.30
    overflow_check: float = 900.0
    group_overflow_check: float = 1500.0
    rounding: float = 300.0
    launch: float = 20000.0
    launch_bytes: float = 8.00
    clock: float = 1760.0

    def __hash__(self) -> int:  # the search looks it up for each layer of each candidate
        return hash((self.clock, self.exchange))


RENAMED = {
    "product": "gemm",
    "product_begin": "gemm_begin",
    "second": "second_exchange",
    "far": "via_l2",
    "far_rank": "via_l2_block",
    "far_bytes": "via_l2_bytes",
    "far_parts": "via_l2_sums",
    "far_rest": "via_l2_rest",
    "far_step": "via_l2_step",
    "meeting": "all_reduce",
    "far_meeting": "via_l2_all_reduce",
    "shared_bytes": "sharded_bytes",
    "halves": "bf16",
    "while_meeting": "hidden_step",
    "far_tile": "global_state",
    "turn": "micro_batch",
    "decision": "overflow_check",
    "decision_between": "group_overflow_check",
    "draws": "rounding",
}
"""Constants in files of earlier versions, and what they are called now."""

FITTED = Costs()
FITTED_AT = 1980.0
"""MHz: the highest clock of the GPU that they were fitted to, an H200."""
LAUNCH = "launch"
LAUNCHED = 64
"""Steps that share what a launch takes, where nobody says how many there are."""


def costs_of(target: Target) -> Costs:
    """The constants of a GPU: those fitted to it (`tools/fit_costs.py --keep`), or else the
    H200's with this GPU's clock. Raises ConfigError for an unknown constant."""
    fitted = {RENAMED.get(name, name): value for name, value in target.costs.items()}
    known = {each.name for each in fields(Costs)}
    if unknown := sorted(set(fitted) - known):
        raise ConfigError(f"constants kept of {target.name}: none is called {', '.join(unknown)}; "
                          f"fit them anew")
    slower = {"clock": FITTED.clock * target.clock / FITTED_AT} if target.clock else {}
    return replace(FITTED, **(fitted or slower))


class CostModel:
    """What the phases of a sharding ask for their costs. `rest` is a factor of everything but
    exchanges."""

    def __init__(self, d: Sharding, costs: Costs, rest: float | None = None) -> None:
        self.d, self.p, self.costs = d, d.problem, costs
        self.exchanges_via_l2 = d.via_l2 and d.has_exchanges
        self.rest = rest or (costs.via_l2_rest if self.exchanges_via_l2 else 1.0)

    def cycles(self, phase: Phase) -> float:
        return sum(line.cycles for line in phase.cost(self))


# -- a step ----------------------------------------------------------------------------------------
def table(schedule: Schedule, costs: Costs = FITTED) -> list[tuple[Phase, Line]]:
    """The cycles of a step in program order, by phase and line. All micro-batches together."""
    d = schedule.sharding
    model = CostModel(d, costs)
    in_clusters = d.micro_batches > 1 and not d.via_l2
    repeated = d.micro_batches * (costs.micro_batch if in_clusters else 1.0)
    found: list[tuple[Phase, Line]] = []
    left = 0.0  # of the copies of the next input, that nothing has hidden yet
    for phases, times in ((schedule.micro_batch, repeated), (schedule.step, 1.0)):
        for phase in phases:
            left = phase.fetching(model) or left
            for line in phase.cost(model):
                waited = max(left, 0.0) if line.name == BETWEEN else 0.0
                left -= line.cycles
                found.append((phase, Line(line.name, times * (line.cycles + waited))))
    return found


def phases(d: Sharding, costs: Costs = FITTED) -> list[Line]:
    """The cost table of a step: a line for each name, and the step's share of a launch."""
    found: dict[str, float] = {}
    for _, line in table(build(d, barriers=False), costs):
        found[line.name] = found.get(line.name, 0.0) + line.cycles
    found[LAUNCH] = launch_cycles(d, costs) / LAUNCHED
    return [Line(name, cycles) for name, cycles in found.items()]


def cycles(d: Sharding, costs: Costs = FITTED) -> float:
    """What a step is expected to take."""
    return sum(line.cycles for line in phases(d, costs))


def microseconds(d: Sharding, costs: Costs = FITTED) -> float:
    """What a step is expected to take."""
    return cycles(d, costs) / costs.clock


def launch_cycles(d: Sharding, costs: Costs = FITTED) -> float:
    """What a launch takes besides its steps: a block loads and stores what it trains."""
    p = d.problem
    kept = 4 * (1 + len(p.states)) * sum(d.ins(i) * d.outs(i) for i in range(p.depth))
    return costs.launch + kept / costs.launch_bytes


def state_microseconds(found: Layout, costs: Costs = FITTED) -> float:
    """What optimizer state in global memory takes besides."""
    return found.global_tiles * costs.global_state / costs.clock


# -- a layer, for the search -----------------------------------------------------------------------
def layer_cycles(d: Sharding, layer: int, costs: Costs = FITTED) -> float:
    """What one layer adds to a step: its phases, the loss of the last layer, and its part of the
    gradient all-reduce.

    Unlike the table, the search applies `via_l2_rest` neither to the loss nor to the all-reduce,
    and to everything where a group via L2 exchanges nothing."""
    model = CostModel(d, costs)
    found = sum(model.cycles(phase) for phase in (
        *forward(d, layer), *(backward(d, layer) if layer else ()), weight_gradient(d, layer)))
    if d.dp_size > 1:
        tiles = d.gradient_tiles(layer)
        found += min(summed_by_all(model, tiles), summed_in_shares(model, tiles))
    if layer == d.problem.depth - 1:
        unscaled = CostModel(d, costs, rest=1.0)
        found += sum(unscaled.cycles(phase) for phase in loss(d))
    return found * costs.via_l2_rest if d.via_l2 and not d.has_exchanges else found


def layer_bytes(d: Sharding, layer: int) -> int:
    """About the bytes of shared memory that a layer takes of a block: weights, optimizer state,
    values and receive buffers."""
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
    received = 0
    if d.layer_kinds[layer] == ROW_PARALLEL:
        received = p.layers[layer + 1]
    elif d.layer_kinds[layer] == COLUMN_PARALLEL:
        received = p.layers[layer] if layer else 0
    if d.boundaries[layer + 1] == ALL_GATHERED:
        received = max(received, p.layers[layer + 1])
    received = 0 if d.via_l2 else received
    return 4 * (up(ins, 16) * (up(outs, 8) + 8) * states + values + 2 * received * d.sent)


def most_bytes(d: Sharding) -> int:
    """About the bytes of shared memory that a sharding takes."""
    if d.is_streamed:
        return 0  # the layout says it at once
    return sum(layer_bytes(d, layer) for layer in range(d.problem.depth))
