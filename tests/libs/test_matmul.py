"""MatmulPlan and LtContext over a recording cuBLASLt that multiplies on the host."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest

from rawnn.common.errors import ConfigError, DeviceError
from rawnn.cuda.errors import CallFailed
from rawnn.cuda.libs.cublaslt import Heuristic
from rawnn.cuda.libs.matmul import LtContext, MatmulPlan

from .stub import ALGO, LtStub

SHAPE = {"layout": "nt", "m": 5, "n": 3, "k": 7, "lda": 8, "ldb": 8, "ldc": 4}
STREAM, WORKSPACE = 77, 4096


def padded(rng: np.random.Generator, rows: int, cols: int, ld: int) -> np.ndarray:
    return rng.standard_normal((rows, ld), dtype=np.float32)


@pytest.mark.parametrize("layout", ["nt", "nn", "tn"])
@pytest.mark.parametrize(
    ("bias", "relu", "beta"), list(itertools.product([False, True], [False, True], [0.0, 0.5]))
)
def test_computes_the_row_major_product(layout: str, bias: bool, relu: bool, beta: float) -> None:
    rng = np.random.default_rng(1)
    m, n, k = 5, 3, 7
    a = padded(rng, *((k, m) if layout == "tn" else (m, k)), 12)
    b = padded(rng, *((n, k) if layout == "nt" else (k, n)), 8)
    c, v = padded(rng, m, n, 4), rng.standard_normal(n, dtype=np.float32)
    left = a[:, :m].T if layout == "tn" else a[:, :k]
    right = b[:, :k].T if layout == "nt" else b[:, :n]
    expected = 1.5 * (left @ right) + beta * c[:, :n] + (v if bias else 0)
    expected = np.maximum(expected, 0) if relu else expected
    padding = c[:, n:].copy()

    api = LtStub()
    plan = MatmulPlan(
        api, 1, layout=layout, m=m, n=n, k=k, lda=12, ldb=8, ldc=4,
        alpha=1.5, beta=beta, bias=bias, relu=relu,
    )
    plan.run(STREAM, a.ctypes.data, b.ctypes.data, c.ctypes.data, v.ctypes.data, WORKSPACE)

    np.testing.assert_allclose(c[:, :n], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(c[:, n:], padding)
    assert api.arguments("cublasLtMatmul") == [(WORKSPACE, plan.workspace_bytes, STREAM)]
    plan.close()
    assert not api.alive


def test_describes_the_product_once_and_destroys_it_in_reverse() -> None:
    api = LtStub()
    plan = MatmulPlan(api, 1, **SHAPE, dtype="bfloat16", bias=True, relu=True)
    assert api.names() == [
        "cublasLtMatmulDescCreate", *["cublasLtMatmulDescSetAttribute"] * 4,
        *["cublasLtMatrixLayoutCreate"] * 3,
        "cublasLtMatmulPreferenceCreate", *["cublasLtMatmulPreferenceSetAttribute"] * 6,
        "cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmulPreferenceDestroy",
    ]
    assert api.arguments("cublasLtMatmulDescCreate") == [("32F", "R_32F")]
    # cuBLASLt's A is our b [3, 7], its B our a [5, 7], its C ours [5, 3], all transposed.
    assert api.arguments("cublasLtMatrixLayoutCreate") == [
        ("R_16BF", 7, 3, 8), ("R_16BF", 7, 5, 8), ("R_16BF", 3, 5, 4),
    ]
    assert plan.workspace_bytes == 1 << 16
    del api.calls[:]
    plan.close()
    plan.close()
    assert api.names() == ["cublasLtMatrixLayoutDestroy"] * 3 + ["cublasLtMatmulDescDestroy"]


@pytest.mark.parametrize("layout", ["nt", "nn", "tn"])
def test_slices_of_k_are_partial_sums_one_behind_the_other(layout: str) -> None:
    rng = np.random.default_rng(2)
    m, n, part, slices = 5, 3, 4, 3
    k = part * slices
    a = padded(rng, *((k, m) if layout == "tn" else (m, k)), 13)
    b = padded(rng, *((n, k) if layout == "nt" else (k, n)), 14)
    c = padded(rng, slices * m, n, 6)
    left = a[:, :m].T if layout == "tn" else a[:, :k]
    right = b[:, :k].T if layout == "nt" else b[:, :n]
    expected = c.copy()
    for i in range(slices):
        of_k = slice(i * part, (i + 1) * part)
        expected[i * m : (i + 1) * m, :n] = left[:, of_k] @ right[of_k]
    api = LtStub()
    plan = MatmulPlan(api, 1, layout=layout, m=m, n=n, k=k, lda=13, ldb=14, ldc=6, slices=slices)
    plan.run(STREAM, a.ctypes.data, b.ctypes.data, c.ctypes.data)
    np.testing.assert_allclose(c, expected, rtol=1e-5, atol=1e-6)
    plan.close()
    assert not api.alive


@pytest.mark.parametrize(("compute", "name", "scale"), [
    ("float32", "32F", "R_32F"), ("tf32", "32F_FAST_TF32", "R_32F"),
    ("float16", "32F_FAST_16F", "R_32F"), ("bfloat16", "32F_FAST_16BF", "R_32F"),
    ("half", "16F", "R_16F")])
def test_compute_type_and_the_type_of_both_scales(
        monkeypatch: pytest.MonkeyPatch, compute: str, name: str, scale: str) -> None:
    kind = np.dtype({"R_32F": np.float32, "R_16F": np.float16}[scale])
    scales: list[float] = []

    def read(*arguments: int) -> tuple[int]:
        scales.extend(float(np.frombuffer(ctypes.string_at(arguments[i], kind.itemsize), kind)[0])
                      for i in (2, 7))
        return (0,)

    api = LtStub()
    monkeypatch.setattr(api, "cublasLtMatmul", read)
    plan = MatmulPlan(api, 1, **SHAPE, compute=compute, alpha=1.5, beta=0.25)
    assert api.arguments("cublasLtMatmulDescCreate") == [(name, scale)]
    plan.run(STREAM, 1, 2, 3)
    assert scales == [1.5, 0.25]


@pytest.mark.parametrize(("dtype", "output", "types", "alignment"), [
    ("float32", "", ("R_32F",) * 3, (32, 64, 16)),
    ("float16", "float32", ("R_16F", "R_16F", "R_32F"), (16, 32, 16)),
    ("bfloat16", "", ("R_16BF",) * 3, (16, 32, 8))])
def test_the_result_may_have_another_type(dtype: str, output: str, types: tuple[str, ...],
                                          alignment: tuple[int, ...]) -> None:
    api = LtStub()
    plan = MatmulPlan(api, 1, **{**SHAPE, "lda": 16, "ldb": 8, "ldc": 4}, dtype=dtype,
                      output=output)
    assert [each[0] for each in api.arguments("cublasLtMatrixLayoutCreate")] == [*types]
    preferences = api.seen_by_heuristic[1]
    assert [preferences[f"MIN_ALIGNMENT_{operand}_BYTES"] for operand in "ABC"] == [*alignment]
    assert preferences["MIN_ALIGNMENT_D_BYTES"] == preferences["MIN_ALIGNMENT_C_BYTES"]
    assert (f"{dtype} to {output}" in plan.description) == bool(output)


def test_heuristic_sees_alignment_workspace_split_and_a_bias() -> None:
    api = LtStub()
    sizes = {**SHAPE, "lda": 784, "ldb": 64, "ldc": 12}
    MatmulPlan(api, 1, **sizes, bias=True, split_k=False, workspace_limit=1 << 20)
    attributes, preferences = api.seen_by_heuristic
    assert preferences == {
        "MAX_WORKSPACE_BYTES": 1 << 20, "REDUCTION_SCHEME_MASK": 0,
        # rows of b: 64 * 4 = 256 bytes; of a: 784 * 4 = 64 * 49; of c: 12 * 4 = 16 * 3
        "MIN_ALIGNMENT_A_BYTES": 256, "MIN_ALIGNMENT_B_BYTES": 64,
        "MIN_ALIGNMENT_C_BYTES": 16, "MIN_ALIGNMENT_D_BYTES": 16,
    }
    assert attributes["BIAS_POINTER"] % 16 == 0 < attributes["BIAS_POINTER"]
    MatmulPlan(api, 1, **sizes, alignment=32)
    assert api.seen_by_heuristic[1]["REDUCTION_SCHEME_MASK"] == 7
    assert api.seen_by_heuristic[1]["MIN_ALIGNMENT_A_BYTES"] == 32


def test_bias_address_is_set_only_when_it_changes() -> None:
    api = LtStub()
    plan = MatmulPlan(api, 1, **SHAPE, bias=True)
    a, b, c = (np.zeros((8, 8), np.float32).ctypes for _ in range(3))
    first, second = np.ones(3, np.float32).ctypes, np.ones(3, np.float32).ctypes
    del api.calls[:]
    for bias in (first, first, second):
        plan.run(STREAM, a.data, b.data, c.data, bias.data)
    assert api.names() == [
        "cublasLtMatmulDescSetAttribute", "cublasLtMatmul", "cublasLtMatmul",
        "cublasLtMatmulDescSetAttribute", "cublasLtMatmul",
    ]
    assert [x[1:] for x in api.arguments("cublasLtMatmulDescSetAttribute")] == [
        ("BIAS_POINTER", first.data), ("BIAS_POINTER", second.data),
    ]


def test_a_failing_constructor_leaves_nothing_behind() -> None:
    api = LtStub()
    MatmulPlan(api, 1, **SHAPE, bias=True)
    for index in range(len(api.calls)):
        failing = LtStub(fail_at=index)
        with pytest.raises(CallFailed, match=r"STATUS_7 \[7\].*m=5 n=3 k=7 lda=8"):
            MatmulPlan(failing, 1, **SHAPE, bias=True)
        assert not failing.alive, api.calls[index]


@pytest.mark.parametrize("answers", [(), (Heuristic(ALGO, 0, 15, 0.0),)])
def test_no_algorithm_says_shape_and_fix(answers: tuple[Heuristic, ...]) -> None:
    api = LtStub()
    api.answers = answers
    with pytest.raises(DeviceError, match=r"no algorithm for matmul nt m=5 .*4,194,304.*pad"):
        MatmulPlan(api, 1, **SHAPE)
    assert not api.alive


def test_heuristic_status_not_supported_means_no_algorithm() -> None:
    names = LtStub()
    MatmulPlan(names, 1, **SHAPE)
    index = names.names().index("cublasLtMatmulAlgoGetHeuristic")
    api = LtStub(fail_at=index, fail_code=15)
    with pytest.raises(DeviceError, match="cuBLASLt has no algorithm for"):
        MatmulPlan(api, 1, **SHAPE)
    assert not api.alive


def test_failing_product_names_the_shape() -> None:
    api = LtStub()
    plan = MatmulPlan(api, 1, **SHAPE)
    api.fail_at = len(api.calls)
    with pytest.raises(CallFailed, match=r"cublasLtMatmul failed with STATUS_7 .*matmul nt m=5"):
        plan.run(STREAM, 1, 2, 3)


def test_close_destroys_the_rest_when_one_destruction_fails() -> None:
    api = LtStub()
    plan = MatmulPlan(api, 1, **SHAPE)
    api.fail_at = len(api.calls) + 1
    with pytest.raises(CallFailed, match="cublasLtMatrixLayoutDestroy"):
        plan.close()
    assert not api.alive


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layout": "tt"}, "unknown matrix layout 'tt': one of nn, nt, tn"),
        ({"dtype": "float8"}, "unknown matrix type 'float8'.*did you mean 'float32'"),
        ({"compute": "tf23"}, "unknown compute type.*did you mean 'tf32'"),
    ],
)
def test_unknown_words(change: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MatmulPlan(LtStub(), 1, **{**SHAPE, **change})


def test_context_makes_one_plan_per_shape_and_one_handle() -> None:
    api = LtStub()
    context = LtContext(api)
    assert not api.calls
    assert context.workspace_bytes == 0
    plan = context.plan(**SHAPE)
    assert context.plan(**dict(reversed(SHAPE.items()))) is plan
    assert context.plan(**SHAPE, relu=True) is not plan
    assert api.names().count("cublasLtCreate") == 1
    assert context.workspace_bytes == 1 << 16
    context.close()
    assert not api.alive
    assert api.names()[-1] == "cublasLtDestroy"
    context.close()
    api.used_handles.clear()
    again = context.plan(**SHAPE)
    assert again is not plan
    again.run(STREAM, *(np.zeros((8, 8), np.float32).ctypes.data for _ in range(3)))
    assert api.used_handles == {context.handle}
    assert api.alive[context.handle] == "handle"
    context.close()
    assert not api.alive


def test_context_without_a_handle_says_why() -> None:
    with pytest.raises(CallFailed, match=r"cublasLtCreate failed with STATUS_1 \[1\]"):
        LtContext(LtStub(fail_at=0, fail_code=1)).plan(**SHAPE)
