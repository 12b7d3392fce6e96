"""Layers with a small batch on a GPU against NumPy: whole and ragged extents, poisoned padding, one
and several blocks of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rawnn
from rawnn import ptx
from rawnn.common.errors import DeviceError
from rawnn.common.target import known
from rawnn.cuda.launch import Arguments, KernelLaunch
from rawnn.cuda.tensormap import NO_MAP, MappedMatrix
from rawnn.ptx.gemm.skinny import Launch, choose_backward, choose_nt

pytestmark = pytest.mark.gpu

HOPPER = known((9, 0))
SOURCE = Path(ptx.SOURCES) / "gemm/skinny.cu"
BF16 = np.dtype(ml_dtypes.bfloat16)
SHAPES = [(32, 1024, 1024), (32, 10, 1024), (30, 999, 1003), (64, 264, 784), (64, 130, 1001),
          (16, 3000, 520), (1, 1, 1)]
"""Batch, rows and columns of the weights."""


@pytest.fixture(autouse=True)
def _needs_clusters() -> None:
    try:
        device = rawnn.empty(1).device
    except DeviceError as error:
        pytest.skip(str(error))
    if device.capability < (9, 0):
        pytest.skip("needs the copy engine of compute capability 9.0")


class Matrix:
    """A matrix on the GPU whose rows are padded to 16 bytes, with NaN in the padding."""

    def __init__(self, values: np.ndarray[Any, Any], dtype: np.dtype[Any] = BF16) -> None:
        self.rows, self.cols = values.shape
        self.dtype, step = dtype, 16 // dtype.itemsize
        self.ld = -(-self.cols // step) * step
        padded = np.full((self.rows, self.ld), np.nan, np.float32)
        padded[:, : self.cols] = values
        bits = padded.astype(dtype).view(np.uint16 if dtype.itemsize == 2 else np.float32)
        self.array = rawnn.array(bits)

    @property
    def address(self) -> int:
        return int(self.array.address)

    def map(self, box_rows: int) -> bytes:
        """What the copy engine goes by."""
        name = "float32" if self.dtype.itemsize == 4 else "bfloat16"
        matrix = MappedMatrix(self.array.device.driver, "a matrix", self.rows, self.cols, self.ld,
                              name, box_rows)
        return matrix.at(self.address)

    def read(self, padded: bool = True) -> np.ndarray[Any, Any]:
        """The values; where `padded`, the padding must be as it was: the copy engine writes it."""
        found = self.array.numpy().view(self.dtype).astype(np.float32)
        assert not padded or np.isnan(found[:, self.cols:]).all()
        return found[:, : self.cols]


def _run(name: str, types: list[str], launch: Launch, long_side: int,
         operands: dict[str, Matrix], boxes: tuple[str, ...] = ("dz", "x", "w", "copy"),
         **arguments: int | float) -> None:
    """`boxes` are the operands with maps: those with a row for each of the batch, then weights."""
    expression = f"{name}<{','.join([*types, *launch.template()])}>"
    kernel = rawnn.Kernel(SOURCE, expression)
    function, device = kernel._function, kernel.device
    values: dict[str, Any] = {p.name: arguments.get(p.name, 0)
                              for p in function.signature.parameters}
    values |= {role: matrix.address for role, matrix in operands.items()}
    values |= {f"ld{role}": matrix.ld for role, matrix in operands.items()
               if f"ld{role}" in values}
    for role in boxes:
        rows = 8 * launch.tiles if role in ("a", "dz", "x") else launch.box_rows
        values[f"{role}_map"] = NO_MAP if role not in operands else operands[role].map(rows)
    values |= {"share": launch.share, "depth": launch.depth}
    cluster = None if launch.splits == 1 or name == "skinny_update" else (launch.splits, 1, 1)
    KernelLaunch(device.driver, device.stream, function.handle, expression,
                 (launch.splits, -(-long_side // launch.width), 1), (288, 1, 1),
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
    c = Matrix(np.zeros((batch, rows)))
    biases = rawnn.array(bias)
    _run("skinny_nt", ["bfloat16", "bfloat16", "Relu"], choose_nt(HOPPER, batch, rows, cols), rows,
         {"a": Matrix(x), "b": Matrix(w), "c": c}, ("a", "b"), bias=biases.address, m=batch,
         n=rows, k=cols)
    _close(c.read(), np.maximum(x @ w.T + bias, 0), 2**-8)


@pytest.mark.parametrize(("batch", "rows", "cols"), SHAPES)
def test_input_gradient(batch: int, rows: int, cols: int) -> None:
    dz, x, w, _ = _operands(batch, rows, cols)
    c = Matrix(np.zeros((batch, cols)))
    launch = choose_backward(HOPPER, batch, rows, cols, 2, gradient=True, update=False)
    _run("skinny_nn", ["bfloat16", "Relu"], launch, cols,
         {"a": Matrix(dz), "b": Matrix(w), "saved": Matrix(x), "c": c}, ("a", "b"), m=batch,
         n=cols, k=rows)
    _close(c.read(), (dz @ w) * (x > 0), 2**-8)


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("weights", ["float", "bfloat16"])
@pytest.mark.parametrize(("batch", "rows", "cols"), SHAPES)
def test_update(batch: int, rows: int, cols: int, weights: str, gradient: bool) -> None:
    """With the input gradient, that of the weights before the update."""
    dz, x, w, bias = _operands(batch, rows, cols)
    lr, decay = 0.02, 0.1
    dtype = np.dtype(np.float32) if weights == "float" else BF16
    tensors = {"dz": Matrix(dz), "x": Matrix(x), "w": Matrix(w, dtype)}
    if weights == "float":
        tensors["copy"] = Matrix(np.zeros((rows, cols)))
    if gradient:
        tensors["dx"] = Matrix(np.zeros((batch, cols)))
    biases = rawnn.array(bias)
    launch = choose_backward(HOPPER, batch, rows, cols, dtype.itemsize, gradient=gradient,
                             update=True)
    name, slope = ("skinny_backward", ["Relu"]) if gradient else ("skinny_update", [])
    _run(name, ["bfloat16", weights, *slope, "false", "true", "false"], launch, cols, tensors,
         bias=biases.address, batch=batch, rows=rows, cols=cols, lr=lr, decay=decay)
    wanted = w - lr * (dz.T @ x + decay * w)
    _close(tensors["w"].read(padded=False), wanted, 2**-8 if weights == "bfloat16" else 1e-5)
    if "copy" in tensors:
        np.testing.assert_array_equal(tensors["copy"].read(padded=False),
                                      _rounded(tensors["w"].read(padded=False)))
    if gradient:
        _close(tensors["dx"].read(), (dz @ w) * (x > 0), 2**-8)
    np.testing.assert_allclose(biases.numpy(), bias - lr * (dz.sum(0) + decay * bias), atol=1e-5)


@pytest.mark.parametrize("cols", [1024, 1001])
@pytest.mark.parametrize("batch", [32, 64])
def test_stochastic_rounding_keeps_the_mean_and_repeats(batch: int, cols: int) -> None:
    """Every weight becomes one of its two neighbours, and the mean of a million is the exact one's
    to a hundredth of a unit of the last place; with the input gradient or without, the same."""
    rows = 1024
    dz, x, w, _ = _operands(batch, rows, cols)
    wanted = w - 0.02 * (dz.T @ x)
    runs = []
    for gradient in (False, False, True):
        found = Matrix(w)
        operands = {"dz": Matrix(dz), "x": Matrix(x), "w": found}
        if gradient:
            operands["dx"] = Matrix(np.zeros((batch, cols)))
        ragged = cols % 8 != 0
        launch = choose_backward(HOPPER, batch, rows, cols, 2, gradient=gradient, update=True,
                                 ragged=ragged)
        name, slope = ("skinny_backward", ["None"]) if gradient else ("skinny_update", [])
        _run(name, ["bfloat16", "bfloat16", *slope, "true", "false", str(ragged).lower()], launch,
             cols, operands, batch=batch, rows=rows, cols=cols, lr=0.02, seed=7, stream=3)
        runs.append(found.read(padded=False))
    for again in runs[1:]:
        np.testing.assert_array_equal(runs[0], again)
    larger = np.maximum(np.abs(wanted), np.abs(runs[0]))  # a neighbour may be in the next binade
    unit = 2.0 ** (np.floor(np.log2(np.maximum(larger, 1e-3))) - 7)  # sums are off by some 1e-8
    away = (runs[0] - wanted) / unit
    assert np.abs(away).max() <= 1.01
    assert abs(away.mean()) < 0.01
