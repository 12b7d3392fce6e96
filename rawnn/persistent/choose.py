"""Which decomposition of a network is expected to be fastest on a chip."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from rawnn.persistent import cost
from rawnn.persistent.chip import Chip
from rawnn.persistent.decompose import (
    CLUSTER,
    FULL,
    GATHERED,
    L2,
    SLICED,
    Decomposition,
    ceil,
    kinds,
    last_types,
    up,
)
from rawnn.persistent.layout import Layout, layout_of, least_bytes
from rawnn.persistent.problem import Problem, Unsupported
from rawnn.persistent.tiles import tiling

MOST_WARPS, LEAST_WARPS = 16, 8
PRICES = (0.0, 0.02, 0.1, 1.0)
"""Cycles that a byte of shared memory may cost, by turns: the dearer, the less memory the types
found take."""
DEEP = 64
"""Layers beyond which forms that cannot fit are not looked at, so that a deep network takes little
time; of others what is said to be lacking is what the nearest form lacks."""
TURNS = (2, 3, 4, 6, 8)
"""Micro-batches of a group, the fewest first, where the whole batch does not fit. With a loss
scale there is but one: what a turn leaves in rows that the next does not fill may be infinite."""


@dataclass(frozen=True)
class Choice:
    """A decomposition that fits the chip, and the microseconds a step that are expected of it by
    what cycles cost there."""

    layout: Layout
    us: float
    costs: cost.Costs = cost.FITTED

    @property
    def decomposition(self) -> Decomposition:
        return self.layout.decomposition

    def launched(self, steps: int) -> Choice:
        """The same, where a launch has so many steps."""
        more = cost.launch_cycles(self.decomposition, self.costs) / self.costs.clock
        return replace(self, us=self.us + more * (1 / steps - 1 / cost.LAUNCHED))


@cache
def choose(problem: Problem, chip: Chip, ranks: int = 0, groups: int = 0) -> Choice:
    """The decomposition with the least expected time; of `ranks` x `groups` blocks where these are
    given, through L2 only where there are no clusters of so many. Raises Unsupported where nothing
    fits."""
    if groups:
        check_blocks(problem, chip, ranks, groups, _ways(chip, ranks)[0][0])
    best, least = _cheapest(chip, _candidates(problem, chip, ranks, groups))
    if best is None and not problem.scaled:
        best, _ = _cheapest(chip, (_with_threads(replace(d, turns=turns)) for turns in TURNS
                                   for d in _candidates(problem, chip, ranks, groups, turns)
                                   if d.groups > 1 and d.share >= turns))
    if best is None:
        least = least or least_bytes(problem, max(r for _, r in _ways(chip, ranks)))
        raise Unsupported(
            f"does not fit the chip (a block would need {least / 1024:.0f} KiB of shared memory or "
            f"more, and has {chip.shared / 1024:.0f} KiB on this GPU)",
            "leave persistent out, or take a smaller batch or network")
    return best


def check_blocks(problem: Problem, chip: Chip, ranks: int, groups: int, exchange: str) -> None:
    """Raises Unsupported where so many blocks do not run at once, or have no example each."""
    most = chip.most_groups(ranks, exchange)
    if groups > min(most, problem.batch):
        raise Unsupported(
            f"cannot be shared by {ranks} x {groups} blocks: {most} "
            f"{'clusters' if exchange == CLUSTER else 'groups'} of {ranks} run at once here, for a "
            f"batch of {problem.batch}", CURE)


CURE = "write persistent alone, and a cost model decides"


def _cheapest(chip: Chip, candidates: Iterable[Decomposition]) -> tuple[Choice | None, int]:
    """The cheapest that fits; and where none does, the bytes that a block would need at least."""
    best: Choice | None = None
    least = 0
    for d in candidates:
        us = cost.microseconds(d, chip.costs)
        if best is not None and (us >= best.us or cost.most_bytes(d) > 2 * chip.shared):
            continue
        if best is None and least and cost.most_bytes(d) > max(2 * chip.shared, least):
            continue
        found = layout_of(d, chip.shared)
        least = min(least or found.nbytes, found.nbytes)
        choice = Choice(found, us + cost.state_microseconds(found, chip.costs), chip.costs)
        if found.nbytes <= chip.shared and (best is None or choice.us < best.us):
            best = choice
    return best, least


def _candidates(problem: Problem, chip: Chip, ranks: int, groups: int,
                turns: int = 1) -> Iterator[Decomposition]:
    """What may be cheapest, one turn of it; of deep networks what may fit in so many turns."""
    for exchange, r in _ways(chip, ranks):
        most = chip.most_groups(r, exchange)
        for g in (groups,) if groups else _group_counts(problem.batch, most):
            if g > most or g > problem.batch:
                continue
            columns = up(ceil(ceil(problem.batch, g), turns), 8)
            if problem.depth > DEEP and least_bytes(problem, r, columns) > chip.shared:
                continue
            seen = set()
            for price in PRICES:
                types = _best_types(problem, chip.costs, r, g, price, exchange)
                if types and types not in seen:
                    seen.add(types)
                    yield _with_threads(Decomposition(problem, r, g, MOST_WARPS * 32, types,
                                                      exchange=exchange))


def _ways(chip: Chip, ranks: int) -> list[tuple[str, int]]:
    """How many blocks may share the widths, and where they exchange: clusters of each size, and
    through L2 powers of two and what leaves few multiprocessors idle."""
    if ranks:
        return [(CLUSTER if ranks in chip.sizes else L2, ranks)]
    least = max(chip.sizes, default=1) // 2 if len(chip.sizes) > 1 else 2
    far = {chip.blocks // groups for groups in range(1, MOST_FAR_GROUPS + 1)}
    far |= {2**n for n in range(1, chip.blocks.bit_length())}
    return [*((CLUSTER, r) for r in chip.sizes),
            *((L2, r) for r in sorted(far) if least <= r <= chip.blocks)]


MOST_FAR_GROUPS = 6
"""Groups up to which all multiprocessors are shared evenly; more have so few blocks each that a
power of two comes close."""



def _group_counts(batch: int, most: int) -> list[int]:
    """Numbers of clusters worth trying: for each size of a share, in eights, the fewest, and of
    many sizes some dozen."""
    found: dict[int, int] = {}
    for groups in range(1, min(most, batch) + 1):
        found.setdefault(up(ceil(batch, groups), 8), groups)
    counts = sorted(found.values())
    if len(counts) <= MOST_COUNTS:
        return counts
    step = (len(counts) - 1) / (MOST_COUNTS - 1)
    return sorted({counts[round(i * step)] for i in range(MOST_COUNTS)})


MOST_COUNTS = 14


def _best_types(problem: Problem, costs: cost.Costs, ranks: int, groups: int, price: float,
                exchange: str = CLUSTER) -> str:
    """The types of the boundaries with the least expected cycles, a byte of shared memory counted
    as `price` cycles: a shortest path, as what a layer takes depends on the types at its ends."""
    depth = problem.depth
    if ranks == 1:
        return FULL * (depth + 1)
    last = last_types(problem)
    layers = _layers(problem, costs, ranks, groups, exchange)
    paths: dict[str, tuple[float, str]] = {FULL: (0.0, FULL), SLICED: (0.0, SLICED)}
    for layer in range(depth):
        longer: dict[str, tuple[float, str]] = {}
        for above in last if layer == depth - 1 else FULL + SLICED + GATHERED:
            for below, (so_far, path) in paths.items():
                if (below, above) in _IMPOSSIBLE or (
                        problem.reconstruct and layer == depth - 1 and path[0] == SLICED
                        and above != SLICED):
                    continue
                cycles, nbytes = layers(layer, below, above)
                total = so_far + cycles + price * nbytes
                if above not in longer or total < longer[above][0]:
                    longer[above] = (total, path + above)
        paths = longer
    return min(paths.values(), default=(0.0, ""))[1]


_IMPOSSIBLE = {(below, above) for below in FULL + SLICED + GATHERED
               for above in FULL + SLICED + GATHERED if kinds(below + above) is None}


@cache
def _layers(problem: Problem, costs: cost.Costs, ranks: int, groups: int,
            exchange: str) -> Callable[[int, str, str], tuple[float, int]]:
    """Cycles and bytes of one layer between boundaries of two types, by its number and the types.

    They follow from what lies next to the layer: it is looked at among two layers ahead of it and
    one behind it, so that a deep network takes no longer for each, and equal layers are one."""
    depth = problem.depth
    known: dict[tuple[tuple[int, ...], int, str, str], tuple[float, int]] = {}

    def of(layer: int, below: str, above: str) -> tuple[float, int]:
        # The last layer's answers are cut as the first one's inputs, where they are the same.
        whole = problem.reconstruct and layer == depth - 1
        first = 0 if whole else max(layer - 2, 0)
        sizes = problem.layers[first:layer + 3]
        key = sizes, layer - first, below, above
        if key not in known:
            known[key] = _layer(Decomposition(
                replace(problem, layers=sizes), ranks, groups, MOST_WARPS * 32,
                FULL * (layer - first) + below + above + FULL * (len(sizes) - 2 - layer + first),
                exchange=exchange), layer - first, costs)
        return known[key]

    return of


def _layer(d: Decomposition, layer: int, costs: cost.Costs) -> tuple[float, int]:
    """Cycles and bytes of one layer of a decomposition."""
    found = cost.layer_cycles(d, layer, costs)
    if layer == d.problem.depth - 1:
        found += sum(phase.cycles for phase in cost.loss_phases(d, costs))
    if d.far and not d.messages:
        found *= costs.far_rest
    return found, cost.layer_bytes(d, layer)


def _with_threads(d: Decomposition) -> Decomposition:
    """As many warps as the largest phase has tasks for: the gradients of the first two layers are
    one."""
    most = sum(cost.layer_tiles(d, layer) for layer in range(d.problem.depth)[:2])
    for layer in range(d.problem.depth):
        ins, outs = d.ins(layer), d.outs(layer)
        forward = tiling(ceil(outs, 16), d.columns // 8, ceil(ins, 8), d.warps, d.problem.numbers)
        most = max(most, forward.tasks)
    warps = min(max(up(most, 4), LEAST_WARPS), MOST_WARPS)
    return replace(d, threads=32 * warps)
