"""`fuse`: neighbouring ops become one kernel.

In this order, each where the plan allows it:
1. loss and accuracy in one pass over the probabilities; with the softmax gradient; and, unless
   another library computes it, with the softmax itself;
2. bias and ReLU in the epilogue of the product ahead of them;
3. the SGD update in the weight gradient's product (alpha = -lr, beta = 1, in place) and in the
   bias gradient, or both in one kernel behind a product in slices;
4. the whole step of a one-layer network in two kernels that read the uint8 data set directly.
"""

from __future__ import annotations

from dataclasses import replace

from rawnn.opts.cublas import sliced, slices_of
from rawnn.opts.registry import Rewritten, Toggle, register
from rawnn.policy import Policy
from rawnn.step.op import Op
from rawnn.step.plan import Plan
from rawnn.step.tensor import Role, Tensor

MAX_FUSED_CLASSES = 32
"""Classes that the kernels of linear.cu hold in registers, one accumulator each."""


def apply(plan: Plan, policy: Policy, value: str | int | None) -> Rewritten:
    for rewrite in (_loss, _epilogue, _update, _linear):
        plan = rewrite(plan)
    return plan.check(), policy


def _loss(plan: Plan) -> Plan:
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


def _epilogue(plan: Plan) -> Plan:
    for product in plan.find(kind="matmul") + plan.find(kind="sum_slices"):
        z = product.operands["c"]
        bias = next((op for op in plan.find(kind="bias_add") if op.operands["z"] == z), None)
        if bias is None:
            continue
        gone = [product, bias]
        operands = {**product.operands, "bias": bias.operands["bias"]}
        relu = [op for op in plan.consumers(z) if op.kind == "relu"]
        if relu:
            gone, operands = [*gone, relu[0]], {**operands, "c": relu[0].operands["a"]}
        attributes = {**product.attributes, "bias": True, "relu": bool(relu)}
        plan = plan.substitute(
            gone, [replace(product, operands=operands, attributes=attributes)])
    return plan


def _update(plan: Plan) -> Plan:
    for update in plan.find(kind="sgd"):
        if update not in plan.ops:  # taken in by the update of its layer's weights
            continue
        gradient = plan.producer(update.operands["dw"], update)
        if gradient is None or len(plan.consumers(update.operands["dw"])) != 1:
            continue
        weight, lr = update.operands["w"], update.attributes["lr"]
        if gradient.kind == "matmul" and gradient.impl == "cublas":
            rewritten = _sliced_update(plan, gradient, update)
            if rewritten is not None:
                plan = rewritten
                continue
        if gradient.kind == "matmul":
            attributes = {**gradient.attributes, "alpha": -lr, "beta": 1.0}
            fused = replace(gradient, name=update.name, attributes=attributes,
                            operands={**gradient.operands, "c": weight})
        elif gradient.kind == "bias_grad":
            fused = Op("bias_sgd", update.name, {"dz": gradient.operands["dz"], "bias": weight},
                       {"lr": lr})
        else:
            continue
        plan = plan.substitute([gradient, update], [fused])
    return plan


def _sliced_update(plan: Plan, gradient: Op, update: Op) -> Plan | None:
    """A small weight gradient in slices, whose sum the update of weights and biases takes in: the
    same number of kernels as the product in place and the bias update beside it, and one chain
    instead of two branches. None where the product is large enough."""
    slices = slices_of(gradient)
    dz = gradient.operands["a"]
    bias_grad = next((op for op in plan.find(kind="bias_grad") if op.operands["dz"] == dz), None)
    if slices == 1 or bias_grad is None:
        return None
    bias_update = next(op for op in plan.consumers(bias_grad.operands["db"]) if op.kind == "sgd")
    partial, product = sliced(plan, gradient, slices)
    total = Op("slices_sgd", update.name,
               {"partial": partial.name, "w": update.operands["w"], "dz": dz,
                "bias": bias_update.operands["w"]},
               {"slices": slices, "lr": update.attributes["lr"]}, "fused")
    return plan.with_tensors(partial).substitute(
        [gradient, bias_grad, update, bias_update], [product, total])


def _linear(plan: Plan) -> Plan:
    kinds = [op.kind for op in plan.ops]
    if kinds != ["gather", "matmul", "softmax_loss_gradient", "matmul", "bias_sgd"]:
        return plan
    gather, forward, loss, weight, bias = plan.ops
    classes = plan[forward.operands["c"]].shape[1]
    if {forward.impl, weight.impl} != {"naive"} or classes > MAX_FUSED_CLASSES:
        return plan
    rows = (
        Tensor("row_loss", (plan.batch,), "float32", Role.ACTIVATION),
        Tensor("row_correct", (plan.batch,), "int32", Role.ACTIVATION),
    )
    data = {"images": gather.operands["images"], "cursor": "cursor"}
    shared = {"w": forward.operands["b"], "bias": forward.operands["bias"],
              "dz": loss.operands["dz"], "row_loss": "row_loss", "row_correct": "row_correct"}
    scale = {"offset": 0, "scale": gather.attributes["scale"]}
    first = Op("linear_forward", "linear_forward",
               {**data, "labels": gather.operands["labels"], **shared}, scale, "fused")
    second = Op("linear_update", "linear_update",
                {**data, **shared, "loss": loss.operands["loss"],
                 "correct": loss.operands["correct"]},
                {**scale, "lr": bias.attributes["lr"]}, "fused")
    return plan.with_tensors(*rows).substitute(plan.ops, [first, second])


register(Toggle(
    "fuse",
    claim="loss + accuracy, softmax + loss + gradient, bias + ReLU, gradient + SGD in one kernel; "
          "a one-layer step in two",
    source="the report's rung of fused loss and accuracy, taken further",
    group="kernels", apply=apply, host=True,
))
