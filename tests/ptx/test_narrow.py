"""The kernels of narrow.cu and narrow_inner.cu: built for the host, held to the NumPy references of
their ops, and compiled for every architecture that can run them."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from rawnn.common.dtypes import rounded
from rawnn.cuda.compiling.compile import compile_source
from rawnn.cuda.compiling.launch_proof import prove
from rawnn.cuda.compiling.resources import spills
from rawnn.cuda.compiling.signature import find_kernel, parse_kernels
from rawnn.model.layers import Network
from rawnn.opts import select
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Role
from rawnn.ptx import SOURCES
from rawnn.ptx.fused.narrow import shared_bytes
from rawnn.ptx.kernels import kernel_for
from tests import requires
from tests.engine import CAPABLE, step_plan
from tests.ptx.architectures import installed_nvrtc, some, supported
from tests.ptx.emulator.emulator import EmulatedLibrary, Kernels, compiler
from tests.ptx.emulator.plans import Memory, check, launch
from tests.slices import sliced

FILES = ("fused/narrow.cu", "fused/narrow_inner.cu")
TEXT = "\n".join((SOURCES / name).read_text() for name in FILES)
KERNELS = parse_kernels(TEXT)
STEPS = 3


def plan_of(layers: tuple[int, ...], batch: int, **options: Any) -> Plan:
    """The plan of STEPS steps of such a network, whose last ops are one."""
    network = Network(layers, options.pop("bias", True), options.pop("activation", "relu"))
    plan = step_plan(network, batch, batch * STEPS, **options)
    selection = select("none,preload,bf16,mma,fuse", network, STEPS, CAPABLE)
    made = selection.apply(plan)[0].unrolled(STEPS)
    assert [op.kind for op in made.ops][:3] == ["narrow_input", "narrow_inner", "narrow_update"]
    return made


PLANS = {
    "three layers of every alignment": plan_of((50, 40, 24, 7), 20, bias=False, activation="tanh"),
    "wide128": plan_of((784, 128, 128, 128, 10), 32, shuffle=True, schedule="cosine"),
    "six layers and weights fetched twice": plan_of((99, 150, 131, 140, 160, 152, 20), 45),
    "no layer between": plan_of((300, 64, 33), 67, shuffle=True),
    "a single row": plan_of((9, 5, 3), 1),
}


def expressions(plan: Plan) -> dict[str, Op]:
    """One op for each kernel instance."""
    return {kernel_for(op).expression(op, plan): op for op in plan.ops}


BYTES = 'extern "C" int inner_bytes() { return Inner<4, 128, 2, 10>::kBytes; }'
EVERY = [e for plan in PLANS.values() for e in expressions(plan)]


@pytest.fixture(scope="module")
def library() -> EmulatedLibrary:
    """All instances, built for the host."""
    if compiler() is None:
        pytest.skip(requires.tool("g++", "g++"))
    wanted = tuple(dict.fromkeys(EVERY))
    return Kernels(FILES, wanted, 900, ("RAWNN_PDL",), extra=BYTES).build()


@pytest.mark.parametrize(("name", "run"), sliced(
    product(PLANS, [0, 1, 3]), kind=lambda case: case[0]))
def test_each_kernel_does_what_its_reference_does(
        library: EmulatedLibrary, name: str, run: int) -> None:
    memory = Memory(PLANS[name], 5)
    check(dict.fromkeys(FILES, library), memory, run)
    for tensor in memory.plan.tensors.values():
        if tensor.role is Role.COPY:
            np.testing.assert_array_equal(memory.read(tensor.name),
                                          rounded(memory.read(tensor.source), tensor.dtype))


def test_what_lies_behind_the_batch_changes_nothing(library: EmulatedLibrary) -> None:
    memory = Memory(PLANS["six layers and weights fetched twice"], 5)  # a batch of 45
    first, second, third = memory.plan.ops[:3]
    launch(library, first, memory)
    launch(library, second, memory)
    clean = {name: array.copy() for name, array in memory.arrays.items()}
    launch(library, third, memory)
    wanted = {name: memory.read(name) for name, _ in third.writes}
    for name, array in clean.items():
        memory.arrays[name][...] = array
    for name in ("narrow.activations", "narrow.gradients"):
        shaped = memory.arrays[name].reshape(memory.plan[name].padded_shape)
        assert shaped.shape[1] > 45
        shaped[:, 45:] = np.nan
    launch(library, third, memory)
    for name, value in wanted.items():
        np.testing.assert_array_equal(memory.read(name), value, name)


def test_a_nan_and_a_label_that_is_no_class_spoil_the_loss(library: EmulatedLibrary) -> None:
    for spoil in ("weight", "label"):
        memory = Memory(PLANS["wide128"], 5)
        row = memory.view("order")[3]
        if spoil == "weight":
            memory.view("fc1.weight")[4, 7] = np.nan
            memory.view("images")[...] = 1
        else:
            memory.view("labels")[row] = 200
        for op in memory.plan.ops[:3]:
            launch(library, op, memory)
        assert np.isnan(memory.view("loss")[0]), spoil
        assert np.isnan(memory.view("narrow.row_p")).sum() == (32 if spoil == "weight" else 1)
        correct = memory.view("narrow.row_correct")
        if spoil == "weight":  # as NumPy's argmax of NaNs
            assert (correct == (memory.view("labels")[memory.view("order")[:32]] == 0)).all()
        else:
            assert correct[3] == 0


def test_shared_memory_is_what_the_kernel_lays_out(library: EmulatedLibrary) -> None:
    assert shared_bytes(4, 128, 2, 10) == library.handle.inner_bytes()


@pytest.mark.parametrize(("arch", "programmatic"), [
    (arch, n % 2 == 1) for n, arch in enumerate(
        some("narrow", ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")))])
def test_compiles_without_a_warning_or_a_spill(arch: str, programmatic: bool) -> None:
    supported(arch)
    wanted = [e for name in ("wide128", "no layer between") for e in expressions(PLANS[name])]
    made = compile_source(
        installed_nvrtc(), TEXT, name="fused/narrow.cu", arch=arch, expressions=wanted,
        options=("--ptxas-options=-v", *(["-DRAWNN_PDL"] if programmatic else [])))  # fmt: skip
    assert "warning" not in made.log
    found = spills(made.log)
    assert len(found) == len(wanted)
    assert set(found.values()) == {(0, 0)}


def test_what_is_read_ahead_of_the_wait_is_not_written_by_the_kernel_before() -> None:
    nvrtc = installed_nvrtc()
    plan = PLANS["wide128"]
    _, program = nvrtc.nvrtcCreateProgram(TEXT, "fused/narrow.cu")
    found = list(expressions(plan))
    for expression in found:
        nvrtc.nvrtcAddNameExpression(program, expression)
    (code,) = nvrtc.nvrtcCompileProgram(
        program, ["-arch=sm_90", "-std=c++17", f"-I{SOURCES}", "-DRAWNN_PDL"])
    assert not code, nvrtc.nvrtcGetProgramLog(program)[1]
    ptx = nvrtc.nvrtcGetPTX(program)[1].decode()
    proofs = {e: prove(ptx, nvrtc.nvrtcGetLoweredName(program, e)[1], find_kernel(KERNELS, e))
              for e in found}
    nvrtc.nvrtcDestroyProgram(program)
    for expression, proof in proofs.items():
        assert proof.waits, (expression, proof.reason)
        assert proof.triggers
        assert proof.ordered
    early = {e.partition("<")[0]: set(proof.early) for e, proof in proofs.items()}
    data = {"cursor", "order", "images", "labels", "rates"}
    assert early["narrow_input"] <= data
    assert early["narrow_inner"] <= data
    assert early["narrow_update"] <= data | {"w1", "b1"}  # narrow_inner writes no weights
