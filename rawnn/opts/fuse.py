"""`fuse`: neighbouring ops become one kernel.

In this order, each where the plan allows it:
1. the loss, its accuracy and its gradient in one pass; unless a library computes it, with the
   softmax itself;
2. bias and activation in the epilogue of the product ahead of them, the activation's slope in that
   of the input gradient;
3. the update in the weight gradient's product: gradient and step of weights and biases in one
   kernel, of plain SGD, or by tensor cores of any optimizer; or what cuBLASLt allows of plain SGD
   (alpha = -lr, beta = 1, in place; or a sum of slices);
4. the whole step of a one-layer network in two kernels that read the uint8 data set directly;
5. the whole step of a network of narrow layers with 16-bit weights in three (narrow.py);
6. the last layer of other networks on Hopper, with the loss, in one (head.py);
7. input gradient and update of a layer whose weights stream from memory, in one (layers.py);
8. slopes that follow from an activation's input, as 2; later, for 6 takes their product without.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from rawnn.activations import activation
from rawnn.losses import LOSSES
from rawnn.opts import head, layers, narrow
from rawnn.opts.cublas import sliced, slices_of
from rawnn.opts.precision import UPDATES
from rawnn.opts.registry import Comparison, Rewritten, Toggle, register
from rawnn.policy import Policy
from rawnn.step.op import Op
from rawnn.step.plan import Plan
from rawnn.step.tensor import Role, Tensor

MAX_FUSED_CLASSES = 32
"""Classes that the kernels of linear.cu hold in registers, one accumulator each."""


def apply(plan: Plan, policy: Policy, value: str | int | None) -> Rewritten:
    for rewrite in (_loss, _epilogue, partial(_slope, saves="output"), _update, _linear,
                    narrow.rewrite, head.rewrite, layers.rewrite, partial(_slope, saves="input")):
        plan = rewrite(plan)
    return plan.check(), policy


def _loss(plan: Plan) -> Plan:
    for entry in LOSSES.values():
        if entry.answers == "labels":
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


FAMILIES = ("tiled", "mma", "wgmma")
"""Products by kernels that share mma_epilogue.cuh."""
BY_TENSOR_CORES = ("mma", "wgmma")
STATE = ("m", "v")
"""What optimizers keep for a parameter."""


def _applies(product: Op, name: str) -> bool:
    """Whether the product's code can apply the activation `name` in its epilogue, and keep what the
    backward pass needs of it."""
    if activation(name).saves == "input":
        return product.impl in FAMILIES
    return product.impl != "cublas" or name == "relu"


def _epilogue(plan: Plan) -> Plan:
    for product in plan.find(kind="matmul") + plan.find(kind="sum_slices"):
        if product.attributes.get("layout", "nt") != "nt":
            continue
        gone, operands, attributes = [product], product.operands, product.attributes
        bias = next((op for op in plan.find(kind="bias_add")
                     if op.operands["z"] == operands["c"]), None)
        if bias is not None and product.impl == "cublas" \
                and plan[operands["c"]].dtype != plan[bias.operands["bias"]].dtype:
            continue  # cuBLASLt adds a bias of the output's type only
        if bias is not None:
            gone.append(bias)
            operands = {**operands, "bias": bias.operands["bias"]}
            attributes = {**attributes, "bias": True}
        applied = [op for op in plan.consumers(operands["c"]) if op.kind == "activate"]
        if applied and _applies(product, applied[0].attributes["activation"]):
            gone.append(applied[0])
            kept = {"pre": operands["c"]} if activation(applied[0].attributes["activation"]).saves \
                == "input" and len(plan.consumers(operands["c"])) > 1 else {}
            operands = {**operands, "c": applied[0].operands["a"], **kept}
            attributes = {**attributes, "activation": applied[0].attributes["activation"]}
        if len(gone) > 1:
            plan = plan.substitute(
                gone, [replace(product, operands=operands, attributes=attributes)])
    return plan


def _slope(plan: Plan, saves: str) -> Plan:
    for product in plan.find(kind="matmul"):
        masks = [op for op in plan.find(kind="activate_backward")
                 if op.operands["da"] == product.operands["c"]]
        if not masks or product.impl == "cublas":
            continue
        name = masks[0].attributes["activation"]
        if activation(name).saves != saves or not _applies(product, name):
            continue
        operands = {**product.operands, **masks[0].operands, "c": masks[0].operands["dz"]}
        for role in ("da", "dz"):
            del operands[role]
        attributes = {**product.attributes, "slope": masks[0].attributes["activation"]}
        plan = plan.substitute([product, masks[0]],
                               [replace(product, operands=operands, attributes=attributes)])
    return plan


def _update(plan: Plan) -> Plan:
    for update in [op for op in plan.ops if op.kind in UPDATES]:
        if update not in plan.ops:  # taken in by the update of its layer's weights
            continue
        gradient = plan.producer(update.operands["dw"], update)
        if gradient is None or len(plan.consumers(update.operands["dw"])) != 1:
            continue
        if update.kind != "sgd":
            if gradient.kind == "matmul" and gradient.impl in BY_TENSOR_CORES:
                plan = _weight_update(plan, gradient, update)
        elif gradient.kind == "matmul" and gradient.impl == "cublas":
            plan = _library_update(plan, gradient, update)
        elif gradient.kind == "matmul":
            plan = _weight_update(plan, gradient, update)
        elif gradient.kind == "bias_grad" and _library_gradient(plan, gradient):
            operands = {role: name for role, name in update.operands.items()
                        if role not in ("w", "dw")}
            fused = Op("bias_sgd", update.name,
                       {**operands, "dz": gradient.operands["dz"], "bias": update.operands["w"]},
                       {k: update.attributes[k] for k in ("lr", "decay", "offset")})
            plan = plan.substitute([gradient, update], [fused])
    return plan


def _library_gradient(plan: Plan, bias_grad: Op) -> bool:
    """Whether the weight gradient beside a bias gradient is a library's, so that no update of
    weights takes the bias in."""
    return not any(op.impl != "cublas" and op.attributes["layout"] == "tn"
                   for op in plan.find(kind="matmul")
                   if op.operands["a"] == bias_grad.operands["dz"])


def _bias_update(plan: Plan, gradient: Op) -> tuple[Op, Op] | None:
    """The bias gradient from the same dz as a weight gradient, and the update that reads it."""
    dz = gradient.operands["a"]
    for bias_grad in plan.find(kind="bias_grad"):
        if bias_grad.operands["dz"] == dz:
            update = next(op for op in plan.consumers(bias_grad.operands["db"]))
            return bias_grad, update
    return None


def _weight_update(plan: Plan, gradient: Op, update: Op) -> Plan:
    """Product and updates of weights and biases in one kernel; the gradient is never stored."""
    operands = {role: name for role, name in update.operands.items() if role != "dw"}
    operands |= {"dz": gradient.operands["a"], "x": gradient.operands["b"]}
    gone = [gradient, update]
    biases = _bias_update(plan, gradient)
    if biases:
        operands["bias"] = biases[1].operands["w"]
        operands |= {f"bias_{role}": name for role, name in biases[1].operands.items()
                     if role in STATE}
        gone += biases
    attributes = {**update.attributes, "compute": gradient.attributes["compute"]}
    if gradient.attributes.get("clusters"):
        attributes["clusters"] = True
    kind, impl = f"weight_{update.kind}", gradient.impl
    if update.kind == "sgd":
        kind = "weight_update"
        read = {operands["w"], operands.get("copy")}
        if any(op.operands["b"] in read for op in plan.find(kind="matmul", impl="skinny")):
            impl = "skinny"
    return plan.substitute(gone, [Op(kind, update.name, operands, attributes, impl)])


def _library_update(plan: Plan, gradient: Op, update: Op) -> Plan:
    """cuBLASLt's product in place, alpha = -lr and beta = 1 - lr * decay; a small one in slices,
    whose sum the update of weights and biases takes in: the same number of kernels as the product
    in place and the bias update beside it, and one chain instead of two branches. Nothing where
    the update does more than that."""
    if set(update.operands) != {"w", "dw"} or plan[update.operands["w"]].dtype != "float32":
        return plan
    slices, biases = slices_of(gradient), _bias_update(plan, gradient)
    lr, decay = update.attributes["lr"], update.attributes["decay"]
    weight = update.operands["w"]
    if slices == 1 or biases is None:
        attributes = {**gradient.attributes, "alpha": -lr, "beta": 1.0 - lr * decay}
        fused = replace(gradient, name=update.name, attributes=attributes,
                        operands={**gradient.operands, "c": weight})
        return plan.substitute([gradient, update], [fused])
    partial, product = sliced(plan, gradient, slices)
    total = Op("slices_sgd", update.name,
               {"partial": partial.name, "w": weight, "dz": gradient.operands["a"],
                "bias": biases[1].operands["w"]},
               {"slices": slices, "lr": lr, "decay": decay, "offset": 0}, "fused")
    return plan.with_tensors(partial).substitute([gradient, update, *biases], [product, total])


def _linear(plan: Plan) -> Plan:
    kinds = [op.kind for op in plan.ops]
    if kinds != ["gather", "matmul", "softmax_loss_gradient", "weight_update"]:
        return plan
    gather, forward, loss, update = plan.ops
    classes = plan[forward.operands["c"]].shape[1]
    if forward.impl != update.impl or forward.impl not in ("naive", "mma") \
            or classes > MAX_FUSED_CLASSES \
            or not set(update.operands) <= {"dz", "x", "w", "bias", "rates", "cursor"} \
            or "bias" not in update.operands or "mean" in gather.operands \
            or {plan[gather.operands[r]].dtype for r in ("images", "labels")} != {"uint8"} \
            or {plan[o].dtype for o in ("x", forward.operands["b"])} != {"float32"} \
            or forward.attributes["compute"] != "float32":
        return plan
    rows = (
        Tensor("row_loss", (plan.batch,), "float32", Role.ACTIVATION),
        Tensor("row_correct", (plan.batch,), "int32", Role.ACTIVATION),
    )
    data = {"images": gather.operands["images"], "cursor": "cursor",
            **{role: name for role, name in gather.operands.items() if role == "order"}}
    shared = {"w": update.operands["w"], "bias": update.operands["bias"],
              "dz": loss.operands["dz"], "row_loss": "row_loss", "row_correct": "row_correct"}
    place = {k: gather.attributes[k] for k in ("offset", "stride", "scale")}
    first = Op("linear_forward", "linear_forward",
               {**data, "labels": gather.operands["labels"], **shared}, place, "fused")
    rates = {"rates": "rates"} if "rates" in update.operands else {}
    second = Op("linear_update", "linear_update",
                {**data, **shared, **rates, "loss": loss.operands["loss"],
                 "correct": loss.operands["correct"]},
                {**place, "lr": update.attributes["lr"], "decay": update.attributes["decay"]},
                "fused")
    return plan.with_tensors(*rows).substitute(plan.ops, [first, second])


register(Toggle(
    "fuse",
    claim="softmax + loss + gradient, bias + activation, gradient + SGD in one kernel each; "
          "a one-layer step in two",
    source="the report's rung of fused loss and accuracy, taken further",
    group="kernels", apply=apply, host=True,
    comparisons=(
        Comparison("linear", "preload,arena,nosync"),
        Comparison("linear", "preload,arena,nosync,graphs=epoch"),
        *(Comparison(workload, "preload,arena,nosync,graphs=200,bf16,mma,streams,pdl")
          for workload in ("wide128", "mlp4", "wide1024")),
        Comparison("wide4096", "preload,arena,nosync,graphs=200,sr,mma,streams,pdl"),
    ),
))
