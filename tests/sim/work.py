"""Small pieces of work that the tests of the simulation are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from rawnn.cuda.device import Device
from rawnn.cuda.launch import Arguments, KernelLaunch
from rawnn.cuda.stream import Stream
from rawnn.sim import register


def vector(device: Device, values: Any = None, count: int = 8) -> int:
    """Address of `count` float32 in device memory, written if `values` are given."""
    address = device.memory.allocate(count * 4, "a vector").address
    if values is not None:
        device.to_device(address, np.full(count, values, np.float32), "a vector")
    return address


def read(device: Device, address: int, count: int = 8) -> np.ndarray:
    out = np.empty(count, np.float32)
    device.to_host(out, address, "a vector")
    return out


def plus_one(kernels: Mapping[str, str]) -> str:
    """CUDA C of kernels y = x + 1: their names, and what each does ahead of that."""
    return "\n".join(
        f'extern "C" __global__ void {name}(const float* x, float* y, int n) '
        f"{{ {first} for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i] + 1; }}"
        for name, first in kernels.items())


def register_plus_one(names: Iterable[str]) -> None:
    """Tell the simulation what these kernels compute."""

    def add_one(t: SimpleNamespace, scalars: object) -> None:
        np.add(t.x, 1, out=t.y)

    for name in names:
        register(name, add_one, {"x": ("n",), "y": ("n",)}, reads=("x",), writes=("y",))


def relu(device: Device, z: int, a: int, count: int = 8, stream: Stream | None = None,
         **changed: Any) -> KernelLaunch:
    """a = max(z, 0) for one row of `count` elements."""
    function = device.function("elementwise/activation.cu", "activate<float,float,Relu>")
    values = {"z": z, "ldz": count, "a": a, "lda": count, "rows": 1, "cols": count, **changed}
    return KernelLaunch(device.driver, stream or device.stream, function.handle, "relu",
                        (1, 1, 1), (256, 1, 1), Arguments(function.signature, values))


def sgd(device: Device, w: int, dw: int, count: int = 8, lr: float = 1.0,
        stream: Stream | None = None) -> KernelLaunch:
    """w -= lr * dw."""
    function = device.function("optimizers/sgd.cu", "sgd<float,float,float>")
    values = {**{p.name: 0 for p in function.signature.parameters}, "w": w, "ldw": count,
              "dw": dw, "lddw": count, "rows": 1, "cols": count, "lr": lr}
    return KernelLaunch(device.driver, stream or device.stream, function.handle, "sgd",
                        (1, 1, 1), (256, 1, 1), Arguments(function.signature, values))
