"""Kernels of a layer with a small batch, bound by the memory traffic of its weights
(ptx/gemm/skinny.cu). They need the copy engine (TMA) of compute capability 9.0.

The input-gradient GEMM reads the weights, and the update reads them again and writes them. The
gradient is needed first, so layer_backward does both in place of that GEMM: no later op reads the
old weights. `choose_nt` and `choose_backward` choose the launch parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace

from rawnn.common.dtypes import itemsize
from rawnn.common.target import Target
from rawnn.model.activations import activation, functor
from rawnn.plan.op import OPS, Attributes, Op, define
from rawnn.plan.plan import Plan
from rawnn.ptx.family import Family, Fusion
from rawnn.ptx.kernel_registry import Geometry, KernelImpl, Scalars, ceil, flag, types
from rawnn.ptx.optimizers.updates import CONTEXT

LARGEST_CLUSTER = 8
"""Most blocks of a cluster that share the inner dimension. If the GPU cannot run all clusters at
once, the last one waits for others to end."""

_BARRIERS = 512  # bytes of shared memory that every launch adds
_ALIGNMENT = 1024  # most bytes that aligning the ring of stages skips
_DEEPEST = 16
_WARPS = 8
_STRIP = 64  # columns of weights that a block multiplies and updates


@dataclass(frozen=True)
class Launch:
    """Template parameters and grid of a kernel. `tiles` counts groups of 8 batch rows, and `shape`
    is the kernel's next parameters (WM, WK or V). A block covers `width` elements of the long
    dimension. `splits` blocks share the rounds of the inner dimension, `share` rounds each.
    `depth` is the number of stages of the ring, `shared` the bytes of shared memory."""

    tiles: int
    shape: tuple[int, ...]
    width: int
    splits: int
    share: int
    depth: int
    shared: int

    @property
    def box_rows(self) -> int:
        """Rows of a box of the weights' tensor map."""
        return 16 * self.shape[0]

    def template(self) -> list[str]:
        """The last template arguments."""
        return [str(number) for number in (self.tiles, *self.shape)]

    def scalars(self) -> Scalars:
        """The parameters of the kernel and its geometry."""
        return {"share": self.share, "depth": self.depth, "SPLITS": self.splits,
                "WIDTH": self.width, "SHARED": self.shared, "TILES": self.tiles,
                ("WM" if len(self.shape) == 2 else "V"): self.shape[0]}


def _tiles(batch: int) -> int:
    return next(tiles for tiles in (2, 4, 8) if 8 * tiles >= batch)


def _splits(target: Target, blocks: int, rounds: int, least: int) -> int:
    """The most splits that give every block a round and all but the last `least` rounds, with all
    clusters resident at once."""
    return max(s for s, most in target.at_once.items()
               if s == 1 or (s <= LARGEST_CLUSTER and s * blocks <= most
                             and ceil(rounds, s) >= least and (s - 1) * ceil(rounds, s) < rounds))


