"""What a GPU draws is what NumPy draws, bit for bit: the order of an epoch, initial parameters, and
but for a rounding or two the learning rates."""

from __future__ import annotations

import numpy as np
import pytest

import rawnn
from rawnn.common import random
from rawnn.model.schedules import functor, parse
from rawnn.ptx import SOURCES

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("default_gpu")]

EPS = float(np.finfo(np.float32).eps)


@pytest.mark.parametrize("count", [1, 5, 60_000, 65_537, 1_000_003])
@pytest.mark.parametrize("seed", [11, 1 << 40 | 7])
def test_shuffle(seed: int, count: int) -> None:
    clock = rawnn.array(np.array([3, 1404], np.int32))
    order = rawnn.empty(count, np.int32)
    rawnn.Kernel(SOURCES / "elementwise/shuffle.cu", "shuffle")[235, 256](clock, order, seed, count,
                                                                          0)
    assert np.array_equal(order.numpy(), random.permutation(seed, 3, count))
    rawnn.Kernel(SOURCES / "elementwise/epoch_boundary.cu", "epoch_boundary")[235, 256](clock,
                                                                                         order,
                                                                                         seed,
                                                                                         count, 468,
                                                                    4)
    assert np.array_equal(order.numpy(), random.permutation(seed, 4, count))
    assert clock.numpy().tolist() == [4, 1872]


def test_initialise() -> None:
    seed, rows, cols, pitch = 1 << 50 | 99, 10, 783, 788
    w = rawnn.array(np.full((rows, pitch), np.nan, np.float32))
    kernel = rawnn.Kernel(SOURCES / "elementwise/initialise.cu", "initialise<float>")
    kernel[8, 256](w, pitch, rows, cols, seed, 4, 1 / 28)
    written = w.numpy()
    expected = random.uniform(seed, 4, rows * cols, 1 / 28).reshape(rows, cols)
    assert np.array_equal(written[:, :cols], expected)
    assert np.isnan(written[:, cols:]).all()


@pytest.mark.parametrize("text", ["warmup:4,constant", "step:0.1:0.7", "warmup:3.2,cosine:0.001"])
def test_schedule(text: str) -> None:
    made = parse(text).resolve(0.3, 468, 10)
    clock, rates = rawnn.array(np.array([3, 1404], np.int32)), rawnn.empty(468)
    kernel = rawnn.Kernel(SOURCES / "elementwise/schedule.cu", f"schedule<{functor(made.kind)}>")
    kernel[2, 256](clock, rates, made.lr, made.value, made.period, made.warmup, made.steps)
    error = np.abs(rates.numpy() - made.rates(1404, 468)).max()
    assert error <= (4 * EPS * 0.3 if made.kind == "cosine" else 0)
