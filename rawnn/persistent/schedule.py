"""The training step of the persistent kernel as data: a list of phases in program order.

Every block of every group runs the same list. The cost model, the shared-memory layout, the
emitter, the tracer, `rawnn plan` and the interpreter of the tests walk it, so that it alone says
what a step does.

- A GEMM whose epilogue sends stands where it runs. An `Exchange` stands where its data is received.
  What lies between the two runs while the data is on its way.
- An `Epilogue` is what happens to finished sums in registers: bias, activation, loss, update.
- Phases name buffers of a block: `x` (inputs), `w1`, `b1` (weights, biases), `a1` (activations of
  boundary 1), `z1` (pre-activations, then their gradients), `logits`, `y` (labels or targets),
  `statistics` (of a softmax). They hold no addresses (layout.py) and no C++ (the emitters).

A new kind of phase is a dataclass here, a template in ptx/persistent/*.cuh that an emitter calls,
and a line in cost.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from rawnn.persistent.sharding import (
    ALL_GATHERED,
    COLUMN_PARALLEL,
    ROW_PARALLEL,
    TILE,
    WARP,
    Sharding,
    ceil,
)
from rawnn.persistent.tiles import Tiling, softmax_of, tiling

FORWARD, BACKWARD, GRADIENT = "forward", "backward", "gradient"
"""Kinds of GEMMs. GRADIENT is that of weights and biases."""
ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE = "all-gather", "reduce-scatter", "all-reduce"
IDENTITY, ACTIVATE, ACTIVATE_BACKWARD, LOSS = "identity", "activate", "activate_backward", "loss"
UPDATE, PUBLISH, ACCUMULATE = "update", "publish", "accumulate"
"""What becomes of a weight gradient: the optimizer step, a store for the other groups, or an
addition to what earlier micro-batches stored for them."""

INPUT, SOFTMAX, STATISTICS, OVERFLOW = "input", "softmax", "exchange of softmax", "overflow"
BETWEEN = "begin and end"
SUM_ALL, SUM_SHARES = "all clusters sum", "clusters sum and share"
"""Names of phases in cost tables and traces."""

ROWS_OF_A_WARP = 4
"""Rows of the next input that an idle warp fetches while the other warps run a GEMM."""


@dataclass(frozen=True)
class Phase:
    """A part of the step. `name` is its line in the cost table and in a trace; phases may share
    one."""

    name: str


@dataclass(frozen=True)
class Epilogue:
    """What happens to finished sums in registers.

    Adds the buffer `bias`, applies `function`, stores to the buffer `to`, and sends to the blocks
    of the group. ACTIVATE_BACKWARD reads `saved`; ACTIVATE writes it where the slope needs the
    input of the activation. With `own_rows` the block keeps its shard of the rows only.
    """

    function: str
    to: str = ""
    bias: str = ""
    saved: str = ""
    own_rows: bool = False
    send: Exchange | None = None


@dataclass(frozen=True)
class Gemm(Phase):
    """`m` x `n` sums over `k` of the buffers `left` and `right`, on the tensor cores of a block.

    layer: 0 .. depth - 1.
    conditional: it runs only if the step counts (fp16 without overflow).
    """

    kind: str
    layer: int
    left: str
    right: str
    m: int
    n: int
    k: int
    epilogue: Epilogue
    conditional: bool = False

    def tiling(self, d: Sharding) -> Tiling:
        """How the warps share it. The layout may choose another one for a GRADIENT."""
        return tiling(ceil(self.m, 16), ceil(self.n, 8), ceil(self.k, 8), d.warps,
                      d.problem.numbers, may_split=self.kind != GRADIENT)


@dataclass(frozen=True)
class Exchange(Phase):
    """The receiving end of an exchange in a tensor-parallel group. An earlier epilogue sends.

    kind: ALL_GATHER (each block gets the features of all), REDUCE_SCATTER (each block gets all
        partial sums of its shard and adds them) or ALL_REDUCE (each block gets all partial sums of
        all features and adds them: one-shot).
    boundary: 0 .. depth.
    features: of all blocks together.
    rows: rows of `Sharding.sent` floats in a receive buffer.
    parts: partial sums of each row; 1 of an all-gather.
    idle: the last blocks, which have no features of the boundary. They still take part: a block
        without data sends or receives flags, so that no block runs ahead of another.
    flags: single numbers behind the rows of a receive buffer.
    second: it follows the reduce-scatter of a two-shot all-reduce.
    scratch_busy: the sending GEMM may still read its scratch memory, which the reduction needs.
    """

    kind: str
    boundary: int
    features: int
    rows: int
    epilogue: Epilogue
    parts: int = 1
    idle: int = 0
    flags: int = 0
    second: bool = False
    scratch_busy: bool = False


@dataclass(frozen=True)
class Barrier(Phase):
    """The threads of a block wait for each other: what phases ahead wrote, phases behind read.
    `part` is what a trace calls the time since the last stamp; "" if there is no stamp."""

    part: str = "work"


@dataclass(frozen=True)
class ConvertInput(Phase):
    """Rows as the data set stores them become the operand `x` of layer 1."""


@dataclass(frozen=True)
class ClearInput(Phase):
    """A partial batch clears the rows of `x` that it has no examples for."""


@dataclass(frozen=True)
class Prefetch(Phase):
    """Threads from `first_thread` on start to copy the input of the next micro-batch."""

    first_thread: int = 0


@dataclass(frozen=True)
class LoadRate(Phase):
    """One thread reads the learning rate of the next step."""


@dataclass(frozen=True)
class Softmax(Phase):
    """Cross-entropy with labels: the gradient of `logits` goes to the buffer `to`.

    If warps or blocks share an example, a phase with `statistics` comes first: each finds the
    maximum and the sum of exponentials of its logits, and may send them.
    """

    logits: str
    to: str
    statistics: bool = False
    send: Exchange | None = None


@dataclass(frozen=True)
class StoreTallies(Phase):
    """Each thread stores what its elements contribute to a loss in an epilogue."""


@dataclass(frozen=True)
class SumLoss(Phase):
    """The last warp adds up what the examples of the step contribute to the loss."""


@dataclass(frozen=True)
class CheckOverflow(Phase):
    """fp16: a block knows whether its gradients overflowed, and may send that to its group."""

    send: Exchange | None = None


@dataclass(frozen=True)
class AgreeOnStep(Phase):
    """fp16: the step counts if no block of any group saw an overflow."""


@dataclass(frozen=True)
class AdjustLossScale(Phase):
    """fp16: one thread doubles or halves the loss scale."""


@dataclass(frozen=True)
class GradientAllReduce(Phase):
    """Sums the published gradients of all data-parallel groups via L2, in the order of the groups,
    and updates the weights: all `tiles` of a block, or if `sharded` the share of this group, whose
    changes it publishes."""

    tiles: int
    sharded: bool = False


@dataclass(frozen=True)
class WeightAllGather(Phase):
    """Adds the changes of weights that the other groups published."""

    tiles: int


@dataclass(frozen=True)
class WaitForInput(Phase):
    """The input of the next micro-batch is complete, and all threads of the block are here."""


@dataclass(frozen=True)
class Schedule:
    """The phases of a training step: `micro_batch` runs `sharding.micro_batches` times, then `step`
    runs once."""

    sharding: Sharding
    micro_batch: tuple[Phase, ...]
    step: tuple[Phase, ...]

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """Those of a micro-batch, in the order in which they are received."""
        return tuple(phase for phase in self.micro_batch if isinstance(phase, Exchange))

    @property
    def all_reduce(self) -> GradientAllReduce | None:
        """That of the gradients of several groups."""
        return next((phase for phase in self.step if isinstance(phase, GradientAllReduce)), None)


# -- the layers ------------------------------------------------------------------------------------
def forward(d: Sharding, layer: int) -> list[Phase]:
    """The forward pass of one layer: a GEMM, and the exchanges that complete its outputs."""
    p, n = d.problem, layer + 1
    to = f"a{n}" if n < p.depth else "logits" if separates_logits(d) else f"z{n}"
    function = ACTIVATE if n < p.depth else IDENTITY if p.labelled else LOSS
    last = Epilogue(function, to, f"b{n}" if p.bias else "",
                    f"z{n}" if p.saves_input and n < p.depth else "")

    def gemm(epilogue: Epilogue) -> Gemm:
        return Gemm(f"forward {n}", FORWARD, layer, f"w{n}", f"a{layer}" if layer else "x",
                    d.outs(layer), d.columns, d.ins(layer), epilogue)

    if d.layer_kinds[layer] == ROW_PARALLEL:
        return all_reduce(d, gemm, f"sum {n}", n, last)
    if d.boundaries[n] == ALL_GATHERED:  # the GEMM activates and sends, the exchange stores
        gather = Exchange(f"gather {n}", ALL_GATHER, n, p.layers[n], p.layers[n],
                          Epilogue(IDENTITY, to), idle=d.idle(n), flags=d.idle(n))
        sent = Epilogue(function, "", last.bias, last.saved, send=gather)
        return [gemm(sent), gather, Barrier(gather.name)]
    return [gemm(last), Barrier(f"forward {n}", "barrier")]


def backward(d: Sharding, layer: int) -> list[Phase]:
    """The gradient of the inputs of one layer (not the first)."""
    p, n, name = d.problem, layer + 1, f"sum of gradient {layer}"
    gathered = d.boundaries[layer] == ALL_GATHERED
    last = Epilogue(ACTIVATE_BACKWARD, f"z{layer}", own_rows=gathered,
                    saved=f"z{layer}" if p.saves_input else f"a{layer}")

    def gemm(epilogue: Epilogue) -> Gemm:
        return Gemm(f"backward {n}", BACKWARD, layer, f"w{n}", f"z{n}", d.ins(layer), d.columns,
                    d.outs(layer), epilogue)

    if d.layer_kinds[layer] != COLUMN_PARALLEL:
        return [gemm(last), Barrier(f"backward {n}", "barrier")]
    if gathered:
        scatter = Exchange(name, REDUCE_SCATTER, layer, p.layers[layer],
                           d.shards[layer] * d.tp_size, last, d.tp_size, d.idle(layer))
        return [*sending(d, gemm, scatter), Barrier(name)]
    return all_reduce(d, gemm, name, layer, last)


def weight_gradient(d: Sharding, layer: int) -> Gemm:
    """The gradient of a layer's weights and biases, updated or published in the epilogue."""
    n, published = layer + 1, PUBLISH if d.micro_batches == 1 else ACCUMULATE
    return Gemm(f"gradient {n}", GRADIENT, layer, f"a{layer}" if layer else "x", f"z{n}",
                d.ins(layer), d.outs(layer), d.columns,
                Epilogue(published) if d.dp_size > 1 else Epilogue(UPDATE, f"w{n}"),
                conditional=d.problem.scaled and d.dp_size == 1)


