"""What a step costs by the limits of a GPU: op by op what is expected, and of all of it what no
program could do without.

Both are models. Bytes and operations follow from the plan, what a GPU does a second, and what a
launch and an exchange take, from `rawnn bench lower-bounds` (docs/floors.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from rawnn.bench.gpu_limits import Limits, stored_limits
from rawnn.engine.machine import Opened
from rawnn.engine.runners.prepared_run import PreparedRun
from rawnn.plan.merging import DEFERS
from rawnn.plan.op import Op
from rawnn.plan.op_flops import gemms_of, op_precision, operations
from rawnn.plan.ops.train_steps import KIND
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy
from rawnn.plan.tensor import Role
from rawnn.ptx.gemm.tiles import MAIN_LOOPS

OWN = "its own model"


# -- bytes -----------------------------------------------------------------------------------------


def touched(op: Op, plan: Plan) -> Iterator[tuple[str, int]]:
    """Each tensor that an op reads or writes, as often as it does, with its bytes; what a library
    keeps for itself is not known."""
    for name, _ in (*op.reads, *op.writes):
        if name != op.operands.get("workspace"):
            yield name, touched_bytes(plan, name)


def moved_by(op: Op, plan: Plan) -> int:
    """Bytes that an op reads and writes."""
    return sum(nbytes for _, nbytes in touched(op, plan))


def moved(plan: Plan) -> int:
    """Bytes that all ops of a plan read and write."""
    return sum(moved_by(op, plan) for op in plan.ops)


def deferred_bytes(plan: Plan) -> int:
    """Bytes of the parameters and state whose updates may be deferred: a step reads them, and need
    not store them (rawnn/ptx/gemm/deferred.py)."""
    names = {name for op in plan.ops if DEFERS in op.attributes for name, _ in op.writes}
    return sum(plan[name].nbytes for name in names
               if plan[name].role in (Role.PARAMETER, Role.STATE))


def least(plan: Plan) -> int:
    """Bytes that no order of the same work could do without: what each step brings anew, and what
    it changes, read, and written unless its update may be deferred."""
    names = {name for op in plan.ops for name, _ in (*op.reads, *op.writes)}
    data = sum(touched_bytes(plan, name) * plan.steps for name in names
               if plan[name].role.of_data)
    state_bytes = sum(plan[name].nbytes for name in names
               if plan[name].role in (Role.PARAMETER, Role.STATE))
    return data + 2 * state_bytes - deferred_bytes(plan)


def touched_bytes(plan: Plan, name: str) -> int:
    """Bytes of a tensor that one op touches: of the data set the rows of a batch, of metrics and
    of the order of examples as many elements as it works on."""
    tensor = plan[name]
    if tensor.role.of_data:
        return tensor.nbytes // max(tensor.shape[0], 1) * plan.batch
    if tensor.role is Role.METRIC:
        return tensor.nbytes // max(tensor.shape[0], 1)
    return min(tensor.nbytes, 4 * plan.batch) if name == "order" else tensor.nbytes


# -- op by op --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OpCost:
    """An op of a step: bytes that it reads and writes, operations, and the microseconds that each
    of its limits would take alone. `us` is what is expected of it, by what `bound` says takes most;
    both are empty where the GPU's limits are not known."""

    op: Op
    nbytes: int
    operations: int
    precision: str
    memory_us: float | None = None
    arithmetic_us: float | None = None
    launch_us: float | None = None
    us: float | None = None
    bound: str = ""


def op_costs(plan: Plan, policy: Policy, limits: Limits | None) -> list[OpCost]:
    """What each op of a one-step plan costs.

    An op is expected to take a launch and, behind it, its bytes or its operations, whichever takes
    longer. A whole-step kernel has a model of its own (rawnn/persistent/cost.py).
    """
    resident = limits is not None and _working_set(plan) <= limits.l2_bytes
    return [_op_cost(op, plan, policy, limits, resident) for op in plan.ops]


def total(costs: Sequence[OpCost]) -> float | None:
    """Microseconds of all ops, one behind the other; None where any is not known."""
    found = [cost.us for cost in costs]
    return None if any(us is None for us in found) else sum(us for us in found if us is not None)


