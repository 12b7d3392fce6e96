"""What each method of the driver's backend passes to the binding of its name, and what it makes of
the binding's result, after a success and after a failure."""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from tests import requires

cu = requires.module("cuda.bindings.driver")

from rawnn.cuda.driver import LINK_PTX, Driver  # noqa: E402

STREAM, GRAPH, CONTEXT, FAILED = 5, 6, 7, 700
A, B, C = (cu.CUgraphNode(n) for n in (1, 2, 3))
FUNCTION = cu.CUfunction(9)
MAP = (ctypes.c_ubyte * 128)(*range(128))
IMAGE = ctypes.create_string_buffer(b"cubin", 5)


@dataclass
class Case:
    """`call` of a Driver, the binding it uses, and that binding's arguments. `result` is what the
    binding returns behind its code, and `returned` what the method makes of it."""

    call: Callable[[Driver], Any]
    binding: str
    passed: tuple[Any, ...]
    result: tuple[Any, ...] = ()
    returned: tuple[Any, ...] = ()
    failed: tuple[Any, ...] | None = None
    """What the method returns behind the code of a call that failed with None for each result."""


def value(name: str) -> int:
    """The number of an enumerator by its C name."""
    return next(int(getattr(each, name)) for each in vars(cu).values()
                if isinstance(each, type) and hasattr(each, "__members__") and name in
                each.__members__)


def plain(argument: Any) -> Any:
    """An argument as numbers, text and tuples; of a structure what CUDA reads of it."""
    kind = type(argument).__name__
    if kind == "CUDA_KERNEL_NODE_PARAMS":
        n = argument
        return (int(n.func), n.gridDimX, n.gridDimY, n.gridDimZ, n.blockDimX, n.blockDimY,
                n.blockDimZ, n.sharedMemBytes, int(n.kernelParams))
    if kind == "CUDA_MEMSET_NODE_PARAMS":
        n = argument
        return int(n.dst), n.value, n.elementSize, n.width, n.height
    if kind == "CUDA_MEMCPY3D":
        n = argument
        ends = [(int(kind), int(host or 0) if int(kind) == value("CU_MEMORYTYPE_HOST")
                 else int(device)) for kind, host, device in (
            (n.srcMemoryType, n.srcHost, n.srcDevice), (n.dstMemoryType, n.dstHost, n.dstDevice))]
        return (*ends, n.WidthInBytes, n.Height, n.Depth)
    if kind == "CUgraphNodeParams":
        n = argument.conditional
        return int(argument.type), int(n.handle), int(n.type), n.size, int(n.ctx)
    if kind == "CUgraphEdgeData":
        return int(argument.from_port), int(argument.to_port), int(argument.type)
    if kind == "CUkernelNodeAttrValue":
        shape = argument.clusterDim
        return shape.x, shape.y, shape.z
    if isinstance(argument, (list, tuple)):
        return tuple(map(plain, argument))
    if isinstance(argument, (bytes, str, float)) or argument is None:
        return argument
    return int(argument)


