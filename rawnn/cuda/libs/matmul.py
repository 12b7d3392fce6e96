"""GEMMs through cuBLASLt, described once per shape and then only enqueued.

rawnn's matrices are row-major, cuBLASLt's column-major by default. A row-major matrix read as
column-major is its transpose, so C = op(A) op(B) is computed as C^T = op(B)^T op(A)^T: rawnn's `b`
is cuBLASLt's A and `a` its B, and no data move. The bias, one value per column of C, is one value
per row of C^T, which is what cuBLASLt's bias epilogues add.
"""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from typing import Any

import numpy as np

from rawnn.common.errors import ConfigError, DeviceError, nearest
from rawnn.cuda.errors import check
from rawnn.cuda.libs.cublaslt import NOT_SUPPORTED

WORKSPACE_LIMIT = 4 << 20
POINTER_ALIGNMENT = 256
"""Alignment in bytes of every tensor: that of cuMemAlloc, cuMemAllocAsync and the arena."""

_HANDLE = "the handle for GEMMs"

# dtype -> (cuBLASLt data type, bytes per element)
_DTYPES = {"float32": ("R_32F", 4), "float16": ("R_16F", 2), "bfloat16": ("R_16BF", 2)}
_COMPUTES = {
    "float32": "32F", "tf32": "32F_FAST_TF32", "float16": "32F_FAST_16F",
    "bfloat16": "32F_FAST_16BF", "half": "16F",
}
# layout -> is rawnn's a, rawnn's b stored transposed?
_TRANSPOSED = {"nn": (False, False), "nt": (False, True), "tn": (True, False)}
# (bias, relu) -> cublasLtEpilogue_t
_EPILOGUES = {(False, False): 1, (False, True): 2, (True, False): 4, (True, True): 6}


