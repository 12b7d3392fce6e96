"""The arguments of a kernel, from its signature and the plan.

A kernel's pointer parameters have the names of the op's operands, and its `ld<operand>` parameters
are their leading dimensions. Its other parameters, and the members of structs that it takes by
value, have the names of the op's attributes or of sizes in the table of kernels. A tensor map
`<operand>_map` describes the operand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rawnn.common.errors import ConfigError
from rawnn.cuda.compiling.signature import KernelSignature
from rawnn.cuda.compiling.structs import Struct
from rawnn.cuda.launch import Value
from rawnn.cuda.tensormap import NO_MAP, MappedMatrix
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from rawnn.ptx.kernel_registry import NEUTRAL, kernel_for

PARTED = ("images", "labels", "targets")
"""Operands of which a step reads one batch."""


def kernel_arguments(
    op: Op, plan: Plan, signature: KernelSignature, addresses: Mapping[str, int]
) -> dict[str, Value]:
    """Every argument of the op's kernel by name, except tensor maps (kernel_maps). Operands that
    the op leaves out are null, their leading dimensions and maps 0. Raises ConfigError for a
    parameter without a value, and for an attribute that changes the op but is no parameter of the
    kernel."""
    scalars = kernel_for(op).scalars(op, plan)
    leading = {f"ld{p.name}": p.name for p in signature.parameters if p.pointer}
    parameters = {p.name for p in signature.parameters}
    for parameter in signature.parameters:
        parameters |= {m.name for m in parameter.struct.members} if parameter.struct else set()
    for name, neutral in NEUTRAL.items():
        if name not in parameters and op.attributes.get(name, neutral) != neutral:
            raise ConfigError(f"the kernel {signature.name} takes no '{name}', but the op "
                              f"'{op.name}' has {name}={op.attributes[name]:g}")
    values: dict[str, Value] = {}
    for parameter in signature.parameters:
        name = parameter.name
        if parameter.tensor_map:
            if parameter.mapped not in op.operands:
                values[name] = NO_MAP
        elif parameter.pointer:
            if name not in (*op.spec.reads, *op.spec.writes):
                raise ConfigError(f"nothing fills the pointer '{name}' of the kernel "
                                  f"{signature.name}: an op of the kind {op.kind} has no such "
                                  f"operand")
            tensor = op.operands.get(name)
            values[name] = addresses[tensor] + _skipped(op, plan, name) if tensor else 0
        elif name in leading:
            tensor = op.operands.get(leading[name])
            values[name] = plan[tensor].ld if tensor else 0
        elif parameter.struct is not None:
            values[name] = _filled(parameter.struct, {**op.attributes, **scalars}, op)
        else:
            if name not in scalars:
                raise ConfigError(f"nothing fills the parameter '{name}' of the kernel "
                                  f"{signature.name}: it is no operand and no attribute of the op "
                                  f"'{op.name}', and no size that the table of kernels gives")
            values[name] = scalars[name]
    return values


def _skipped(op: Op, plan: Plan, operand: str) -> int:
    """Byte offset of this rank's part of a batch in the operand that locates its rows: the epoch's
    order, or the data themselves."""
    first: int = op.attributes.get("first", 0)
    if not first or operand not in (("order",) if "order" in op.operands else PARTED):
        return 0
    tensor = plan[op.operands[operand]]
    return first * tensor.itemsize * (tensor.ld if len(tensor.shape) > 1 else 1)


def _filled(struct: Struct, known: Mapping[str, Any], op: Op) -> np.void:
    """The struct with every member set from `known`. Raises ConfigError for a member without a
    value, and for an `offset`, which must be a parameter because launches overwrite it in place."""
    record = np.zeros(1, struct.dtype)
    for member in struct.members:
        if member.name not in known or member.name == "offset":
            raise ConfigError(f"the op '{op.name}' ({op.kind}) gives no '{member.name}' for the "
                              f"struct '{struct.name}'")
        record[member.name] = known[member.name]
    filled: np.void = record[0]
    return filled


def kernel_maps(op: Op, plan: Plan, signature: KernelSignature,
                driver: Any) -> dict[str, MappedMatrix]:
    """The layout of each operand of which the op's kernel takes a tensor map. Raises ConfigError if
    the kernel's entry gives no box, or the tensor is a vector or cannot be mapped."""
    impl = kernel_for(op)
    boxes = impl.boxes(impl.scalars(op, plan))
    found: dict[str, MappedMatrix] = {}
    for parameter in signature.parameters:
        operand = parameter.mapped
        if operand not in op.operands:
            continue
        tensor = plan[op.operands[operand]]
        label = f"'{operand}' ({tensor.name}) of the op '{op.name}'"
        if operand not in boxes:
            raise ConfigError(f"{label}: the table of kernels gives {impl.name} no box of it")
        if len(tensor.shape) != 2:
            raise ConfigError(f"{label} has no tensor map: it is a vector")
        rows, cols = tensor.shape
        found[operand] = MappedMatrix(driver, label, rows, cols, tensor.ld, tensor.dtype,
                                      boxes[operand])
    return found
