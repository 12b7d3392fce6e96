"""Arrays of other libraries as arguments, and ours for them."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rawnn
from rawnn.common.errors import ConfigError, DataError
from rawnn.cuda.device import Device
from rawnn.data.dlpack import _exported, _sweep, read
from rawnn.lab import graph as graph_module
from rawnn.lab.array_exchange import capsule
from rawnn.lab.nodes import Span, span_of
from rawnn.sim import Simulation, register

TWICE = "__global__ void lab_twice(const float* x, float* y, int n) {}\n"

register("lab_twice", lambda t, a: t.y.__setitem__(slice(None), 2 * t.x),
         {"x": ("n",), "y": ("n",)}, reads=("x",), writes=("y",))


class Cuda:
    """What CuPy and numba have: an array on the GPU that says where it lies."""

    def __init__(self, array: rawnn.lab.Array, strides: Any = None, shape: Any = None,
                 ordinal: int = 0, **more: Any) -> None:
        self.array, self.device = array, SimpleNamespace(id=ordinal)
        self.__cuda_array_interface__ = {
            "shape": shape or array.shape, "typestr": array.dtype.str,
            "data": (array.address, False), "version": 3, "strides": strides, **more}


@pytest.fixture
def kernel(device: Device) -> rawnn.Kernel:
    return rawnn.Kernel(TWICE, "lab_twice", device=device)


def pair(device: Device, dtype: str = "float32") -> tuple[Any, Any]:
    return (rawnn.array(np.arange(8, dtype=dtype), device=device),
            rawnn.empty(8, dtype, device=device))


def test_an_array_of_another_library_is_used_in_place(sim: Simulation, device: Device,
                                                      kernel: rawnn.Kernel) -> None:
    x, y = pair(device)
    kernel[1, 8](Cuda(x, stream=1), Cuda(y), 8)
    kernel.bind(1, 8, Cuda(x), Cuda(y, stream=int(device.stream.handle)), 8)()
    assert y.numpy().tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    # Behind and ahead of the default stream: two waits a launch, three streams in the second.
    assert sim.faults.count("cuStreamWaitEvent") == 2 + 4


def test_a_graph_is_behind_and_ahead_of_every_stream_of_its_arrays(
        monkeypatch: pytest.MonkeyPatch, device: Device, kernel: rawnn.Kernel) -> None:
    """At each launch: nothing of another library's overtakes it on either side."""
    x, y = pair(device)
    z = rawnn.empty(8, device=device)
    ours = int(device.stream.handle)
    with rawnn.Graph() as g:
        kernel[1, 8](Cuda(x, stream=1), y, 8)
        kernel[1, 8](Cuda(y, stream=2), Cuda(z, stream=1), 8)
    happened = list[Any]()
    monkeypatch.setattr(graph_module, "order", lambda device, first, second: happened.append(
        (int(first.handle), int(second.handle))))
    launch = device.driver.cuGraphLaunch
    monkeypatch.setattr(device.driver, "cuGraphLaunch", lambda *given: (
        happened.append("launch"), launch(*given))[1])
    for _ in range(2):
        g.launch()
        before, after = happened[:happened.index("launch")], happened[happened.index("launch") + 1:]
        streams = {first for first, second in before}
        assert len(streams) == len(before) == 2
        assert {second for first, second in before} == {ours}
        assert sorted(after) == sorted((ours, stream) for stream in streams)
        happened.clear()
    assert z.numpy().tolist() == [0, 4, 8, 12, 16, 20, 24, 28]
    g.close()


@pytest.mark.parametrize(("which", "sentence"), [
    ("type", "'x' points to float, but the array holds float64: convert it to float"),
    ("host", "'x' is a NumPy array, on the host: copy it with rawnn.array"),
    ("read only", "'y' is written, and the array is read-only: declare the parameter const"),
    ("other GPU", "'x' lies on GPU 3, the kernel on GPU 0: copy it there"),
    ("pitch", "'x' is not contiguous: pass a contiguous copy (tensor.contiguous()"),
    ("device", "make array and kernel with the same device="),
])
def test_arrays_that_a_kernel_cannot_use(device: Device, kernel: rawnn.Kernel, which: str,
                                         sentence: str) -> None:
    x, y = pair(device, "float64" if which == "type" else "float32")
    values: dict[str, Any] = {
        "type": (Cuda(x), y), "host": (np.zeros(8, np.float32), y),
        "read only": (x, Cuda(y, data=(y.address, True))), "other GPU": (Cuda(x, ordinal=3), y),
        "pitch": (Cuda(x, shape=(2, 2), strides=(16, 4)), y),
        "device": (rawnn.array(np.zeros(8, np.float32), device=rawnn.lab.simulated()), y)}
    with pytest.raises(ConfigError) as caught:
        kernel[1, 8](*values[which], 8)
    assert sentence in str(caught.value)


