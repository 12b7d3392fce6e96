"""`nccl`: data parallel. Every rank drives one GPU on its part of each batch, and gradients are
summed over all of them inside the step.

A reduction is an op like any other: it stands behind the last gradient of its bucket in the
backward pass, and the updates behind it by what they read. Kernels that would take an update into
the gradient's product step aside, for the gradient has to leave in between.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from rawnn.errors import ConfigError
from rawnn.opts.precision import steps_a_parameter
from rawnn.opts.registry import Machine, Parameter, Rewritten, Toggle, register
from rawnn.run.policy import Policy
from rawnn.step.op import Op
from rawnn.step.ops.collectives import KIND, TURN, all_reduce
from rawnn.step.plan import Plan
from rawnn.step.tensor import Role, Tensor

BUCKET_MB = 25
"""Megabytes of gradients from which a bucket is full, as in PyTorch's DistributedDataParallel."""
FORM = "N|fp32|bf16"
"""One of these, or the first and another behind a colon."""


@dataclass(frozen=True)
class Buckets:
    """`nbytes` of gradients make a bucket; `dtype` is what they are reduced in, "" where the
    weights say it."""

    nbytes: int
    dtype: str


def parse(text: str) -> str:
    found = re.fullmatch(r"(?:([0-9]{1,6})(?::|$))?(fp32|bf16)?", text)
    if not text or not found or text.endswith(":") or (found[1] and int(found[1]) < 1):
        raise ConfigError(f"nccl={text}: give megabytes of a bucket, what gradients are reduced "
                          f"in (fp32 or bf16), or both, as in nccl=25:fp32")
    return text


def buckets(value: str | int | None) -> Buckets:
    """What the toggle's value says."""
    size, _, dtype = str(value or "").partition(":")
    if not size.isdigit():
        size, dtype = str(BUCKET_MB), size
    return Buckets(int(size) * 1_000_000, {"fp32": "float32", "bf16": "bfloat16"}.get(dtype, ""))


def apply(plan: Plan, policy: Policy, value: str | int | None) -> Rewritten:
    if plan.ranks == 1:
        return plan, policy
    wanted = buckets(value)
    gradients = _gradients(plan, wanted)
    if not gradients:
        return plan, policy
    plan = plan.with_tensors(TURN, *gradients.values())
    ops: list[Op] = []
    waiting: list[str] = []
    left = dict.fromkeys(gradients)
    overflow = _last_overflow(plan)
    for op in plan.ops:
        ops.append(op)
        for name in (name for name, _ in op.writes if name in left):
            del left[name]
            waiting.append(name)
        if waiting and (not left or sum(plan[n].nbytes for n in waiting) >= wanted.nbytes):
            ops.append(all_reduce(f"{waiting[-1]}.all_reduce", {
                f"g{i}": name for i, name in enumerate(waiting)}, plan.weight))
            waiting = []
        if op is overflow:  # a step counts on every rank, or on none
            ops.append(all_reduce("overflow.all_reduce", {"overflow": "overflow"}, 1.0, "max"))
    return replace(plan, ops=tuple(ops)), policy


def _gradients(plan: Plan, wanted: Buckets) -> dict[str, Tensor]:
    """The gradients of parameters, as they are reduced: in place from run to run, with padding that
    is zero at first, and matrices in the type of the reduction."""
    found = {}
    copies = any(t.dtype == "bfloat16" and t.role in (Role.COPY, Role.PARAMETER)
                 for t in plan.tensors.values())
    if wanted.dtype == "bfloat16" and not copies and any(map(steps_a_parameter, plan.ops)):
        raise ConfigError("nccl=bf16 reduces what products write, and these write float32: add "
                          "bf16 or sr, or take nccl=fp32")
    dtype = wanted.dtype or ("bfloat16" if copies else "float32")
    for op in filter(steps_a_parameter, plan.ops):
        t = plan[op.operands["dw"]]
        found[t.name] = replace(t, role=Role.REDUCED,
                                dtype=dtype if len(t.shape) == 2 else t.dtype)
    return found


def _last_overflow(plan: Plan) -> Op | None:
    """The last op ahead of the updates that may find an overflow."""
    updates = [op for op in plan.ops if steps_a_parameter(op)]
    return plan.producer("overflow", updates[0]) if "overflow" in plan.tensors else None


def reduces(plan: Plan) -> bool:
    """Whether ranks wait for each other in the plan."""
    return bool(plan.find(kind=KIND))


def needs(machine: Machine) -> str | None:
    if machine.has_package("nccl.bindings"):
        return None
    return "needs nccl4py and the NCCL wheel: pip install 'rawnn[nccl12]'"


register(Toggle(
    "nccl",
    claim="every rank trains on its part of each batch; gradients are summed over all GPUs inside "
          "the step, in buckets of N MB that overlap with the backward pass",
    source="Li et al., PyTorch Distributed, 2020, on buckets; NCCL through NVIDIA's nccl4py",
    group="scale", apply=apply, needs=needs, needs_text="nccl4py, NCCL", host=True,
    parameter=Parameter(FORM, parse, ""), conflicts=("persistent", "tune"),
))
