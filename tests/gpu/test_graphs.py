"""IF nodes, programmatic edges and updates on a GPU, checked by what the kernels wrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import rawnn
from rawnn.common.errors import DeviceError
from rawnn.cuda.compiling.signature import parse_kernels
from rawnn.cuda.device import Device
from rawnn.cuda.errors import CallFailed
from rawnn.cuda.launch import Arguments
from rawnn.graphs import Graph
from rawnn.lab.arrays import Array, default_device

pytestmark = pytest.mark.gpu

COUNT, BLOCK = 1 << 16, 256

CHOOSE = """
extern "C" __device__ void cudaGraphSetConditional(unsigned long long handle, unsigned int value);

extern "C" __global__ void choose(const int* flag, unsigned long long handle) {
    if (threadIdx.x == 0) cudaGraphSetConditional(handle, *flag != 0 ? 1u : 0u);
}
"""

# The producer lets its consumer begin at once and writes late: only the wait makes the sum right.
STEPS = """
extern "C" __global__ void late(const float* x, float* y, float factor, int n) {
    asm volatile("griddepcontrol.launch_dependents;");
    const long long start = clock64();
    while (clock64() - start < 200000) {}
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * factor;
}

extern "C" __global__ void add_one(const float* x, float* y, int n) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + 1.0f;
}
"""


@pytest.fixture
def device() -> Device:
    try:
        found = default_device()
    except DeviceError as error:
        pytest.skip(str(error))
    if found.capability < (9, 0):
        pytest.skip("programmatic edges need compute capability 9.0")
    return found


def kernel(device: Device, graph: Graph, source: str, name: str, values: dict[str, Any],
           after: Sequence[Any] = (), programmatic_after: Sequence[Any] = ()) -> Any:
    """A node of a kernel with one thread for each of COUNT elements; arrays are passed by their
    addresses. The caller has loaded the kernel."""
    function = device.function(source, name)
    arguments = Arguments(function.signature, {
        key: value.address if isinstance(value, Array) else value for key, value in values.items()
    })
    return graph.add_kernel(after, function.handle, (COUNT // BLOCK, 1, 1), (BLOCK, 1, 1), 0,
                            arguments.address, name, programmatic_after)


def launch(device: Device, graph: Graph, times: int = 1) -> None:
    executable = graph.instantiate("a graph under test")
    for _ in range(times):
        executable.launch(device.stream)
    device.stream.synchronize()
    executable.close()


def test_a_kernel_decides_whether_the_body_of_an_if_node_runs(device: Device) -> None:
    device.load(CHOOSE, "choose.cu", parse_kernels(CHOOSE), ("choose",), relocatable=True)
    function = device.function("choose.cu", "choose")
    x, flag = rawnn.array(np.ones(COUNT, np.int32)), rawnn.array(np.zeros(1, np.int32))
    graph = Graph(device.driver, device.context)
    handle = graph.conditional(default=0)
    arguments = Arguments(function.signature, {"flag": flag.address, "handle": handle})
    chosen = graph.add_kernel((), function.handle, (1, 1, 1), (32, 1, 1), 0, arguments.address,
                              "choose")
    _, body = graph.add_if([chosen], handle, "perhaps")
    body.add_memset((), x.address, 0, x.nbytes, "clear")
    executable = graph.instantiate("if")
    for value, expected in ((0, 1), (1, 0)):
        device.to_device(flag.address, np.full(1, value, np.int32), "flag")
        executable.launch(device.stream)
        device.stream.synchronize()
        assert (x.numpy() == expected).all()
    executable.close()
    graph.close()


def test_a_consumer_that_waits_sees_all_that_its_producer_wrote(device: Device) -> None:
    device.load(STEPS, "steps.cu", parse_kernels(STEPS), ("late", "add_one"))
    x = rawnn.array(np.arange(COUNT, dtype=np.float32))
    y, z = (rawnn.array(np.zeros(COUNT, np.float32)) for _ in range(2))
    graph = Graph(device.driver, device.context)
    first = kernel(device, graph, "steps.cu", "late", {"x": x, "y": y, "factor": 2, "n": COUNT})
    second = kernel(device, graph, "steps.cu", "add_one", {"x": y, "y": z, "n": COUNT},
                    programmatic_after=[first])
    kernel(device, graph, "steps.cu", "add_one", {"x": z, "y": x, "n": COUNT}, [second])
    assert graph.size() == (3, 2)
    launch(device, graph, times=2)
    graph.close()
    once = np.arange(COUNT, dtype=np.float32) * 2 + 2
    np.testing.assert_array_equal(x.numpy(), once * 2 + 2)


def test_programmatic_edges_join_kernels_alone(device: Device) -> None:
    device.load(STEPS, "steps.cu", parse_kernels(STEPS), ("late", "add_one"))
    x = rawnn.array(np.zeros(COUNT, np.float32))
    graph = Graph(device.driver, device.context)
    clear = graph.add_memset((), x.address, 0, x.nbytes, "clear")

    def build() -> None:
        kernel(device, graph, "steps.cu", "add_one", {"x": x, "y": x, "n": COUNT},
               programmatic_after=[clear])
        graph.instantiate("refused")

    with pytest.raises(CallFailed):  # the driver may refuse the edge, or the graph with it
        build()
    graph.close()


def test_an_update_takes_over_arguments_and_refuses_another_topology(device: Device) -> None:
    device.load(STEPS, "steps.cu", parse_kernels(STEPS), ("late", "add_one"))
    x = rawnn.array(np.ones(COUNT, np.float32))
    y, z = (rawnn.array(np.zeros(COUNT, np.float32)) for _ in range(2))

    def build(factor: float, target: Array, more: bool = False) -> Graph:
        graph = Graph(device.driver, device.context)
        node = kernel(device, graph, "steps.cu", "late",
                      {"x": x, "y": target, "factor": factor, "n": COUNT})
        if more:
            graph.add_memset([node], target.address, 0, target.nbytes, "clear")
        return graph

    first, second, longer = build(3, y), build(5, z), build(7, y, more=True)
    executable = first.instantiate("one kernel")
    executable.launch(device.stream)
    executable.update(second)
    executable.launch(device.stream)
    with pytest.raises(CallFailed, match="CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE"):
        executable.update(longer)
    executable.launch(device.stream)
    device.stream.synchronize()
    assert (y.numpy() == 3).all()
    assert (z.numpy() == 5).all()
    executable.close()
    for graph in (first, second, longer):
        graph.close()