def _op_cost(op: Op, plan: Plan, policy: Policy, limits: Limits | None,
             resident: bool) -> OpCost:
    plain = OpCost(op, moved_by(op, plan), operations(op, plan),
                   op_precision(op, plan) if gemms_of(op, plan) else "")
    if limits is None:
        return plain
    if op.kind == KIND:
        us = float(op.attributes["choice"].us) * int(op.attributes["span"])
        return replace(plain, us=us, bound=OWN)
    memory = _memory_us(op, plan, limits, resident)
    rate, word = _rate(op, plan, limits)
    arithmetic = plain.operations / rate if rate else None
    launch = limits.value(_launch(policy))
    if launch is None:
        launch = limits.value("node_whole")
    terms = {"memory": memory, word: arithmetic, "launch": launch}
    if memory is None or launch is None:
        return plain
    us = launch + max(memory, arithmetic or 0.0)
    bound = max(terms, key=lambda name: terms[name] or 0.0)
    return replace(plain, memory_us=memory, arithmetic_us=arithmetic, launch_us=launch, us=us,
                   bound=bound)


def _launch(policy: Policy) -> str:
    """The constant that a launch of a policy takes."""
    if not policy.graph:
        return "launch"
    return "node_whole_early" if policy.pdl else "node_whole"


def _memory_us(op: Op, plan: Plan, limits: Limits, resident: bool) -> float | None:
    """The time of an op's bytes: the data set's from device memory, or from the host, the others
    from the L2 cache where all that a step touches stays there."""
    near = limits.value("l2_read") if resident else limits.value("copy")
    far, host = limits.value("read"), limits.value("host_to_device")
    total = 0.0
    for name, nbytes in touched(op, plan):
        role = plan[name].role
        rate = host if role is Role.HOST else far if role.of_data else near
        if rate is None:
            return None
        total += nbytes / rate / 1e3
    return total


def _rate(op: Op, plan: Plan, limits: Limits) -> tuple[float | None, str]:
    """Operations a microsecond of what an op multiplies by, and which of the GPU's units it is:
    tensor cores multiply float32, too, by three products of tf32 or float16."""
    number = op_precision(op, plan)
    fma = limits.value("fma")
    scalar = op.impl in ("naive", "deferred") or not MAIN_LOOPS.get(op.impl, True) \
        or op.kind in ("linear_forward", "linear_update")
    if not gemms_of(op, plan) or scalar or (
            number == "float32" and not MAIN_LOOPS.get(op.impl, op.impl == "skinny")):
        return (fma * 1e6 if fma else None), "FMA"
    rate = _class_rate(number, limits, tensor=True)
    return (rate * 1e6 if rate else None), "tensor"


def _class_rate(number: str, limits: Limits, tensor: bool = False) -> float | None:
    """TFLOP/s that a precision can be multiplied at; float32 by fused multiply-adds or by three
    products of tf32, whichever is faster, by the latter alone where `tensor`."""
    if number != "float32":
        return limits.value(f"tensor_{number}")
    three = limits.value("tensor_tf32")
    rates = [three / 3 if three else None, None if tensor else limits.value("fma")]
    return max((r for r in rates if r), default=None)


def _working_set(plan: Plan) -> int:
    """Bytes of all tensors that a step touches, the data set's rows of a batch alone."""
    names = {name for op in plan.ops for name in op.tensors}
    return sum(plan[n].nbytes for n in names if not plan[n].role.of_data)


# -- what no program could do without --------------------------------------------------------------


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """The least microseconds of a step: `memory_us` of bytes, `arithmetic_us` of products and
    `waiting_us` of exchanges between multiprocessors; `by` names the largest."""

    us: float
    by: str
    memory_us: float
    arithmetic_us: float
    waiting_us: float
    exchanges: int

    def __str__(self) -> str:
        return (f"{self.us:.2f} us: {self.memory_us:.2f} of memory beside {self.arithmetic_us:.2f} "
                f"of arithmetic, and {self.waiting_us:.2f} of {self.exchanges} exchanges")


