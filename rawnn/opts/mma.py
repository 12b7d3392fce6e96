"""`mma`: GEMMs by rawnn's own kernels on tensor cores."""

from __future__ import annotations

from dataclasses import replace

from rawnn.common.dtypes import itemsize
from rawnn.common.errors import ConfigError
from rawnn.common.target import features_of
from rawnn.opts.registry import (
    Machine,
    Parameter,
    Rewritten,
    Toggle,
    leaving_out,
    left_out,
    register,
)
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy
from rawnn.ptx.gemm.mma import scaled_is_faster, wgmma_is_faster
from rawnn.ptx.gemm.tiles import gemm_shape

VALUES = ("auto", "sync", "wgmma", "many")
KINDS = ("sync", "wgmma", "scaled", "skinny")
"""What can compute a GEMM: mma.sync, wgmma, wgmma of scaled float16 for float32, or the
small-batch kernels, which stream the weights."""

HOPPERS = ("wgmma", "clusters", "bulk copies")

SKINNY_BATCH = 64
MIN_SKINNY_WEIGHTS = 1 << 21
"""Weights from which the small-batch kernels, which stream them by Hopper's copy engine, compute a
GEMM of at most SKINNY_BATCH rows. A step at batch 32 on an H200, with them and by mma.sync alone:
58 and 67 us in wide2048 with `sr`, 67 and 92 us with masters, 95 and 283 us in wide4096 with
`sr`."""


def fits(plan: Plan, op: Op) -> bool:
    """Whether tensor cores take the operands of a GEMM: both of one 16-bit dtype, both of 8 bits,
    or both of float32, which `tf32` rounds and otherwise is split into the sum of two tf32."""
    types = {plan[op.operands[role]].dtype for role in ("a", "b")}
    if op.attributes["compute"] == "float16":
        return types == {"float16"}
    if types == {"float32"}:
        return True
    sizes = {itemsize(name) for name in types}
    return sizes == {1} or (sizes == {2} and len(types) == 1)


def _by_wgmma(plan: Plan, op: Op) -> bool:
    """Whether wgmma can compute it and is faster."""
    a = op.attributes
    size = itemsize(plan[op.operands["a"]].dtype)
    if a["compute"] == "float16" or not (size == 2 or (size == 1 and a["layout"] == "nt")):
        return False
    return wgmma_is_faster(gemm_shape(op, plan), plan.target)


def _by_wgmma_tf32(plan: Plan, op: Op) -> bool:
    """Whether wgmma can compute a GEMM of float32 and is faster."""
    return plan[op.operands["a"]].dtype == "float32" and \
        wgmma_is_faster(gemm_shape(op, plan), plan.target)


def _by_wgmma_scaled(plan: Plan, op: Op) -> bool:
    """Whether wgmma of scaled float16 computes a GEMM of float32 as exactly and is faster."""
    return scaled_is_faster(gemm_shape(op, plan), plan.target)


def is_skinny(plan: Plan, op: Op) -> bool:
    """Whether a GEMM of few rows is bound by reading its weights: then the kernels of skinny.cu
    compute it."""
    a = op.attributes
    types = {plan[op.operands[role]].dtype for role in ("a", "b")}
    return (a["layout"] in ("nt", "nn") and a["m"] <= SKINNY_BATCH
            and a["n"] * a["k"] >= MIN_SKINNY_WEIGHTS and len(types) == 1
            and types <= {"float16", "bfloat16"} and a["compute"] != "float16")


def apply(plan: Plan, policy: Policy, value: str | int | None) -> Rewritten:
    """`sync` excludes instructions that only Hopper has, also from fused GEMMs. `many` has tiles
    that take the least of one multiprocessor, for launches that the GEMMs of many networks fill. If
    a kind is left out (`-KIND`), the next of KINDS computes its GEMMs; without `sync`, the rest
    keeps its implementation."""
    if value == "sync":
        plan = replace(plan, target=plan.target.without(*HOPPERS))
    if value == "many":
        plan = replace(plan, target=replace(plan.target, multiprocessors=1, at_once={1: 1}))
    taken = set(KINDS) - left_out(value) - ({"skinny"} if value == "many" else set())
    if not plan.target.has(*HOPPERS):
        taken -= {"wgmma", "scaled", "skinny"}

    def gemm(op: Op) -> Op:
        if op.kind != "matmul" or not fits(plan, op):
            return op
        impl = "skinny" if "skinny" in taken and is_skinny(plan, op) else \
            "wgmma" if "wgmma" in taken and _by_wgmma(plan, op) else \
            "wgmma_scaled" if {"wgmma", "scaled"} <= taken and _by_wgmma_scaled(plan, op) else \
            "wgmma_tf32" if "wgmma" in taken and _by_wgmma_tf32(plan, op) else "mma"
        return op if impl == "mma" and "sync" not in taken else replace(op, impl=impl)

    return plan.map_ops(gemm), policy


_leaving_out = leaving_out("mma", "kinds of product", KINDS)


def parse(text: str) -> str:
    if text.startswith("-"):
        return _leaving_out(text)
    if text not in VALUES:
        raise ConfigError(f"mma={text}: give {', '.join(VALUES[:-1])} or {VALUES[-1]}, or kinds to "
                          f"leave out, as in mma=-skinny")
    return text


def resolve(value: str | int | None, machine: Machine) -> str | int | None:
    """What `auto` means on a machine. Raises ConfigError for wgmma on anything but Hopper."""
    hopper = features_of(machine.compute_capability) >= set(HOPPERS)
    if value == "wgmma" and machine.has_gpu and not hopper:
        have = ".".join(map(str, machine.compute_capability))
        raise ConfigError(f"mma=wgmma needs instructions that only compute capability 9.0 has; "
                          f"this GPU has {have}: use mma=sync, or mma alone")
    return ("wgmma" if hopper else "sync") if value == "auto" else value


def needs(machine: Machine) -> str | None:
    if machine.compute_capability >= (8, 0):
        return None
    have = ".".join(map(str, machine.compute_capability))
    return f"needs tensor cores with asynchronous copies, from compute capability 8.0 on; this " \
           f"GPU has {have}"


register(Toggle(
    "mma",
    claim="GEMMs by our own kernels on tensor cores, float32 as three of tf32 or float16; on "
          "Hopper large ones by wgmma, and 16-bit ones of small batches by kernels that stream the "
          "weights; many: in tiles for launches of many networks; -KIND leaves out one of "
          + ", ".join(KINDS),
    source="PTX ISA: mma.sync, wgmma.mma_async; NVIDIA CUTLASS",
    group="kernels", apply=apply, needs=needs, needs_text="compute capability 8.0",
    parameter=Parameter("auto|sync|wgmma|many|-KIND", parse, "auto"), resolve=resolve,
    conflicts=("cublas",),
))
