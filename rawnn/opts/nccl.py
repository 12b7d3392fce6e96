"""`nccl`: data parallelism. Every rank drives one GPU on its part of each batch, and gradients are
summed over all ranks inside the step.

A reduction is an op of the plan: it follows the last gradient of its bucket in the backward pass,
and updates depend on it through what they read. The gradient is sent before the update, so no
kernel fuses the update into the gradient's GEMM.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rawnn.common.errors import ConfigError
from rawnn.opts.precision import steps_a_parameter
from rawnn.opts.registry import Machine, Parameter, Rewritten, Toggle, register
from rawnn.opts.shards import Shards, in_halves, reduction
from rawnn.plan.op import AFTER, Op
from rawnn.plan.ops.collectives import ORDERING_TOKEN, all_reduce
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy
from rawnn.plan.tensor import Role, Tensor

BUCKET_MB = 25.0
"""Megabytes of gradients that fill a bucket, as in PyTorch's DistributedDataParallel."""
SMALL_MB = 1.0
"""Gradients of fewer megabytes join the bucket of the first layer, which is sent as soon as it has
them: the next step needs the first layer first."""
SYNTAX = "N|fp32|bf16|sharded|whole|backward"
"""One of these, or several separated by colons."""
TYPES = {"fp32": "float32", "bf16": "bfloat16"}
SHARES = {"sharded": True, "whole": False}


@dataclass(frozen=True)
class Buckets:
    """How gradients are reduced.

    nbytes: bytes of gradients in a bucket.
    dtype: the dtype of the reduction; "" takes that of the weights.
    sharded: whether each rank updates its rows of each matrix, or all of it; None: chosen by the
        plan.
    backward: whether reductions follow the order of the backward pass, also if gradients exceed
        one bucket.
    """

    nbytes: int
    dtype: str
    sharded: bool | None = None
    backward: bool = False


def parse(text: str) -> str:
    words = text.split(":")
    kinds = ["share" if w in SHARES else w if w == "backward" else "type" if w in TYPES else "size"
             if re.fullmatch(r"[1-9][0-9]{0,5}", w) else "" for w in words]
    if "" in kinds or len(set(kinds)) < len(kinds):
        raise ConfigError(f"nccl={text}: give megabytes of a bucket, what gradients are reduced "
                          f"in (fp32 or bf16), sharded or whole, backward, or several of them, as "
                          f"in nccl=25:fp32")
    return text


def buckets(value: str | int | None) -> Buckets:
    """Parse the toggle's value."""
    words = str(value or "").split(":")
    size = next((float(word) for word in words if word.isdigit()), BUCKET_MB)
    dtype = next((TYPES[word] for word in words if word in TYPES), "")
    sharded = next((SHARES[word] for word in words if word in SHARES), None)
    return Buckets(int(size * 1_000_000), dtype, sharded, "backward" in words)


def apply(plan: Plan, policy: Policy, value: str | int | None) -> Rewritten:
    if plan.world_size == 1:
        return plan, policy
    wanted = buckets(value)
    gradients = _gradients(plan, wanted)
    if not gradients:
        return plan, policy
    plan = plan.with_tensors(ORDERING_TOKEN, *gradients.values())
    # On two H200s this order saves 4 % of a step of wide4096 (74 MB of gradients). It costs as much
    # in wide1024 and mlp4 (6 and 5 MB), for which one reduction is better.
    is_ordered = not wanted.backward and sum(t.nbytes for t in gradients.values()) > wanted.nbytes
    shards = None if wanted.sharded is False else \
        Shards(plan, policy, SMALL_MB * 1_000_000, is_ordered)
    if wanted.sharded is None and shards is not None and not (
            is_ordered and shards.uses_copies and "overflow" not in plan.tensors):
        shards = None
    if shards and is_ordered and plan.world_size > 2 and (last := shards.last_in_halves()):
        plan = in_halves(plan, last)
        gradients = _gradients(plan, wanted)
        plan = plan.with_tensors(*gradients.values())
        shards = Shards(plan, policy, SMALL_MB * 1_000_000, is_ordered)
    order = _large_gradient_last if shards else _ordered_by_need
    plan, ahead = order(plan, gradients) if is_ordered else (plan, set[str]())
    ops: list[Op] = []
    first: list[str] = []
    waiting: list[str] = []
    left = dict.fromkeys(gradients)
    overflow = _last_overflow(plan)

    def reduced(names: list[str]) -> None:
        ops.extend(shards.reductions(names) if shards else [reduction(plan, names)])
        names.clear()

    for op in plan.ops:
        ops.append(op)
        for name in (name for name, _ in op.writes if name in left):
            del left[name]
            (first if name in ahead else waiting).append(name)
        if first and len(first) == len(ahead):
            reduced(first)
        if waiting and (not left or sum(plan[n].nbytes for n in waiting) >= wanted.nbytes):
            reduced(waiting)
        if op is overflow:  # a step counts on every rank, or on none
            ops.append(all_reduce("overflow.all_reduce", {"overflow": "overflow"}, 1.0, "max"))
    plan = replace(plan, ops=tuple(ops))
    return shards.updated(plan, bool(ahead)) if shards else plan, policy


