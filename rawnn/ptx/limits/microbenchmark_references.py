"""What the kernels of microbenchmarks.cu and microbenchmarks_wgmma.cu compute, in NumPy: for the
simulated GPU, and for tests that hold the kernels to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common.dtypes import numpy_dtype

Array = NDArray[Any]
Reference = Callable[[SimpleNamespace, Mapping[str, Any]], None]

_THREADS = 256
_CHAINS = np.arange(8, dtype=np.float32)
_STEPS = 8
_ROWS, _COLUMNS = 128, 256


@dataclass(frozen=True)
class Meaning:
    """`reference(operands, scalars)` works in place; `shapes` are the extents of each operand, in
    the kernel's own parameters (rawnn/ptx/kernel_registry.py)."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    shapes: Mapping[str, tuple[str, ...]]
    reference: Reference = field(repr=False)


def _nothing(t: SimpleNamespace, s: Mapping[str, Any]) -> None:
    """Nothing."""


def _read(t: SimpleNamespace, s: Mapping[str, Any]) -> None:
    """The sum of the pieces that each thread of a grid reads, over all rounds."""
    threads = s["threads"]
    pieces = t.x.reshape(-1, 4).sum(axis=1)
    padded = np.pad(pieces, (0, -len(pieces) % threads)).reshape(-1, threads).sum(axis=0)
    blocks = padded.reshape(-1, _THREADS)
    t.sums[:] = sum(np.roll(blocks, -r, axis=0) for r in range(s["rounds"])).ravel()


def _write(t: SimpleNamespace, s: Mapping[str, Any]) -> None:
    t.y[:] = s["value"]


def _copy(t: SimpleNamespace, s: Mapping[str, Any]) -> None:
    t.y[:] = t.x


def _chains(t: SimpleNamespace, s: Mapping[str, Any]) -> None:
    """Every step rounded once, as fma does but for double rounding."""
    value, scale, shift = _CHAINS, np.float64(s["scale"]), np.float64(s["shift"])
    for _ in range(s["rounds"] * _STEPS):
        value = (value * scale + shift).astype(np.float32)
    t.sums[:] = value.sum()


def elements(words: Array, dtype: str) -> Array:
    """32-bit words as the numbers that tensor cores see in them, float32 exactly; `dtype` "" is
    tf32, which has no low 13 bits."""
    words = np.ascontiguousarray(words)
    if dtype:
        return words.view(numpy_dtype(dtype)).astype(np.float32)
    return (words & np.uint32(0xFFFFE000)).view(np.float32)


def fragments(words: Array, dtype: str) -> tuple[Array, Array]:
    """A [16, E] and the transpose of B [8, E] of 6 words a lane (device/products.cuh)."""
    lanes = words.reshape(32, 6)
    a, b = np.empty((16, 8), np.uint32), np.empty((8, 8), np.uint32)
    for lane in range(32):
        g, t = divmod(lane, 4)
        a[g, t], a[g + 8, t], a[g, t + 4], a[g + 8, t + 4] = lanes[lane, :4]
        b[g, t], b[g, t + 4] = lanes[lane, 4:]
    return elements(a, dtype), elements(b, dtype)


def _tiles(t: SimpleNamespace, s: Mapping[str, Any]) -> None:
    a, b = fragments(t.words, s.get("dtype", ""))
    product = a @ b.T
    own = np.array([product[np.ix_((g, g + 8), (2 * c, 2 * c + 1))].sum()
                    for g in range(8) for c in range(4)])
    total = 4 * _CHAINS.sum() + len(_CHAINS) * s["rounds"] * own
    t.sums[:] = np.tile(total, s["threads"] // 32)


def _panels(t: SimpleNamespace, s: Mapping[str, Any]) -> None:
    """Of tf32, whose instance has no type, half of the columns."""
    dtype = s.get("dtype", "")
    rows = elements(t.words.reshape(_ROWS + _COLUMNS, 32), dtype)
    product = rows[:_ROWS] @ rows[_ROWS:][:_COLUMNS if dtype else _COLUMNS // 2].T
    by_pair = product.reshape(_ROWS, -1, 4, 2).sum(axis=(1, 3))  # columns 2t and 2t + 1 of each 8
    block = [by_pair[16 * warp + g, c] + by_pair[16 * warp + g + 8, c]
             for warp in range(_ROWS // 16) for g in range(8) for c in range(4)]
    t.sums[:] = np.tile(np.array(block) * s["rounds"], s["threads"] // _THREADS)


def _barriers(t: SimpleNamespace, s: Mapping[str, Any]) -> None:
    t.counter[0] += s["blocks"] * s["rounds"]


def _exchanges(t: SimpleNamespace, s: Mapping[str, Any]) -> None:
    """Each thread that takes part has the mean of its cluster's ranks after one round, the others
    their rank."""
    size = s["size"]
    ranks = np.repeat(np.arange(s["threads"] // _THREADS) % size, _THREADS).astype(np.float32)
    taking = np.tile(np.arange(_THREADS) < s["quads"], s["threads"] // _THREADS)
    t.sums[:] = np.where(taking & (s["rounds"] > 0), (size - 1) / 2, ranks)


_SUMS = {"sums": ("threads",)}
NOTHING = Meaning((), (), {}, _nothing)
READ = Meaning(("x",), ("sums",), {"x": ("count*4",), **_SUMS}, _read)
WRITE = Meaning((), ("y",), {"y": ("count*4",)}, _write)
COPY = Meaning(("x",), ("y",), {"x": ("count*4",), "y": ("count*4",)}, _copy)
CHAINS = Meaning((), ("sums",), _SUMS, _chains)
TILES = Meaning(("words",), ("sums",), {"words": ("192",), **_SUMS}, _tiles)
PANELS = Meaning(("words",), ("sums",), {"words": ("12288",), **_SUMS}, _panels)
BARRIERS = Meaning(("counter",), ("counter",), {"counter": ("1",)}, _barriers)
EXCHANGES = Meaning((), ("sums",), _SUMS, _exchanges)
