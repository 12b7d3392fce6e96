"""Runs one op of a plan on a device, as the engine launches it, and compares it with its reference
in float64.

Inputs are random and rounded to their storage dtypes, so that both sides have the same values.
Outputs begin as NaN (or 111), so that a missing element is detected. rawnn/common/tolerances.py has
the error bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from rawnn.common import tolerances
from rawnn.common.dtypes import numpy_dtype, rounded
from rawnn.cuda.device import Device, padded
from rawnn.engine.runners.lowering import Lowering
from rawnn.model.losses import LOSSES
from rawnn.model.schedules import Schedule
from rawnn.plan.op import OPS, Op
from rawnn.plan.ops.members import member_words
from rawnn.plan.ops.metrics import KIND as LOSS_SUMS
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Role, Tensor
from rawnn.ptx.fused import narrow
from rawnn.ptx.gemm.tiles import MAIN_LOOPS
from rawnn.ptx.user_kernels import USER_KERNELS

STEP = 1
"""Position of the cursor: metrics and rates have an element for it, the data a batch."""

Values = dict[str, np.ndarray]

_NARROW = {key.kind for key in narrow.FAMILY.kernels}
_EIGHT_BITS = {"float8_e4m3", "float8_e5m2"}
_DOUBLES = ("mean", "score")
"""Operands that are float64 where their tensor, which has no such dtype, has pairs of int32."""


def fill_operands(op: Op, plan: Plan, seed: int) -> Values:
    """Random valid values for every tensor that an op uses, float64 for floats."""
    op = _as_of(op)
    generator = np.random.default_rng(seed)
    classes = [t.shape[0] for t in plan.tensors.values()
               if t.role is Role.PARAMETER and len(t.shape) == 2][-1:] or [10]
    values: Values = {}
    for role, name in op.operands.items():
        tensor = plan[name]
        drawn = np.asarray(_draw(op, role, tensor, classes[0], generator))
        if tensor.floating:
            drawn = rounded(drawn.astype(np.float32), tensor.dtype).astype(np.float64)
        values[name] = drawn.astype(np.float64 if tensor.floating else tensor.dtype)
    if op.kind in _NARROW:
        _clear_behind_layers(op, plan, values)
    if op.kind == "layer_backward" and "copy" in op.operands:  # kernels may read either one
        copy = op.operands["copy"]
        values[copy] = rounded(values[op.operands["w"]].astype(np.float32),
                               plan[copy].dtype).astype(np.float64)
    return values


def _draw(op: Op, role: str, tensor: Tensor, classes: int, generator: np.random.Generator) -> Any:
    """Valid values of an operand."""
    shape, normal = tensor.shape, generator.normal
    if role in ("p", "row_p"):
        raw = np.exp(normal(size=shape))
        return raw / raw.sum(axis=-1, keepdims=True)
    if role in ("t", "targets") and any(
            op.kind in loss.kinds for loss in LOSSES.values() if loss.link == "sigmoid"):
        return generator.integers(0, 2, shape)
    if role in ("order", "active"):
        return generator.permuted(np.broadcast_to(np.arange(shape[-1]), shape), axis=-1)
    if role == "members":
        words = np.zeros(shape, np.int32)
        for row in words:
            lr, value = generator.uniform(0.05, 0.2, 2)
            schedule = Schedule("constant", lr, value, period=3, warmup=2, steps=7)
            drawn = member_words(int(generator.integers(1 << 40)), 0, schedule, ())
            row[:len(drawn)] = drawn
        return words
    if role in ("y", "labels", "row_correct"):
        return generator.integers(0, 2 if role == "row_correct" else classes, shape)
    fixed = {"cursor": [STEP], "clock": [2, 7], "loss_scale": [1024.0, 3.0], "overflow": [0]}
    if role in fixed:  # a clock of each of several networks
        return np.resize(np.array(fixed[role]), shape)
    if role == "workspace":
        return np.zeros(shape)
    if role in ("rates", "inverse_std"):
        return generator.uniform(0.05, 0.2, shape)
    if role == "saved":  # outputs of tanh lie between -1 and 1
        return np.tanh(normal(size=shape))
    if role == "v" and op.kind == "adam":
        return np.square(normal(size=shape))
    if not tensor.floating:
        return generator.integers(0, 256, shape)
    if role in ("w", "source") and op.attributes.get("copy_scale", 1.0) != 1.0:
        return normal(size=shape) * 16 / op.attributes["copy_scale"]  # saturates nothing
    if op.kind == "softmax_head" and role in ("w", "copy"):  # logits of the order of 1
        return normal(size=shape) / np.sqrt(shape[1])
    if role == "dz":  # a mean over the batch: small, so that updates stay near the weights
        return normal(size=shape) / max(shape[0], 1)
    return normal(size=shape)


def _clear_behind_layers(op: Op, plan: Plan, values: Values) -> None:
    """Zero the columns after a narrower layer, as kernels of narrow networks do."""
    if op.kind == "narrow_inner":
        return
    weights = [t for t in map(plan.__getitem__, op.tensors)
               if t.role is Role.PARAMETER and len(t.shape) == 2]
    sizes = [t.shape[0] for t in sorted(weights, key=lambda t: t.layer)]
    for role in ("activations", "gradients"):
        if role in op.operands:
            width = plan[op.operands[role]].shape[0] // len(sizes)
            for layer, size in enumerate(sizes):
                values[op.operands[role]][layer * width + size : (layer + 1) * width] = 0


def length_of(op: Op, plan: Plan) -> int:
    """The number of terms in the sum that an element of the result is."""
    op = _as_of(op)

    def shape(role: str) -> tuple[int, ...]:
        return plan[op.operands[role]].shape

    if op.kind in ("matmul", "matmul_slices"):
        return int(op.attributes["k"])
    if op.kind == "matmul_loss":
        return max(int(op.attributes["k"]), prod(shape("dz")))
    if op.kind == LOSS_SUMS:
        return shape("loss_parts")[1]
    if op.kind == "layer_backward":
        return max(shape("dz"))
    if _updates(op) or op.kind in ("bias_grad", "bias_sgd"):
        return shape("dz")[0]
    if {"z", "bias"} <= _roles(op):  # element by element
        return 1
    if op.kind in ("slices_sgd", "linear_update"):
        return plan.batch
    if op.kind == "linear_forward":
        return shape("w")[1]
    if op.kind == "member_means":
        return shape("loss")[1]
    if op.kind == "softmax_head":
        return max(shape("w")[1], prod((shape("a")[0], shape("w")[0])))
    if op.kind in _NARROW:
        return max(max(plan[n].shape) for n in op.operands.values() if plan[n].role in (
            Role.PARAMETER, Role.COPY))
    if "loss" in op.operands or "z" in op.operands:  # a mean over the batch, a sum over a row
        return prod(shape("z") if "z" in op.operands else shape("p"))
    return 1


def tolerance_of(op: Op, plan: Plan, tensor: Tensor) -> float:
    """Bound on the relative error, in the norm, of what an op writes into `tensor`."""
    op = _as_of(op)
    compute = str(op.attributes.get("compute", "float32"))
    roles = ("dz", "x") if _updates(op) else ("a", "b")
    factors = {plan[op.operands[r]].dtype for r in roles if r in op.operands}
    sums: str | float = "float16" if compute == "float16" else "float32"
    library = op.impl == "cublas" and (compute == "tf32" or factors != {"float32"})
    whole_layers = op.kind in _NARROW or op.kind == "softmax_head"
    if MAIN_LOOPS.get(op.impl) or library or whole_layers:
        sums = tolerances.UNIT["float16"] if sums == "float16" else \
            tolerances.TENSOR_CORE_8_BIT if factors & _EIGHT_BITS else tolerances.TENSOR_CORE
    bound = tolerances.of_op(tensor.dtype, length_of(op, plan), compute, sums,
                             bool(op.attributes.get("stochastic")))
    if op.kind in _NARROW:  # each layer's values are rounded in between
        bound += 4 * tolerances.UNIT[str(op.attributes["dtype"])]
    if op.kind == "softmax_head":  # the last gradient is
        bound += tolerances.UNIT[plan[op.operands["a"]].dtype]
    if op.kind == "matmul_loss" and LOSSES[op.attributes["loss"]].of_rows:
        bound += OF_LOGITS * tolerances.FACTOR[compute]
    return bound


OF_LOGITS = 4.0
"""Additional roundings of a factor for the gradient of a softmax; a GEMM has two. The error grows
with the logits, and exp turns it into a relative error. Of 156 samples of 16 x 10 logits of 2,048
products each, rounded to tf32 in NumPy, twelve exceeded the bound for sums, the worst by a factor
of 1.8, and of 2.2 with truncation."""


def _as_of(op: Op) -> Op:
    """The op by its own kind, if a user's kernel runs it."""
    return replace(op, kind=USER_KERNELS[op.kind].op) if op.kind in USER_KERNELS else op


