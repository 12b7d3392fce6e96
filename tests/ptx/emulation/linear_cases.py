"""What the fused step of a one-layer network must do, as checks against float64 NumPy on an
Emulator."""

from __future__ import annotations

import math

import numpy as np
from emulated_arrays import (
    EPS,
    STEP,
    UNTOUCHED,
    apart,
    close,
    filled,
    metrics,
    one_hot,
    only_step_written,
    padding_untouched,
    pitched,
    softmax64,
    sum_bound,
)
from emulated_kernels import Emulator

CLASSES = (1, 2, 3, 10, 32)
EXPRESSIONS = tuple(
    f"linear_{half}<{classes},{ordered}>"
    for half in ("forward", "update") for classes in CLASSES for ordered in ("false", "true")
)  # fmt: skip


def threads_for(emulator: Emulator, wanted: int) -> int:
    """`wanted`, but 64 at most where each is a thread of the host."""
    return min(wanted, 64) if emulator.quick else wanted


class LinearStep:
    """One fused step on random data, and what float64 makes of the same. With `ordered` the batch
    follows an order, other ranks' rows lie between batches, and the rates are those of a schedule;
    the weights decay."""

    def __init__(
        self, rng: np.random.Generator, batch: int, features: int, classes: int, pad: int,
        ordered: bool = False,
    ) -> None:
        self.stride = batch + 3 if ordered else batch
        count = STEP * self.stride + batch
        self.batch, self.features, self.classes = batch, features, classes
        self.lr, self.decay = 0.5, 0.01 if ordered else 0.0
        self.images = filled(rng.integers(0, 256, (count, features)), pad, np.uint8)
        self.labels = rng.integers(0, classes, count).astype(np.uint8)
        self.w = filled(rng.standard_normal((classes, features)) / math.sqrt(features), pad)
        self.bias = rng.standard_normal(classes).astype(np.float32)
        self.cursor, self.loss, self.correct = metrics()
        self.dz = pitched(batch, classes, apart(pad, 1))
        self.row_loss = np.full(batch, np.nan, np.float32)
        self.row_correct = np.full(batch, UNTOUCHED, np.int32)
        self.order = rng.permutation(count).astype(np.int32) if ordered else None
        self.rates = np.full(STEP + 2, np.nan, np.float32) if ordered else None
        if self.rates is not None:
            self.rates[STEP] = self.lr
        self.rows = np.arange(STEP * self.stride, count)
        if self.order is not None:
            self.rows = self.order[self.rows]
        self.x = self.images[self.rows] / 255.0
        self.y = self.labels[self.rows].astype(np.int32)
        self.instance = f"<{classes},{str(ordered).lower()}>"

    def launch(
        self, emulator: Emulator, name: str, grid: int, threads: int, **arguments: object
    ) -> None:
        emulator.call(
            name + self.instance, (grid,), (threads,), images=self.images, order=self.order,
            cursor=self.cursor, offset=2, stride=self.stride, scale=1 / 255, w=self.w,
            bias=self.bias, dz=self.dz, row_loss=self.row_loss, row_correct=self.row_correct,
            batch=self.batch, features=self.features, **arguments,
        )  # fmt: skip

    def forward(self, emulator: Emulator, threads: int) -> None:
        self.launch(emulator, "linear_forward", self.batch, threads, labels=self.labels)

    def update(self, emulator: Emulator, threads: int) -> None:
        self.launch(
            emulator, "linear_update", -(-self.features // 8) + 1, threads, rates=self.rates,
            loss=self.loss, correct=self.correct, decay=self.decay,
            lr=self.lr if self.rates is None else math.nan,
        )  # fmt: skip

    def check(self, emulator: Emulator, forward_threads: int, update_threads: int) -> None:
        w, bias = self.w.astype(np.float64), self.bias.astype(np.float64)
        z = self.x @ w.T + bias
        exact = softmax64(z)
        bound = sum_bound(self.x @ np.abs(w).T + np.abs(bias), self.features + 1).max()
        bound += 64 * EPS  # exp of a rounded difference below 64
        self.forward(emulator, forward_threads)
        rows = np.arange(self.batch)
        loss64 = -np.log(exact[rows, self.y])
        close(self.dz, (exact - one_hot(self.y, self.classes)) / self.batch, 2 * bound / self.batch)
        close(self.row_loss, loss64, 2 * bound + 2 * EPS * loss64)
        clear = np.ptp(np.sort(z, axis=1)[:, -2:], axis=1) > 2 * bound  # no tie within rounding
        if self.classes == 1:
            clear[:] = True
        right = z.argmax(axis=1) == self.y
        assert np.array_equal(self.row_correct[clear], right[clear])
        assert set(self.row_correct) <= {0, 1}
        padding_untouched(self.dz)

        # The update is held to its own inputs: the gradient that was stored.
        dz = self.dz.astype(np.float64)
        self.update(emulator, update_threads)
        size = self.lr * (np.abs(dz).T @ self.x) + np.abs(w)
        expected = w - self.lr * (dz.T @ self.x + self.decay * w)
        close(self.w, expected, sum_bound(size, self.batch))
        size = self.lr * np.abs(dz).sum(axis=0) + np.abs(bias)
        expected = bias - self.lr * (dz.sum(axis=0) + self.decay * bias)
        close(self.bias, expected, sum_bound(size, self.batch))
        mean = self.row_loss.mean(dtype=np.float64)
        close(self.loss[STEP], mean, sum_bound(abs(mean), self.batch))
        assert self.correct[STEP] == self.row_correct.sum()
        only_step_written(self.loss, self.correct)
        padding_untouched(self.w)


def check_linear(emulator: Emulator, rng: np.random.Generator) -> None:
    """Every class count; ragged features with and without rows aligned for wide loads (pitches that
    are multiples of 16 bytes and ones that are not); batches around the staging size of 128."""
    few = emulator.quick
    for classes in (1, 3, 10) if few else CLASSES:
        for batch, features, pad in (
            (1, 1, 0),
            (5 if few else 33, 31, 1),  # aligned, a tail of 3 features
            (5 if few else 31, 33, 0),  # unaligned
            (129, 24, 8),  # staged in two parts
        ):
            if few and batch * classes > 400:
                continue
            for ordered in (False, True):
                step = LinearStep(rng, batch, features, classes, pad, ordered)
                intended = 64 * ((classes + 1) // 2)
                step.check(emulator, 32, threads_for(emulator, intended))
    for batch, features, pad, forward, update in (
        (3, 784, 0, 224, 320),  # the intended shapes
        (5, 784, 0, 196, 96),  # an incomplete last warp; fewer warps than tiles
        (2, 1028, 12, 256, 32),  # more features than a block takes in one pass
        (257, 9, 7, 32, 320),
    ):
        if not few or batch < 5:
            step = LinearStep(rng, batch, features, 10, pad, batch % 2 == 1)
            step.check(emulator, threads_for(emulator, forward), threads_for(emulator, update))


def check_large_linear(emulator: Emulator, rng: np.random.Generator) -> None:
    """Pre-activations whose exponentials overflow."""
    step = LinearStep(rng, 5, 33, 10, 3)
    step.bias += 100
    step.check(emulator, 32, threads_for(emulator, 320))


def check_broken_linear(emulator: Emulator, rng: np.random.Generator) -> None:
    """A NaN weight, or a label that is no class, makes the loss NaN; both are counted as a right
    answer only where NumPy's argmax of the probabilities would (all NaN: class 0)."""
    for spoil in ("weight", "label"):
        step = LinearStep(rng, 5, 33, 10, 3)
        if spoil == "weight":
            step.w[4, 7] = np.nan
        else:
            step.labels[step.rows[2]] = 200
        step.forward(emulator, 32)
        step.update(emulator, threads_for(emulator, 320))
        assert np.isnan(step.loss[STEP]), spoil
        if spoil == "weight":
            assert np.array_equal(step.row_correct, step.y == 0)
        else:
            assert np.isnan(step.row_loss).sum() == 1
            assert step.row_correct[2] == 0