def _ordered_by_need(plan: Plan, gradients: Mapping[str, Tensor]) -> tuple[Plan, set[str]]:
    """Move the gradients of parameters after the rest of the backward pass, the first layer's
    first; also returns which gradients come first. Reductions then overlap with the gradients of
    the layers above and with the next step's forward pass, which needs the last layer's weights
    last (Oh et al., Out-of-Order BackProp, 2022). The plan is unchanged if a gradient cannot be
    moved, or if no update may begin before all gradients are known."""
    updates = [op for op in plan.ops if steps_a_parameter(op)]
    layer = {op.operands["dw"]: plan[op.operands["w"]].layer for op in updates}
    moved = [op for op in plan.ops if op.writes and all(n in gradients for n, _ in op.writes)]
    rest = [op for op in plan.ops if not any(op is each for each in moved)]
    behind = next(i for i, op in enumerate(rest) if steps_a_parameter(op))
    places = {id(op): i for i, op in enumerate(plan.ops)}
    overwritten = any(places[id(other)] > places[id(op)] and not
                      {n for n, _ in op.reads}.isdisjoint(n for n, _ in other.writes)
                      for op in moved for other in rest[:behind])
    if "overflow" in plan.tensors or overwritten or \
            {n for op in moved for n, _ in op.writes} != gradients.keys():
        return plan, set()
    large = {n for n in gradients if plan[n].nbytes >= SMALL_MB * 1_000_000}
    late = {n for n in large if layer[n] > min(layer.values())}
    moved.sort(key=lambda op: (op.writes[0][0] in late, layer[op.writes[0][0]]))
    last = ""
    for i, op in enumerate(moved):
        if op.writes[0][0] in large:  # one at a time, or one takes the place of those ahead
            order = {AFTER: last} if last else {}
            moved[i], last = replace(op, attributes={**op.attributes, **order}), op.name
    return replace(plan, ops=(*rest[:behind], *moved, *rest[behind:])), gradients.keys() - late


def _large_gradient_last(plan: Plan, gradients: Mapping[str, Tensor]) -> tuple[Plan, set[str]]:
    """The order of gradients if copy engines send them, without multiprocessors. The gradient of
    the last large layer moves after the rest of the backward pass: the first layer's is sent while
    it is computed, and it is sent during the next step's forward pass. All others stay where the
    backward pass computes them and overlap with the rest of it."""
    updates = [op for op in plan.ops if steps_a_parameter(op)]
    layer = {op.operands["dw"]: plan[op.operands["w"]].layer for op in updates}
    large = {n for n in gradients if plan[n].nbytes >= SMALL_MB * 1_000_000}
    ahead = {n for n in gradients if n not in large or layer[n] == min(layer.values())}
    last = {n for n in large - ahead if layer[n] == max(layer[n] for n in large - ahead)}
    moved = [op for op in plan.ops if op.writes and all(n in last for n, _ in op.writes)]
    if not moved or len(moved) != len(last) or "overflow" in plan.tensors:
        return plan, set()
    begin, end = plan.ops.index(moved[0]), plan.ops.index(updates[0])
    between = [op for op in plan.ops[begin:end] if not any(op is each for each in moved)]
    if not {n for op in moved for n, _ in op.reads}.isdisjoint(
            n for op in between for n, _ in op.writes):
        return plan, set()
    ops = [*plan.ops[:begin], *between, *moved]
    order: dict[str, str] = {}
    for i, op in enumerate(ops):  # side by side both would end late
        if op.kind == "matmul" and plan[op.operands["c"]].nbytes >= SMALL_MB * 1_000_000:
            ops[i] = replace(op, attributes={**op.attributes, **order})
            order = {AFTER: op.name} if op.operands["c"] in gradients else {}
    i = next(i for i, op in enumerate(ops) if op.kind == "matmul")
    ops[i] = replace(ops[i], attributes={**ops[i].attributes, AFTER: moved[-1].name})
    return replace(plan, ops=(*ops, *plan.ops[end:])), ahead


def _gradients(plan: Plan, wanted: Buckets) -> dict[str, Tensor]:
    """The gradients of parameters as they are reduced: at fixed addresses, with padding that is
    zero, and matrices in the dtype of the reduction."""
    found = {}
    copies = any(t.dtype == "bfloat16" and t.role in (Role.COPY, Role.PARAMETER)
                 for t in plan.tensors.values())
    if wanted.dtype == "bfloat16" and not copies and any(map(steps_a_parameter, plan.ops)):
        raise ConfigError("nccl=bf16 reduces what GEMMs write, and these write float32: add "
                          "bf16 or sr, or use nccl=fp32")
    dtype = wanted.dtype or ("bfloat16" if copies else "float32")
    for op in filter(steps_a_parameter, plan.ops):
        t = plan[op.operands["dw"]]
        found[t.name] = replace(t, role=Role.REDUCED,
                                dtype=dtype if len(t.shape) == 2 else t.dtype)
    return found


def _last_overflow(plan: Plan) -> Op | None:
    """The last op before the updates that may detect an overflow."""
    updates = [op for op in plan.ops if steps_a_parameter(op)]
    return plan.producer("overflow", updates[0]) if "overflow" in plan.tensors else None


def reduces(plan: Plan) -> bool:
    """Whether the plan has ops in which ranks wait for each other."""
    return any(op.impl == "nccl" for op in plan.ops)


def needs(machine: Machine) -> str | None:
    if machine.has_package("nccl.bindings"):
        return None
    return ("needs nccl4py and the NCCL wheel: pip install 'rawnn[nccl12]' "
            "(or 'rawnn[nccl13]' for CUDA 13)")


register(Toggle(
    "nccl",
    claim="every rank trains on its part of each batch; gradients are summed over all GPUs inside "
          "the step, in buckets of N MB that overlap with the backward pass and the next forward "
          "pass; sharded, each rank updates its rows of each matrix",
    source="Li et al., PyTorch Distributed, 2020; Oh et al., Out-of-Order BackProp, 2022; "
           "Rajbhandari et al., ZeRO, 2020; NCCL through NVIDIA's nccl4py",
    group="scale", apply=apply, needs=needs, needs_text="nccl4py, NCCL", host=True,
    parameter=Parameter(SYNTAX, parse, ""), conflicts=("persistent", "tune"),
))
