"""A sharding as users type it: `4x8`, or in full `4x8:256:FSGF`. `Sharding.text` is the inverse."""

from __future__ import annotations

import re
from typing import NamedTuple

from rawnn.common.errors import ConfigError
from rawnn.persistent.by_examples import why_not_by_examples
from rawnn.persistent.chip import Chip
from rawnn.persistent.choose import FIX, MOST_WARPS, Choice, check_blocks, priced
from rawnn.persistent.layout import Layout, layout_of
from rawnn.persistent.problem import Problem, Unsupported
from rawnn.persistent.sharding import (
    ALL_GATHERED,
    BY_EXAMPLES,
    DSMEM,
    L2,
    REPLICATED,
    SHARDED,
    STREAM,
    WARP,
    Sharding,
    layer_kinds,
    output_boundaries,
)
from rawnn.persistent.streamed import why_not_streamed

_SYNTAX = re.compile(r"([1-9]\d{0,2})x([1-9]\d{0,2})"
                     r"(?:(?:@(l2|cluster|stream)([2-8])?)?:([1-9]\d{1,3})(?:x([1-8]))?:([FSGE]{2,})(?::([1-9]\d?))?)?")


class ParsedSharding(NamedTuple):
    """What a text says of a sharding. Threads and boundaries are 0 and "" if the cost model chooses
    them, `transport` is "" and `resident` 0 if the text does not say."""

    tp_size: int
    dp_size: int
    threads: int = 0
    boundaries: str = ""
    micro_batches: int = 1
    transport: str = ""
    resident: int = 0
    peers: int = 1


def parse_sharding(text: str) -> ParsedSharding | None:
    """What `text` says; None if it is not the text of a sharding."""
    found = _SYNTAX.fullmatch(text)
    if found is None:
        return None
    tp_size, dp_size, transport, peers, threads, resident, boundaries, micro_batches \
        = found.groups("")
    if peers and transport != STREAM:
        return None
    return ParsedSharding(int(tp_size), int(dp_size), int(threads or 0), boundaries,
                          int(micro_batches or 1), transport, int(resident or 0),
                          int(peers or 1))


def is_full_sharding(text: str) -> bool:
    """Whether the text names one sharding, with its threads and boundaries."""
    found = parse_sharding(text)
    return found is not None and bool(found.boundaries)


def sharding_of(problem: Problem, text: str) -> Sharding:
    """The sharding that a text names in full. Raises ConfigError for another text."""
    found = parse_sharding(text)
    if found is None or not found.boundaries:
        raise ConfigError(f"sharding = {text}: give tp_size x dp_size blocks, threads and "
                          f"boundaries, as in 1x1:128:FFFF")
    return Sharding(problem, **found._replace(transport=found.transport or DSMEM)._asdict())


def exactly(problem: Problem, chip: Chip, tp_size: int, dp_size: int, threads: int,
            boundaries: str, micro_batches: int = 1, transport: str = "",
            resident: int = 0, peers: int = 1) -> Choice:
    """The sharding with these fields, its layout and expected time.

    Without a `transport`, groups exchange via L2 where the GPU has no clusters of `tp_size` blocks.
    Raises Unsupported where there is no such sharding, or it does not fit shared memory.
    """
    d = Sharding(problem, tp_size, dp_size, threads, boundaries, micro_batches,
                 transport or (DSMEM if tp_size in chip.sizes else L2), resident=resident,
                 peers=peers)
    check_sharding(d, chip)
    return priced(fitting_layout(d, chip), chip)


def fitting_layout(d: Sharding, chip: Chip) -> Layout:
    """The layout of a sharding. Raises Unsupported if it does not fit shared memory."""
    room = chip.room(d.resident)
    found = layout_of(d, room)
    if found.nbytes > room:
        raise Unsupported(f"does not fit the chip as {d} (a block would need "
                          f"{found.nbytes / 1024:.0f} KiB of shared memory, and has "
                          f"{room / 1024:.0f} KiB on this GPU)", FIX)
    return found


def check_sharding(d: Sharding, chip: Chip) -> None:
    """Raises Unsupported if no kernel has this sharding, or the GPU has not so many blocks."""
    check_blocks(d.problem, chip, d.tp_size, d.dp_size, d.transport)
    if d.threads % WARP or d.threads > MOST_WARPS * WARP:
        raise Unsupported(f"cannot have blocks of {d.threads} threads: it must be a multiple of "
                          f"{WARP}, {MOST_WARPS * WARP} at most", FIX)
    if BY_EXAMPLES in d.boundaries and (reason := why_not_by_examples(d)):
        raise Unsupported(f"cannot split its examples among blocks: {reason}", FIX)
    if reason := _wrong_boundaries(d.problem, d.tp_size, d.boundaries):
        raise Unsupported(f"cannot have boundaries {d.boundaries}: {reason}", FIX)
    if d.micro_batches > 1 and (d.problem.scaled or (d.dp_size == 1 and d.via_l2)):
        raise Unsupported("takes micro-batches without a loss scale only, and one group that "
                          "exchanges through L2 takes none", FIX)
    if d.is_streamed and (reason := why_not_streamed(d)):
        raise Unsupported(f"cannot stream its operands: {reason}", FIX)
    if d.peers > 1 and chip.most_clusters(d.peers) * d.peers < d.tp_size:
        raise Unsupported(f"cannot stream its operands in clusters of {d.peers}: of "
                          f"{d.tp_size // d.peers} of them {chip.most_clusters(d.peers)} run at "
                          f"once here", FIX)
    if d.resident and (d.dp_size > 1 or d.via_l2):
        raise Unsupported("shares a multiprocessor with blocks of other networks only, so that it "
                          "has one group, and none that exchanges through L2", FIX)
    if d.resident > 1 and (d.tp_size > 1 or d.resident * d.threads > chip.threads):
        raise Unsupported(f"cannot have {d.resident} blocks of {d.threads} threads on a "
                          f"multiprocessor: a cluster's blocks have one each, and all together "
                          f"have {chip.threads} threads at most", FIX)


def _wrong_boundaries(problem: Problem, tp_size: int, boundaries: str) -> str:
    """Why a problem cannot have these boundaries; "" where it can."""
    if len(boundaries) != problem.depth + 1:
        return f"there are {problem.depth + 1}"
    if tp_size == 1:
        return "" if boundaries == REPLICATED * len(boundaries) else "one block has all features"
    if layer_kinds(boundaries) is None:
        return "a replicated one must follow a sharded one"
    last = output_boundaries(problem)
    if boundaries[0] == ALL_GATHERED or boundaries[-1] not in last + BY_EXAMPLES:
        return f"the first is {REPLICATED} or {SHARDED}, the last {' or '.join(last)} here"
    if problem.reconstruct and boundaries[0] == SHARDED and boundaries[-1] != SHARDED:
        return "where inputs are the targets, both are sharded or the first is not"
    return ""
