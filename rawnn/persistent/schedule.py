"""The training step of the persistent kernel as data: a list of phases in program order.

Every block of every group runs the same list. The cost model, the shared-memory layout, the
emitter, the tracer, `rawnn plan` and the interpreter walk it, so that it alone says what a step
does.

- A GEMM whose epilogue sends stands where it runs. An `Exchange` stands where its data is received.
  What lies between the two runs while the data is on its way.
- Barriers of a block are not written down: `with_barriers` puts one between two phases if they read
  and write the same buffer.
- phases/ has the kinds of phases. Here each enters the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from rawnn.persistent.by_examples import first_free_warp
from rawnn.persistent.phases.by_examples import (
    SCATTER_EXAMPLES,
    ConvertAhead,
    FetchAhead,
    ForwardOfBytes,
    GatherGradients,
    OwnSoftmax,
    UpdateOfBytes,
    WaitForInputs,
)
from rawnn.persistent.phases.epilogue import (
    ACCUMULATE,
    ACTIVATE,
    ACTIVATE_BACKWARD,
    IDENTITY,
    LOSS,
    PUBLISH,
    UPDATE,
    Epilogue,
)
from rawnn.persistent.phases.exchange import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, Exchange
from rawnn.persistent.phases.gemm import BACKWARD, FORWARD, GRADIENT, Gemm
from rawnn.persistent.phases.gradient_all_reduce import (
    SUM_ALL,
    SUM_SHARES,
    GradientAllReduce,
    WeightAllGather,
)
from rawnn.persistent.phases.input import INPUT, ClearInput, ConvertInput, Prefetch, WaitForInput
from rawnn.persistent.phases.learning_rate import LoadRate
from rawnn.persistent.phases.loss import StoreTallies, SumLoss
from rawnn.persistent.phases.overflow import (
    OVERFLOW,
    AdjustLossScale,
    AgreeOnStep,
    CheckOverflow,
    FlagExchange,
)
from rawnn.persistent.phases.phase import BETWEEN, Barrier, Phase
from rawnn.persistent.phases.softmax import SOFTMAX, STATISTICS, Softmax, StatisticsExchange
from rawnn.persistent.phases.streamed import (
    Backward,
    FirstForward,
    Forward,
    Last,
    ReceiveWeights,
    Streamed,
    UpdateFirst,
)
from rawnn.persistent.phases.weight_gradient import WeightGradient
from rawnn.persistent.sharding import (
    ALL_GATHERED,
    COLUMN_PARALLEL,
    ROW_PARALLEL,
    TILE,
    WARP,
    Sharding,
    ceil,
)
from rawnn.persistent.tiles import softmax_of

ROWS_OF_A_WARP = 4
"""Rows of the next input that an idle warp fetches while the other warps run a GEMM."""


@dataclass(frozen=True)
class Schedule:
    """The phases of a training step: `micro_batch` runs `sharding.micro_batches` times, then `step`
    runs once. `aliases`: buffers that lie in the memory of another one, and that one.
    `input_buffers`: micro-batches of inputs and targets that lie in shared memory at once."""

    sharding: Sharding
    micro_batch: tuple[Phase, ...]
    step: tuple[Phase, ...]
    aliases: Mapping[str, str] = field(default_factory=dict, hash=False)
    input_buffers: int = 2

    @property
    def is_compact(self) -> bool:
        return bool(self.aliases) or self.input_buffers == 1

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Each phase of the two lists once."""
        return (*self.micro_batch, *self.step)

    @property
    def gemms(self) -> tuple[Gemm, ...]:
        return tuple(phase for phase in self.micro_batch if isinstance(phase, Gemm))

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """Those of a micro-batch, in the order in which they are received."""
        return tuple(phase for phase in self.micro_batch if isinstance(phase, Exchange))

    @property
    def prefetch(self) -> Prefetch:
        return next(phase for phase in self.phases if isinstance(phase, Prefetch))

    @property
    def all_reduce(self) -> GradientAllReduce | None:
        """That of the gradients of several groups."""
        return next((phase for phase in self.step if isinstance(phase, GradientAllReduce)), None)


