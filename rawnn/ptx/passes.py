"""The passes of a step in one launch (passes.cuh): all layers forward, the loss, and all gradients of
inputs, for networks whose step does not fit the chip.

Launch by launch each of these products waits for the last one's end, fills its pipeline and drains
it. Here rows of the batch stay in one cluster of blocks from the first layer to the first again,
and only weights come from memory. The updates stay launches of their own.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace

import numpy as np

from rawnn.common.cuda_text import CudaText
from rawnn.common.dtypes import LOW_PRECISION, itemsize, rounded
from rawnn.network.losses import LOSSES
from rawnn.ptx.family import Fusion
from rawnn.ptx.passes_form import Form, Network, choose, microseconds
from rawnn.ptx.passes_source import Problem, source
from rawnn.ptx.table import GENERATED, KernelImpl, Scalars, Shape, plain
from rawnn.step.op import OPS, Attributes, Op, OpSpec
from rawnn.step.ops.common import Array
from rawnn.step.ops.metrics import KIND as LOSS_SUMS
from rawnn.step.ops.metrics import PARTS
from rawnn.step.plan import Plan
from rawnn.step.tensor import Role, Tensor

KIND = "passes"
SUMMARY = "All layers forward, the loss and the gradients of all inputs, of a step."
BY_TENSOR_CORES = ("mma", "wgmma", "wgmma_tf32", "wgmma_scaled")


@dataclass(frozen=True)
class Passes:
    """What an op does: `ops` one behind the other, whose operands are roles of its own, or the
    `inner` tensors that nobody else sees."""

    ops: tuple[Op, ...]
    inner: tuple[Tensor, ...]
    stored: tuple[tuple[str, str], ...]

    def run(self, t: SimpleNamespace, a: Attributes) -> None:
        arrays: dict[str, Array] = dict(vars(t))
        number = t.x.dtype
        for tensor in self.inner:
            arrays[tensor.name] = np.zeros(tensor.shape,
                                           number if tensor.floating else tensor.dtype)
        types = dict(self.stored)
        for op in self.ops:
            operands = SimpleNamespace(**{r: arrays[n] for r, n in op.operands.items()})
            stored = {r: types[n] for r, n in op.operands.items()}
            op.spec.reference(operands, {**op.attributes, "offset": a.get("offset", 0),
                                         "stored": stored})
            for name, _ in op.writes:
                array = arrays[name]
                if types[name] in LOW_PRECISION and array.dtype == np.float32:
                    array[...] = rounded(array, types[name])


def _spec(op: Op) -> OpSpec:
    if "passes" not in op.attributes:
        return OPS[KIND]
    found: Passes = op.attributes["passes"]
    inner = {tensor.name for tensor in found.inner}

    def names(accesses: list[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for name in accesses if name not in inner))

    writes = names([name for each in found.ops for name, _ in each.writes])
    reads = names([name for each in found.ops for name, _ in each.reads
                   if name not in writes or name == "overflow"])
    return OpSpec(KIND, reads, writes, found.run, PARTS, summary=SUMMARY)


def _undefined(t: SimpleNamespace, a: Attributes) -> None:
    raise NotImplementedError("the op's plan says what it computes")


OPS[KIND] = OpSpec(KIND, (), (), _undefined, summary=SUMMARY, of=_spec)


# -- the kernel ------------------------------------------------------------------------------------


@cache
def _written(problem: Problem) -> tuple[str, str]:
    """The kernel's name and text. The name tells kernels apart."""
    digest = hashlib.sha256(source(problem, KIND).encode()).hexdigest()[:12]
    name = f"{KIND}_{digest}"
    return name, source(problem, name)


def _shapes(problem: Problem) -> dict[str, Shape]:
    n = problem.form.network
    found: dict[str, Shape] = {
        "x": (str(n.batch), str(n.layers[0])), "y": (str(n.batch),),
        "t": (str(n.batch), str(n.layers[-1])), "cursor": ("1",), "loss_scale": ("2",),
        "overflow": ("1",), **dict.fromkeys(PARTS, ("@1", "parts"))}
    for layer in range(1, n.depth + 1):
        here, below = map(str, (n.layers[layer], n.layers[layer - 1]))
        found |= {f"w{layer}": (here, below), f"b{layer}": (here,),
                  f"a{layer}": (str(n.batch), here), f"dz{layer}": (str(n.batch), here)}
    return found


def _impl(op: Op) -> KernelImpl:
    problem: Problem = op.attributes["problem"]
    form = problem.form
    name, text = _written(problem)
    shapes = {role: shape for role, shape in _shapes(problem).items() if role in op.operands}

    def sizes(op: Op, plan: Plan) -> Scalars:
        return {"parts": form.blocks}

    return KernelImpl(
        f"{name}.cu", name, plain, sizes,
        lambda s: ((form.blocks, 1, 1), (32 * form.warps, 1, 1)), shapes,
        shared=lambda s: form.shared, cluster=lambda s: form.ranks, code=CudaText(text))


GENERATED[KIND] = _impl


