"""The built-in workloads in other systems."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import click

from rawnn.bench.case import BUDGET, DEVICE, WORKLOADS, Case, peer_option
from rawnn.bench.harness import Harness
from rawnn.bench.peers.system_comparison import compare_systems, failures, task_of
from rawnn.bench.peers.training_problem import Problem
from rawnn.bench.render.networks import OURS
from rawnn.bench.render.peer_programs import headline, programs
from rawnn.bench.render.view import View
from rawnn.bench.suites import Count, Settings, Suites, check_workloads
from rawnn.data.synthetic import EXAMPLES
from rawnn.model.workloads import WORKLOADS as BUILT_IN
from rawnn.model.workloads import workload

OUR_FORMS = ("float32:best", "tf32:best,tf32", "bf16:best,bf16", "sr:best,sr")
PEER_DATASET = click.option("--dataset", type=click.Choice(["mnist", "synthetic"]),
                            default="mnist", show_default=True, help="The data set.")


class PeersSuite(Settings, frozen=True, kw_only=True):
    """`bench peers` and `bench curves`: workloads by name, their first `steps` steps, compared
    with the peers `systems`."""

    names: list[str]
    steps: Count
    systems: list[str]

    def __post_init__(self) -> None:
        check_workloads(self.names)


def measure(harness: Harness, suites: Suites, *, names: tuple[str, ...], peers: tuple[str, ...],
            steps: int | None, dataset: str, device: str) -> None:
    """Train the built-in workloads in NumPy, PyTorch, JAX and rawnn, alternately.

    Every system starts from the same weights and sees the same batches, and its losses are checked
    against the others'. A system that is not installed is left out by name.
    """
    suite: PeersSuite = suites.peers
    asked = of_workloads(names or suite.names, dataset, steps or suite.steps)
    compare_systems(harness, [task_of(p, f"peers/{p.name}") for p in asked], peers, suite.systems,
                    device, workload_forms)


def of_workloads(names: Sequence[str], dataset: str, steps: int) -> list[Problem]:
    """The built-in workloads as problems, all of them unless some are named. Raises ConfigError."""
    made = []
    for name in names or tuple(BUILT_IN):
        values = workload(name)
        examples = 60_000 if dataset == "mnist" else EXAMPLES
        made.append(Problem(
            name=name, seed=0, layers=tuple(values["layers"]), batch=values["batch"],
            loss="cross_entropy", optimizer="sgd", lr=values["lr"],
            bias=values.get("bias", True), shuffle=values.get("shuffle", False), data=dataset,
            steps=min(steps, examples // values["batch"])))
    return made


def workload_forms(problem: Problem, system: str) -> list[str]:
    """Every form that is known, those that people write included."""
    if system == "torch":
        return ["plain loop", "compiled loop", "graph", "graph, gathered first", "graph, compiled"]
    if system == OURS:
        return list(OUR_FORMS if problem.layers != (784, 10) else OUR_FORMS[:3])
    return []


CASE = Case("peers", measure, (
    WORKLOADS, peer_option("all that are installed"),
    click.option("--steps", type=click.IntRange(1),
                 help="Steps of an epoch, at most as many as the data have (256)."),
    PEER_DATASET, DEVICE, BUDGET), partial(failures, "peers"), has_bar=False,
    settings=PeersSuite, view=View(
        "Built-in workloads and peers", "Every program of every system.",
        lambda results: [*headline(results), *programs("peers")(results)]))
