"""Many small networks at once: named and random ensembles compared with the peers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

import click
from msgspec import Meta

from rawnn.bench.case import BUDGET, DEVICE, Case, part_option, peer_option
from rawnn.bench.cases.sample import thorough
from rawnn.bench.harness import Harness
from rawnn.bench.peers.ensemble import (
    CALL_EPOCHS,
    ENSEMBLE_VERSION,
    Ensemble,
    ensemble,
    is_large,
    reduced,
    sampled_ensemble,
)
from rawnn.bench.peers.rawnn_system import SETS
from rawnn.bench.peers.system_comparison import (
    Task,
    asked_part,
    compare_systems,
    device_of,
    failures,
    part_of,
    task_of,
    tasks_in,
)
from rawnn.bench.peers.training_problem import Loss, Problem, Rule
from rawnn.bench.render import ensembles as shown
from rawnn.bench.render.networks import OURS, PRECISIONS
from rawnn.bench.render.view import View
from rawnn.bench.suites import Count, Settings, Suites
from rawnn.common.errors import unknown
from rawnn.engine.config import parse_layers

SAMPLED = "sampled"
JAX = ("scan", "scan, unrolled 8", "scan, unrolled 4", "scan, padded", "scan, padded, unrolled 4",
       "scan, members last")
JAX_FEW = JAX[:2]
"""In bf16; in true float32 the first alone."""
TORCH = ("graph", "graph, compiled", "graph, vmap, compiled")
THOROUGH_MEMBERS = 1056
"""Named ensembles of so many members have the forms that are slow to make: true float32 of JAX and
inductor's kernels of PyTorch. Of random ones a few do, as in `bench sample`."""
ROUNDS = 4
"""Turns of a program, so that even one whose samples are long has eight; one that is FAR_SLOWER has
one turn, and as many samples as that takes."""
TIMER = {
    "step_us": "an epoch's time over its steps, of all members together. rawnn and JAX: wall clock "
               "around epochs that follow each other, until the device is done; PyTorch: events "
               "around replays of its graph. rawnn shuffles in that time and scores one row; the "
               "peers' order lies in memory",
    "setup_s": "wall clock of making a program ready, several at a time on all cores; of rawnn the "
               "call of call_s is in it",
    "call_s": f"wall clock of a call of rawnn.train_many for {CALL_EPOCHS} epochs, from Python to "
              f"the result, with an empty cache of kernels",
}


class NamedEnsemble(Settings, frozen=True, kw_only=True):
    """An ensemble of `bench many`: a network and how it is trained."""

    name: str
    layers: str
    batch: Count
    loss: Loss
    optimizer: Rule


class ManySuite(Settings, frozen=True, kw_only=True):
    """`bench many`: named `ensembles`, each of so many `members`; `n` random ones from `seed` on;
    compared with the peers `systems`."""

    ensembles: list[NamedEnsemble]
    members: list[Count]
    n: Count
    seed: Annotated[int, Meta(ge=0)]
    systems: list[str]


def measure(harness: Harness, suites: Suites, *, names: tuple[str, ...], members: tuple[int, ...],
            count: int | None, seed: int | None, precisions: tuple[str, ...],
            peers: tuple[str, ...], part: tuple[int, int] | None, device: str) -> None:
    """Train many small networks at once, alternately with JAX and PyTorch.

    NAMEs are ensembles of bench.toml (A, B, C, D), and `sampled` for random ones; all of them
    unless some are given. A file to be resumed says what was asked for.
    """
    device = device_of(device)
    suite: ManySuite = suites.many
    is_new = names or members or count is not None or seed is not None
    ensembles = [] if is_new else [t.problem for t in tasks_in(harness.results, "many")
                                   if isinstance(t.problem, Ensemble)]
    if not ensembles:
        ensembles = wanted_of(names, members or tuple(suite.members), count or suite.n,
                              suite.seed if seed is None else seed, suite)
    if device in ("host", "sim"):
        ensembles = [reduced(p) for p in ensembles]
    compare_systems(harness, [task_for(p) for p in ensembles], peers, suite.systems, device,
                    forms_of(ensembles, precisions or PRECISIONS, device),
                    partial(part_of, asked_part(harness, part)), TIMER, rounds=ROUNDS, at_once=8,
                    is_large=is_large)


