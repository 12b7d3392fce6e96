"""Random runs: a network, a small data set, toggles, a seed."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st

from rawnn.common.errors import ConfigError
from rawnn.cuda.device import Device
from rawnn.engine.runners.gpu import GpuRunner
from rawnn.engine.runners.host import HostRunner
from rawnn.engine.runners.prepared_run import PreparedRun, prepare
from rawnn.model.layers import Network
from rawnn.model.optimizers import Optimizer
from rawnn.opts import TOGGLES, select
from rawnn.plan.recipe import Recipe
from rawnn.sim import Simulation
from tests.catalogue import forms, legal
from tests.engine import CAPABLE, dataset_for, outcome

SGD = Optimizer(lr=0.1)
MODES = ("graphs=step", "graphs=1", "graphs=2", "graphs=3", "graphs=epoch", "graphs=while")


@st.composite
def toggles(draw: st.DrawFn, without: tuple[str, ...] = ()) -> str:
    """A set of toggles of the registry that go together, but for graphs and those of `without`;
    what excludes one that was drawn before is left out."""
    chosen: list[str] = []
    for name in draw(st.lists(st.sampled_from(sorted(TOGGLES)), unique=True, max_size=8)):
        word = draw(st.sampled_from(forms(name)))
        if name not in (*without, "graphs") and legal((*chosen, word)) and not refused_later(
                (*chosen, word)):
            chosen.append(word)
    return ",".join(chosen)


def refused_later(words: tuple[str, ...]) -> bool:
    """Whether a step cannot be rewritten so, which the registry does not know: the kernel that is a
    whole step sums no products in float16."""
    return "fp16=acc16" in words and any(word.startswith("persistent") for word in words)


@dataclass(frozen=True)
class Case:
    """`rest` examples are left over from the last whole batch; `tests` are in the test set; with
    `shuffled` the order is new in each epoch, with `partial` the rest makes a step of its own."""

    layers: tuple[int, ...]
    batch: int
    steps: int
    rest: int
    tests: int
    seed: int
    shuffled: bool
    partial: bool

    def work(self, opt: str, optimizer: Optimizer = SGD, schedule: str = "constant",
             **network: Any) -> PreparedRun:
        """`network` goes to Network. Raises ConfigError for toggles that do not go together."""
        examples = self.batch * self.steps + self.rest
        built = Network(self.layers, **network)
        data = dataset_for(built, examples, self.tests, self.seed)
        selection = select(f"none,{opt}", built, self.steps, CAPABLE)
        recipe = Recipe(self.batch, optimizer, seed=self.seed, shuffle=self.shuffled,
                        partial=self.partial, schedule=schedule)
        return prepare(built, data, selection, recipe, evaluation_batch=4)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """One to six layers of one to forty units, at times with an input that is long enough to be
    cut into slices."""
    width = st.integers(1, 40)
    features = draw(width | st.sampled_from([256, 264]))
    layers = (features, *draw(st.lists(width, min_size=1, max_size=6)))
    batch = draw(st.integers(1, 17))
    return Case(layers, batch, draw(st.integers(1, 4)), draw(st.integers(0, batch - 1)),
                draw(st.integers(1, 9)), draw(st.integers(0, 10_000)), draw(st.booleans()),
                draw(st.booleans()))


def on_host(case: Case, **options: Any) -> SimpleNamespace:
    """The baseline in float64; `options` go to `work`."""
    runner = HostRunner(case.work("none", **options), "float64")
    try:
        return outcome(runner)
    finally:
        runner.close()


def simulated(case: Case, opt: str) -> SimpleNamespace | None:
    """A run on a simulated GPU that must be left clean; None where the toggles are refused with
    their fix."""
    try:
        work = case.work(opt)
    except ConfigError as error:
        assert "add preload" in str(error)  # noqa: PT017 (either outcome is right)
        return None
    return on_simulated_gpu(work, case.seed)


def on_simulated_gpu(work: PreparedRun, seed: int) -> SimpleNamespace:
    """A run that must leave the simulated GPU clean, in an order of what nothing orders."""
    simulation = Simulation(seed=seed)
    device = Device(simulation.backend())
    try:
        runner = GpuRunner(device, work)
        try:
            found = outcome(runner)
        finally:
            runner.close()
    finally:
        device.close()
    simulation.assert_clean()
    return found
