"""Launches with everything that CUDA knows of them: macros, clusters, streams, symbols, structs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rawnn
from rawnn.common.errors import CompileError, ConfigError, DeviceError
from rawnn.cuda.device import Device
from rawnn.cuda.stream import Stream
from rawnn.lab import kernel as kernel_module
from rawnn.sim import Simulation, register
from tests import requires

ADD = """
__global__ void lab_add(T* x, T by, int n) {
    int i = blockIdx.x * TILE + threadIdx.x;
    if (i < n) x[i] += by;
}
"""


def add(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
    t.x[...] += a["by"]


register("lab_add", add, {"x": ("n",)}, reads=("x",), writes=("x",))


@pytest.fixture
def kernel(device: Device) -> rawnn.Kernel:
    return rawnn.Kernel(ADD, "lab_add", defines={"T": "float", "TILE": 32}, device=device)


@pytest.fixture
def x(device: Device) -> Any:
    return rawnn.array(np.zeros(64, np.float32), device=device)


def test_macros_are_types_and_numbers(device: Device, kernel: rawnn.Kernel, x: Any) -> None:
    kernel[2, 32](x, 1.5, 64)
    assert (x.numpy() == 1.5).all()
    whole = rawnn.Kernel(ADD, "lab_add", defines={"T": "int", "TILE": 32}, device=device)
    with pytest.raises(ConfigError, match="points to int"):
        whole[2, 32](x, 1, 64)


def test_headers_of_ones_own(device: Device, tmp_path: Path, x: Any) -> None:
    (tmp_path / "tile.h").write_text("constexpr int TILE = 32;\n")
    source = '#include "tile.h"\n' + ADD.replace("T*", "float*").replace("T by", "float by")
    kernel = rawnn.Kernel(source, "lab_add", include=[tmp_path], options=["--use_fast_math"],
                          device=device)
    kernel[2, 32](x, 2, 64)
    assert (x.numpy() == 2).all()


def test_what_one_architecture_alone_has(device: Device) -> None:
    requires.module("cuda.bindings.nvrtc")
    source = ('__global__ void lab_wgmma(int* x) {\n'
              '    asm volatile("wgmma.fence.sync.aligned;");\n}\n')
    rawnn.Kernel(source, "lab_wgmma", arch="sm_90a", device=device)
    with pytest.raises(CompileError, match="wgmma"):
        rawnn.Kernel(source, "lab_wgmma", device=device)


@pytest.mark.parametrize("options", [
    {"shared": 100_000}, {"cluster": 2}, {"cluster": (2, 1, 1)}, {"cooperative": True},
    {"shared": 1024, "cluster": 2, "cooperative": True},
])
def test_using(kernel: rawnn.Kernel, x: Any, options: Any) -> None:
    launch = kernel[2, 32].using(**options)
    launch(x, 1, 64)
    launch(x, 2, 64)
    assert kernel[2, 32].using(**options) is launch
    assert (x.numpy() == 3).all()


def test_a_stream_of_ones_own(sim: Simulation, device: Device, kernel: rawnn.Kernel,
                              x: Any) -> None:
    stream = Stream(device.driver)
    other = SimpleNamespace(cuda_stream=int(stream.handle))
    protocol = type("S", (), {"__cuda_stream__": lambda self: (0, int(stream.handle))})()
    for each in (stream, other, protocol, int(stream.handle)):
        kernel[2, 32].using(stream=each)(x, 1, 64)
    kernel.synchronize()
    assert (x.numpy() == 4).all()
    stream.close()
    with pytest.raises(ConfigError, match="pass a stream of PyTorch"):
        kernel[2, 32].using(stream="mine")


def test_a_bound_launch(kernel: rawnn.Kernel, x: Any) -> None:
    run = kernel.bind(2, 32, x, 1, 64)
    kernel[2, 32](x, 5, 64)  # which has arguments of its own
    for _ in range(3):
        run()
    assert (x.numpy() == 8).all()
    with pytest.raises(ConfigError, match="takes 3 arguments"):
        kernel.bind(2, 32, x)


def test_programmatic_launches_need_a_kernel_that_waits(device: Device, kernel: rawnn.Kernel,
                                                        x: Any) -> None:
    with pytest.raises(ConfigError, match=r"cudaGridDependencySynchronize\(\)"):
        kernel[2, 32].using(programmatic=True)
    wait = '    asm volatile("griddepcontrol.wait;" ::: "memory");\n'
    source = ADD.replace("{\n", "{\n" + wait, 1)
    waiting = rawnn.Kernel(source, "lab_add", defines={"T": "float", "TILE": 32}, device=device)
    waiting[2, 32].using(programmatic=True)(x, 1, 64)
    assert (x.numpy() == 1).all()


SYMBOLS = """
#include <cuda_fp16.h>
__constant__ float taps[3][4];
__device__ unsigned int count;
constexpr int N = 5;
__constant__ __half small[N];
struct Particle { float x; int kind; };
__device__ Particle particles[2];
__global__ void lab_symbols(int n) {}
"""


@pytest.fixture
def symbols(device: Device) -> rawnn.Kernel:
    return rawnn.Kernel(SYMBOLS, "lab_symbols", device=device)


def test_symbols(symbols: rawnn.Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "empty", lambda shape, dtype: np.frombuffer(  # as memory may be
        b"\x5a" * (np.dtype(dtype).itemsize * int(np.prod(shape))), dtype).reshape(shape).copy())
    taps = symbols.symbol("taps")
    assert (taps.shape, taps.dtype) == ((3, 4), np.float32)
    assert not taps.numpy().any()
    taps[:] = np.arange(12).reshape(3, 4)
    taps[1] = 7
    assert symbols.symbol("taps").numpy().tolist() == [[0, 1, 2, 3], [7] * 4, [8, 9, 10, 11]]
    count = symbols.symbol("count")
    count[:] = 3
    assert (count.shape, count.numpy()) == ((), 3)
    small = symbols.symbol("small")
    small[:] = np.arange(5, dtype=np.float16)
    assert small.numpy().tolist() == [0, 1, 2, 3, 4]
    particles = symbols.symbol("particles")
    particles[0] = np.array((1.5, 2), particles.dtype)
    assert particles.numpy()[0].tolist() == (1.5, 2)


@pytest.mark.parametrize(("values", "sentence"), [
    (np.zeros(3), "does not take values of shape (3,)"), (np.zeros(4, complex), "cannot hold"),
    (np.full(4, 1e40), "cannot hold"),
])
def test_values_that_a_symbol_cannot_take(symbols: rawnn.Kernel, values: Any,
                                          sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        symbols.symbol("taps")[:] = values
    assert sentence in str(caught.value)


SCALARS = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
struct Pair { float a; int b[2]; };
__global__ void lab_scalars(__half h, __nv_bfloat16 b, __nv_fp8_e4m3 q, float4 v, Pair p,
                            const Pair* many, const float4* wide) {}
"""


