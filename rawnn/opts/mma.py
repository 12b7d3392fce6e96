"""`mma`: matrix products by our own kernels on tensor cores."""

from __future__ import annotations

from dataclasses import replace

from rawnn.dtypes import itemsize
from rawnn.errors import ConfigError
from rawnn.opts.registry import Comparison, Machine, Parameter, Rewritten, Toggle, register
from rawnn.policy import Policy
from rawnn.step.op import Op
from rawnn.step.plan import Plan

VALUES = ("auto", "sync", "wgmma")
HOPPER = (9, 0)

SKINNY_BATCH = 64
LEAST_STREAMED = 1 << 21
"""Weights from which on a product of at most SKINNY_BATCH rows is left to the kernels that stream
them by Hopper's copy engine. A step at batch 32 on an H200, with them and by mma.sync alone: 58 and
67 us in wide2048 with `sr`, 67 and 92 us with masters, 95 and 283 us in wide4096 with `sr`."""

LEAST_WGMMA = 1 << 29
"""Multiplications (m n k) from which a product is done by wgmma. H200: 256 x 1024 x 1024 takes
4.5 us by mma.sync and 4.9 us by wgmma, 1024 cubed 10.1 us and 7.8 us."""


def fits(plan: Plan, op: Op) -> bool:
    """Whether tensor cores take the operands of a product: both of one 16-bit type, both of 8 bits,
    or both of float32, rounded where `tf32` allows it, else each as the sum of two tf32."""
    types = {plan[op.operands[role]].dtype for role in ("a", "b")}
    if op.attributes["compute"] == "float16":
        return types == {"float16"}
    if types == {"float32"}:
        return True
    sizes = {itemsize(name) for name in types}
    return sizes == {1} or (sizes == {2} and len(types) == 1)


def _by_wgmma(plan: Plan, op: Op) -> bool:
    """Whether wgmma computes it, and faster."""
    a = op.attributes
    size = itemsize(plan[op.operands["a"]].dtype)
    if a["compute"] == "float16" or not (size == 2 or (size == 1 and a["layout"] == "nt")):
        return False
    return int(a["m"] * a["n"] * a["k"]) >= LEAST_WGMMA


def streams_weights(plan: Plan, op: Op) -> bool:
    """Whether a product of few rows is bound by reading its weights: then the kernels of skinny.cu
    compute it."""
    a = op.attributes
    types = {plan[op.operands[role]].dtype for role in ("a", "b")}
    return (a["layout"] in ("nt", "nn") and a["m"] <= SKINNY_BATCH
            and a["n"] * a["k"] >= LEAST_STREAMED and len(types) == 1
            and types <= {"float16", "bfloat16"} and a["compute"] != "float16")


def apply(plan: Plan, policy: Policy, value: str | int | None) -> Rewritten:
    """Products that `clusters` are marked with run where blocks of a cluster can share sums: what
    `fuse` may make of them."""
    def product(op: Op) -> Op:
        if op.kind != "matmul" or not fits(plan, op):
            return op
        if value != "wgmma":
            return replace(op, impl="mma")
        impl = "skinny" if streams_weights(plan, op) else \
            "wgmma" if _by_wgmma(plan, op) else "mma"
        return replace(op, impl=impl, attributes={**op.attributes, "clusters": True})

    return plan.map_ops(product), policy


def parse(text: str) -> str:
    if text not in VALUES:
        raise ConfigError(f"mma={text}: give {', '.join(VALUES[:-1])} or {VALUES[-1]}")
    return text


def settle(value: str | int | None, machine: Machine) -> str | int | None:
    """What `auto` means on a machine. Raises ConfigError for wgmma on anything but Hopper."""
    hopper = machine.compute_capability == HOPPER
    if value == "wgmma" and machine.gpu is None and not hopper:
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
    claim="products by our own kernels on tensor cores, float32 as three of tf32; on Hopper large "
          "ones of 16 bits by wgmma, and those of small batches by kernels that stream the weights",
    source="PTX ISA: mma.sync, wgmma.mma_async; NVIDIA CUTLASS",
    group="kernels", apply=apply, needs=needs, needs_text="compute capability 8.0",
    parameter=Parameter("auto|sync|wgmma", parse, "auto"), settle=settle, conflicts=("cublas",),
    comparisons=tuple(
        Comparison(workload, "preload,arena,nosync,graphs=200,bf16,fuse,streams,pdl",
                   ("tiled", "cublas", "mma=sync", "mma"))
        for workload in ("mlp4", "wide1024")),
))
