"""Launches with clusters, much shared memory, and programmatic launches on a stream."""

from __future__ import annotations

from typing import Any

import pytest

from rawnn.cuda.compiling.signature import parse_kernels
from rawnn.cuda.device import Device
from rawnn.cuda.errors import CallFailed
from rawnn.cuda.launch import Arguments, KernelLaunch
from rawnn.cuda.stream import OrderingEvent
from rawnn.graphs import Graph
from rawnn.sim import Fault, Race, Simulation
from tests.sim.work import plus_one, read, register_plus_one, vector

WAIT, TRIGGER = "pdl_wait();", "pdl_trigger();"
KERNELS = {"plain": "", "waiting": WAIT, "both": WAIT + TRIGGER, "early": TRIGGER + WAIT}
SOURCE = plus_one(KERNELS)
SEEDS = range(6)


@pytest.fixture(autouse=True)
def _references(own_meanings: None) -> None:
    register_plus_one(KERNELS)


def opened(seed: int = 0, defined: bool = True, **properties: Any) -> Device:
    """A simulated GPU with the kernels, RAWNN_PDL defined in them or not."""
    device = Device(Simulation(seed, **properties).backend())
    nvrtc, arch = device.backend.nvrtc(), device.arch
    _, program = nvrtc.nvrtcCreateProgram(SOURCE, "kernels.cu")
    for name in KERNELS:
        nvrtc.nvrtcAddNameExpression(program, name)
    nvrtc.nvrtcCompileProgram(program, [f"-arch={arch}", *(["-DRAWNN_PDL"] * defined)])
    _, module = device.driver.cuModuleLoadData(nvrtc.nvrtcGetCUBIN(program)[1])
    nvrtc.nvrtcDestroyProgram(program)
    device.handles = {  # type: ignore[attr-defined]
        name: device.driver.cuModuleGetFunction(module, name.encode())[1] for name in KERNELS}
    device._closing.callback(device.driver.cuModuleUnload, module)
    return device


def launch(device: Device, name: str, x: int, y: int, grid: int = 1,
           **attributes: Any) -> KernelLaunch:
    """y = x + 1 by one of the kernels."""
    arguments = Arguments(parse_kernels(SOURCE)[name], {"x": x, "y": y, "n": 8})
    return KernelLaunch(device.driver, device.stream, device.handles[name],  # type: ignore[attr-defined]
                        name, (grid, 1, 1), (32, 1, 1), arguments, **attributes)


def graph_runs(device: Device, graph: Graph) -> None:
    """Once, and is closed."""
    executable = graph.instantiate("a graph")
    executable.launch(device.stream)
    device.stream.synchronize()
    executable.close()
    graph.close()


# -- shared memory and clusters -------------------------------------------------------------------
def test_more_shared_memory_than_the_default_is_asked_for_once() -> None:
    device = opened()
    x, y = vector(device, 1.0), vector(device)
    large = launch(device, "plain", x, y, shared_bytes=100 << 10)
    launch(device, "plain", x, y, shared_bytes=50 << 10).run(0)
    large.run(0)  # the smaller launch has not lowered the limit
    assert (read(device, y) == 2).all()
    assert device.driver.simulation.faults.count("cuFuncSetAttribute") == 1
    with pytest.raises(CallFailed, match=r"cuFuncSetAttribute failed with CUDA_ERROR_INVALID_VALUE"
                                         r".*MAX_DYNAMIC_SHARED_SIZE_BYTES for plain, grid"):
        launch(device, "plain", x, y, shared_bytes=228 << 10)


