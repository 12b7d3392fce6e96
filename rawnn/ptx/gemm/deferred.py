"""Updates that a step leaves to the next forward GEMM of its layer (ptx/gemm/deferred.cu), for
batches of a few rows, whose steps are bound by the memory traffic of weights.

The forward GEMM of step s + 1 reads the weights that the update of step s has written: one kernel
does both, and reads them once. The gradient of a few rows takes so few instructions that it is
computed where it is used, and so the new weights need not be stored either. The kernel of the next
step computes them again, with its own update behind it; every few steps a kernel stores them. That
needs the factors of the gradients of all these steps, in buffers of their own.

`fuse` marks the updates. Kernels take their place where a plan is unrolled
(rawnn/plan/merging.py), as a plan of one step has no next GEMM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from rawnn.common.dtypes import LOW_PRECISION, c_type, rounded
from rawnn.model.activations import activation, functor
from rawnn.model.optimizers import UPDATE_RULES, UpdateRule
from rawnn.plan.merging import DEFERRABLE, DEFERS
from rawnn.plan.op import OPS, Attributes, Op, Reference, define
from rawnn.plan.ops.common import Array, multiply
from rawnn.plan.plan import Plan
from rawnn.ptx.family import Family, Fusion
from rawnn.ptx.gemm.tiles import MAIN_LOOPS
from rawnn.ptx.kernel_registry import Geometry, KernelImpl, Scalars, Shape, ceil, flag, types
from rawnn.ptx.optimizers.updates import CONTEXT

MOST_ROWS = 4
"""Rows of the batch, at most: each takes a multiplication for every weight in the gradient and in
the GEMM, outside tensor cores, and a load from the L1 cache for every few weights."""
MOST_FACTORS = 8
"""Rows of all steps whose updates one kernel computes, at most: a thread keeps the factors of their
gradients in registers."""
MOST_STEPS = 4
"""Steps of which a kernel computes the updates, at most. Four steps read weights and state four
times and store them once. With Adam a fifth update would take longer than reading them."""
LEAST_WEIGHTS = 1 << 21
"""Weights from which updates are deferred, as from which small-batch GEMMs stream theirs."""
IMPL = "deferred"

_THREADS = 256
_BLOCKS = 8
"""Blocks for each multiprocessor: more than are resident, so that all end at about one time."""
_EARLIER = range(1, MOST_STEPS)
_FACTORS = tuple(f"{role}{back or ''}" for back in range(MOST_STEPS) for role in ("dz", "x"))
_RULES = [rule for rule in UPDATE_RULES.values() if rule.is_fused and not rule.code]


def steps_at_once(batch: int) -> int:
    """Steps whose updates one kernel may compute."""
    return min(MOST_STEPS, MOST_FACTORS // batch)


# -- ops -------------------------------------------------------------------------------------------


def _forward_of(rule: UpdateRule, *, stores: bool) -> Reference:
    update = OPS[rule.fused_kind].reference
    state = ("w", *rule.keeps, "bias", *(f"bias_{name}" for name in rule.keeps))

    def reference(t: SimpleNamespace, a: Attributes) -> None:
        new = SimpleNamespace(**vars(t))
        if not stores:
            for name in state:
                if hasattr(t, name):
                    setattr(new, name, getattr(t, name).copy())
        offset = int(a.get("offset", 0))
        settings = {"copy_scale": 1.0, "stochastic": False, **a}
        earlier = [back for back in _EARLIER if hasattr(t, f"dz{back}")]
        for back in reversed((0, *earlier)):
            new.dz, new.x = (getattr(t, f"{role}{back or ''}") for role in ("dz", "x"))
            update(new, {**settings, "offset": offset - back})
        if hasattr(t, "a"):
            z = multiply(a, t.a, _as_stored(new.w, a).T)
            if hasattr(t, "bias"):
                z = z + new.bias
            t.c[...] = activation(a["activation"]).function(z) if a["activation"] else z

    again = "" if stores else ", which are not stored"
    reference.__doc__ = f"{rule.fused_kind} of one or several steps, and the next step's " \
                        f"c = act(a w^T + bias) with the new weights{again}."
    return reference


def _as_stored(w: Array, a: Attributes) -> Array:
    """The weights that the GEMM reads: those of the copy, where they have one."""
    dtype = str(a.get("dtype", "float32"))
    return rounded(w, dtype) if dtype in LOW_PRECISION and w.dtype == np.float32 else w


def _kinds(rule: UpdateRule) -> tuple[str, str]:
    """The op that stores the new weights, and the one that does not."""
    return f"{rule.kind}_forward", f"{rule.kind}_recomputed"


for _rule in _RULES:
    _spec = OPS[_rule.fused_kind]
    _unused = ("dz", "x", "loss_scale", "overflow")
    _own = tuple(role for role in _spec.reads if role not in _unused)
    _optional = (*(role for role in _spec.optional if role not in _unused), *_FACTORS[2:])
    _stored, _recomputed = _kinds(_rule)
    define(_stored, reads=(*_FACTORS, *_own, "a"), writes=(*_spec.writes, "c"),
           optional=(*_optional, "a", "c"))(_forward_of(_rule, stores=True))
    define(_recomputed, reads=(*_FACTORS, *_own, "a"), writes=("c",),
           optional=tuple(role for role in _optional if role != "copy"))(
               _forward_of(_rule, stores=False))


# -- where updates are deferred --------------------------------------------------------------------


def _rewrite(plan: Plan) -> Plan | str:
    """`plan` with the attribute `defers` in updates that may be deferred: the steps whose updates
    one kernel computes."""
    if not plan.target.gpu:
        return "the plan is for the host"
    if plan.batch > MOST_ROWS:
        return f"the batch has {plan.batch} rows, and one row takes a multiplication for every " \
               f"weight outside tensor cores: at most {MOST_ROWS}"
    deferred = {id(op) for op in plan.ops if _fits(plan, op)}
    if not deferred:
        return f"no update by tensor cores of {LEAST_WEIGHTS:,} float32 weights or more whose " \
               f"layer's GEMM could be in one kernel with it"
    steps = steps_at_once(plan.batch)
    return plan.map_ops(lambda op: op if id(op) not in deferred else
                        replace(op, attributes={**op.attributes, DEFERS: steps}))


def _fits(plan: Plan, update: Op) -> bool:
    rule = next((rule for rule in _RULES if rule.fused_kind == update.kind), None)
    if rule is None or not (MAIN_LOOPS.get(update.impl) or update.impl == "skinny"):
        return False
    w, dz, x = (plan[update.operands[role]] for role in ("w", "dz", "x"))
    copy = plan[update.operands["copy"]].dtype if "copy" in update.operands else "float32"
    a = update.attributes
    return w.dtype == "float32" and w.shape[0] * w.shape[1] >= LEAST_WEIGHTS \
        and dz.dtype == x.dtype == copy and copy in ("float32", "float16", "bfloat16") \
        and a["compute"] != "float16" and a.get("copy_scale", 1.0) == 1.0 \
        and "loss_scale" not in update.operands \
        and any(_is_forward(plan, update, op) for op in plan.ops)


def _is_forward(plan: Plan, update: Op, gemm: Op) -> bool:
    """Whether an op is the forward GEMM of the weights that `update` changes, and nothing more than
    bias and activation."""
    a = gemm.attributes
    return gemm.kind == "matmul" and a["layout"] == "nt" \
        and gemm.operands["b"] == update.operands.get("copy", update.operands["w"]) \
        and gemm.operands.get("bias") == update.operands.get("bias") \
        and set(gemm.operands) <= {"a", "b", "bias", "c"} \
        and a["alpha"] == 1.0 and a["beta"] == 0.0 and not a["slope"] \
        and plan[gemm.operands["a"]].dtype == plan[update.operands["x"]].dtype


def _defers(plan: Plan, update: Op, gemm: Op) -> bool:
    return DEFERS in update.attributes and _is_forward(plan, update, gemm)


def _merged(updates: Sequence[Op], gemm: Op | None, stores: bool, plan: Plan) -> Op:
    """The op that does `updates`, the last of which is of its own step, and then `gemm`."""
    *earlier, last = updates
    rule = next(rule for rule in _RULES if rule.fused_kind == last.kind)
    operands = {role: name for role, name in last.operands.items() if stores or role != "copy"}
    for back, op in enumerate(reversed(earlier), 1):
        operands |= {f"{role}{back}": op.operands[role] for role in ("dz", "x")}
    words = [last.own_name]
    attributes = {name: value for name, value in last.attributes.items()
                  if name not in ("stochastic", "seed", "stream", "copy_scale", "choice", DEFERS)}
    attributes |= {"steps_at_once": len(updates), "activation": "",
                   "dtype": plan[last.operands.get("copy", last.operands["w"])].dtype}
    if gemm is not None:
        operands |= {"a": gemm.operands["a"], "c": gemm.operands["c"]}
        attributes["activation"] = gemm.attributes["activation"]
        words.append(gemm.own_name)
    name = "+".join(words) + (f".{len(updates)}" if len(updates) > 1 else "") \
        + ("" if stores else ".recomputed")
    step = (gemm or last).name.rpartition("@")[2]
    return Op(_kinds(rule)[not stores], f"{name}@{step}", operands, attributes, IMPL, name,
              last.views)


for _rule in _RULES:
    DEFERRABLE[_rule.fused_kind] = (_defers, _merged)


# -- launches --------------------------------------------------------------------------------------


def _template(op: Op, plan: Plan) -> list[str]:
    stores = "w" in op.spec.writes
    a = op.attributes
    return [*types(op, plan, "x"), c_type(a["dtype"]), *types(op, plan, "c"),
            functor(a["activation"]), str(plan[op.operands["dz"]].shape[0]),
            str(a["steps_at_once"]), *([flag("a" in op.operands)] if stores else [])]


def _sizes(op: Op, plan: Plan) -> Scalars:
    rows, cols = plan[op.operands["w"]].shape
    return {"rows": rows, "cols": cols, "BATCH": plan[op.operands["dz"]].shape[0],
            "SPREAD": _BLOCKS * plan.target.multiprocessors}


def _geometry(rows_at_once: int) -> Callable[[Scalars], Geometry]:
    def geometry(s: Scalars) -> Geometry:
        rows = rows_at_once if s["BATCH"] <= 2 else 2
        return (min(ceil(s["rows"], rows), int(s["SPREAD"])), 1, 1), (_THREADS, 1, 1)

    return geometry


_WEIGHTS: Shape = ("rows", "cols")
FUSION = Fusion(
    "deferred", "update and the next step's forward GEMM of a large layer at a batch of few rows; "
                "the new weights are stored every few steps", _rewrite)
FAMILY = Family("deferred", f"updates with the next step's forward GEMM, of layers of 2 million "
                f"weights and more, for a batch of up to {MOST_ROWS}", (), FUSION)

for _rule in _RULES:
    _states = {**dict.fromkeys(("w", *_rule.keeps, "copy"), _WEIGHTS),
               **dict.fromkeys(("bias", *(f"bias_{name}" for name in _rule.keeps)), ("rows",))}
    _shapes: dict[str, Shape] = {
        **{role: ("BATCH", "rows" if role.startswith("dz") else "cols") for role in _FACTORS},
        **_states, **CONTEXT, "a": ("BATCH", "cols"), "c": ("BATCH", "rows")}
    for _kind in _kinds(_rule):
        FAMILY.register(_kind, IMPL, KernelImpl(
            "gemm/deferred.cu", _kind, _template, _sizes,
            _geometry(2 if _rule.keeps else 4), _shapes))
