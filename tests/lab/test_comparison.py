"""Results against what is exact: by the norm, by the worst element, with what is no number."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rawnn
from rawnn.common.errors import ConfigError
from rawnn.common.tolerances import TENSOR_CORE
from rawnn.lab import simulated
from rawnn.lab.comparison import allowed, compare, is_nothing, sensitivity, type_name
from rawnn.sim import register
from rawnn.sim.kernel_references import forget

EXACT = np.array([1.0, -2.0, 3.0, 4.0])


def judge(exact: Any, got: Any, dtype: Any = np.float32, scale: float = 0.0,
          tolerance: float = 1e-6) -> Any:
    return compare("y", np.asarray(exact, np.float64), np.asarray(got).astype(dtype), tolerance,
                   scale)


@pytest.mark.parametrize(("exact", "got", "dtype", "passes"), [
    (EXACT, EXACT, np.float32, True), (EXACT, EXACT * (1 + 1e-7), np.float32, True),
    (EXACT, EXACT * (1 + 1e-5), np.float32, False), (EXACT, EXACT[::-1], np.float32, False),
    ([1, np.nan], [1, np.nan], np.float32, True), ([1, np.nan], [1, 2], np.float32, False),
    ([1, 2], [1, np.nan], np.float32, False), ([1, np.inf], [1, np.inf], np.float32, True),
    ([1, np.inf], [1, -np.inf], np.float32, False), ([1, 2], [1, np.inf], np.float32, False),
    ([1, np.inf], [1, 3e38], np.float32, False), ([1, np.nan], [1, np.inf], np.float32, False),
    ([1, 1e6], [1, np.inf], np.float16, True), ([1, 1e6], [1, 65504], np.float16, False),
    ([1, 1e39], [1, np.inf], ml_dtypes.bfloat16, True), ([0, 0], [0, 0], np.float32, True),
    ([0, 0], [0, 1e-3], np.float32, False), ([0, 0], [0, 1e-9], np.float32, True),
    ([1e200, 1], [1e200, 1], np.float64, True), ([1e200, 1], [1.1e200, 1], np.float64, False),
    ([1 + 2j, 3], [1 + 2j, 3], np.complex64, True), ([1 + 2j, 3], [1 + 1j, 3], np.complex64, False),
    ([1e-40, 1], [1.001e-40, 1], np.float32, True), ([np.nan] * 2, [np.nan] * 2, np.float32, True),
])
def test_verdicts(exact: Any, got: Any, dtype: Any, passes: bool) -> None:
    tolerance = allowed(np.dtype(dtype), 1, "float32", "float32")
    kind = np.complex128 if np.dtype(dtype).kind == "c" else np.float64
    with np.errstate(over="ignore"):
        found = compare("y", np.asarray(exact, kind), np.asarray(got).astype(dtype), tolerance, 0)
    assert found.passed == passes, str(found)


ODD = (np.nan, np.inf, -np.inf, 1e39, -1e39, 2.0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16, np.complex64])
@pytest.mark.parametrize("exact", ODD)
def test_what_is_no_number_is_expected_where_the_dtype_has_none(dtype: Any, exact: float) -> None:
    """Every pair: alike once rounded to the dtype, NaN like NaN."""
    kind = np.complex128 if np.dtype(dtype).kind == "c" else np.float64
    with np.errstate(over="ignore"):
        held = complex(np.array(exact).astype(dtype))
        for got in ODD:
            made = np.array([1.0, got]).astype(dtype)
            found = compare("y", np.array([1.0, exact], kind), made, 1e-3, 0.0)
            value = complex(made[1])
            alike = value == held or (np.isnan(value) and np.isnan(held))
            assert found.passed == alike, (exact, got)
            assert found.wrong == (not alike)
            if not alike:
                said = "NaN where there should be a number" if np.isnan(value) else \
                    "infinite where there should be another value" if np.isinf(value) else \
                    "a number where there should be NaN or infinity"
                assert found.reason == f"1 {said}"


def test_the_worst_element_is_shown() -> None:
    got = np.tile(EXACT, (3, 1))
    got[1, 2] = 3.5
    found = judge(np.tile(EXACT, (3, 1)), got)
    assert (found.wrong, found.worst, found.expected, found.got) == (1, "[1, 2]", 3.0, 3.5)
    assert "1 of 12 elements are wrong" in str(found)
    assert "the worst element, [1, 2]: expected 3, got 3.5" in str(found)


def test_one_element_is_judged_where_the_norm_would_let_it_pass() -> None:
    exact = np.random.default_rng(0).normal(size=1_000_000)
    got = exact.astype(np.float32)
    got[5] += 1e-4
    found = judge(exact, got)
    assert found.error < found.tolerance
    assert found.wrong == 1
    assert not found.passed


def test_whole_numbers_are_equal_or_not() -> None:
    found = compare("y", np.array([1, 2, 300]), np.array([1, 2, 44], np.uint8), 0.0, 0.0)
    assert not found.passed
    assert str(found) == "y (uint8) 1 of 3 elements differ; the worst, [2]: expected 300, got 44"
    assert compare("y", np.array([1.0, 2.0]), np.array([1, 2], np.int32), 0.0, 0.0).passed


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.int64, bool])
def test_whole_numbers_are_equal_whatever_the_tolerance(dtype: Any) -> None:
    exact = np.arange(200).astype(dtype)
    got = exact.copy()
    got[150] = not got[150] if dtype is bool else got[150] + 1
    for tolerance in (0.0, 1e-3, 0.5):
        assert compare("y", exact, exact.copy(), tolerance, 0.0).passed
        found = compare("y", exact, got, tolerance, 0.0)
        assert (found.passed, found.wrong, found.tolerance) == (False, 1, 0.0)
        assert found.worst == "[150]"


def test_whole_numbers_of_a_struct_are_equal_and_its_floats_within_the_tolerance() -> None:
    kind = np.dtype([("mass", np.float32), ("count", np.int32), ("ends", np.int32, 2)])
    exact = np.zeros(1000, kind)
    exact["mass"], exact["count"], exact["ends"] = 3.0, 1_000_000, 500_000
    got = exact.copy()
    got["mass"] *= np.float32(1.0005)
    assert compare("p", exact, got, 1e-3, 0.0).passed
    assert not compare("p", exact, got, 1e-4, 0.0).passed
    for field, place in (("count", 7), ("ends", (7, 1))):
        changed = got.copy()
        changed[field][place] += 1
        found = compare("p", exact, changed, 1e-3, 0.0)
        assert not found.passed
        assert found.operand == f"p.{field}"
        assert "1 of" in str(found)


def test_the_error_is_that_of_the_norm() -> None:
    """As an element's: whatever their number."""
    for count in (1, 100, 10_000):
        found = judge(np.full(count, 3.0), np.full(count, 3.0 * (1 + 1e-4)))
        assert found.error == pytest.approx(1e-4, rel=1e-2)
    half = judge(np.full(100, 3.0), np.where(np.arange(100) < 25, 3.003, 3.0))
    assert half.error == pytest.approx(0.5e-3, rel=1e-2)


