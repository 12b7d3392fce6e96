"""`fuse`: neighbouring ops become one kernel.

It is an ordered list of fusions, each applied where the plan allows it and excluded by its name
(`fuse=-head`). The fusions here use features that several families of kernels have; a fusion of one
family is defined next to that family, in rawnn/ptx.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from rawnn.model.activations import activation
from rawnn.model.losses import LOSSES
from rawnn.model.optimizers import UPDATE_RULES
from rawnn.opts.cublas import sliced, slices_of
from rawnn.opts.cublas_payoff import adds_bias, updates_in_place
from rawnn.opts.precision import steps_a_parameter
from rawnn.opts.registry import (
    Outcome,
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
from rawnn.plan.tensor import Tensor
from rawnn.ptx.family import Fusion
from rawnn.ptx.fused import head, linear, narrow
from rawnn.ptx.gemm import deferred, gemm_loss, skinny
from rawnn.ptx.gemm.tiles import MAIN_LOOPS
from rawnn.ptx.user_kernels import lost_fusions, with_user_kernels, without_user_kernels

Change = tuple[list[Op], list[Op]]
"""Ops of a plan, and their replacements."""


def _loss(plan: Plan) -> Plan:
    for entry in LOSSES.values():
        if "softmax" in entry.parts:  # a library may compute it
            plan = _labelled_loss(plan)
            continue
        parts = [op for op in plan.ops if op.kind in entry.parts]
        if len(parts) == len(entry.parts):
            operands = {role: name for op in parts for role, name in op.operands.items()}
            plan = plan.substitute(parts, [Op(entry.fused, entry.fused, operands,
                                              parts[0].attributes, "fused")])
    return plan


def _labelled_loss(plan: Plan) -> Plan:
    for loss in plan.find(kind="cross_entropy"):
        probabilities = loss.operands["p"]
        readers = plan.consumers(probabilities)
        accuracy = next(op for op in readers if op.kind == "accuracy")
        operands = {**loss.operands, **accuracy.operands}
        gone, kind, name = [loss, accuracy], "loss_accuracy", "loss_accuracy"
        backward = [op for op in readers if op.kind == "softmax_backward"]
        if backward:
            operands = {**operands, **backward[0].operands}
            gone, kind, name = [*gone, backward[0]], "loss_gradient", "loss_gradient"
            softmax = plan.producer(probabilities, loss)
            if softmax and softmax.kind == "softmax" and softmax.impl == "naive" \
                    and len(readers) == 3:
                operands = {**operands, "z": softmax.operands["z"]}
                del operands["p"]
                gone, kind, name = [softmax, *gone], "softmax_loss_gradient", "softmax_loss_grad"
        plan = plan.substitute(gone, [Op(kind, name, operands, loss.attributes, "fused")])
    return plan


def _applies(gemm: Op, name: str) -> bool:
    """Whether the GEMM's epilogue can apply the activation `name` and store what its backward pass
    needs."""
    if activation(name).saves == "input":
        return gemm.impl in MAIN_LOOPS
    return gemm.impl != "cublas" or name == "relu"


def _epilogue(plan: Plan) -> Plan:
    changes: list[Change] = []
    for gemm in plan.find(kind="matmul") + plan.find(kind="sum_slices"):
        if gemm.attributes.get("layout", "nt") != "nt":
            continue
        gone, operands, attributes = [gemm], gemm.operands, gemm.attributes
        bias = next(iter(plan.consumers(operands["c"], "bias_add")), None)
        if bias is not None and gemm.impl == "cublas" and not adds_bias(plan, gemm, bias):
            continue
        if bias is not None:
            gone.append(bias)
            operands = {**operands, "bias": bias.operands["bias"]}
            attributes = {**attributes, "bias": True}
        applied = plan.consumers(operands["c"], "activate")
        if applied and _applies(gemm, applied[0].attributes["activation"]):
            gone.append(applied[0])
            kept = {"pre": operands["c"]} if activation(applied[0].attributes["activation"]).saves \
                == "input" and len(plan.consumers(operands["c"])) > 1 else {}
            operands = {**operands, "c": applied[0].operands["a"], **kept}
            attributes = {**attributes, "activation": applied[0].attributes["activation"]}
        if len(gone) > 1:
            changes.append((gone, [replace(gemm, operands=operands, attributes=attributes)]))
    return plan.substitute_all(changes)


def _slope(plan: Plan, saves: str) -> Plan:
    changes: list[Change] = []
    for gemm in plan.find(kind="matmul"):
        masks = [op for op in plan.consumers(gemm.operands["c"], "activate_backward")
                 if op.operands["da"] == gemm.operands["c"]]
        if not masks or gemm.impl == "cublas":
            continue
        name = masks[0].attributes["activation"]
        if activation(name).saves != saves or not _applies(gemm, name):
            continue
        operands = {**gemm.operands, **masks[0].operands, "c": masks[0].operands["dz"]}
        for role in ("da", "dz"):
            del operands[role]
        attributes = {**gemm.attributes, "slope": masks[0].attributes["activation"]}
        changes.append(([gemm, masks[0]],
                        [replace(gemm, operands=operands, attributes=attributes)]))
    return plan.substitute_all(changes)


def _update(plan: Plan) -> Plan:
    changes: list[Change] = []
    tensors: list[Tensor] = []
    replaced: set[int] = set()
    for update in filter(steps_a_parameter, plan.ops):
        if id(update) in replaced or "other" in update.operands:
            continue  # the update of the weights includes it, or another rank has a part of dw
        gradient = plan.producer(update.operands["dw"], update)
        if gradient is None or len(plan.consumers(update.operands["dw"])) != 1:
            continue
        change: Change | None = None
        if update.kind != "sgd":
            if gradient.kind == "matmul" and MAIN_LOOPS.get(gradient.impl) \
                    and update.kind in UPDATE_RULES and UPDATE_RULES[update.kind].is_fused:
                change = _weight_update(plan, gradient, update)
        elif gradient.kind == "matmul" and gradient.impl == "cublas":
            change, slices = _library_update(plan, gradient, update)
            tensors += slices
        elif gradient.kind == "matmul":
            change = _weight_update(plan, gradient, update)
        elif gradient.kind == "bias_grad" and _library_gradient(plan, gradient):
            operands = {role: name for role, name in update.operands.items()
                        if role not in ("w", "dw")}
            fused = Op("bias_sgd", update.name,
                       {**operands, "dz": gradient.operands["dz"], "bias": update.operands["w"]},
                       {k: update.attributes[k] for k in ("lr", "decay", "offset")})
            change = [gradient, update], [fused]
        if change:
            changes.append(change)
            replaced.update(map(id, change[0]))
    return plan.with_tensors(*tensors).substitute_all(changes)


def _library_gradient(plan: Plan, bias_grad: Op) -> bool:
    """Whether a library computes the weight gradient that reads the same dz as a bias gradient. No
    update of weights then includes the bias."""
    dz = bias_grad.operands["dz"]
    return not any(op.impl != "cublas" and op.attributes["layout"] == "tn"
                   for op in plan.consumers(dz, "matmul") if op.operands["a"] == dz)


def _bias_update(plan: Plan, gradient: Op) -> tuple[Op, Op] | None:
    """The bias gradient from the same dz as a weight gradient, and the update that reads it."""
    for bias_grad in plan.consumers(gradient.operands["a"], "bias_grad"):
        return bias_grad, plan.consumers(bias_grad.operands["db"])[0]
    return None


def _weight_update(plan: Plan, gradient: Op, update: Op) -> Change:
    """GEMM and updates of weights and biases in one kernel; the gradient is never stored."""
    operands = {role: name for role, name in update.operands.items() if role != "dw"}
    operands |= {"dz": gradient.operands["a"], "x": gradient.operands["b"]}
    gone = [gradient, update]
    biases = _bias_update(plan, gradient)
    if biases:
        operands["bias"] = biases[1].operands["w"]
        operands |= {f"bias_{role}": name for role, name in biases[1].operands.items()
                     if role in UPDATE_RULES[update.kind].keeps}
        gone += biases
    attributes = {**update.attributes, "compute": gradient.attributes["compute"]}
    kind, impl = UPDATE_RULES[update.kind].fused_kind, gradient.impl
    if update.kind == "sgd" and any(op.impl == "skinny" and op.operands["b"] == operands[role]
                                    for role in ("w", "copy") if role in operands
                                    for op in plan.consumers(operands[role], "matmul")):
        impl = "skinny"
    return gone, [Op(kind, update.name, operands, attributes, impl)]


def _library_update(plan: Plan, gradient: Op,
                    update: Op) -> tuple[Change | None, tuple[Tensor, ...]]:
    """cuBLASLt's GEMM into the weights, with alpha = -lr and beta = 1 - lr * decay. A small GEMM is
    cut into slices, and the op that adds them up does the updates of weights and biases. That is
    the same number of kernels as the GEMM and the bias update, in one chain instead of two
    branches. None if the update does more than that."""
    if not updates_in_place(plan, update):
        return None, ()
    slices, biases = slices_of(gradient), _bias_update(plan, gradient)
    lr, decay = update.attributes["lr"], update.attributes["decay"]
    weight = update.operands["w"]
    if slices == 1 or biases is None:
        attributes = {**gradient.attributes, "alpha": -lr, "beta": 1.0 - lr * decay}
        fused = replace(gradient, name=update.name, attributes=attributes,
                        operands={**gradient.operands, "c": weight})
        return ([gradient, update], [fused]), ()
    parts, gemm = sliced(plan, gradient, slices)
    total = Op("slices_sgd", update.name,
               {"partial": parts.name, "w": weight, "dz": gradient.operands["a"],
                "bias": biases[1].operands["w"]},
               {"slices": slices, "lr": lr, "decay": decay, "offset": 0, "steps": 0}, "fused")
    return ([gradient, update, *biases], [gemm, total]), (parts,)


def _or(rewrite: Callable[[Plan], Plan], reason: str) -> Callable[[Plan], Plan | str]:
    """`rewrite`, or the reason why it finds nothing to change."""

    def apply(plan: Plan) -> Plan | str:
        found = rewrite(plan)
        return reason if found.ops == plan.ops else found

    return apply


_FAMILIES = (linear.FAMILY, narrow.FAMILY, head.FAMILY, skinny.FAMILY)
FUSIONS: dict[str, Fusion] = {fusion.name: fusion for fusion in (
    Fusion("loss", "the loss, its accuracy and its gradient in one pass, and the softmax unless a "
                   "library computes it",
           _or(_loss, "no loss whose accuracy or gradient is an op of its own")),
    Fusion("epilogue", "bias and activation in the GEMM before them",
           _or(_epilogue, "no GEMM that could add a bias or apply an activation after it")),
    Fusion("slope", "the activation's slope in the GEMM of the input gradient",
           _or(partial(_slope, saves="output"), "no GEMM that could apply the slope after it")),
    Fusion("update", "the update in the GEMM of the weight gradient, weights and biases in one "
                     "kernel: of plain SGD, or by tensor cores of any optimizer; or what cuBLASLt "
                     "allows of plain SGD: alpha = -lr, beta = 1, in place; or a sum of slices",
           _or(_update, "no update directly after the gradient's GEMM that it could do")),
    *(family.fusion for family in _FAMILIES if family.fusion is not None),
    gemm_loss.INTO_GEMM,
    gemm_loss.DEFERRED_SUMS,
    deferred.FUSION,
    Fusion("late_slope", "the slope of an activation that keeps its input, where no kernel above "
                         "needs the GEMM without it",
           _or(partial(_slope, saves="input"), "no slope left that a GEMM could apply")),
)}
"""In the order in which they are tried."""


RETIRED: tuple[str, ...] = ()
"""Fusions of earlier versions."""


def rewritten(plan: Plan, value: str | int | None) -> tuple[Plan, list[Outcome]]:
    """The plan with every fusion that is not excluded and applies, and the outcome of each."""
    outcomes = []
    without = replace(without_user_kernels(plan), user_kernels=()) if plan.user_kernels else plan
    for name, fusion in FUSIONS.items():
        if name in left_out(value):
            outcomes.append(Outcome(name, f"{name} is left out by fuse={value}"))
            continue
        found, but = fusion.apply(plan), ""
        if plan.user_kernels and isinstance(alone := fusion.apply(without), Plan):
            but = lost_fusions(plan, without, alone)
            without = alone
            if isinstance(found, str):
                found = f"{but or ', '.join(plan.user_kernels)}; it would apply without"
        if isinstance(found, Plan):
            plan, found = with_user_kernels(found), ""
        outcomes.append(Outcome(name, found, but))
    return plan, outcomes


def apply(plan: Plan, policy: Policy, value: str | int | None) -> Rewritten:
    return rewritten(plan, value)[0], policy


register(Toggle(
    "fuse",
    claim="softmax + loss + gradient, bias + activation, gradient + SGD in one kernel each; "
          "a one-layer step in two; -NAME leaves out one of " + ", ".join(FUSIONS),
    source="the report's rung of fused loss and accuracy, taken further",
    group="kernels", apply=apply, host=True,
    parameter=Parameter("-NAME", leaving_out("fuse", "fusions", FUSIONS, RETIRED), "", RETIRED),
    outcomes=lambda plan, value: rewritten(plan, value)[1],
))
