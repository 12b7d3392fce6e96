"""`persistent`: whole steps of training in one kernel, generated from the plan of a step.

Weights, activations and optimizer state stay in shared memory from step to step. A cost model
chooses how thread blocks share layers and batch (rawnn/persistent).
"""

from __future__ import annotations

from rawnn.common.errors import ConfigError
from rawnn.opts.registry import Machine, Parameter, Rewritten, Toggle, register
from rawnn.persistent.chip import NEEDED, chip_of
from rawnn.persistent.choose import Choice, choose
from rawnn.persistent.layout import COUNTS
from rawnn.persistent.problem import Unsupported, problem_of
from rawnn.persistent.rounding import with_rounded_inputs
from rawnn.persistent.sharding import Sharding
from rawnn.persistent.spelling import exactly, parse_sharding
from rawnn.plan.ops.train_steps import KIND, WORKSPACE, train_steps
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy
from rawnn.plan.tensor import Role, Tensor

MAX_SHUFFLED, MAX_SHUFFLED_PER_THREAD = 16384, 4
"""Most examples for which the kernel computes the next epoch's order, in all and per thread. For
more, a separate kernel that has the whole GPU is faster."""


def rewrite(plan: Plan, tp_size: int = 0, dp_size: int = 0, threads: int = 0,
            boundaries: str = "", micro_batches: int = 1, transport: str = "",
            resident: int = 0, peers: int = 1) -> Plan:
    """`plan`, a training step, as one op. Its inputs are rounded if that is done before the steps.

    The cost model chooses a sharding of `tp_size` x `dp_size` blocks (0: any number). With
    `threads` and `boundaries` it is exactly the one asked for. Raises Unsupported if no kernel can
    do it."""
    if reason := plan.target.lacks(*NEEDED):
        raise Unsupported(reason)
    problem, chip = problem_of(plan), chip_of(plan.target)
    return as_one_op(plan, exactly(problem, chip, tp_size, dp_size, threads, boundaries,
                                   micro_batches, transport, resident, peers)
                     if boundaries else choose(problem, chip, tp_size, dp_size))


def as_one_op(plan: Plan, chosen: Choice) -> Plan:
    """`plan`, a training step, as one op whose kernel has the sharding that was chosen."""
    workspaces = _workspaces(plan, chosen)
    threads = chosen.sharding.blocks * chosen.sharding.threads
    op = train_steps(plan, workspaces, "persistent", choice=chosen, sharding=str(
        chosen.sharding), expected=f"{chosen.us:.1f} us", max_shuffled=min(
        MAX_SHUFFLED, MAX_SHUFFLED_PER_THREAD * threads), **_seed(plan))
    return plan.with_tensors(*workspaces).substitute(plan.ops, [op])


def _seed(plan: Plan) -> dict[str, int]:
    """The seed of stochastic rounding, if weights are rounded stochastically."""
    seeds = [op.attributes["seed"] for op in plan.ops if op.attributes.get("stochastic")]
    return {"seed": seeds[0]} if seeds else {}


def _workspaces(plan: Plan, chosen: Choice) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(f"{WORKSPACE}{name}", (words,), "int32" if name in COUNTS else "float32",
               Role.SCRATCH, symbol=name)
        for name, words in chosen.layout.workspaces(plan["loss"].shape[0]).items())


def apply(plan: Plan, policy: Policy, value: str | int | None) -> Rewritten:
    """Evaluations are other plans and do not change. Nor does the partial batch that ends an epoch,
    unless there are full ones: then rawnn/plan/merging.py merges it into the op."""
    if plan.name not in ("train", "partial"):
        return plan, policy
    plan = with_rounded_inputs(plan)
    if plan.name == "partial":
        return plan, policy
    try:
        return rewrite(plan, *(parse_sharding(str(value)) or ())), policy
    except Unsupported as reason:
        raise ConfigError(f"the toggle 'persistent' cannot run so: the step {reason}") from None


def parse(text: str) -> str:
    if text != "auto" and not parse_sharding(text):
        raise ConfigError(f"persistent={text}: give auto, or a sharding: tp_size x dp_size blocks "
                          f"as in 4x8, with threads of a block and a letter for each boundary of "
                          f"the layers as in 4x8:256:FSGF, exchanges via L2 as in "
                          f"4x8@l2:256:FSGF, operands that stream from L2 as in "
                          f"32x1@stream:512:FGGGF, micro-batches as in 4x8:256:FSGF:2, and "
                          f"blocks that share a multiprocessor as in 1x1:128x2:FFFF")
    return text


def resolved_value(value: str | int | None, plan: Plan) -> str | int | None:
    """The sharding of the kernel, in full."""
    for op in plan.find(kind=KIND):
        d: Sharding = op.attributes["choice"].sharding
        return d.text
    return value


def needs(machine: Machine) -> str | None:
    return machine.target.lacks(*NEEDED) or None


register(Toggle(
    "persistent",
    claim="whole steps in one kernel made for the network, with all that it trains on the chip; "
          "as many steps as a graph holds",
    source="Diamos et al., Persistent RNNs, 2016, for any network; PTX ISA: thread block clusters",
    group="kernels", apply=apply, needs=needs, needs_text="compute capability 8.0",
    parameter=Parameter("auto|TPxDP[[@TRANSPORT]:THREADS[xBLOCKS]:BOUNDARIES[:MICRO_BATCHES]]",
                        parse, "auto"),
    resolved_value=resolved_value, implies=("preload", "arena", "nosync"), conflicts=("fp8",),
))
