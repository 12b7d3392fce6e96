"""Products of a small batch with weights that stream from memory (ptx/skinny.cu).

`choose_nt`, `choose_nn` and `choose_update` say how the kernels are launched. Blocks of a cluster
share sums, so that more than one split of a product needs compute capability 9.0.
"""

from __future__ import annotations

from dataclasses import dataclass

from rawnn.activations import functor
from rawnn.dtypes import itemsize
from rawnn.runners.kernels.table import Geometry, KernelImpl, Scalars, ceil, register, types
from rawnn.runners.kernels.updates import CONTEXT
from rawnn.step.op import Op
from rawnn.step.plan import Plan

MULTIPROCESSORS = 132
"""What the choices are tuned to: an H200's."""

_SHARED_LIMIT = 227 * 1024
_SHARED_OF_TWO = 113 * 1024  # bytes that leave room for a second block


@dataclass(frozen=True)
class Launch:
    """Template parameters and grid of a kernel: `tiles` of 8 rows of the batch, `shape` what lies
    between them and `depth` (MT, WM, WK or V, WC, WR, WB), `resident` blocks a multiprocessor,
    `width` elements of the long side and `threads` a block, `splits` blocks that share the inner
    dimension with `share` units each, `shared` bytes."""

    tiles: int
    shape: tuple[int, ...]
    depth: int
    width: int
    threads: int
    splits: int
    share: int
    shared: int

    @property
    def resident(self) -> int:
        """Blocks that have to fit on a multiprocessor by their registers; large batches need the
        registers of two."""
        return 2 if self.shared <= _SHARED_OF_TWO and self.tiles <= 4 else 1

    def template(self) -> list[str]:
        """The last template arguments; weights are asked for ahead of the wait."""
        numbers = (self.tiles, *self.shape, self.depth, self.resident)
        return [*map(str, numbers), "true"]


def _tiles(batch: int) -> int:
    return next(tiles for tiles in (2, 4, 8, 16) if 8 * tiles >= batch)


def _wide(extent: int) -> bool:
    """Whether blocks of 128 leave every multiprocessor one, in two splits; else they take 64."""
    return 2 * ceil(extent, 64) > MULTIPROCESSORS


def _splits(blocks: int, units: int, least: int, width: int) -> int:
    """One block a multiprocessor: a second set of clusters costs more than it hides. 8192 x 8192
    takes 45 us in 128 blocks and 53 us in 256. No block has fewer than `least` units."""
    splits = 1
    while (splits < 8 and 2 * splits * blocks <= MULTIPROCESSORS and width >= 8 * splits
           and ceil(units, 2 * splits) >= least):
        splits *= 2
    return splits


def _launch(tiles: int, shape: tuple[int, ...], width: int, warps: int, splits: int, units: int,
            slot: int, extra: int, sums: int, deepest: int = 4) -> Launch:
    """The deepest ring that fits. Bytes: `slot` of a ring's slot, `extra` beside it, `sums` of the
    partial sums that take its place."""
    inbox = 4 * 8 * tiles * width if sums and splits > 1 else 0
    bytes_of = {d: max(d * slot + extra, sums) + inbox for d in range(2, deepest + 1)}
    depth = max(d for d, size in bytes_of.items() if d == 2 or size <= _SHARED_LIMIT)
    return Launch(tiles, shape, depth, width, 32 * warps, splits, ceil(units, splits),
                  bytes_of[depth])


def choose_nt(m: int, n: int, k: int) -> Launch:
    """The forward product: a [m, k] with b [n, k]. Units of 64 columns of b."""
    tiles, units = _tiles(m), ceil(k, 64)
    if n <= 32:
        mt, wm = (2, 1) if tiles <= 8 else (1, 2)
        wk, deepest = 8 if units >= 64 and tiles <= 8 else 4, 2
    else:
        mt, wm, wk, deepest = (1, 8, 1, 4) if _wide(n) else (1, 4, 2, 4)
    width = 16 * mt * wm
    splits = _splits(ceil(n, width), units, 4, width)
    slot = wm * wk * mt * 2048 + 8 * tiles * (128 * wk + 64)
    sums = wk * 8 * tiles * (width + 4) * 4
    return _launch(tiles, (mt, wm, wk), width, wm * wk, splits, units, slot, 0, sums, deepest)


def _backward(tiles: int, shape: tuple[int, int, int, int], size: int, splits: int, units: int, *,
              gradient: bool, update: bool, deepest: int = 4) -> Launch:
    """Of `shape` V, WC, WR, WB for weights of `size` bytes."""
    v, wc, wr, wb = shape
    tile = 16 * 8 * v * size * wc * wr
    slot = tile + 8 * tiles * (16 * wr + 8) * 2
    sums = wr * 8 * tiles * (8 * v * wc + 4) * 4 if gradient else 0
    return _launch(tiles, shape, 8 * v * wc, wc * wr * wb, splits, units, slot,
                   tile if update else 0, sums, deepest)


