"""What the simulated libraries refuse as the real ones do, by the code of each call, beside the
values next to it that they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rawnn.cuda.device import Device
from rawnn.cuda.driver import LINK_CUBIN, LINK_LIBRARY
from rawnn.cuda.libs.nccl import DATA_TYPE, MAX, SUM, SYMMETRIC
from rawnn.cuda.stream import Stream
from rawnn.sim import Simulation, SimulationError
from rawnn.sim.codes import CODES
from tests.sim.work import read, vector
from tests.together import Waiting

INVALID, HANDLE = "CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_INVALID_HANDLE"
STATE, UNSUPPORTED = "CUDA_ERROR_ILLEGAL_STATE", "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"


class Things:
    """What the calls below are about."""

    def __init__(self, device: Device) -> None:
        self.device, self.driver = device, device.driver
        loaded = device.function("elementwise/activation.cu", "activate<float,float,Relu>")
        self.function, self.module = loaded.handle, loaded.module
        self.graph = self.driver.cuGraphCreate(0)[1]
        self.stream = self.driver.cuStreamCreate(1)[1]
        self.event = self.driver.cuEventCreate(0)[1]
        self.address = vector(device, 1.0)
        self.shared = device.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")

    def memset(self) -> Any:
        return self.driver.cuGraphAddMemsetNode(self.graph, [], self.address, 0, 4, 1)[1]

    def uploaded(self, stream: int) -> Any:
        """The result of an upload of the graph, which is then gone."""
        executable = self.driver.cuGraphInstantiate(self.graph, 0)[1]
        result = self.driver.cuGraphUpload(executable, stream)
        self.driver.cuGraphExecDestroy(executable)
        return result

    def after_close(self, make: str, close: str, call: str, *behind: Any) -> Any:
        """The result of a call on something that has been destroyed."""
        handle = getattr(self.driver, make)(0)[1]
        getattr(self.driver, close)(handle)
        return getattr(self.driver, call)(handle, *behind)


Call = Callable[[Things], Any]
CASES: dict[str, tuple[str, Call]] = {
    "flags of cuInit": (INVALID, lambda t: t.driver.cuInit(1)),
    "another device": ("CUDA_ERROR_INVALID_DEVICE", lambda t: t.driver.cuDeviceGet(1)),
    "another device's name": ("CUDA_ERROR_INVALID_DEVICE", lambda t: t.driver.cuDeviceGetName(1)),
    "another device's memory": ("CUDA_ERROR_INVALID_DEVICE",
                                lambda t: t.driver.cuDeviceTotalMem(1)),
    "another device's context": ("CUDA_ERROR_INVALID_DEVICE",
                                 lambda t: t.driver.cuDevicePrimaryCtxRetain(1)),
    "a limit below 0": (INVALID, lambda t: t.driver.cuCtxSetLimit("STACK_SIZE", -1)),
    "a limit of 0": ("", lambda t: t.driver.cuCtxSetLimit("STACK_SIZE", 0)),
    "a variable that no source has": ("CUDA_ERROR_NOT_FOUND", lambda t: t.driver.cuModuleGetGlobal(
        t.module, b"counter")),
    "flags of a stream": (INVALID, lambda t: t.driver.cuStreamCreate(2)),
    "flags of an urgent stream": (INVALID, lambda t: t.driver.cuStreamCreateWithPriority(2, -1)),
    "flags of an event": (INVALID, lambda t: t.driver.cuEventCreate(8)),
    "an event that is gone": (HANDLE, lambda t: t.after_close(
        "cuEventCreate", "cuEventDestroy", "cuEventRecord", t.stream)),
    "an event that was never recorded": (HANDLE, lambda t: t.driver.cuEventElapsedTime(
        t.event, t.event)),
    "a graph with flags": (INVALID, lambda t: t.driver.cuGraphCreate(1)),
    "a graph that is gone": (INVALID, lambda t: t.after_close(
        "cuGraphCreate", "cuGraphDestroy", "cuGraphInstantiate", 0)),
    "flags of an executable graph": (INVALID, lambda t: t.driver.cuGraphInstantiate(t.graph, 1)),
    "an upload of a graph to a stream that is none": (HANDLE, lambda t: t.uploaded(77)),
    "an upload of a graph": ("", lambda t: t.uploaded(t.stream)),
    "a node that is none": (INVALID, lambda t: t.driver.cuGraphKernelNodeSetAttribute(
        77, "COOPERATIVE", 1)),
    "an attribute of a fill": (INVALID, lambda t: t.driver.cuGraphKernelNodeSetAttribute(
        t.memset(), "PRIORITY", 1)),
    "a fill of nothing": (INVALID, lambda t: t.driver.cuGraphAddMemsetNode(
        t.graph, [], t.address, 0, 0, 1)),
    "a fill with more than a byte": (INVALID, lambda t: t.driver.cuGraphAddMemsetNode(
        t.graph, [], t.address, 256, 4, 1)),
    "a fill with less than nothing": (INVALID, lambda t: t.driver.cuGraphAddMemsetNode(
        t.graph, [], t.address, -1, 4, 1)),
    "a fill with the largest byte": ("", lambda t: t.driver.cuGraphAddMemsetNode(
        t.graph, [], t.address, 255, 1, 1)[:1]),
    "a copy of nothing": (INVALID, lambda t: t.driver.cuGraphAddMemcpyNode(
        t.graph, [], "DtoD", t.address, t.address, 0, 1)),
    "capture of the default stream": (UNSUPPORTED, lambda t: t.driver.cuStreamBeginCapture(0)),
    "an end without a capture": (STATE, lambda t: t.driver.cuStreamEndCapture(t.stream)),
    "pages of no bytes": (INVALID, lambda t: t.driver.cuMemHostAlloc(0, 0)),
    "pages with other flags": (INVALID, lambda t: t.driver.cuMemHostAlloc(32, 64)),
    "pages that are none": (INVALID, lambda t: t.driver.cuMemFreeHost(4096)),
    "blocks of no threads": (INVALID, lambda t:
                             t.driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                                 t.function, 0, 0)),
    "blocks of too many threads": (INVALID, lambda t:
                                   t.driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                                       t.function, 1025, 0)),
    "blocks of as many threads as there may be": (
        "", lambda t: t.driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(t.function, 1024, 0)),
    "blocks of less than no memory": (INVALID, lambda t:
                                      t.driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                                          t.function, 32, -1)),
    "more shared memory than there is": (INVALID, lambda t: t.driver.cuFuncSetAttribute(
        t.function, "MAX_DYNAMIC_SHARED_SIZE_BYTES", t.shared + 1)),
    "all shared memory": ("", lambda t: t.driver.cuFuncSetAttribute(
        t.function, "MAX_DYNAMIC_SHARED_SIZE_BYTES", t.shared)),
    "less than no shared memory": (INVALID, lambda t: t.driver.cuFuncSetAttribute(
        t.function, "MAX_DYNAMIC_SHARED_SIZE_BYTES", -1)),
    "a flag of two": (INVALID, lambda t: t.driver.cuFuncSetAttribute(
        t.function, "NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 2)),
    **{f"a carveout of {share}": (code, lambda t, share=share: t.driver.cuFuncSetAttribute(
        t.function, "PREFERRED_SHARED_MEMORY_CARVEOUT", share))
       for share, code in ((-2, INVALID), (-1, ""), (100, ""), (101, INVALID))},
    "a linker that is none": (HANDLE, lambda t: t.driver.cuLinkAddData(
        99, LINK_LIBRARY, b"x", "a")),
    "an image of another kind": (INVALID, lambda t: _linked(t, "OBJECT", b"x")),
    "an empty library": (INVALID, lambda t: _linked(t, LINK_LIBRARY, b"")),
    "an image that is none": ("CUDA_ERROR_INVALID_IMAGE", lambda t: _linked(t, LINK_CUBIN, b"x")),
    "nothing to link": ("CUDA_ERROR_INVALID_IMAGE", lambda t: _linked(t)),
}


def _linked(t: Things, *given: Any) -> Any:
    """What adding to a linker returns, or without anything what completing it does."""
    _, linker = t.driver.cuLinkCreate()
    result = t.driver.cuLinkAddData(linker, *given, "x") if given else \
        t.driver.cuLinkComplete(linker)
    t.driver.cuLinkDestroy(linker)
    return result


@pytest.fixture
def things(device: Device) -> Any:
    made = Things(device)
    yield made
    made.driver.cuEventDestroy(made.event)
    made.driver.cuStreamDestroy(made.stream)
    made.driver.cuGraphDestroy(made.graph)


@pytest.mark.parametrize("name", CASES)
def test_codes_of_the_driver(things: Things, name: str) -> None:
    code, call = CASES[name]
    assert call(things)[0] == (CODES["cuda"][code][0] if code else 0)
    assert (read(things.device, things.address) == 1.0).all()  # the context is still of use


def test_a_capture_is_one_at_a_time_and_ends_where_it_began(things: Things) -> None:
    driver, codes = things.driver, CODES["cuda"]
    other = driver.cuStreamCreate(1)[1]
    assert driver.cuStreamGetCaptureInfo(things.stream) == (0, [])
    assert driver.cuStreamBeginCapture(things.stream) == (0,)
    assert driver.cuStreamBeginCapture(things.stream) == (codes[STATE][0],)
    driver.cuEventRecord(things.event, things.stream)
    assert driver.cuEventQuery(things.event) == (codes["CUDA_ERROR_CAPTURED_EVENT"][0],)
    assert driver.cuEventSynchronize(things.event) == (codes["CUDA_ERROR_CAPTURED_EVENT"][0],)
    assert driver.cuStreamWaitEvent(other, things.event, 0) == (0,)
    unmatched = codes["CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"][0]
    assert driver.cuStreamEndCapture(other)[0] == unmatched
    code, graph = driver.cuStreamEndCapture(things.stream)
    assert code == 0
    driver.cuGraphDestroy(graph)
    driver.cuStreamDestroy(other)


def test_a_context_is_released_as_often_as_it_was_retained() -> None:
    driver = Simulation().backend().driver()
    assert driver.cuInit(0) == (0,)
    released = CODES["cuda"]["CUDA_ERROR_INVALID_CONTEXT"][0]
    assert driver.cuDevicePrimaryCtxRelease(0) == (released,)
    assert driver.cuCtxSetCurrent(1) == (released,)
    assert driver.cuDevicePrimaryCtxRetain(0) == (0, 1)
    assert driver.cuCtxSetCurrent(1) == (0,)
    assert driver.cuDevicePrimaryCtxRelease(0) == (0,)
    assert driver.cuDevicePrimaryCtxRelease(0) == (released,)
    assert driver.cuCtxSetCurrent(0) == (0,)  # none is one of its own


def test_the_end_of_a_context_is_that_of_all_it_had() -> None:
    simulation = Simulation()
    driver, codes = simulation.backend().driver(), CODES["cuda"]

    def begin() -> None:
        driver.cuDevicePrimaryCtxRetain(0)
        assert driver.cuCtxSetCurrent(1) == (0,)

    assert driver.cuInit(0) == (0,)
    begin()
    stream, pages = driver.cuStreamCreate(0)[1], driver.cuMemHostAlloc(64, 0)[1]
    address, pooled = driver.cuMemAlloc(100)[1], driver.cuMemAllocAsync(100, 0)[1]
    driver.cuMemsetD8Async(address, 0, 100, 0)
    assert driver.cuStreamBeginCapture(stream) == (0,)
    assert driver.cuDevicePrimaryCtxRelease(0) == (0,)
    assert sorted(leak.kind for leak in simulation.leaks()) == [
        "allocation", "allocation", "graph", "page-locked memory", "stream"]
    begin()
    assert driver.cuCtxSynchronize() == (0,)  # which no capture refuses any more
    assert driver.cuStreamSynchronize(stream) == (codes[HANDLE][0],)
    assert driver.cuMemFreeHost(pages) == (codes[INVALID][0],)
    assert driver.cuMemGetInfo()[1] == simulation.memory.total
    for gone in (address, pooled):
        with pytest.raises(SimulationError, match="double free"):
            driver.cuMemFree(gone)
    assert simulation.default_stream.tail is None


@pytest.mark.parametrize("call", [
    lambda t: t.device.attribute("COLOUR"),
    lambda t: t.driver.cuFuncGetAttribute("COLOUR", t.function),
    lambda t: t.driver.cuFuncSetAttribute(t.function, "COLOUR", 1)])
def test_what_the_simulated_gpu_does_not_know(things: Things, call: Call) -> None:
    with pytest.raises(SimulationError, match="the attribute COLOUR"):
        call(things)


REDUCES = {"ncclAllReduce": True, "ncclReduceScatter": True, "ncclAllGather": False}
FLOAT, BYTE = DATA_TYPE["float32"], DATA_TYPE["uint8"]


@pytest.mark.parametrize("call", REDUCES)
@pytest.mark.parametrize(("changed", "refused_by"), [
    ({}, ()), ({"count": 0}, REDUCES), ({"count": -1}, REDUCES), ({"sendbuff": 0}, REDUCES),
    ({"recvbuff": 0}, REDUCES), ({"datatype": 99}, REDUCES), ({"datatype": BYTE},
                                                              ("ncclReduceScatter",)),
    ({"op": MAX}, ("ncclReduceScatter",)), ({"op": 99}, ("ncclAllReduce", "ncclReduceScatter"))])
def test_codes_of_collectives(device: Device, call: str, changed: dict[str, int],
                              refused_by: Any) -> None:
    api = device.backend.nccl()
    team = Waiting(1).of(0)
    comm = api.ncclCommInitRankConfig(1, team.broadcast(api.ncclGetUniqueId()[1]), 0, 0)[1]
    address = vector(device, 1.0)
    given = {"sendbuff": address, "recvbuff": address, "count": 8, "datatype": FLOAT, "op": SUM,
             **changed}
    if not REDUCES[call]:
        del given["op"]
    assert api.ncclGroupStart() == (0,)
    result = getattr(api, call)(*given.values(), comm, int(device.stream.handle))
    if call not in refused_by and given["datatype"] == FLOAT:
        assert result == (0,)
        assert api.ncclGroupEnd() == (0,)
        device.stream.synchronize()
        assert (read(device, address) == 1.0).all()
    elif call in refused_by:
        assert result == (CODES["nccl"]["ncclInvalidArgument"][0],)
        assert api.ncclGroupEnd() == (0,)
    else:
        api._group = None  # of bytes: nothing more is to be shown
    api.ncclCommDestroy(comm)


def test_groups_and_windows_of_nccl(device: Device) -> None:
    api = device.backend.nccl()
    usage, invalid = (CODES["nccl"][name][0] for name in ("ncclInvalidUsage",
                                                          "ncclInvalidArgument"))
    number = api.ncclGetUniqueId()[1]
    comm = api.ncclCommInitRankConfig(1, number, 0, 0)[1]
    assert api.ncclGroupEnd() == (usage,)
    assert api.ncclGroupStart() == (0,)
    assert api.ncclGroupStart() == (usage,)
    assert api.ncclGroupEnd() == (0,)
    address = api.ncclMemAlloc(512)[1]
    assert api.ncclCommWindowRegister(comm, address, 0, SYMMETRIC)[0] == invalid
    assert api.ncclCommWindowRegister(comm, address, 512, SYMMETRIC + 1)[0] == invalid
    for begin, size in ((address, 513), (address + 1024, 4)):
        with pytest.raises(SimulationError, match="a window"):
            api.ncclCommWindowRegister(comm, begin, size, SYMMETRIC)
    assert api.ncclRedOpCreatePreMulSum(0.5, BYTE, comm)[0] == invalid
    code, op = api.ncclRedOpCreatePreMulSum(0.5, FLOAT, comm)
    assert code == 0
    assert api.ncclRedOpDestroy(op, comm) == (0,)
    assert api.ncclRedOpDestroy(op, comm) == (invalid,)
    assert api.ncclCommInitRankConfig(1, number, 1, 0)[0] == invalid
    api.ncclMemFree(address)
    api.ncclCommDestroy(comm)


@pytest.mark.parametrize("differ", ["stream", "communicator"])
def test_a_group_is_of_one_communicator_and_stream(device: Device, differ: str) -> None:
    api = device.backend.nccl()
    address, other = vector(device, 1.0), Stream(device.driver)
    comms = [api.ncclCommInitRankConfig(1, api.ncclGetUniqueId()[1], 0, 0)[1] for _ in range(2)]
    calls = [(comms[0], device.stream), (comms[0], other) if differ == "stream" else
             (comms[1], device.stream)]
    assert api.ncclGroupStart() == (0,)
    for comm, stream in calls:
        assert api.ncclAllReduce(address, address, 8, FLOAT, SUM, comm, int(stream.handle)) == (0,)
    with pytest.raises(SimulationError, match="several communicators or streams"):
        api.ncclGroupEnd()
    for comm in comms:
        api.ncclCommDestroy(comm)
    other.close()


def test_codes_of_cublaslt(device: Device) -> None:
    api = device.backend.cublaslt()
    invalid = CODES["cublas"]["CUBLAS_STATUS_INVALID_VALUE"][0]
    handle, wishes = api.cublasLtCreate()[1], api.cublasLtMatmulPreferenceCreate()[1]
    desc = api.cublasLtMatmulDescCreate("32F", "R_32F")[1]
    for compute, scale in (("32F", "R_16F"), ("16F", "R_32F"), ("COLOUR", "R_32F")):
        assert api.cublasLtMatmulDescCreate(compute, scale)[0] == invalid
    for rows, cols, ld, code in ((4, 4, 4, 0), (4, 4, 3, invalid), (0, 4, 4, invalid),
                                 (4, 0, 4, invalid), (1, 1, 1, 0)):
        found, layout = api.cublasLtMatrixLayoutCreate("R_32F", rows, cols, ld)
        assert found == code
        if not code:
            set_ = api.cublasLtMatrixLayoutSetAttribute
            assert set_(layout, "BATCH_COUNT", 1) == (0,)
            assert set_(layout, "BATCH_COUNT", 0) == (invalid,)
            assert set_(layout, "STRIDED_BATCH_OFFSET", 0) == (0,)
            assert set_(layout, "STRIDED_BATCH_OFFSET", -1) == (invalid,)
            assert set_(layout, "COLOUR", 1) == (invalid,)
            api.cublasLtMatrixLayoutDestroy(layout)
    assert api.cublasLtMatrixLayoutCreate("COLOUR", 4, 4, 4)[0] == invalid
    assert api.cublasLtMatmulPreferenceSetAttribute(wishes, "COLOUR", 1) == (invalid,)
    a, b, wrong = (api.cublasLtMatrixLayoutCreate("R_32F", *shape, 8)[1]
                   for shape in ((4, 6), (6, 5), (5, 5)))
    c = api.cublasLtMatrixLayoutCreate("R_32F", 4, 5, 4)[1]
    heuristic = api.cublasLtMatmulAlgoGetHeuristic
    assert heuristic(handle, desc, a, b, c, c, wishes, 1)[0] == 0
    assert heuristic(handle, desc, a, b, c, c, wishes, 0)[0] == invalid
    for layouts in ((a, wrong, c, c), (wrong, b, c, c), (a, b, wrong, c), (a, b, c, wrong)):
        assert heuristic(handle, desc, *layouts, wishes, 1)[0] == invalid
    for layout in (a, b, c, wrong):
        api.cublasLtMatrixLayoutDestroy(layout)
    api.cublasLtMatmulDescDestroy(desc)
    api.cublasLtMatmulPreferenceDestroy(wishes)
    api.cublasLtDestroy(handle)
