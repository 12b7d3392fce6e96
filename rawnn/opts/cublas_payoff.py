"""Which GEMMs cuBLASLt is expected to compute faster than the kernels of `mma`.

Both are predicted in microseconds. A GEMM of `mma` includes the slope of an activation, or the
update of the weights; after one of cuBLASLt they are kernels of their own, which are added to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rawnn.common.target import Target
from rawnn.model.layers import Network
from rawnn.model.optimizers import UPDATE_RULES
from rawnn.opts.precision import steps_a_parameter
from rawnn.opts.registry import TOGGLES, Machine
from rawnn.opts.user_kernel_toggles import toggle
from rawnn.plan.build import training_step
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy
from rawnn.plan.recipe import DataSpec, Recipe
from rawnn.ptx.gemm.mma import PREDICTED, predicted
from rawnn.ptx.gemm.tile_cost import CYCLES_PER_US
from rawnn.ptx.gemm.tiles import GemmShape, gemm_shape
from rawnn.ptx.kernel_registry import ceil

GEMM_BYTES_PER_US = 3.3e6
"""Bytes that a GEMM at most reads and writes in a microsecond."""
SEPARATE_BYTES_PER_US, BIAS_BYTES_PER_US = {4: 3.3e6, 2: 2.0e6}, 2.0e6
"""Bytes that a separate kernel in a step moves in a microsecond: by bytes of an element of the
GEMM's operands, as GEMMs of four bytes leave more of the memory's time to what runs beside them;
and a bias gradient."""
SEPARATE_US = 3.0
"""Microseconds by which a separate kernel delays a step besides its bytes."""
UPDATE_FACTOR = 0.5
"""The part of a separate update's time by which a step is longer: the rest overlaps with the
backward pass."""
OWN_16_BIT, OWN_16_BIT_LONG, LONG_SUM = 0.75, 0.8, 4096
"""The parts of the time predicted by the model of `mma` that its kernels take for a large GEMM of
16-bit operands, and for a weight gradient that sums LONG_SUM rows or more."""
LATE_US = 1.5
"""Microseconds by which a GEMM of cuBLASLt is late: it does not start before its predecessor ends
(`pdl`)."""
MULTIPLIES_PER_CYCLE = {(4, "nt"): 900.0, (4, "nn"): 820.0, (4, "tn"): 485.0,
                        (2, "nt"): 2050.0, (2, "nn"): 2050.0, (2, "tn"): 1900.0}
"""Multiplications a cycle of a multiprocessor in cuBLASLt's largest tiles, by bytes of an operand's
element and layout."""
CUBLAS_TILES = ((128, 256, 1.0), (256, 128, 1.0), (128, 128, 0.85), (64, 128, 0.6))
"""Rows and columns of tiles, and the fraction of that rate that they reach."""
WAVE_CYCLES = 6100.0
"""Cycles of a wave of tiles besides its multiplications."""
SLICES, SLICE_CYCLES, MIN_SLICE = (1, 2, 4), {4: 1800.0, 2: 0.0}, 256
"""Numbers of slices into which cuBLASLt cuts the inner dimension; cycles that each slice adds, by
bytes of an operand's element; and its least length."""
MIN_EXTENT = 128
"""Least extent of a GEMM that the model is for."""
ROW_BYTES = 16
"""Bytes of which the lengths of the operands' rows have to be multiples. With others cuBLASLt takes
slower kernels, even where rows are padded (results/trials/cublas.toml)."""
MARGIN = 0.92
"""A GEMM is cuBLASLt's if less than this part of `mma`'s time is expected of it there."""
LOAD_US = 0.9e6
"""Microseconds to load cuBLASLt and to choose its algorithms: 0.87 s on an H200 if the system has
none of its files in memory, else about 0.2 s. It is not known which of the two a run will meet; by
the larger one, none ends later than without the library."""


