"""Kernels for what the cost model may choose, drawn from all that it tries: how many blocks share
the widths and where they exchange, on GPUs of several sizes; and what a softmax, or an overflow,
may meet in each of these layouts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from rawnn.common.target import KNOWN
from rawnn.persistent.chip import NEEDED, chip_of
from rawnn.persistent.choose import _groups
from rawnn.persistent.sharding import ALL_GATHERED, DSMEM, L2, REPLICATED, SHARDED, layer_kinds
from tests import requires
from tests.persistent.problems import HOPPER, VARIETY
from tests.persistent.test_emulator import STEPS, Launch, check
from tests.slices import SLICE, sliced

pytestmark = requires.GXX

MOST_RANKS, MOST_BLOCKS = 20, 24
"""Blocks that share the widths, and all, which run on the host in some seconds."""
TYPES = [t for t in map("".join, product(
    (REPLICATED, SHARDED), *[(REPLICATED, SHARDED, ALL_GATHERED)] * 3))
    if layer_kinds(t) is not None]
"""Of the boundaries of a network of three layers whose last ones have labels."""
NAMES = [name for name, options in VARIETY.items() if not {"layers", "network"} & {*options}]


def offered() -> Iterator[tuple[str, int]]:
    """Where blocks exchange, and how many share the widths: of the largest GPU of each size."""
    for target in KNOWN.values():
        chip = chip_of(target)
        if target.has(*NEEDED):
            yield from _groups(chip, 0)


OFFERED = sorted((where, ranks) for where, ranks in set(offered()) if 1 < ranks <= MOST_RANKS)


def test_more_is_offered_than_powers_of_two() -> None:
    assert {(L2, 33), (L2, 44), (L2, 27), (L2, 47)} <= set(offered())
    assert {(DSMEM, 16), (L2, 18), (L2, 14)} <= {*OFFERED}
    assert len(NAMES) > 8


def drawn(exchange: str, ranks: int) -> tuple[str, int, str, int]:
    """A problem, clusters, types and an order of the threads for so many blocks."""
    draw = random.Random(f"{exchange}, {ranks}, {SLICE}")
    most = min(HOPPER.most_groups(ranks, exchange) or 1, max(MOST_BLOCKS // ranks, 1))
    types = [t for t in TYPES if set(t) != {REPLICATED}]
    return draw.choice(NAMES), draw.randint(1, most), draw.choice(types), draw.choice((0, 1, 2, 3))


@pytest.mark.parametrize(("exchange", "ranks"), sliced(OFFERED))
def test_so_many_blocks_train_as_numpy_does(tmp_path: Path, exchange: str, ranks: int) -> None:
    name, groups, types, run = drawn(exchange, ranks)
    check(Launch(name, ranks, groups, types, exchange=exchange), tmp_path, run)


PARTS = [(33, 1, "FSFS"), (11, 1, "SFSF"), (9, 1, "FSFF"), (13, 2, "SFGF")]
"""Blocks that add up parts which threads share unevenly: some are left when all have as many."""


@pytest.mark.parametrize(("ranks", "groups", "types"), sliced(PARTS))
def test_parts_that_threads_share_unevenly_are_added_once(tmp_path: Path, ranks: int, groups: int,
                                                          types: str) -> None:
    check(Launch("softmax, SGD", ranks, groups, types, exchange=L2), tmp_path, 1)


@pytest.mark.parametrize(("exchange", "last"),
                         sliced(product((DSMEM, L2), (REPLICATED, SHARDED, ALL_GATHERED))))
def test_what_a_softmax_may_meet(tmp_path: Path, exchange: str, last: str) -> None:
    """Logits that are equal, of which the first counts as the largest; all far below 0; a label
    that is none, which makes the step's loss no number, and changes nothing else; and at the end a
    row that is no number, beside which others are counted. In softmaxes of whole rows in every
    block, of slices, and of rows that are gathered."""
    draw = random.Random(f"{exchange}, {last}, {SLICE}")
    ranks = draw.choice((1, 2, 4, 8) if exchange == DSMEM and last == REPLICATED else
                        (2, 4, 8) if exchange == DSMEM else (2, 3, 5, 8))
    types = REPLICATED * 4 if ranks == 1 else draw.choice([t for t in TYPES if t[-1] == last])
    groups = draw.choice((1, 3))
    launch = Launch("float32 inputs, a schedule", ranks, groups, types, exchange=exchange)
    batch, outputs = launch.sharding.problem.batch, launch.sharding.problem.outputs
    arrays = launch.arrays
    arrays["w3"][:], arrays["b3"][:] = 0, -100  # whose exponentials a float32 can hardly hold
    steps = arrays["labels"][batch : batch * (1 + STEPS)].reshape(STEPS, batch)
    steps[0, :4] = 0
    poisoned, without = draw.randrange(batch), draw.randrange(batch)
    label = steps[2, without]
    wanted = launch.by_reference()
    arrays["labels"][3 * batch + without] = outputs + draw.choice((0, 1, 255 - outputs))
    arrays["images"][STEPS * batch + poisoned] = np.nan
    found = launch.on_emulator(tmp_path, draw.randrange(4))
    assert np.flatnonzero(np.isnan(found["loss"])).tolist() == [3, STEPS]
    good = [1, 2]
    assert np.array_equal(found["correct"][good], wanted["correct"][good])
    assert wanted["correct"][1] >= 4
    np.testing.assert_allclose(found["loss"][good], wanted["loss"][good], rtol=2e-5)
    assert 0 <= found["correct"][STEPS] <= batch - 1
    assert label < outputs


PLACES = [(exchange, ranks, groups, types) for exchange, ranks, groups, types in (
    (DSMEM, 1, 3, "FFFF"), (DSMEM, 2, 3, "SFGF"), (DSMEM, 4, 2, "FGFS"),
    (DSMEM, 4, 1, "FSFS"), (DSMEM, 8, 1, "FSFG"), (DSMEM, 2, 2, "FSFF"),
    (L2, 5, 2, "FGFS"), (L2, 3, 3, "SFGF"), (L2, 9, 1, "FSFS"), (L2, 4, 2, "FGFF"))]


OVERFLOWS = 3
"""Steps with an overflow: as many as there are clusters at most."""


@pytest.mark.parametrize(("exchange", "ranks", "groups", "types"), sliced(
    PLACES, kind=lambda place: (place[0], place[1] > 1, place[2] > 1)))
def test_an_overflow_that_one_block_sees_stops_all(tmp_path: Path, exchange: str, ranks: int,
                                                   groups: int, types: str) -> None:
    """One example of a step, and two of the outputs: a cluster has the example, another one in
    each such step, and some blocks of it the outputs. All others are certain of the class that
    they have."""
    launch = Launch("float16", ranks, groups, types, (2.0 ** (19 + OVERFLOWS), 5.0),
                    exchange=exchange)
    draw = random.Random(f"{exchange}, {ranks}, {groups}, {types}, {SLICE}")
    problem, arrays = launch.sharding.problem, launch.arrays
    batch = problem.batch
    share = launch.sharding.group_batch
    certain, *others = draw.sample(range(problem.outputs), 1 + OVERFLOWS)
    steps = sorted(draw.sample(range(STEPS), OVERFLOWS))
    arrays["b3"][certain] += 6
    arrays["labels"][:] = certain
    for turn, (step, other) in enumerate(zip(steps, others, strict=True)):
        group = turn % groups
        example = group * share + draw.randrange(min(share, batch - group * share))
        arrays["labels"][(1 + step) * batch + example] = other
    wanted = launch.by_reference()
    assert wanted["loss_scale"].tolist() == [2.0**19, STEPS - 1 - steps[-1]]
    check(launch, tmp_path, draw.randrange(4))