GemmOf = Callable[[Epilogue], Gemm]
"""A GEMM by its epilogue."""


def all_reduce(d: Sharding, gemm: GemmOf, name: str, boundary: int, last: Epilogue) -> list[Phase]:
    """A GEMM whose partial sums all blocks want in full: one-shot, or a reduce-scatter and an
    all-gather."""
    n = d.problem.layers[boundary]
    if d.is_one_shot(n):
        rows = n * d.tp_size
        one_shot = Exchange(name, ALL_REDUCE, boundary, rows, rows, last, d.tp_size)
        return [*sending(d, gemm, one_shot), Barrier(name)]
    gather = Exchange(name, ALL_GATHER, boundary, n, n, last, second=True)
    scatter = Exchange(name, REDUCE_SCATTER, boundary, n, ceil(n, d.tp_size) * d.tp_size,
                       Epilogue(IDENTITY, send=gather), d.tp_size)
    return [*sending(d, gemm, scatter), gather, Barrier(name)]


def sending(d: Sharding, gemm: GemmOf, exchange: Exchange) -> list[Phase]:
    """The GEMM, whose partial sums are sent, and the exchange that adds them up."""
    if d.via_l2 and d.teams(exchange.rows // d.tp_size) > 1:
        busy = gemm(Epilogue(IDENTITY)).tiling(d).split > 1
        exchange = replace(exchange, scratch_busy=busy)
    return [gemm(Epilogue(IDENTITY, send=exchange)), exchange]


def loss(d: Sharding) -> list[Phase]:
    """Softmax cross-entropy. Another loss is the epilogue of the last forward phase."""
    if not d.problem.labelled:
        return []
    depth = d.problem.depth
    end = Softmax(SOFTMAX, "logits" if separates_logits(d) else f"z{depth}", f"z{depth}")
    found: list[Phase] = [end, Barrier(SOFTMAX)]
    if d.shards_softmax:
        sums = Exchange(STATISTICS, ALL_GATHER, depth, 4 * d.tp_size, 4 * d.tp_size,
                        Epilogue(IDENTITY, "statistics"))
        return [replace(end, statistics=True, send=sums), sums, *found]
    if softmax_of(d).warps > 1:
        return [replace(end, statistics=True), Barrier(SOFTMAX, ""), *found]
    return found


def separates_logits(d: Sharding) -> bool:
    """Whether a softmax stores gradients elsewhere than where its logits lie: those of all blocks,
    or gradients in 16 bits."""
    return d.boundaries[-1] == ALL_GATHERED or (d.problem.labelled and d.problem.halved)


def stores_tallies(d: Sharding) -> bool:
    """Whether what each example contributes to the loss goes to global memory, and is added up
    behind the steps. With one group, no other phase hides `SumLoss`. Of many members, such a
    buffer would be as large as their orders of examples: they sum in each step. So do
    micro-batches, which members have in the same way."""
    return d.problem.labelled and d.dp_size == 1 and d.members is None and d.micro_batches == 1


# -- data parallelism ------------------------------------------------------------------------------
MOST_MORE, SUMMED_BYTES, STATE_BYTES = 1100.0, 53.0, 47.0
"""A sharded update publishes twice, which takes MOST_MORE cycles. If every group updates all, it
loads SUMMED_BYTES of gradients and updates STATE_BYTES of optimizer state in a cycle (ten networks
on an H200, trained in both ways). These are no costs that a GPU may keep of its own: the last bits
of a run depend on them, and a resumed run must go on as it began."""


def is_summed_by_all(dp_size: int, nbytes: int, states: int) -> bool:
    """Whether every group sums and updates all gradients, `nbytes` of a block, and not its share.
    `states` is the number of tensors that the optimizer keeps for each parameter."""
    others = (dp_size - 1) * nbytes
    return others / SUMMED_BYTES + states * others / dp_size / STATE_BYTES <= MOST_MORE


def data_parallel(d: Sharding) -> list[Phase]:
    """How the gradients of several groups become new weights."""
    if d.dp_size == 1:
        return []
    tiles = sum(d.gradient_tiles(layer) for layer in range(d.problem.depth))
    if is_summed_by_all(d.dp_size, tiles * TILE * d.published_bytes, len(d.problem.states)):
        return [GradientAllReduce(SUM_ALL, tiles)]
    return [GradientAllReduce(SUM_SHARES, tiles, sharded=True), WeightAllGather(SUM_SHARES, tiles)]


# -- the step --------------------------------------------------------------------------------------
def build(d: Sharding) -> Schedule:
    """The schedule of one training step."""
    p = d.problem
    if d.evaluates:
        return Schedule(d, evaluation(d), (WaitForInput(BETWEEN),))
    hides = d.dp_size > 1 and d.micro_batches == 1  # the all-reduce hides Prefetch and SumLoss
    head: list[Phase] = [phase for layer in range(p.depth) for phase in forward(d, layer)]
    head[-1:-1] = [StoreTallies(BETWEEN)] * (not p.labelled)
    head += [*[LoadRate(BETWEEN)] * p.scheduled, *loss(d)]
    micro_batch = [*prepare_input(d), *(head if hides else with_prefetch(d, head)),
                   *[SumLoss(BETWEEN)] * (not hides and not stores_tallies(d)),
                   *backward_pass(d)]
    reduce = data_parallel(d)
    if d.micro_batches > 1:
        ends = [*reduce, Barrier(BETWEEN, "next step")] if reduce else []
        return Schedule(d, (*micro_batch, WaitForInput(BETWEEN)), tuple(ends))
    if hides:
        reduce = [Prefetch(BETWEEN), *reduce[:-1], SumLoss(BETWEEN), *reduce[-1:]]
    return Schedule(d, tuple(micro_batch), (*reduce, *[AdjustLossScale(BETWEEN)] * p.scaled,
                                            WaitForInput(BETWEEN)))


def evaluation(d: Sharding) -> tuple[Phase, ...]:
    """The forward phases of a step, and its loss."""
    p = d.problem
    head: list[Phase] = [phase for layer in range(p.depth) for phase in forward(d, layer)]
    head[-1:-1] = [StoreTallies(BETWEEN)] * (not p.labelled)
    return (*prepare_input(d), *with_prefetch(d, [*head, *loss(d)]), SumLoss(BETWEEN))


def prepare_input(d: Sharding) -> list[Phase]:
    """What stands ahead of the first GEMM."""
    p = d.problem
    found: list[Phase] = [ConvertInput(INPUT), Barrier(INPUT)] if p.converted else []
    return [*found, *[ClearInput(INPUT)] * (p.partial and d.micro_batches == 1)]


def backward_pass(d: Sharding) -> list[Phase]:
    """Backward GEMMs from the last layer on, and weight gradients as soon as they can run.

    A weight is updated once its backward GEMM has read it: beside the backward GEMM of the layer
    below, while partial sums are on their way. With a loss scale and one group, no weight is
    updated before the group knows that the step counts."""
    p, late = d.problem, d.problem.scaled and d.dp_size == 1
    found: list[Phase] = []
    waiting: list[Phase] = []
    for layer in range(p.depth - 1, 0, -1):
        gemm, *exchanges = backward(d, layer)
        found += [gemm, *([] if late else waiting), *exchanges]
        waiting = [*(waiting if late else []), weight_gradient(d, layer)]
    waiting.append(weight_gradient(d, 0))
    if not p.scaled:
        return [*found, *waiting]
    flags = Exchange(OVERFLOW, ALL_GATHER, 0, 0, 0, Epilogue(IDENTITY), flags=d.tp_size)
    checked = CheckOverflow(OVERFLOW, flags if d.tp_size > 1 else None)
    agreed: list[Phase] = [*[flags] * (d.tp_size > 1), AgreeOnStep(OVERFLOW)]
    return [*found, checked, *(agreed + waiting if late else waiting + agreed)]


def with_prefetch(d: Sharding, head: list[Phase]) -> list[Phase]:
    """`head` with a Prefetch ahead of its first exchange, while other blocks are waited for.
    Without exchanges, by the warps that the first GEMM leaves idle, or behind that GEMM."""
    for i, phase in enumerate(head):
        if isinstance(phase, Exchange):
            return [*head[:i], Prefetch(BETWEEN), *head[i:]]
    first = head[0]
    assert isinstance(first, Gemm)
    idle = d.warps - first.tiling(d).tasks
    if idle * ROWS_OF_A_WARP >= d.columns:
        return [Prefetch(BETWEEN, d.threads - WARP * idle), *head]
    return [first, Prefetch(BETWEEN), *head[1:]]
