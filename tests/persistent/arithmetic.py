"""The arithmetic of a step on the chip, in NumPy: float32 products as three of tf32, in the order
in which warps, blocks and clusters add up, exponentials and inverses of losses as off as the GPU's
approximations may be, and everything else as float32 in NumPy.

Tensor cores are taken to add up what a step of 8 terms and its sum so far make, exactly, and then
to cut that off to float32, as they do to within a bit (Fasi et al., Numerical behavior of NVIDIA
tensor cores, 2021); with `nearest` they round it, as the CPU emulator does.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.persistent.choose import Choice
from rawnn.persistent.phases.gradient_all_reduce import SHARE
from rawnn.persistent.sharding import (
    ALL_GATHERED,
    COLUMN_PARALLEL,
    REPLICATED,
    ROW_PARALLEL,
    Sharding,
    ceil,
)
from rawnn.persistent.tiles import Tiling
from rawnn.plan.plan import Plan

Array = NDArray[Any]

STEP = 8
"""Terms that a tensor core adds up at once."""
HIDDEN = np.uint32(0xFFFFE000)
"""Of a float32's bits those that a tensor core takes of a tf32."""
EXP2, INVERSE = 2.0**-22, 2.0**-23
"""Relative errors that the PTX manual allows ex2.approx.ftz.f32 and rcp.approx.ftz.f32."""


def toward_zero(values: Array) -> Array:
    """float64 cut off to float32."""
    nearest = values.astype(np.float32)
    beyond = np.abs(nearest.astype(np.float64)) > np.abs(values)
    return np.where(beyond, np.nextafter(nearest, np.float32(0)), nearest).astype(np.float32)


def to_nearest(values: Array) -> Array:
    """float64 rounded to float32."""
    return values.astype(np.float32)


def split(values: Array) -> tuple[Array, Array]:
    """split_tf32 of device/convert.cuh, and of the low part what tensor cores take, in float64."""
    values = np.ascontiguousarray(values)
    bits = values.view(np.uint32)
    high = ((bits + np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1))) & HIDDEN).view(
        np.float32)
    low = ((values - high).view(np.uint32) & HIDDEN).view(np.float32)
    return high.astype(np.float64), low.astype(np.float64)


def product(a: Array, b: Array, tiles: int, parts: int = 1, nearest: bool = False) -> Array:
    """a [m, k] times b [k, n] in float32 as Gemm of persistent/gemm.cuh, a task of which has so
    many `tiles`, with the inner dimension in so many `parts`."""
    rounded = to_nearest if nearest else toward_zero
    chains = 3 if tiles == 1 else 2 if tiles <= 4 else 1
    steps = ceil(a.shape[1], STEP)
    each = ceil(steps, parts)
    (a_high, a_low), (b_high, b_low) = split(a), split(b)
    everything: Array | None = None
    for part in range(parts):
        of_part = range(part * each, min((part + 1) * each, steps))
        sums = np.zeros((chains, len(a), b.shape[1]), np.float32)
        pair = np.zeros_like(sums[0])
        for number, step in enumerate(of_part):
            k = slice(step * STEP, (step + 1) * STEP)
            left = len(of_part) - number // 2 * 2  # steps from this pair on
            for chain, x, y in ((1, a_low, b_high), (2, a_high, b_low)):
                small = sums[min(chain, chains - 1)] if chains > 1 else pair
                small[...] = rounded(small + x[:, k] @ y[k])
            # The last of several pairs joins the small products.
            joins = chains == 2 and left <= 2 and (left < len(of_part) or parts > 1)
            large = sums[1] if joins else pair
            large[...] = rounded(large + a_high[:, k] @ b_high[k])
            if not joins and (tiles == 1 or number % 2 == 1 or left == 1):
                sums[0] += pair
                pair[...] = 0
        total = sums[0]
        if chains == 2:
            total = total + sums[1]
        elif chains == 3:
            total = total + (sums[1] + sums[2])
        everything = total if everything is None else everything + total
    assert everything is not None
    return everything


