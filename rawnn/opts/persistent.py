"""`persistent`: whole steps of training in one kernel, made from the plan of a step.

Weights, activations and the optimizer's state stay in shared memory from step to step; blocks share
layers and batch as a cost model says (rawnn/onchip).
"""

from __future__ import annotations

import re

from rawnn.errors import ConfigError
from rawnn.onchip.chip import NEEDED, chip_of
from rawnn.onchip.choose import Choice, choose
from rawnn.onchip.problem import Unsupported, problem_of
from rawnn.opts.registry import Comparison, Machine, Parameter, Rewritten, Toggle, register
from rawnn.policy import Policy
from rawnn.step.ops.train_steps import WORKSPACE, train_steps
from rawnn.step.plan import Plan
from rawnn.step.tensor import Role, Tensor


def rewrite(plan: Plan, ranks: int = 0, groups: int = 0) -> Plan:
    """`plan`, a step that trains, as one op. Raises Unsupported where no kernel does it."""
    if reason := plan.target.lacks(*NEEDED):
        raise Unsupported(reason)
    return as_one_op(plan, choose(problem_of(plan), chip_of(plan.target), ranks, groups))


def as_one_op(plan: Plan, chosen: Choice) -> Plan:
    """`plan`, a step that trains, as one op whose kernel shares the work as chosen."""
    workspaces = _workspaces(plan, chosen)
    op = train_steps(plan, workspaces, "persistent", chosen=chosen, decomposition=str(
        chosen.decomposition), expected=f"{chosen.us:.1f} us")
    return plan.with_tensors(*workspaces).substitute(plan.ops, [op])


def _workspaces(plan: Plan, chosen: Choice) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(f"{WORKSPACE}{name}", (words,), "int32" if name == "counters" else "float32",
               Role.SCRATCH)
        for name, words in chosen.layout.workspaces(plan["loss"].shape[0]).items())


def apply(plan: Plan, policy: Policy, value: str | int | None) -> Rewritten:
    """The partial batch that ends an epoch, and evaluations, are other plans: they stay as they
    are."""
    if plan.name != "train":
        return plan, policy
    ranks, groups = map(int, str(value).split("x")) if value != "auto" else (0, 0)
    try:
        return rewrite(plan, ranks, groups), policy
    except Unsupported as reason:
        raise ConfigError(f"the toggle 'persistent' cannot run so: the step {reason}") from None


def parse(text: str) -> str:
    if text != "auto" and not re.fullmatch(r"[1-9]\d?x[1-9]\d{0,2}", text):
        raise ConfigError(f"persistent={text}: give auto, or blocks of a cluster by clusters, as "
                          f"in 4x8")
    return text


def needs(machine: Machine) -> str | None:
    return machine.target.lacks(*NEEDED) or None


register(Toggle(
    "persistent",
    claim="whole steps in one kernel made for the network, with all that it trains on the chip; "
          "as many steps as a graph holds",
    source="Diamos et al., Persistent RNNs, 2016, for any network; PTX ISA: thread block clusters",
    group="kernels", apply=apply, needs=needs, needs_text="compute capability 8.0",
    parameter=Parameter("auto|RxG", parse, "auto"),
    implies=("preload", "arena", "nosync"), conflicts=("fp8", "sr"),
    comparisons=tuple(Comparison(workload, "preload,arena,nosync,graphs=epoch,fuse",
                                 ("persistent",))
                      for workload in ("linear", "wide128")),
))
