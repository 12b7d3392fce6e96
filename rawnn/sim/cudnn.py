"""The simulated cuDNN: the softmax of rows, by NumPy."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from rawnn.cuda.libs.cudnn import (
    DATA_TYPE,
    SOFTMAX_ACCURATE,
    SOFTMAX_MODE_CHANNEL,
    SOFTMAX_MODE_INSTANCE,
)
from rawnn.sim.codes import describe
from rawnn.sim.cublaslt import load, store, without_fp_warnings
from rawnn.sim.errors import Refused, SimulationError
from rawnn.sim.faults import simulated_call
from rawnn.sim.graphs import Node
from rawnn.sim.memory import Region
from rawnn.sim.order import Task
from rawnn.sim.simulation import Simulation

_INVALID = "CUDNN_STATUS_BAD_PARAM"
_TYPES = {"float32": ("R_32F", 4), "float16": ("R_16F", 2), "bfloat16": ("R_16BF", 2)}


@dataclass(eq=False)
class _Tensor:
    """N, C, H, W; strides in elements. Unset: no shape."""

    data_type: str = ""
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()


@dataclass(eq=False)
class _Handle:
    stream: int = 0


class SimCudnn:
    """`rawnn.cuda.libs.cudnn.Cudnn` for a simulated GPU."""

    library = "cudnn"

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.path = "simulated cuDNN"

    def error_text(self, code: Any) -> tuple[str, str]:
        return describe("cudnn", int(code))

    def _handle(self, handle: int) -> _Handle:
        found: _Handle = self.simulation.find(handle, "cuDNN handle", _INVALID)
        return found

    def _tensor(self, descriptor: int) -> _Tensor:
        found: _Tensor = self.simulation.find(descriptor, "cuDNN tensor descriptor", _INVALID)
        return found

    @simulated_call(0)
    def cudnnGetVersion(self) -> tuple[int, int]:
        return 0, 91000

    @simulated_call(0)
    def cudnnCreate(self) -> tuple[int, int]:
        if not self.simulation.current:
            raise Refused("CUDNN_STATUS_NOT_INITIALIZED")
        return 0, self.simulation.create("cuDNN handle", lambda h: _Handle())[0]

    @simulated_call()
    def cudnnDestroy(self, handle: int) -> tuple[int]:
        self.simulation.destroy(handle, "cuDNN handle", _INVALID)
        return (0,)

    @simulated_call()
    def cudnnSetStream(self, handle: int, stream: int) -> tuple[int]:
        found = self._handle(handle)
        try:
            self.simulation.stream(stream)
        except Refused:
            raise Refused(_INVALID) from None
        found.stream = stream
        return (0,)

    @simulated_call(0)
    def cudnnCreateTensorDescriptor(self) -> tuple[int, int]:
        return 0, self.simulation.create("cuDNN tensor descriptor", lambda h: _Tensor())[0]

    @simulated_call()
    def cudnnSetTensor4dDescriptorEx(
        self, descriptor: int, data_type: str, shape: tuple[int, int, int, int],
        strides: tuple[int, int, int, int],
    ) -> tuple[int]:
        if data_type not in DATA_TYPE or min(shape) <= 0 or min(strides) <= 0:
            raise Refused(_INVALID)
        tensor = self._tensor(descriptor)
        tensor.data_type, tensor.shape, tensor.strides = data_type, tuple(shape), tuple(strides)
        return (0,)

    @simulated_call()
    def cudnnDestroyTensorDescriptor(self, descriptor: int) -> tuple[int]:
        self.simulation.destroy(descriptor, "cuDNN tensor descriptor", _INVALID)
        return (0,)

    @simulated_call()
    def cudnnSoftmaxForward(
        self, handle: int, algorithm: int, mode: int, alpha: int, x_descriptor: int, x: int,
        beta: int, y_descriptor: int, y: int,
    ) -> tuple[int]:
        """y = alpha softmax(x) + beta y over the channels of one-pixel images, whose channels must
        be adjacent; other layouts are refused as not supported."""
        source, target = self._tensor(x_descriptor), self._tensor(y_descriptor)
        if algorithm not in (0, SOFTMAX_ACCURATE) \
                or mode not in (SOFTMAX_MODE_INSTANCE, SOFTMAX_MODE_CHANNEL) \
                or not source.shape or source.shape != target.shape or not x or not y \
                or source.data_type != target.data_type:
            raise Refused(_INVALID)
        if source.shape[2:] != (1, 1) or source.strides[1] != 1 or target.strides[1] != 1:
            raise Refused("CUDNN_STATUS_NOT_SUPPORTED")
        rows, cols = source.shape[:2]
        if mode == SOFTMAX_MODE_INSTANCE and {source.strides[0], target.strides[0]} != {cols}:
            raise SimulationError(
                f"cudnnSoftmaxForward takes the rows of {cols} to be packed in instance mode, and "
                f"would return wrong numbers for pitches of {source.strides[0]} and "
                f"{target.strides[0]}; use channel mode"
            )
        kind, item = _TYPES[source.data_type]
        scale = np.float32(ctypes.c_float.from_address(alpha).value)
        keep = np.float32(ctypes.c_float.from_address(beta).value)
        memory = self.simulation.memory

        def region(task: Task, name: str, address: int, tensor: _Tensor) -> Region:
            return memory.region(address, cols * item, tensor.strides[0] * item, rows,
                                 f"tensor {name} of {task}")

        def run(task: Task) -> None:
            z = region(task, "x", x, source)
            memory.read(task, z, "x")
            values = load(z.bytes().reshape(rows, -1), kind)
            if algorithm == SOFTMAX_ACCURATE:
                values = values - values.max(axis=1, keepdims=True)
            e = np.exp(values)
            p = scale * (e / e.sum(axis=1, keepdims=True))
            out = region(task, "y", y, target)
            if keep:
                memory.read(task, out, "y")
                p = p + keep * load(out.bytes().reshape(rows, -1), kind)
            memory.write(task, out, "y")
            raw = out.bytes()
            raw[...] = store(p, kind).reshape(raw.shape)
            memory.mark_written(out)

        stream = self._handle(handle).stream
        label = f"cudnnSoftmaxForward rows={rows} cols={cols}"
        self.simulation.enqueue(stream, Node("kernel", label, (), without_fp_warnings(run)))
        return (0,)
