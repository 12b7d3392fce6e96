"""Products of a small batch on a GPU against NumPy: whole and ragged extents, poisoned padding, one
and several blocks of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rawnn
from rawnn import ptx
from rawnn.cuda.launch import Arguments, KernelLaunch
from rawnn.errors import DeviceError
from rawnn.runners.kernels.skinny import Launch, choose_nn, choose_nt, choose_update

pytestmark = pytest.mark.gpu

SOURCE = Path(ptx.SOURCES) / "skinny.cu"
BF16 = np.dtype(ml_dtypes.bfloat16)
SHAPES = [(32, 1024, 1024), (32, 10, 1024), (30, 999, 1003), (64, 264, 784), (128, 520, 136)]
"""Batch, rows and columns of the weights."""


@pytest.fixture(autouse=True)
def _needs_clusters() -> None:
    try:
        device = rawnn.empty(1).device
    except DeviceError as error:
        pytest.skip(str(error))
    if device.capability < (9, 0):
        pytest.skip("blocks of a cluster share their sums: compute capability 9.0")


class Matrix:
    """A matrix on the GPU whose rows are padded to 16 bytes, with NaN in the padding."""

    def __init__(self, values: np.ndarray[Any, Any], dtype: np.dtype[Any] = BF16) -> None:
        rows, self.cols = values.shape
        self.dtype, step = dtype, 16 // dtype.itemsize
        self.ld = -(-self.cols // step) * step
        padded = np.full((rows, self.ld), np.nan, np.float32)
        padded[:, : self.cols] = values
        bits = padded.astype(dtype).view(np.uint16 if dtype.itemsize == 2 else np.float32)
        self.array = rawnn.array(bits)

    @property
    def address(self) -> int:
        return int(self.array.address)

    def read(self) -> np.ndarray[Any, Any]:
        """The values; the padding must be as it was."""
        found = self.array.numpy().view(self.dtype).astype(np.float32)
        assert np.isnan(found[:, self.cols:]).all()
        return found[:, : self.cols]


def _run(name: str, types: list[str], launch: Launch, long_side: int,
         **arguments: int | float) -> None:
    expression = f"{name}<{','.join([*types, *launch.template()])}>"
    kernel = rawnn.Kernel(SOURCE, expression)
    function, device = kernel._function, kernel.device
    values = {p.name: arguments.get(p.name, 0) for p in function.signature.parameters}
    values["share"] = launch.share
    cluster = None if launch.splits == 1 or name == "skinny_update" else (launch.splits, 1, 1)
    KernelLaunch(device.driver, device.stream, function.handle, expression,
                 (launch.splits, -(-long_side // launch.width), 1), (launch.threads, 1, 1),
                 Arguments(function.signature, values), launch.shared, cluster).launch()
    kernel.synchronize()


def _rounded(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return values.astype(BF16).astype(np.float32)


def _operands(batch: int, rows: int, cols: int) -> tuple[np.ndarray[Any, Any], ...]:
    draw = np.random.default_rng(batch + rows + cols)
    dz = _rounded(draw.standard_normal((batch, rows)) * 0.1)
    x = _rounded(np.maximum(draw.standard_normal((batch, cols)), 0))
    w = _rounded(draw.standard_normal((rows, cols)) * 0.05)
    return dz, x, w, draw.standard_normal(rows).astype(np.float32)


def _close(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], unit: float) -> None:
    """To `unit` of the largest value: one rounding of what is stored, and of sums in float."""
    assert np.abs(found - wanted).max() <= unit * np.abs(wanted).max()


@pytest.mark.parametrize(("batch", "rows", "cols"), SHAPES)
def test_forward(batch: int, rows: int, cols: int) -> None:
    _, x, w, bias = _operands(batch, rows, cols)
    a, b, c = Matrix(x), Matrix(w), Matrix(np.zeros((batch, rows)))
    biases = rawnn.array(bias)
    _run("skinny_nt", ["bfloat16", "bfloat16", "Relu"], choose_nt(batch, rows, cols), rows,
         a=a.address, lda=a.ld, b=b.address, ldb=b.ld, bias=biases.address,
         c=c.address, ldc=c.ld, m=batch, n=rows, k=cols)
    _close(c.read(), np.maximum(x @ w.T + bias, 0), 2**-8)


@pytest.mark.parametrize(("batch", "rows", "cols"), SHAPES)
def test_input_gradient(batch: int, rows: int, cols: int) -> None:
    dz, x, w, _ = _operands(batch, rows, cols)
    a, b, saved, c = Matrix(dz), Matrix(w), Matrix(x), Matrix(np.zeros((batch, cols)))
    ragged = "true" if cols % 8 else "false"
    _run("skinny_nn", ["bfloat16", "Relu", ragged], choose_nn(batch, cols, rows), cols,
         a=a.address, lda=a.ld, b=b.address, ldb=b.ld, saved=saved.address, ldsaved=saved.ld,
         c=c.address, ldc=c.ld, m=batch, n=cols, k=rows)
    _close(c.read(), (dz @ w) * (x > 0), 2**-8)


@pytest.mark.parametrize("weights", ["float", "bfloat16"])
@pytest.mark.parametrize(("batch", "rows", "cols"), SHAPES)
def test_update(batch: int, rows: int, cols: int, weights: str) -> None:
    dz, x, w, bias = _operands(batch, rows, cols)
    lr, decay = 0.02, 0.1
    dtype = np.dtype(np.float32) if weights == "float" else BF16
    tensors = {"dz": Matrix(dz), "x": Matrix(x), "w": Matrix(w, dtype)}
    if weights == "float":
        tensors["copy"] = Matrix(np.zeros((rows, cols)))
    arguments: dict[str, int | float] = {name: t.address for name, t in tensors.items()}
    arguments |= {f"ld{name}": t.ld for name, t in tensors.items()}
    biases = rawnn.array(bias)
    launch = choose_update(batch, rows, cols, dtype.itemsize)
    ragged = "true" if cols % (16 // dtype.itemsize) else "false"
    _run("skinny_update", ["bfloat16", weights, "false", "true", ragged], launch, cols,
         **arguments, bias=biases.address, batch=batch, rows=rows, cols=cols, lr=lr, decay=decay)
    wanted = w - lr * (dz.T @ x + decay * w)
    _close(tensors["w"].read(), wanted, 2**-8 if weights == "bfloat16" else 1e-5)
    if "copy" in tensors:
        np.testing.assert_array_equal(tensors["copy"].read(), _rounded(tensors["w"].read()))
    np.testing.assert_allclose(biases.numpy(), bias - lr * (dz.sum(0) + decay * bias), atol=1e-5)


def test_rounding_by_chance_keeps_the_mean_and_repeats() -> None:
    """Every weight becomes one of its two neighbours, and the mean of a million is the exact one's
    to a hundredth of a unit of the last place."""
    batch, rows, cols = 32, 1024, 1024
    dz, x, w, _ = _operands(batch, rows, cols)
    wanted = w - 0.02 * (dz.T @ x)
    runs = []
    for _ in range(2):
        a, b, found = Matrix(dz), Matrix(x), Matrix(w)
        _run("skinny_update", ["bfloat16", "bfloat16", "true", "false", "false"],
             choose_update(batch, rows, cols, 2), cols, dz=a.address, lddz=a.ld, x=b.address,
             ldx=b.ld, w=found.address, ldw=found.ld, batch=batch, rows=rows, cols=cols, lr=0.02,
             seed=7, stream=3)
        runs.append(found.read())
    np.testing.assert_array_equal(runs[0], runs[1])
    unit = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(wanted), 1e-30))) - 7)
    away = (runs[0] - wanted) / unit
    assert np.abs(away).max() <= 1.01
    assert abs(away.mean()) < 0.01