V2 = "_v2" if hasattr(cu, "cuGraphAddNode_v2") else ""
INFO = "_v3" if hasattr(cu, "cuStreamGetCaptureInfo_v3") else ""
HOST, DEVICE = value("CU_MEMORYTYPE_HOST"), value("CU_MEMORYTYPE_DEVICE")
CASES = [
    Case(lambda d: d.cuDeviceGetName(3), "cuDeviceGetName", (128, 3), (b"H100\0\0rest",),
         ("H100",)),
    Case(lambda d: d.cuDeviceGetAttribute("WARP_SIZE", 3), "cuDeviceGetAttribute",
         (value("CU_DEVICE_ATTRIBUTE_WARP_SIZE"), 3), (32,), (32,)),
    Case(lambda d: d.cuCtxGetLimit("STACK_SIZE"), "cuCtxGetLimit",
         (value("CU_LIMIT_STACK_SIZE"),), (2048,), (2048,), (0,)),
    Case(lambda d: d.cuCtxSetLimit("STACK_SIZE", 4096), "cuCtxSetLimit",
         (value("CU_LIMIT_STACK_SIZE"), 4096)),
    Case(lambda d: d.cuMemAlloc(256), "cuMemAlloc", (256,), (cu.CUdeviceptr(512),), (512,), (0,)),
    Case(lambda d: d.cuMemAllocAsync(256, STREAM), "cuMemAllocAsync", (256, STREAM),
         (cu.CUdeviceptr(512),), (512,), (0,)),
    Case(lambda d: d.cuMemHostAlloc(256, 2), "cuMemHostAlloc", (256, 2), (512,), (512,), (0,)),
    Case(lambda d: d.cuMemPoolSetAttribute(4, "RELEASE_THRESHOLD", 2**64 - 1),
         "cuMemPoolSetAttribute", (4, value("CU_MEMPOOL_ATTR_RELEASE_THRESHOLD"), 2**64 - 1)),
    Case(lambda d: d.cuMemPoolGetAttribute(4, "USED_MEM_HIGH"), "cuMemPoolGetAttribute",
         (4, value("CU_MEMPOOL_ATTR_USED_MEM_HIGH")), (99,), (99,), (0,)),
    Case(lambda d: d.cuTensorMapEncodeTiled("BFLOAT16", 4096, (100, 30), (208,), (64, 8), "128B",
                                            "L2_256B"),
         "cuTensorMapEncodeTiled",
         (value("CU_TENSOR_MAP_DATA_TYPE_BFLOAT16"), 2, 4096, (100, 30), (208,), (64, 8), (1, 1),
          value("CU_TENSOR_MAP_INTERLEAVE_NONE"), value("CU_TENSOR_MAP_SWIZZLE_128B"),
          value("CU_TENSOR_MAP_L2_PROMOTION_L2_256B"),
          value("CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE")),
         (SimpleNamespace(getPtr=lambda: ctypes.addressof(MAP)),), (bytes(range(128)),), (b"",)),
    Case(lambda d: d.cuModuleGetGlobal(4, b"x"), "cuModuleGetGlobal", (4, b"x"), (512, 64),
         (512, 64), (0, 0)),
    Case(lambda d: d.cuFuncGetAttribute("NUM_REGS", FUNCTION), "cuFuncGetAttribute",
         (value("CU_FUNC_ATTRIBUTE_NUM_REGS"), 9), (40,), (40,)),
    Case(lambda d: d.cuFuncSetAttribute(FUNCTION, "MAX_DYNAMIC_SHARED_SIZE_BYTES", 4096),
         "cuFuncSetAttribute", (9, value("CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"), 4096)),
    Case(lambda d: d.cuGraphAddKernelNode(GRAPH, (A, B), FUNCTION, (2, 3, 4), (32, 5, 6), 77, 4096),
         "cuGraphAddKernelNode", (GRAPH, (1, 2), 2, (9, 2, 3, 4, 32, 5, 6, 77, 4096)), (C,), (3,)),
    Case(lambda d: d.cuGraphKernelNodeSetAttribute(A, "CLUSTER_DIMENSION", (4, 2, 1)),
         "cuGraphKernelNodeSetAttribute",
         (1, value("CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION"), (4, 2, 1))),
    Case(lambda d: d.cuGraphAddMemsetNode(GRAPH, [A], 4096, 7, 12, CONTEXT),
         "cuGraphAddMemsetNode", (GRAPH, (1,), 1, (4096, 7, 1, 12, 1), CONTEXT), (C,), (3,)),
    *(Case(lambda d, kind=kind: d.cuGraphAddMemcpyNode(
        GRAPH, [A], kind, 4096, 8192, 12, CONTEXT),
        "cuGraphAddMemcpyNode",
        (GRAPH, (1,), 1, ((source, 8192), (destination, 4096), 12, 1, 1), CONTEXT), (C,), (3,))
      for kind, source, destination in (("HtoD", HOST, DEVICE), ("DtoH", DEVICE, HOST),
                                        ("DtoD", DEVICE, DEVICE))),
    Case(lambda d: d.cuGraphAddEventRecordNode(GRAPH, [A, B], 8), "cuGraphAddEventRecordNode",
         (GRAPH, (1, 2), 2, 8), (C,), (3,)),
    Case(lambda d: d.cuGraphAddChildGraphNode(GRAPH, [A, B], 8), "cuGraphAddChildGraphNode",
         (GRAPH, (1, 2), 2, 8), (C,), (3,)),
    Case(lambda d: d.cuGraphConditionalHandleCreate(GRAPH, CONTEXT, 1),
         "cuGraphConditionalHandleCreate",
         (GRAPH, CONTEXT, 1, int(cu.CU_GRAPH_COND_ASSIGN_DEFAULT)),
         (cu.CUgraphConditionalHandle(11),), (11,), (0,)),
    Case(lambda d: d.cuGraphAddDependencies(GRAPH, [A, B], C), "cuGraphAddDependencies" + V2,
         (GRAPH, (1, 2), (3, 3), ((1, 0, 1), (1, 0, 1)), 2)),
    Case(lambda d: d.cuStreamBeginCaptureToGraph(STREAM, GRAPH, [A, B]),
         "cuStreamBeginCaptureToGraph",
         (STREAM, GRAPH, (1, 2), None, 2, value("CU_STREAM_CAPTURE_MODE_THREAD_LOCAL"))),
    Case(lambda d: d.cuStreamBeginCapture(STREAM), "cuStreamBeginCapture",
         (STREAM, value("CU_STREAM_CAPTURE_MODE_THREAD_LOCAL"))),
    Case(lambda d: d.cuStreamGetCaptureInfo(STREAM), "cuStreamGetCaptureInfo" + INFO, (STREAM,),
         (1, 55, GRAPH, [A, B], [4], 2), ((1, 2),), ((),)),
    Case(lambda d: d.cuGraphGetNodes(GRAPH), "cuGraphGetNodes", (GRAPH, 0), ([], 4), (4,)),
    Case(lambda d: d.cuGraphGetEdges(GRAPH), "cuGraphGetEdges" + V2, (GRAPH, 0),
         ([1], [2], [3], 4), (4,)),
    Case(lambda d: d.cuLinkCreate(), "cuLinkCreate", (0, (), ()), (4,), (4,)),
    Case(lambda d: d.cuLinkAddData(4, LINK_PTX, b"image", "name"), "cuLinkAddData",
         (4, value("CU_JIT_INPUT_PTX"), b"image", 5, b"name", 0, (), ())),
    Case(lambda d: d.cuLinkComplete(4), "cuLinkComplete", (4,), (ctypes.addressof(IMAGE), 5),
         (b"cubin",), (b"",)),
]
ELSEWHERE = {"error_text", "launch_config", "cuGraphAddConditionalNode"}