def _launch(target: Target, tiles: int, shape: tuple[int, ...], width: int, splits: int,
            rounds: int, slot: int, sums: int, extra: int = 0) -> Launch:
    """A launch with the deepest ring that fits. In bytes: `slot` is a stage of the ring, `sums` the
    partial sums that later overwrite it (0 if there are none), `extra` what lies behind the
    ring."""
    received = 4 * 8 * tiles * width if sums and splits > 1 else 0
    share = ceil(rounds, splits)
    extra += _ALIGNMENT
    depth = min(_DEEPEST, share, (target.shared_per_block - _BARRIERS - extra - received) // slot)
    shared = max(depth * slot + extra, sums) + received
    return Launch(tiles, shape, width, splits, share, depth, shared)


def choose_nt(target: Target, m: int, n: int, k: int) -> Launch:
    """The forward GEMM: a [m, k] with b [n, k], in rounds of 64 * WK columns of b."""
    tiles = _tiles(m)
    wm, wk = (4, 2) if n >= 64 * 64 else (2, 4)
    width, rounds = 16 * wm, ceil(k, 64 * wk)
    slot = wk * 128 * (width + 8 * tiles)
    sums = wk * 8 * tiles * (width + 4) * 4
    splits = _splits(target, ceil(n, width), rounds, 8)
    return _launch(target, tiles, (wm, wk), width, splits, rounds, slot, sums)


def choose_backward(target: Target, batch: int, rows: int, cols: int, size: int, *, gradient: bool,
                    update: bool, ragged: bool = False) -> Launch:
    """Input gradient, update or both for w [rows, cols] of `size` bytes an element. `ragged` says
    that stochastic rounding's draws do not align with its rows. Blocks that only update share no
    sums, so their number is free."""
    tiles = _tiles(batch)
    v = 8 if size == 2 and tiles <= 4 and not ragged else 4
    down = 8 * v * _WARPS // _STRIP
    box_rows = 16 * down
    rounds, strips = ceil(rows, box_rows), ceil(cols, _STRIP)
    tile = box_rows * 128
    slot = tile * size // 2 + (tile if size == 4 and update else 0) \
        + box_rows // 64 * 8 * tiles * 128
    sums = down * 8 * tiles * (_STRIP + 4) * 4 if gradient else 0
    if gradient:
        splits = _splits(target, strips, rounds, 1)
    else:
        share = ceil(rounds, min(rounds, max(target.multiprocessors // strips, 1)))
        splits = ceil(rounds, share)
    return _launch(target, tiles, (v,), _STRIP, splits, rounds, slot, sums,
                   extra=1024 * tiles if update else 0)


def _gemm_extents(op: Op, plan: Plan) -> Launch:
    m, n, k = (int(op.attributes[name]) for name in ("m", "n", "k"))
    if op.attributes["layout"] == "nt":
        return choose_nt(plan.target, m, n, k)
    return choose_backward(plan.target, m, k, n, 2, gradient=True, update=False)


def _is_stochastic(op: Op, plan: Plan) -> tuple[bool, bool]:
    """Whether the weights are rounded stochastically, and whether draws do not align with rows."""
    w = plan[op.operands["w"]]
    stochastic = bool(op.attributes["stochastic"]) and w.dtype == "bfloat16"
    return stochastic, stochastic and w.shape[1] % 8 != 0


def _of_weights(op: Op, plan: Plan) -> Launch:
    w = plan[op.operands["w"]]
    rows, cols = w.shape
    return choose_backward(plan.target, plan[op.operands["dz"]].shape[0], rows, cols,
                           itemsize(w.dtype), gradient="dx" in op.operands, update=True,
                           ragged=_is_stochastic(op, plan)[1])


def _geometry(s: Scalars) -> Geometry:
    long_side = s["cols"] if "cols" in s else s["n"]
    return ((int(s["SPLITS"]), ceil(long_side, int(s["WIDTH"])), 1), (32 * (_WARPS + 1), 1, 1))


def _shared(s: Scalars) -> int:
    return int(s["SHARED"])


def _cluster(s: Scalars) -> int:
    return int(s["SPLITS"])


def _boxes(batch: tuple[str, ...], weights: tuple[str, ...]) -> Callable[[Scalars], dict[str, int]]:
    """Boxes of operands of the batch and of weights, from the kernel's template parameters."""

    def boxes(s: Scalars) -> dict[str, int]:
        rows = 16 * int(s["WM"] if "WM" in s else s["V"])
        return {**dict.fromkeys(batch, 8 * int(s["TILES"])), **dict.fromkeys(weights, rows)}

    return boxes


def _nt_template(op: Op, plan: Plan) -> list[str]:
    return [*types(op, plan, "a", "c"), functor(op.attributes["activation"]),
            *_gemm_extents(op, plan).template()]


def _nn_template(op: Op, plan: Plan) -> list[str]:
    return [*types(op, plan, "a"), functor(op.attributes["slope"]),
            *_gemm_extents(op, plan).template()]


def _weights_template(op: Op, plan: Plan) -> list[str]:
    slope = [functor(op.attributes["slope"])] if "dx" in op.operands else []
    flags = (*_is_stochastic(op, plan), op.attributes["decay"] != 0)
    stochastic, ragged, decay = map(flag, flags)
    return [*types(op, plan, "dz", "w"), *slope, stochastic, decay, ragged,
            *_of_weights(op, plan).template()]


def _gemm_sizes(op: Op, plan: Plan) -> Scalars:
    return _gemm_extents(op, plan).scalars()


def _weights_sizes(op: Op, plan: Plan) -> Scalars:
    rows, cols = plan[op.operands["w"]].shape
    return {**_of_weights(op, plan).scalars(), "batch": plan[op.operands["dz"]].shape[0],
            "rows": rows, "cols": cols}


# -- the op, and where it takes others' place ------------------------------------------------------


@define("layer_backward",
        reads=("dz", "x", "w", "bias", "copy", "rates", "cursor", "clock"),
        writes=("w", "bias", "copy", "dx"),
        optional=("bias", "copy", "rates", "cursor", "clock"))
def layer_backward(t: SimpleNamespace, a: Attributes) -> None:
    """dx = (dz w) * slope(x), x being the layer's input, and weight_update, with w read once.

    The gradient is that of the weights before the update: of their copy, where there is one."""
    dx = t.dz @ (t.copy if hasattr(t, "copy") else t.w)
    t.dx[...] = dx * activation(a["slope"]).slope(t.x) if a["slope"] else dx
    OPS["weight_update"].reference(t, a)


def _rewrite(plan: Plan) -> Plan | str:
    """`plan` with layer_backward in place of each streamed layer's input gradient and plain SGD."""
    streamed = plan.find(kind="matmul", impl="skinny")
    if not streamed:
        return "no product streams its weights"
    both: dict[int, Op] = {}
    gone: set[int] = set()
    for gemm in streamed:
        update = _update_of(plan, gemm)
        if update is None:
            continue
        gone.add(id(update))
        both[id(gemm)] = Op("layer_backward", update.name,
                            {**update.operands, "dx": gemm.operands["c"]},
                            {**update.attributes, "slope": gemm.attributes["slope"]},
                            "skinny")
    if not both:
        return "no layer's input gradient and plain SGD stream its weights without a loss scale"
    return replace(plan, ops=tuple(both.get(id(op), op) for op in plan.ops
                                   if id(op) not in gone)).without_unused()


def _update_of(plan: Plan, gemm: Op) -> Op | None:
    """The update that an input gradient can be one kernel with; None where there is none.

    Updates with a loss scale stay where they are: whether a gradient of the step has overflowed, so
    that no weight may change, is known when the first layer has its own. Done beside an input
    gradient, an update would come ahead of the gradients of all layers below, and of the very one
    that it is done beside.
    """
    slope = gemm.attributes["slope"]
    for update in plan.consumers(gemm.operands["a"], "weight_update"):
        if update.impl == "skinny" and gemm.attributes["layout"] == "nn" \
                and gemm.operands["b"] == update.operands.get("copy", update.operands["w"]) \
                and gemm.operands["a"] == update.operands["dz"] \
                and "loss_scale" not in update.operands \
                and (not slope or gemm.operands["saved"] == update.operands["x"]):
            return update
    return None


# -- launches --------------------------------------------------------------------------------------


_SHAPES = {
    "nt": {"a": ("m", "k"), "b": ("n", "k"), "bias": ("n",), "c": ("m", "n"), "overflow": ("1",)},
    "nn": {"a": ("m", "k"), "b": ("k", "n"), "saved": ("m", "n"), "c": ("m", "n"),
           "overflow": ("1",)},
}
_WEIGHTS = {"dz": ("batch", "rows"), "x": ("batch", "cols"), "w": ("rows", "cols"),
            "bias": ("rows",), "copy": ("rows", "cols"), **CONTEXT}
_WEIGHTS_BOXES = _boxes(("dz", "x"), ("w", "copy"))

FAMILY = Family("skinny", "layers of a batch of up to 64, whose weights stream from memory",
                ("bulk copies", "clusters"), Fusion(
    "layers", "input gradient and update of a layer whose weights stream from memory", _rewrite))

FAMILY.register("matmul", "skinny", KernelImpl(
    "gemm/skinny.cu", "skinny_nt", _nt_template, _gemm_sizes, _geometry, _SHAPES["nt"], _shared,
    _cluster, boxes=_boxes(("a",), ("b",))), "nt")
FAMILY.register("matmul", "skinny", KernelImpl(
    "gemm/skinny.cu", "skinny_nn", _nn_template, _gemm_sizes, _geometry, _SHAPES["nn"], _shared,
    _cluster, boxes=_boxes(("a",), ("b",))), "nn")
FAMILY.register("weight_update", "skinny", KernelImpl(
    "gemm/skinny.cu", "skinny_update", _weights_template, _weights_sizes, _geometry, _WEIGHTS,
    _shared,
    boxes=_WEIGHTS_BOXES))
FAMILY.register("layer_backward", "skinny", KernelImpl(
    "gemm/skinny.cu", "skinny_backward", _weights_template, _weights_sizes, _geometry,
    {**_WEIGHTS, "dx": ("batch", "cols")}, _shared, _cluster, boxes=_WEIGHTS_BOXES))
