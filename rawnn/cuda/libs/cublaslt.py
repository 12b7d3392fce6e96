"""cuBLASLt as rawnn calls it: an interface to nvmath-python's bindings (1.0, and 0.6 or later).

As in rawnn/cuda/driver.py, every method has the library's own name and returns its status first.
Descriptors, layouts and handles are opaque ints; enumerations are passed by the library's names
without their common prefix. The bindings are imported only at construction.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from rawnn.common.errors import DeviceError
from rawnn.cuda.errors import require_package
from rawnn.cuda.libs import locate

_MODULE = "nvmath.bindings.cublasLt"
FILE_NAMES = ("libcublasLt.so.13", "libcublasLt.so.12")
WHEEL_FOLDERS = ("cu13/lib", "cublas/lib")

NOT_SUPPORTED = 15
"""CUBLAS_STATUS_NOT_SUPPORTED: returned by the heuristic if no algorithm fits."""

# Values of cublasComputeType_t (cublas_api.h) and cudaDataType (library_types.h).
COMPUTE_TYPE = {"16F": 64, "32F": 68, "32F_FAST_16F": 74, "32F_FAST_16BF": 75, "32F_FAST_TF32": 77}
DATA_TYPE = {"R_32F": 0, "R_16F": 2, "R_16BF": 14}

_SUCCESS = (0,)
_POINTER_SIZED = frozenset({"BIAS_POINTER", "STRIDED_BATCH_OFFSET", "MAX_WORKSPACE_BYTES"})


class Heuristic(NamedTuple):
    """One result of cublasLtMatmulAlgoGetHeuristic."""

    algo: bytes
    """cublasLtMatmulAlgo_t, 64 bytes, valid for the same shape, library and GPU."""
    workspace_bytes: int
    state: int
    """Status of this result; 0 means that the algorithm runs."""
    waves: float
    """How many times over the grid fills the GPU."""


class _HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algo", ctypes.c_uint64 * 8),
        ("workspace_size", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class CublasLt:
    """`nvmath.bindings.cublasLt` behind plain arguments. One instance serves a process.

    Construction imports the bindings and loads the library; it needs the driver's library, but no
    context. Raises MissingLibrary if nvmath-python or cuBLASLt is not installed, DeviceError if
    there is no NVIDIA driver.
    """

    def __init__(self) -> None:
        lt = _bindings()
        self._lt = lt
        try:
            lt.get_version()  # the first call loads the library
        except RuntimeError as error:  # nvmath's and cuda-pathfinder's own errors derive from it
            reason = str(error).partition("\n")[0]
            if "libcuda.so" in reason or "CUDA driver" in reason:
                raise DeviceError(
                    f"cuBLASLt needs the NVIDIA driver, which cannot be loaded: {reason}"
                ) from error
            raise locate.missing("cuBLASLt", FILE_NAMES, WHEEL_FOLDERS, reason) from error
        self._error: type[Exception] = lt.cuBLASLtError
        self._matmul: Callable[..., None] = lt.matmul

    def error_text(self, code: Any) -> tuple[str, str]:
        """(name, description) of a cuBLAS status, as the library words them."""
        name: str = self._lt.get_status_name(int(code))
        text: str = self._lt.get_status_string(int(code))
        return name, text

    def _status(self, call: Callable[..., None], *arguments: Any) -> tuple[int]:
        """The bindings raise on failure; this returns the status."""
        try:
            call(*arguments)
        except self._error as error:
            return (error.status,)  # type: ignore[attr-defined]
        return _SUCCESS

    def _value(self, call: Callable[..., int], *arguments: Any) -> tuple[int, int]:
        try:
            return 0, call(*arguments)
        except self._error as error:
            return error.status, 0  # type: ignore[attr-defined]

    # -- library --------------------------------------------------------------------------------
    def cublasLtGetVersion(self) -> tuple[int, int]:
        """(code, version), as 120903 for 12.9.3."""
        return self._value(self._lt.get_version)

    def cublasLtCreate(self) -> tuple[int, int]:
        """(code, handle), bound to the current context's device."""
        return self._value(self._lt.create)

    def cublasLtDestroy(self, handle: int) -> tuple[int]:
        return self._status(self._lt.destroy, handle)

    # -- descriptors ----------------------------------------------------------------------------
    def cublasLtMatmulDescCreate(self, compute_type: str, scale_type: str) -> tuple[int, int]:
        """Types are keys of COMPUTE_TYPE and DATA_TYPE."""
        return self._value(
            self._lt.matmul_desc_create, COMPUTE_TYPE[compute_type], DATA_TYPE[scale_type]
        )

    def cublasLtMatmulDescSetAttribute(self, desc: int, attribute: str, value: int) -> tuple[int]:
        """`attribute` is the library's name without its `CUBLASLT_MATMUL_DESC_`."""
        attr = getattr(self._lt.MatmulDescAttribute, attribute)
        buffer = _integer(attribute, value)
        return self._status(
            self._lt.matmul_desc_set_attribute,
            desc, attr, ctypes.addressof(buffer), ctypes.sizeof(buffer),
        )

    def cublasLtMatmulDescDestroy(self, desc: int) -> tuple[int]:
        return self._status(self._lt.matmul_desc_destroy, desc)

    def cublasLtMatrixLayoutCreate(
        self, data_type: str, rows: int, cols: int, ld: int
    ) -> tuple[int, int]:
        """A column-major matrix; `ld` in elements."""
        return self._value(self._lt.matrix_layout_create, DATA_TYPE[data_type], rows, cols, ld)

    def cublasLtMatrixLayoutSetAttribute(
        self, layout: int, attribute: str, value: int
    ) -> tuple[int]:
        """`attribute` is the library's name without its `CUBLASLT_MATRIX_LAYOUT_`."""
        attr = getattr(self._lt.MatrixLayoutAttribute, attribute)
        buffer = _integer(attribute, value)
        return self._status(
            self._lt.matrix_layout_set_attribute,
            layout, attr, ctypes.addressof(buffer), ctypes.sizeof(buffer),
        )

    def cublasLtMatrixLayoutDestroy(self, layout: int) -> tuple[int]:
        return self._status(self._lt.matrix_layout_destroy, layout)

    def cublasLtMatmulPreferenceCreate(self) -> tuple[int, int]:
        return self._value(self._lt.matmul_preference_create)

    def cublasLtMatmulPreferenceSetAttribute(
        self, preference: int, attribute: str, value: int
    ) -> tuple[int]:
        """`attribute` is the library's name without its `CUBLASLT_MATMUL_PREF_`."""
        attr = getattr(self._lt.MatmulPreferenceAttribute, attribute)
        buffer = _integer(attribute, value)
        return self._status(
            self._lt.matmul_preference_set_attribute,
            preference, attr, ctypes.addressof(buffer), ctypes.sizeof(buffer),
        )

    def cublasLtMatmulPreferenceDestroy(self, preference: int) -> tuple[int]:
        return self._status(self._lt.matmul_preference_destroy, preference)

    # -- GEMMs ----------------------------------------------------------------------------------
    def cublasLtMatmulAlgoGetHeuristic(
        self, handle: int, desc: int, a: int, b: int, c: int, d: int, preference: int,
        requested: int,
    ) -> tuple[int, list[Heuristic]]:
        """(code, at most `requested` results, the expected fastest first)."""
        results = (_HeuristicResult * requested)()
        count = ctypes.c_int(0)
        (code,) = self._status(
            self._lt.matmul_algo_get_heuristic, handle, desc, a, b, c, d, preference, requested,
            ctypes.addressof(results), ctypes.addressof(count),
        )
        return code, [
            Heuristic(bytes(r.algo), r.workspace_size, r.state, r.waves)
            for r in results[: count.value]
        ]

    def cublasLtMatmul(
        self, handle: int, desc: int, alpha: int, a: int, a_layout: int, b: int, b_layout: int,
        beta: int, c: int, c_layout: int, d: int, d_layout: int, algo: int, workspace: int,
        workspace_bytes: int, stream: int,
    ) -> tuple[int]:
        """All arguments are addresses or handles; `alpha`, `beta` and `algo` address host memory
        that the caller keeps alive. It avoids `_status` because it is the hot call."""
        try:
            self._matmul(
                handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout,
                algo, workspace, workspace_bytes, stream,
            )
        except self._error as error:
            return (error.status,)  # type: ignore[attr-defined]
        return _SUCCESS


def _bindings() -> Any:
    """The module of the bindings. Importing its packages would import all of nvmath-python (FFTs,
    sparse solvers, cuda.core) in 0.4 s; the module alone takes 0.03 s. So the packages' code is not
    run. If the module does not load without them, they are imported completely. Later imports of
    either are not affected."""
    packages = _MODULE.split(".")[0], _MODULE.rpartition(".")[0]
    if not {*packages, _MODULE}.intersection(sys.modules):
        try:
            for name in packages:
                spec = importlib.util.find_spec(name)
                if spec is None:
                    break
                sys.modules[name] = importlib.util.module_from_spec(spec)
            alone = importlib.import_module(_MODULE)
            alone.get_version()
            return alone
        except (ImportError, AttributeError, RuntimeError):
            pass  # the complete import may report more
        finally:
            for name in packages:
                sys.modules.pop(name, None)
    return require_package(_MODULE, "nvmath-python")


def _integer(attribute: str, value: int) -> ctypes.c_uint64 | ctypes.c_int32:
    """The attribute's value in the width that the library expects."""
    return ctypes.c_uint64(value) if attribute in _POINTER_SIZED else ctypes.c_int32(value)
