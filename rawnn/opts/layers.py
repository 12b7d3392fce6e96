"""The part of `fuse` for layers whose weights stream from memory: input gradient and update from
one reading of them.

Such a layer takes the time of its bytes. The product that passes the gradient on reads the weights,
and the update reads them again and writes them. The gradient is wanted first, so one kernel does
both at the product's place: nothing behind that reads the old weights.
"""

from __future__ import annotations

from dataclasses import replace

from rawnn.step.op import Op
from rawnn.step.plan import Plan


def rewrite(plan: Plan) -> Plan:
    """`plan` with layer_backward in place of each streamed layer's input gradient and plain SGD."""
    both: dict[int, Op] = {}
    gone: set[int] = set()
    for product in plan.find(kind="matmul", impl="skinny"):
        update = _update_of(plan, product)
        if update is None:
            continue
        gone.add(id(update))
        both[id(product)] = Op("layer_backward", update.name,
                               {**update.operands, "dx": product.operands["c"]},
                               {**update.attributes, "slope": product.attributes["slope"]},
                               "skinny")
    return replace(plan, ops=tuple(both.get(id(op), op) for op in plan.ops
                                   if id(op) not in gone)).without_unused()


def _update_of(plan: Plan, product: Op) -> Op | None:
    """The update that an input gradient can be one kernel with; None where there is none.

    Updates with a loss scale stay where they are: whether a gradient of the step has overflowed, so
    that no weight may change, is known when the first layer has its own. Done beside an input
    gradient, an update would come ahead of the gradients of all layers below, and of the very one
    that it is done beside.
    """
    slope = product.attributes["slope"]
    for update in plan.consumers(product.operands["a"], "weight_update"):
        if update.impl == "skinny" and product.attributes["layout"] == "nn" \
                and product.operands["b"] == update.operands.get("copy", update.operands["w"]) \
                and product.operands["a"] == update.operands["dz"] \
                and "loss_scale" not in update.operands \
                and (not slope or product.operands["saved"] == update.operands["x"]):
            return update
    return None