@pytest.mark.parametrize(("times", "passes"), [(4, True), (7, True), (11, False), (20, False)])
def test_one_element_may_be_off_by_eight_times_the_tolerance(times: int, passes: bool) -> None:
    exact = np.full(100_000, 2.0)
    got = exact.copy()
    got[7] *= 1 + times * 1e-4
    assert judge(exact, got, tolerance=1e-4).passed is passes


def test_an_exact_result_passes_any_tolerance() -> None:
    assert judge(EXACT, EXACT, tolerance=1e-12).passed
    assert compare("y", np.array([1.9999999, -0.4]), np.array([2, 0], np.int32), 0.0, 0.0).passed


@pytest.mark.parametrize(("exact", "got", "reason"), [
    ([1, 2], [1, np.inf], "1 infinite where there should be another value"),
    ([1, 2], [np.nan, np.nan], "2 NaN where there should be a number"),
    ([np.inf, np.nan], [7, 8], "2 a number where there should be NaN or infinity"),
    ([1, np.inf], [np.nan, 3], "1 NaN where there should be a number, 1 a number where there "
                               "should be NaN or infinity")])
def test_what_is_no_number_is_counted(exact: Any, got: Any, reason: str) -> None:
    assert judge(exact, got).reason == reason


def test_terms_that_cancel() -> None:
    exact = np.array([1e-3])
    assert not judge(exact, [1.01e-3]).passed
    assert judge(exact, [1.01e-3], scale=100.0).passed  # of terms of the order of 100


def test_how_large_terms_are() -> None:
    x = np.random.default_rng(0).normal(size=(100, 400))
    nudged = x * (1 + 2.0**-20 * np.random.default_rng(1).choice([-1, 1], x.shape))
    assert sensitivity(x.sum(1), nudged.sum(1), 2.0**-20) == pytest.approx(20, rel=0.2)
    assert sensitivity(np.array([1]), np.array([1]), 2.0**-20) == 0


