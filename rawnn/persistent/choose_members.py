"""The search for how many networks, the members, share a GPU: by time a step of all of them.

Few members take the latency of a step, which more threads or a cluster make shorter. Of many, a
multiprocessor runs several blocks at once, and the time is that in which it issues their
instructions; few threads then do the same work with fewer of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from rawnn.persistent import cost
from rawnn.persistent.block_memory import LayerLayout
from rawnn.persistent.chip import Chip
from rawnn.persistent.choose import MOST_WARPS, Choice, candidates
from rawnn.persistent.layout import Layout, layout_of
from rawnn.persistent.member_problem import FIX, check_members
from rawnn.persistent.problem import Problem, Unsupported
from rawnn.persistent.sharding import (
    ALL_GATHERED,
    MOST_REGISTERS,
    REPLICATED,
    SHARDED,
    TILE,
    WARP,
    Members,
    Sharding,
    ceil,
)
from rawnn.persistent.spelling import check_sharding, fitting_layout

THREADS = (512, 256, 128, 64, 32)
"""Of a block. Of equal times, that of more threads is less (20-64-64-3 and 8-32-32-1)."""
MOST_RESIDENT = 8
"""Blocks of a multiprocessor that are tried."""
LEAST_EXAMPLES = 8
"""Of a micro-batch."""
SUMS_OF_CLUSTER = 1.35
"""Registers of a sum of micro-batches in a kernel that also exchanges (784-128-10)."""
LEAST_REGISTERS = {"float32": 92, "tf32": 92, "bfloat16": 76, "float16": 80}
"""Registers of a thread with which a kernel that holds nothing of weights spills nothing."""

K8_STEP = {"float32": 16.3, "tf32": 8.5, "bfloat16": 5.1, "float16": 5.1}
"""Instructions of a warp for 16 x 8 sums over 8. This and the constants below, but those of
clusters, are the least squares of 34 shardings of 20-64-64-3, 8-32-32-1 and 54-128-64-7, with 132,
1,056 and 4,096 members on an H200, within 11 % of each. The data say the instructions of a part of
a step as a share of all; all together are about those of the kernels' code."""
TILE_UPDATE = {0: 77.0, 1: 70.0, 2: 63.0}
"""Instructions of the update of a tile, by the optimizer's state of a weight. (One state: halfway.)
"""
PHASE = {"float32": 61.6, "tf32": 57.5, "bfloat16": 38.7, "float16": 38.7}
"""Instructions of each warp of a block in a phase, whether it has a task there or not."""
ISSUED, HALF_ISSUED = 0.74, 1.23
"""With w warps a scheduler issues ISSUED * w / (w + HALF_ISSUED) instructions in a cycle."""
SCHEDULERS = 4
HIDING = 3.7
"""Latency, issue and the traffic of state come together as a sum of such powers does."""
L2_BYTES = 6.95e6
"""Bytes that all multiprocessors load from L2 and store there in a microsecond."""
LATENCY = 0.58
"""Of the latency of a step that cost.py expects, the share that blocks take besides what they
issue."""
MEMBER_STEP = 350.0
"""Cycles of a step besides those that cost.py expects: examples are put in order in the kernel, and
losses summed in each step."""
TILE_CYCLES = {0: 0.0, 1: 77.0, 2: 153.0}
"""Cycles of a warp for the update of a tile, by the optimizer's state of a weight."""
FITTED_WITH = replace(
    cost.FITTED, gemm=1.46, gemm_begin=15.9, gradient=1.61, overlapped=1.46, update_state=0.0,
    exchange=409.0, second_exchange=940.0, exchange_bytes=12.1, softmax=248.0, softmax_rows=1.39,
    elementwise_round=397.0, convert=112.0, convert_round=40.5, step=45.6, global_state=57.3,
    fetch=0.0, fetch_bytes=math.inf)
"""The constants of cost.py that those of this module were fitted with. Later fits of cost.py are to
kernels of one network, and price the update of state by themselves."""
IN_REGISTERS, IN_GLOBAL_MEMORY = 0.41, 1.26
"""Factors of these cycles and instructions where state lies in registers and in global memory."""
FEW_TILE_CYCLES, FEW_IN_REGISTERS, FEW_IN_GLOBAL_MEMORY = {0: 0.0, 1: 140.0, 2: 280.0}, 0.7, 1.2
"""The same of few members, which all run at once with a multiprocessor each, or a cluster. These
take the latency of a step; the constants were fitted by hand to the times of 80 layouts with 132
members, by kernels of which an update took longer."""


