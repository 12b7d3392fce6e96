"""What each phase of a step on the chip takes: by the cost model, and in a traced kernel.

docs/persistent-kernel.md says what the columns are.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from time import perf_counter
from typing import get_args

import click
import numpy as np

from rawnn.bench.case import GPU_DEVICE, Case
from rawnn.bench.harness import Harness, precision_name, require_gpu
from rawnn.bench.peers.rawnn_system import dataset
from rawnn.bench.peers.system_comparison import task_of
from rawnn.bench.peers.training_problem import LEARNING_RATES, STEPS, Loss, Problem, Rule
from rawnn.bench.record import Record, records_of
from rawnn.bench.render import machine
from rawnn.bench.render.view import View
from rawnn.bench.suites import Suites
from rawnn.common.errors import ConfigError
from rawnn.engine.config import parse_layers
from rawnn.engine.machine import Opened
from rawnn.engine.resolved_options import resolve_options
from rawnn.engine.run_planner import RunPlanner
from rawnn.engine.runners.gpu import GpuRunner
from rawnn.engine.runners.prepared_run import PreparedRun
from rawnn.persistent import cost
from rawnn.persistent.choose import Choice
from rawnn.persistent.tracing import Trace, read_trace, traced
from rawnn.plan.ops.train_steps import KIND, WORKSPACE
from rawnn.plan.tensor import Role, Tensor

TIMER = {"step_us": "time between two events on the device around an epoch, over its steps, in the "
                    "median of several epochs", "cycles": "stamps of each block's own clock"}
TRACE = "trace"
WARMED, TIMED = 0.05, 8
"""Seconds of epochs ahead of those that are timed, and epochs that are: an H200 that comes from
idleness runs at 1.70 to 1.85 GHz in its first milliseconds, and at 1.98 from then on."""


def measure(harness: Harness, suites: Suites, *, layers: str, batch: int, loss: Loss,
            optimizer: Rule, steps: int, opt: str, device: str) -> None:
    """Trace the kernel of `persistent`: the cycles of each phase of a step, and those that the
    cost model expects.

    Inputs are random. Stamps take some cycles themselves: the time without them stands above the
    table.
    """
    problem = Problem(name="phases", seed=0, layers=parse_layers(layers), batch=batch, loss=loss,
                      optimizer=optimizer, lr=LEARNING_RATES[optimizer], steps=steps)
    opened = harness.open(device, TIMER)
    harness.store(trace_phases(harness, opened, problem, opt))
    harness.end()


def trace_phases(harness: Harness, opened: Opened, problem: Problem, opt: str) -> list[Record]:
    """Train some epochs of a network as `opt` says, with `persistent` among it and a graph of an
    epoch, then with a kernel that is traced.

    Variant "step" has microseconds a step of an epoch without and with stamps (`step_us`,
    `traced_us`) and by the model (`expected_us`), of a traced launch by the GPU's own clock and by
    events around its epoch (`kernel_us`, `epoch_us`), and `clock_mhz`. Raises ConfigError without a
    GPU, and where `opt` does not come to one launch an epoch.
    """
    device = require_gpu(opened, "phases can be traced")
    config = problem.config(opt, "gpu" if device.backend.name == "cuda" else device.backend.name)
    planner = RunPlanner(config, dataset(problem), opened, None, harness.notify)
    selection, work = planner.select_and_prepare(opt)
    if not work.train.find(kind=KIND) or selection.values.get("graphs") != "epoch":
        raise ConfigError(f"--opt {opt} comes to {selection}: what is traced is persistent with "
                          f"graphs=epoch")
    stamped, chosen = with_stamps(work, problem.steps)
    with closing(GpuRunner(device, replace(work, unreported=work.train))) as runner:
        plain_us = _microseconds(runner, problem.steps)
    with closing(GpuRunner(device, stamped)) as runner:
        traced_us = _microseconds(runner, problem.steps)
        trace = read_trace(chosen.layout, runner.workspace(WORKSPACE + TRACE))
    opt = resolve_options(opt, selection, work, opened.machine).toggles
    found: dict[str, dict[str, float | None]] = {"step": {
        "step_us": plain_us, "traced_us": traced_us, "expected_us": chosen.us,
        "kernel_us": trace.us, "epoch_us": traced_us * problem.steps, "clock_mhz": trace.clock,
        "load_cycles": float(trace.load.max()), "store_cycles": float(trace.store.max()),
        "cycles": float(np.median(trace.step, axis=0).max()),
        "blocks": chosen.sharding.blocks}, **of_phases(chosen, trace)}
    conditions = {**task_of(problem, "phases").conditions, "opt": opt}
    return [record for name, metrics in found.items() for record in records_of(
        "phases", name, metrics, precision=precision_name(opt), conditions=conditions,
        environment=harness.environment.key)]


def with_stamps(work: PreparedRun, steps: int) -> tuple[PreparedRun, Choice]:
    """The same work, whose kernel stamps the phases of so many steps; how it shares the work."""
    op = work.train.find(kind=KIND)[0]
    chosen = traced(op.attributes["choice"], steps)
    words = chosen.layout.workspaces(steps)[TRACE]
    workspace = Tensor(WORKSPACE + TRACE, (words,), "int32", Role.SCRATCH, symbol=TRACE)
    stamped = replace(op, operands={**op.operands, TRACE: workspace.name},
                      attributes={**op.attributes, "choice": chosen})
    train = work.train.with_tensors(workspace).substitute([op], [stamped])
    return replace(work, train=train, unreported=train), chosen


def _microseconds(runner: GpuRunner, steps: int) -> float:
    """Of a step, in the median of the timed epochs, which follow each other."""
    begun = perf_counter()
    while perf_counter() - begun < WARMED:
        runner.epoch(reported=True)
        runner.metrics()
    for _ in range(TIMED):
        runner.epoch(reported=True)
    runner.metrics()
    return float(np.median(runner.epoch_milliseconds()[-TIMED:])) * 1e3 / steps


def of_phases(chosen: Choice, trace: Trace) -> dict[str, dict[str, float | None]]:
    """The metrics of each phase, in the order of the first stamps, and behind it of its parts
    ("phase/part") where it has several.

    `cycles` are those by which it makes a step longer, the median of the blocks' medians over the
    steps; `slowest_cycles` the same of the block in which that is longest; `warp_cycles` what a
    warp takes in the mean; `expected_cycles` the cost model's, None for a part and for what it does
    not know.
    """
    expected: dict[str, float] = {}
    for phase in cost.phases(chosen.sharding, chosen.costs):
        if phase.name == cost.LAUNCH:  # which stands below the steps
            continue
        expected[phase.name] = expected.get(phase.name, 0.0) + phase.cycles

    def metrics(name: str, part: str, value: float | None) -> dict[str, float | None]:
        mine = [i for i, stamp in enumerate(trace.stamps)
                if stamp.phase == name and part in ("", stamp.part)]
        blocks = np.median(trace.cycles[:, :, mine].sum(axis=2), axis=0) if mine else np.zeros(1)
        own = np.median(trace.own[:, :, mine].sum(axis=2), axis=0).mean() if mine else 0.0
        return {"cycles": float(np.median(blocks)), "expected_cycles": value,
                "slowest_cycles": float(blocks.max()), "warp_cycles": float(own)}

    found = {}
    for name in dict.fromkeys([*(stamp.phase for stamp in trace.stamps), *expected]):
        found[name] = metrics(name, "", expected.get(name))
        parts = dict.fromkeys(stamp.part for stamp in trace.stamps if stamp.phase == name)
        found |= {f"{name}/{part}": metrics(name, part, None)
                  for part in parts if len(parts) > 1}
    return found


CASE = Case("phases", measure, (
    click.option("--layers", default="784-128-10", show_default=True, metavar="784-10",
                 help="Sizes from the inputs to the outputs."),
    click.option("--batch", type=click.IntRange(1), default=32, show_default=True,
                 help="Examples per step."),
    click.option("--loss", type=click.Choice(get_args(Loss)), default="cross_entropy",
                 show_default=True, help="What is minimised."),
    click.option("--optimizer", type=click.Choice(get_args(Rule)), default="sgd",
                 show_default=True, help="The optimizer step."),
    click.option("--steps", type=click.IntRange(2), default=STEPS, show_default=True,
                 help="Steps of an epoch, which is a launch."),
    click.option("--opt", default="persistent,graphs=epoch", show_default=True, metavar="TOGGLES",
                 help="persistent, or how it is to share the work, with graphs=epoch; numbers."),
    GPU_DEVICE), resumes=False, view=View(
        "Phases of the generated kernel", "Cycles of each phase of a step, and those that the cost "
        "model expects.", machine.phases))
