"""The search for the sharding of a network that is expected to be fastest on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import inf

from rawnn.persistent import cost
from rawnn.persistent.by_examples import sharding_by_examples
from rawnn.persistent.chip import Chip
from rawnn.persistent.layout import Layout, layout_of, least_bytes
from rawnn.persistent.problem import Problem, Unsupported
from rawnn.persistent.sharding import (
    ALL_GATHERED,
    DSMEM,
    L2,
    REPLICATED,
    SHARDED,
    Sharding,
    ceil,
    layer_kinds,
    output_boundaries,
    up,
)
from rawnn.persistent.streamed import LEAST_PEERS, MOST_PEERS, streamed_sharding
from rawnn.persistent.tiles import tiling

MOST_WARPS, LEAST_WARPS = 16, 8
PRICES = (0.0, 0.02, 0.1, 1.0)
"""Cycles that a byte of shared memory may cost. The search over boundaries runs once with each: the
higher the price, the less memory the boundaries take."""
DEEP = 64
"""Layers beyond which shardings that cannot fit are not considered, so that a deep network takes
little time. For other networks, the bytes that are missing are those of the nearest sharding."""
MICRO_BATCHES = (2, 3, 4, 6, 8)
"""Micro-batches of a group, the fewest first, where the whole batch does not fit. There is only one
with a loss scale: rows that a micro-batch leaves and the next does not fill may be infinite."""
MOST_COUNTS = 14
"""Numbers of data-parallel groups that the search tries."""
EVEN_GROUPS, MOST_EVEN_GROUPS = 6, 14
"""Groups up to which blocks that exchange via L2 use all multiprocessors evenly. More groups have
so few blocks each that a power of two comes close, unless shared memory is what bounds a step: then
sizes of up to MOST_EVEN_GROUPS groups are tried as well."""
COMPACT_MARGIN = 1.05
"""Of the expected time of a sharding whose buffers share memory: counted for the barriers that it
has more, and so that what is expected alike keeps the sharding that needs none of it. On an H200
18 steps took 0.84 to 1.09 of what is expected."""
FIX = "write persistent alone, and a cost model decides"


@dataclass(frozen=True)
class Choice:
    """A layout that fits the GPU, and the expected microseconds of a step with these `costs`."""

    layout: Layout
    us: float
    costs: cost.Costs = cost.FITTED

    @property
    def sharding(self) -> Sharding:
        return self.layout.sharding

    def launched(self, steps: int) -> Choice:
        """The same, where a launch has so many steps."""
        more = cost.launch_cycles(self.sharding, self.costs) / self.costs.clock
        return replace(self, us=self.us + more * (1 / steps - 1 / cost.LAUNCHED))


@cache
def choose(problem: Problem, chip: Chip, tp_size: int = 0, dp_size: int = 0) -> Choice:
    """The sharding with the least expected time, of `tp_size` x `dp_size` blocks where these are
    given. Raises Unsupported where nothing fits."""
    if dp_size:
        check_blocks(problem, chip, tp_size, dp_size, _groups(chip, tp_size)[0][0])
    best, least, ideal = _cheapest(chip, (
        *candidates(problem, chip, tp_size, dp_size),
        *streamed_candidates(problem, chip, tp_size, dp_size),
        *candidates_by_examples(problem, chip, tp_size, dp_size)))
    if not tp_size and problem.depth <= DEEP and (
            best is None or best.layout.schedule.is_compact or ideal * COMPACT_MARGIN < best.us):
        more, least_of_more, _ = _cheapest(
            chip, candidates(problem, chip, 0, dp_size, is_more=True))
        least = min(filter(None, (least, least_of_more)), default=0)
        if more and (best is None or more.us * COMPACT_MARGIN < best.us):
            best = more
    if best is None and not problem.scaled:
        best, *_ = _cheapest(chip, (
            _with_threads(replace(d, micro_batches=n)) for n in MICRO_BATCHES
            for d in candidates(problem, chip, tp_size, dp_size, n)
            if d.dp_size > 1 and d.group_batch >= n))
    if best is None:
        least = least or least_bytes(problem, max(size for _, size in _groups(chip, tp_size)))
        raise Unsupported(
            f"does not fit the chip (a block would need {least / 1024:.0f} KiB of shared memory or "
            f"more, and has {chip.shared / 1024:.0f} KiB on this GPU)",
            "leave persistent out, or take a smaller batch or network")
    return best


def check_blocks(problem: Problem, chip: Chip, tp_size: int, dp_size: int, transport: str) -> None:
    """Raises Unsupported where so many blocks are not co-resident, or a group has no example."""
    most = chip.most_groups(tp_size, transport)
    if dp_size > min(most, problem.batch):
        raise Unsupported(
            f"cannot be shared by {tp_size} x {dp_size} blocks: {most} "
            f"{'clusters' if transport == DSMEM else 'groups'} of {tp_size} run at once here, for "
            f"a batch of {problem.batch}", FIX)


def priced(layout: Layout, chip: Chip) -> Choice:
    """A layout with the time that is expected of it."""
    us = cost.microseconds(layout.sharding, chip.costs)
    return Choice(layout, us + cost.state_microseconds(layout, chip.costs), chip.costs)


def _cheapest(chip: Chip, tried: Iterable[Sharding]) -> tuple[Choice | None, int, float]:
    """The cheapest that fits; where none does, the bytes that a block would need at least; and the
    expected microseconds of the cheapest, whether it fits or not."""
    best: Choice | None = None
    least, counted, ideal = 0, inf, inf
    for d in tried:
        us = cost.microseconds(d, chip.costs)
        ideal = min(ideal, us)
        if best is not None and (us >= counted or cost.most_bytes(d) > 2 * chip.shared):
            continue
        if best is None and least and cost.most_bytes(d) > max(2 * chip.shared, least):
            continue
        found = layout_of(d, chip.shared)
        least = min(least or found.nbytes, found.nbytes)
        choice = Choice(found, us + cost.state_microseconds(found, chip.costs), chip.costs)
        margin = COMPACT_MARGIN if found.schedule.is_compact else 1.0
        if found.nbytes <= chip.shared and choice.us * margin < counted:
            best, counted = choice, choice.us * margin
    return best, least, ideal


def candidates(problem: Problem, chip: Chip, tp_size: int, dp_size: int,
                micro_batches: int = 1, is_more: bool = False) -> Iterator[Sharding]:
    """Shardings that may be cheapest, with one micro-batch each. Those of deep networks may fit
    with so many `micro_batches`. `is_more`: of the sizes of groups that are tried last."""
    for transport, tp in _more_groups(chip) if is_more else _groups(chip, tp_size):
        most = chip.most_groups(tp, transport)
        for dp in (dp_size,) if dp_size else _group_counts(problem.batch, most):
            if dp > most or dp > problem.batch:
                continue
            columns = up(ceil(ceil(problem.batch, dp), micro_batches), 8)
            if problem.depth > DEEP and least_bytes(
                    problem, tp, columns, dp > 1 and micro_batches == 1) > chip.shared:
                continue
            seen = set()
            for price in PRICES:
                found = _best_boundaries(problem, chip.costs, tp, dp, price, transport)
                if found and found not in seen:
                    seen.add(found)
                    yield _with_threads(Sharding(problem, tp, dp, MOST_WARPS * 32, found,
                                                 transport=transport))


def streamed_candidates(problem: Problem, chip: Chip, tp_size: int,
                        dp_size: int) -> Iterator[Sharding]:
    """The shardings whose operands stream, without clusters and in clusters of each size, where a
    kernel has them and all their blocks run at once."""
    for peers in (1, *range(LEAST_PEERS, MOST_PEERS + 1)):
        d = streamed_sharding(problem, peers)
        if d and d.tp_size <= peers * chip.most_clusters(peers) and tp_size in (0, d.tp_size) \
                and dp_size in (0, 1):
            yield d


def candidates_by_examples(problem: Problem, chip: Chip, tp_size: int,
                           dp_size: int) -> Iterator[Sharding]:
    """Shardings whose blocks split the examples, where a kernel has them."""
    for size in chip.sizes:
        d = sharding_by_examples(problem, size)
        if d and tp_size in (0, size) and dp_size in (0, 1):
            yield d


def _groups(chip: Chip, tp_size: int) -> list[tuple[str, int]]:
    """(transport, blocks) of the tensor-parallel groups to try: clusters of each size, and via L2
    powers of two and sizes that leave few multiprocessors idle."""
    if tp_size:
        return [(DSMEM if tp_size in chip.sizes else L2, tp_size)]
    least = max(chip.sizes, default=1) // 2 if len(chip.sizes) > 1 else 2
    via_l2 = {chip.blocks // groups for groups in range(1, EVEN_GROUPS + 1)}
    via_l2 |= {2**n for n in range(1, chip.blocks.bit_length())}
    return [*((DSMEM, size) for size in chip.sizes),
            *((L2, size) for size in sorted(via_l2) if least <= size <= chip.blocks)]


def _more_groups(chip: Chip) -> list[tuple[str, int]]:
    """The sizes via L2 that are tried where shared memory bounds a step."""
    tried = {size for _, size in _groups(chip, 0)} | {1}
    sizes = {chip.blocks // groups for groups in range(EVEN_GROUPS + 1, MOST_EVEN_GROUPS + 1)}
    return [(L2, size) for size in sorted(sizes - tried)]


def _group_counts(batch: int, most: int) -> list[int]:
    """Numbers of data-parallel groups to try: for each size of a share of the batch, in eights, the
    fewest; MOST_COUNTS of them where there are more."""
    found: dict[int, int] = {}
    for groups in range(1, min(most, batch) + 1):
        found.setdefault(up(ceil(batch, groups), 8), groups)
    counts = sorted(found.values())
    if len(counts) <= MOST_COUNTS:
        return counts
    step = (len(counts) - 1) / (MOST_COUNTS - 1)
    return sorted({counts[round(i * step)] for i in range(MOST_COUNTS)})


def _best_boundaries(problem: Problem, costs: cost.Costs, tp_size: int, dp_size: int, price: float,
                     transport: str = DSMEM) -> str:
    """The boundaries with the least expected cycles, where a byte of shared memory costs `price`
    cycles. It is a shortest path, as the cost of a layer depends on the boundaries at its ends."""
    depth = problem.depth
    if tp_size == 1:
        return REPLICATED * (depth + 1)
    last = output_boundaries(problem)
    layers = _layers(problem, costs, tp_size, dp_size, transport)
    paths: dict[str, tuple[float, str]] = {REPLICATED: (0.0, REPLICATED), SHARDED: (0.0, SHARDED)}
    for layer in range(depth):
        longer: dict[str, tuple[float, str]] = {}
        for above in last if layer == depth - 1 else REPLICATED + SHARDED + ALL_GATHERED:
            for below, (so_far, path) in paths.items():
                if (below, above) in _UNSUPPORTED or (
                        problem.reconstruct and layer == depth - 1 and path[0] == SHARDED
                        and above != SHARDED):
                    continue
                cycles, nbytes = layers(layer, below, above)
                total = so_far + cycles + price * nbytes
                if above not in longer or total < longer[above][0]:
                    longer[above] = (total, path + above)
        paths = longer
    return min(paths.values(), default=(0.0, ""))[1]


_UNSUPPORTED = {(below, above) for below in REPLICATED + SHARDED + ALL_GATHERED
                for above in REPLICATED + SHARDED + ALL_GATHERED
                if layer_kinds(below + above) is None}


@cache
def _layers(problem: Problem, costs: cost.Costs, tp_size: int, dp_size: int,
            transport: str) -> Callable[[int, str, str], tuple[float, int]]:
    """Cycles and bytes of one layer, by its number and the boundaries at its ends.

    The layer is priced among the two layers below it and the one above it, on which its cost may
    depend. So the time of the search does not grow with the depth, and equal layers are priced
    once."""
    depth = problem.depth
    known: dict[tuple[tuple[int, ...], int, str, str], tuple[float, int]] = {}
    problems: dict[tuple[int, ...], Problem] = {}

    def of(layer: int, below: str, above: str) -> tuple[float, int]:
        # If inputs are the targets, the last boundary has the shards of the first.
        whole = problem.reconstruct and layer == depth - 1
        first = 0 if whole else max(layer - 2, 0)
        sizes = problem.layers[first:layer + 3]
        key = sizes, layer - first, below, above
        if key not in known:
            boundaries = REPLICATED * (layer - first) + below + above \
                + REPLICATED * (len(sizes) - 2 - layer + first)
            if sizes not in problems:
                problems[sizes] = replace(problem, layers=sizes)
            known[key] = _layer(Sharding(problems[sizes], tp_size, dp_size, MOST_WARPS * 32,
                                         boundaries, transport=transport), layer - first, costs)
        return known[key]

    return of


def _layer(d: Sharding, layer: int, costs: cost.Costs) -> tuple[float, int]:
    """Cycles and bytes of one layer of a sharding."""
    return cost.layer_cycles(d, layer, costs), cost.layer_bytes(d, layer)


def _with_threads(d: Sharding) -> Sharding:
    """The sharding with as many warps as the largest phase has tasks. The weight gradients of the
    first two layers run as one phase."""
    most = sum(d.gradient_tiles(layer) for layer in range(d.problem.depth)[:2])
    for layer in range(d.problem.depth):
        ins, outs = d.ins(layer), d.outs(layer)
        forward = tiling(ceil(outs, 16), d.columns // 8, ceil(ins, 8), d.warps, d.problem.numbers)
        most = max(most, forward.tasks)
    warps = min(max(up(most, 4), LEAST_WARPS), MOST_WARPS)
    return replace(d, threads=32 * warps)