# -- the layers ------------------------------------------------------------------------------------
def forward(d: Sharding, layer: int) -> list[Phase]:
    """The forward pass of one layer: a GEMM, and the exchanges that complete its outputs."""
    p, n = d.problem, layer + 1
    to = f"a{n}" if n < p.depth else "logits" if d.separates_logits else f"z{n}"
    function = ACTIVATE if n < p.depth else IDENTITY if p.labelled else LOSS
    last = Epilogue(function, to, f"b{n}" if p.bias else "",
                    f"z{n}" if p.saves_input and n < p.depth else "")

    def gemm(epilogue: Epilogue) -> Gemm:
        return Gemm(f"forward {n}", FORWARD, layer, f"w{n}", f"a{layer}" if layer else "x",
                    d.outs(layer), d.columns, d.ins(layer), epilogue)

    if d.layer_kinds[layer] == ROW_PARALLEL:
        return all_reduce(d, gemm, f"sum {n}", n, last)
    if d.boundaries[n] == ALL_GATHERED:  # the GEMM activates and sends, the exchange stores
        gather = Exchange(f"gather {n}", kind=ALL_GATHER, boundary=n, features=p.layers[n],
                          rows=p.layers[n], epilogue=Epilogue(IDENTITY, to), idle=d.idle(n),
                          flags=d.idle(n))
        sent = Epilogue(function, "", last.bias, last.saved, send=gather)
        return [gemm(sent), gather]
    return [gemm(last)]


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
        return [gemm(last)]
    if gathered:
        scatter = Exchange(name, kind=REDUCE_SCATTER, boundary=layer, features=p.layers[layer],
                           rows=d.shards[layer] * d.tp_size, epilogue=last, parts=d.tp_size,
                           idle=d.idle(layer))
        return sending(d, gemm, scatter)
    return all_reduce(d, gemm, name, layer, last)


