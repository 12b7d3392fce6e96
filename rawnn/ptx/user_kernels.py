"""A user's kernels in place of rawnn's: `--opt best,bias_relu=mine`.

An op that such a kernel runs gets a kind of its own, "bias_relu=mine", with the meaning of the
original kind. Rewrites that look for ops of a kind (the fusions, the step as one kernel, libraries)
do not match it, so it stays what the user wrote. `rawnn.lab.implementation` creates the entries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from rawnn.common.errors import ConfigError, nearest
from rawnn.model.activations import ACTIVATIONS, Activation
from rawnn.plan.op import OPS, Attributes, Op, OpSpec, Reference
from rawnn.plan.plan import Plan
from rawnn.ptx.kernel_registry import KERNELS, KernelImpl, Key, Scalars, Shape

IMPL = "own"
"""The implementation name of an op that a user's kernel runs."""
REPLACES = "replaces"
"""The attribute that stores the ops it replaces."""
_NOT_KERNELS = {"upload": "the driver copies batches", "train_steps": "its kernel is written anew "
                "for every network", "advance": "graphs move the cursor by it",
                "epoch_boundary": "it is shuffle and tick in one: replace these",
                **dict.fromkeys(("train_members", "evaluate_members", "each_member"),
                                "its kernel is written anew for every network"),
                **dict.fromkeys(("initialise_members", "member_schedule", "member_orders",
                                 "member_means"),
                                "networks that are trained at once have their own")}

_OUTSIDE_STEPS = ("initialise", "cast", "shuffle", "schedule", "tick")
"""Ops that run before and after the steps (rawnn/plan/epoch_plans.py)."""

Site = tuple[str, Scalars]
"""An instance of a kernel, with every number of an op that it was asked to run."""


@dataclass(eq=False)
class UserKernel:
    """A kernel that runs ops of the kind `op`, selected as `op`=`name`.

    `where(op, plan)` gives the reason why an op keeps rawnn's kernel, or "". `fits(op, plan)`
    raises ConfigError for an op that the kernel cannot run. `reference` is its effect on the
    simulated GPU. `sites` are the launches that plans have requested; the simulated GPU finds by
    them what a launch computes.
    """

    op: str
    name: str
    kernel: KernelImpl
    where: Callable[[Op, Plan], str]
    fits: Callable[[Op, Plan], None]
    reference: Reference
    sites: dict[Any, Site] = field(default_factory=dict)

    @property
    def word(self) -> str:
        """`op`=`name`, as it is typed; also the kind of the ops that it runs."""
        return f"{self.op}={self.name}"

    def __call__(self, reference: Reference) -> Reference:
        """Use as a decorator for the kernel's effect on the simulated GPU and on the host."""
        self.reference = reference
        OPS[self.word] = replace(OPS[self.word], reference=reference)
        return reference


USER_KERNELS: dict[str, UserKernel] = {}
"""Every registered user kernel, by `UserKernel.word`."""


def register(entry: UserKernel) -> UserKernel:
    """Make a kernel selectable; it replaces an earlier one of the same name."""
    OPS[entry.word] = replace(spec_of(entry.op), kind=entry.word, reference=entry.reference)
    USER_KERNELS[entry.word] = entry
    KERNELS[Key(entry.word, IMPL)] = entry.kernel
    return entry


def unregister(word: str) -> None:
    """Remove a kernel from the table."""
    del USER_KERNELS[word], OPS[word], KERNELS[Key(word, IMPL)]


def find_user_kernel(source: str, name: str) -> UserKernel | None:
    """The entry of the kernel `name` in the file `source`."""
    return next((entry for entry in USER_KERNELS.values()
                 if entry.kernel.source == source and entry.kernel.name == name), None)


# -- replaceable ops -------------------------------------------------------------------------------


def vocabulary() -> tuple[str, ...]:
    """The ops that a user's kernel can run."""
    return (*(kind for kind in OPS if kind not in USER_KERNELS and kind not in _NOT_KERNELS),
            *_biased_kinds())


def _biased_kinds() -> dict[str, Activation]:
    """Kinds that combine bias_add and an activation."""
    return {f"bias_{name}": activation for name, activation in ACTIVATIONS.items()}


def spec_of(kind: str) -> OpSpec:
    """The op spec of a kind in the vocabulary. Raises ConfigError, with the nearest name, for any
    other."""
    if kind in _NOT_KERNELS:
        raise ConfigError(f"no kernel can take the place of the op '{kind}': {_NOT_KERNELS[kind]}")
    if kind in OPS and kind not in USER_KERNELS:
        return OPS[kind]
    activation = _biased_kinds().get(kind)
    if activation is None:
        raise ConfigError(f"there is no op '{kind}'" + (
            nearest(str(kind), vocabulary()) or f"; the ops are {', '.join(vocabulary())}"))
    return _biased(activation)