def row_sums(b: Array, nearest: bool = False) -> Array:
    """The sums of b [k, n] over k, as products with ones."""
    rounded = to_nearest if nearest else toward_zero
    high, low = split(b)
    sums = np.zeros((2, b.shape[1]), np.float32)
    for first in range(0, len(b), STEP):
        k = slice(first, first + STEP)
        sums[0] += rounded(high[k].sum(axis=0))
        sums[1] = rounded(sums[1] + low[k].sum(axis=0))
    return sums[0] + sums[1]


class Approximations:
    """Exponentials and inverses as a GPU approximates them: errors are drawn evenly from all that
    the instructions may have."""

    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)

    def _off(self, exact: Array, most: float) -> Array:
        drawn = self.generator.uniform(-most, most, exact.shape)
        return (exact * (1 + drawn)).astype(np.float32)

    def exp_below_zero(self, x: Array) -> Array:
        """As in losses.cuh."""
        return self._off(np.exp2((x * np.float32(1.44269504)).astype(np.float64)), EXP2)

    def inverse(self, x: Array) -> Array:
        """approximate_inverse of device/convert.cuh."""
        return self._off(1 / x.astype(np.float64), INVERSE)

    def softmax(self, z: Array) -> Array:
        """Of [batch, outputs], as in persistent/loss.cuh."""
        powers = self.exp_below_zero(z - z.max(axis=1, keepdims=True))
        return powers * self.inverse(powers.sum(axis=1, keepdims=True))

    def sigmoid(self, z: Array) -> Array:
        """As in losses.cuh."""
        below = self.exp_below_zero(-np.abs(z))
        return np.where(z < 0, below, np.float32(1)) * self.inverse(1 + below)


