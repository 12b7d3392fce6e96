"""What every kernel must do, as checks against float64 NumPy on an Emulator.

Each check runs at ragged sizes, on outputs filled beforehand with NaN (or -77777) and inputs whose
padding columns hold NaN, and looks that the outputs' padding columns were left alone. A tolerance
is `4 eps sqrt(k)` times the sum of the magnitudes that were added (k terms, float32 eps): rounding
errors of a sum add up like a random walk.

Run as a program, it does all checks on one library, for the sanitizers:
    python kernel_cases.py LIBRARY {fibers|threads}
"""

from __future__ import annotations

import ctypes
import itertools
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from emulated_kernels import Emulator

EPS = float(np.finfo(np.float32).eps)
TINY = float(np.finfo(np.float32).tiny)
UNTOUCHED = -77777
RAGGED = (1, 31, 33, 127)
STEP = 3  # the step each check works on, as cursor 1 + offset 2


def pitched(rows: int, cols: int, pad: int, dtype: type = np.float32) -> np.ndarray:
    """A poisoned [rows, cols] view of a buffer of exactly rows * (cols + pad) elements."""
    poison = {np.float32: np.nan, np.int32: UNTOUCHED, np.uint8: 255}[dtype]
    return np.full((rows, cols + pad), poison, dtype)[:, :cols]


def filled(values: np.ndarray, pad: int, dtype: type = np.float32) -> np.ndarray:
    array = pitched(*values.shape, pad, dtype)
    array[:] = values
    return array


def pitch(array: np.ndarray) -> int:
    return array.base.shape[1]


def padding_untouched(array: np.ndarray) -> None:
    padding = array.base[:, array.shape[1] :]
    assert np.isnan(padding).all(), "a kernel wrote into padding columns"


def close(got: np.ndarray, expected: np.ndarray, bound: np.ndarray | float) -> None:
    error = np.abs(np.asarray(got, np.float64) - expected)
    worst = np.max(error - bound)
    assert worst <= 0, f"off by {np.max(error):.3g}, {worst:.3g} more than allowed"


def sum_bound(magnitude: np.ndarray | float, terms: int) -> np.ndarray | float:
    return 4 * EPS * math.sqrt(terms) * magnitude + TINY


def threads_for(emulator: Emulator, wanted: int) -> int:
    """`wanted`, but 64 at most where each is a thread of the host."""
    return min(wanted, 64) if emulator.host_threads else wanted