def _roles(op: Op) -> set[str]:
    """The operands that an op reads; all of them if its kind stands for several ops
    (`bias_relu`)."""
    return {*op.spec.reads} if op.kind in OPS else {*op.operands}


def _updates(op: Op) -> bool:
    """Whether it computes a weight gradient of `dz` and `x` internally."""
    return {"dz", "x"} <= _roles(op)


@dataclass(frozen=True)
class Outcome:
    """The result of an op in a tensor: its relative error and the bound; infinite if elements were
    not written. `where` is the element that is farthest off, with its value and the right one."""

    tensor: str
    error: float
    tolerance: float
    where: str = ""

    def __str__(self) -> str:
        if self.error <= self.tolerance:
            return f"{self.tensor}: off by {self.error:.1e} of {self.tolerance:.1e} allowed"
        if self.error == np.inf:
            return f"{self.tensor}: {self.where} was not written, or is no number"
        return f"{self.tensor}: off by {self.error:.1e}, of which {self.tolerance:.1e} are " \
               f"allowed; {self.where}"


@dataclass(frozen=True)
class Examined:
    """The outcomes of one op, and sentences on invalid writes and on a second launch with other
    bits."""

    op: str
    outcomes: tuple[Outcome, ...]
    trespasses: tuple[str, ...]

    @property
    def right(self) -> bool:
        return not self.trespasses and all(o.error <= o.tolerance for o in self.outcomes)


