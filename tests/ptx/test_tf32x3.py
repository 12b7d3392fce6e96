"""The arithmetic of float32 products on tensor cores, in NumPy: three products of tf32, from sums
of 16 terms on no more than twice as far from float64 as products and sums in float32. Of fewer
terms float32 rounds each product once, to half a unit of its last place, and two tf32 hold a factor
to a unit only: then it is up to six times.

Tensor cores are taken to add up a step's products and what they begin with exactly and to cut the
sum off to float32, which is what they do to within a bit (Fasi et al., Numerical behavior of NVIDIA
tensor cores, 2021).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

Array = NDArray[Any]

STEP, PART = 8, 16
"""Terms of a step, and steps of a part of a sum (mma.cu)."""


def cut(values: Array, bits: int) -> Array:
    """float32 values without their lowest `bits`."""
    words = values.astype(np.float32).view(np.uint32) & np.uint32((0xFFFFFFFF << bits) & 0xFFFFFFFF)
    return words.view(np.float32)


def split(values: Array) -> tuple[Array, Array]:
    """Factor<float, tf32x3>: the high part, and what the tensor cores take of the low one."""
    high = ((values.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return high, cut(values - high, 13)


def toward_zero(values: Array) -> Array:
    """float64 cut off to float32."""
    nearest = values.astype(np.float32)
    beyond = np.abs(nearest.astype(np.float64)) > np.abs(values)
    return np.where(beyond, np.nextafter(nearest, np.float32(0)), nearest).astype(np.float32)


def by_tensor_cores(a: Array, b: Array) -> Array:
    """a [m, k] b [n, k]^T as mma.cu computes it with one warp along k."""
    (a_high, a_low), (b_high, b_low) = split(a), split(b)
    everything = np.zeros((len(a), len(b)), np.float32)
    part = np.zeros_like(everything)
    for step, first in enumerate(range(0, a.shape[1], STEP)):
        k = slice(first, first + STEP)
        sums = np.zeros(part.shape)
        for left, right in ((a_low, b_high), (a_high, b_low), (a_high, b_high)):
            product = left[:, k].astype(np.float64) @ right[:, k].astype(np.float64).T
            sums = toward_zero(sums + product).astype(np.float64)
        part += sums.astype(np.float32)
        if step % PART == PART - 1:
            everything += part
            part[...] = 0
    return everything + part


def in_float32(a: Array, b: Array) -> Array:
    """One fused multiply-add after the other, as by a float unit."""
    sums = np.zeros((len(a), len(b)), np.float32)
    for k in range(a.shape[1]):
        sums = (sums + np.outer(a[:, k].astype(np.float64), b[:, k])).astype(np.float32)
    return sums


def draws(kind: str, rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    values = rng.uniform(-1, 1, shape)
    if kind == "positive":
        values = np.abs(values)
    elif kind == "relu":
        values = np.maximum(values, 0)
    return values.astype(np.float32)


@pytest.mark.parametrize("kind", ["uniform", "positive", "relu"])
@pytest.mark.parametrize(("k", "count", "largest"), [
    (1, 100, 6.0), (4, 100, 6.0), (16, 100, 2.0), (64, 30, 2.0), (784, 5, 2.0), (4096, 2, 2.0)])
def test_the_error_is_at_most_twice_that_of_float32(kind: str, k: int, count: int,
                                                    largest: float) -> None:
    rng, worst = np.random.default_rng(k), 0.0
    for _ in range(count):
        a, b = draws(kind, rng, (24, k)), draws("uniform" if kind == "relu" else kind, rng, (20, k))
        exact = a.astype(np.float64) @ b.astype(np.float64).T
        ours, theirs = (np.linalg.norm(product(a, b) - exact)
                        for product in (by_tensor_cores, in_float32))
        worst = max(worst, float(ours / theirs))
    assert worst <= largest


def test_one_product_of_tf32_is_far_from_float32() -> None:
    """What the test above would find if a product were left out."""
    rng = np.random.default_rng(0)
    a, b = draws("uniform", rng, (24, 64)), draws("uniform", rng, (20, 64))
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    (high, low), (other, _) = split(a), split(b)
    float32 = np.linalg.norm(in_float32(a, b) - exact)
    for left in (high, high + low):
        assert np.linalg.norm(left.astype(np.float64) @ other.T - exact) > 100 * float32


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, 1 + 2.0**-23, 2 - 2.0**-23, -3.1415927, 1e30,
                                   1.2e-30])
def test_the_parts_are_the_value_to_a_unit_of_its_last_place(value: float) -> None:
    whole = np.array([value], np.float32)
    high, low = split(whole)
    assert np.array_equal(cut(high, 13), high)
    assert np.abs(high.astype(np.float64) + low - whole) <= np.spacing(np.abs(whole))


@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000, 0x7F800000])
def test_what_is_not_finite_makes_the_product_nan(bits: int) -> None:
    with np.errstate(invalid="ignore"):
        high, low = split(np.array([bits], np.uint32).view(np.float32))
        assert np.isnan(low).all() or np.isnan(high).all()
