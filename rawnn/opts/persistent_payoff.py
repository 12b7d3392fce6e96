"""Whether the preset `best` uses `persistent`: if its kernel is predicted to be faster than
launches, and the run is long enough to repay its longer compilation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, prod

from rawnn.common.dtypes import FLOATS
from rawnn.model.layers import Network
from rawnn.opts.registry import TOGGLES, Machine
from rawnn.persistent.chip import chip_of
from rawnn.persistent.choose import Choice, choose, priced
from rawnn.persistent.cost import FITTED_AT
from rawnn.persistent.layout import layout_of
from rawnn.persistent.problem import Problem, Unsupported, problem_of
from rawnn.persistent.rounding import with_rounded_inputs
from rawnn.persistent.sharding import Sharding
from rawnn.plan.build import training_step
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy
from rawnn.plan.recipe import DataSpec, Recipe
from rawnn.plan.tensor import Role

COMPILE_US_PER_GEMM, COMPILE_US_PER_GEMM_WITH_STATE = 0.11e6, 0.03e6
"""Microseconds that NVRTC takes for each GEMM of the generated kernel, and the extra time for each
GEMM if the optimizer has state.

Fitted to sampled networks in float32, tf32 and bf16 with NVRTC 12.9 and 13. Half of the predictions
are within 15 % of the measurement, nine in ten within 40 %. docs/kernel-compilation.md has the data
and later corrections."""
COMPILE_US_OF_LAUNCHES = 0.45e6
"""Microseconds to compile the kernels of a run by launches, all in parallel: the slowest kernel of
a network takes 0.35 to 0.6 s."""
MIN_DELAY_US = 0.0
"""Lower bound of the extra time before the first step: none where both compile equally long. Of
nine cold starts each of 784-10 at batch 128, kernels were ready after 0.59 s with a generated one
and 0.64 s without, and the graph of one node was set up sooner than that of 936 (medians, H100, 16
cores)."""


@dataclass(frozen=True)
class LaunchCosts:
    """Coefficients of the time of a step by launches, which has three launches for each layer, and
    one more.

    node: microseconds of a launch in a graph.
    values: activations that pass between launches per microsecond (the inputs of the batch, and
        the outputs of each layer).
    odd: the same, in addition, for layers whose width is no multiple of WIDTH_MULTIPLE.
    rate: floating-point operations of GEMMs per microsecond.
    kept: elements of parameters and optimizer state that are updated per microsecond.
    """

    node: float
    values: float
    odd: float
    rate: float
    kept: float


WIDTH_MULTIPLE = 8
LAUNCH_COSTS = {"": LaunchCosts(1.54, 96.4e3, 257e3, 74.8e6, 0.258e6),
                "tf32": LaunchCosts(1.45, 148e3, 161e3, 94.6e6, 0.489e6),
                "bf16": LaunchCosts(1.29, 174e3, 481e3, 386e6, 0.367e6)}
LAUNCH_COSTS |= dict.fromkeys(("fp16", "sr"), LAUNCH_COSTS["bf16"])
"""By precision: a least-squares fit of relative errors to sampled networks that ran by launches
(one to six layers of 5 to 992 units, batches of 11 to 3840, an H200). With a network's own runs
held out, nine in ten predictions are within 16 % in float32, 20 % in tf32 and 25 % in bf16. fp16
and sr take the figures of bf16. docs/notes/cost-fits.md has the runs and corrections of the fit."""


@dataclass(frozen=True)
class Estimate:
    """Expected microseconds of a step.

    launches: by launches.
    choice: the persistent kernel; None where it cannot run, or only in micro-batches.
    later: extra microseconds before the first step with it.
    """

    launches: float
    choice: Choice | None = None
    later: float = 0.0

    @property
    def persistent(self) -> float:
        """Of a step with the persistent kernel."""
        return inf if self.choice is None else self.choice.us

    @property
    def steps_needed(self) -> float:
        """Steps that earn the compilation of the persistent kernel."""
        gained = self.launches - self.persistent
        return self.later / gained if gained > 0 else inf

    def us(self, steps: int) -> float:
        """Of a step of a run of so many, by what is then taken."""
        return self.persistent if steps >= self.steps_needed else self.launches


@dataclass(frozen=True)
class Verdict:
    """Whether `best` uses persistent, and why, in a sentence ("" if persistent cannot run).
    `estimate` is None where nothing is expected of a step."""

    taken: bool
    why: str = ""
    estimate: Estimate | None = None


def evaluate_payoff(network: Network, recipe: Recipe, data_spec: DataSpec, precision: str,
                    machine: Machine, launch_us: float | None = None) -> Verdict:
    """Predict whether the kernel is faster than launches, and whether over the run's steps it gains
    more than its compilation costs. `launch_us` is the measured time of a step by launches in
    microseconds."""
    if precision not in LAUNCH_COSTS or TOGGLES["persistent"].needs(machine):
        return Verdict(False)
    plan = _step(network, recipe, data_spec, precision)
    launches = _launches_us(plan, precision, machine, launch_us)
    try:
        problem = problem_of(plan)
        chosen = choose(problem, chip_of(machine.target))
    except Unsupported as reason:
        return Verdict(False, f"best leaves persistent out: the step {reason.reason}",
                       Estimate(launches))
    if chosen.sharding.micro_batches > 1:
        return Verdict(False, f"best leaves persistent out: the batch fits the chip in "
                              f"{chosen.sharding.micro_batches} micro-batches only, which took "
                              f"longer than launches in all networks that were timed; "
                              f"{chosen.us:.0f} us a step are expected of it", Estimate(launches))
    chosen = chosen.launched(recipe.updates(data_spec.examples))
    found = Estimate(launches, chosen, extra_compile_us(problem))
    if chosen.us >= launches:
        return Verdict(False, f"best leaves persistent out: {chosen.us:.0f} us a step are expected "
                              f"of it, {launches:.0f} of launches", found)
    steps = recipe.updates(data_spec.examples) * recipe.epochs
    if steps < found.steps_needed:
        return Verdict(False, f"best leaves persistent out: {steps} steps are too few to earn its "
                              f"compilation, which delays a first run by about "
                              f"{found.later / 1e6:.2g} s more than launches' own; from about "
                              f"{found.steps_needed:.0f} on it takes it", found)
    return Verdict(True, f"best takes persistent: {chosen.us:.1f} us a step are expected of it "
                         f"({chosen.sharding}), {launches:.0f} of launches", found)


def estimate_sharding(network: Network, recipe: Recipe, data_spec: DataSpec, precision: str,
                      machine: Machine, launch_us: float | None, sharding: Sharding | None
                      ) -> Estimate:
    """What is expected of a step in another precision with the sharding that was chosen for one:
    at most so much of the sharding that would be chosen, without a search for it."""
    plan = _step(network, recipe, data_spec, precision)
    launches = _launches_us(plan, precision, machine, launch_us)
    try:
        problem = problem_of(plan)
    except Unsupported:
        return Estimate(launches)
    later = extra_compile_us(problem)
    if sharding is None:
        return Estimate(launches, later=later)
    chip = chip_of(machine.target)
    found = layout_of(replace(sharding, problem=problem), chip.shared)
    if found.nbytes > chip.shared:
        return Estimate(launches, later=later)
    choice = priced(found, chip).launched(recipe.updates(data_spec.examples))
    return Estimate(launches, choice, later)


def _launches_us(plan: Plan, precision: str, machine: Machine, measured: float | None) -> float:
    """Of a step by launches: as measured, or predicted."""
    clock = machine.target.clock or FITTED_AT  # measured times scale with the clock, as predictions
    return measured or predict_launches_us(plan, precision) * FITTED_AT / clock


def extra_compile_us(problem: Problem) -> float:
    """Extra microseconds before the first step with a generated kernel, compared with launches,
    if neither is in the cache: its compilation beyond that of the launches' kernels. The state of
    the cache has no influence, so that a run does not depend on earlier ones."""
    each = COMPILE_US_PER_GEMM + (COMPILE_US_PER_GEMM_WITH_STATE if problem.states else 0.0)
    return max(MIN_DELAY_US, count_gemms(problem) * each - COMPILE_US_OF_LAUNCHES)


def count_gemms(problem: Problem) -> int:
    """GEMMs of a step: for each layer the forward pass, the weight gradient and, except in the
    first layer, the input gradient."""
    return 3 * problem.depth - 1


def _step(network: Network, recipe: Recipe, data_spec: DataSpec, precision: str) -> Plan:
    plan = training_step(network, recipe, data_spec)
    for name in ("preload", *((*TOGGLES[precision].implies, precision) if precision else ())):
        plan, _ = TOGGLES[name].apply(plan, Policy(), TOGGLES[name].parse(None))
    return with_rounded_inputs(plan)


def predict_launches_us(plan: Plan, precision: str) -> float:
    """Predicted microseconds of a step by launches: the launches one after the other, the data that
    pass between them, the arithmetic and the updates."""
    gemms = plan.find(kind="matmul")
    work: float = sum(2.0 * op.attributes["m"] * op.attributes["n"] * op.attributes["k"]
                      for op in gemms)
    layers = sum(op.attributes["layout"] == "nt" for op in gemms)
    found = LAUNCH_COSTS[precision]
    kept = sum(prod(t.shape) for t in plan.tensors.values()
               if t.role in (Role.PARAMETER, Role.STATE) and t.dtype in FLOATS)
    widths = _widths(gemms)
    odd = sum(width for width in widths[1:] if width % WIDTH_MULTIPLE)
    us: float = found.node * (3 * layers + 1) + plan.batch * sum(widths) / found.values \
        + plan.batch * odd / found.odd + work / found.rate + kept / found.kept
    return us


def _widths(gemms: Sequence[Op]) -> list[int]:
    """Elements per example that pass between launches: the inputs of the first layer, and the
    outputs of each layer."""
    forward = [op.attributes for op in gemms if op.attributes["layout"] == "nt"]
    return [int(forward[0]["k"]), *(int(a["n"]) for a in forward)]


def default_data_spec(network: Network, examples: int) -> DataSpec:
    """The data spec that is assumed without a data set."""
    labelled = network.loss_spec.labelled
    return DataSpec(max(examples, 1), labels="uint8" if labelled else "", scale=1 / 255,
                    targets=0 if labelled else network.outputs)