# -- where it takes others' place ------------------------------------------------------------------


class _Not(Exception):
    """Why a plan's passes stay launches."""


@dataclass
class _Layer:
    forward: Op
    weights: str
    bias: str
    output: str  # its activations, or the logits
    gradient: Op | None = None  # the op that gives dz of the layer below
    sloped: Op | None = None  # the one behind it that applies the slope, if it is another


def _of_tensor_cores(op: Op) -> Op:
    a = op.attributes
    if op.impl not in BY_TENSOR_CORES:
        raise _Not(f"{op.name} is computed by {op.impl}")
    if a["compute"] == "float16" or a["alpha"] != 1.0 or a["beta"] != 0.0:
        raise _Not(f"{op.name} sums in float16, or scales its result")
    return op


def _layers(plan: Plan, loss: Op) -> list[_Layer]:
    """Of the network, from the first on."""
    found: list[_Layer] = []
    values, behind = loss.operands["z"], loss
    while True:
        op = plan.producer(values, behind)
        if op is None or op.kind != "matmul" or op.attributes["layout"] != "nt":
            raise _Not("a layer is no product that adds its bias and applies its activation")
        _of_tensor_cores(op)
        if not found and len(plan.consumers(values)) > 1:
            raise _Not("others read the logits")
        if bool(op.attributes["activation"]) != bool(found):
            raise _Not("a layer is no product that adds its bias and applies its activation")
        found.insert(0, _Layer(op, op.operands["b"], op.operands.get("bias", ""), values))
        values, behind = op.operands["a"], op
        if plan[values].role is Role.BATCH:
            break
    dz = loss.operands["dz"]
    for layer in reversed(found[1:]):
        op = next((op for op in plan.consumers(dz, "matmul") if op.operands["a"] == dz
                   and op.attributes["layout"] == "nn"), None)
        if op is None:
            raise _Not("a gradient of a layer's inputs is no product")
        layer.gradient = _of_tensor_cores(op)
        dz = op.operands["c"]
        if not op.attributes["slope"]:
            slopes = plan.consumers(dz, "activate_backward")
            if len(slopes) != 1 or len(plan.consumers(dz)) != 1:
                raise _Not("a slope is no op behind the product")
            layer.sloped = slopes[0]
            dz = layer.sloped.operands["dz"]
    return found


def _network(plan: Plan, layers: list[_Layer], labelled: bool) -> tuple[Network, str, str]:
    """With the type of values, and how their products are computed."""
    first = layers[0].forward
    touched = {first.operands["a"], *(layer.weights for layer in layers),
               *(layer.output for layer in layers[:-1])}
    types = {plan[name].dtype for name in touched}
    if len(types) != 1:
        raise _Not(f"values and weights are of several types: {', '.join(sorted(types))}")
    dtype = types.pop()
    if itemsize(dtype) < 2:
        raise _Not("values of 8 bits")
    computes = {op.attributes["compute"] for layer in layers
                for op in (layer.forward, layer.gradient) if op is not None}
    if len(computes) != 1:
        raise _Not("products are computed in several ways")
    compute = computes.pop()
    activations = {layer.forward.attributes["activation"] for layer in layers[:-1]}
    if len(activations) != 1:
        raise _Not("layers have several activations")
    biases = {bool(layer.bias) for layer in layers}
    if len(biases) != 1:
        raise _Not("some layers have biases, and some have not")
    size = itemsize(dtype)
    sizes = (first.attributes["k"], *(layer.forward.attributes["n"] for layer in layers))
    return Network(sizes, plan.batch, size, 3 if dtype == "float32" and compute != "tf32" else 1,
                   0.125 if activations == {"relu"} else size, labelled, biases == {True}), \
        dtype, compute


def passes_op(plan: Plan, form: Form | None = None) -> Plan:
    """The plan with its passes as one op, in the form that is expected to be fastest, or the one
    that is given. Raises _Not."""
    name, loss = next(((name, op) for name, entry in LOSSES.items()
                       for op in plan.find(kind=entry.fused)
                       if "dz" in op.operands and "loss" in op.operands), (None, None))
    if name is None or loss is None:
        raise _Not("no loss in one pass that gives a gradient, too")
    entry = LOSSES[name]
    if not (entry.functor or entry.of_rows):
        raise _Not(f"no functor of the loss {name}")
    layers = _layers(plan, loss)
    if len(layers) < 2:
        raise _Not("one layer has no gradient of inputs")
    network, dtype, compute = _network(plan, layers, entry.labelled)
    form = form or choose(network, plan.target)
    if form is None:
        raise _Not("the values of 8 rows do not fit shared memory with all that goes with them")
    roles, gone = _roles(plan, layers, loss)
    leading = tuple((role, plan[of].ld) for role, of in roles.items() if len(plan[of].shape) == 2)
    for role, ld in leading:
        if ld * plan[roles[role]].itemsize % 16 and role != "t":
            raise _Not(f"rows of {roles[role]} do not begin at multiples of 16 bytes")
    gradients = {plan[of].dtype for role, of in roles.items() if role.startswith("dz")}
    if gradients != {dtype}:
        raise _Not("gradients are of another type than values")
    problem = Problem(form, dtype, compute, layers[0].forward.attributes["activation"], name,
                      plan[roles["t"]].dtype if "t" in roles else "", "loss_scale" in roles, leading)
    return _substituted(plan, problem, layers, loss, roles, gone)


