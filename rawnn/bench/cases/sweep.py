"""Time against width and against batch, with the peers as lines."""

from __future__ import annotations

from functools import partial

import click
import msgspec

from rawnn.bench.case import BUDGET, DEVICE, Case, peer_option
from rawnn.bench.harness import Harness
from rawnn.bench.peers.system_comparison import compare_systems, failures, task_of
from rawnn.bench.peers.training_problem import Problem
from rawnn.bench.render import peer_programs as shown
from rawnn.bench.render.networks import OURS
from rawnn.bench.render.view import View
from rawnn.bench.suites import Count, Settings, Suites
from rawnn.common.errors import unknown
from rawnn.engine.config import parse_layers


class SweepSuite(Settings, frozen=True, kw_only=True):
    """`bench sweep`: every network with every batch, by ours in `sets` (numbers:toggles) and by the
    peers; epochs of `steps`."""

    name: str
    layers: list[str]
    batches: list[Count]
    sets: list[str]
    lr: float = 0.003
    steps: Count = 128
    systems: list[str] = msgspec.field(default_factory=lambda: ["torch", "jax"])


def measure(harness: Harness, suites: Suites, *, names: tuple[str, ...], peers: tuple[str, ...],
            device: str) -> None:
    """Time networks of growing width, or with growing batches, and the peers on the same.

    NAMEs are those of the sweeps in bench.toml (width and batch); all of them unless some are
    given.
    """
    every: list[SweepSuite] = suites.sweep
    known = [s.name for s in every]
    for name in names:
        if name not in known:
            raise unknown("sweep", name, known)
    tables = [s for s in every if not names or s.name in names]
    usual = dict.fromkeys(name for s in tables for name in s.systems)
    swept = {p.name: (s, p) for s in tables for p in problems(s)}

    def forms(problem: Problem, system: str) -> list[str]:
        """Ours as each sweep names them, and the peers' fastest forms; JAX's true float32, which is
        not one of them, is left out."""
        return swept[problem.name][0].sets if system == OURS else \
            ["tf32", "bf16"] if system == "jax" else []

    compare_systems(harness, [task_of(p, f"sweep/{name}") for name, (_, p) in swept.items()],
                    peers, tuple(usual), device, forms)


def problems(suite: SweepSuite) -> list[Problem]:
    """The networks of a sweep, with every batch. Raises ConfigError for layers that are none."""
    return [Problem(
        name=f"{suite.name} {'-'.join(map(str, sizes))} batch {batch}", seed=0, layers=sizes,
        batch=batch, loss="cross_entropy", optimizer="sgd", lr=suite.lr, steps=suite.steps)
        for sizes in map(parse_layers, suite.layers) for batch in suite.batches]


CASE = Case("sweep", measure, (
    click.argument("names", nargs=-1, metavar="[NAME]..."), peer_option("torch and jax"),
    DEVICE, BUDGET), partial(failures, "sweep"), has_bar=False, settings=list[SweepSuite],
    view=View(
        "Width and batch", "The fastest variant of each system and precision.",
        shown.programs("sweep"), shown.sweep_charts))