def least_time(plan: Plan, limits: Limits) -> Bound | None:
    """The time that a step of a plan takes at least, by these limits; None where they lack what is
    needed, or the plan trains nothing.

    - Memory: each step brings its examples and answers. Parameters and optimizer state move only
      where they do not fit the chip's shared memory and registers: then within the L2 cache, or,
      where they do not fit there either, read and written in device memory; those whose updates
      may be deferred are read.
    - Arithmetic: the products, each in its precision at the rate of the whole GPU; at the
      same time as the memory's.
    - Waiting: a step of n layers is a chain of 2n products, forward, backward and the update that
      the next step's first reads. Between two of them values cross multiprocessors, by the cheapest
      exchange that was measured. A program that stays on one multiprocessor waits for none, but
      has a share of the arithmetic: the lesser counts.
    """
    layers = [t for t in plan.tensors.values() if t.role is Role.PARAMETER and len(t.shape) == 2]
    arithmetic = _arithmetic_us(plan, limits)
    memory = _unavoidable_us(plan, limits)
    exchange = min(limits.crossings(), default=None)
    if not layers or arithmetic is None or memory is None or exchange is None:
        return None
    count = 2 * len(layers)
    waiting = count * exchange
    alone = max(memory, arithmetic * limits.multiprocessors)
    if alone < max(memory, arithmetic) + waiting:
        arithmetic, waiting, count = arithmetic * limits.multiprocessors, 0.0, 0
    parts = {"memory": memory, "arithmetic": arithmetic, "waiting": waiting}
    return Bound(us=max(memory, arithmetic) + waiting, by=max(parts, key=lambda n: parts[n]),
                 memory_us=memory, arithmetic_us=arithmetic, waiting_us=waiting, exchanges=count)


def _arithmetic_us(plan: Plan, limits: Limits) -> float | None:
    """Of the products of a plan's ops a step."""
    total = 0.0
    for op in plan.ops:
        work = sum(2 * m * n * k for m, n, k in gemms_of(op, plan))
        rate = _class_rate(op_precision(op, plan), limits) if work else 1.0
        if rate is None:
            return None
        total += work / rate / 1e6
    return total / plan.steps


def _unavoidable_us(plan: Plan, limits: Limits) -> float | None:
    used = {name for op in plan.ops for name in op.tensors}
    data = {n: plan[n] for n in used if plan[n].role.of_data}
    state_bytes = sum(t.nbytes for t in plan.tensors.values()
               if t.role is Role.PARAMETER or (t.role is Role.STATE and t.name in used))
    rates = {name: limits.value(name) for name in ("read", "copy", "l2_read", "host_to_device")}
    if any(rate is None for rate in rates.values()):
        return None
    total = 0.0
    for tensor in data.values():
        near = tensor.nbytes <= limits.l2_bytes
        rate = "host_to_device" if tensor.role is Role.HOST else "l2_read" if near else "read"
        total += tensor.nbytes // max(tensor.shape[0], 1) * plan.batch / (rates[rate] or 1) / 1e3
    chip = plan.target.multiprocessors * (plan.target.shared_per_multiprocessor
                                          + 4 * plan.target.registers)
    if state_bytes > chip:
        rate = "l2_read" if state_bytes <= limits.l2_bytes else "copy"
        total += (2 * state_bytes - deferred_bytes(plan)) / (rates[rate] or 1) / 1e3
    return total


# -- of a run --------------------------------------------------------------------------------------


def footprint(work: PreparedRun, facts: dict[str, Any], opened: Opened) -> dict[str, float]:
    """Metrics of a run's measured step; `facts` are what its runner describes.

    `launches` of kernels, library calls and copies, 0 on the host; `step_bytes` that they read and
    write by the plan, a tensor counted as often as an op touches it (what a library keeps for
    itself is not known); `least_bytes` that any program must move: each example and its answer
    once, parameters and optimizer state read and written once; `graph_nodes`, where there is a
    graph; `steps` of an epoch. `lower_bound_us` and its parts are the least time of a step by this
    GPU's limits, where they are kept."""
    plan = work.train
    found: dict[str, float] = {
        "launches": float(len(plan.ops)) if opened.device else 0.0,
        "step_bytes": moved(plan), "least_bytes": least(plan), "steps": work.updates}
    if facts.get("graph_nodes") is not None:
        found["graph_nodes"] = facts["graph_nodes"]
    device = opened.device
    limits = stored_limits(device.info.name, device.info.driver) if device else None
    bound = least_time(work.train, limits) if limits else None
    if bound is not None:
        found |= {"lower_bound_us": bound.us, "lower_bound_memory_us": bound.memory_us,
                  "lower_bound_arithmetic_us": bound.arithmetic_us,
                  "lower_bound_waiting_us": bound.waiting_us,
                  "lower_bound_exchanges": bound.exchanges}
    return found
