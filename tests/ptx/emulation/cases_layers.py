"""Checks of biases, activations and casts (kernel_cases.py)."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
from cases_products import template
from emulated_arrays import (
    DTYPES,
    EPS,
    FUNCTORS,
    RAGGED,
    activation64,
    apart,
    close,
    f64,
    filled,
    padding_untouched,
    pitched,
    slope64,
    sum_bound,
    threads_for,
)
from emulated_kernels import SMALL, SOURCES_AND_EXPRESSIONS, Emulator, signature_of


def check_bias(emulator: Emulator, rng: np.random.Generator) -> None:
    columns = (3,) if emulator.quick else (1, 10, 33)
    ragged = (33,) if emulator.quick else RAGGED
    for kind, rows, cols, pad in itertools.product(("float", "bfloat16"), ragged, columns, (0, 6)):
        z = filled(rng.standard_normal((rows, cols)), pad, DTYPES[kind])
        bias = rng.standard_normal(cols).astype(np.float32)
        out = filled(z, apart(pad, 1), DTYPES[kind])
        emulator.call(f"bias_add<{kind}>", (2,), (64,), z=out, bias=bias, rows=rows, cols=cols)
        close(out, f64(z) + bias, EPS * (np.abs(f64(z)) + np.abs(bias)))
        padding_untouched(out)
        total, size = f64(z).sum(axis=0), np.abs(f64(z)).sum(axis=0)
        for wanted in (50, 1, 128):  # 50 are no whole warps, which a block a column need not have
            block = (threads_for(emulator, wanted),)
            updated = bias.copy()
            for blocks in (cols, cols + 1):
                db = np.full(cols, np.nan, np.float32)
                emulator.call(f"bias_grad<{kind}>", (blocks,), block, dz=z, db=db, rows=rows,
                              cols=cols)
                close(db, total, sum_bound(size, rows))
            emulator.call(
                f"bias_sgd<{kind}>", (cols + 1,), block, dz=z, bias=updated, rows=rows, cols=cols,
                lr=0.25,
            )  # fmt: skip
            close(updated, bias - 0.25 * total, sum_bound(size + np.abs(bias), rows))
            emulator.call(
                f"bias_sgd<{kind}>", (cols,), block, dz=z, bias=updated, rows=rows, cols=cols,
                rates=np.array([0, 0, 0.5], np.float32), cursor=np.array([1], np.int32), offset=1,
                loss_scale=np.array([2, 0], np.float32), decay=0.5, overflow=np.zeros(1, np.int32),
            )  # fmt: skip
            close(updated, 0.75 * bias - (0.75 * 0.25 + 0.25) * total,
                  2 * sum_bound(size + np.abs(bias), rows))
            kept = updated.copy()
            emulator.call(
                f"bias_sgd<{kind}>", (cols,), block, dz=z, bias=updated, rows=rows, cols=cols,
                lr=0.25, overflow=np.ones(1, np.int32),
            )  # fmt: skip
            assert np.array_equal(updated, kept), "an overflow leaves the update out"


def check_wide_sums(emulator: Emulator, rng: np.random.Generator) -> None:
    """Fewer blocks than columns: a block sums 64 bytes of every row, and goes on with the next."""
    shapes = ((70, 37, 3),) if emulator.quick else ((1, 5, 0), (70, 37, 3), (70, 64, 0),
                                                    (9, 130, 6))
    for kind, (rows, cols, pad) in itertools.product(("float", "bfloat16"), shapes):
        z = filled(rng.standard_normal((rows, cols)), pad, DTYPES[kind])
        bias = rng.standard_normal(cols).astype(np.float32)
        total, size = f64(z).sum(axis=0), np.abs(f64(z)).sum(axis=0)
        for blocks, threads in ((1, 64), (2, 128), (-(-cols * z.itemsize // 64), 32)):
            db, updated = np.full(cols, np.nan, np.float32), bias.copy()
            emulator.call(f"bias_grad<{kind}>", (blocks,), (threads,), dz=z, db=db, rows=rows,
                          cols=cols)
            close(db, total, sum_bound(size, rows))
            emulator.call(f"bias_sgd<{kind}>", (blocks,), (threads,), dz=z, bias=updated,
                          rows=rows, cols=cols, lr=0.25, decay=0.5,
                          loss_scale=np.array([2, 0], np.float32))
            close(updated, 0.875 * bias - 0.125 * total,
                  2 * sum_bound(size + np.abs(bias), rows))
            kept = updated.copy()
            emulator.call(f"bias_sgd<{kind}>", (blocks,), (threads,), dz=z, bias=updated,
                          rows=rows, cols=cols, lr=0.25, overflow=np.ones(1, np.int32))
            assert np.array_equal(updated, kept), "an overflow leaves the update out"


def check_activation(emulator: Emulator, rng: np.random.Generator) -> None:
    columns = (31,) if emulator.quick else (1, 8, 31, 33)
    pads = (7,) if emulator.quick else (0, 3, 7)  # 33 + 7: rows of whole vectors
    for rows, cols, pad in itertools.product((1, 33), columns, pads):
        for expression in SOURCES_AND_EXPRESSIONS["elementwise/activation"]:
            *names, activation = template(expression)
            types = [DTYPES[name] for name in names]
            first = filled(2 * rng.standard_normal((rows, cols)), pad, types[0])
            out = pitched(rows, cols, apart(pad, 1) + (pad == 3), types[-1])
            if expression.startswith("activate<"):
                first[0, 0] = 0
                emulator.call(expression, (2,), (64,), z=first, a=out, rows=rows, cols=cols)
                # tanhf and erff are off by two units in the last place at most.
                bound = 4 * EPS * np.maximum(1, np.abs(f64(first)))
                close(out, activation64(activation, f64(first)), bound)
            else:
                saved = filled(rng.standard_normal((rows, cols)), apart(pad, 2), types[1])
                saved[0, 0] = 0
                emulator.call(expression, (2,), (64,), da=first, saved=saved, dz=out, rows=rows,
                              cols=cols)
                slope = slope64(activation, f64(saved))
                close(out, f64(first) * slope,
                      8 * EPS * np.abs(f64(first)) * np.maximum(1, f64(saved) ** 2))
            padding_untouched(out)


def check_broken_activation(emulator: Emulator, rng: np.random.Generator) -> None:
    """A NaN is seen; a gradient beyond its type's range sets the flag; in place is allowed."""
    diverged = np.array([[np.nan, -1.0]], np.float32)
    for activation in FUNCTORS:
        out = diverged.copy()
        emulator.call(f"activate<float,float,{activation}>", (1,), (32,), z=out, a=out, rows=1,
                      cols=2)
        assert np.isnan(out[0, 0]), "a diverged run must be seen"
        assert out[0, 1] <= 0
    for kind, value, flag in (
        ("float16", 65504.0, 0), ("float16", 70000.0, 1), ("float16", np.nan, 1),
        ("float16", np.inf, 1), ("float8_e5m2", 57344.0, 0), ("float8_e5m2", -57345.0, 1),
        ("float8_e5m2", np.nan, 1), ("float8_e5m2", np.inf, 1),
    ):  # fmt: skip
        da = np.full((3, 5), 1.0, np.float32)
        da[1, 4] = value
        dz, overflow = np.zeros((3, 5), DTYPES[kind]), np.zeros(1, np.int32)
        emulator.call(
            f"activate_backward<float,bfloat16,{kind},Relu>", (1,), (32,), da=da, dz=dz,
            saved=np.ones((3, 5), ml_dtypes.bfloat16), overflow=overflow, rows=3, cols=5,
        )  # fmt: skip
        assert overflow[0] == flag, (kind, value)


