"""The expected time of a step of many networks, against a count of instructions, tiles and rounds
one by one; and how many orders of examples a kernel computes at once."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest

from rawnn.persistent import choose_members as model
from rawnn.persistent import cost
from rawnn.persistent.choose import Choice
from rawnn.persistent.choose_members import member_candidates
from rawnn.persistent.layout import Layout, orders_at_once
from rawnn.persistent.phases.gemm import Gemm
from tests.persistent.problems import HOPPER
from tests.persistent.test_member_kernels import SHUFFLED, of_members

CASES = [("A", "bf16"), ("B", ""), ("D", "")]
NUMBERS_OF_MEMBERS = (1, 133, 4097)


@cache
def tried(name: str, numbers: str, networks: int) -> list[Choice]:
    """All layouts of so many members that are tried."""
    return member_candidates(of_members(name, numbers), HOPPER, SHUFFLED, networks)


def tiles_of(layout: Layout, few: bool = False) -> list[list[float]]:
    """Of each layer a factor of every tile's update: where its optimizer state lies, if there is
    one."""
    held, far = (model.FEW_IN_REGISTERS, model.FEW_IN_GLOBAL_MEMORY) if few else \
        (model.IN_REGISTERS, model.IN_GLOBAL_MEMORY)
    return [[1.0 if not layout.sharding.problem.states else held if part.in_registers else
             far if part.state is None else 1.0] * part.all_tiles for part in layout.layers]


def moved(layout: Layout) -> float:
    """Bytes of state that a block loads from L2 and stores there in a step, tile by tile."""
    states = len(layout.sharding.problem.states)
    return float(sum(2 * 4 * 128 * states for part in layout.layers
                     if part.state is None and not part.in_registers
                     for _ in range(part.all_tiles)))


def issued(layout: Layout) -> float:
    """Instructions of a block's warps in a step."""
    d, numbers = layout.sharding, layout.sharding.problem.numbers
    states = len(layout.sharding.problem.states)
    gemms = [phase for phase in layout.schedule.micro_batch if isinstance(phase, Gemm)]
    found = 0.0
    for _ in range(d.micro_batches):
        for gemm in gemms:
            tasks = product(range(0, gemm.m, 16), range(0, gemm.n, 8), range(0, gemm.k, 8))
            found += len(list(tasks)) * model.K8_STEP[numbers]
        found += (len(gemms) + 3) * (d.threads // 32) * model.PHASE[numbers]
    return found + sum(map(sum, tiles_of(layout))) * model.TILE_UPDATE[states]


def updates(layout: Layout, few: bool = False) -> float:
    """Cycles of the warp with the most tiles, which are dealt to warps layer by layer."""
    each = (model.FEW_TILE_CYCLES if few else model.TILE_CYCLES)[
        len(layout.sharding.problem.states)]
    return model.MEMBER_STEP + sum(each * sum(tiles[::layout.sharding.threads // 32])
                                   for tiles in tiles_of(layout, few))


def expected(layout: Layout, networks: int) -> float:
    """Members in rounds: as many as clusters run at once, or as blocks have place."""
    d, clock = layout.sharding, HOPPER.costs.clock
    latency = cost.microseconds(d, model.FITTED_WITH)
    if d.tp_size > 1 or networks <= 132:
        rounds = len(range(0, networks, HOPPER.most_groups(d.tp_size)))
        return (latency + updates(layout, few=True) / clock) * rounds
    alone = model.LATENCY * latency + updates(layout) / clock
    resident, found = d.blocks_per_multiprocessor, 0.0
    left = networks
    while left > 0:
        of_round = min(left, resident * HOPPER.blocks)
        blocks = -(-of_round // HOPPER.blocks)
        of_scheduler = blocks * (d.threads // 32) / 4
        rate = model.ISSUED * of_scheduler / (of_scheduler + model.HALF_ISSUED)
        parts = [alone, blocks * issued(layout) / 4 / clock / rate,
                 blocks * 132 * moved(layout) / model.L2_BYTES]
        found += float(np.linalg.norm(parts, model.HIDING))
        left -= of_round
    return found


@pytest.mark.parametrize(("name", "numbers"), CASES)
@pytest.mark.parametrize("networks", NUMBERS_OF_MEMBERS)
def test_a_step_takes_what_its_instructions_and_rounds_take(name: str, numbers: str,
                                                            networks: int) -> None:
    for choice in tried(name, numbers, networks):
        assert choice.us == pytest.approx(expected(choice.layout, networks)), choice.sharding


@pytest.mark.parametrize(("name", "numbers"), CASES)
def test_clusters_are_tried_where_all_members_run_at_once_in_them(name: str, numbers: str) -> None:
    few, more, many = ({c.sharding.tp_size for c in tried(name, numbers, networks)}
                       for networks in NUMBERS_OF_MEMBERS)
    assert more == many == {1}
    assert few == ({1} if name == "B" else {1, 2, 4, 8, 16})


@pytest.mark.parametrize(("name", "numbers"), CASES)
def test_orders_are_computed_for_as_many_micro_batches_as_there_is_room(name: str, numbers: str
                                                                        ) -> None:
    """In powers of two, of 256 examples and four a thread at most; of two at least."""
    for choice in tried(name, numbers, 133):
        d = choice.sharding
        fitting = [2**n for n in range(1, 9) if 2**n * d.columns <= min(256, 4 * d.threads)]
        assert orders_at_once(d) == max(fitting, default=2)
        assert orders_at_once(replace(d, members=replace(SHUFFLED, shuffled=False))) == 1
        assert orders_at_once(replace(d, members=None)) == 1
