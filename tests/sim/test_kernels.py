"""Launches against the CUDA source, the table of kernels and the ops' registrations."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from inspect import signature
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rawnn import ptx
from rawnn.common.errors import CompileError
from rawnn.cuda.compiling.signature import parse_kernels
from rawnn.cuda.device import Device
from rawnn.cuda.launch import Arguments, KernelLaunch
from rawnn.engine.runners import lowering
from rawnn.engine.runners.lowering import Lowering
from rawnn.model.layers import Network
from rawnn.plan.build import training_step
from rawnn.plan.op import OPS
from rawnn.plan.recipe import DataSpec, Recipe
from rawnn.ptx.instance_text import with_instance_text
from rawnn.ptx.kernel_registry import Key
from rawnn.ptx.kernels import KERNELS
from rawnn.sim import Simulation, SimulationError, register
from rawnn.sim.image import decode
from tests.engine import make_work, random_dataset, run_on

from .work import read, relu, vector


@pytest.mark.parametrize("key", KERNELS, ids=lambda key: "/".join(key))
def test_pointers_are_const_exactly_where_the_op_only_reads(key: Key) -> None:
    impl = KERNELS[key]
    text = with_instance_text(ptx.source_path(impl.source).read_text(), [impl.name])
    signature = parse_kernels(text)[impl.name]
    pointers = [p for p in signature.parameters if p.pointer]
    assert pointers
    for pointer in pointers:
        assert pointer.const == (pointer.name not in OPS[key.kind].writes), pointer.name
        assert pointer.name in impl.shapes


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_a_product_that_accumulates_reads_its_output(device: Device, beta: float) -> None:
    plan = training_step(Network((8, 8)), Recipe(8), DataSpec(64))
    (op, *_) = plan.find(kind="matmul")
    op = replace(op, attributes={**op.attributes, "beta": beta})
    addresses = {name: vector(device, 1.0 if name != op.operands["c"] else None, count=64)
                 for name in op.operands.values()}
    (command,) = Lowering(device).commands(op, plan, addresses, {})
    command.run(0)
    if beta:
        with pytest.raises(SimulationError, match="operand 'c' is read before it was"):
            device.stream.synchronize()
    else:
        device.stream.synchronize()


def test_swapped_arguments_are_seen_in_the_packing(device: Device) -> None:
    z, a = vector(device, 1.0), vector(device)
    launch = relu(device, z, a)
    pointers = (ctypes.c_void_p * 6).from_address(launch.arguments.address)
    pointers[1], pointers[4] = pointers[4], pointers[1]  # ldz and rows
    with pytest.raises(SimulationError, match=r"argument 'ldz' is packed at byte 28 .* at 8"):
        launch.run(0)


def test_an_argument_of_the_wrong_width_is_seen(device: Device) -> None:
    z, a = vector(device, 1.0), vector(device)
    launch = relu(device, z, a)
    pointers = (ctypes.c_void_p * 6).from_address(launch.arguments.address)
    for i in range(2, 6):  # as if ldz were 64 bits wide
        pointers[i] = (pointers[i] or 0) + 8
    with pytest.raises(SimulationError, match=r"argument 'a' is packed at byte 24 .* at 16"):
        launch.run(0)


def test_wrong_geometry(device: Device) -> None:
    z, a = vector(device, 1.0, count=1200), vector(device, count=1200)
    with pytest.raises(SimulationError, match=r"grid \(1, 1, 1\) .* asks for grid \(2, 1, 1\)"):
        relu(device, z, a, count=1200).run(0)  # 256 threads take four numbers each


CLUSTERED = {
    "softmax_head": ("preload,sr,mma,fuse", (29, 264, 7)),
    "train_steps": ("persistent=8x1:256:FSF", (29, 24, 7)),
}


@pytest.mark.parametrize("kernel", CLUSTERED)
@pytest.mark.parametrize("graph", ["", ",graphs=step"])
@pytest.mark.parametrize(("wrong", "sentence"), [
    ({"shared_bytes": 1 << 10}, r"1,024 bytes of dynamic shared memory, but its work asks for \d"),
    ({"cluster": None}, r"in clusters of 1 block\(s\), but its work asks for 8"),
    ({"cluster": (1, 1, 1)}, r"in clusters of 1 block\(s\), but its work asks for 8"),
])
def test_shared_memory_and_clusters_that_a_kernel_does_not_ask_for(
        wrong: dict[str, Any], sentence: str, graph: str, kernel: str,
        monkeypatch: pytest.MonkeyPatch) -> None:
    """Of kernels in one cluster, on a stream and in a graph."""
    def launch(driver: Any, stream: Any, function: Any, label: str, *rest: Any) -> KernelLaunch:
        made = signature(KernelLaunch).bind(driver, stream, function, label, *rest)
        if kernel in label:
            made.arguments.update(wrong)
        return KernelLaunch(*made.args, **made.kwargs)

    monkeypatch.setattr(lowering, "KernelLaunch", launch)
    opt, layers = CLUSTERED[kernel]
    work = make_work(opt + graph, layers, random_dataset(29, 7, 16, 8))
    device = Device(Simulation().backend())
    with pytest.raises(SimulationError, match=f"{kernel}.*{sentence}"):
        run_on(device, work)
    device.close()


def test_leading_dimension_below_the_columns(device: Device) -> None:
    z = vector(device, 1.0)
    with pytest.raises(SimulationError, match="ldz is 4, less than the 8 columns"):
        relu(device, z, z, ldz=4).run(0)


def metrics(device: Device, cursor: int, offset: int, loss: int) -> KernelLaunch:
    p, z = vector(device, 0.25, count=8), vector(device, 0.0, count=8)
    y = device.memory.allocate(8, "y").address
    device.to_device(y, np.zeros(2, np.int32), "y")
    function = device.function("losses/loss.cu", "cross_entropy")
    values = {"p": p, "ldp": 4, "z": z, "ldz": 4, "y": y, "cursor": cursor, "offset": offset,
              "loss": loss, "workspace": 0, "rows": 2, "cols": 4}
    return KernelLaunch(device.driver, device.stream, function.handle, "loss", (1, 1, 1),
                        (32, 1, 1), Arguments(function.signature, values))


def test_windows_follow_the_cursor_and_are_all_that_is_touched(device: Device) -> None:
    loss, cursor = vector(device, count=4), device.memory.allocate(4, "cursor").address
    device.to_device(cursor, np.array([1], np.int32), "cursor")
    launch = metrics(device, cursor, 1, loss)
    launch.run(1)
    device.stream.synchronize()
    assert read(device, loss + 8, count=1)[0] == np.float32(np.log(4))
    written = device.driver.simulation.memory.live[loss].written.reshape(4, 4)
    assert written.all(axis=1).tolist() == [False, False, True, False]
    launch.run(3)
    with pytest.raises(SimulationError, match=r"operand 'loss'.*past the end"):
        device.stream.synchronize()


def test_a_step_before_the_first(device: Device) -> None:
    cursor = device.memory.allocate(4, "cursor").address
    device.to_device(cursor, np.array([1], np.int32), "cursor")
    metrics(device, cursor, 0, vector(device)).run(-2)
    with pytest.raises(SimulationError, match="step -1 lies before the first"):
        device.stream.synchronize()


SOURCE = """
template <typename T> __global__ void twice(const T* x, T* y, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = 2 * x[i];
}
"""


def find_user_kernel(device: Device, x: int, y: int) -> KernelLaunch:
    device.load(SOURCE, "own.cu", parse_kernels(SOURCE), ("twice<float>",))
    function = device.function("own.cu", "twice<float>")
    return KernelLaunch(device.driver, device.stream, function.handle, "twice", (1, 1, 1),
                        (32, 1, 1), Arguments(function.signature, {"x": x, "y": y, "n": 8}))


def test_kernels_of_others_need_a_reference(device: Device, own_meanings: None) -> None:
    x, y = vector(device, 3.0), vector(device)
    launch = find_user_kernel(device, x, y)
    with pytest.raises(SimulationError, match=r"twice<float> of own\.cu has no NumPy reference"):
        launch.run(0)

    def twice(t: SimpleNamespace, scalars: object) -> None:
        np.multiply(t.x, 2, out=t.y)

    register("twice", twice, {"x": ("n",), "y": ("n",)}, reads=("x",), writes=("y",))
    launch.run(0)
    assert (read(device, y) == 6).all()


# -- compilation and modules ---------------------------------------------------------------------


def test_unknown_kernels_and_bad_template_arguments_do_not_compile(device: Device) -> None:
    for expression in ("thrice<float>", "twice<float, 3>"):
        with pytest.raises(CompileError, match=r"own\.cu\(1\): error:"):
            device.load(SOURCE, "own.cu", {}, (expression,))


def test_architectures_that_nvrtc_does_not_know(device: Device) -> None:
    nvrtc = device.backend.nvrtc()
    program = nvrtc.nvrtcCreateProgram(SOURCE, "own.cu")[1]
    assert nvrtc.nvrtcGetLoweredName(program, "twice<float>")[0] == 9
    assert nvrtc.nvrtcCompileProgram(program, ["--gpu-architecture=sm_37"]) == (5,)
    assert nvrtc.nvrtcGetCUBIN(program) == (4, b"")
    assert nvrtc.nvrtcDestroyProgram(program) == (0,)
    assert nvrtc.nvrtcDestroyProgram(program) == (4,)


def cubin(device: Device, arch: str, relocatable: bool) -> bytes:
    nvrtc = device.backend.nvrtc()
    text = ptx.source_path("elementwise/while.cu").read_text()
    program = nvrtc.nvrtcCreateProgram(text, "elementwise/while.cu")[1]
    nvrtc.nvrtcAddNameExpression(program, "advance_while")
    options = [f"--gpu-architecture={arch}",
               *(["--relocatable-device-code=true"] if relocatable else [])]
    code = nvrtc.nvrtcCompileProgram(program, options)[0]
    assert code == (0 if relocatable else 6)
    image: bytes = nvrtc.nvrtcGetCUBIN(program)[1]
    nvrtc.nvrtcDestroyProgram(program)
    return image


def test_images_must_be_linked_and_fit_the_gpu(device: Device) -> None:
    driver = device.driver
    assert cubin(device, "sm_90", relocatable=False) == b""
    unlinked = cubin(device, "sm_90", relocatable=True)
    assert driver.cuModuleLoadData(unlinked)[0] == 200
    assert driver.cuModuleLoadData(b"\x7fELF")[0] == 200
    state = driver.cuLinkCreate()[1]
    assert driver.cuLinkAddData(state, "CUBIN", unlinked, "elementwise/while.cu") == (0,)
    assert driver.cuLinkComplete(state)[0] == 200  # the device runtime is missing
    assert driver.cuLinkAddData(state, "LIBRARY", b"!<arch>", "libcudadevrt.a") == (0,)
    code, linked = driver.cuLinkComplete(state)
    assert (code, driver.cuLinkDestroy(state)) == (0, (0,))
    image = decode(linked)
    assert image is not None
    assert image.lowered == {"advance_while": "advance_while"}
    module = driver.cuModuleLoadData(linked)[1]
    assert driver.cuModuleGetFunction(module, b"advance")[0] == 500
    function = driver.cuModuleGetFunction(module, b"advance_while")[1]
    assert driver.cuModuleUnload(module) == (0,)
    assert driver.cuFuncGetAttribute("NUM_REGS", function)[0] == 400
    other = cubin(device, "sm_100", relocatable=True)
    state = driver.cuLinkCreate()[1]
    driver.cuLinkAddData(state, "CUBIN", other, "elementwise/while.cu")
    driver.cuLinkAddData(state, "LIBRARY", b"!<arch>", "libcudadevrt.a")
    assert driver.cuModuleLoadData(driver.cuLinkComplete(state)[1])[0] == 209
    driver.cuLinkDestroy(state)