def edges(kind: str) -> np.ndarray:
    """Every number of a small type, the middle of each pair of neighbours and what lies beside it,
    and numbers of all magnitudes."""
    dtype = np.dtype(DTYPES[kind])
    bits = np.arange(1 << 8 * dtype.itemsize).astype(f"u{dtype.itemsize}")
    numbers = bits.view(dtype).astype(np.float32)
    sorted64 = np.sort(f64(numbers[np.isfinite(numbers)]))
    middles = ((sorted64[1:] + sorted64[:-1]) / 2).astype(np.float32)
    large = np.float32([0, -0.0, np.inf, np.nan, 464, 465, 480, 61440, 65519, 65520, 3e38])
    anything = np.random.default_rng(7).integers(0, 1 << 32, 5000, dtype=np.uint32)
    with np.errstate(over="ignore"):
        beside = [np.nextafter(middles, np.float32(sign * np.inf)) for sign in (1, -1)]
    return np.concatenate([numbers, middles, *beside, large, -large, anything.view(np.float32)])


def check_casts(emulator: Emulator, rng: np.random.Generator) -> None:
    """Every number of every small type comes through, and all rounding is to nearest even."""
    for kind in SMALL:
        dtype = np.dtype(DTYPES[kind])
        bits = np.arange(1 << 8 * dtype.itemsize).astype(f"u{dtype.itemsize}")
        small = bits.view(dtype).reshape(1, -1)
        got = np.empty(small.shape, np.float32)
        emulator.call(f"cast<{kind},float>", (2,), (32,), source=small, copy=got, rows=1,
                      cols=small.size, copy_scale=1.0)
        assert np.array_equal(got, small.astype(np.float32), equal_nan=True), kind
        values = edges(kind).reshape(1, -1)
        if emulator.quick:
            values = values[:, :1000]
        rounded = np.empty(values.shape, dtype)
        emulator.call(f"cast<float,{kind}>", (2,), (32,), source=values, copy=rounded, rows=1,
                      cols=values.size, copy_scale=1.0)
        within = values
        if dtype.itemsize == 1:  # saturates, infinities too
            largest = float(ml_dtypes.finfo(dtype).max)
            within = np.clip(values, -largest, largest)
        with np.errstate(over="ignore", invalid="ignore"):
            expected = within.astype(dtype)
        numbers = ~np.isnan(values)
        assert np.isnan(rounded.astype(np.float32)[~numbers]).all(), kind
        unsigned = f"u{dtype.itemsize}"
        assert np.array_equal(rounded[numbers].view(unsigned), expected[numbers].view(unsigned))


