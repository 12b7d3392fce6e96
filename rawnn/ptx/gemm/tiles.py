"""Tiles of GEMMs, shared by the families `tiled`, `mma` and `wgmma`.

A block computes one tile of the result. Its size, and how warps, stages and clusters share the
work, are template parameters of the kernels. They have the same names as in Tile of mma_copy.cuh.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rawnn.common.dtypes import itemsize
from rawnn.common.errors import ConfigError
from rawnn.common.target import Target
from rawnn.model.activations import functor
from rawnn.model.losses import LOSSES
from rawnn.model.optimizers import UPDATE_RULES
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Role
from rawnn.ptx.family import Family
from rawnn.ptx.kernel_registry import (
    Geometry,
    KernelImpl,
    Scalars,
    Shape,
    ceil,
    flag,
    types,
)
from rawnn.ptx.losses.losses import PART_SHAPES, parts_of
from rawnn.ptx.optimizers.updates import CONTEXT


@dataclass(frozen=True)
class Tile:
    """A tile of `bm` x `bn` elements of the result.

    `wm` x `wn` warps divide it, times `wk` warps that share the inner dimension of each stage.
    `stages` is the depth of the ring in shared memory. `cluster` blocks split the inner dimension.
    `bytes` is the length of an operand's row in a stage; 0 is the family's own.
    """

    bm: int
    bn: int
    wm: int
    wn: int
    wk: int
    stages: int
    cluster: int = 1
    bytes: int = 0

    def scalars(self) -> Scalars:
        """The kernels' template parameters by name."""
        return {"BM": self.bm, "BN": self.bn, "WM": self.wm, "WN": self.wn, "WK": self.wk,
                "STAGES": self.stages, "CLUSTER": self.cluster, "BYTES": self.bytes}


@dataclass(frozen=True)
class GemmShape:
    """The properties of a GEMM that its tile depends on: layout, c [m, n] from k, and `size` bytes
    of an operand's element. Tensor cores compute `times` products for one. `rows` says that a tile
    has to span whole rows of c."""

    layout: str
    m: int
    n: int
    k: int
    size: int
    times: int = 1
    rows: bool = False


LONGEST_ROW = 128
"""Columns of a tile that spans rows, at most: a warp holds a row, four columns in each lane."""


def spanning(p: GemmShape, tiles: Iterable[Tile]) -> list[Tile]:
    """The tiles that the GEMM can be computed in. Raises ConfigError if a tile has to span rows and
    none does."""
    found = [tile for tile in tiles if not p.rows or p.n <= tile.bn <= LONGEST_ROW]
    if not found:
        raise ConfigError(f"no tile spans rows of {p.n}")
    return found


Choose = Callable[[GemmShape, Target], Tile]


GEMM_KINDS = ("matmul", "matmul_loss")
"""Kinds of ops that multiply the operands a and b."""


def gemm_shape(op: Op, plan: Plan) -> GemmShape:
    """The GEMM inside a `matmul`, a `matmul_loss` or a `weight_update`."""
    left, right = (plan[name] for name in gemm_operands(op))
    if op.kind in GEMM_KINDS:
        a = op.attributes
        layout, m, n, k = str(a.get("layout", "nt")), int(a["m"]), int(a["n"]), int(a["k"])
    else:
        layout, (m, n), k = "tn", plan[op.operands["w"]].shape, left.shape[0]
    three = (left.dtype, right.dtype, op.attributes["compute"]) == ("float32",) * 3
    return GemmShape(layout, m, n, k, left.itemsize, 3 if three else 1,
                     op.kind == "matmul_loss" and bool(LOSSES[op.attributes["loss"]].of_rows))


def gemm_operands(op: Op) -> tuple[str, str]:
    """Operand names of the two factors."""
    roles = ("a", "b") if op.kind in GEMM_KINDS else ("dz", "x")
    return op.operands[roles[0]], op.operands[roles[1]]


def _sum_type(op: Op, plan: Plan, three: str) -> str:
    """How tensor cores multiply and accumulate (mma_fragments.cuh)."""
    if op.attributes["compute"] == "float16":
        return "float16"
    return three if gemm_shape(op, plan).times == 3 else "float"


