"""Kernels that also do what stands between two epochs, on the host: the next epoch's order is made
while nobody reads this one's any more, and the clock goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rawnn.onchip.decompose import CLUSTER, L2
from rawnn.ptx.kernels import kernel_for
from rawnn.step.build import CLOCK
from rawnn.step.op import Op
from rawnn.step.ops.train_steps import turning
from tests.onchip.problems import FULL
from tests.onchip.test_twin import Launch, check
from tests.ptx.twin.twin import compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="g++ is not installed")

SEED, STEPS = 7, 64


def turned(name: str, ranks: int, groups: int, types: str, exchange: str, left: int = 0) -> Launch:
    launch = Launch(name, ranks, groups, types, exchange=exchange, left=left)
    turn = Op("turn", "turn", {"clock": "clock", "order": "order"},
              {"seed": SEED, "count": len(launch.arrays["order"]), "steps": STEPS, "offset": 0})
    launch.plan = launch.plan.with_tensors(CLOCK)
    launch.op = turning(launch.op, turn)
    launch.impl = kernel_for(launch.op)
    launch.arrays["clock"] = np.array([1, 5], np.int32)
    return launch


KINDS = [
    ("Adam in an order", 4, 2, "FSFF", CLUSTER, 0),
    ("one layer in an order", 4, 3, "FS", CLUSTER, 0),
    ("one layer in an order", 8, 1, "FS", CLUSTER, 0),
    ("Adam in an order", 1, 1, "FFFF", CLUSTER, 0),
    ("Adam in an order", 12, 2, "FGFS", L2, 0),
    ("one layer in an order", 12, 1, "FS", L2, 0),
    ("long rows", 4, 1, "FS", CLUSTER, 0), ("long rows", 2, 2, "SF", CLUSTER, 4),
    ("Adam in an order", 1, 3, "FFFF", CLUSTER, 3),
    ("one layer in an order", 3, 2, "FS", L2, 5),
    ("rounded by chance, Adam", 2, 2, "FSFS", CLUSTER, 0),
]


@pytest.mark.parametrize("run", [0, 1, 3] if FULL else [1])
@pytest.mark.parametrize("kind", KINDS if FULL else KINDS[:6])
def test_the_next_epoch_is_made_ready(tmp_path: Path, kind: tuple[str, int, int, str, str, int],
                                      run: int) -> None:
    launch = turned(*kind)
    check(launch, tmp_path, run)
    found, wanted = launch.on_twin(tmp_path, run), launch.by_reference()
    for role in ("order", "clock"):
        assert np.array_equal(found[role], wanted[role]), role
    assert list(found["clock"]) == [2, 5 + STEPS]
