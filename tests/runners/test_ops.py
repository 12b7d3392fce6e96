"""Every op and implementation of the table of kernels on the simulated GPU, in every type, with
every set of operands and at shapes that are and are not aligned: packing, extents, geometry, and
that all is written; of an entry with more than MANY cases that many, others in the next
slice. tests/gpu/test_ops.py does the same on hardware."""

from __future__ import annotations

import pytest

from rawnn.cuda.device import Device
from rawnn.engine.runners.lowering import Lowering
from rawnn.ptx.kernel_registry import Key
from rawnn.ptx.kernels import KERNELS
from rawnn.sim import Simulation
from tests.catalogue import cases
from tests.ops import check_op
from tests.slices import sliced

MANY = 12
OTHERS = [*(Key("matmul", "cublas", layout) for layout in ("nt", "nn", "tn")),
          Key("matmul_slices", "cublas"), Key("softmax", "cudnn"), Key("upload", "memcpy")]


ALONE = [key for key in KERNELS if key != Key("advance", "while")]
"""The op in the body of a WHILE node sets that node's condition: it runs in the tests of graphs."""


@pytest.mark.parametrize("key", [*ALONE, *OTHERS], ids="/".join)
def test_every_instance_of_every_op_matches_its_reference(key: Key) -> None:
    found = [*enumerate(cases()[key])]  # a case draws the same in every slice
    assert found
    chosen = found if len(found) <= MANY else sliced(found, MANY)
    device = Device(Simulation().backend())
    lowering = Lowering(device)
    for index, case in chosen:
        try:
            check_op(device, lowering, case.op, case.plan, index)
        except Exception as error:
            raise AssertionError(str(case)) from error
    lowering.close()
    device.close()


def test_nothing_else_runs_an_op() -> None:
    assert set(cases()) == {*KERNELS, *OTHERS}
