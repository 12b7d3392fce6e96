"""The kernels of narrow.cu: built for the host, held to the NumPy references of their ops, and
compiled for every architecture that can run them."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rawnn.compiling.compile import compile_source
from rawnn.compiling.programmatic import prove
from rawnn.compiling.resources import spills
from rawnn.compiling.signature import find_kernel, parse_kernels
from rawnn.cuda.launch import Arguments
from rawnn.dtypes import LOW_PRECISION, numpy_dtype, rounded
from rawnn.errors import MissingLibrary
from rawnn.network import Network
from rawnn.opts import select
from rawnn.ptx import SOURCES
from rawnn.ptx.kernels import kernel_for
from rawnn.ptx.narrow import shared_bytes
from rawnn.runners.arguments import kernel_arguments
from rawnn.step.op import Op
from rawnn.step.plan import Plan
from rawnn.step.tensor import Role, Tensor
from tests.engine import CAPABLE, step_plan

EMULATION = Path(__file__).resolve().parent / "emulation"
sys.path.insert(0, str(EMULATION))

import emulated_kernels  # noqa: E402

TEXT = (SOURCES / "narrow.cu").read_text()
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


EVERY = [e for plan in PLANS.values() for e in expressions(plan)]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """All instances, built for the host."""
    compiler = emulated_kernels.compiler()
    if compiler is None:
        pytest.skip("no g++ on PATH")
    folder = tmp_path_factory.mktemp("narrow")
    lines = ['#include "narrow_host.h"', '#include "narrow.cu"']
    lines += [f"CUDA_HOST_EXPORT(kernel_{i}, {e})" for i, e in enumerate(EVERY)]
    lines += ['extern "C" int inner_bytes() { return Inner<4, 128, 2, 10>::kBytes; }']
    source, built = folder / "narrow.cpp", folder / "narrow.so"
    source.write_text("\n".join(lines))
    subprocess.run(
        [compiler, "-std=c++20", "-shared", "-fPIC", "-pthread", "-O1", "-ffp-contract=off",
         "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", f"-I{EMULATION}", f"-I{SOURCES}",
         str(source), "-o", str(built)], check=True)  # fmt: skip
    return ctypes.CDLL(str(built))


class Memory:
    """A plan's tensors as the kernels see them, padding included and filled with NaN."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan = plan
        generator = np.random.default_rng(seed)
        self.arrays: dict[str, np.ndarray] = {}
        for tensor in plan.tensors.values():
            array = self._empty(tensor)
            self.arrays[tensor.name] = array
            view = self.view(tensor.name)
            if tensor.role is Role.PARAMETER:
                bound = 1.0 / np.sqrt(tensor.shape[-1])
                view[...] = generator.uniform(-bound, bound, view.shape)
            elif tensor.name == "images":
                sparse = generator.random(view.shape) < 0.3
                view[...] = generator.integers(0, 256, view.shape) * sparse
            elif tensor.name == "labels":
                view[...] = generator.integers(0, plan[f"fc{depth(plan)}.bias"].shape[0]
                                               if f"fc{depth(plan)}.bias" in plan.tensors
                                               else 2, view.shape)
            elif tensor.name == "order":
                view[...] = generator.permutation(len(view))
            elif tensor.name == "rates":
                view[...] = generator.uniform(0.1, 0.3, view.shape)
        for tensor in plan.tensors.values():
            if tensor.role is Role.COPY:
                self.store(tensor.name, self.read(tensor.source))
        self.view("cursor")[...] = 0

    @staticmethod
    def _empty(tensor: Tensor) -> np.ndarray:
        """Rows begin at multiples of 16 bytes."""
        dtype = numpy_dtype(tensor.dtype)
        raw = np.full(tensor.nbytes // dtype.itemsize + 16, -1 if tensor.dtype == "int32" else 255
                      if tensor.dtype == "uint8" else np.nan, dtype)
        start = -raw.ctypes.data % 16 // dtype.itemsize
        return raw[start : start + tensor.nbytes // dtype.itemsize]

    def view(self, name: str) -> np.ndarray:
        tensor = self.plan[name]
        shaped = self.arrays[name].reshape(tensor.padded_shape)
        return shaped[tuple(slice(n) for n in tensor.shape)]

    def read(self, name: str) -> np.ndarray:
        """A copy, 16-bit floats as float32."""
        view = self.view(name)
        return view.astype(np.float32) if self.plan[name].dtype in LOW_PRECISION else view.copy()

    def store(self, name: str, value: np.ndarray) -> None:
        dtype = self.plan[name].dtype
        self.view(name)[...] = rounded(value, dtype) if dtype in LOW_PRECISION else value


def depth(plan: Plan) -> int:
    return max(int(n[2]) for n in plan.tensors if n.startswith("fc"))


def launch(library: ctypes.CDLL, op: Op, memory: Memory, reverse: bool) -> None:
    plan, impl = memory.plan, kernel_for(op)
    expression = impl.expression(op, plan)
    signature = find_kernel(KERNELS, expression)
    addresses = {name: array.ctypes.data for name, array in memory.arrays.items()}
    arguments = Arguments(signature, kernel_arguments(op, plan, signature, addresses))
    scalars = impl.scalars(op, plan)
    grid, block = impl.geometry(scalars)
    assert impl.shared(scalars) <= 99 << 10
    shape = (ctypes.c_int * 6)(*grid, *block)
    call = getattr(library, f"kernel_{EVERY.index(expression)}")
    call(shape, int(reverse), ctypes.c_void_p(arguments.address))


def refer(op: Op, memory: Memory) -> dict[str, np.ndarray]:
    """What the reference makes of the same operands, by tensor."""
    values = {name: memory.read(name) for name in op.operands.values()}
    op.spec.reference(
        SimpleNamespace(**{role: values[name] for role, name in op.operands.items()}),
        op.attributes)
    return values


def close(found: np.ndarray, wanted: np.ndarray, dtype: str, what: str) -> None:
    """Sums of another order than NumPy's; then a value may round to the neighbouring 16-bit
    number, which moves what is computed from it by as much."""
    if found.dtype.kind in "iu":
        assert (found == wanted).all(), what
        return
    untouched = np.isnan(wanted)
    assert np.isnan(found[untouched]).all(), what
    found, wanted = found[~untouched], wanted[~untouched]
    scale = np.abs(wanted).max() + 1e-20
    error = np.abs(found - wanted)
    assert (error <= 2.0**-6 * scale).all(), (what, error.max() / scale)
    exact = 1e-5 if dtype == "float32" else 2.0**-8
    assert np.count_nonzero(error > exact * scale) <= 2 + 0.02 * error.size, what


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("name", PLANS)
def test_each_kernel_does_what_its_reference_does(
    library: ctypes.CDLL, name: str, reverse: bool
) -> None:
    memory = Memory(PLANS[name], 5)
    for op in memory.plan.ops:
        wanted = refer(op, memory)
        before = {n: memory.read(n) for n in memory.arrays}
        launch(library, op, memory, reverse)
        written = {n for n, _ in op.writes}
        for tensor, value in wanted.items():
            found, what = memory.read(tensor), f"{op.name}: {tensor}"
            dtype = memory.plan[tensor].dtype
            if tensor not in written:
                np.testing.assert_array_equal(found, before[tensor], what)
            elif memory.plan[tensor].role is Role.METRIC:
                at = op.offset
                close(found[at : at + 1], value[at : at + 1], dtype, what)
            elif memory.plan[tensor].role in (Role.PARAMETER, Role.COPY):
                # The change, not the weight: it is some thousand times smaller.
                close(found - before[tensor], value - before[tensor], dtype, what) \
                    if dtype == "float32" else close(found, value, dtype, what)
            else:
                close(found, rounded(value, dtype) if dtype in LOW_PRECISION else value, dtype,
                      what)
        for tensor in written:
            if memory.plan[tensor].role is Role.COPY:
                np.testing.assert_array_equal(
                    memory.read(tensor),
                    rounded(memory.read(memory.plan[tensor].source), memory.plan[tensor].dtype))


def test_what_lies_behind_the_batch_changes_nothing(library: ctypes.CDLL) -> None:
    memory = Memory(PLANS["six layers and weights fetched twice"], 5)  # a batch of 45
    first, second, third = memory.plan.ops[:3]
    launch(library, first, memory, False)
    launch(library, second, memory, False)
    clean = {name: array.copy() for name, array in memory.arrays.items()}
    launch(library, third, memory, False)
    wanted = {name: memory.read(name) for name, _ in third.writes}
    for name, array in clean.items():
        memory.arrays[name][...] = array
    for name in ("narrow.activations", "narrow.gradients"):
        shaped = memory.arrays[name].reshape(memory.plan[name].padded_shape)
        assert shaped.shape[1] > 45
        shaped[:, 45:] = np.nan
    launch(library, third, memory, False)
    for name, value in wanted.items():
        np.testing.assert_array_equal(memory.read(name), value, name)


def test_a_nan_and_a_label_that_is_no_class_spoil_the_loss(library: ctypes.CDLL) -> None:
    for spoil in ("weight", "label"):
        memory = Memory(PLANS["wide128"], 5)
        row = memory.view("order")[3]
        if spoil == "weight":
            memory.view("fc1.weight")[4, 7] = np.nan
            memory.view("images")[...] = 1
        else:
            memory.view("labels")[row] = 200
        for op in memory.plan.ops[:3]:
            launch(library, op, memory, False)
        assert np.isnan(memory.view("loss")[0]), spoil
        assert np.isnan(memory.view("narrow.row_p")).sum() == (32 if spoil == "weight" else 1)
        correct = memory.view("narrow.row_correct")
        if spoil == "weight":  # as NumPy's argmax of NaNs
            assert (correct == (memory.view("labels")[memory.view("order")[:32]] == 0)).all()
        else:
            assert correct[3] == 0


def test_shared_memory_is_what_the_kernel_lays_out(library: ctypes.CDLL) -> None:
    assert shared_bytes(4, 128, 2, 10) == library.inner_bytes()


@pytest.mark.parametrize("programmatic", [False, True], ids=["plain", "programmatic"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"])
def test_compiles_without_a_warning_or_a_spill(arch: str, programmatic: bool) -> None:
    nvrtc = the_nvrtc()
    if int(arch[3:]) not in nvrtc.nvrtcGetSupportedArchs()[1]:
        pytest.skip(f"this NVRTC does not know {arch}")
    wanted = [e for name in ("wide128", "no layer between") for e in expressions(PLANS[name])]
    made = compile_source(
        nvrtc, TEXT, name="narrow.cu", arch=arch, expressions=wanted,
        options=("--ptxas-options=-v", *(["-DRAWNN_PDL"] if programmatic else [])))  # fmt: skip
    assert "warning" not in made.log
    found = spills(made.log)
    assert len(found) == len(wanted)
    assert set(found.values()) == {(0, 0)}


def the_nvrtc() -> Any:
    from rawnn.cuda.nvrtc import Nvrtc

    try:
        return Nvrtc()
    except MissingLibrary as error:
        pytest.skip(str(error))


def test_what_is_read_ahead_of_the_wait_is_not_written_by_the_kernel_before() -> None:
    nvrtc = the_nvrtc()
    plan = PLANS["wide128"]
    _, program = nvrtc.nvrtcCreateProgram(TEXT, "narrow.cu")
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
