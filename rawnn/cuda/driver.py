"""The CUDA driver as rawnn calls it: the only interface between rawnn and `cuda.bindings.driver`.

Every method has the driver's own name and returns the driver's result code first, so that `check`
(cuda/errors.py) can name the call that failed. Device addresses and sizes are Python ints; handles
(streams, events, graphs, nodes, modules, functions) are opaque. Structures, which the bindings
build differently in CUDA 12 and 13, are built only here. The simulated driver (rawnn/sim)
implements the same methods, and no code above this file can tell them apart.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from rawnn.common.target import CONDITIONAL_NODES
from rawnn.cuda.errors import require_package

MINIMUM_DRIVER = {12: CONDITIONAL_NODES, 13: 13000}
"""Oldest driver API version for each major version of the bindings."""

Dim = tuple[int, int, int]

LINK_CUBIN, LINK_PTX, LINK_LIBRARY = "CUBIN", "PTX", "LIBRARY"


class Driver:
    """`cuda.bindings.driver` behind plain arguments. One instance serves a process.

    Raises MissingLibrary at construction if cuda-python's bindings are not installed.
    """

    def __init__(self) -> None:
        cu = require_package("cuda.bindings.driver", "cuda-bindings")
        self._cu = cu
        self.bindings_version: int = int(cu.CUDA_VERSION)
        self._edge_data_v2 = hasattr(cu, "cuGraphAddNode_v2")
        # Calls without structures in their arguments are the bindings' own: the hot loop has no
        # wrapper.
        for name in (
            "cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet",
            "cuDeviceTotalMem", "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease",
            "cuCtxSetCurrent", "cuCtxSynchronize", "cuCtxResetPersistingL2Cache",
            "cuMemGetInfo", "cuMemFree",
            "cuMemsetD8Async", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync",
            "cuModuleLoadData", "cuModuleUnload", "cuModuleGetFunction",
            "cuStreamCreate", "cuStreamCreateWithPriority", "cuCtxGetStreamPriorityRange",
            "cuStreamDestroy", "cuStreamSynchronize", "cuStreamWaitEvent",
            "cuStreamEndCapture", "cuEventCreate", "cuEventDestroy", "cuEventRecord",
            "cuEventSynchronize", "cuEventElapsedTime", "cuLaunchKernel",
            "cuGraphCreate", "cuGraphDestroy", "cuGraphUpload", "cuGraphLaunch",
            "cuGraphExecDestroy", "cuGraphExecUpdate", "cuGraphInstantiate", "cuLinkDestroy",
            "cuEventQuery", "cuLaunchKernelEx", "cuMemFreeAsync", "cuMemFreeHost",
            "cuDeviceGetDefaultMemPool", "cuMemPoolTrimTo",
            "cuOccupancyMaxActiveBlocksPerMultiprocessor", "cuOccupancyMaxActiveClusters",
        ):
            setattr(self, name, getattr(cu, name))

    def __getattr__(self, name: str) -> Any:  # lets type checkers accept the calls set above
        raise AttributeError(f"rawnn's driver seam has no call '{name}'")

    # -- errors ---------------------------------------------------------------------------------
    def error_text(self, code: Any) -> tuple[str, str]:
        """(name, description) of a driver result code, in the driver's words."""
        code = self._cu.CUresult(int(code))
        name = self._cu.cuGetErrorName(code)[1]
        text = self._cu.cuGetErrorString(code)[1]
        return (name.decode() if name else str(code), text.decode() if text else "")

    # -- device ---------------------------------------------------------------------------------
    def cuDeviceGetName(self, device: Any) -> tuple[Any, str]:
        code, name = self._cu.cuDeviceGetName(128, device)
        return code, name.split(b"\0")[0].decode()

    def cuDeviceGetAttribute(self, attribute: str, device: Any) -> tuple[Any, int]:
        """`attribute` is the driver's name without its `CU_DEVICE_ATTRIBUTE_`."""
        enum = getattr(self._cu.CUdevice_attribute, "CU_DEVICE_ATTRIBUTE_" + attribute)
        code, value = self._cu.cuDeviceGetAttribute(enum, device)
        return code, value

    def cuCtxGetLimit(self, limit: str) -> tuple[Any, int]:
        """`limit` is the driver's name without its `CU_LIMIT_`."""
        code, value = self._cu.cuCtxGetLimit(getattr(self._cu.CUlimit, "CU_LIMIT_" + limit))
        return code, int(value) if value is not None else 0

    def cuCtxSetLimit(self, limit: str, value: int) -> tuple[Any, ...]:
        """Like cuCtxGetLimit; the driver rounds `value` to what the GPU supports."""
        enum = getattr(self._cu.CUlimit, "CU_LIMIT_" + limit)
        result: tuple[Any, ...] = self._cu.cuCtxSetLimit(enum, value)
        return result

    def cuMemAlloc(self, nbytes: int) -> tuple[Any, int]:
        code, pointer = self._cu.cuMemAlloc(nbytes)
        return code, int(pointer) if pointer is not None else 0

    def cuMemAllocAsync(self, nbytes: int, stream: Any) -> tuple[Any, int]:
        code, pointer = self._cu.cuMemAllocAsync(nbytes, stream)
        return code, int(pointer) if pointer is not None else 0

    def cuMemHostAlloc(self, nbytes: int, flags: int) -> tuple[Any, int]:
        """(code, host address of page-locked memory)."""
        code, pointer = self._cu.cuMemHostAlloc(nbytes, flags)
        return code, int(pointer) if pointer is not None else 0

    def cuMemPoolSetAttribute(self, pool: Any, attribute: str, value: int) -> tuple[Any, ...]:
        """`attribute` is the driver's name without its `CU_MEMPOOL_ATTR_`; `value` 64 bits."""
        enum = getattr(self._cu.CUmemPool_attribute, "CU_MEMPOOL_ATTR_" + attribute)
        result: tuple[Any, ...] = self._cu.cuMemPoolSetAttribute(
            pool, enum, self._cu.cuuint64_t(value)
        )
        return result

    def cuMemPoolGetAttribute(self, pool: Any, attribute: str) -> tuple[Any, int]:
        enum = getattr(self._cu.CUmemPool_attribute, "CU_MEMPOOL_ATTR_" + attribute)
        code, value = self._cu.cuMemPoolGetAttribute(pool, enum)
        return code, int(value) if value is not None else 0

    def cuTensorMapEncodeTiled(
        self, dtype: str, address: int, extents: Sequence[int], strides: Sequence[int],
        box: Sequence[int], swizzle: str, promotion: str,
    ) -> tuple[Any, bytes]:
        """(code, the 128 bytes of a map). Extents and box in elements, the innermost dimension
        first; `strides` in bytes, of all but the innermost. `dtype`, `swizzle` and `promotion` are
        the driver's names without the prefix `CU_TENSOR_MAP_` and their kind. Boxes are dense and
        not interleaved; elements outside the tensor are read as zeros."""
        cu = self._cu
        code, tensor_map = cu.cuTensorMapEncodeTiled(
            getattr(cu.CUtensorMapDataType, "CU_TENSOR_MAP_DATA_TYPE_" + dtype), len(extents),
            address, [cu.cuuint64_t(n) for n in extents], [cu.cuuint64_t(n) for n in strides],
            [cu.cuuint32_t(n) for n in box], [cu.cuuint32_t(1) for _ in box],
            cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(cu.CUtensorMapSwizzle, "CU_TENSOR_MAP_SWIZZLE_" + swizzle),
            getattr(cu.CUtensorMapL2promotion, "CU_TENSOR_MAP_L2_PROMOTION_" + promotion),
            cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        return code, ctypes.string_at(tensor_map.getPtr(), 128) if not code else b""

    # -- functions ------------------------------------------------------------------------------
    def cuModuleGetGlobal(self, module: Any, name: bytes) -> tuple[Any, int, int]:
        """(code, address, bytes) of a __device__ or __constant__ variable."""
        code, address, nbytes = self._cu.cuModuleGetGlobal(module, name)
        return code, int(address) if not code else 0, int(nbytes) if not code else 0

    def cuFuncGetAttribute(self, attribute: str, function: Any) -> tuple[Any, int]:
        """`attribute` is the driver's name without its `CU_FUNC_ATTRIBUTE_`."""
        enum = getattr(self._cu.CUfunction_attribute, "CU_FUNC_ATTRIBUTE_" + attribute)
        code, value = self._cu.cuFuncGetAttribute(enum, function)
        return code, value

    def cuFuncSetAttribute(self, function: Any, attribute: str, value: int) -> tuple[Any, ...]:
        enum = getattr(self._cu.CUfunction_attribute, "CU_FUNC_ATTRIBUTE_" + attribute)
        result: tuple[Any, ...] = self._cu.cuFuncSetAttribute(function, enum, value)
        return result

    def launch_config(self, grid: Dim, block: Dim, shared_bytes: int, stream: Any,
                      cluster: Dim | None, programmatic: bool, cooperative: bool) -> Any:
        """The configuration of cuLaunchKernelEx, made once per launch. `cluster` is the shape of a
        cluster in blocks. With `programmatic` the kernel may begin once its predecessor on the
        stream has triggered (CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION). With
        `cooperative` all blocks run at the same time, or the launch is refused
        (CU_LAUNCH_ATTRIBUTE_COOPERATIVE)."""
        cu, ids = self._cu, self._cu.CUlaunchAttributeID
        attributes = []
        if cluster is not None:
            attribute = cu.CUlaunchAttribute()
            attribute.id = ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            shape = attribute.value.clusterDim
            shape.x, shape.y, shape.z = cluster
            attributes.append(attribute)
        if programmatic:
            attribute = cu.CUlaunchAttribute()
            attribute.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            attributes.append(attribute)
        if cooperative:
            attribute = cu.CUlaunchAttribute()
            attribute.id = ids.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attribute.value.cooperative = 1
            attributes.append(attribute)
        config = cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block
        config.sharedMemBytes = shared_bytes
        config.hStream = stream
        config.attrs, config.numAttrs = attributes, len(attributes)
        return config

    # -- graphs ---------------------------------------------------------------------------------
    def cuGraphAddKernelNode(
        self, graph: Any, dependencies: Sequence[Any], function: Any,
        grid: Dim, block: Dim, shared_bytes: int, parameters: int,
    ) -> tuple[Any, Any]:
        """`parameters` is the address of the packed pointer array, as in cuLaunchKernel; the
        driver copies the argument values before it returns."""
        node = self._cu.CUDA_KERNEL_NODE_PARAMS()
        node.func = function
        node.gridDimX, node.gridDimY, node.gridDimZ = grid
        node.blockDimX, node.blockDimY, node.blockDimZ = block
        node.sharedMemBytes = shared_bytes
        node.kernelParams = parameters
        result: tuple[Any, Any] = self._cu.cuGraphAddKernelNode(
            graph, list(dependencies), len(dependencies), node
        )
        return result

    def cuGraphKernelNodeSetAttribute(self, node: Any, attribute: str,
                                      value: Dim | int) -> tuple[Any, ...]:
        """`attribute` is "CLUSTER_DIMENSION", its value the shape of a cluster in blocks,
        "COOPERATIVE", its value 0 or 1, or "PRIORITY", its value as that of a stream."""
        enum = getattr(self._cu.CUlaunchAttributeID, "CU_LAUNCH_ATTRIBUTE_" + attribute)
        wrapped = self._cu.CUkernelNodeAttrValue()
        if isinstance(value, int):
            setattr(wrapped, attribute.lower(), value)
        else:
            wrapped.clusterDim.x, wrapped.clusterDim.y, wrapped.clusterDim.z = value
        result: tuple[Any, ...] = self._cu.cuGraphKernelNodeSetAttribute(node, enum, wrapped)
        return result

    def cuGraphAddMemsetNode(
        self, graph: Any, dependencies: Sequence[Any], address: int, value: int, nbytes: int,
        context: Any,
    ) -> tuple[Any, Any]:
        """Set `nbytes` bytes at `address` to `value` (0-255)."""
        node = self._cu.CUDA_MEMSET_NODE_PARAMS()
        node.dst = address
        node.value = value
        node.elementSize = 1
        node.width = nbytes
        node.height = 1
        node.pitch = 0
        result: tuple[Any, Any] = self._cu.cuGraphAddMemsetNode(
            graph, list(dependencies), len(dependencies), node, context
        )
        return result

    def cuGraphAddMemcpyNode(
        self, graph: Any, dependencies: Sequence[Any], kind: str, destination: int, source: int,
        nbytes: int, context: Any,
    ) -> tuple[Any, Any]:
        """`kind` is "HtoD", "DtoH" or "DtoD"; addresses are host or device ones accordingly."""
        cu = self._cu
        node = cu.CUDA_MEMCPY3D()
        if kind[0] == "H":
            node.srcMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_HOST
            node.srcHost = source
        else:
            node.srcMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
            node.srcDevice = source
        if kind[-1] == "H":
            node.dstMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_HOST
            node.dstHost = destination
        else:
            node.dstMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
            node.dstDevice = destination
        node.WidthInBytes, node.Height, node.Depth = nbytes, 1, 1
        result: tuple[Any, Any] = cu.cuGraphAddMemcpyNode(
            graph, list(dependencies), len(dependencies), node, context
        )
        return result

    def cuGraphAddEventRecordNode(
        self, graph: Any, dependencies: Sequence[Any], event: Any
    ) -> tuple[Any, Any]:
        """Record `event` when the node runs."""
        result: tuple[Any, Any] = self._cu.cuGraphAddEventRecordNode(
            graph, list(dependencies), len(dependencies), event
        )
        return result

    def cuGraphAddChildGraphNode(
        self, graph: Any, dependencies: Sequence[Any], child: Any
    ) -> tuple[Any, Any]:
        """The driver clones `child` at this call."""
        result: tuple[Any, Any] = self._cu.cuGraphAddChildGraphNode(
            graph, list(dependencies), len(dependencies), child
        )
        return result

    def cuGraphConditionalHandleCreate(
        self, graph: Any, context: Any, default: int
    ) -> tuple[Any, int]:
        """A handle whose value is reset to `default` at each launch of the graph."""
        code, handle = self._cu.cuGraphConditionalHandleCreate(
            graph, context, default, self._cu.CU_GRAPH_COND_ASSIGN_DEFAULT
        )
        return code, int(handle) if handle is not None else 0

    def cuGraphAddConditionalNode(
        self, graph: Any, dependencies: Sequence[Any], handle: int, kind: str, context: Any
    ) -> tuple[Any, Any, Any]:
        """Add a conditional node, `kind` "IF" or "WHILE"; returns (code, node, body graph).

        The driver's call is cuGraphAddNode; with edge data it is `_v2` in the CUDA 12 bindings, and
        has the plain name in 13.
        """
        cu = self._cu
        params = cu.CUgraphNodeParams()
        params.type = cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        params.conditional.handle = cu.CUgraphConditionalHandle(handle)
        params.conditional.type = getattr(cu.CUgraphConditionalNodeType,
                                          "CU_GRAPH_COND_TYPE_" + kind)
        params.conditional.size = 1
        params.conditional.ctx = context
        add = cu.cuGraphAddNode_v2 if self._edge_data_v2 else cu.cuGraphAddNode
        full_edges = [cu.CUgraphEdgeData() for _ in dependencies]  # 12.9 accepts no None here
        code, node = add(graph, list(dependencies), full_edges, len(dependencies), params)
        body = None
        if not code:
            out = params.conditional.phGraph_out
            body = out[0] if isinstance(out, (list, tuple)) else self._graph_at(int(out))
        return code, node, body

    def cuGraphAddDependencies(
        self, graph: Any, producers: Sequence[Any], consumer: Any
    ) -> tuple[Any, ...]:
        """Add programmatic edges between kernel nodes: `consumer` may begin once each producer has
        triggered (cudaTriggerProgrammaticLaunchCompletion) or ended.

        The call with edge data is `_v2` in the CUDA 12 bindings, and has the plain name in 13.
        """
        cu = self._cu
        edges = []
        for _ in producers:
            edge = cu.CUgraphEdgeData()
            edge.from_port = cu.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC
            edge.to_port = cu.CU_GRAPH_KERNEL_NODE_PORT_DEFAULT
            edge.type = int(cu.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
            edges.append(edge)
        add = cu.cuGraphAddDependencies_v2 if self._edge_data_v2 else cu.cuGraphAddDependencies
        result: tuple[Any, ...] = add(graph, list(producers), [consumer] * len(edges), edges,
                                      len(edges))
        return result

    def _graph_at(self, address: int) -> Any:
        return self._cu.CUgraph(ctypes.c_void_p.from_address(address).value)

    def cuStreamBeginCaptureToGraph(
        self, stream: Any, graph: Any, dependencies: Sequence[Any]
    ) -> tuple[Any, ...]:
        """Capture later work on `stream` into `graph`, after the nodes `dependencies`."""
        cu, after = self._cu, list(dependencies)
        mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL

        def begin(edges: list[Any] | None) -> tuple[Any, ...]:
            result: tuple[Any, ...] = cu.cuStreamBeginCaptureToGraph(
                stream, graph, after, edges, len(after), mode)
            return result

        try:
            return begin(None)
        except RuntimeError:  # bindings before 12.9.5 and 13.1 compare None with the node count
            return begin([cu.CUgraphEdgeData() for _ in after])

    def cuStreamBeginCapture(self, stream: Any) -> tuple[Any, ...]:
        """Capture later work on `stream` into a graph that cuStreamEndCapture returns."""
        mode = self._cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        result: tuple[Any, ...] = self._cu.cuStreamBeginCapture(stream, mode)
        return result

    def cuStreamGetCaptureInfo(self, stream: Any) -> tuple[Any, list[Any]]:
        """(code, nodes that the next captured operation would depend on)."""
        get = (
            self._cu.cuStreamGetCaptureInfo_v3
            if hasattr(self._cu, "cuStreamGetCaptureInfo_v3")
            else self._cu.cuStreamGetCaptureInfo
        )
        result = get(stream)
        # (code, status, id, graph, dependencies, edge data, count)
        return result[0], list(result[4] or []) if not result[0] else []

    def cuGraphGetNodes(self, graph: Any) -> tuple[Any, int]:
        """(code, number of nodes in the graph, without those of child graphs)."""
        code, _, count = self._cu.cuGraphGetNodes(graph, 0)
        return code, count

    def cuGraphGetEdges(self, graph: Any) -> tuple[Any, int]:
        """(code, number of edges in the graph, without those of child graphs)."""
        get = self._cu.cuGraphGetEdges_v2 if self._edge_data_v2 else self._cu.cuGraphGetEdges
        result = get(graph, 0)
        return result[0], result[-1]

    # -- linking --------------------------------------------------------------------------------
    def cuLinkCreate(self) -> tuple[Any, Any]:
        code, state = self._cu.cuLinkCreate(0, [], [])
        return code, state

    def cuLinkAddData(self, state: Any, kind: str, image: bytes, name: str) -> tuple[Any, ...]:
        """`kind` is LINK_CUBIN, LINK_PTX or LINK_LIBRARY."""
        enum = getattr(self._cu.CUjitInputType, "CU_JIT_INPUT_" + kind)
        result: tuple[Any, ...] = self._cu.cuLinkAddData(
            state, enum, image, len(image), name.encode(), 0, [], []
        )
        return result

    def cuLinkComplete(self, state: Any) -> tuple[Any, bytes]:
        """(code, the linked cubin, copied from the linker's memory)."""
        code, address, size = self._cu.cuLinkComplete(state)
        return code, ctypes.string_at(int(address), size) if not code else b""