@dataclass(frozen=True)
class Expected:
    """Microseconds that are expected of a GEMM, by `mma` and by cuBLASLt, with what follows it."""

    op: Op
    own: float
    cublas: float

    @property
    def is_faster(self) -> bool:
        """Whether cuBLASLt is expected to be faster."""
        return self.cublas < MARGIN * self.own


def evaluate_cublas(network: Network, recipe: Recipe, data_spec: DataSpec, precision: str,
                    machine: Machine, user_kernels: Sequence[str] = (),
                    steps: int | None = None) -> tuple[bool, str]:
    """Whether `best` takes cuBLASLt for some GEMMs of a step in which `mma` computes the others,
    and a sentence that says why ("" if it is faster for none). `steps` are those of the run, if
    known: they have to save the time of loading the library."""
    if not _has_candidates(network, recipe, machine.target):
        return False, ""
    name = precision.partition("=")[0]
    plan = replace(training_step(network, recipe, data_spec), target=machine.target)
    policy = Policy()
    for word in ("preload", "arena", "nosync", *(TOGGLES[name].implies if name else ()), precision,
                 "nccl" if recipe.world_size > 1 else "", *user_kernels, "mma"):
        if word:
            name, _, value = word.partition("=")
            plan, policy = toggle(name).apply(plan, policy, toggle(name).parse(value or None))
    faster = [each for each in expected_times(plan) if each.is_faster]
    if not faster:
        return False, ""
    own, cublas = (sum(us) for us in zip(*((f.own, f.cublas) for f in faster), strict=True))
    sentence = f"{', '.join(each.op.name for each in faster)}: {cublas:.0f} us are expected of " \
               f"{'them' if len(faster) > 1 else 'it'}, {own:.0f} by mma"
    reason = TOGGLES["cublas"].needs(machine)
    if reason is None and not machine.has_package("cublasLt"):
        reason = "needs the cuBLAS wheel: pip install 'rawnn[cu12]' (or 'rawnn[cu13]' for CUDA 13)"
    if reason is not None:
        return False, f"best goes without cublas, which {reason}; it would take it for {sentence}"
    if steps is not None and steps * (own - cublas) < LOAD_US:
        return False, f"best goes without cublas: {steps} steps are too few to earn its loading, " \
                      f"about {LOAD_US / 1e6:.1g} s; it would take it for {sentence}"
    return True, f"best takes cublas for {sentence}"


def _has_candidates(network: Network, recipe: Recipe, target: Target) -> bool:
    """Whether a GEMM of a step has the extents that the model is for, on a GPU that it is for: the
    rows of a batch and the widths of two boundaries. Where none has, no plan need be built."""
    rows, widths = recipe.share(recipe.batch).rows, network.layers
    return target.has("wgmma") and any(min(rows, *pair) >= MIN_EXTENT
                                       for pair in itertools.pairwise(widths))


def expected_times(plan: Plan) -> list[Expected]:
    """The GEMMs by tensor cores in a plan that `mma` was applied to. None on a GPU for which the
    models were not fitted, and none in float32, which cuBLASLt does not compute by tensor cores."""
    if not plan.target.has("wgmma"):
        return []
    return [Expected(op, _own_us(plan, op, p), _cublas_us(plan, op, p))
            for op in plan.find(kind="matmul") if op.impl in PREDICTED
            for p in [gemm_shape(op, plan)]
            if p.times == 1 and (p.size, p.layout) in MULTIPLIES_PER_CYCLE
            and min(p.m, p.n, p.k) >= MIN_EXTENT and op.attributes["compute"] != "float16"
            and all(extent * p.size % ROW_BYTES == 0 for extent in _row_lengths(p))]


def _row_lengths(p: GemmShape) -> tuple[int, int]:
    """Elements of a row of each operand, as it lies in memory."""
    return {"nt": (p.k, p.k), "nn": (p.k, p.n), "tn": (p.m, p.n)}[p.layout]