class Recording:
    """The bindings, of which one call returns `result` and stores its arguments."""

    def __init__(self, binding: str, result: tuple[Any, ...]) -> None:
        self.seen: list[tuple[Any, ...]] = []

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.seen.append(plain(arguments))
            return result

        setattr(self, binding, call)

    def __getattr__(self, name: str) -> Any:
        return getattr(cu, name)


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.binding)
def test_arguments_and_results(driver: Driver, monkeypatch: pytest.MonkeyPatch,
                               case: Case) -> None:
    recording = Recording(case.binding, (0, *case.result))
    monkeypatch.setattr(driver, "_cu", recording)
    assert plain(case.call(driver)) == (0, *case.returned)
    assert recording.seen == [case.passed]


@pytest.mark.parametrize("case", [case for case in CASES if case.failed is not None],
                         ids=lambda case: case.binding)
def test_results_of_a_call_that_failed(driver: Driver, monkeypatch: pytest.MonkeyPatch,
                                       case: Case) -> None:
    monkeypatch.setattr(driver, "_cu",
                        Recording(case.binding, (FAILED, *(None for _ in case.result))))
    assert case.failed is not None
    assert plain(case.call(driver)) == (FAILED, *case.failed)


@pytest.mark.parametrize(("attribute", "member"), [("COOPERATIVE", "cooperative"),
                                                   ("PRIORITY", "priority")])
def test_attributes_of_nodes_that_are_numbers(driver: Driver, monkeypatch: pytest.MonkeyPatch,
                                              attribute: str, member: str) -> None:
    seen = []
    monkeypatch.setattr(driver, "_cu", SimpleNamespace(
        CUlaunchAttributeID=cu.CUlaunchAttributeID,
        CUkernelNodeAttrValue=cu.CUkernelNodeAttrValue,
        cuGraphKernelNodeSetAttribute=lambda *a: (seen.append(a), (0,))[1]))
    assert driver.cuGraphKernelNodeSetAttribute(A, attribute, 1) == (0,)
    (node, which, wrapped), = seen
    assert (node, int(which)) == (A, value("CU_LAUNCH_ATTRIBUTE_" + attribute))
    assert getattr(wrapped, member) == 1


@pytest.mark.parametrize("kind", ["IF", "WHILE"])
def test_a_conditional_node_and_its_body(driver: Driver, monkeypatch: pytest.MonkeyPatch,
                                         kind: str) -> None:
    recording = Recording("cuGraphAddNode" + V2, (0, C))
    monkeypatch.setattr(driver, "_cu", recording)
    monkeypatch.setattr(driver, "_graph_at", lambda address: 44)
    assert driver.cuGraphAddConditionalNode(GRAPH, [A, B], 12, kind, CONTEXT)[:2] == (0, C)
    assert recording.seen == [(GRAPH, (1, 2), ((0, 0, 0),) * 2, 2, (
        value("CU_GRAPH_NODE_TYPE_CONDITIONAL"), 12, value("CU_GRAPH_COND_TYPE_" + kind), 1,
        CONTEXT))]
    monkeypatch.setattr(driver, "_cu", Recording("cuGraphAddNode" + V2, (FAILED, None)))
    assert driver.cuGraphAddConditionalNode(GRAPH, [], 12, kind, CONTEXT) == (FAILED, None, None)


def test_a_code_by_name_and_text(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_cu", SimpleNamespace(
        CUresult=cu.CUresult, cuGetErrorName=lambda code: (0, b"NAME of %d" % code),
        cuGetErrorString=lambda code: (0, b"text of %d" % code)))
    assert driver.error_text(2) == ("NAME of 2", "text of 2")


def test_every_method_has_a_case(driver: Driver) -> None:
    methods = {name for name, method in inspect.getmembers(Driver, inspect.isfunction)
               if not name.startswith("_")}
    called = {name for case in CASES for name in case.call.__code__.co_names}
    assert methods - called == ELSEWHERE