def choose_nn(m: int, n: int, k: int) -> Launch:
    """The input gradient: a [m, k] with b [k, n]. Units of 16 rows of b."""
    tiles, units = _tiles(m), ceil(k, 16)
    if units < 8:
        shape = (8, 1, 1, 1) if tiles <= 8 else (4, 1, 1, 1)
    elif 4 <= tiles <= 8 and units <= 64:
        shape = (8, 1, 4, 2)  # 1024 x 1024: 3.7 us, and 3.9 us by one warp a tile
    elif tiles <= 8:
        shape = (8, 2, 4, 1) if _wide(n) else (8, 1, 8, 1)
    else:
        shape = (4, 4, 2, 1) if _wide(n) else (4, 2, 4, 1)
    width = 8 * shape[0] * shape[1]
    splits = _splits(ceil(n, width), units, 2 * shape[2] * shape[3], width)
    return _backward(tiles, shape, 2, splits, units, gradient=True, update=False,
                     deepest=6 if shape[3] == 2 else 4)


def choose_update(batch: int, rows: int, cols: int, size: int) -> Launch:
    """The update of w [rows, cols] of `size` bytes an element. Splits share no sums, and 8 to twice
    as many blocks as multiprocessors are best: 4096 x 4096 in bfloat16 takes 21 us in 8 splits and
    25 us in 16."""
    tiles, units = _tiles(batch), ceil(rows, 16)
    if size == 2 and tiles <= 8:
        shape = (8, 2, 4 if units >= 4 else 1, 1)
    else:
        shape = (4, 4, 2 if units >= 2 else 1, 1)
    splits = 1
    blocks = ceil(cols, 8 * shape[0] * shape[1])
    while ceil(units, 2 * splits) >= 4 and (
            splits < 8 or 2 * splits * blocks <= 2 * MULTIPROCESSORS):
        splits *= 2
    return _backward(tiles, shape, size, splits, units, gradient=False, update=True)


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _of_product(op: Op) -> Launch:
    a = op.attributes
    choose = choose_nt if a["layout"] == "nt" else choose_nn
    return choose(int(a["m"]), int(a["n"]), int(a["k"]))


def _of_weights(op: Op, plan: Plan) -> Launch:
    w = plan[op.operands["w"]]
    rows, cols = w.shape
    return choose_update(plan[op.operands["dz"]].shape[0], rows, cols, itemsize(w.dtype))


def _scalars(found: Launch) -> Scalars:
    return {"share": found.share, "SPLITS": found.splits, "WIDTH": found.width,
            "THREADS": found.threads, "SHARED": found.shared}


def _geometry(s: Scalars) -> Geometry:
    long_side = s["cols"] if "cols" in s else s["n"]
    return ((int(s["SPLITS"]), ceil(long_side, int(s["WIDTH"])), 1), (int(s["THREADS"]), 1, 1))


def _shared(s: Scalars) -> int:
    return int(s["SHARED"])


def _cluster(s: Scalars) -> int:
    return int(s["SPLITS"])


def _nt_template(op: Op, plan: Plan) -> list[str]:
    return [*types(op, plan, "a", "c"), functor(op.attributes["activation"]),
            *_of_product(op).template()]


def _nn_template(op: Op, plan: Plan) -> list[str]:
    return [*types(op, plan, "a"), functor(op.attributes["slope"]),
            _flag(int(op.attributes["n"]) % 8 != 0), *_of_product(op).template()]


def _weights_template(op: Op, plan: Plan) -> list[str]:
    w = plan[op.operands["w"]]
    ragged = w.shape[1] % (16 // itemsize(w.dtype)) != 0
    chance = bool(op.attributes["stochastic"]) and w.dtype == "bfloat16"
    return [*types(op, plan, "dz", "w"), _flag(chance), _flag(op.attributes["decay"] != 0),
            _flag(ragged), *_of_weights(op, plan).template()]


def _weights_sizes(op: Op, plan: Plan) -> Scalars:
    rows, cols = plan[op.operands["w"]].shape
    return {**_scalars(_of_weights(op, plan)), "batch": plan[op.operands["dz"]].shape[0],
            "rows": rows, "cols": cols}


_SHAPES = {
    "nt": {"a": ("m", "k"), "b": ("n", "k"), "bias": ("n",), "c": ("m", "n"), "overflow": ("1",)},
    "nn": {"a": ("m", "k"), "b": ("k", "n"), "saved": ("m", "n"), "c": ("m", "n"),
           "overflow": ("1",)},
}

register("matmul nt", "skinny", KernelImpl(
    "skinny.cu", "skinny_nt", _nt_template, lambda op, plan: _scalars(_of_product(op)), _geometry,
    _SHAPES["nt"], _shared, _cluster))
register("matmul nn", "skinny", KernelImpl(
    "skinny.cu", "skinny_nn", _nn_template, lambda op, plan: _scalars(_of_product(op)), _geometry,
    _SHAPES["nn"], _shared, _cluster))
_WEIGHTS = {"dz": ("batch", "rows"), "x": ("batch", "cols"), "w": ("rows", "cols"),
            "bias": ("rows",), "copy": ("rows", "cols"), **CONTEXT}

register("weight_update", "skinny", KernelImpl(
    "skinny.cu", "skinny_update", _weights_template, _weights_sizes, _geometry, _WEIGHTS, _shared))
