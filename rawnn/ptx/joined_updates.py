"""The weight updates of a step's layers in one launch.

Each update is a product over the batch, however large the layer: the launch of a small one leaves
most multiprocessors idle, and each launch has a last round of blocks that fills them in part. Where
all are behind the same op anyway, their tiles are those of one launch (ptx/mma_updates.cuh), of one
size.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from rawnn.ptx.family import Fusion
from rawnn.ptx.mma import PREDICTED, predicted
from rawnn.ptx.tiles import UPDATES, product_of
from rawnn.step.op import Op
from rawnn.step.ops.updates import LAYERS, MOST_LAYERS, OWN, OWN_NUMBERS
from rawnn.step.plan import Plan


def _alike(op: Op, plan: Plan) -> Hashable:
    """What the layers of a launch have in common: types, rule, settings, and where they stand."""
    types = tuple((role, plan[op.operands[role]].dtype) for role in OWN if role in op.operands)
    shared = {role: name for role, name in op.operands.items() if role not in OWN}
    numbers = {key: value for key, value in op.attributes.items() if key not in OWN_NUMBERS}
    batch = plan[op.operands["dz"]].shape[0]
    return op.kind, types, batch, tuple(sorted(shared.items())), tuple(sorted(numbers.items()))


def joined(plan: Plan, updates: Sequence[Op], number: int = 0) -> Op:
    """The op that does what `updates` do, by the code that is expected to be the fastest of theirs
    and, of 16 bits, of wgmma, which large ones alone are worth otherwise; the `number` of it in its
    plan."""
    operands: dict[str, str] = {}
    attributes = {key: value for key, value in updates[0].attributes.items()
                  if key not in OWN_NUMBERS}
    for layer, update in enumerate(updates, 1):
        operands |= {f"{role}{layer}": name for role, name in update.operands.items()
                     if role in OWN}
        attributes |= {f"{key}{layer}": update.attributes[key] for key in OWN_NUMBERS}
    operands |= {role: name for role, name in updates[0].operands.items() if role not in OWN}
    impls = dict.fromkeys(update.impl for update in updates)
    if attributes["compute"] != "float16" and plan.target.has("wgmma") \
            and all(plan[operands[role]].itemsize == 2 for role in ("dz1", "x1")):
        impls |= {"wgmma": None}
    found = [Op(LAYERS, f"{LAYERS}{number or ''}", operands, attributes, impl) for impl in impls]
    return min(found, key=lambda op: predicted(op.impl, product_of(op, plan), plan.target))


def worth(plan: Plan, updates: Sequence[Op]) -> bool:
    """Whether one launch is faster than several: where all become possible at once, as one op made
    all of the gradients that they are of. In a chain of input gradients those of upper layers run
    beside these."""
    behind = {id(plan.producer(update.operands["dz"], update)) for update in updates}
    return len(behind) == 1


def _rewrite(plan: Plan) -> Plan | str:
    groups: dict[Hashable, list[Op]] = {}
    for op in plan.ops:
        if op.kind in UPDATES and op.impl in PREDICTED:
            groups.setdefault(_alike(op, plan), []).append(op)
    changes: list[tuple[list[Op], list[Op]]] = []
    for group in groups.values():
        parts = -(-len(group) // MOST_LAYERS)
        for part in range(parts):
            updates = group[part::parts]
            if len(updates) > 1 and worth(plan, updates):
                changes.append((updates, [joined(plan, updates, len(changes))]))
    return plan.substitute_all(changes) if changes else "no two updates by tensor cores that " \
        "differ in their layers only, and of which one op made all gradients"


FUSION = Fusion("updates", "the updates of several layers' weights by tensor cores in one launch",
                _rewrite)