def test_small_floats_vectors_and_structs(device: Device) -> None:
    seen: list[Mapping[str, Any]] = []
    register("lab_scalars", lambda t, a: seen.append(dict(a)), {}, reads=(), writes=())
    pair = np.dtype([("a", "f4"), ("b", "i4", 2)])
    vector = np.array((1, 2, 3, 4), [(n, "f4") for n in "xyzw"])[()]
    many, wide = (rawnn.array(values, device=device)
                  for values in (np.zeros(3, pair), np.zeros((5, 4), np.float32)))
    kernel = rawnn.Kernel(SCALARS, "lab_scalars", device=device)
    values = kernel[1, 1]._values((1.5, np.float32(2.5), 0.5, vector,
                                   np.array((1, (2, 3)), pair)[()], many, wide), [])
    small = [np.array(v, f"u{s}").view(t) for v, s, t in zip(
        values, (2, 2, 1), (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn),
        strict=False)]
    assert [float(each) for each in small] == [1.5, 2.5, 0.5]
    assert values[3] == np.array([1, 2, 3, 4], np.float32).tobytes()
    assert values[4] == np.array((1, (2, 3)), pair).tobytes()
    assert values[5:] == [many.address, wide.address]
    with pytest.raises(ConfigError, match="cannot hold 70000"):
        kernel[1, 1](70000, 1, 1, vector, np.zeros((), pair), many, wide)
    other = rawnn.array(np.zeros(3, [("a", "f4"), ("b", "i8", 2)]), device=device)
    with pytest.raises(ConfigError, match="member 'b' of the struct 'Pair'"):
        kernel[1, 1](1, 1, 1, vector, np.zeros((), pair), other, wide)


