"""Allocators, page-locked memory, streams and launch attributes on a GPU."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from rawnn.common.errors import OutOfMemory
from rawnn.cuda.allocators import AllocationLog, Allocator, Arena, Pool, StreamOrdered
from rawnn.cuda.compiling.signature import parse_kernels
from rawnn.cuda.device import Device
from rawnn.cuda.errors import CallFailed
from rawnn.cuda.launch import Arguments, KernelLaunch
from rawnn.cuda.pinned import PinnedMemory
from rawnn.cuda.stream import Event, OrderingEvent, Stream
from rawnn.engine.machine import machine_of
from rawnn.graphs import Graph
from tests.engine import make_work, random_dataset, run_on

pytestmark = pytest.mark.gpu

MIB = 1 << 20
COUNT = 1 << 20

# Each adds 1. `late` lets the kernel behind it begin at once and writes late; `clustered` says how
# many blocks its cluster has, `roomy` uses all of its dynamic shared memory; in `together` no block
# goes on before all have begun, so that it ends only where all are on the GPU at once.
SOURCE = r"""
#include "primitives/pdl.cuh"
extern "C" __global__ void late(const float* x, float* y, int n) {
  pdl_wait();
  pdl_trigger();
  const long long start = clock64();
  while (clock64() - start < 20000) {}
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    y[i] = x[i] + 1.0f;
}
extern "C" __global__ void clustered(const float* x, float* y, int n) {
  unsigned blocks;
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    y[i] = x[i] + static_cast<float>(blocks);
}
extern "C" __global__ void roomy(const float* x, float* y, int n) {
  extern __shared__ float held[];
  unsigned bytes;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
  for (int i = threadIdx.x; i < static_cast<int>(bytes / 4); i += blockDim.x) held[i] = 1.0f;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    y[i] = x[i] + held[bytes / 4 - 1];
}
extern "C" __global__ void together(const float* x, float* y, int n) {
  __shared__ unsigned begun;
  unsigned* count = reinterpret_cast<unsigned*>(y + n - 1);  // ahead of the last element's value
  if (threadIdx.x == 0) {
    atomicAdd(count, 1u);
    do asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(begun) : "l"(count) : "memory");
    while (begun < gridDim.x);
  }
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n - 1; i += gridDim.x * blockDim.x)
    y[i] = x[i] + static_cast<float>(begun);
}
"""
SIGNATURES = parse_kernels(SOURCE)


@pytest.fixture
def hopper(device: Device) -> Device:
    if device.capability < (9, 0):
        pytest.skip("needs compute capability 9.0")
    names = ("late", "clustered", "roomy", "together")
    if ("gpu.cu", "late", True) not in device._functions:
        device.load(SOURCE, "gpu.cu", SIGNATURES, names, programmatic=True)
    return device


def launch(device: Device, name: str, x: int, y: int, stream: Stream | None = None,
           grid: int = 264, **attributes: Any) -> KernelLaunch:
    """y = x + something for COUNT floats."""
    function = device.function("gpu.cu", name, True)
    return KernelLaunch(device.driver, stream or device.stream, function.handle, name,
                        (grid, 1, 1), (256, 1, 1),
                        Arguments(function.signature, {"x": x, "y": y, "n": COUNT}), **attributes)


def read(device: Device, address: int) -> np.ndarray:
    out = np.empty(COUNT, np.float32)
    device.to_host(out, address, "a vector")
    return out


@pytest.fixture
def vectors(device: Device) -> Iterator[Callable[[int], list[int]]]:
    held = []

    def make(count: int) -> list[int]:
        """Addresses of vectors of COUNT zeros."""
        for _ in range(count):
            held.append(device.memory.allocate(4 * COUNT, "a vector"))
            device.fill(held[-1].address, 0, 4 * COUNT, "a vector")
        return [allocation.address for allocation in held[-count:]]

    yield make
    for allocation in held:
        device.memory.free(allocation)


# -- allocators -----------------------------------------------------------------------------------
MAKERS: dict[str, Callable[[Device], Allocator]] = {
    "each-use": lambda device: device.memory,
    "arena": lambda device: Arena(device.memory, 64 * MIB, "all of it"),
    "pool": lambda device: Pool(device.driver, device.memory, device.stream),
    "async": lambda device: StreamOrdered(device.driver, device.handle, device.memory,
                                          device.stream),
}


@pytest.mark.parametrize("name", MAKERS)
def test_memory_holds_what_was_written_and_is_given_back(name: str, device: Device) -> None:
    before = device.memory.current
    log = device.memory.log = AllocationLog(io.StringIO())
    allocator = MAKERS[name](device)
    for epoch in (1, 2, 3):
        log.begin_epoch(epoch)
        for value in range(5):
            held = [allocator.allocate(4 * COUNT, "held") for _ in range(3)]
            for index, allocation in enumerate(held):
                assert allocation.address % 256 == 0
                device.fill(allocation.address, 16 * value + index, 4 * COUNT, "held")
            for index, allocation in enumerate(held):
                found = read(device, allocation.address).view(np.uint8)
                assert (found == 16 * value + index).all()
            for allocation in held:
                allocator.free(allocation)
    if name == "each-use":
        assert log.calls[3] == 30
    else:
        assert log.calls[2] == log.calls[3] == 0
    device.memory.log = None
    allocator.close()
    assert device.memory.current == before


@pytest.mark.parametrize("name", ["pool", "async"])
def test_memory_that_goes_from_stream_to_stream(name: str, hopper: Device) -> None:
    other, allocator = Stream(hopper.driver), MAKERS[name](hopper)
    ahead, behind = OrderingEvent(hopper.driver), OrderingEvent(hopper.driver)
    for _ in range(20):
        x, y = (allocator.allocate(4 * COUNT, "a vector") for _ in range(2))
        hopper.fill(x.address, 0, 4 * COUNT, "x")
        launch(hopper, "late", x.address, y.address).launch()
        z = allocator.allocate(4 * COUNT, "on the other stream", other)
        ahead.record(hopper.stream)
        other.wait_for(ahead)
        launch(hopper, "late", y.address, z.address, other).launch()
        allocator.used_on(y, other)
        behind.record(other)
        hopper.stream.wait_for(behind)
        allocator.used_on(z, hopper.stream)
        assert (read(hopper, z.address) == 2).all()
        for allocation in (x, y, z):
            allocator.free(allocation)
    hopper.driver.cuCtxSynchronize()
    for resource in (allocator, ahead, behind, other):
        resource.close()


@pytest.mark.parametrize("name", ["each-use", "pool", "async"])
def test_more_memory_than_there_is(name: str, device: Device) -> None:
    allocator = MAKERS[name](device)
    with pytest.raises(OutOfMemory, match="the GPU has no room for"):
        allocator.allocate(2 * device.info.memory, "too much")
    held = allocator.allocate(MIB, "still works")
    allocator.free(held)
    allocator.close()


# -- page-locked memory ---------------------------------------------------------------------------
def test_copies_of_page_locked_memory_do_not_wait(device: Device) -> None:
    pinned = PinnedMemory(device.driver)
    nbytes = 64 * MIB
    host = pinned.empty((nbytes // 4,), np.float32, "staging")
    host[...] = np.arange(host.size, dtype=np.float32)
    back = pinned.empty(host.shape, np.float32, "back")
    block = device.memory.allocate(nbytes, "copied")
    start, end = Event(device.driver), Event(device.driver)
    copy = device.driver.cuMemcpyHtoDAsync
    copy(block.address, host.ctypes.data, nbytes, device.stream.handle)
    start.record(device.stream)
    assert not copy(block.address, host.ctypes.data, nbytes, device.stream.handle)[0]
    end.record(device.stream)
    device.to_host_later(back, block.address, "back")
    device.stream.synchronize()
    assert (back == host).all()
    rate = nbytes / end.milliseconds_since(start) / 1e6
    print(f"page-locked to device: {rate:.1f} GB/s")
    assert rate > 5
    for event in (start, end):
        event.close()
    device.memory.free(block)
    pinned.close()


# -- launch attributes ----------------------------------------------------------------------------
@pytest.mark.parametrize("blocks", [2, 8, 16])
def test_clusters(blocks: int, hopper: Device, vectors: Any) -> None:
    x, y, z = vectors(3)
    shape = {"cluster": (blocks, 1, 1), "grid": 8 * blocks}
    launch(hopper, "clustered", x, y, **shape).launch()
    assert (read(hopper, y) == blocks).all()
    graph = Graph(hopper.driver, hopper.context)
    launch(hopper, "clustered", y, z, **shape).add_to(graph, [], 0)
    executable = graph.instantiate("clusters")
    executable.launch(hopper.stream)
    assert (read(hopper, z) == 2 * blocks).all()
    executable.close()
    graph.close()


@pytest.mark.parametrize("clusters", [{}, {"cluster": (4, 1, 1)}])
def test_cooperative_launches(clusters: dict[str, Any], hopper: Device, vectors: Any) -> None:
    x, y, z = vectors(3)
    grid = hopper.target().at_once[clusters.get("cluster", (1,))[0]] // 8 * 8
    shape = {"grid": grid, "shared_bytes": 120 << 10, "cooperative": True, **clusters}
    launch(hopper, "together", x, y, **shape).launch()
    assert (read(hopper, y)[:-1] == grid).all()
    graph = Graph(hopper.driver, hopper.context)
    launch(hopper, "together", y, z, **shape).add_to(graph, [], 0)
    executable = graph.instantiate("together")
    executable.launch(hopper.stream)
    assert (read(hopper, z)[:-1] == 2 * grid).all()
    executable.close()
    graph.close()


def test_a_cooperative_launch_of_more_blocks_than_fit(hopper: Device, vectors: Any) -> None:
    x, y = vectors(2)
    large = launch(hopper, "together", x, y, grid=hopper.info.multiprocessors + 1,
                   shared_bytes=120 << 10, cooperative=True)
    with pytest.raises(CallFailed, match="CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"):
        large.launch()


def test_clusters_that_do_not_divide_the_grid(hopper: Device, vectors: Any) -> None:
    x, y = vectors(2)
    with pytest.raises(CallFailed, match=r"cuLaunchKernelEx failed with CUDA_ERROR_INVALID"):
        launch(hopper, "clustered", x, y, grid=5, cluster=(2, 1, 1)).launch()


@pytest.mark.parametrize("kib", [1, 48, 100, 227])
def test_dynamic_shared_memory(kib: int, hopper: Device, vectors: Any) -> None:
    x, y = vectors(2)
    launch(hopper, "roomy", x, y, shared_bytes=kib << 10).launch()
    assert (read(hopper, y) == 1).all()


@pytest.mark.parametrize("programmatic", [False, True])
def test_a_chain_on_a_stream(programmatic: bool, hopper: Device, vectors: Any) -> None:
    addresses = vectors(2)
    for step in range(100):
        launch(hopper, "late", addresses[step % 2], addresses[(step + 1) % 2],
               programmatic=programmatic).launch()
    assert (read(hopper, addresses[0]) == 100).all()


@pytest.mark.parametrize("where", ["graph", "captured", "child", "while body"])
def test_a_chain_of_programmatic_edges(where: str, hopper: Device, vectors: Any) -> None:
    addresses = vectors(2)
    graph = Graph(hopper.driver, hopper.context, where)
    target, condition = graph, 0
    if where == "child":
        target = Graph(hopper.driver, hopper.context, "the child")
    elif where == "while body":
        condition = graph.conditional(0)
        _, target = graph.add_while((), condition, "never entered")
    steps = [launch(hopper, "late", addresses[i % 2], addresses[(i + 1) % 2], programmatic=True)
             for i in range(10)]
    if where == "captured":
        graph.capture((), hopper.stream, lambda: [s.launch() for s in steps], "ten launches")
    else:
        last: list[Any] = []
        for step in steps:
            last = step.add_to(target, [], 0, last)
    if where == "child":
        graph.add_child((), target, "the child")
    executable = graph.instantiate(where)
    executable.launch(hopper.stream)
    executable.launch(hopper.stream)
    rounds = 0 if where == "while body" else 20
    assert (read(hopper, addresses[0]) == rounds).all()
    executable.close()
    graph.close()
    if where == "child":
        target.close()


# -- the engine -----------------------------------------------------------------------------------
PLAIN = ("pool", "async", "pinned", "streams", "pinned,streams", "pool,streams,pinned,nosync",
         "preload,streams", "arena,streams,nosync", "pdl", "preload,arena,nosync,pdl",
         "preload,streams,pool,pdl", "async,streams,pinned,nosync,pdl", "preload,graphs",
         "preload,graphs,streams,pdl", "preload,graphs=epoch,pdl", "preload,graphs=epoch,streams",
         "preload,graphs=while,pdl", "graphs=epoch,pinned,streams", "graphs=step,pinned")
FUSED = ("preload,fuse,pdl,pool", "preload,fuse,graphs=epoch,pdl", "best,pdl", "best,pdl,streams",
         "seed,pdl", "seed,streams,pdl")


@pytest.mark.parametrize("layers", [(29, 7), (29, 16, 12, 7)])
@pytest.mark.parametrize("opt", [*PLAIN, *FUSED])
def test_every_way_of_running_learns_the_same(opt: str, layers: tuple[int, ...],
                                              device: Device) -> None:
    machine = machine_of(device)
    if "pdl" in opt and machine.compute_capability < (9, 0):
        pytest.skip("needs compute capability 9.0")
    data = random_dataset()
    base = run_on(device, make_work("none", layers, data, machine=machine, shuffle=True))
    found = run_on(device, make_work(opt, layers, data, machine=machine, shuffle=True))
    tolerance = 0.0 if opt in PLAIN else 2e-5
    for name, value in base.parameters.items():
        assert np.abs(found.parameters[name] - value).max() <= tolerance, name
    np.testing.assert_allclose(found.loss, base.loss, rtol=tolerance or 1e-7)