def _biased(activation: Activation) -> OpSpec:
    """bias_add and activate as one op: a = activation(z + bias). If the slope needs the
    activation's input, z is overwritten with z + bias."""
    keeps = activation.saves == "input"

    def reference(t: SimpleNamespace, a: Attributes) -> None:
        z = t.z + t.bias
        if keeps:
            t.z[...] = z
        t.a[...] = activation.function(z)

    return OpSpec(f"bias_{activation.name}", ("z", "bias"), ("z", "a") if keeps else ("a",),
                  reference, summary=f"a = {activation.name}(z + bias)" + ("; z += bias" * keeps))


def shapes_of(kind: str, layout: str = "") -> dict[str, Shape]:
    """The extents of an op's operands, from the table of kernels."""
    found = base_of(kind, layout)
    if found is not None:
        return dict(KERNELS[found].shapes)
    if kind not in OPS:
        return {"z": ("rows", "cols"), "bias": ("cols",), "a": ("rows", "cols")}
    return {}


def base_of(kind: str, layout: str = "") -> Key | None:
    """A kernel of rawnn's for ops of the kind; a user's kernel names its sizes as that one does."""
    found = [key for key in KERNELS if key.kind == kind and layout in ("", key.layout)]
    order = ("naive", "fused", "tiled")
    return min(found, key=lambda key: order.index(key.impl) if key.impl in order else len(order),
               default=None)


# -- plan rewrite ----------------------------------------------------------------------------------


def with_user_kernels(plan: Plan) -> Plan:
    """`plan` with the ops that `plan.user_kernels` names run by those kernels. Raises ConfigError
    for an op that its kernel cannot run."""
    words = sorted(plan.user_kernels, key=lambda word: USER_KERNELS[word].op
                   in OPS)  # kinds that combine two ops come first
    for word in words:
        entry = USER_KERNELS[word]
        changes = []
        for gone, op in candidates(plan, entry.op):
            if entry.where(op, plan):
                continue
            entry.fits(op, plan)
            changes.append((gone, [replace(op, kind=word, impl=IMPL,
                                           attributes={**op.attributes, REPLACES: gone})]))
        plan = plan.substitute_all(changes)
    return plan


def candidates(plan: Plan, kind: str) -> list[tuple[tuple[Op, ...], Op]]:
    """The ops of a kind in the vocabulary, each with the ops of the plan it replaces: itself, or
    the two that it combines."""
    if kind in OPS:
        return [((op,), op) for op in plan.find(kind=kind)]
    activation = _biased_kinds()[kind]
    found: list[tuple[tuple[Op, ...], Op]] = []
    for bias in plan.find(kind="bias_add"):
        z = bias.operands["z"]
        applied = [op for op in plan.consumers(z, "activate")
                   if op.attributes["activation"] == activation.name]
        if applied and (activation.saves == "input"  # z is stored then, as others read it
                        or plan.consumers(z) == [bias, applied[0]]):
            operands = {**bias.operands, "a": applied[0].operands["a"]}
            found.append(((bias, applied[0]), Op(kind, applied[0].name, operands)))
    return found


def without_user_kernels(plan: Plan) -> Plan:
    """`plan` with rawnn's own ops in place of user ops."""
    return plan.substitute_all([([op], op.attributes[REPLACES]) for op in user_ops(plan)])


def user_ops(plan: Plan) -> list[Op]:
    """The ops of the plan that a user's kernels run."""
    return [op for op in plan.ops if op.kind in USER_KERNELS]


def lost_fusions(plan: Plan, without: Plan, rewritten: Plan) -> str:
    """The user ops of `plan` that a rewrite would have fused, in words, or "". `rewritten` is that
    rewrite of `without`, the same plan with rawnn's ops."""
    before, left = ({id(op) for op in each.ops} for each in (without, rewritten))
    lost = [op for op in user_ops(plan)
            if any(id(each) in before - left for each in op.attributes[REPLACES])]
    words = ", ".join(dict.fromkeys(op.kind for op in lost))
    return f"{words} computes {' and '.join(op.name for op in lost)}" if lost else ""


def unused(plan: Plan, word: str) -> str:
    """Why a user's kernel is not used in a step, or ""."""
    entry = USER_KERNELS[word]
    if entry.op in _OUTSIDE_STEPS or any(op.kind == word for op in plan.ops):
        return ""
    refused = [f"{op.name}: {entry.where(op, plan)}" for _, op in candidates(plan, entry.op)]
    if refused:
        return f"none of the ops '{entry.op}' is one for it ({'; '.join(refused)})"
    kinds = dict.fromkeys(op.kind for op in without_user_kernels(plan).ops)
    return f"the step has no op '{entry.op}': its ops are {', '.join(kinds)}"