def softmax64(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def one_hot(y: np.ndarray, cols: int) -> np.ndarray:
    return (np.arange(cols) == y[:, None]).astype(np.float64)


def metrics() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cursor, loss and correct of an epoch of STEP + 2 steps."""
    loss = np.full(STEP + 2, np.nan, np.float32)
    return np.array([STEP - 2], np.int32), loss, np.full(STEP + 2, UNTOUCHED, np.int32)


def only_step_written(loss: np.ndarray | None, correct: np.ndarray | None) -> None:
    if loss is not None:
        assert np.isnan(np.delete(loss, STEP)).all()
    if correct is not None:
        assert (np.delete(correct, STEP) == UNTOUCHED).all()


def check_matmul(emulator: Emulator, rng: np.random.Generator) -> None:
    shapes = ((1, 1, 1), (31, 33, 17), (33, 10, 127), (1, 31, 784))
    if emulator.host_threads:
        shapes = ((9, 7, 5),)
    for (m, n, k), pad in itertools.product(shapes, (0, 2)):
        a, b = rng.standard_normal((m, k)), rng.standard_normal((n, k))
        bias = rng.standard_normal(n).astype(np.float32)
        start = rng.standard_normal((m, n)).astype(np.float32)
        for kind, flags in (
            *(("nt", flags) for flags in itertools.product((False, True), repeat=2)),
            ("nn", ()),
            ("tn", ()),
        ):
            left = filled(a.T if kind == "tn" else a, pad)
            right = filled(b if kind == "nt" else b.T, pad)
            left64 = np.asarray(left.T if kind == "tn" else left, np.float64)
            right64 = np.asarray(right.T if kind == "nt" else right, np.float64)
            name = f"matmul_{kind}<float{''.join(f',{str(f).lower()}' for f in flags)}>"
            biased, rectified = flags if flags else (False, False)
            for alpha, beta in ((1.0, 0.0), (-0.5, 1.0)):
                c = pitched(m, n, pad)  # beta == 0 must not read the NaN it starts from
                if beta:
                    c[:] = start
                extra = (bias,) if kind == "nt" else ()
                side = 8 if emulator.host_threads else 16
                emulator.launch(
                    name, (-(-n // side), -(-m // side)), (side, side), left, pitch(left),
                    right, pitch(right), *extra, c, pitch(c), m, n, k, alpha, beta,
                )  # fmt: skip
                expected = alpha * (left64 @ right64) + beta * start + (bias if biased else 0)
                size = np.abs(left64) @ np.abs(right64) + np.abs(beta * start) + np.abs(bias)
                close(c, np.maximum(expected, 0) if rectified else expected, sum_bound(size, k))
                padding_untouched(c)


def check_bias(emulator: Emulator, rng: np.random.Generator) -> None:
    columns = (3,) if emulator.host_threads else (1, 10, 33)
    for rows, cols, pad in itertools.product(RAGGED, columns, (0, 2)):
        z = filled(rng.standard_normal((rows, cols)), pad)
        bias = rng.standard_normal(cols).astype(np.float32)
        out = filled(z, pad)
        emulator.launch(
            "bias_add<float>", (2,), (64,), out, pitch(out), bias, rows, cols,
        )  # fmt: skip
        close(out, z.astype(np.float64) + bias, EPS * (np.abs(z) + np.abs(bias)))
        padding_untouched(out)
        total, size = z.sum(axis=0, dtype=np.float64), np.abs(z).sum(axis=0, dtype=np.float64)
        for wanted in (1, 50, 128):
            block = (threads_for(emulator, wanted),)
            db, updated = np.full(cols, np.nan, np.float32), bias.copy()
            emulator.launch("bias_grad<float>", (cols,), block, z, pitch(z), db, rows, cols)
            close(db, total, sum_bound(size, rows))
            emulator.launch(
                "bias_sgd<float>", (cols,), block, z, pitch(z), updated, rows, cols, 0.25
            )
            close(updated, bias - 0.25 * total, sum_bound(size + np.abs(bias), rows))


def check_relu(emulator: Emulator, rng: np.random.Generator) -> None:
    columns = (31,) if emulator.host_threads else (1, 31, 33)
    for rows, cols, pad in itertools.product((1, 31, 33), columns, (0, 3)):
        z = filled(rng.standard_normal((rows, cols)), pad)
        z[0, 0] = 0.0
        da = filled(rng.standard_normal((rows, cols)), pad)
        a, dz = pitched(rows, cols, pad + 1), pitched(rows, cols, pad)
        emulator.launch("relu<float>", (2,), (64,), z, pitch(z), a, pitch(a), rows, cols)
        assert np.array_equal(a, np.maximum(z, 0))
        emulator.launch(
            "relu_backward<float>", (2,), (64,), da, pitch(da), a, pitch(a), dz, pitch(dz),
            rows, cols,
        )  # fmt: skip
        assert np.array_equal(dz, np.where(a > 0, da, 0))
        padding_untouched(a)
        padding_untouched(dz)
    diverged = np.array([[np.nan, -1.0]], np.float32)
    out = np.zeros_like(diverged)
    emulator.launch("relu<float>", (1,), (32,), diverged, 2, out, 2, 1, 2)
    assert np.isnan(out[0, 0]), "a diverged run must be seen"
    assert out[0, 1] == 0


def check_softmax(emulator: Emulator, rng: np.random.Generator) -> None:
    columns = (10, 33) if emulator.host_threads else (1, 2, 10, 31, 33, 127)
    for rows, cols, pad in itertools.product((1, 31, 33), columns, (0, 2)):
        z = filled(rng.standard_normal((rows, cols)) * 30, pad)
        y = rng.integers(0, cols, rows).astype(np.int32)
        p, dz = pitched(rows, cols, pad), pitched(rows, cols, pad + 1)
        emulator.launch("softmax<float>", (2,), (64,), z, pitch(z), p, pitch(p), rows, cols)
        expected = softmax64(z.astype(np.float64))
        # exp's argument is rounded: an error of eps times its size, which is at most 300 here.
        close(p, expected, expected * (EPS * 300 + 4 * EPS * math.sqrt(cols)) + TINY)
        padding_untouched(p)
        emulator.launch(
            "softmax_backward<float>", (2,), (64,), p, pitch(p), y, dz, pitch(dz), rows, cols
        )
        close(dz, (p.astype(np.float64) - one_hot(y, cols)) / rows, 2 * EPS / rows)
        padding_untouched(dz)


def check_loss(emulator: Emulator, rng: np.random.Generator) -> None:
    columns = (10, 33) if emulator.host_threads else (1, 10, 12, 31, 70)
    for rows, cols, pad in itertools.product((1, 33, 140), columns, (0, 2)):
        z = filled(rng.standard_normal((rows, cols)) * 4, pad)
        y = rng.integers(0, cols, rows).astype(np.int32)
        p = filled(softmax64(z.astype(np.float64)), pad)
        if cols > 1:
            p[0, :2] = p[0].max()  # a tie: the first maximum wins
            y[0] = 0
            z[0, :2] = z[0].max()
            p[-1, y[-1]] = 0.0  # a probability that has no logarithm
        rounded = p.astype(np.float64)
        loss64 = -np.log(np.maximum(rounded[np.arange(rows), y], TINY))
        right = int((p.argmax(axis=1) == y).sum())
        for wanted in (1, 50, 128):
            block, offset = (threads_for(emulator, wanted),), 2
            common = (y, metrics()[0], offset)
            for name in ("cross_entropy", "accuracy", "loss_accuracy", "loss_gradient"):
                _, loss, correct = metrics()
                dz = pitched(rows, cols, pad + 1)
                outputs: Sequence[object] = {
                    "cross_entropy": (loss,),
                    "accuracy": (correct,),
                    "loss_accuracy": (loss, correct),
                    "loss_gradient": (dz, pitch(dz), loss, correct),
                }[name]
                emulator.launch(
                    f"{name}<float>", (1,), block, p, pitch(p), *common, *outputs, rows, cols
                )
                if name != "accuracy":
                    close(loss[STEP], loss64.mean(), sum_bound(loss64.mean(), rows))
                if name != "cross_entropy":
                    assert correct[STEP] == right
                only_step_written(loss, correct)
                if name == "loss_gradient":
                    close(dz, (rounded - one_hot(y, cols)) / rows, 2 * EPS / rows)
                    padding_untouched(dz)
            _, loss, correct = metrics()
            dz = pitched(rows, cols, pad + 1)
            emulator.launch(
                "softmax_loss_gradient<float>", (1,), block, z, pitch(z), *common, dz, pitch(dz),
                loss, correct, rows, cols,
            )  # fmt: skip
            exact = softmax64(z.astype(np.float64))
            rows64 = -np.log(exact[np.arange(rows), y])
            spread = EPS * 64 + 4 * EPS * math.sqrt(cols)  # exp of a rounded difference below 64
            close(dz, (exact - one_hot(y, cols)) / rows, (exact * spread + 2 * EPS) / rows)
            close(loss[STEP], rows64.mean(), sum_bound(rows64.mean(), rows) + spread)
            assert correct[STEP] == (z.argmax(axis=1) == y).sum()
            only_step_written(loss, correct)
            padding_untouched(dz)


def check_broken_loss(emulator: Emulator, rng: np.random.Generator) -> None:
    """A NaN or a label that is no class gives a NaN loss, and reads nothing outside."""
    for spoil in ("value", "high label", "negative label"):
        values = rng.random((3, 5)).astype(np.float32)
        y = np.array([0, 1, 2], np.int32)
        if spoil == "value":
            values[1, 1] = np.nan
        else:
            y[1] = 5 if spoil == "high label" else -1
        for name in ("cross_entropy", "loss_accuracy", "loss_gradient", "softmax_loss_gradient"):
            cursor, loss, correct = metrics()
            dz = pitched(3, 5, 0)
            gradient = (dz, 5) if name.endswith("gradient") else ()
            extra = () if name == "cross_entropy" else (correct,)
            emulator.launch(
                f"{name}<float>", (1,), (32,), values, 5, y, cursor, 2, *gradient, loss, *extra,
                3, 5,
            )  # fmt: skip
            assert np.isnan(loss[STEP]), (name, spoil)


def check_sgd(emulator: Emulator, rng: np.random.Generator) -> None:
    for rows, cols, pad in itertools.product((1, 31), (1, 33, 127), (0, 2)):
        w = filled(rng.standard_normal((rows, cols)), pad)
        dw = filled(rng.standard_normal((rows, cols)), pad + 1)
        before = w.astype(np.float64)
        emulator.launch(
            "sgd<float>", (3,), (32,), w, pitch(w), dw, pitch(dw), rows, cols, 0.1
        )  # fmt: skip
        close(w, before - 0.1 * dw, 2 * EPS * (np.abs(before) + np.abs(dw)))
        padding_untouched(w)


def check_slices_sgd(emulator: Emulator, rng: np.random.Generator) -> None:
    shapes = ((1, 1, 1), (10, 31, 33))
    for (rows, cols, batch), slices, pad in itertools.product(shapes, (1, 8, 9), (0, 2)):
        partial = filled(rng.standard_normal((slices * rows, cols)), pad)
        dz = filled(rng.standard_normal((batch, rows)), pad + 1)
        w = filled(rng.standard_normal((rows, cols)), pad)
        bias = rng.standard_normal(rows).astype(np.float32)
        parts = partial.astype(np.float64).reshape(slices, rows, cols)
        cursor = np.array([1], np.int32)
        w_before, bias_before = w.astype(np.float64), bias.astype(np.float64)
        emulator.launch(
            "slices_sgd<float>", (-(-rows * cols // 64) + rows,), (64,), partial, pitch(partial),
            w, pitch(w), slices, rows, cols, 0.1, dz, pitch(dz), bias, batch,
            cursor if pad else ctypes.c_void_p(), 3,
        )  # fmt: skip
        assert cursor[0] == (4 if pad else 1)
        size = np.abs(parts).sum(axis=0)
        close(w, w_before - 0.1 * parts.sum(axis=0),
              0.1 * sum_bound(size, slices) + 2 * EPS * (np.abs(w_before) + size))
        size = np.abs(dz.astype(np.float64)).sum(axis=0)
        close(bias, bias_before - 0.1 * dz.astype(np.float64).sum(axis=0),
              0.1 * sum_bound(size, batch) + 2 * EPS * (np.abs(bias_before) + size))
        padding_untouched(w)


def check_slices(emulator: Emulator, rng: np.random.Generator) -> None:
    counts = (1, 28, 33) if emulator.host_threads else (1, 7, 28, 32, 33, 65)
    for slices, (rows, cols), pad in itertools.product(counts, ((1, 1), (31, 10)), (0, 2)):
        partial = filled(rng.standard_normal((slices * rows, cols)), pad)
        bias = rng.standard_normal(cols).astype(np.float32)
        parts = partial.astype(np.float64).reshape(slices, rows, cols)
        for biased, rectified in itertools.product((False, True), repeat=2):
            c = pitched(rows, cols, pad + 1)
            emulator.launch(
                f"sum_slices<float,{str(biased).lower()},{str(rectified).lower()}>",
                (-(-rows * cols // 64),), (64,), partial, pitch(partial),
                bias if biased else ctypes.c_void_p(), c, pitch(c), slices, rows, cols,
            )  # fmt: skip
            expected = parts.sum(axis=0) + (bias if biased else 0)
            size = np.abs(parts).sum(axis=0) + np.abs(bias)
            close(c, np.maximum(expected, 0) if rectified else expected, sum_bound(size, slices))
            padding_untouched(c)


CHECKS: dict[str, Callable[[Emulator, np.random.Generator], None]] = {
    name.removeprefix("check_"): function
    for name, function in sorted(globals().items())
    if name.startswith("check_")
}


def main(library: str, kind: str) -> None:
    emulator = Emulator(Path(library), host_threads=kind == "threads")
    for name, check in CHECKS.items():
        check(emulator, np.random.default_rng(7))
        print(f"{name} passed", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