@cache
def choose_members(problem: Problem, chip: Chip, members: Members, networks: int) -> Choice:
    """The layout with the least expected time of a step of so many networks. `problem` is that of
    members (member_problem.py). Raises Unsupported where a member fits no block and no cluster."""
    return min(member_candidates(problem, chip, members, networks), key=lambda found: found.us)


def member_candidates(problem: Problem, chip: Chip, members: Members,
                      networks: int) -> list[Choice]:
    """All layouts that are tried. Raises Unsupported where there is none."""
    found = [Choice(layout, step_microseconds(layout, chip, networks), chip.costs)
             for layout in _layouts(problem, chip, members, networks)]
    if not found:
        raise Unsupported("of one member fits neither a block nor a cluster of this GPU",
                          "train these networks one by one, or take a smaller batch or network")
    return found


def exact_members(problem: Problem, chip: Chip, members: Members, networks: int,
                  sharding: Sharding) -> Choice:
    """The layout of a sharding that a user names. Raises Unsupported where it does not fit."""
    check_members(sharding)
    if sharding.tp_size not in chip.sizes:
        raise Unsupported(f"needs clusters of {sharding.tp_size} blocks, which the GPU has not",
                          FIX)
    d = replace(sharding, problem=problem, members=members)
    try:
        check_sharding(d, chip)
        layout = fitting_layout(d, chip)
    except Unsupported as error:
        raise Unsupported(error.reason, FIX) from None
    if not has_registers(layout):
        raise Unsupported(f"needs about {registers(layout)} registers a thread as {d}, and can "
                          f"have {min(d.registers, MOST_REGISTERS)}", FIX)
    return Choice(layout, step_microseconds(layout, chip, networks), chip.costs)


def _layouts(problem: Problem, chip: Chip, members: Members, networks: int) -> Iterator[Layout]:
    single = REPLICATED * (problem.depth + 1)
    fits = False
    for threads in THREADS:
        d = Sharding(problem, 1, 1, threads, single, members=members)
        for micro_batches in _micro_batches(problem):
            found = list(_resident(replace(d, micro_batches=micro_batches), chip))
            fits = fits or bool(found)
            yield from found
    for tp_size in chip.sizes:
        if tp_size == 1 or (fits and networks > chip.most_groups(tp_size)):
            continue
        seen = set()
        for d in candidates(problem, replace(chip, costs=_costs(chip)), tp_size, 1):
            boundaries = d.boundaries
            if problem.labelled and boundaries[-1] == SHARDED:
                boundaries = boundaries[:-1] + ALL_GATHERED
            if boundaries == single:
                continue  # every block would do all of it
            for threads in sorted({d.threads, 256, MOST_WARPS * WARP}):
                own = replace(d, boundaries=boundaries, threads=threads, members=members)
                if own not in seen:
                    seen.add(own)
                    for micro_batches in _micro_batches(problem):
                        found = list(_fitting(replace(own, micro_batches=micro_batches), chip))
                        yield from found
                        if found:  # with more, it takes longer
                            break


def _resident(d: Sharding, chip: Chip) -> Iterator[Layout]:
    """The layouts of a sharding of one block: of that of one network, and with one and more blocks
    of a multiprocessor."""
    for resident in range(0 if d.micro_batches == 1 else 1, MOST_RESIDENT + 1):
        if resident * d.threads <= chip.threads:
            yield from _fitting(replace(d, resident=resident), chip)


def _fitting(d: Sharding, chip: Chip) -> Iterator[Layout]:
    """The layout of a sharding, if its blocks have the memory and the registers that it takes."""
    room = chip.room(d.resident)
    layout = layout_of(d, room)
    if layout.nbytes <= room and has_registers(layout):
        yield layout


def _micro_batches(problem: Problem) -> Iterator[int]:
    """Parts of a batch that are tried; each has LEAST_EXAMPLES or more."""
    yield 1
    if problem.scaled:
        return
    for n in (2, 4, 8, 16):
        if problem.batch // n >= LEAST_EXAMPLES:
            yield n


