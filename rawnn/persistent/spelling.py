"""A sharding that a user names in full, as in `persistent=4x8:256:FSGF`."""

from __future__ import annotations

from rawnn.persistent import cost
from rawnn.persistent.chip import Chip
from rawnn.persistent.choose import FIX, MOST_WARPS, Choice, check_blocks
from rawnn.persistent.layout import layout_of
from rawnn.persistent.problem import Problem, Unsupported
from rawnn.persistent.sharding import (
    ALL_GATHERED,
    DSMEM,
    L2,
    REPLICATED,
    SHARDED,
    WARP,
    Sharding,
    layer_kinds,
    output_boundaries,
)


def exactly(problem: Problem, chip: Chip, tp_size: int, dp_size: int, threads: int,
            boundaries: str, micro_batches: int = 1, transport: str = "",
            resident: int = 0) -> Choice:
    """The sharding with these fields, its layout and expected time.

    Without a `transport`, groups exchange via L2 where the GPU has no clusters of `tp_size` blocks.
    Raises Unsupported where there is no such sharding, or it does not fit shared memory.
    """
    transport = transport or (DSMEM if tp_size in chip.sizes else L2)
    check_blocks(problem, chip, tp_size, dp_size, transport)
    if threads % WARP or threads > MOST_WARPS * WARP:
        raise Unsupported(f"cannot have blocks of {threads} threads: it must be a multiple of "
                          f"{WARP}, {MOST_WARPS * WARP} at most", FIX)
    if reason := _wrong(problem, tp_size, boundaries):
        raise Unsupported(f"cannot have boundaries {boundaries}: {reason}", FIX)
    if micro_batches > 1 and (problem.scaled or (dp_size == 1 and transport != DSMEM
                                                 and tp_size > 1)):
        raise Unsupported("takes micro-batches without a loss scale only, and one group that "
                          "exchanges through L2 takes none", FIX)
    if resident and (dp_size > 1 or (transport != DSMEM and tp_size > 1)):
        raise Unsupported("shares a multiprocessor with blocks of other networks only, so that it "
                          "has one group, and none that exchanges through L2", FIX)
    if resident > 1 and (tp_size > 1 or resident * threads > chip.threads):
        raise Unsupported(f"cannot have {resident} blocks of {threads} threads on a "
                          f"multiprocessor: a cluster's blocks have one each, and all together "
                          f"have {chip.threads} threads at most", FIX)
    d = Sharding(problem, tp_size, dp_size, threads, boundaries, micro_batches, transport,
                 resident=resident)
    room = chip.room(resident)
    found = layout_of(d, room)
    if found.nbytes > room:
        raise Unsupported(f"does not fit the chip as {d} (a block would need "
                          f"{found.nbytes / 1024:.0f} KiB of shared memory, and has "
                          f"{room / 1024:.0f} KiB on this GPU)", FIX)
    return Choice(found, cost.microseconds(d, chip.costs)
                  + cost.state_microseconds(found, chip.costs), chip.costs)


def _wrong(problem: Problem, tp_size: int, boundaries: str) -> str:
    """Why a problem cannot have these boundaries; "" where it can."""
    if len(boundaries) != problem.depth + 1:
        return f"there are {problem.depth + 1}"
    if tp_size == 1:
        return "" if boundaries == REPLICATED * len(boundaries) else "one block has all in full"
    if layer_kinds(boundaries) is None:
        return "behind a sliced one there must be a full one"
    last = output_boundaries(problem)
    if boundaries[0] == ALL_GATHERED or boundaries[-1] not in last:
        return f"the first is {REPLICATED} or {SHARDED}, the last {' or '.join(last)} here"
    if problem.reconstruct and boundaries[0] == SHARDED and boundaries[-1] != SHARDED:
        return "where inputs are the targets, both are sliced or the first is not"
    return ""
