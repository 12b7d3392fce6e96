"""Products of 16 bits, which read copies of the weights where there is room for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rawnn.persistent import layout
from rawnn.persistent.schedule import build
from rawnn.plan.tensor import Role
from tests import requires
from tests.persistent.problems import HOPPER
from tests.persistent.test_emulator import Launch
from tests.slices import sliced

COPIED = [("bfloat16", 2, 2, "FSFS"), ("float16, Adam, tanh", 2, 1, "FGSF"),
          ("float16, mean squares", 1, 3, "FFFF"), ("stochastic rounding, Adam", 2, 2, "FSFF")]


@requires.GXX
@pytest.mark.parametrize(("name", "ranks", "groups", "types"), sliced(COPIED))
def test_copies_of_weights_in_16_bits_change_no_bit(tmp_path: Path, name: str, ranks: int,
                                                    groups: int, types: str) -> None:
    """A product that rounds weights in registers, as there is no room for copies, has the same
    sums: copies are rounded alike, and of every weight as it is now."""
    copied = Launch(name, ranks, groups, types)
    d = copied.sharding
    room = layout._layout(build(d), HOPPER.shared, False).nbytes
    plain = Launch(name, ranks, groups, types, room=room)
    assert copied.op.attributes["choice"].layout.copies is not None
    assert plain.op.attributes["choice"].layout.copies is None
    found, wanted = (launch.on_emulator(tmp_path, 1) for launch in (copied, plain))
    for role in copied.op.spec.writes:
        if copied.plan[copied.op.operands[role]].role is not Role.SCRATCH:
            assert np.array_equal(found[role].view(np.uint8), wanted[role].view(np.uint8)), role