def test_members_of_a_struct_that_it_cannot_hold_are_refused(device: Device) -> None:
    kernel = rawnn.Kernel("""struct Inner { unsigned char c; bool on; };
        struct Outer { float a; int b[2]; Inner in; };
        __global__ void nested(Outer o, dim3 d) {}""", "nested", device=device)
    dtype = np.dtype([("a", "f4"), ("b", "i4", 2), ("in", [("c", "u1"), ("on", "?")])], align=True)
    wanted = np.array((0.1, (3, 4), (5, True)), dtype).tobytes()
    for value in ((0.1, (3, 4), (5, True)), [0.1, [3.0, 4.0], (5, 1)]):
        assert kernel[1, 1]._values((value, (1, 2, 3)), [])[0] == wanted
    for value, shown in (((0.1, (3, 4.7), (5, True)), "cannot hold 4.7 in its member 'b'"),
                         ((1e39, (3, 4), (5, True)), r"cannot hold 1e\+39 in its member 'a'"),
                         ((0.1, (3,), (5, True)), r"cannot hold \(3,\) in its member 'b', of sha"),
                         ((0.1, 3, (5, True)), r"cannot hold 3 in its member 'b', of shape \(2,\)"),
                         ((0.1, (3, 4), (5.5, True)), "cannot hold 5.5 in its member 'c'"),
                         ((0.1, (3, 4), (5, 2)), "cannot hold 2 in its member 'on'"),
                         ((0.1, (3, 2**40), (5, True)), "which cannot hold")):
        with pytest.raises(ConfigError, match=shown):
            kernel[1, 1](value, (1, 2, 3))
    with pytest.raises(ConfigError, match=r"cannot hold 2\.5 in its member 'y'"):
        kernel[1, 1]((0.1, (3, 4), (5, True)), (1, 2.5, 3))


def test_a_cluster_that_does_not_divide_the_grid(kernel: rawnn.Kernel) -> None:
    with pytest.raises(ConfigError, match="is no multiple of the cluster"):
        kernel[3, 32].using(cluster=2)
    with pytest.raises(DeviceError, match="a block has at most"):
        kernel[2, 32].using(shared=1 << 20)


SETTINGS: dict[str, tuple[Any, Any, Any]] = {  # as before, another, and the first one again
    "shared": (0, 1024, 0), "cluster": ((1, 1, 1), (2, 1, 1), 1),
    "cooperative": (False, True, False)}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_changes_alone_and_can_be_taken_back(kernel: rawnn.Kernel, name: str) -> None:
    for others in ({}, {n: v[1] for n, v in SETTINGS.items() if n != name}):
        first = kernel[2, 32].using(**others)
        before, value, again = SETTINGS[name]
        changed = first.using(**{name: value})
        assert changed is not first
        assert changed._launch == replace(first._launch, **{name: value})
        assert getattr(first._launch, name) in (before, None)
        assert changed.using() is changed
        back = changed.using(**{name: again})._launch
        assert (getattr(back, name) or before) == before
        for other, (usual, given, _) in SETTINGS.items():
            if other != name:
                assert (getattr(back, other) or usual) == (given if others else usual)


def test_launches_of_many_geometries_are_not_all_kept(kernel: rawnn.Kernel, x: Any,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """The last ones are, and all of them work."""
    monkeypatch.setattr(kernel_module, "_MAX_PREPARED", 4)
    for count, grid in enumerate(range(1, 20), 1):
        launch = kernel[grid, 64]
        launch(x, 1, 64)
        assert kernel[grid, 64] is launch
        assert len(kernel._launchers) <= 5
        assert (x.numpy() == count).all()
    monkeypatch.setattr(kernel_module, "_MAX_PREPARED", 40)
    several = [kernel[grid, 64] for grid in range(20, 30)]
    assert [kernel[grid, 64] for grid in range(20, 30)] == several  # each is prepared once
