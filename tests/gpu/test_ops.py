"""Every op and implementation of the table of kernels on a GPU, in every type, with every set of
operands and at shapes that are and are not aligned, against its reference in float64."""

from __future__ import annotations

import pytest

from rawnn.cuda.device import Device
from rawnn.engine.machine import machine_of
from rawnn.engine.runners.lowering import Lowering
from rawnn.lab.ops import examine
from rawnn.ptx.kernel_registry import Key
from rawnn.ptx.kernels import KERNELS
from tests.catalogue import cases
from tests.runners.test_ops import ALONE, OTHERS

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("key", [*ALONE, *OTHERS], ids="/".join)
def test_every_instance_of_every_op_matches_its_reference(
    device: Device, key: Key
) -> None:
    found = cases(machine_of(device)).get(key)
    if not found:
        pytest.skip("no set of toggles that this machine runs leads to it")
    lowering = Lowering(device)
    wrong = []
    try:
        if key in KERNELS:  # all instances of a kernel in one compilation
            expressions = {KERNELS[key].expression(case.op, case.plan): None for case in found}
            device.compile(KERNELS[key].source, tuple(expressions), KERNELS[key].relocatable,
                           specific=KERNELS[key].specific)
        for index, case in enumerate(found):
            for got in examine(device, lowering, case.op, case.plan, index, repeat=False).outcomes:
                if not got.error <= got.tolerance:
                    wrong.append(f"{got.tensor}: {got.error:.2e} > {got.tolerance:.2e}: {case}")
    finally:
        lowering.close()
    assert not wrong, f"{len(wrong)} of {len(found)}:\n" + "\n".join(wrong[:20])
