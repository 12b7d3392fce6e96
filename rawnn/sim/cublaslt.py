"""The simulated cuBLASLt: column-major GEMMs by NumPy, with the descriptors' rules."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.cuda.libs.cublaslt import COMPUTE_TYPE, DATA_TYPE, Heuristic
from rawnn.sim.codes import describe
from rawnn.sim.errors import Refused, SimulationError
from rawnn.sim.faults import simulated_call
from rawnn.sim.graphs import Effect, Node
from rawnn.sim.memory import Region
from rawnn.sim.order import Task
from rawnn.sim.simulation import Simulation

_INVALID = "CUBLAS_STATUS_INVALID_VALUE"
_NOT_SUPPORTED = "CUBLAS_STATUS_NOT_SUPPORTED"
_ITEM = {"R_32F": 4, "R_16F": 2, "R_16BF": 2}
_PLAIN, _RELU, _BIAS, _RELU_BIAS = 1, 2, 4, 6
_SPLIT_K_FROM = 512  # columns of op(A) from which the simulated heuristic uses a workspace
_WORKSPACE, _WORKSPACE_ALIGNMENT = 32 << 10, 16
_ALGO = struct.Struct("=8sQQQQ24x")
_MAGIC = b"sim algo"
_DESC_ATTRIBUTES = {"TRANSA", "TRANSB", "TRANSC", "EPILOGUE", "BIAS_POINTER"}
_PREFERENCES = {
    "SEARCH_MODE", "MAX_WORKSPACE_BYTES", "REDUCTION_SCHEME_MASK", "MIN_ALIGNMENT_A_BYTES",
    "MIN_ALIGNMENT_B_BYTES", "MIN_ALIGNMENT_C_BYTES", "MIN_ALIGNMENT_D_BYTES",
}


@dataclass(frozen=True)
class _Layout:
    """A column-major matrix of `rows` x `cols`, columns `ld` elements apart; `batch` of them,
    `stride` elements apart."""

    data_type: str
    rows: int
    cols: int
    ld: int
    batch: int = 1
    stride: int = 0


_LAYOUT_ATTRIBUTES = {"BATCH_COUNT": "batch", "STRIDED_BATCH_OFFSET": "stride"}


def load(raw: NDArray[np.uint8], data_type: str) -> NDArray[np.float32]:
    """[columns, bytes] as float32, one matrix column per row."""
    if data_type == "R_16BF":  # bfloat16 is the upper half of a float32
        return (raw.copy().view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    half = np.float16 if data_type == "R_16F" else np.float32
    return raw.copy().view(half).astype(np.float32)


def store(values: NDArray[np.float32], data_type: str) -> NDArray[np.uint8]:
    """The inverse of `load`, rounding to nearest even."""
    if data_type == "R_16BF":
        bits = np.ascontiguousarray(values).view(np.uint32)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        return np.where(np.isnan(values), np.uint16(0x7FFF), rounded).view(np.uint8)
    half = np.float16 if data_type == "R_16F" else np.float32
    return np.ascontiguousarray(values.astype(half)).view(np.uint8)


class SimCublasLt:
    """`rawnn.cuda.libs.cublaslt.CublasLt` for a simulated GPU."""

    library = "cublas"

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation

    def error_text(self, code: Any) -> tuple[str, str]:
        return describe("cublas", int(code))

    def _create(self, kind: str, value: Any) -> tuple[int, int]:
        return 0, self.simulation.create(kind, lambda handle: value)[0]

    def _destroy(self, handle: int, kind: str, code: str = _INVALID) -> tuple[int]:
        self.simulation.destroy(handle, kind, code)
        return (0,)

    @simulated_call(0)
    def cublasLtGetVersion(self) -> tuple[int, int]:
        return 0, 130000

    @simulated_call(0)
    def cublasLtCreate(self) -> tuple[int, int]:
        if not self.simulation.current:
            raise Refused("CUBLAS_STATUS_NOT_INITIALIZED")
        return self._create("cuBLASLt handle", None)

    @simulated_call()
    def cublasLtDestroy(self, handle: int) -> tuple[int]:
        return self._destroy(handle, "cuBLASLt handle", "CUBLAS_STATUS_NOT_INITIALIZED")

    # -- descriptors ----------------------------------------------------------------------------
    @simulated_call(0)
    def cublasLtMatmulDescCreate(self, compute_type: str, scale_type: str) -> tuple[int, int]:
        wanted = "R_16F" if compute_type == "16F" else "R_32F"
        if compute_type not in COMPUTE_TYPE or scale_type != wanted:
            raise Refused(_INVALID)
        return self._create("cuBLASLt matmul descriptor", {
            "TRANSA": 0, "TRANSB": 0, "EPILOGUE": 1, "HALF_SCALES": compute_type == "16F"})

    @simulated_call()
    def cublasLtMatmulDescSetAttribute(self, desc: int, attribute: str, value: int) -> tuple[int]:
        if attribute not in _DESC_ATTRIBUTES:
            raise Refused(_INVALID)
        self._find(desc, "matmul descriptor")[attribute] = value
        return (0,)

    @simulated_call()
    def cublasLtMatmulDescDestroy(self, desc: int) -> tuple[int]:
        return self._destroy(desc, "cuBLASLt matmul descriptor")

    @simulated_call(0)
    def cublasLtMatrixLayoutCreate(
        self, data_type: str, rows: int, cols: int, ld: int
    ) -> tuple[int, int]:
        if data_type not in DATA_TYPE or rows <= 0 or cols <= 0 or ld < rows:
            raise Refused(_INVALID)
        return self._create("cuBLASLt matrix layout", [_Layout(data_type, rows, cols, ld)])

    @simulated_call()
    def cublasLtMatrixLayoutSetAttribute(
        self, layout: int, attribute: str, value: int
    ) -> tuple[int]:
        held = self._find(layout, "matrix layout")
        if attribute not in _LAYOUT_ATTRIBUTES or value < (attribute == "BATCH_COUNT"):
            raise Refused(_INVALID)
        held[0] = replace(held[0], **{_LAYOUT_ATTRIBUTES[attribute]: value})
        return (0,)

    @simulated_call()
    def cublasLtMatrixLayoutDestroy(self, layout: int) -> tuple[int]:
        return self._destroy(layout, "cuBLASLt matrix layout")

    @simulated_call(0)
    def cublasLtMatmulPreferenceCreate(self) -> tuple[int, int]:
        return self._create("cuBLASLt preference", {})

    @simulated_call()
    def cublasLtMatmulPreferenceSetAttribute(
        self, preference: int, attribute: str, value: int
    ) -> tuple[int]:
        if attribute not in _PREFERENCES:
            raise Refused(_INVALID)
        self._find(preference, "preference")[attribute] = value
        return (0,)

    @simulated_call()
    def cublasLtMatmulPreferenceDestroy(self, preference: int) -> tuple[int]:
        return self._destroy(preference, "cuBLASLt preference")

    def _find(self, handle: int, kind: str) -> Any:
        return self.simulation.find(handle, f"cuBLASLt {kind}", _INVALID)

    # -- GEMMs ----------------------------------------------------------------------------------
    def _extents(self, desc: int, layouts: tuple[int, ...]) -> tuple[int, int, int]:
        """(m, n, k) of the GEMM in cuBLASLt's column-major terms; refuses shapes that do not
        fit."""
        kinds = self._find(desc, "matmul descriptor")
        a, b, c, d = (self._find(layout, "matrix layout")[0] for layout in layouts)
        m, k = (a.cols, a.rows) if kinds["TRANSA"] else (a.rows, a.cols)
        k_of_b, n = (b.cols, b.rows) if kinds["TRANSB"] else (b.rows, b.cols)
        if k != k_of_b or (c.rows, c.cols) != (m, n) or (d.rows, d.cols) != (m, n) \
                or len({a.batch, b.batch, c.batch, d.batch}) > 1:
            raise Refused(_INVALID)
        return m, n, k

    @simulated_call([])
    def cublasLtMatmulAlgoGetHeuristic(
        self, handle: int, desc: int, a: int, b: int, c: int, d: int, preference: int,
        requested: int,
    ) -> tuple[int, list[Heuristic]]:
        """One result. From k = 512 on it needs a workspace, if the preference allows one; then a
        second result needs none."""
        self._handle(handle)
        m, n, k = self._extents(desc, (a, b, c, d))
        wishes = self._find(preference, "preference")
        allowed = wishes.get("MAX_WORKSPACE_BYTES", 0)
        split = k >= _SPLIT_K_FROM and wishes.get("REDUCTION_SCHEME_MASK", 7) != 0
        workspace = _WORKSPACE if split and allowed >= _WORKSPACE else 0
        if requested < 1:
            raise Refused(_INVALID)
        answers = [workspace, 0] if workspace else [0]
        return 0, [Heuristic(_ALGO.pack(_MAGIC, m, n, k, needed), needed, 0, 0.5)
                   for needed in answers[:requested]]

    @simulated_call()
    def cublasLtMatmul(
        self, handle: int, desc: int, alpha: int, a: int, a_layout: int, b: int, b_layout: int,
        beta: int, c: int, c_layout: int, d: int, d_layout: int, algo: int, workspace: int,
        workspace_bytes: int, stream: int,
    ) -> tuple[int]:
        """D = alpha op(A) op(B) + beta C, with the epilogue; scales and algorithm are read now."""
        self._handle(handle)
        m, n, k = shape = self._extents(desc, (a_layout, b_layout, c_layout, d_layout))
        attributes = dict(self._find(desc, "matmul descriptor"))
        magic, *chosen_for, needed = _ALGO.unpack(ctypes.string_at(algo, _ALGO.size))
        if magic != _MAGIC or tuple(chosen_for) != shape:
            raise Refused(_NOT_SUPPORTED)
        if needed > workspace_bytes or (needed and not workspace):
            raise Refused(_INVALID)
        if needed and workspace % _WORKSPACE_ALIGNMENT:
            raise Refused(_INVALID)
        if attributes["EPILOGUE"] not in (_PLAIN, _RELU, _BIAS, _RELU_BIAS):
            raise Refused(_NOT_SUPPORTED)
        number = np.dtype(np.float16 if attributes["HALF_SCALES"] else np.float32)
        alpha_value, beta_value = (float(np.frombuffer(ctypes.string_at(at, number.itemsize),
                                                       number)[0]) for at in (alpha, beta))
        scales = alpha_value, beta_value
        layouts = [self._find(i, "matrix layout")[0]
                   for i in (a_layout, b_layout, c_layout, d_layout)]
        label = f"cublasLtMatmul m={m} n={n} k={k}"
        effect = self._matmul(label, attributes, scales, layouts, (a, b, c, d),
                              (workspace, needed))
        self.simulation.enqueue(stream, Node("kernel", label, (), effect))
        return (0,)

    def _handle(self, handle: int) -> None:
        self.simulation.find(handle, "cuBLASLt handle", "CUBLAS_STATUS_NOT_INITIALIZED")

    def _matmul(
        self, label: str, attributes: dict[str, int], scales: tuple[float, float],
        layouts: list[_Layout], addresses: tuple[int, int, int, int], workspace: tuple[int, int],
    ) -> Effect:
        memory = self.simulation.memory
        (alpha, beta), (lt_a, lt_b, lt_c, lt_d) = scales, layouts
        for name, address, layout in zip("ABCD", addresses, layouts, strict=True):
            if address % _ITEM[layout.data_type]:
                raise SimulationError(f"{label}: {name} at {address:#x} is not aligned")

        def region(task: Task, name: str, address: int, layout: _Layout) -> Region:
            item = _ITEM[layout.data_type]
            return memory.region(address, layout.rows * item, layout.ld * item, layout.cols,
                                 f"matrix {name} of {task}")

        def operand(task: Task, name: str, address: int, layout: _Layout) -> NDArray[np.float32]:
            found = region(task, name, address, layout)
            memory.read(task, found, name)
            raw = found.bytes().reshape(layout.cols, -1)
            return load(raw, layout.data_type).T

        def one(task: Task, a: int, b: int, c: int, d: int) -> None:
            left, right = operand(task, "A", a, lt_a), operand(task, "B", b, lt_b)
            product = (left.T if attributes["TRANSA"] else left) \
                @ (right.T if attributes["TRANSB"] else right)
            result = product if alpha == 1.0 else np.float32(alpha) * product
            if beta:
                result = result + np.float32(beta) * operand(task, "C", c, lt_c)
            if attributes["EPILOGUE"] in (_BIAS, _RELU_BIAS):
                bias = _Layout(lt_d.data_type, lt_d.rows, 1, lt_d.rows)
                result = result + operand(task, "bias", attributes.get("BIAS_POINTER", 0), bias)
            if attributes["EPILOGUE"] in (_RELU, _RELU_BIAS):
                result = np.maximum(result, np.float32(0))
            target = region(task, "D", d, lt_d)
            memory.write(task, target, "D")
            raw = target.bytes()
            raw[...] = store(result.T, lt_d.data_type).reshape(raw.shape)
            memory.mark_written(target)

        def run(task: Task) -> None:
            for i in range(lt_d.batch):
                one(task, *(address + i * layout.stride * _ITEM[layout.data_type]
                            for address, layout in zip(addresses, layouts, strict=True)))
            if workspace[1]:
                scratch = memory.region(*workspace, workspace[1], 1, f"workspace of {task}")
                memory.write(task, scratch, "workspace")
                memory.scribble(scratch)

        return without_fp_warnings(run)


def without_fp_warnings(effect: Effect) -> Effect:
    """The effect without NumPy's floating-point warnings: infinities and NaNs are valid values."""
    run: Callable[[Task], None] = np.errstate(all="ignore")(effect)
    return run