def markable(values: Array, marked: Array) -> Array:
    """float32 of which those that are `marked` give up their last bit, as in
    persistent/flag_bits.cuh."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    odd = (bits | (bits & np.uint32(1)) << np.uint32(1)) & np.uint32(0xFFFFFFFE)
    return np.where(marked, odd, bits).view(np.float32)


@dataclass(frozen=True)
class Arithmetic:
    """How a chosen kernel computes the products and the loss of a plan's step; the errors of
    approximations are drawn by the seed."""

    chosen: Choice
    nearest: bool = False
    seed: int = 0

    @property
    def d(self) -> Sharding:
        return self.chosen.sharding

    def step(self, plan: Plan, arrays: dict[str, Array], offset: int) -> None:
        """The plan's step on `arrays`, by their names in the plan."""
        loss = Approximations(self.seed)
        for op in plan.ops:
            operands = SimpleNamespace(**{role: arrays[name] for role, name in op.operands.items()})
            if op.kind == "matmul":
                compute = {"nt": self.forward, "nn": self.backward, "tn": self.gradient}
                layer = int(op.operands["c"].lstrip("zdaw")) - (op.attributes["layout"] != "nn")
                operands.c[...] = compute[op.attributes["layout"]](layer, operands.a, operands.b)
            elif op.kind == "softmax":
                operands.p[...] = loss.softmax(operands.z)
            elif op.kind == "bce_backward":
                share = np.float32(1 / operands.z.size)
                operands.dz[...] = (loss.sigmoid(operands.z) - operands.t) * share
            elif op.kind == "bias_grad":
                layer = int(op.operands["dz"].lstrip("z_d")) - 1
                operands.db[...] = self._met([row_sums(operands.dz[rows], self.nearest)
                                              for rows in self.shares(len(operands.dz))], layer)
            elif "dw" in op.operands and self.chosen.layout.sync == SHARE:
                old = operands.w.copy()
                op.spec.reference(operands, {**op.attributes, "offset": offset, "stored": {}})
                layer = int(op.operands["dw"].lstrip("dwb")) - 1
                change = operands.w - old
                operands.w[...] = old + markable(change.T, self._marked(change.T, layer)).T
            else:
                stored = {role: plan[name].dtype for role, name in op.operands.items()}
                op.spec.reference(operands, {**op.attributes, "offset": offset, "stored": stored})
            if op.kind == "activate" \
                    and self.d.boundaries[int(op.operands["a"][1:])] == ALL_GATHERED:
                operands.a[...] = self.sent(operands.a.T).T
            last = f"z{self.d.problem.depth}"
            if op.kind == "bias_add" and self.d.boundaries[-1] == ALL_GATHERED \
                    and op.operands["z"] == last:
                operands.z[...] = self.sent(operands.z.T).T

    def sent(self, values: Array) -> Array:
        """[features, batch] as they come through the L2 cache: every fourth example of a block's is
        without its lowest bit."""
        if not self.d.via_l2:
            return values
        of_batch = np.arange(values.shape[1]) % self.d.group_batch
        return markable(values, of_batch % self.d.micro_batch % 4 == 3)

    def forward(self, layer: int, x: Array, w: Array) -> Array:
        """[batch, outputs]; layers count from 0."""
        tiles = self.chosen.layout.layers[layer].forward
        cut = self.d.shards[layer] if self.d.layer_kinds[layer] == ROW_PARALLEL else w.shape[1]
        return self._shared(w, x.T, tiles, cut, self.d.boundaries[layer + 1]).T

    def backward(self, layer: int, dz: Array, w: Array) -> Array:
        """[batch, inputs]."""
        tiles = self.chosen.layout.layers[layer].backward
        assert tiles is not None
        kind = self.d.layer_kinds[layer]
        cut = self.d.shards[layer + 1] if kind == COLUMN_PARALLEL else w.shape[0]
        return self._shared(w.T, dz.T, tiles, cut, self.d.boundaries[layer]).T

    def _shared(self, a: Array, b: Array, tiles: Tiling, cut: int, type_: str) -> Array:
        """Partial sums of blocks that have `cut` of the inner dimension each, in their order, for a
        boundary of a type; through L2 threads add up every n-th of them each, and then one thread
        what they have."""
        parts = [product(a[:, k : k + cut], b[k : k + cut], tiles.down * tiles.across,
                         tiles.split, self.nearest) for k in range(0, a.shape[1], cut)]
        if not self.d.via_l2 or cut >= a.shape[1]:
            return _added(parts)
        at_once = type_ == REPLICATED and self.d.is_one_shot(len(a))
        teams = self.d.teams(len(a) if at_once else ceil(len(a), self.d.tp_size))
        nothing = np.zeros_like(parts[0])
        came = [self.sent(part) for part in parts]
        sums = _added([_added([nothing, *came[team::teams]]) for team in range(teams)])
        return self.sent(sums) if type_ == REPLICATED and not at_once else sums

    def gradient(self, layer: int, dz: Array, x: Array) -> Array:
        """[outputs, inputs]: the parts of the clusters in their order."""
        tiles = self.chosen.layout.layers[layer].update
        return self._met([product(x[rows].T, dz[rows], tiles.down * tiles.across, 1, self.nearest)
                          for rows in self.shares(len(dz))], layer).T

    def _met(self, parts: list[Array], layer: int) -> Array:
        """The sum of the clusters' parts, as they publish them."""
        if self.d.dp_size > 1:
            parts = [markable(part, self._marked(part, layer)) for part in parts]
        return _added(parts)

    def _marked(self, values: Array, layer: int) -> Array:
        """Which of [inputs, outputs], or of biases, carry marks: by their places in a block."""
        kind, cut = self.d.layer_kinds[layer], self.d.shards
        outs = np.arange(values.shape[-1])
        outs = outs % cut[layer + 1] if kind == COLUMN_PARALLEL else outs
        if values.ndim == 1:
            return outs % 4 == 3
        ins = np.arange(len(values))[:, None]
        ins = ins % cut[layer] if kind == ROW_PARALLEL else ins
        return (ins % 16 >= 8) & (outs % 2 == 1)

    def shares(self, batch: int) -> list[slice]:
        """The examples of each cluster."""
        share = self.d.group_batch
        return [slice(i, min(i + share, batch)) for i in range(0, batch, share)]


def _added(parts: list[Array]) -> Array:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