def _aligned(op: Op, plan: Plan) -> bool:
    """Whether the rows of both operands begin at multiples of 16 bytes."""
    tensors = [plan[name] for name in gemm_operands(op)]
    return all(t.ld * itemsize(t.dtype) % 16 == 0 for t in tensors)


def prefetched_operand(op: Op, plan: Plan) -> str:
    """The operand that a GEMM prefetches while the kernel directly ahead of it still runs, or "".

    right behind the updates; and x, the layer's input, when the weight gradient is computed.
    """
    if op.kind not in GEMM_KINDS:
        return "x"
    first, second = (plan[name].role for name in gemm_operands(op))
    computed = first in (Role.ACTIVATION, Role.GRADIENT)
    return "b" if computed and second in (Role.PARAMETER, Role.COPY) else ""


def _geometry(s: Scalars) -> Geometry:
    rows, cols = (s["rows"], s["cols"]) if "rows" in s else (s["m"], s["n"])
    grid = ceil(cols, int(s["BN"])) * int(s.get("CLUSTER", 1)), ceil(rows, int(s["BM"])), 1
    return grid, (32 * int(s["WM"]) * int(s["WN"]) * int(s["WK"]), 1, 1)


def operand_bytes(s: Scalars) -> tuple[int, int]:
    """Bytes of an element of each factor."""
    left, right = ("a", "b") if "itemsize_a" in s else ("dz", "x")
    return int(s[f"itemsize_{left}"]), int(s[f"itemsize_{right}"])


def with_partial_sums(s: Scalars, operands: float) -> int:
    """Shared memory of a block in bytes, whose operands need `operands`. The warps' partial sums
    overwrite the operands; those from other blocks of the cluster are received behind them."""
    part, cluster = int(s["BM"] * (s["BN"] + 8) * 4), int(s["CLUSTER"])
    inbox = ceil(int(s["BM"]), cluster) * cluster * int(s["BN"] + 8) * 4 + 16 if cluster > 1 else 0
    return max(int(operands), int(s["WK"]) * part) + inbox


_MATRIX: Shape = ("m", "n")
_SHAPES: dict[str, dict[str, Shape]] = {
    layout: {"a": a, "b": b, "bias": ("n",), "saved": _MATRIX, "pre": _MATRIX, "c": _MATRIX,
             "overflow": ("1",)}
    for layout, a, b in (("nt", ("m", "k"), ("n", "k")), ("nn", ("m", "k"), ("k", "n")),
                         ("tn", ("k", "m"), ("k", "n")))
}
_LOSS_SHAPES: dict[str, Shape] = {
    "a": ("m", "k"), "b": ("n", "k"), "bias": ("n",), "t": _MATRIX, "y": ("m",), "cursor": ("1",),
    "dz": _MATRIX, "loss_scale": ("2",), "overflow": ("1",), **PART_SHAPES}
_WEIGHTS: Shape = ("rows", "cols")
_STATES = sorted({name for rule in UPDATE_RULES.values() for name in rule.keeps})
_UPDATE_SHAPES: dict[str, Shape] = {
    "dz": ("batch", "rows"), "x": ("batch", "cols"), **CONTEXT,
    **dict.fromkeys(("w", *_STATES, "copy"), _WEIGHTS),
    **dict.fromkeys(("bias", *(f"bias_{name}" for name in _STATES)), ("rows",)),
}

UPDATE = {"weight_update": "gemm_update"}
"""The kernel of every main loop for an op that updates weights."""


MAIN_LOOPS: dict[str, bool] = {}
"""GEMM implementations that share ptx/gemm/gemm_kernels.cuh, each with a main loop of its own ->
whether it uses tensor cores."""


