"""The driver's backend without a driver: the bindings accept the arguments it passes.

A binding looks for the driver after it has converted its arguments, so without one a call that
got that far says that the driver is missing, and a call with a wrong list says something else.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests import requires

cu = requires.module("cuda.bindings.driver")

from rawnn.cuda.driver import Driver  # noqa: E402


@pytest.fixture(scope="module")
def driver() -> Driver:
    bindings = Driver()
    try:
        bindings.cuInit(0)
    except RuntimeError:
        return bindings
    pytest.skip("a driver is here: handles that mean nothing would reach it")


NO_DRIVER = r'(?i)driver|libcuda|^Function "cu\w+" not found$'
"""What the bindings say without one; the last by those before 12.9.2 and 13.0.1."""
NODE, GRAPH, STREAM, CONTEXT, BLOCK = cu.CUgraphNode(1), 0, 0, 0, (1, 1, 1)

CALLS: dict[str, Callable[[Driver, list[Any]], Any]] = {
    "cuGraphAddKernelNode": lambda d, after: d.cuGraphAddKernelNode(
        GRAPH, after, cu.CUfunction(1), BLOCK, BLOCK, 0, 0),
    "cuGraphAddMemsetNode": lambda d, after: d.cuGraphAddMemsetNode(
        GRAPH, after, 256, 0, 4, CONTEXT),
    "cuGraphAddMemcpyNode HtoD": lambda d, after: d.cuGraphAddMemcpyNode(
        GRAPH, after, "HtoD", 256, 512, 4, CONTEXT),
    "cuGraphAddMemcpyNode DtoH": lambda d, after: d.cuGraphAddMemcpyNode(
        GRAPH, after, "DtoH", 256, 512, 4, CONTEXT),
    "cuGraphAddChildGraphNode": lambda d, after: d.cuGraphAddChildGraphNode(GRAPH, after, 0),
    "cuGraphAddEventRecordNode": lambda d, after: d.cuGraphAddEventRecordNode(GRAPH, after, 0),
    "cuGraphAddConditionalNode IF": lambda d, after: d.cuGraphAddConditionalNode(
        GRAPH, after, 1, "IF", CONTEXT),
    "cuGraphAddConditionalNode WHILE": lambda d, after: d.cuGraphAddConditionalNode(
        GRAPH, after, 1, "WHILE", CONTEXT),
    "cuStreamBeginCaptureToGraph": lambda d, after: d.cuStreamBeginCaptureToGraph(
        STREAM, GRAPH, after),
    "cuStreamBeginCapture": lambda d, after: d.cuStreamBeginCapture(STREAM),
}


@pytest.mark.parametrize("dependencies", [0, 1, 2])
@pytest.mark.parametrize("name", CALLS)
def test_the_bindings_take_any_number_of_dependencies(
    driver: Driver, name: str, dependencies: int
) -> None:
    with pytest.raises(RuntimeError, match=NO_DRIVER):
        CALLS[name](driver, [NODE] * dependencies)


@pytest.mark.parametrize("dependencies", [0, 1, 2])
@pytest.mark.parametrize("takes_none", [True, False])
def test_capture_into_a_graph_gives_edges_to_the_bindings_that_ask_for_them(
    driver: Driver, dependencies: int, takes_none: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def begin(stream: Any, graph: Any, after: list[Any], edges: Any, count: int,
              mode: Any) -> tuple[int]:
        if count > len(edges or ()) and not (takes_none and edges is None):
            raise RuntimeError(f"List is too small: {len(edges or ())} < {count}")
        seen.append(edges)
        return (0,)

    monkeypatch.setattr(driver, "_cu", SimpleNamespace(
        cuStreamBeginCaptureToGraph=begin, CUgraphEdgeData=cu.CUgraphEdgeData,
        CUstreamCaptureMode=cu.CUstreamCaptureMode))
    assert driver.cuStreamBeginCaptureToGraph(STREAM, GRAPH, [NODE] * dependencies) == (0,)
    (edges,) = seen
    if takes_none or not dependencies:
        assert edges is None
    else:  # all zero: what the driver takes none for
        assert [(e.from_port, e.to_port, int(e.type)) for e in edges] == [(0, 0, 0)] * dependencies


@pytest.mark.parametrize("producers", [1, 2])
def test_programmatic_edges_reach_the_driver(driver: Driver, producers: int) -> None:
    with pytest.raises(RuntimeError, match=NO_DRIVER):
        driver.cuGraphAddDependencies(GRAPH, [NODE] * producers, cu.CUgraphNode(2))


@pytest.mark.parametrize("call", [
    lambda d: d.cuGraphConditionalHandleCreate(GRAPH, CONTEXT, 1),
    lambda d: d.cuStreamGetCaptureInfo(STREAM),
    lambda d: d.cuGraphGetNodes(GRAPH),
    lambda d: d.cuGraphGetEdges(GRAPH),
    lambda d: d.cuLinkCreate(),
    lambda d: d.cuDeviceGetName(0),
    lambda d: d.cuDeviceGetAttribute("MULTIPROCESSOR_COUNT", 0),
    lambda d: d.cuMemAlloc(256),
    lambda d: d.cuMemAllocAsync(256, STREAM),
    lambda d: d.cuMemFreeAsync(cu.CUdeviceptr(256), STREAM),
    lambda d: d.cuMemHostAlloc(256, 0),
    lambda d: d.cuMemFreeHost(256),
    lambda d: d.cuDeviceGetDefaultMemPool(0),
    lambda d: d.cuMemPoolSetAttribute(cu.CUmemoryPool(1), "RELEASE_THRESHOLD", 2**64 - 1),
    lambda d: d.cuMemPoolGetAttribute(cu.CUmemoryPool(1), "RESERVED_MEM_CURRENT"),
    lambda d: d.cuMemPoolTrimTo(cu.CUmemoryPool(1), 0),
    lambda d: d.cuEventQuery(cu.CUevent(1)),
    lambda d: d.cuFuncSetAttribute(cu.CUfunction(1), "MAX_DYNAMIC_SHARED_SIZE_BYTES", 1 << 16),
    lambda d: d.cuFuncSetAttribute(cu.CUfunction(1), "NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1),
    lambda d: d.cuGraphKernelNodeSetAttribute(NODE, "CLUSTER_DIMENSION", (2, 1, 1)),
    lambda d: d.cuGraphKernelNodeSetAttribute(NODE, "COOPERATIVE", 1),
    lambda d: d.cuOccupancyMaxActiveBlocksPerMultiprocessor(cu.CUfunction(1), 256, 1 << 16),
    lambda d: d.cuOccupancyMaxActiveClusters(cu.CUfunction(1), cu.CUlaunchConfig()),
    lambda d: d.cuTensorMapEncodeTiled("BFLOAT16", 4096, (100, 30), (208,), (64, 8), "128B",
                                       "L2_256B"),
])
def test_other_calls_reach_the_driver(driver: Driver, call: Callable[[Driver], Any]) -> None:
    with pytest.raises(RuntimeError, match=NO_DRIVER):
        call(driver)


@pytest.mark.parametrize("nbytes", [1, 4, 4096])
def test_a_memset_node_sets_bytes(driver: Driver, monkeypatch: pytest.MonkeyPatch,
                                  nbytes: int) -> None:
    made: list[Any] = []

    class Recording:
        def __getattr__(self, name: str) -> Any:
            return getattr(cu, name)

        def cuGraphAddMemsetNode(self, *arguments: Any) -> Any:
            made.append(arguments[3])
            return cu.CUresult.CUDA_SUCCESS, NODE

    monkeypatch.setattr(driver, "_cu", Recording())
    driver.cuGraphAddMemsetNode(GRAPH, [], 256, 7, nbytes, CONTEXT)
    node, = made
    assert (int(node.dst), node.value) == (256, 7)
    assert node.elementSize == 1  # or 7 would be set in every second or fourth byte only
    assert (node.width, node.height) == (nbytes, 1)


@pytest.mark.parametrize("cooperative", [False, True])
@pytest.mark.parametrize("programmatic", [False, True])
@pytest.mark.parametrize("cluster", [None, (4, 2, 1)])
def test_launch_configurations(driver: Driver, cluster: Any, programmatic: bool,
                               cooperative: bool) -> None:
    config = driver.launch_config((8, 2, 3), (128, 4, 5), 4096, STREAM, cluster, programmatic,
                                  cooperative)
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (8, 2, 3)
    assert (config.blockDimX, config.blockDimY, config.blockDimZ) == (128, 4, 5)
    assert int(config.hStream) == int(STREAM)
    assert config.sharedMemBytes == 4096
    assert config.numAttrs == len(config.attrs) == (cluster is not None) + programmatic \
        + cooperative
    ids, found = cu.CUlaunchAttributeID, {int(a.id): a.value for a in config.attrs}
    if cluster:
        shape = found[int(ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)].clusterDim
        assert (shape.x, shape.y, shape.z) == cluster
    if programmatic:
        value = found[int(ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)]
        assert value.programmaticStreamSerializationAllowed == 1
    if cooperative:
        assert found[int(ids.CU_LAUNCH_ATTRIBUTE_COOPERATIVE)].cooperative == 1
    with pytest.raises(RuntimeError, match=NO_DRIVER):
        driver.cuLaunchKernelEx(config, cu.CUfunction(1), 0, 0)