def _own_us(plan: Plan, op: Op, p: GemmShape) -> float:
    is_long = p.layout == "tn" and p.k >= LONG_SUM
    factor = 1.0 if p.size != 2 else OWN_16_BIT_LONG if is_long else OWN_16_BIT
    return max(factor * predicted(op.impl, p, plan.target) / CYCLES_PER_US,
               _nbytes(plan, op, _updates(plan, op)) / GEMM_BYTES_PER_US)


def _cublas_us(plan: Plan, op: Op, p: GemmShape) -> float:
    in_place = [each for each in _updates(plan, op) if updates_in_place(plan, each)]
    separate = sum(SEPARATE_US + _nbytes(plan, each) / (
        BIAS_BYTES_PER_US if each.kind == "bias_grad" else SEPARATE_BYTES_PER_US[p.size])
        for each in _separate(plan, op))
    return LATE_US + max(cublas_cycles(p, plan.target) / CYCLES_PER_US,
                         _nbytes(plan, op, in_place) / GEMM_BYTES_PER_US) \
        + (UPDATE_FACTOR * separate if p.layout == "tn" else separate)


def cublas_cycles(p: GemmShape, target: Target) -> float:
    """Predicted cycles of a GEMM by cuBLASLt: waves of tiles, the last of which takes as long as
    the others."""
    def cycles(rows: int, columns: int, fraction: float, slices: int) -> float:
        waves = ceil(ceil(p.m, rows) * ceil(p.n, columns) * slices, target.multiprocessors)
        rate = fraction * MULTIPLIES_PER_CYCLE[p.size, p.layout]
        return waves * (WAVE_CYCLES + rows * columns * ceil(p.k, slices) / rate) \
            + (slices * SLICE_CYCLES[p.size] if slices > 1 else 0.0)

    return min(cycles(*tile, slices) for tile in CUBLAS_TILES for slices in SLICES
               if slices == 1 or p.k >= slices * MIN_SLICE)


def _nbytes(plan: Plan, op: Op, updates: Sequence[Op] = ()) -> int:
    """Bytes that an op reads and writes, with the updates in its kernel, which does not store the
    gradient then."""
    ops = (op, *updates)
    names = (*{name for each in ops for name, _ in each.reads},
             *{name for each in ops for name, _ in each.writes})
    return sum(plan[name].nbytes for name in names if not updates or name != op.operands["c"])


def _separate(plan: Plan, op: Op) -> list[Op]:
    """The ops that stay kernels of their own after a GEMM of cuBLASLt, and are part of one of
    `mma`."""
    layout, c = op.attributes["layout"], op.operands["c"]
    if layout == "nt":
        biases = [each for each in plan.consumers(c, "bias_add") if not adds_bias(plan, op, each)]
        return biases + [each for each in plan.consumers(c, "activate")
                         if biases or each.attributes["activation"] != "relu"]
    if layout == "nn":
        return plan.consumers(c, "activate_backward")
    return [each for each in _updates(plan, op) if not updates_in_place(plan, each)]


def _updates(plan: Plan, op: Op) -> list[Op]:
    """The updates of weights and biases that a weight gradient of `mma` includes: where nothing
    else reads the gradient, as a reduction over ranks does."""
    readers = plan.consumers(op.operands["c"])
    if len(readers) != 1 or not steps_a_parameter(readers[0]) \
            or readers[0].kind not in UPDATE_RULES or not UPDATE_RULES[readers[0].kind].is_fused:
        return []
    return readers + plan.consumers(op.operands["a"], "bias_grad")


def adds_bias(plan: Plan, gemm: Op, bias_add: Op) -> bool:
    """Whether cuBLASLt's GEMM can add the bias: one of the result's dtype."""
    return plan[gemm.operands["c"]].dtype == plan[bias_add.operands["bias"]].dtype


def updates_in_place(plan: Plan, update: Op) -> bool:
    """Whether cuBLASLt's GEMM of the weight gradient can do the update: plain SGD of float32
    weights without a copy."""
    return update.kind == "sgd" and set(update.operands) == {"w", "dw"} \
        and plan[update.operands["w"]].dtype == "float32"