SIZES = [(dtype, power) for dtype, powers in {
    "float16": (-3, 0, 4), "float32": (-30, 0, 38), "float64": (-200, 0, 160, 300),
    "complex64": (-30, 0, 30), "complex128": (-200, 0, 200)}.items() for power in powers]


@pytest.mark.parametrize(("dtype", "power"), SIZES)
def test_the_size_of_terms_and_of_nothing_is_that_of_what_is_finite(dtype: str, power: int) -> None:
    """Also where squares are none of the dtype, or of float64."""
    values = np.array([3.0, -4.0, 0.0, 5.0] * 4) * 10.0 ** (power - 1)
    wanted = math.sqrt(12.5) * 10.0 ** (power - 1)
    kind, unit = (np.complex128, 0.6 - 0.8j) if dtype.startswith("c") else (np.float64, 1)
    given = np.append(values * unit, [np.nan, np.inf, -np.inf]).astype(dtype)
    assert is_nothing(given) == pytest.approx(1e-12 * wanted, rel=1e-2)
    moved = given.astype(kind) + np.append(values, [0, 0, 0]) * 2.0**-20
    assert sensitivity(given.astype(kind), moved, 2.0**-20) == pytest.approx(wanted, rel=1e-2)


def test_nothing_of_what_has_no_size() -> None:
    for given in (np.array([np.nan, np.inf]), np.zeros(0), np.zeros(3), np.arange(5),
                  np.ones(3, bool), np.ones(2, [("a", "f4")])):
        assert is_nothing(given) == 0


@pytest.mark.parametrize("power", [-200, 0, 160, 300])
def test_a_check_of_huge_and_tiny_numbers_finds_what_is_wrong(power: int) -> None:
    device = simulated()
    source = "__global__ void sized(const double* x, double* y, int n) { y[0] = x[0] * n; }"
    for factor in (2.0, 2.0 * (1 + 2.0**-50), 2.001):
        register("sized", lambda t, a, factor=factor: t.y.__setitem__(..., factor * t.x),
                 {"x": ("n",), "y": ("n",)}, reads=("x",), writes=("y",))
        try:
            found = rawnn.check(
                rawnn.Kernel(source, "sized", device=device), lambda x: 2 * x, grid=1, block=32,
                shapes={"x": "n", "y": "n"}, sizes={"n": [9]}, length=1000,
                inputs={"x": lambda g, shape: g.normal(size=shape) * 10.0**power})
        finally:
            forget("sized")
        assert bool(found) == (factor != 2.001)


def test_types() -> None:
    assert type_name(np.dtype(ml_dtypes.float8_e4m3fn)) == "float8_e4m3"
    assert allowed(np.dtype(np.int32), 100, "float32", "float32") == 0
    assert allowed(np.dtype(np.complex64), 1, "float32", "float32") < 2e-6
    assert allowed(np.dtype(np.float32), 4096, "tf32", "float32") > 1.9e-3


def test_sums_of_tensor_cores_have_a_unit_of_their_own() -> None:
    kind = np.dtype(np.float32)
    plain, cores = (allowed(kind, 8192, "float32", sums) for sums in ("float32", "tensor cores"))
    assert plain < 9.1e-6 < cores == allowed(kind, 8192, "float32", TENSOR_CORE)
    with pytest.raises(ConfigError, match=r'sums = "tensor core": give one of .*did you mean '
                                          r"'tensor cores'\?"):
        allowed(kind, 8192, "float32", "tensor core")
    with pytest.raises(ConfigError, match='compute = "tf23": give one of'):
        allowed(kind, 8192, "tf23", "float32")


@pytest.mark.parametrize("power", [-200, -145, -100, 0, 100, 145, 200])
def test_errors_are_relative_at_any_size(power: int) -> None:
    """Also where squares would overflow or vanish."""
    generator = np.random.default_rng(0)
    exact = generator.normal(size=100)
    got = exact * (1 + 1e-3 * generator.normal(size=100))
    error = np.linalg.norm(got - exact) / np.linalg.norm(exact)
    found = compare("y", exact * 10.0 ** power, got * 10.0 ** power, 1e-2, 0, 0)
    assert found.error == pytest.approx(error, rel=1e-9)
    assert found.passed