def examine(device: Device, lowering: Lowering, op: Op, plan: Plan, seed: int = 0,
            repeat: bool = True) -> Examined:
    """Run one op on the device (with `repeat` twice) and as its float64 reference; the error is
    ||device - reference|| / ||reference|| of everything that it writes."""
    values = fill_operands(op, plan, seed)
    read = {name for name, _ in op.reads}
    written = [name for name, _ in op.writes if name != op.operands.get("workspace")]
    lowering.compile([replace(plan, ops=(op,))])
    starts: Values = {}
    for name, value in values.items():
        tensor = plan[name]
        starts[name] = value
        if name in written and name not in read:
            starts[name] = np.full_like(value, np.nan if tensor.floating else 111)
    before, after = _launched(device, lowering, op, plan, starts)
    again = _launched(device, lowering, op, plan, starts)[1] if repeat else after
    operands = {role: _as_doubles(role, starts[name].copy()) for role, name in op.operands.items()}
    if op.kind == "upload":  # the host passes the step of the copies; the reference has the cursor
        operands["cursor"] = np.array([0], np.int32)
    stored = {role: plan[name].dtype for role, name in op.operands.items()}
    with np.errstate(all="ignore"):
        op.spec.reference(SimpleNamespace(**operands), {**op.attributes, "stored": stored})
    roles = {name: role for role, name in op.operands.items()}
    outcomes = [_outcome(op, plan, name, _as_doubles(roles[name], after[name]),
                         operands[roles[name]]) for name in written]
    touched = {*written, *(name for name, _ in op.writes)}
    trespasses = [sentence for name in after
                  if (sentence := _trespass(plan[name], before[name], after[name],
                                            name in touched))]
    trespasses += [f"two launches on the same bytes left different bits in {name}"
                   for name in written if after[name].tobytes() != again[name].tobytes()]
    return Examined(op.name, tuple(outcomes), tuple(trespasses))