class MatmulPlan:
    """C = act(alpha op(A) op(B) + beta C + bias), row-major, for one shape on one GPU.

    `layout` says how A and B are stored: "nt" a[m,k] b[n,k], "nn" a[m,k] b[k,n], "tn" a[k,m]
    b[k,n]; c is [m,n], read only where `beta` is not 0, and overwritten in place. Leading
    dimensions are in elements. `bias` adds bias[n] (of `dtype`) to every row, `relu` then clamps
    at 0. `dtype` is the storage of A and B (float32, float16, bfloat16), `output` that of C and the
    bias ("": the same); sums are float32, with float32 factors rounded as `compute` says (float32,
    tf32, float16, bfloat16), or float16 throughout where it says half.

    The algorithm is the heuristic's result number `choice`, by default the first, so that the same
    shape and choice give the same algorithm and the same bits on the same GPU and library;
    cuBLASLt's split-k reductions run in a fixed order. `split_k=False` excludes algorithms that
    split k over blocks. With `slices` > 1 (a divisor of k), c is [slices * m, n] and holds partial
    sums for each slice of k, which the caller adds up: one strided batch spreads a small GEMM over
    the GPU. `alignment` is that of the operands' addresses in bytes.

    `run` needs `workspace_bytes` (at most `workspace_limit`) of scratch memory; two GEMMs that may
    run at the same time need a workspace each. `run` neither waits nor allocates, so it may be
    captured into a graph.

    Raises ConfigError for an unknown layout or type, DeviceError if cuBLASLt has no algorithm,
    CallFailed where a call fails; a constructor that raises leaves no descriptor behind.
    """

    def __init__(
        self, api: Any, handle: int, *, layout: str, m: int, n: int, k: int,
        lda: int, ldb: int, ldc: int, dtype: str = "float32", output: str = "",
        compute: str = "float32", alpha: float = 1.0, beta: float = 0.0, bias: bool = False,
        relu: bool = False, split_k: bool = True, slices: int = 1,
        choice: int = 0, workspace_limit: int = WORKSPACE_LIMIT, alignment: int = POINTER_ALIGNMENT,
    ) -> None:
        a_transposed, b_transposed = _known("matrix layout", layout, _TRANSPOSED)
        data_type, itemsize = _known("matrix type", dtype, _DTYPES)
        output_type, output_size = _known("matrix type", output or dtype, _DTYPES)
        compute_type = _known("compute type", compute, _COMPUTES)
        self.description = (
            f"matmul {layout} m={m} n={n} k={k} lda={lda} ldb={ldb} ldc={ldc} {dtype}"
            + (f" to {output}" if output not in ("", dtype) else "") + ", "
            f"compute {compute}, alpha={alpha:g} beta={beta:g}"
            + (", bias" if bias else "") + (", relu" if relu else "")
            + (f", {slices} slices of k" if slices > 1 else "")
        )
        self._api = api
        self._bias = 0

        with ExitStack() as closing:
            desc = self._make(
                closing, "cublasLtMatmulDescCreate", "cublasLtMatmulDescDestroy",
                compute_type, "R_16F" if compute == "half" else "R_32F",
            )
            # In cuBLASLt's terms: its A is our b, its B our a, both transposed.
            attributes = {
                "TRANSA": int(b_transposed), "TRANSB": int(a_transposed),
                "EPILOGUE": _EPILOGUES[bias, relu],
            }
            if bias:
                # Algorithms are chosen for an aligned, non-null bias; `run` sets the real address
                # before the first GEMM.
                attributes["BIAS_POINTER"] = self._bias = alignment
            for name, value in attributes.items():
                self._set("cublasLtMatmulDescSetAttribute", desc, name, value)

            def make_layout(rows: int, cols: int, ld: int, stride: int,
                            stored: str = data_type) -> int:
                layout = self._make(
                    closing, "cublasLtMatrixLayoutCreate", "cublasLtMatrixLayoutDestroy",
                    stored, rows, cols, ld,
                )
                if slices > 1:
                    for name, value in (("BATCH_COUNT", slices),
                                        ("STRIDED_BATCH_OFFSET", stride)):
                        self._set("cublasLtMatrixLayoutSetAttribute", layout, name, value)
                return layout

            part = k // slices
            lt_a = make_layout(*((part, n, ldb, part) if b_transposed else
                                 (n, part, ldb, part * ldb)))
            lt_b = make_layout(*((m, part, lda, part * lda) if a_transposed else
                                 (part, m, lda, part)))
            lt_c = make_layout(n, m, ldc, m * ldc, output_type)

            preferences = {
                "MAX_WORKSPACE_BYTES": workspace_limit,
                # CUBLASLT_REDUCTION_SCHEME_MASK or _NONE
                "REDUCTION_SCHEME_MASK": 7 if split_k else 0,
            }
            for operand, row in (("A", ldb * itemsize), ("B", lda * itemsize),
                                 ("C", ldc * output_size), ("D", ldc * output_size)):
                preferences[f"MIN_ALIGNMENT_{operand}_BYTES"] = _row_alignment(row, alignment)
            algo, self.workspace_bytes = self._choose(handle, desc, lt_a, lt_b, lt_c, preferences,
                                                             choice)

            # The library reads this host memory at each GEMM, so the plan keeps it alive.
            self._algo = (ctypes.c_uint64 * 8).from_buffer_copy(algo)
            self._scales = np.array([alpha, beta], np.float16 if compute == "half" else np.float32)
            scales = self._scales.ctypes.data
            self._before_a = (handle, desc, scales)
            self._lt_a, self._lt_b, self._lt_c = lt_a, lt_b, lt_c
            self._beta_address = scales + self._scales.itemsize
            self._algo_address = ctypes.addressof(self._algo)
            self._desc, self._has_bias = desc, bias
            self._matmul = api.cublasLtMatmul
            self._closing = closing.pop_all()

    def _choose(
        self, handle: int, desc: int, lt_a: int, lt_b: int, lt_c: int, preferences: dict[str, int],
        choice: int,
    ) -> tuple[bytes, int]:
        """(algorithm, its workspace in bytes): the heuristic's result number `choice`."""
        with ExitStack() as closing:
            preference = self._make(
                closing, "cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceDestroy"
            )
            for name, value in preferences.items():
                self._set("cublasLtMatmulPreferenceSetAttribute", preference, name, value)
            result = self._api.cublasLtMatmulAlgoGetHeuristic(
                handle, desc, lt_a, lt_b, lt_c, lt_c, preference, choice + 1
            )
            answers, detail = [], ""
            if result[0] == NOT_SUPPORTED:
                name, text = self._api.error_text(NOT_SUPPORTED)
                detail = f" (cublasLtMatmulAlgoGetHeuristic failed with {name} " \
                       f"[{NOT_SUPPORTED}]: {text})"
            else:
                answers = check(
                    self._api, "cublasLtMatmulAlgoGetHeuristic", result, self.description
                )
        if not answers or answers[0].state:
            raise DeviceError(
                f"cuBLASLt has no algorithm for {self.description} within "
                f"{preferences['MAX_WORKSPACE_BYTES']:,} bytes of workspace; pad the rows to "
                f"multiples of 16 bytes, allow more workspace or a k-split, or run without the "
                f"'cublas' toggle{detail}"
            )
        if choice >= len(answers) or answers[choice].state:
            raise DeviceError(f"cuBLASLt has no {choice + 1} algorithms for {self.description}")
        return answers[choice].algo, answers[choice].workspace_bytes

    def _make(self, closing: ExitStack, create: str, destroy: str, *arguments: Any) -> int:
        """Create a descriptor that `made` destroys."""
        value: int = check(
            self._api, create, getattr(self._api, create)(*arguments), self.description
        )
        closing.callback(lambda: check(
            self._api, destroy, getattr(self._api, destroy)(value), self.description
        ))
        return value

    def _set(self, call: str, target: int, name: str, value: int) -> None:
        check(
            self._api, call, getattr(self._api, call)(target, name, value),
            f"{name} = {value}, {self.description}",
        )

    def run(
        self, stream: int, a: int, b: int, c: int, bias: int = 0, workspace: int = 0
    ) -> None:
        """Enqueue the GEMM; all arguments are device addresses. Raises CallFailed."""
        if bias != self._bias and self._has_bias:
            self._set("cublasLtMatmulDescSetAttribute", self._desc, "BIAS_POINTER", bias)
            self._bias = bias
        lt_c = self._lt_c
        result = self._matmul(
            *self._before_a, b, self._lt_a, a, self._lt_b, self._beta_address, c, lt_c, c, lt_c,
            self._algo_address, workspace, self.workspace_bytes, stream,
        )
        if result[0]:
            check(self._api, "cublasLtMatmul", result, self.description)

    def close(self) -> None:
        """Destroy the descriptors; further calls have no effect."""
        self._closing.close()


