"""Kernels that also do what stands between two epochs, on the host: the next epoch's order is made
while nobody reads this one's any more, and the clock goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rawnn.common import random
from rawnn.persistent.sharding import DSMEM, L2
from tests import requires
from tests.persistent.test_emulator import STEPS_OF_EPOCH, Launch, check
from tests.slices import sliced

pytestmark = requires.GXX

KINDS = [
    ("Adam in an order", 4, 2, "FSFF", 0, DSMEM),
    ("one layer in an order", 4, 3, "FS", 0, DSMEM),
    ("one layer in an order", 8, 1, "FS", 0, DSMEM),
    ("Adam in an order", 1, 1, "FFFF", 0, DSMEM),
    ("Adam in an order", 12, 2, "FGFS", 0, L2),
    ("one layer in an order", 20, 1, "FS", 0, L2),
    ("long rows", 4, 1, "FS", 0, DSMEM), ("long rows", 2, 2, "SF", 4, DSMEM),
    ("Adam in an order", 1, 3, "FFFF", 3, DSMEM),
    ("one layer in an order", 3, 2, "FS", 5, L2),
    ("stochastic rounding, Adam", 2, 2, "FSFS", 0, DSMEM),
]


@pytest.mark.parametrize("run", sliced([0, 1, 3]))
@pytest.mark.parametrize("kind", sliced(KINDS))
def test_the_next_epoch_is_made_ready(tmp_path: Path, kind: tuple[str, int, int, str, int, str],
                                      run: int) -> None:
    name, ranks, groups, types, left, exchange = kind
    launch = Launch(name, ranks, groups, types, left=left, exchange=exchange, turning=True)
    check(launch, tmp_path, run)
    found = launch.on_emulator(tmp_path, run)
    assert list(found["clock"]) == [2, 5 + STEPS_OF_EPOCH]
    count = len(found["order"])
    np.testing.assert_array_equal(found["order"], random.permutation(7, 1, count))