def check_cast(emulator: Emulator, rng: np.random.Generator) -> None:
    for expression in SOURCES_AND_EXPRESSIONS["elementwise/cast"][-2:]:
        source_type, copy_type = (DTYPES[name] for name in template(expression))
        for rows, cols, pad in itertools.product((1, 5), (1, 8, 31), (0, 1, 8)):
            source = filled(rng.standard_normal((rows, cols)), pad, source_type)
            copy = pitched(rows, cols, apart(pad, 1), copy_type)
            emulator.call(expression, (1,), (32,), source=source, copy=copy, rows=rows, cols=cols,
                          copy_scale=16.0)
            scaled = 16 * source.astype(np.float32)
            assert np.array_equal(f64(copy), f64(scaled.astype(copy_type)))
            padding_untouched(copy)


OPERANDS: dict[str, tuple[str, dict[str, object]]] = {
    "cast<float,bfloat16>": ("source copy*", {"copy_scale": 2.0}),
    "activate<float,bfloat16,Relu>": ("z a*", {}),
    "activate_backward<float,bfloat16,float16,Relu>": ("da saved dz*", {}),
    "bias_add<bfloat16>": ("z*", {"bias": np.ones(40, np.float32)}),
    "softmax_backward<float16>": ("p dz*", {"y": np.array([0, 39, 8], np.int32)}),
    "mse_backward<float,float16>": ("z t dz*", {}),
    **{f"{name}<float,bfloat16,float8_e4m3>": (f"w* dw other copy* {states}", {
        "lr": 0.5, "decay": 0.25, "share": 0.25, "other_share": 0.75, "copy_scale": 2.0,
        "clock": np.zeros(2, np.int32), "cursor": np.ones(1, np.int32), **settings})
       for name, states, settings in (
           ("sgd", "", {}), ("momentum", "v*", {"momentum": 0.5}),
           ("adam", "m* v*", {"beta1": 0.5, "beta2": 0.75, "eps": 1e-3}))},
}
"""Matrices that kernels read and write* by vectors if all are aligned, and what else they take."""


def check_unaligned(emulator: Emulator, rng: np.random.Generator) -> None:
    """Rows of any one matrix that are not aligned change nothing."""
    rows, cols = 3, 40
    for expression, (named, others) in OPERANDS.items():
        names = named.replace("*", "").split()
        written = [each[:-1] for each in named.split() if each.endswith("*")]
        types = {p.name: DTYPES[p.ctype] for p in
                 signature_of(emulator.library.kernels, expression).parameters if p.name in names}
        values = {name: rng.random((rows, cols)) for name in names}

        wanted: list[bytes] = []
        for odd in ("", *names):
            arrays = {name: filled(values[name], 8 + 16 * place + (name == odd), types[name])
                      for place, name in enumerate(names)}
            emulator.call(expression, (1,), (32,), rows=rows, cols=cols, **arrays, **others)
            padding_untouched(*arrays.values())
            found = [arrays[name].tobytes() for name in written]
            wanted = wanted or found
            assert found == wanted, (expression, odd)