class LtContext:
    """Owner of one cuBLASLt handle and of the plans made with it, one per shape.

    The handle is created at first use, when the device's context is current. Only one thread at a
    time may use it. Closing destroys the plans, then the handle.
    """

    def __init__(self, api: Any) -> None:
        self._api = api
        self._handle: int | None = None
        self._plans: dict[tuple[tuple[str, Any], ...], MatmulPlan] = {}
        self._closing = ExitStack()

    @property
    def handle(self) -> int:
        if self._handle is None:
            handle = check(self._api, "cublasLtCreate", self._api.cublasLtCreate(), _HANDLE)
            self._closing.callback(lambda: check(
                self._api, "cublasLtDestroy", self._api.cublasLtDestroy(handle), _HANDLE
            ))
            self._handle = handle
        return self._handle

    def plan(self, **shape: Any) -> MatmulPlan:
        """The plan for MatmulPlan's keyword arguments, created at the first request.

        Plans are memoised by the arguments. Users of one plan with different biases share its
        descriptor: `run` sets the address when it changes.
        """
        key = tuple(sorted(shape.items()))
        if key not in self._plans:
            plan = MatmulPlan(self._api, self.handle, **shape)
            self._closing.callback(plan.close)
            self._plans[key] = plan
        return self._plans[key]

    @property
    def workspace_bytes(self) -> int:
        """The largest workspace of all plans so far."""
        return max((plan.workspace_bytes for plan in self._plans.values()), default=0)

    def close(self) -> None:
        """Destroy plans and handle; the next use creates them again."""
        self._plans.clear()
        self._handle = None
        self._closing.close()


def _known(what: str, word: str, table: dict[str, Any]) -> Any:
    if word not in table:
        raise ConfigError(
            f"unknown {what} '{word}': one of {', '.join(table)}{nearest(word, table)}"
        )
    return table[word]


def _row_alignment(row_bytes: int, base: int) -> int:
    """Largest power of two, at most `base`, that every row's address is a multiple of."""
    return min(row_bytes & -row_bytes, base)
