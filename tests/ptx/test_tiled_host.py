"""The arithmetic of tiled.cu on the CPU emulator, with asynchronous copies and without: products of
every layout, ragged extents, rows that are not aligned, and what the epilogues add."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

EMULATION = Path(__file__).resolve().parent / "emulation"
sys.path.insert(0, str(EMULATION))

import emulated_kernels  # noqa: E402
from emulated_arrays import DTYPES, close, f64, filled, padding_untouched, pitched  # noqa: E402

from tests import requires  # noqa: E402

pytestmark = requires.GXX

# BM, BN, WM, WN, WK, STAGES
SMALL, SHARED, LARGE = (32, 32, 2, 1, 1, 2), (16, 32, 1, 1, 4, 3), (64, 64, 2, 1, 1, 2)
ALIGNED = {True: "true", False: "false"}


def _product(layout: str, types: str, rest: str, tile: tuple[int, ...], aligned: bool) -> str:
    return f"gemm_{layout}<Tiled,{types},{rest},float,{_tile(tile)},{ALIGNED[aligned]}>"


def _tile(tile: tuple[int, ...]) -> str:
    """With its clusters, which are none, and its bytes, which follow from the types."""
    return ",".join(map(str, (*tile, 1, 0)))


PRODUCTS = [
    _product("nt", "float,float,float", "true,Relu,None,float", SMALL, True),
    _product("nt", "float,float,float", "true,Relu,None,float", SHARED, False),
    _product("nt", "bfloat16,float8_e4m3,float16", "false,Tanh,None,float", SHARED, True),
    _product("nn", "float,float,float", "false,None,Relu,bfloat16", LARGE, True),
    _product("nn", "float16,float,bfloat16", "false,None,Tanh,float16", SHARED, False),
    _product("tn", "float,float,float", "false,None,None,float", SHARED, True),
    _product("tn", "bfloat16,bfloat16,float", "false,None,None,float", LARGE, False),
]
UPDATES = [
    f"gemm_update<Tiled,float,float,float,bfloat16,true,float,{_tile(SHARED)},true>",
    f"gemm_update<Tiled,bfloat16,float16,bfloat16,float,true,float,{_tile(SMALL)},false>",
]
SHAPES = ((1, 1, 1), (33, 70, 37), (16, 32, 128))


@pytest.fixture(scope="module", params=["sm_75", "sm_90"])
def emulator(request: pytest.FixtureRequest) -> emulated_kernels.Emulator:
    expressions = (*PRODUCTS, *UPDATES)
    library = emulated_kernels.kernels(("gemm/tiled",), expressions, request.param).build()
    return emulated_kernels.Emulator(library, seed=3)


def _arguments(expression: str) -> tuple[list[str], tuple[int, ...], bool]:
    """Types and functors, the tile, and whether rows are aligned."""
    found = expression.partition("<")[2].rstrip(">").split(",")[1:]
    return found[:-10], tuple(int(word) for word in found[-9:-3]), found[-1] == "true"


def _operand(values: np.ndarray, dtype: np.dtype, aligned: bool) -> np.ndarray:
    """With NaN in the padding; a pitch of whole 16-byte units, or of an odd number of elements."""
    unit = 16 // dtype.itemsize
    columns = values.shape[1]
    pad = -columns % unit if aligned else 1 - columns % 2
    return filled(values, pad, dtype)


def _shared(sizes: tuple[int, int], tile: tuple[int, ...]) -> int:
    """Bytes of dynamic shared memory: stages of 32 along the inner dimension, whose place the sums
    of the warps along it take."""
    bm, bn, _, _, wk, stages = tile
    sums = wk * bm * (bn + 8) * 4 if wk > 1 else 0
    return max(stages * 32 * (bm * sizes[0] + bn * sizes[1]), sums)


def _launch(tile: tuple[int, ...], rows: int, cols: int) -> tuple[tuple[int, int], tuple[int]]:
    bm, bn, wm, wn, wk, _ = tile
    return (-(-cols // bn), -(-rows // bm)), (32 * wm * wn * wk,)


@pytest.mark.parametrize("expression", PRODUCTS)
def test_products(emulator: emulated_kernels.Emulator, expression: str) -> None:
    rng = np.random.default_rng(3)
    names, tile, aligned = _arguments(expression)
    layout = expression.removeprefix("gemm_")[:2]
    ta, tb, tc, ts = (np.dtype(DTYPES[name]) for name in (*names[:3], names[6]))
    for m, n, k in SHAPES:
        a = _operand(rng.standard_normal((k, m) if layout == "tn" else (m, k)), ta, aligned)
        b = _operand(rng.standard_normal((n, k) if layout == "nt" else (k, n)), tb, aligned)
        saved, bias = filled(rng.standard_normal((m, n)), 3, ts), rng.standard_normal(n)
        left = f64(a.T if layout == "tn" else a)
        right = f64(b.T if layout == "nt" else b)
        for alpha, beta in ((1.0, 0.0), (0.5, -1.0)):
            c = pitched(m, n, 2, tc)  # beta == 0 must not read the NaN it starts from
            start = f64(filled(rng.standard_normal((m, n)), 2, tc))
            if beta:
                c[:] = start
            grid, block = _launch(tile, m, n)
            biased = names[3] == "true"
            optional = {"bias": bias.astype(np.float32)} if biased else {}
            if names[5] != "None":
                optional["saved"] = saved
            overflow = np.zeros(1, np.int32)
            emulator.call(expression, grid, block, shared=_shared((ta.itemsize, tb.itemsize), tile),
                          a=a, b=b, c=c, m=m, n=n, k=k, alpha=alpha, beta=beta,
                          overflow=overflow, **optional)
            expected = alpha * (left @ right) + (beta * start if beta else 0)
            expected += bias.astype(np.float32) if biased else 0
            expected = {"None": expected, "Relu": np.maximum(expected, 0),
                        "Tanh": np.tanh(expected)}[names[4]]
            slope = {"None": 1.0, "Relu": f64(saved) > 0, "Tanh": 1 - f64(saved) ** 2}[names[5]]
            size = np.abs(left) @ np.abs(right) + np.abs(start) + 4
            close(c, expected * slope, 1e-6 * size)
            padding_untouched(c)
            assert overflow[0] == 0


def test_overflow_is_reported(emulator: emulated_kernels.Emulator) -> None:
    expression = PRODUCTS[2]  # into float16, through tanh: only a NaN is not finite
    _, tile, _ = _arguments(expression)
    for value in (1.0, np.nan):
        a = _operand(np.full((3, 8), value), np.dtype(DTYPES["bfloat16"]), True)
        b = _operand(np.ones((5, 8)), np.dtype(DTYPES["float8_e4m3"]), True)
        c, overflow = pitched(3, 5, 0, np.dtype(np.float16)), np.zeros(1, np.int32)
        emulator.call(expression, *_launch(tile, 3, 5), shared=_shared((2, 1), tile), a=a,
                       b=b, c=c, overflow=overflow, m=3, n=5,
                      k=8, alpha=1.0)
        assert overflow[0] == int(np.isnan(value))


@pytest.mark.parametrize("expression", UPDATES)
@pytest.mark.parametrize("scaled", [False, True])
def test_updates(emulator: emulated_kernels.Emulator, expression: str, scaled: bool) -> None:
    rng = np.random.default_rng(4)
    names, tile, aligned = _arguments(expression)
    td, tx, tw, tc = (np.dtype(DTYPES[name]) for name in names[:4])
    lr, decay, factor = 0.25, 0.125, 0.25 if scaled else 1.0
    for m, n, k in SHAPES:
        dz = _operand(rng.standard_normal((k, m)), td, aligned)
        x = _operand(rng.standard_normal((k, n)), tx, aligned)
        w, copy = filled(rng.standard_normal((m, n)), 1, tw), pitched(m, n, 2, tc)
        bias = rng.standard_normal(m).astype(np.float32)
        before, bias_before = f64(w), f64(bias)
        optional: dict[str, object] = {"copy": copy}
        if scaled:
            optional |= {"loss_scale": np.array([4.0, 0.0], np.float32), "offset": 1,
                         "rates": np.array([9.0, 9.0, lr], np.float32),
                         "cursor": np.array([1], np.int32), "overflow": np.zeros(1, np.int32)}
        arguments = {"shared": _shared((td.itemsize, tx.itemsize), tile), "dz": dz,
                      "x": x, "w": w, "bias": bias, "batch": k, "rows": m, "cols": n,
                     "lr": 9.0 if scaled else lr, "decay": decay, "copy_scale": 2.0, **optional}
        emulator.call(expression, *_launch(tile, m, n), **arguments)
        expected = before * (1 - lr * decay) - lr * factor * (f64(dz).T @ f64(x))
        size = np.abs(f64(dz)).T @ np.abs(f64(x)) + np.abs(before)
        close(w, expected, 1e-6 * size)
        close(copy, 2 * expected, 2e-6 * size)
        gradient = f64(dz).sum(axis=0)
        assert np.allclose(bias, bias_before * (1 - lr * decay) - lr * factor * gradient,
                           rtol=0, atol=1e-6 * (np.abs(f64(dz)).sum() + 1))
        padding_untouched(w)
        padding_untouched(copy)
        if scaled:
            kept = f64(w)
            emulator.call(expression, *_launch(tile, m, n),
                          **{**arguments, "overflow": np.ones(1, np.int32)})
            assert (f64(w) == kept).all()
