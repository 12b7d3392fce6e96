"""Loss curves: ours and the peers' on top of each other, from the same weights on the same batches;
and of networks of several sizes what each learns in as many steps, and how fast."""

from __future__ import annotations

import click

from rawnn.bench.case import DEVICE, WORKLOADS, Case, peer_option
from rawnn.bench.cases.peers import PEER_DATASET, PeersSuite, of_workloads
from rawnn.bench.harness import Harness
from rawnn.bench.peers.system_comparison import compare_systems, task_of
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
    half = -(-(steps or suite.steps) // 2)  # each program trains two epochs
    asked = of_workloads(names or suite.names, dataset, half)
    compare_systems(harness, [task_of(p, f"curves/{p.name}") for p in asked], peers, suite.systems,
                    device, part=lambda tasks: sorted(tasks, key=lambda t: -t.problem.flops),
                    rounds=1, records_losses=True)  # the slowest first


def failures(results: Results) -> str:
    """How many curves are not those of the others."""
    curves = [e for e in results.entries("curves")
              if "layers" in e.conditions and e.status != "not measured"]
    wrong = [e for e in curves if e.status != "measured"]
    return f"{len(wrong)} of {len(curves)} curves failed or are not those of the others" \
        if wrong else ""


CASE = Case("curves", measure, (
    WORKLOADS, peer_option("torch"),
    click.option("--steps", type=click.IntRange(2), help="Steps of each curve (1000)."),
    PEER_DATASET, DEVICE), failures, resumes=False, has_bar=False, settings=PeersSuite, view=View(
        "Loss curves", "From the same weights on the same batches: curves that lie on top of each "
        "other did the same work.", shown.curves, shown.curve_charts))
