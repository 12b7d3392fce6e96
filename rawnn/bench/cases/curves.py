"""Loss curves: ours and the peers' on top of each other, from the same weights on the same batches;
and of networks of several sizes what each learns in as many steps, and how fast."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import click

from rawnn.bench.case import DEVICE, WORKLOADS, Case, peer_option
from rawnn.bench.cases.peers import PEER_DATASET, PeersSuite, of_workloads
from rawnn.bench.harness import Harness, Variant
from rawnn.bench.peers.lanes import Lanes, Prepared
from rawnn.bench.peers.loss_check import reference
from rawnn.bench.peers.rounding import share
from rawnn.bench.peers.system_comparison import (
    TURN_S,
    Rules,
    Task,
    check,
    chosen,
    device_of,
    open_compared,
    program,
    task_of,
)
from rawnn.bench.peers.worker import TRUTH, Prepare
from rawnn.bench.record import Results
from rawnn.bench.render import loss_curves as shown
from rawnn.bench.render.view import View
from rawnn.bench.suites import Suites


def measure(harness: Harness, suites: Suites, *, names: tuple[str, ...], peers: tuple[str, ...],
            steps: int | None, dataset: str, device: str) -> None:
    """Record the losses of ours and of the peers over the first steps, from the same weights on the
    same batches.

    Exits with 1 if a curve leaves the stated tolerance.
    """
    suite: PeersSuite = suites.curves
    systems, absent = chosen(peers, suite.systems)
    half = -(-(steps or suite.steps) // 2)  # each program trains two epochs
    asked = of_workloads(names or suite.names, dataset, half)
    rules = Rules(systems, device_of(device))
    open_compared(harness, rules, absent)
    record_curves(harness, [task_of(p, f"curves/{p.name}") for p in asked], rules)


def record_curves(harness: Harness, tasks: Sequence[Task], rules: Rules) -> None:
    """Train each problem in every system for two epochs of its steps, and then time it, one program
    after the other. Ctrl-C ends it with the problems that all systems have trained."""
    ready: dict[str, dict[str, Prepared]] = {t.problem.name: {} for t in tasks}
    kept = set[str]()

    def done(prepared: Prepared) -> None:
        ready[prepared.problem.name][prepared.system] = prepared
        harness.notify(f"{prepared.problem.name} in {prepared.system} is done")

    def keep(task: Task, is_timed: bool) -> None:
        of = ready[task.problem.name]
        variants = _curves(task, [of[s] for s in rules.systems], harness, is_timed)
        harness.keep(record for variant in variants for record in variant.records())
        kept.add(task.problem.name)

    with Lanes(rules.systems, len(tasks)) as lanes:
        try:
            try:
                lanes.prepare(
                    sorted((t.problem for t in tasks), key=lambda p: -p.flops),  # the slowest first
                    lambda problem, system: Prepare(
                        problem, rules.device_of(system), rules.forms(problem, system),
                        rules.patience), done)
            finally:  # before a lane is renewed, which no longer has them
                harness.environment.libraries.update(lanes.versions)
            for task in tasks:
                keep(task, True)
        except KeyboardInterrupt:
            harness.interrupted = True
            for task in tasks:  # what all systems have trained has its curves, if not its times
                name = task.problem.name
                if name not in kept and len(ready[name]) == len(rules.systems):
                    keep(task, False)
    harness.end()


def _curves(task: Task, prepared: Sequence[Prepared], harness: Harness,
            is_timed: bool) -> list[Variant]:
    right = reference([(p.system, m) for p in prepared for m in p.made])
    variants = []
    for p in prepared:
        if not p.made:
            variants.append(program(task, p.system, None, harness))
            variants[-1].refuse("failed", p.reason)
        for index, made in enumerate(p.made):
            variant = program(task, p.system, made, harness)
            variant.metric = "loss"
            losses = _finite(made.losses)
            variant.samples["loss"] = losses
            variant.status = "measured"
            if is_timed and not made.reason and made.numbers != TRUTH:
                times = p.time(index, TURN_S).milliseconds
                variant.samples["step_us"] = [ms * 1e3 / task.problem.steps for ms in times]
            if made.reason:
                variant.refuse("failed", made.reason)
            elif len(losses) < len(made.losses):
                variant.refuse("wrong", f"its loss is not finite at step {len(losses) + 1}")
            elif right is not None and (reason := check(variant, share(right, task.problem, made))):
                variant.refuse("wrong", reason)
            variants.append(variant)
    return variants


def _finite(losses: Sequence[float | None]) -> list[float]:
    """Losses ahead of the first that is not finite."""
    found: list[float] = []
    for value in losses:
        if value is None or not isfinite(value):
            break
        found.append(value)
    return found


def failures(results: Results) -> str:
    """How many curves are not those of the others."""
    curves = [e for e in results.entries("curves") if "layers" in e.conditions]
    wrong = [e for e in curves if e.status != "measured"]
    return f"{len(wrong)} of {len(curves)} curves failed or are not those of the others" \
        if wrong else ""


CASE = Case("curves", measure, (
    WORKLOADS, peer_option("torch"),
    click.option("--steps", type=click.IntRange(2), help="Steps of each curve (1000)."),
    PEER_DATASET, DEVICE), failures, resumes=False, has_bar=False, settings=PeersSuite, view=View(
        "Loss curves", "From the same weights on the same batches: curves that lie on top of each "
        "other did the same work.", shown.curves, shown.curve_charts))
