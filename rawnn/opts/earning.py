"""Whether `persistent` earns its place in `best`: by what its kernel is expected to take, against
what the same step takes launch by launch."""

from __future__ import annotations

from dataclasses import dataclass

from rawnn.network import Network
from rawnn.onchip.chip import chip_of
from rawnn.onchip.choose import choose
from rawnn.onchip.problem import Unsupported, problem_of
from rawnn.opts.registry import TOGGLES, Machine
from rawnn.policy import Policy
from rawnn.step.build import training_step
from rawnn.step.plan import Plan
from rawnn.step.recipe import Form, Recipe

COMPILATION = 1.5e6
"""Microseconds that a generated kernel takes to compile where it is not cached, about: what it
saves over a whole run must be more. The state of the cache does not count, so that a run is the
same whether or not it was run before."""

NODE = 3.2
"""Microseconds a node of a step that is one chain of small kernels: 34-27-26 at batch 25, 19 nodes
of Adam, takes 44 us in an epoch's graph on an H200, 784-128-128-128-10 at batch 32 in float32 29
nodes 61 us."""
RATE = {"": 25e6, "tf32": 120e6, "bf16": 200e6}
"""Floating-point operations a microsecond that launches of products reach on an H200 when they are
large, by number format."""


@dataclass(frozen=True)
class Verdict:
    """Whether `best` takes persistent, and why, in a sentence; nothing where it was no question."""

    taken: bool
    why: str = ""


def judge(network: Network, recipe: Recipe, form: Form, numbers: str, machine: Machine,
          measured: float | None = None) -> Verdict:
    """Whether the kernel is expected to be faster than the launches, and over the run's steps by
    more than its compilation takes. `measured` is what the launches are known to take, in
    microseconds a step."""
    if numbers not in RATE or TOGGLES["persistent"].needs(machine):
        return Verdict(False)
    plan = _step(network, recipe, form, numbers)
    try:
        chosen = choose(problem_of(plan), chip_of(machine.target))
    except Unsupported as reason:
        return Verdict(False, f"best leaves persistent out: the step {reason.reason}")
    launches = measured or launched(plan, numbers)
    if chosen.us >= launches:
        return Verdict(False, f"best leaves persistent out: {chosen.us:.0f} us a step are expected "
                              f"of it, {launches:.0f} of launches")
    steps = recipe.updates(form.examples) * recipe.epochs
    needed = COMPILATION / (launches - chosen.us)
    if steps < needed:
        return Verdict(False, f"best leaves persistent out: {steps} steps are too few to earn its "
                              f"compilation; from about {needed:.0f} on it takes it")
    return Verdict(True, f"best takes persistent: {chosen.us:.1f} us a step are expected of it "
                         f"({chosen.decomposition}), {launches:.0f} of launches")


def _step(network: Network, recipe: Recipe, form: Form, numbers: str) -> Plan:
    plan = training_step(network, recipe, form)
    for name in filter(None, ("preload", numbers)):
        plan, _ = TOGGLES[name].apply(plan, Policy(), TOGGLES[name].parse(None))
    return plan


def launched(plan: Plan, numbers: str) -> float:
    """About what a step takes launch by launch, in microseconds: its nodes one behind the other,
    and its arithmetic. `fuse` leaves about half of the baseline's ops."""
    work: float = sum(2.0 * op.attributes["m"] * op.attributes["n"] * op.attributes["k"]
               for op in plan.find(kind="matmul"))
    nodes = sum(op.kind not in FUSED_AWAY for op in plan.ops)
    return NODE * nodes + work / RATE[numbers]


FUSED_AWAY = ("bias_add", "activate", "activate_backward", "softmax", "accuracy", "cross_entropy",
              "mse", "bce", "bce_accuracy", "sgd")
"""Kinds of ops that become part of others."""


def usual_form(network: Network, examples: int) -> Form:
    """The form of data that nobody has told of."""
    labelled = network.answers.answers == "labels"
    return Form(max(examples, 1), labels="uint8" if labelled else "", scale=1 / 255,
                targets=0 if labelled else network.outputs)

