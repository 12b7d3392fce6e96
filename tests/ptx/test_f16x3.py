"""The arithmetic of float32 products as three products of float16 (wgmma_scaled.cu), in NumPy: from
sums of 16 terms on no more than twice as far from float64 as products and sums in float32, whatever
the scale of a row or column, and as with three of tf32 up to six times where a term or two are all
that counts. Tensor cores are taken to add up as in test_tf32x3.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.ptx.test_tf32x3 import in_float32, toward_zero

Array = NDArray[Any]

STEP, STAGE = 16, 32
"""Terms of a step and of a stage, whose products begin at zero."""
FIRST, TOO_LARGE = np.float32(2.0**126), np.float32(65520)


def rescaled(scale: Array, rows: Array) -> Array:
    """scale_of: the scale [rows, 1] with which all of `rows` are float16."""
    largest = np.abs(rows).max(axis=1, keepdims=True)
    with np.errstate(over="ignore", invalid="ignore"):
        fits = ~(largest * scale >= TOO_LARGE)
    exponent = largest.view(np.uint32) >> np.uint32(23)
    fitting = ((np.uint32(267) - exponent) << np.uint32(23)).view(np.float32)
    return np.where(fits, scale, fitting)


def split(rows: Array, scale: Array) -> tuple[Array, Array]:
    """High and low parts, as float64."""
    whole = rows * scale
    high = whole.astype(np.float16)
    low = (whole - high.astype(np.float32)).astype(np.float16)
    return high.astype(np.float64), low.astype(np.float64)


def by_tensor_cores(a: Array, b: Array) -> Array:
    """a [m, k] b [n, k]^T as one block computes it."""
    everything = np.zeros((len(a), len(b)), np.float32)
    scales = [np.full((len(x), 1), FIRST) for x in (a, b)]
    for first in range(0, a.shape[1], STAGE):
        parts = []
        for i, x in enumerate((a, b)):
            rows = x[:, first:first + STAGE]
            now = rescaled(scales[i], rows)
            with np.errstate(under="ignore"):
                change = (now.astype(np.float64) / scales[i]).astype(np.float32)
                everything *= change if i == 0 else change.T
            scales[i] = now
            parts.append(split(rows, now))
        (a_high, a_low), (b_high, b_low) = parts
        sums = np.zeros(everything.shape)
        steps = [slice(at, at + STEP) for at in range(0, a_high.shape[1], STEP)]
        for left, right, step in (
                *(pair for s in steps for pair in ((a_low, b_high, s), (a_high, b_low, s))),
                *((a_high, b_high, s) for s in steps)):
            sums = toward_zero(sums + left[:, step] @ right[:, step].T).astype(np.float64)
        everything += sums.astype(np.float32)
    both = scales[0].astype(np.float64) * scales[1].astype(np.float64).T
    with np.errstate(over="ignore", under="ignore"):
        return (everything / both).astype(np.float32)


def draws(kind: str, rng: np.random.Generator, shape: tuple[int, int], which: int) -> Array:
    values = rng.uniform(-1, 1, shape)
    if kind == "positive":
        values = np.abs(values)
    elif kind == "relu" and not which:
        values = np.maximum(values, 0)
    elif kind == "spread":
        values = np.sign(values) * 10.0 ** rng.uniform(-6, 6, shape)
    elif kind == "rows":  # each of a size of its own, whose products float32 holds
        values *= 10.0 ** (rng.uniform(12, 18, (shape[0], 1)) if which
                           else rng.uniform(-37, -17, (shape[0], 1)))
    elif kind == "growing":  # so that scales change in every stage
        values *= 2.0 ** np.arange(shape[1]) ** 0.5 if which else 1
    return values.astype(np.float32)


KINDS = ("uniform", "positive", "relu", "spread", "rows", "growing")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("k", "count", "largest"), [
    (1, 100, 6.0), (4, 100, 6.0), (16, 100, 2.0), (64, 30, 2.0), (784, 5, 2.0), (1024, 4, 2.0)])
def test_the_error_is_at_most_twice_that_of_float32(kind: str, k: int, count: int,
                                                    largest: float) -> None:
    rng, worst = np.random.default_rng(k), 0.0
    for _ in range(count):
        a, b = draws(kind, rng, (24, k), 0), draws(kind, rng, (20, k), 1)
        exact = a.astype(np.float64) @ b.astype(np.float64).T
        # By the norms of its row and column: small ones count as much as others.
        size = np.outer(*(np.linalg.norm(x.astype(np.float64), axis=1) for x in (a, b)))
        size[size == 0] = 1
        ours, theirs = (np.linalg.norm((product(a, b) - exact) / size)
                        for product in (by_tensor_cores, in_float32))
        worst = max(worst, float(ours / theirs))
    assert worst <= (6.0 if kind == "spread" else largest)


def test_one_product_of_float16_is_far_from_float32() -> None:
    """What the test above would find if a product were left out."""
    rng = np.random.default_rng(0)
    a, b = (draws("uniform", rng, (rows, 64), 0) for rows in (24, 20))
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    scale = np.float32(2.0**13)
    (high, low), (other, _) = (split(x, np.full((len(x), 1), scale)) for x in (a, b))
    float32 = np.linalg.norm(in_float32(a, b) - exact)
    for left in (high, high + low):
        assert np.linalg.norm(left @ other.T / float(scale)**2 - exact) > 100 * float32


@pytest.mark.parametrize("value", [1e-38, 1.2e-30, 1.0, 1 + 2.0**-23, 2 - 2.0**-23, -3.1415927,
                                   1e30, 3e38])
def test_the_parts_are_the_value_to_a_unit_of_its_last_place(value: float) -> None:
    whole = np.array([[value]], np.float32)
    scale = rescaled(np.full((1, 1), FIRST), whole)
    high, low = split(whole, scale)
    assert np.isfinite(high).all()
    assert np.abs((high + low) / scale - whole.astype(np.float64)) <= np.spacing(np.abs(whole))


@pytest.mark.parametrize("far", [12, 16, 20, 24, 30])
def test_small_numbers_of_a_row_are_off_by_little_of_its_largest(far: int) -> None:
    """By a unit of their last place or 2^-38 of the largest, whichever is more."""
    row = np.array([[1.9999999, 1.2345678 * 2.0**-far]], np.float32)
    scale = rescaled(np.full((1, 1), FIRST), row)
    high, low = split(row, scale)
    bound = np.maximum(np.spacing(row), 2.0**-38 * row.max())
    assert (np.abs((high + low) / scale - row.astype(np.float64)) <= bound).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_makes_the_product_nan(value: float) -> None:
    a = np.array([[1.0] * 40, [1.0] * 40], np.float32)
    a[1, 5] = value
    with np.errstate(invalid="ignore", over="ignore"):
        found = by_tensor_cores(a, np.ones((3, 40), np.float32))
    assert (found[0] == 40).all()
    assert np.isnan(found[1]).all()