def weight_gradient(d: Sharding, layer: int) -> WeightGradient:
    """The gradient of a layer's weights and biases, updated or published in the epilogue."""
    if d.splits_examples:
        return next(phase for phase in by_examples(d) if isinstance(phase, WeightGradient))
    n, published = layer + 1, PUBLISH if d.micro_batches == 1 else ACCUMULATE
    return WeightGradient(f"gradient {n}", GRADIENT, layer, f"a{layer}" if layer else "x",
                          f"z{n}", d.ins(layer), d.outs(layer), d.columns,
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
        one_shot = Exchange(name, kind=ALL_REDUCE, boundary=boundary, features=rows, rows=rows,
                            epilogue=last, parts=d.tp_size)
        return sending(d, gemm, one_shot)
    # Blocks that no row is left for need no flags: owners wait for the partial sums of all blocks,
    # and all blocks for the sums of all owners.
    gather = Exchange(name, kind=ALL_GATHER, boundary=boundary, features=n, rows=n, epilogue=last,
                      second=True)
    scatter = Exchange(name, kind=REDUCE_SCATTER, boundary=boundary, features=n,
                       rows=ceil(n, d.tp_size) * d.tp_size,
                       epilogue=Epilogue(IDENTITY, send=gather), parts=d.tp_size)
    return [*sending(d, gemm, scatter), gather]


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
    end = Softmax(SOFTMAX, "logits" if d.separates_logits else f"z{depth}", f"z{depth}")
    if d.shards_softmax:
        sums = StatisticsExchange(STATISTICS, kind=ALL_GATHER, boundary=depth,
                                  features=4 * d.tp_size, rows=4 * d.tp_size,
                                  epilogue=Epilogue(IDENTITY, "statistics"))
        return [replace(end, statistics=True, send=sums), sums, end]
    if softmax_of(d).warps > 1:
        return [replace(end, statistics=True), end]
    return [end]


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


def streamed(d: Sharding) -> list[Streamed]:
    """The step of a sharding whose operands stream. It has barriers within its phases."""
    depth = d.problem.depth
    return [FirstForward("forward 1"), ReceiveWeights("receive weights"),
            *(Forward(f"forward {n}", n - 1) for n in range(2, depth)),
            Last(f"forward {depth}", depth - 1),
            *(Backward(f"backward {n}", n - 1) for n in range(depth - 2, 1, -1)),
            UpdateFirst("gradient 1")]


def by_examples(d: Sharding) -> list[Phase]:
    """The step of one layer whose blocks split the examples of the softmax. What stands between the
    forward GEMM and the softmax is for warps that have neither."""
    bias, free = "b1" if d.problem.bias else "", WARP * first_free_warp(d)
    n = d.problem.outputs
    gather = GatherGradients("gather gradients", kind=ALL_GATHER, boundary=1, features=n,
                             rows=4 * ceil(n, 4), epilogue=Epilogue(IDENTITY, "z1"))
    own = OwnSoftmax(SOFTMAX, kind=SCATTER_EXAMPLES, boundary=1, features=n, rows=n,
                     parts=d.tp_size, epilogue=Epilogue(IDENTITY, bias=bias, send=gather))
    forward = ForwardOfBytes("forward 1", FORWARD, 0, "w1", "x", n, d.columns, d.ins(0),
                             Epilogue(IDENTITY, send=own))
    update = UpdateOfBytes("gradient 1", GRADIENT, 0, "x", "z1", d.ins(0), d.outs(0), d.columns,
                           Epilogue(UPDATE, "w1"))
    return [forward, *[LoadRate(BETWEEN)] * d.problem.scheduled, ConvertAhead(INPUT, free),
            FetchAhead(BETWEEN, free), own, gather, update]


# -- the step --------------------------------------------------------------------------------------
def build(d: Sharding, *, barriers: bool = True, compact: bool = False) -> Schedule:
    """The schedule of one training step; of a kernel that evaluates, its forward phases. The cost
    model leaves `barriers` out, which cost nothing, so that the search is fast. A `compact` one
    needs less shared memory and a few more barriers (`aliases_of`, `fetches_late`)."""
    if d.is_streamed:
        return Schedule(d, tuple(streamed(d)), ())
    if d.splits_examples:
        step = by_examples(d)
        return Schedule(d, tuple(with_barriers(d, step) if barriers else step),
                        (WaitForInputs(BETWEEN),))
    p, aliases = d.problem, aliases_of(d) if compact else {}
    hides = fetches_late(d)  # the all-reduce hides Prefetch and SumLoss
    input_buffers = 1 if compact and hides else 2
    late = [Prefetch(BETWEEN, overwrites=input_buffers == 1)] * hides
    head: list[Phase] = [phase for layer in range(p.depth) for phase in forward(d, layer)]
    head += [*[StoreTallies(BETWEEN)] * (not p.labelled), *[LoadRate(BETWEEN)] * p.scheduled,
             *loss(d)]
    micro_batch = [*[ConvertInput(INPUT)] * p.converted,
                   *[ClearInput(INPUT)] * (p.partial and d.micro_batches == 1),
                   *(head if hides else with_prefetch(d, head)),
                   *[SumLoss(BETWEEN)] * (not hides and not d.stores_tallies),
                   *(() if d.evaluates else backward_pass(d, compact=bool(aliases)))]
    if barriers:  # also ahead of a late Prefetch
        micro_batch = with_barriers(d, [*micro_batch, *late], aliases)
        micro_batch = micro_batch[:len(micro_batch) - len(late)]
    reduce = data_parallel(d)
    if d.micro_batches > 1:
        ends = [*reduce, Barrier(BETWEEN, "next step")] if reduce else []
        return Schedule(d, (*micro_batch, WaitForInput(BETWEEN)), tuple(ends), aliases)
    if hides:
        reduce = [*late, *reduce[:-1], SumLoss(BETWEEN), *reduce[-1:]]
    return Schedule(d, tuple(micro_batch), (*reduce, *[AdjustLossScale(BETWEEN)] * p.scaled,
                                            WaitForInput(BETWEEN)), aliases, input_buffers)


def can_be_compact(d: Sharding) -> bool:
    """Whether `build` has a `compact` schedule that differs from the ordinary one."""
    return bool(aliases_of(d)) or fetches_late(d)


def fetches_late(d: Sharding) -> bool:
    """Whether the inputs of the next step are fetched behind the last use of those of this one, so
    that they can lie in the same place: while groups wait for each other's gradients."""
    return d.dp_size > 1 and d.micro_batches == 1


def aliases_of(d: Sharding) -> dict[str, str]:
    """The gradients that can lie where activations do, once the gradient of the weights behind
    these has been computed.

    Of several groups, which update no weights before the backward pass has read them: where the
    activations of the same boundary do, if both have the same rows and columns. What the backward
    pass leaves out must be zero, and an exchange leaves out columns of padding that a GEMM stores.
    Of blocks that may share a multiprocessor: where the activations of the layer above lie, if
    neither writes into rows of padding of the other, which must stay zero."""
    p = d.problem
    if d.evaluates or p.scaled or p.saves_input:
        return {}
    if d.resident and d.tp_size == 1:
        return {f"z{n}": f"a{n + 1}" for n in range(1, p.depth - 1)
                if has_clean_padding(p.layers[n], p.layers[n + 1])}
    if not fetches_late(d):
        return {}
    kinds = d.layer_kinds
    return {f"z{n}": f"a{n}" for n in range(1, p.depth) if d.boundaries[n] != ALL_GATHERED
            and (d.sent == d.columns or kinds[n - 1] == ROW_PARALLEL
                 or kinds[n] != COLUMN_PARALLEL)}


def has_clean_padding(gradients: int, activations: int) -> bool:
    """Whether gradients of so many rows, padded to whole eights, and activations of so many, padded
    to whole sixteens, can lie in the same place: the rows of padding of one are no rows of the
    other."""
    if gradients < activations:
        return gradients % 8 == 0
    return gradients == activations or activations % 16 == 0


def backward_pass(d: Sharding, *, compact: bool = False) -> list[Phase]:
    """Backward GEMMs from the last layer on, and weight gradients as soon as they can run.

    A weight is updated once its backward GEMM has read it: beside the backward GEMM of the layer
    below, while partial sums are on their way; or ahead of that GEMM if it is to be `compact`. With
    a loss scale and one group, no weight is updated before the group knows that the step counts.
    A `compact` one of several groups computes the gradient of a layer's weights ahead of what
    overwrites the layer's inputs, while the partial sums of these are on their way."""
    p, late = d.problem, d.problem.scaled and d.dp_size == 1
    found: list[Phase] = []
    waiting: list[Phase] = []
    for layer in range(p.depth - 1, 0, -1):
        gemm, *exchanges = backward(d, layer)
        if compact and d.dp_size > 1:
            gradient = weight_gradient(d, layer)
            found += [gemm, gradient, *exchanges] if exchanges else [gradient, gemm]
            continue
        if compact:
            found += [*waiting, gemm]
        else:
            found += [gemm, *([] if late else waiting), *exchanges]
        waiting = [*(waiting if late else []), weight_gradient(d, layer)]
    waiting.append(weight_gradient(d, 0))
    if not p.scaled:
        return [*found, *waiting]
    flags = FlagExchange(OVERFLOW, kind=ALL_GATHER, boundary=0, features=0, rows=0,
                         epilogue=Epilogue(IDENTITY), flags=d.tp_size)
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


# -- barriers --------------------------------------------------------------------------------------
def with_barriers(d: Sharding, phases: Iterable[Phase],
                  aliases: Mapping[str, str] | None = None) -> list[Phase]:
    """The phases with a barrier ahead of each that must wait for an earlier one: if one of the two
    writes a buffer that the other one reads or writes, and there is no barrier between them.
    Buffers of `aliases` lie in other ones."""
    same = aliases or {}
    found: list[Phase] = []
    begin = 0  # behind the last barrier
    read: set[str] = set()  # since then
    written: set[str] = set()
    for phase in phases:
        reads, writes = ({same.get(name, name) for name in names}
                         for names in (phase.reads(d), phase.writes(d)))
        conflict = (written & reads) | (writes & (written | read))
        if conflict - phase.unshared(found[begin:]):
            at = len(found)
            while found[at - 1].runs_beside_next:
                at -= 1
            found.insert(at, barrier_behind(found[begin:at]))
            begin, read, written = at + 1, set(), set()
        found.append(phase)
        read |= reads
        written |= writes
    return found


def barrier_behind(phases: list[Phase]) -> Barrier:
    """A barrier has the name of the phase that it ends: of the last one if no phase claims it, as
    with a weight gradient between two barriers."""
    claimed = (Barrier(phase.name, part) for phase in reversed(phases)
               if (part := phase.part_at_barrier) is not None)
    return next(claimed, Barrier(phases[-1].name, "barrier"))
