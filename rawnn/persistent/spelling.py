"""A decomposition as somebody asks for it, in full."""

from __future__ import annotations

from rawnn.persistent import cost
from rawnn.persistent.chip import Chip
from rawnn.persistent.choose import CURE, MOST_WARPS, Choice, check_blocks
from rawnn.persistent.decompose import (
    CLUSTER,
    FULL,
    GATHERED,
    L2,
    SLICED,
    WARP,
    Decomposition,
    kinds,
    last_types,
)
from rawnn.persistent.layout import layout_of
from rawnn.persistent.problem import Problem, Unsupported


def exactly(problem: Problem, chip: Chip, ranks: int, groups: int, threads: int,
            types: str, turns: int = 1, exchange: str = "") -> Choice:
    """The decomposition of `ranks` x `groups` blocks of `threads` threads with boundaries of these
    `types`, in so many `turns`, and what is expected of it; blocks `exchange` through L2 where
    there are no clusters of so many, or that is asked for. Raises Unsupported where there is none,
    or no room."""
    exchange = exchange or (CLUSTER if ranks in chip.sizes else L2)
    check_blocks(problem, chip, ranks, groups, exchange)
    if threads % WARP or threads > MOST_WARPS * WARP:
        raise Unsupported(f"cannot have blocks of {threads} threads: it must be a multiple of "
                          f"{WARP}, {MOST_WARPS * WARP} at most", CURE)
    if reason := _wrong(problem, ranks, types):
        raise Unsupported(f"cannot have boundaries {types}: {reason}", CURE)
    if turns > 1 and (groups == 1 or problem.scaled):
        raise Unsupported("takes micro-batches in several clusters without a loss scale only", CURE)
    d = Decomposition(problem, ranks, groups, threads, types, turns, exchange)
    found = layout_of(d, chip.shared)
    if found.nbytes > chip.shared:
        raise Unsupported(f"does not fit the chip as {d} (a block would need "
                          f"{found.nbytes / 1024:.0f} KiB of shared memory, and has "
                          f"{chip.shared / 1024:.0f} KiB on this GPU)", CURE)
    return Choice(found, cost.microseconds(d, chip.costs)
                  + cost.state_microseconds(found, chip.costs), chip.costs)


def _wrong(problem: Problem, ranks: int, types: str) -> str:
    """Why boundaries cannot be of these types; "" where they can."""
    if len(types) != problem.depth + 1:
        return f"there are {problem.depth + 1}"
    if ranks == 1:
        return "" if types == FULL * len(types) else "one block has all in full"
    if kinds(types) is None:
        return "behind a sliced one there must be a full one"
    last = last_types(problem)
    if types[0] == GATHERED or types[-1] not in last:
        return f"the first is {FULL} or {SLICED}, the last {' or '.join(last)} here"
    if problem.reconstruct and types[0] == SLICED and types[-1] != SLICED:
        return "where inputs are the targets, both are sliced or the first is not"
    return ""
