"""Recording stand-ins for the libraries' bindings. They record every call, know which handles live,
fail on demand, and compute on host memory as the libraries document it (column-major cuBLASLt)."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from rawnn.cuda.libs.cublaslt import Heuristic

ALGO = bytes(range(64))


def host_matrix(address: int, rows: int, cols: int, ld: int) -> np.ndarray:
    """Column-major float32 matrix at a host address, as a writable view."""
    data = (ctypes.c_float * (ld * cols)).from_address(address)
    return np.frombuffer(data, np.float32).reshape(cols, ld)[:, :rows].T


def host_float(address: int) -> float:
    return ctypes.c_float.from_address(address).value


class Stub:
    """`calls` holds (name, arguments); call number `fail_at` (from 0) returns `fail_code`."""

    def __init__(self, fail_at: int | None = None, fail_code: int = 7) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.alive: dict[int, Any] = {}
        self.fail_at, self.fail_code = fail_at, fail_code
        self.used_handles: set[int] = set()
        self._next = 1000

    def error_text(self, code: int) -> tuple[str, str]:
        return f"STATUS_{code}", "as the library words it"

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def arguments(self, name: str) -> list[tuple[Any, ...]]:
        return [arguments for called, arguments in self.calls if called == name]

    def _record(self, name: str, *arguments: Any) -> int:
        self.calls.append((name, arguments))
        return self.fail_code if self.fail_at == len(self.calls) - 1 else 0

    def _create(self, name: str, state: Any, *arguments: Any) -> tuple[int, int]:
        code = self._record(name, *arguments)
        if code:
            return code, 0
        self._next += 1
        self.alive[self._next] = state
        return 0, self._next

    def _destroy(self, name: str, handle: int) -> tuple[int]:
        del self.alive[handle]  # a second destruction is a KeyError
        return (self._record(name, handle),)


class LtStub(Stub):
    """cuBLASLt. `answers` is what the heuristic returns."""

    answers: tuple[Heuristic, ...] = (Heuristic(ALGO, 1 << 16, 0, 0.5),)

    def cublasLtCreate(self) -> tuple[int, int]:
        return self._create("cublasLtCreate", "handle")

    def cublasLtDestroy(self, handle: int) -> tuple[int]:
        return self._destroy("cublasLtDestroy", handle)

    def cublasLtMatmulDescCreate(self, compute: str, scale: str) -> tuple[int, int]:
        return self._create("cublasLtMatmulDescCreate", {}, compute, scale)

    def cublasLtMatmulDescSetAttribute(self, desc: int, name: str, value: int) -> tuple[int]:
        self.alive[desc][name] = value
        return (self._record("cublasLtMatmulDescSetAttribute", desc, name, value),)

    def cublasLtMatmulDescDestroy(self, desc: int) -> tuple[int]:
        return self._destroy("cublasLtMatmulDescDestroy", desc)

    def cublasLtMatrixLayoutCreate(
        self, dtype: str, rows: int, cols: int, ld: int
    ) -> tuple[int, int]:
        layout = {"extents": (rows, cols, ld), "BATCH_COUNT": 1, "STRIDED_BATCH_OFFSET": 0}
        return self._create("cublasLtMatrixLayoutCreate", layout, dtype, rows, cols, ld)

    def cublasLtMatrixLayoutSetAttribute(self, layout: int, name: str, value: int) -> tuple[int]:
        assert name in self.alive[layout]
        self.alive[layout][name] = value
        return (self._record("cublasLtMatrixLayoutSetAttribute", layout, name, value),)

    def cublasLtMatrixLayoutDestroy(self, layout: int) -> tuple[int]:
        return self._destroy("cublasLtMatrixLayoutDestroy", layout)

    def cublasLtMatmulPreferenceCreate(self) -> tuple[int, int]:
        return self._create("cublasLtMatmulPreferenceCreate", {})

    def cublasLtMatmulPreferenceSetAttribute(
        self, preference: int, name: str, value: int
    ) -> tuple[int]:
        self.alive[preference][name] = value
        return (self._record("cublasLtMatmulPreferenceSetAttribute", preference, name, value),)

    def cublasLtMatmulPreferenceDestroy(self, preference: int) -> tuple[int]:
        return self._destroy("cublasLtMatmulPreferenceDestroy", preference)

    def cublasLtMatmulAlgoGetHeuristic(
        self, handle: int, desc: int, a: int, b: int, c: int, d: int, preference: int,
        requested: int,
    ) -> tuple[int, list[Heuristic]]:
        self.used_handles.add(handle)
        self.seen_by_heuristic = dict(self.alive[desc]), dict(self.alive[preference])
        code = self._record("cublasLtMatmulAlgoGetHeuristic", requested)
        return code, [] if code else list(self.answers[:requested])

    def cublasLtMatmul(
        self, handle: int, desc: int, alpha: int, a: int, a_layout: int, b: int, b_layout: int,
        beta: int, c: int, c_layout: int, d: int, d_layout: int, algo: int, workspace: int,
        workspace_bytes: int, stream: int,
    ) -> tuple[int]:
        self.used_handles.add(handle)
        code = self._record("cublasLtMatmul", workspace, workspace_bytes, stream)
        if code:
            return (code,)
        assert ctypes.string_at(algo, 64) == ALGO
        attributes = self.alive[desc]

        def matrix(address: int, layout: int, batch: int) -> np.ndarray:
            known = self.alive[layout]
            assert known["BATCH_COUNT"] == self.alive[a_layout]["BATCH_COUNT"]
            return host_matrix(address + 4 * batch * known["STRIDED_BATCH_OFFSET"],
                               *known["extents"])

        for batch in range(self.alive[a_layout]["BATCH_COUNT"]):
            left, right = matrix(a, a_layout, batch), matrix(b, b_layout, batch)
            left = left.T if attributes["TRANSA"] else left
            right = right.T if attributes["TRANSB"] else right
            out = matrix(d, d_layout, batch)
            result = host_float(alpha) * (left @ right)
            if host_float(beta):
                result += host_float(beta) * matrix(c, c_layout, batch)
            if attributes["EPILOGUE"] & 4:
                result += host_matrix(attributes["BIAS_POINTER"], len(out), 1, len(out))
            if attributes["EPILOGUE"] & 2:
                result = np.maximum(result, 0)
            out[...] = result
        return (0,)


class CudnnStub(Stub):
    """cuDNN."""

    def cudnnCreate(self) -> tuple[int, int]:
        return self._create("cudnnCreate", "handle")

    def cudnnDestroy(self, handle: int) -> tuple[int]:
        return self._destroy("cudnnDestroy", handle)

    def cudnnSetStream(self, handle: int, stream: int) -> tuple[int]:
        assert handle in self.alive
        return (self._record("cudnnSetStream", handle, stream),)

    def cudnnCreateTensorDescriptor(self) -> tuple[int, int]:
        return self._create("cudnnCreateTensorDescriptor", [])

    def cudnnSetTensor4dDescriptorEx(
        self, descriptor: int, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> tuple[int]:
        self.alive[descriptor][:] = [shape, strides]
        return (
            self._record("cudnnSetTensor4dDescriptorEx", descriptor, dtype, shape, strides),
        )

    def cudnnDestroyTensorDescriptor(self, descriptor: int) -> tuple[int]:
        return self._destroy("cudnnDestroyTensorDescriptor", descriptor)

    def cudnnSoftmaxForward(
        self, handle: int, algorithm: int, mode: int, alpha: int, x_descriptor: int, x: int,
        beta: int, y_descriptor: int, y: int,
    ) -> tuple[int]:
        code = self._record("cudnnSoftmaxForward", algorithm, mode)
        if code:
            return (code,)
        assert handle in self.alive
        assert (host_float(alpha), host_float(beta)) == (1.0, 0.0)
        (rows, cols, *_), (ldx, *_) = self.alive[x_descriptor]
        (_, (ldy, *_)) = self.alive[y_descriptor]
        z = host_matrix(x, cols, rows, ldx).T
        e = np.exp(z - z.max(axis=1, keepdims=True))
        host_matrix(y, cols, rows, ldy).T[...] = e / e.sum(axis=1, keepdims=True)
        return (0,)
