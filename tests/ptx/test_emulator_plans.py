"""Every kernel family on the CPU emulator, launched as the runner launches it, against the NumPy
references of its ops: real arithmetic and real synchronisation, in several orders of threads and
copies. Of a family with more than two networks that many, others in the next slice."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from rawnn.plan.tensor import Role
from rawnn.ptx import SOURCES
from rawnn.ptx.limits.microbenchmarks import PROBES
from tests import requires
from tests.ptx.emulator.cases import CASES, plan_of, taken_early
from tests.ptx.emulator.plans import (
    Case,
    Memory,
    build,
    check,
    has_kernel,
    kernel_for,
    launch,
    runs,
)
from tests.slices import sliced

sys.path.insert(0, str(Path(__file__).resolve().parent / "emulation"))

import emulated_kernels
import epoch_cases

pytestmark = requires.GXX


@pytest.mark.parametrize("name", sliced(CASES, 2, kind=lambda name: name.partition(" ")[0]))
def test_ops_do_what_their_references_do(name: str) -> None:
    plan = plan_of(name)
    libraries = build([plan])
    orders = runs(CASES[name], plan)
    # Races are found in any order, by what happened before what.
    for run, overflow, spoil in sliced(orders, len(orders) - 1):
        launched = check(libraries, Memory(plan, 5, overflow, spoil), run)
        assert launched == sum(map(has_kernel, plan.ops))


def test_every_source_runs() -> None:
    """Here, or among the portable kernels' checks and those that measure limits."""
    ours = {kernel_for(op).source for name in CASES for op in plan_of(name).ops if has_kernel(op)}
    portable = {f"{name}.cu" for name in (*emulated_kernels.FILES, *epoch_cases.FILES)}
    measuring = {probe.source for probe in PROBES}
    elsewhere = {"elementwise/members.cu"}  # test_each_member.py
    assert {str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.cu")} \
        <= ours | portable | measuring | elsewhere


def test_streamed_updates_are_left_out_of_a_step_that_overflowed() -> None:
    """Of weights, their copies and biases."""
    with taken_early("streamed"):
        plan = Case((72, 136, 72, 10), 16, "preload,fp16,mma,fuse", steps=1).plan()
    names = ("skinny_nn", "skinny_update")
    libraries = build([plan], names)
    for overflow in (0, 1):
        assert check(libraries, Memory(plan, 5, overflow), overflow, names) == 3


@pytest.mark.parametrize("label", [-1, 63, 64, 1 << 30])
def test_a_label_that_is_none_makes_the_loss_of_a_product_no_number(label: int) -> None:
    plan = Case((21, 63), 33, "preload,mma=sync,fuse", steps=1).plan()
    memory = Memory(plan, 5)
    (op,) = plan.find(kind="matmul_loss")
    for name, _ in op.reads:
        if plan[name].role in (Role.BATCH, Role.PARAMETER):
            memory.view(name)[...] = 0
    memory.view(op.operands["y"])[17] = label
    launch(build([plan], ("gemm_loss",))["gemm/mma.cu"], op, memory)
    assert np.isnan(memory.view(op.operands["loss_parts"])[0].sum())
    gradient = memory.view(op.operands["dz"])
    assert np.isfinite(gradient).all()
    np.testing.assert_allclose(gradient[17], 1 / 63 / 33, rtol=1e-5)  # nothing is taken off