def wanted_of(names: Sequence[str], members: Sequence[int], count: int, seed: int,
              suite: ManySuite) -> list[Ensemble]:
    """The ensembles of some names, all unless some are given. Raises ConfigError."""
    known = {e.name: e for e in suite.ensembles}
    for name in names:
        if name not in (*known, SAMPLED):
            raise unknown("ensemble", name, (*known, SAMPLED))
    sizes = sorted(members, key=lambda n: (n != THOROUGH_MEMBERS, n))  # what says most comes first
    made = [named(name, n, suite) for n in sizes for name in known if not names or name in names]
    if not names or SAMPLED in names:
        made += [sampled_named(n) for n in range(seed, seed + count)]
    return made


def named(name: str, members: int, suite: ManySuite) -> Ensemble:
    """An ensemble of bench.toml."""
    (found,) = (e for e in suite.ensembles if e.name == name)
    return ensemble(f"{name}/{members}", parse_layers(found.layers), found.batch, members,
                    found.loss, found.optimizer)


def sampled_named(seed: int) -> Ensemble:
    return sampled_ensemble(seed, f"{SAMPLED}/{seed}")


def task_for(problem: Ensemble) -> Task:
    """An ensemble as records identify it."""
    version = {"ensemble_version": ENSEMBLE_VERSION} if problem.name.startswith(SAMPLED) else {}
    task = task_of(problem, f"many/{problem.name}", members=problem.members, **version)
    return Task(problem, task.case, {k: v for k, v in task.conditions.items() if k != "run_steps"})


def forms_of(ensembles: Sequence[Ensemble], precisions: Sequence[str],
             device: str) -> Callable[[Problem, str], list[str]]:
    """The forms of each ensemble: every one of JAX in tf32, its default, and fewer elsewhere."""
    seeds = thorough([p.seed for p in ensembles if p.name.startswith(SAMPLED)])
    slow = {p.name for p in ensembles if p.members == THOROUGH_MEMBERS
            or (p.name.startswith(SAMPLED) and p.seed in seeds)}

    def forms(problem: Problem, system: str) -> list[str]:
        is_slow = problem.name in slow
        by_precision: dict[str, Sequence[str]]
        if system == OURS:
            by_precision = {n: (SETS[n],) for n in precisions}
        elif device in ("host", "sim"):
            return []
        elif system == "jax":
            is_alone = tuple(precisions) == ("float32",)
            few = {"tf32": JAX, "bf16": JAX_FEW,
                   "float32": JAX[:1] if is_slow or is_alone else ()}
            by_precision = {n: few[n] for n in precisions}
        else:
            by_precision = dict.fromkeys(precisions, TORCH if is_slow else TORCH[:1])
        return [f"{n}:{form}" for n, several in by_precision.items() for form in several]

    return forms


CASE = Case("many", measure, (
    click.argument("names", nargs=-1, metavar="[NAME]..."),
    click.option("--members", type=click.IntRange(1), multiple=True, metavar="N",
                 help="Members of the named ensembles; several may be given (bench.toml's)."),
    click.option("--count", type=click.IntRange(1), help="How many random ensembles (30)."),
    click.option("--seed", type=click.IntRange(0),
                 help="Seed of the first random ensemble (0); each has the next."),
    click.option("--precision", "precisions", type=click.Choice(PRECISIONS), multiple=True,
                 help="Precisions to compare in; several may be given (all)."),
    peer_option("torch and jax"), BUDGET,
    part_option("ensembles"), DEVICE),
    partial(failures, "many"), has_bar=False, settings=ManySuite, view=View(
        "Many networks at once", "Ensembles of small networks compared with the peers.",
        shown.tables, shown.charts_of))