def has_registers(layout: Layout) -> bool:
    """Whether a thread can have the registers that it is expected to need. These are estimated from
    above, so that ptxas' rounding to eights does not matter."""
    return registers(layout) <= min(layout.sharding.registers, MOST_REGISTERS)


def registers(layout: Layout) -> int:
    """Registers of a thread that a kernel is expected to need at most, so that it spills nothing.
    """
    d, states = layout.sharding, len(layout.sharding.problem.states)
    sums = 0.0
    if d.holds_tiles and d.micro_batches > 1:
        sums = 1.0 if d.tp_size == 1 else SUMS_OF_CLUSTER
    return LEAST_REGISTERS[d.problem.numbers] + math.ceil(sum(
        part.registers(d.warps) * (sums + states * part.in_registers) for part in layout.layers))


# -- expected time ---------------------------------------------------------------------------------
def instructions(layout: Layout) -> float:
    """Expected instructions of all warps of a block in a step."""
    d, p = layout.sharding, layout.sharding.problem
    parts = d.micro_batches
    gemms = layout.schedule.gemms
    steps = sum(ceil(g.m, 16) * ceil(g.n, 8) * ceil(g.k, 8) for g in gemms)
    tiles = sum(layer.all_tiles * _of_state(layout, layer) for layer in layout.layers)
    each = 3 + len(gemms)
    return parts * steps * K8_STEP[p.numbers] + tiles * TILE_UPDATE[min(len(p.states), 2)] \
        + parts * each * d.warps * PHASE[p.numbers]


def update_cycles(layout: Layout, *, few: bool = False) -> float:
    """Expected cycles that a block's updates take besides the GEMMs of the gradients; for `few`
    members, as they were fitted to."""
    d, states = layout.sharding, min(len(layout.sharding.problem.states), 2)
    each = (FEW_TILE_CYCLES if few else TILE_CYCLES)[states]
    return MEMBER_STEP + sum(ceil(part.all_tiles, d.warps) * each * _of_state(layout, part, few)
                             for part in layout.layers)


def state_bytes(layout: Layout) -> int:
    """Bytes of optimizer state that a block loads from L2 and stores there in a step."""
    return 8 * layout.global_tiles * TILE * len(layout.sharding.problem.states)


def _of_state(layout: Layout, part: LayerLayout, few: bool = False) -> float:
    if not layout.sharding.problem.states:
        return 1.0
    if part.in_registers:
        return FEW_IN_REGISTERS if few else IN_REGISTERS
    if part.is_state_global:
        return FEW_IN_GLOBAL_MEMORY if few else IN_GLOBAL_MEMORY
    return 1.0


def _costs(chip: Chip) -> cost.Costs:
    """The constants of a step's latency: a GPU may have its own, by which the update of state is
    left to `update_cycles`."""
    clock = chip.costs.clock
    if chip.costs == replace(cost.FITTED, clock=clock):
        return replace(FITTED_WITH, clock=clock)
    return replace(chip.costs, update_state=0.0)


def step_microseconds(layout: Layout, chip: Chip, networks: int) -> float:
    """Expected microseconds of a step of all networks, which come in rounds of as many as run at
    once. Few take the latency of a step. Else the blocks of a multiprocessor share what it issues,
    and hide each other's latency in part."""
    d, resident = layout.sharding, layout.sharding.blocks_per_multiprocessor
    clock, latency = chip.costs.clock, cost.microseconds(d, _costs(chip))
    if d.tp_size > 1 or networks <= chip.blocks:
        rounds = ceil(networks, max(chip.most_groups(d.tp_size), 1))
        return rounds * (latency + update_cycles(layout, few=True) / clock)
    alone = LATENCY * latency + update_cycles(layout) / clock
    issue = instructions(layout) / SCHEDULERS / clock
    moved = chip.blocks * state_bytes(layout) / L2_BYTES

    def together(blocks: int) -> float:
        """Of so many blocks that share a multiprocessor."""
        warps = blocks * d.warps / SCHEDULERS
        rate = ISSUED * warps / (warps + HALF_ISSUED)
        parts = (alone, blocks * issue / rate, blocks * moved)
        return float(sum(part**HIDING for part in parts)**(1 / HIDING))

    rounds, left = divmod(networks, chip.blocks * resident)
    return rounds * together(resident) + (together(ceil(left, chip.blocks)) if left else 0.0)