def register_family(family: Family, impl: str, source: str, loop: str, choose: Choose,
                    shared: Callable[[Scalars], int], *, tensor_cores: bool = True,
                    others: Sequence[Tile] = (), updates: Mapping[str, str] = UPDATE,
                    losses: bool = False, specific: bool = False,
                    three: str = "tf32x3") -> None:
    """Add to `family`, as `impl`, the kernels of ptx/gemm/gemm_kernels.cuh with the main loop
    `loop` of `source`.

    These are gemm_nt, _nn, _tn, those of `updates` (kind of op -> kernel), and gemm_loss if
    `losses`. `choose` picks the tile for a GPU. `shared` gives the bytes of dynamic shared memory
    from scalars that include the tile's parameters. Without `tensor_cores` sums are float32.
    `others` are the tiles that an op's attribute `choice` selects, counted from 1. `specific` is as
    in KernelImpl. `three` is the method that splits a float32 product into three.
    """
    MAIN_LOOPS[impl] = tensor_cores

    def chosen(op: Op, plan: Plan) -> Tile:
        # The usual tile, because the number of a loss's partial sums is that of its blocks.
        choice = int(op.attributes.get("choice", 0)) if op.kind != "matmul_loss" else 0
        return others[choice - 1] if choice else choose(gemm_shape(op, plan), plan.target)

    def choices(s: Scalars) -> int:
        return 1 + len(others)

    def tile(op: Op, plan: Plan) -> Scalars:
        p = gemm_shape(op, plan)
        return {**chosen(op, plan).scalars(), "TIMES": p.times, "DEEP": p.layout != "tn"}

    def last(op: Op, plan: Plan) -> list[str]:
        numbers = map(str, chosen(op, plan).scalars().values())
        sums = _sum_type(op, plan, three) if tensor_cores else "float"
        early = [flag(True)] if tensor_cores and prefetched_operand(op, plan) else []
        return [sums, *numbers, flag(_aligned(op, plan)), *early]

    def gemm(op: Op, plan: Plan) -> list[str]:
        a = op.attributes
        saved = next((r for r in ("saved", "pre") if r in op.operands), "c")
        return [loop, *types(op, plan, "a", "b", "c"), flag(bool(a["bias"])),
                functor(a["activation"]), functor(a["slope"]), *types(op, plan, saved),
                *last(op, plan)]

    def update(op: Op, plan: Plan) -> list[str]:
        return [loop, *types(op, plan, "dz", "x", "w", "copy"), flag("bias" in op.operands),
                *last(op, plan)]

    def update_sizes(op: Op, plan: Plan) -> Scalars:
        rows, cols = plan[op.operands["w"]].shape
        return {**tile(op, plan), "batch": plan[op.operands["dz"]].shape[0], "rows": rows,
                "cols": cols}

    def loss(op: Op, plan: Plan) -> list[str]:
        entry = LOSSES[op.attributes["loss"]]
        return [loop, *types(op, plan, "a", "b", "dz", "t"), flag(bool(op.attributes["bias"])),
                entry.functor or entry.of_rows, *last(op, plan)]

    def loss_sizes(op: Op, plan: Plan) -> Scalars:
        return {**tile(op, plan), "parts": parts_of(op, plan)}

    def cluster(s: Scalars) -> int:
        return int(s["CLUSTER"])

    for layout, shapes in _SHAPES.items():
        family.register("matmul", impl, KernelImpl(
            source, f"gemm_{layout}", gemm, tile, _geometry, shapes, shared, cluster,
            choices, specific=specific), layout)
    if losses:
        family.register("matmul_loss", impl, KernelImpl(
            source, "gemm_loss", loss, loss_sizes, _geometry, _LOSS_SHAPES, shared, cluster,
            specific=specific))
    for kind, name in updates.items():
        family.register(kind, impl, KernelImpl(
            source, name, update, update_sizes, _geometry,
            _UPDATE_SHAPES, shared, cluster, choices, specific=specific))


def blocks(gemm: GemmShape, bm: int, bn: int) -> int:
    """Number of bm x bn tiles that cover the result."""
    return ceil(gemm.m, bm) * ceil(gemm.n, bn)


MANY, SOME = 1.51, 0.755
"""Tiles for each multiprocessor from which a GPU is occupied twice over, and once; measured on an
H200, which has 132 multiprocessors."""


def filling(gemm: GemmShape, target: Target, bm: int, bn: int) -> float:
    """bm x bn tiles for each multiprocessor. Raises ConfigError for the host, which has none."""
    if not target.gpu:
        raise ConfigError("a plan of kernels is for a GPU, and this one is for the host")
    return blocks(gemm, bm, bn) / target.multiprocessors
