"""What the precision toggles share: storing a plan's tensors in fewer bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from rawnn.common.dtypes import LARGEST
from rawnn.common.errors import ConfigError
from rawnn.opts.registry import Machine
from rawnn.plan.build import CLOCK
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Role, Tensor

GROWTH = 2000
"""Steps without an overflow after which the loss scale doubles, as in torch.amp.GradScaler."""


HEADROOM = 16
"""Factor by which a weight may at least grow from its initial bound before its 8-bit copy
saturates."""


def with_storage_types(plan: Plan, values: str, gradients: str = "", between: str = "") -> Plan:
    """Change the storage dtypes of a plan.

    values: for inputs, hidden activations and weights. Every weight that a GEMM reads becomes a
        rounded copy of its float32 master, which the update also writes.
    gradients: for gradients of pre-activations.
    between: for pre-activations and gradients of activations, which no GEMM reads (default:
        `values`).

    Logits, probabilities, losses, biases and the gradients of parameters stay float32."""
    multiplied = {op.operands[role] for op in plan.find(kind="matmul") for role in ("a", "b")}
    applied = {op.operands["z"] for op in plan.find(kind="activate")}
    of_parameters = {op.operands["dw"] for op in plan.ops if "dw" in op.operands}
    typed = [replace(t, dtype=(between or values) if t.name in applied else values)
             for t in _hidden(plan)]
    typed += [replace(t, dtype=(gradients if t.name in multiplied else between) or values)
              for t in plan.tensors.values()
              if t.role is Role.GRADIENT and t.name not in of_parameters]
    return with_copies(plan.with_tensors(*typed), values)


def _hidden(plan: Plan) -> Iterable[Tensor]:
    """Inputs and hidden activations: all that the loss does not read."""
    outputs = {op.operands[role] for op in plan.ops for role in ("z", "p")
               if role in op.operands and {"y", "t", "p"} & set(op.operands)}
    images = {"host_images"} if plan.find(kind="upload") else set()
    return [t for t in plan.tensors.values() if t.dtype == "float32" and (
        t.name == "x" or t.name in images
        or (t.role is Role.ACTIVATION and t.name not in outputs))]


def steps_a_parameter(op: Op) -> bool:
    """Whether the op is an optimizer step, which writes a parameter and its copy."""
    return "dw" in op.spec.reads and {"w", "copy"} <= set(op.spec.writes)


def copy_scale(weight: Tensor, dtype: str) -> float:
    """The factor of a copy's values: 1, or for a dtype that saturates a power of two. It puts the
    initial weights as high in the range as leaves room for a growth by HEADROOM to twice that."""
    if dtype not in LARGEST:
        return 1.0
    bound = weight.bound or 1 / math.sqrt(weight.shape[-1])
    return 2.0 ** math.floor(math.log2(LARGEST[dtype] / HEADROOM / bound))


def with_copies(plan: Plan, dtype: str) -> Plan:
    """Give every weight that a GEMM reads a copy of dtype `dtype`, times its scale, which the GEMMs
    divide out again."""
    weights = {op.operands[r] for op in plan.find(kind="matmul") for r in ("a", "b")
               if plan[op.operands[r]].role is Role.PARAMETER}
    copies = {name: Tensor(f"{name}.{dtype}", plan[name].shape, dtype, Role.COPY, source=name,
                           scale=copy_scale(plan[name], dtype), layer=plan[name].layer,
                           symbol=f"c{plan[name].layer}")
              for name in sorted(weights)}

    def change(op: Op) -> Op:
        if op.kind == "matmul":
            read = {r: copies[n] for r, n in op.operands.items() if n in copies}
            operands = {r: read[r].name if r in read else n for r, n in op.operands.items()}
            alpha = op.attributes["alpha"] / math.prod(copy.scale for copy in read.values())
            return replace(op, operands=operands, attributes={**op.attributes, "alpha": alpha})
        if steps_a_parameter(op) and op.operands["w"] in copies:
            copy = copies[op.operands["w"]]
            return replace(op, operands={**op.operands, "copy": copy.name},
                           attributes={**op.attributes, "copy_scale": copy.scale})
        return op

    return plan.with_tensors(*copies.values()).map_ops(change)


def without_masters(plan: Plan) -> Plan:
    """Store each weight only in the dtype of its copy, stochastically rounded by the update."""
    copies = {t.name: t for t in plan.tensors.values() if t.role is Role.COPY}
    masters = {t.source: t.dtype for t in copies.values()}

    def change(op: Op) -> Op:
        operands = {r: copies[n].source if n in copies else n for r, n in op.operands.items()
                    if not (r == "copy" and steps_a_parameter(op))}
        if steps_a_parameter(op) and op.operands["w"] in masters:
            return replace(op, operands={**operands, "clock": "clock", "cursor": "cursor"},
                           attributes={**op.attributes, "stochastic": True})
        return replace(op, operands=operands)

    tensors = {n: replace(t, dtype=masters[n]) if n in masters else t
               for n, t in plan.tensors.items() if n not in copies}
    clock = {"clock": CLOCK} if any(map(steps_a_parameter, plan.ops)) else {}
    return replace(plan, tensors={**tensors, **clock}).map_ops(change)


def with_loss_scale(plan: Plan) -> Plan:
    """Dynamic loss scaling: the loss gradient is multiplied by a scale that every update divides
    by. A step with a gradient that overflows changes nothing but the scale. All loss gradients and
    updates take the scale."""
    if not any(map(steps_a_parameter, plan.ops)):
        return plan
    state = (Tensor("loss_scale", (2,), "float32", Role.STATE),
             Tensor("overflow", (1,), "int32", Role.STATE))
    both = {"loss_scale": "loss_scale", "overflow": "overflow"}

    def change(op: Op) -> Op:
        if "loss_scale" in op.spec.reads:
            return replace(op, operands={**op.operands, **both})
        if op.kind == "activate_backward":
            return replace(op, operands={**op.operands, "overflow": "overflow"})
        return op

    plan = plan.with_tensors(*state).map_ops(change)
    last = Op("adjust_scale", "adjust_scale", both, {"growth": GROWTH})
    return replace(plan, ops=(*plan.ops, last))


def with_compute_type(plan: Plan, compute: str, layouts: tuple[str, ...]
                      = ("nt", "nn", "tn")) -> Plan:
    """Set the compute dtype `compute` of the GEMMs of the given layouts: factors or sums."""
    return plan.map_ops(
        lambda op: replace(op, attributes={**op.attributes, "compute": compute})
        if op.kind == "matmul" and op.attributes["layout"] in layouts else op)


def needs_capability(major: int, minor: int, what: str) -> Callable[[Machine], str | None]:
    """A `needs` function for a minimum compute capability."""

    def needs(machine: Machine) -> str | None:
        if machine.compute_capability >= (major, minor):
            return None
        have = ".".join(map(str, machine.compute_capability))
        return f"needs {what}, from compute capability {major}.{minor} on; this GPU has {have}"

    return needs


def choice(name: str, *words: str) -> Callable[[str], str]:
    """A parser for one of `words`."""

    def parse(text: str) -> str:
        if text not in words:
            raise ConfigError(f"{name}={text}: give {' or '.join(words)}")
        return text

    return parse