@pytest.mark.parametrize(("given", "attribute", "found", "calls"), [
    ({}, "PREFERRED_SHARED_MEMORY_CARVEOUT", -1, 0),
    ({"carveout": 0}, "PREFERRED_SHARED_MEMORY_CARVEOUT", 0, 1),
    ({"carveout": 100}, "PREFERRED_SHARED_MEMORY_CARVEOUT", 100, 1),
    ({"shared_bytes": 48 << 10}, "MAX_DYNAMIC_SHARED_SIZE_BYTES", 48 << 10, 0),
    ({"shared_bytes": (48 << 10) + 1}, "MAX_DYNAMIC_SHARED_SIZE_BYTES", (48 << 10) + 1, 1),
    ({"cluster": (4, 2, 1)}, "NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 0, 0),
    ({"cluster": (3, 3, 1)}, "NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1, 1)])
def test_a_kernel_is_allowed_what_a_launch_needs_once(given: dict[str, Any], attribute: str,
                                                      found: int, calls: int) -> None:
    device = opened()
    for _ in range(2):
        launch(device, "plain", vector(device), vector(device), **given)
    function = device.handles["plain"]  # type: ignore[attr-defined]
    assert device.driver.cuFuncGetAttribute(attribute, function) == (0, found)
    assert device.driver.simulation.calls.count("cuFuncSetAttribute") == calls
    device.close()
    device.driver.simulation.assert_clean()


@pytest.mark.parametrize("blocks", [2, 8, 16])
def test_clusters_on_a_stream_and_in_a_graph(blocks: int) -> None:
    device = opened()
    x, y, z = vector(device, 1.0), vector(device), vector(device)
    launch(device, "plain", x, y, grid=2 * blocks, cluster=(blocks, 1, 1)).run(0)
    graph = Graph(device.driver, device.context)
    launch(device, "plain", y, z, grid=blocks, cluster=(blocks, 1, 1)).add_to(graph, [], 0)
    graph_runs(device, graph)
    assert (read(device, z) == 3).all()
    device.close()
    device.driver.simulation.assert_clean()


@pytest.mark.parametrize(("grid", "blocks"), [(5, 2), (32, 32), (8, 0)])
def test_clusters_that_cannot_be(grid: int, blocks: int) -> None:
    device = opened()
    x, y = vector(device, 1.0), vector(device)
    wrong = launch(device, "plain", x, y, grid=grid, cluster=(blocks, 1, 1))
    with pytest.raises(CallFailed, match=rf"cuLaunchKernelEx failed with "
                                         rf"CUDA_ERROR_INVALID_CLUSTER_SIZE \[912\].*"
                                         rf"clusters \({blocks}, 1, 1\)"):
        wrong.run(0)
    graph = Graph(device.driver, device.context)
    with pytest.raises(CallFailed, match="cuGraphKernelNodeSetAttribute failed"):
        wrong.add_to(graph, [], 0)


# -- cooperative launches -------------------------------------------------------------------------
def test_a_cooperative_launch_on_a_stream_and_in_a_graph() -> None:
    device = opened()
    x, y, z = vector(device, 1.0), vector(device), vector(device)
    together = {"grid": 132, "cooperative": True}
    launch(device, "plain", x, y, **together).run(0)
    graph = Graph(device.driver, device.context)
    launch(device, "plain", y, z, **together, cluster=(4, 1, 1)).add_to(graph, [], 0)
    node, = device.driver._graph(graph.handle).nodes
    assert node.cooperative
    assert node.cluster == (4, 1, 1)
    graph_runs(device, graph)
    assert (read(device, z) == 3).all()
    device.close()
    device.driver.simulation.assert_clean()


@pytest.mark.parametrize(("capability", "shared", "most"), [
    ((9, 0), 227 << 10, 132), ((9, 0), 113 << 10, 264), ((9, 0), 0, 132 * 32),
    ((8, 0), 163 << 10, 108), ((7, 5), 0, 40 * 16), ((12, 0), 49 << 10, 2 * 188),
])
def test_more_blocks_than_fit_at_once_are_refused(capability: tuple[int, int], shared: int,
                                                  most: int) -> None:
    device = opened(compute_capability=capability)
    x, y = vector(device, 1.0), vector(device)
    launch(device, "plain", x, y, most, cooperative=True, shared_bytes=shared).run(0)
    large = launch(device, "plain", x, y, most + 1, cooperative=True, shared_bytes=shared)
    with pytest.raises(CallFailed, match=r"cuLaunchKernelEx failed with "
                                         r"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE \[720\].*"
                                         r"plain, grid \(\d+, 1, 1\), .* cooperative"):
        large.run(0)
    graph = Graph(device.driver, device.context)
    with pytest.raises(CallFailed, match="cuGraphKernelNodeSetAttribute failed"):
        large.add_to(graph, [], 0)
    launch(device, "plain", x, y, most + 1, shared_bytes=shared).run(0)


def test_a_gpu_without_clusters() -> None:
    device = opened(compute_capability=(8, 0))
    x, y = vector(device, 1.0), vector(device)
    with pytest.raises(CallFailed, match="cuLaunchKernelEx failed with CUDA_ERROR_NOT_SUPPORTED"):
        launch(device, "plain", x, y, grid=2, cluster=(2, 1, 1)).run(0)
    with pytest.raises(CallFailed, match="cuLaunchKernelEx failed with CUDA_ERROR_NOT_SUPPORTED"):
        launch(device, "plain", x, y, programmatic=True).run(0)


def test_node_attributes_of_what_is_no_kernel_node(device: Device) -> None:
    graph = Graph(device.driver, device.context)
    node = graph.add_memset((), vector(device), 0, 32, "clear")
    set_attribute = device.driver.cuGraphKernelNodeSetAttribute
    assert set_attribute(node, "CLUSTER_DIMENSION", (1, 1, 1)) == (1,)
    assert set_attribute(4711, "CLUSTER_DIMENSION", (1, 1, 1)) == (1,)
    assert set_attribute(node, "COOPERATIVE", 1) == (1,)
    graph.close()


def test_node_attributes_that_are_none() -> None:
    device = opened()
    graph = Graph(device.driver, device.context)
    node, = launch(device, "plain", vector(device), vector(device)).add_to(graph, [], 0)
    set_attribute = device.driver.cuGraphKernelNodeSetAttribute
    assert set_attribute(node, "COOPERATIVE", 2) == (1,)
    assert set_attribute(node, "COOPERATIVE", (1, 1, 1)) == (1,)
    assert set_attribute(node, "CLUSTER_DIMENSION", 1) == (1,)
    assert set_attribute(node, "PRIORITY", (1, 1, 1)) == (1,)
    assert set_attribute(node, "PRIORITY", -5) == (0,)
    assert set_attribute(node, "MEMORY", 1) == (1,)
    graph.close()


@pytest.mark.parametrize("call", ["cuFuncGetAttribute", "cuFuncSetAttribute", "cuLaunchKernelEx"])
def test_a_failed_call_says_the_launch(call: str) -> None:
    device = opened()
    device.driver.simulation.faults.add(Fault(call=call))
    x, y = vector(device, 1.0), vector(device)
    with pytest.raises(CallFailed, match=rf"{call} failed with CUDA_ERROR_UNKNOWN.*plain, grid"):
        launch(device, "plain", x, y, grid=16, cluster=(16, 1, 1), shared_bytes=64 << 10).run(0)


# -- programmatic launches on a stream ------------------------------------------------------------
def chain(seed: int, names: tuple[str, ...], defined: bool = True) -> None:
    """Each kernel adds 1 to what the one before it wrote; all but the first are programmatic."""
    device = opened(seed, defined)
    vectors = [vector(device, 1.0), *(vector(device) for _ in names)]
    for index, name in enumerate(names):
        launch(device, name, vectors[index], vectors[index + 1], programmatic=index > 0).run(0)
    assert (read(device, vectors[-1]) == 1 + len(names)).all()
    device.close()
    device.driver.simulation.assert_clean()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("names", [
    ("plain", "waiting", "waiting"), ("both", "both", "both"), ("early", "early", "early"),
    ("waiting", "both", "early", "waiting"),
])
def test_kernels_that_wait_are_in_order(names: tuple[str, ...], seed: int) -> None:
    chain(seed, names)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("names", [
    ("plain", "plain"), ("both", "plain"), ("early", "both", "plain"),
])
def test_kernels_that_do_not_wait_race(names: tuple[str, ...], seed: int) -> None:
    with pytest.raises(Race, match=r"programmatic edge.*cudaGridDependencySynchronize"):
        chain(seed, names)


def test_without_the_definition_nothing_waits() -> None:
    with pytest.raises(Race):
        chain(0, ("both", "both"), defined=False)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_comes_two_kernels_before_is_ordered_only_if_the_one_between_waits(seed: int) -> None:
    for between, fine in (("waiting", True), ("plain", False)):
        device = opened(seed)
        x, y, z, end = vector(device, 1.0), *(vector(device) for _ in range(3))
        launch(device, "both", x, y).run(0)
        launch(device, between, x, z, programmatic=True).run(0)
        launch(device, "waiting", y, end, programmatic=True).run(0)
        if fine:
            assert (read(device, end) == 3).all()
        else:
            with pytest.raises(Race, match="nothing orders the two"):
                device.stream.synchronize()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("between", ["a fill", "a record", "a wait"])
def test_behind_a_fill_or_an_event_the_attribute_means_nothing(seed: int, between: str) -> None:
    device = opened(seed)
    x, y, z, other = (vector(device, 1.0) for _ in range(4))
    event = OrderingEvent(device.driver)
    event.record(device.stream)
    launch(device, "both", x, y).run(0)
    if between == "a fill":
        device.fill(other, 0, 32, "a vector")
    elif between == "a record":
        event.record(device.stream)
    else:
        device.stream.wait_for(event)
    launch(device, "plain", y, z, programmatic=True).run(0)
    assert (read(device, z) == 3).all()
    event.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_captured_launches_are_joined_by_programmatic_edges(seed: int) -> None:
    device = opened(seed)
    x, y, z = vector(device, 1.0), vector(device), vector(device)
    graph = Graph(device.driver, device.context)

    def enqueue() -> None:
        launch(device, "both", x, y).run(0)
        launch(device, "waiting", y, z, programmatic=True).run(0)

    graph.capture((), device.stream, enqueue, "two kernels")
    nodes = device.driver._graph(graph.handle).nodes
    assert [(n.dependencies, n.programmatic) for n in nodes] == [((), ()), ((), (0,))]
    graph_runs(device, graph)
    assert (read(device, z) == 3).all()
    device.close()
    device.driver.simulation.assert_clean()


def test_a_launch_joins_a_graph_by_both_kinds_of_edges() -> None:
    device = opened()
    x, y, z = vector(device), vector(device), vector(device)
    graph = Graph(device.driver, device.context)
    clear = graph.add_memset((), x, 0, 32, "clear")
    first = launch(device, "both", x, y).add_to(graph, [clear], 0)
    launch(device, "waiting", y, z).add_to(graph, [clear], 0, programmatic_after=first)
    assert graph.size() == (3, 3)
    graph_runs(device, graph)
    assert (read(device, z) == 2).all()
    device.close()
    device.driver.simulation.assert_clean()


@pytest.mark.parametrize("seed", SEEDS)
def test_behind_a_graph_the_attribute_means_nothing(seed: int) -> None:
    device = opened(seed)
    x, y, z, end = vector(device, 1.0), *(vector(device) for _ in range(3))
    graph = Graph(device.driver, device.context)
    launch(device, "plain", y, z).add_to(graph, [], 0)
    executable = graph.instantiate("one kernel")
    launch(device, "both", x, y).run(0)
    executable.launch(device.stream)
    launch(device, "plain", z, end, programmatic=True).run(0)
    assert (read(device, end) == 4).all()
