"""Random networks that nobody has tuned to, by `best` and in other systems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

import click
from msgspec import Meta

from rawnn.bench.case import BUDGET, DEVICE, Case, part_option, peer_option
from rawnn.bench.harness import Harness
from rawnn.bench.peers.system_comparison import (
    Task,
    asked_part,
    compare_systems,
    device_of,
    failures,
    task_of,
    tasks_in,
)
from rawnn.bench.peers.training_problem import (
    SAMPLE_VERSION,
    Problem,
    sampled,
    samples_of,
    smaller,
)
from rawnn.bench.render import random_networks as shown
from rawnn.bench.render.view import View
from rawnn.bench.suites import Count, Settings, Suites
from rawnn.common.errors import ConfigError

THOROUGH = 5
"""Networks of a sample for which PyTorch has inductor's kernels as well, and JAX true float32. Both
are slow to compile, and neither was the fastest of any of 32 networks on an H200 (commit
f97225a)."""


class SampleSuite(Settings, frozen=True, kw_only=True):
    """`bench sample`: how many random networks, from which seed on, compared with the peers
    `systems`."""

    n: Count
    seed: Annotated[int, Meta(ge=0)]
    systems: list[str]


def measure(harness: Harness, suites: Suites, *, count: int | None, seeds: tuple[int, ...],
            peers: tuple[str, ...], part: tuple[int, int] | None, device: str) -> None:
    """Time `best` in float32, tf32 and bf16 on random networks, compared with the same work in
    other systems.

    A network follows from its seed alone. A file to be resumed says which networks were asked for.
    """
    device = device_of(device)
    suite: SampleSuite = suites.sample
    tasks = tasks_in(harness.results, "sample") if count is None and not seeds else []
    if not tasks:
        tasks = [task_of(p, f"sample/{p.seed}", sample_version=SAMPLE_VERSION)
                 for p in random_networks(seeds or (suite.seed,), count or suite.n, device)]
    compare_systems(harness, tasks, peers, suite.systems, device,
                    forms_of([task.problem for task in tasks]),
                    partial(part_of, asked_part(harness, part)))


def random_networks(seeds: Sequence[int], count: int, device: str) -> list[Problem]:
    """The networks of `count` seeds from each of `seeds` on, each such sample after the other;
    small ones without a GPU. Raises ConfigError for samples that have a network in common or touch,
    as nobody could distinguish them."""
    first, *others = sorted(seeds)
    for before, seed in zip([first, *others], others, strict=False):
        if seed <= before + count:
            raise ConfigError(f"the samples of {count} networks from the seeds {before} and {seed} "
                              f"on are not apart: take seeds {count + 1} or more from each other")
    made = [sampled(n) for seed in seeds for n in range(seed, seed + count)]
    return made if device not in ("host", "sim") else [smaller(p) for p in made]


def thorough(seeds: Sequence[int]) -> set[int]:
    """Those that have the forms that are slow to make: a few of each sample, evenly spread."""
    found = set[int]()
    for several in samples_of(seeds):
        count = min(THOROUGH, len(several))
        found |= {several[i * len(several) // count] for i in range(count)}
    return found


def forms_of(problems: Sequence[Problem]) -> Callable[[Problem, str], list[str]]:
    """The forms of random networks: with those that are slow to make for a few of each sample."""
    slow = thorough([p.seed for p in problems])

    def forms(problem: Problem, system: str) -> list[str]:
        if system == "torch" and problem.seed in slow:
            return ["graph", "graph, gathered first", "graph, compiled"]
        if system == "jax" and problem.seed not in slow:
            return ["tf32", "bf16"]
        return []

    return forms


def part_of(part: tuple[int, int], tasks: Sequence[Task]) -> list[Task]:
    """The Kth of every N tasks, so that several GPUs share them. Those that take longest to be made
    ready are distributed over the parts first and begun first: one part had them all, and waited
    for the last."""
    number, count = part
    slow = thorough([task.problem.seed for task in tasks])
    order = sorted(tasks, key=lambda task: task.problem.seed not in slow)
    return order[number - 1::count]


CASE = Case("sample", measure, (
    click.option("--n", "count", type=click.IntRange(1), help="How many networks (30)."),
    click.option("--seed", "seeds", type=click.IntRange(0), multiple=True,
                 help="Seed of the first network (0); each has the next. Several may be given: a "
                      "sample of N networks from each."),
    peer_option("torch and jax"), BUDGET, part_option("networks"), DEVICE),
    partial(failures, "sample"), has_bar=False, settings=SampleSuite, view=View(
        "Random networks", "Networks that nobody has tuned to. Ratios are the peers' time over "
        "that of rawnn: above 1 rawnn is faster, below 1 slower.", shown.sample,
        shown.sample_charts))