def _roles(plan: Plan, layers: list[_Layer], loss: Op) -> tuple[dict[str, str], list[Op]]:
    """Tensors by their roles, and the ops that go."""
    roles = {"x": layers[0].forward.operands["a"], "cursor": loss.operands["cursor"]}
    for role in ("y", "t", "loss_scale", "overflow"):
        if role in loss.operands:
            roles[role] = loss.operands[role]
    gone = [loss]
    dz = loss.operands["dz"]
    for number in range(len(layers), 0, -1):
        layer = layers[number - 1]
        roles |= {f"w{number}": layer.weights, f"dz{number}": dz}
        if layer.bias:
            roles[f"b{number}"] = layer.bias
        if number < len(layers):
            roles[f"a{number}"] = layer.output
        gone.append(layer.forward)
        if layer.gradient is not None:
            gone.append(layer.gradient)
            dz = layer.gradient.operands["c"]
        if layer.sloped is not None:
            gone.append(layer.sloped)
            dz = layer.sloped.operands["dz"]
    return roles, gone


def _substituted(plan: Plan, problem: Problem, layers: list[_Layer], loss: Op,
                 roles: dict[str, str], gone: list[Op]) -> Plan:
    counted = [name for name in ("loss", "correct") if name in loss.operands]
    tensors = [Tensor(f"{plan.name}.{name}_parts", (plan[name].shape[0], problem.form.blocks),
                      plan[name].dtype, Role.METRIC, packed=True) for name in counted]
    parts = {f"{name}_parts": tensor.name for name, tensor in zip(counted, tensors, strict=True)}
    roles = {**roles, **parts}
    plan = plan.with_tensors(*tensors)
    passes = _meaning(plan, layers, loss, roles)
    form = problem.form
    op = Op(KIND, KIND, roles, {"passes": passes, "problem": problem, "offset":
                                loss.attributes["offset"], "form": str(form),
                                "expected": f"{microseconds(form, plan.target):.1f} us"}, "fused")
    n = form.network
    terms = n.batch if n.softmax else n.batch * n.layers[-1]
    sums = Op(LOSS_SUMS, LOSS_SUMS,
              {**parts, "cursor": roles["cursor"], **{name: loss.operands[name] for name in counted}},
              {"terms": float(terms), "offset": loss.attributes["offset"], "span": 1})
    # Where the first of them stood: updates stand between gradients.
    first = min(gone, key=lambda each: plan.ops.index(each))
    place = plan.ops.index(first)
    ids = {id(each) for each in gone}
    rest = [each for each in plan.ops if id(each) not in ids]
    ahead = sum(id(each) not in ids for each in plan.ops[:place])
    return replace(plan, ops=(*rest[:ahead], op, sums, *rest[ahead:])).without_unused()


def _meaning(plan: Plan, layers: list[_Layer], loss: Op, roles: dict[str, str]) -> Passes:
    """The ops, by roles. A slope behind a product is part of it."""
    names = {of: role for role, of in roles.items()}
    inner: dict[str, Tensor] = {}

    def of(name: str) -> str:
        if name in names:
            return names[name]
        inner[f"inner_{name}"] = replace(plan[name], name=f"inner_{name}")
        return f"inner_{name}"

    def by_role(op: Op) -> Op:
        return replace(op, operands={r: of(n) for r, n in op.operands.items()})

    ops = [by_role(layer.forward) for layer in layers]
    operands = {r: n for r, n in loss.operands.items() if r not in ("loss", "correct", "workspace")}
    operands |= {role: roles[role] for role in PARTS if role in roles}
    ops.append(by_role(replace(loss, operands=operands)))
    for layer in reversed(layers[1:]):
        op = layer.gradient
        assert op is not None
        if layer.sloped is not None:
            slope = layer.sloped
            operands = {**op.operands, **slope.operands, "c": slope.operands["dz"]}
            del operands["da"], operands["dz"]
            op = replace(op, operands=operands, attributes={
                **op.attributes, "slope": slope.attributes["activation"]})
        ops.append(by_role(op))
    stored = {role: plan[n].dtype for role, n in roles.items()}
    stored |= {name: tensor.dtype for name, tensor in inner.items()}
    return Passes(tuple(ops), tuple(inner.values()), tuple(stored.items()))


def _apply(plan: Plan) -> Plan | str:
    if not plan.target.gpu:
        return "the plan is for the host"
    if reason := plan.target.lacks("asynchronous copies"):
        return reason
    try:
        return passes_op(plan)
    except _Not as reason:
        return str(reason)


FUSION = Fusion("passes", "all layers forward, the loss and the gradients of all inputs in one kernel "
                          "written for the network", _apply)
