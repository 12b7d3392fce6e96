"""Checks of products, and of the updates that go with them (kernel_cases.py)."""

from __future__ import annotations

import itertools
import re

import ml_dtypes
import numpy as np
from emulated_arrays import (
    DTYPES,
    FUNCTORS,
    activation64,
    apart,
    close,
    f64,
    filled,
    padding_untouched,
    pitched,
    slope64,
    steepest,
    sum_bound,
)
from emulated_kernels import SOURCES_AND_EXPRESSIONS, Emulator

FLOAT16_EPS = float(np.finfo(np.float16).eps)


def template(expression: str) -> list[str]:
    """Template arguments of an expression."""
    return re.search(r"<(.*)>", expression)[1].split(",")


def product_bound(size: np.ndarray, terms: int, half: bool) -> np.ndarray:
    """Of a sum; in float16 each addition rounds to 2^-11 of the sum so far."""
    return sum_bound(size, terms) * (FLOAT16_EPS / np.finfo(np.float32).eps if half else 1.0)


def check_matmul(emulator: Emulator, rng: np.random.Generator) -> None:
    shapes = ((1, 1, 1), (31, 33, 17), (33, 10, 127), (1, 31, 784))
    if emulator.quick:
        shapes = ((9, 7, 5),)
    for expression in SOURCES_AND_EXPRESSIONS["gemm/matmul"]:
        kind, names = expression[7:9], template(expression)
        ta, tb, tc = (DTYPES[name] for name in names[:3])
        functors = [name for name in names if name in ("None", *FUNCTORS)]
        biased = kind == "nt" and names[3] == "true"
        activation = functors.pop(0) if kind == "nt" else "None"
        slope = functors[0] if functors else "None"
        saved_at = {"nt": 6, "nn": 4, "tn": 9}[kind]
        ts = DTYPES[names[saved_at]] if len(names) > saved_at else tc
        half = names[-1] == "float16" and len(names) == {"nt": 8, "nn": 6, "tn": 4}[kind]
        for (m, n, k), pad in itertools.product(shapes, (0, 2)):
            scale = 1 / np.sqrt(k)  # keeps half sums and 8-bit inputs in their range
            left = filled(rng.standard_normal((k, m) if kind == "tn" else (m, k)), pad, ta)
            right = filled(scale * rng.standard_normal((n, k) if kind == "nt" else (k, n)),
                           apart(pad, 1), tb)
            bias = rng.standard_normal(n).astype(np.float32)
            start = filled(rng.standard_normal((m, n)), 0, tc)
            saved = filled(rng.standard_normal((m, n)), pad + 1, ts)
            a64 = f64(left.T if kind == "tn" else left)
            b64 = f64(right.T if kind == "nt" else right)
            for alpha, beta in ((1.0, 0.0), (-0.5, 1.0)):
                # beta == 0 must not read the NaN it starts from
                c = pitched(m, n, apart(pad, 2), tc)
                if beta:
                    c[:] = start
                side = 8 if emulator.quick else 16
                optional = {"bias": bias} if biased else {}
                if slope != "None":
                    optional["saved"] = saved
                emulator.call(
                    expression, (-(-n // side), -(-m // side)), (side, side), a=left, b=right, c=c,
                    m=m, n=n, k=k, alpha=alpha, beta=beta, **optional,
                )  # fmt: skip
                z = alpha * (a64 @ b64) + beta * f64(start) + (bias if biased else 0)
                size = np.abs(a64) @ np.abs(b64) + np.abs(beta * f64(start)) + np.abs(bias)
                factor = slope64(slope, f64(saved))
                # gelu, whose slope reaches 1.13, rounds its terms besides.
                steep = max(1.2, 1.06 * steepest(activation)) * np.maximum(np.abs(factor), 0.1)
                bound = steep * product_bound(size, k, half)
                close(c, activation64(activation, z) * factor, bound)
                padding_untouched(c)


def check_matmul_overflow(emulator: Emulator, rng: np.random.Generator) -> None:
    """A result beyond its type's range sets the flag, and nothing else does."""
    for slope, *names in (("Tanh", "float16", "float16", "float16", "float16"),
                          ("Relu", "float8_e5m2", "float8_e4m3", "float8_e5m2", "float8_e4m3")):
        ta, tb, tc, ts = (DTYPES[name] for name in names)
        kernel = f"matmul_nn<{','.join(names[:3])},{slope}" + \
            (f",{names[3]}>" if ts is not tc else ">")
        largest = float(ml_dtypes.finfo(tc).max)
        for large in (False, True):
            a = filled(np.full((5, 3), 192.0), 0, ta)
            b = filled(np.full((3, 4), 192.0 if large else 2.0), 0, tb)
            saved, c = filled(np.full((5, 4), 0.5), 0, ts), pitched(5, 4, 0, tc)
            overflow = np.zeros(1, np.int32)
            emulator.call(kernel, (1, 1), (8, 8), a=a, b=b, c=c, saved=saved, overflow=overflow,
                          m=5, n=4, k=3, alpha=1.0)
            assert overflow[0] == int(large)
            assert (f64(c) >= largest).all() == large, "infinite, or the largest there is"


def check_weight_update(emulator: Emulator, rng: np.random.Generator) -> None:
    shapes = ((1, 1, 1), (33, 31, 17)) if not emulator.quick else ((9, 7, 5),)
    lr, decay = 0.25, 0.125
    for expression in SOURCES_AND_EXPRESSIONS["optimizers/weight_update"]:
        names = template(expression)
        tx, tw, tc = (DTYPES[name] for name in names[:3])
        half = names[-1] == "float16" and len(names) == 5
        for (m, n, k), pad, scaled in itertools.product(shapes, (0, 2), (False, True)):
            dz = filled(rng.standard_normal((k, m)), pad, tx)
            x = filled(rng.standard_normal((k, n)), pad + 1, tx)
            w = filled(rng.standard_normal((m, n)), apart(pad, 1), tw)
            copy = pitched(m, n, pad + 2, tc)
            bias = rng.standard_normal(m).astype(np.float32)
            before, bias_before = f64(w), f64(bias)
            optional: dict[str, object] = {}
            if scaled:
                optional = {"loss_scale": np.array([4.0, 0.0], np.float32), "copy": copy,
                            "rates": np.array([9.0, 9.0, lr], np.float32), "bias": bias,
                            "cursor": np.array([1], np.int32), "offset": 1}
            factor = 0.25 if scaled else 1.0
            side = 8 if emulator.quick else 16
            emulator.call(
                expression, (-(-n // side), -(-m // side)), (side, side), dz=dz, x=x, w=w, m=m,
                n=n, k=k, lr=9.0 if scaled else lr, decay=decay, copy_scale=8.0, **optional,
            )  # fmt: skip
            size = lr * factor * (np.abs(f64(dz)).T @ np.abs(f64(x)))
            bound = product_bound(size, k, half) + 4 * sum_bound(np.abs(before), 1)
            expected = before * (1 - lr * decay) - lr * factor * (f64(dz).T @ f64(x))
            close(w, expected, bound)
            padding_untouched(w, copy)
            if scaled:
                close(copy, 8 * expected, 8 * bound)
                size = lr * factor * np.abs(f64(dz)).sum(axis=0)
                close(bias, bias_before * (1 - lr * decay) - lr * factor * f64(dz).sum(axis=0),
                      sum_bound(size, k) + 4 * sum_bound(np.abs(bias_before), 1))
            else:
                assert np.array_equal(bias, bias_before), "a bias that was not given"
            kept = w.copy(), copy.copy(), bias.copy()
            emulator.call(
                expression, (-(-n // side), -(-m // side)), (side, side), dz=dz, x=x, w=w, m=m,
                n=n, k=k, lr=lr, decay=decay, copy_scale=8.0, overflow=np.ones(1, np.int32),
                **{**optional, "copy": copy, "bias": bias},
            )  # fmt: skip
            for left, found in zip(kept, (w, copy, bias), strict=True):
                assert left.tobytes() == found.tobytes(), "an overflow leaves the update out"


def check_slices_sgd(emulator: Emulator, rng: np.random.Generator) -> None:
    shapes = ((1, 1, 1), (10, 31, 33))
    for expression in SOURCES_AND_EXPRESSIONS["gemm/slices"][-2:]:
        small = DTYPES[template(expression)[0]]
        for (rows, cols, batch), slices, pad in itertools.product(shapes, (1, 8, 9), (0, 2)):
            partial = filled(rng.standard_normal((slices * rows, cols)), pad)
            dz = filled(rng.standard_normal((batch, rows)), pad + 1, small)
            w = filled(rng.standard_normal((rows, cols)), apart(pad, 1))
            copy = pitched(rows, cols, pad + 1, small)
            bias = rng.standard_normal(rows).astype(np.float32)
            parts = f64(partial).reshape(slices, rows, cols)
            cursor = np.array([1], np.int32)
            w_before, bias_before = f64(w), f64(bias)
            decay = 0.5 if pad else 0.0
            optional = {"copy": copy, "cursor": cursor, "steps": 3} if pad else {}
            emulator.call(
                expression, (-(-rows * cols // 64) + rows,), (64,), partial=partial, w=w,
                slices=slices, rows=rows, cols=cols, lr=0.1, decay=decay, dz=dz, bias=bias,
                batch=batch, **optional,
            )  # fmt: skip
            assert cursor[0] == (4 if pad else 1)
            size = np.abs(parts).sum(axis=0)
            expected = w_before * (1 - 0.1 * decay) - 0.1 * parts.sum(axis=0)
            bound = 0.1 * sum_bound(size, slices) + sum_bound(np.abs(w_before) + size, 1)
            close(w, expected, bound)
            if pad:
                close(copy, expected, bound)
            size = np.abs(f64(dz)).sum(axis=0)
            close(bias, bias_before * (1 - 0.1 * decay) - 0.1 * f64(dz).sum(axis=0),
                  0.1 * sum_bound(size, batch) + sum_bound(np.abs(bias_before) + size, 1))
            padding_untouched(w, copy)


def check_slices_sgd_rates(emulator: Emulator, rng: np.random.Generator) -> None:
    """The step's learning rate, with a cursor that stays."""
    partial, w = filled(np.ones((2, 4)), 0), filled(np.zeros((1, 4)), 0)
    dz, bias, cursor = filled(np.ones((3, 1)), 0), np.zeros(1, np.float32), np.array([1], np.int32)
    emulator.call("slices_sgd<float>", (2,), (32,), partial=partial, w=w, slices=2, rows=1, cols=4,
                  rates=np.array([9, 9, 0.5], np.float32), offset=1, dz=dz, bias=bias, batch=3,
                  cursor=cursor, lr=9.0)
    assert (w == -1.0).all()
    assert bias[0] == -1.5
    assert cursor[0] == 1


def check_slices(emulator: Emulator, rng: np.random.Generator) -> None:
    counts = (1, 28, 33) if emulator.quick else (1, 7, 28, 32, 33, 65)
    for slices, (rows, cols), pad in itertools.product(counts, ((1, 1), (31, 10)), (0, 2)):
        partial = filled(rng.standard_normal((slices * rows, cols)), pad)
        bias = rng.standard_normal(cols).astype(np.float32)
        parts = f64(partial).reshape(slices, rows, cols)
        for expression in SOURCES_AND_EXPRESSIONS["gemm/slices"][:-2]:
            _, kind, biased, activation = template(expression)
            c = pitched(rows, cols, pad + 1, DTYPES[kind])
            emulator.call(
                expression, (-(-rows * cols // 64),), (64,), partial=partial, c=c, slices=slices,
                bias=bias if biased == "true" else None, rows=rows, cols=cols,
            )  # fmt: skip
            z = parts.sum(axis=0) + (bias if biased == "true" else 0)
            size = np.abs(parts).sum(axis=0) + np.abs(bias)
            bound = max(1.2, 1.06 * steepest(activation)) * sum_bound(size, slices)
            close(c, activation64(activation, z), bound)
            padding_untouched(c)