def _as_doubles(role: str, array: Any) -> Any:
    """`array`, or what float64 it holds."""
    return array.view(np.float64) if role in _DOUBLES and array.dtype == np.int32 else array


def _launched(device: Device, lowering: Lowering, op: Op, plan: Plan,
              starts: Values) -> tuple[Values, Values]:
    """The bytes of every tensor in device memory before and after a launch, with padding."""
    addresses: dict[str, int] = {}
    host: Values = {}
    before: Values = {}
    for name, value in starts.items():
        tensor = plan[name]
        laid_out = padded(value.astype(numpy_dtype(tensor.dtype)), tensor.padded_shape,
                          tensor.dtype)
        if tensor.role is Role.HOST:
            host[name] = laid_out
        else:
            addresses[name] = device.memory.allocate(tensor.nbytes, name).address
            device.to_device(addresses[name], laid_out, name)
            before[name] = laid_out
    for command in lowering.commands(op, plan, addresses, host):
        command.run(op.offset)
    after: Values = {}
    for name in before:
        after[name] = np.zeros(plan[name].padded_shape, numpy_dtype(plan[name].dtype))
        device.to_host(after[name], addresses[name], name)
    device.memory.free_all()
    return before, after


def _outcome(op: Op, plan: Plan, name: str, raw: Any, reference: Any) -> Outcome:
    tensor = plan[name]
    found = raw[tuple(slice(n) for n in tensor.shape)].astype(np.float64)
    wanted = reference.astype(np.float64)
    if tensor.role is Role.METRIC:  # only this step's element is written
        here = slice(STEP + op.offset, STEP + op.offset + 1)
        found, wanted = found[here], wanted[here]
        if found.ndim == 2 and np.isfinite(found).all():  # partial sums: only their sum is defined
            found, wanted = found.sum(axis=1), wanted.sum(axis=1)
    # narrow_inner does not write rows that nothing reads.
    found = np.where(np.isfinite(wanted), found, 0.0)
    wanted = np.where(np.isfinite(wanted), wanted, 0.0)
    assert found.size
    tolerance = tolerance_of(op, plan, tensor)
    if not np.isfinite(found).all():
        place = np.argwhere(~np.isfinite(found))[0]
        return Outcome(name, float("inf"), tolerance, f"{name}[{', '.join(map(str, place))}]")
    scale = np.linalg.norm(wanted) or 1.0
    far = np.unravel_index(int(np.abs(found - wanted).argmax()), found.shape)
    where = (f"{name}[{', '.join(map(str, far))}] is {found[far]:.7g} and should be "
             f"{wanted[far]:.7g}")
    return Outcome(name, float(np.linalg.norm(found - wanted) / scale), tolerance, where)


def _trespass(tensor: Tensor, before: Any, after: Any, written: bool) -> str:
    """A description of an invalid write: into a tensor that the op only reads, into the padding of
    rows, or into metrics of other steps."""
    changed = before.view(np.uint8) != after.view(np.uint8)
    if not written:
        return f"it wrote into {tensor.name}, which it only reads" if changed.any() else ""
    if len(tensor.shape) == 2:
        behind = changed.reshape(tensor.shape[0], -1)[:, tensor.shape[1] * tensor.itemsize :]
        if behind.any():
            row = int(np.argwhere(behind)[0][0])
            return f"it wrote behind row {row} of {tensor.name}, into the padding"
    return ""