def test_strided_elements_have_a_fix(device: Device, kernel: rawnn.Kernel) -> None:
    x, y = pair(device)
    with pytest.raises(DataError, match="argument 'x' is a CUDA array whose elements are not "
                                        "contiguous: make a contiguous copy"):
        kernel[1, 8](Cuda(x, shape=(4,), strides=(8,)), y, 4)


class Host:
    """Memory of the host behind our capsule, which any library can be given to read."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **options: Any) -> Any:
        return capsule(self.values.ctypes.data, self.values.shape, self.values.dtype, (1, 0),
                       self.values)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8", "bool", "complex64"])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4)])
def test_a_capsule_is_what_numpy_takes(dtype: str, shape: tuple[int, ...]) -> None:
    values = np.ones(shape, dtype)
    values.reshape(-1)[0] = 0
    _sweep()
    before = len(_exported)
    taken = np.from_dlpack(Host(values))
    np.testing.assert_array_equal(taken, values)
    assert np.shares_memory(taken, values)
    owner = weakref.ref(values)
    del values
    gc.collect(0)
    assert owner() is not None  # the consumer's array keeps it
    del taken
    gc.collect(0)
    assert owner() is None
    assert len(_exported) == before


def test_bfloat16_and_fp8_pass() -> None:
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        values = np.arange(4).astype(dtype)
        taken = read(Host(values), "x")
        assert taken.dtype == dtype
        assert taken.tolist() == values.tolist()


def test_a_capsule_that_nobody_takes_lets_go() -> None:
    capsule(1, (1,), np.dtype("int8"), (1, 0), None)
    _sweep()
    before = len(_exported)
    made = Host(np.zeros(3)).__dlpack__()
    assert len(_exported) == before + 1
    again = Host(np.zeros(3)).__dlpack__()
    assert len(_exported) == before + 2
    del made, again
    kept = Host(np.zeros(3)).__dlpack__()
    assert len(_exported) == before + 1
    del kept
    with pytest.raises(BufferError, match="DLPack has no type for"):
        capsule(0, (1,), np.dtype("datetime64[s]"), (1, 0), None)


def test_our_arrays_say_where_they_lie(sim: Simulation, device: Device,
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = pair(device)
    with pytest.raises(BufferError, match="simulated GPU cannot be shared"):
        x.__dlpack__()
    assert not hasattr(x, "__cuda_array_interface__")
    monkeypatch.setattr("rawnn.lab.array_exchange._SIMULATED", "no backend")
    assert x.__dlpack_device__() == (2, 0)
    interface = x.__cuda_array_interface__
    assert interface["shape"] == (8,)
    assert interface["typestr"] == "<f4"
    assert interface["data"] == (x.address, False)
    assert interface["stream"] == int(device.stream.handle)
    assert read(x, "x").address == x.address  # type: ignore[union-attr]
    before = sim.faults.count("cuStreamWaitEvent")
    x.__dlpack__(stream=None)
    x.__dlpack__(stream=int(device.stream.handle), max_version=(1, 0), dl_device=(2, 0))
    assert sim.faults.count("cuStreamWaitEvent") == before + 2
    x.__dlpack__(stream=-1)
    assert sim.faults.count("cuStreamWaitEvent") == before + 2
    for wrong in ({"copy": True}, {"dl_device": (1, 0)}):
        with pytest.raises(BufferError, match="shared where it lies"):
            x.__dlpack__(**wrong)
    small = rawnn.array(np.zeros(2), ml_dtypes.bfloat16, device=device)
    assert not hasattr(small, "__cuda_array_interface__")


def test_the_bytes_of_every_kind_of_array(device: Device) -> None:
    """Edges of graphs follow from them."""
    x, host = rawnn.empty((3, 5), np.int16, device=device), np.zeros((2, 3))
    assert span_of("x", x) == span_of("x", Cuda(x), device) == Span("x", x.address, 30)
    assert span_of("h", host) == Span("h", host.ctypes.data, 48)
    with pytest.raises(ConfigError, match="'x' is no array"):
        span_of("x", Cuda(x))


@pytest.mark.parametrize(("module", "is_read_only", "refused"), [
    ("cupy", False, False), ("cupy", True, True), ("jax", False, True),
    ("jaxlib._jax", False, True), ("jaxtyping", False, False)])
def test_an_array_that_must_not_change_is_no_output(device: Device, kernel: rawnn.Kernel,
                                                    module: str, is_read_only: bool,
                                                    refused: bool) -> None:
    (x, _), (y, _) = pair(device), pair(device)
    theirs = type("Theirs", (Cuda,), {"__module__": module})(y, data=(y.address, is_read_only))
    kernel[1, 8](theirs, x, 8)  # as an input each will do
    if not refused:
        kernel[1, 8](x, theirs, 8)
        return
    with pytest.raises(ConfigError, match="argument 'y' is written, and the array is read-only"):
        kernel[1, 8](x, theirs, 8)
