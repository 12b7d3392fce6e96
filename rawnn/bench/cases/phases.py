"""What each phase of a step on the chip takes: the cost model beside a kernel that is traced.

docs/toggles/persistent.md says what the columns are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from time import perf_counter
from typing import get_args

import click
import msgspec
import numpy as np

from rawnn.bench.case import GPU_DEVICE, Case
from rawnn.bench.harness import Harness, precision_name
from rawnn.bench.peers.comparison import task_of
from rawnn.bench.peers.problem import LEARNING_RATES, STEPS, Loss, Problem, Rule
from rawnn.bench.peers.rawnn_system import dataset
from rawnn.bench.record import Record, records_of
from rawnn.bench.suites import Suites
from rawnn.common.errors import ConfigError
from rawnn.engine.config import check_device, parse_layers
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


class PhaseCycles(msgspec.Struct, frozen=True, kw_only=True):
    """Cycles of a phase, or of a part of one: by which it makes a step longer, the median of the
    blocks' medians over the steps; in the block in which that is longest; and what a warp takes in
    the mean. `expected` is the cost model's, None for a part and for what it does not know."""

    phase: str
    part: str = ""
    expected: float | None = None
    cycles: float
    slowest: float
    warp: float


def measure(harness: Harness, suites: Suites, *, layers: str, batch: int, loss: Loss,
            optimizer: Rule, steps: int, opt: str, device: str) -> None:
    """Trace the kernel of `persistent`: the cycles of each phase of a step, beside what the cost
    model expects of it.

    Inputs are random. Stamps take some cycles themselves: the time without them stands above the
    table.
    """
    check_device(device)
    problem = Problem(name="phases", seed=0, layers=parse_layers(layers), batch=batch, loss=loss,
                      optimizer=optimizer, lr=LEARNING_RATES[optimizer], steps=steps)
    opened = harness.open(device, TIMER)
    harness.keep(trace_phases(harness, opened, problem, opt))
    harness.end()


def trace_phases(harness: Harness, opened: Opened, problem: Problem, opt: str) -> list[Record]:
    """Train some epochs of a network as `opt` says, with `persistent` among it and a graph of an
    epoch, then with a kernel that is traced.

    Variant "step" has microseconds a step of an epoch without and with stamps (`step_us`,
    `traced_us`) and by the model (`expected_us`), of a traced launch by the GPU's own clock and by
    events around its epoch (`kernel_us`, `epoch_us`), and `clock_mhz`. Raises ConfigError without a
    GPU, and where `opt` does not come to one launch an epoch.
    """
    if opened.device is None:
        raise ConfigError(f"phases can be traced on a GPU only: {opened.machine.gpu}")
    device = opened.device
    config = problem.config(opt, "gpu" if device.backend.name == "cuda" else device.backend.name)
    planner = RunPlanner(config, dataset(problem), opened, None, harness.notify)
    selection, work = planner.select_and_prepare(opt)
    if not work.train.find(kind=KIND) or selection.values.get("graphs") != "epoch":
        raise ConfigError(f"--opt {opt} comes to {selection}: what is traced is persistent with "
                          f"graphs=epoch")
    stamped, chosen = with_stamps(work, problem.steps)
    with closing(GpuRunner(device, replace(work, unmeasured=work.train))) as runner:
        plain_us = _microseconds(runner, problem.steps)
    with closing(GpuRunner(device, stamped)) as runner:
        traced_us = _microseconds(runner, problem.steps)
        trace = read_trace(chosen.layout, runner.workspace(WORKSPACE + TRACE))
    rows, parts = of_phases(chosen, trace)
    return phase_records(harness, problem, resolve_options(opt, selection, work,
                                                           opened.machine).toggles, {
        "step_us": plain_us, "traced_us": traced_us, "expected_us": chosen.us,
        "kernel_us": trace.us, "epoch_us": traced_us * problem.steps, "clock_mhz": trace.clock,
        "load_cycles": float(trace.load.max()), "store_cycles": float(trace.store.max()),
        "cycles": float(np.median(trace.step, axis=0).max()),
        "blocks": chosen.sharding.blocks}, rows, parts)


def phase_records(harness: Harness, problem: Problem, opt: str, step: dict[str, float],
                  phases: Sequence[PhaseCycles], parts: Sequence[PhaseCycles]) -> list[Record]:
    """The step, each phase, and below it its parts where it has several."""
    assert harness.environment is not None
    conditions = {**task_of(problem, "phases").conditions, "opt": opt}

    key = harness.environment.key

    def records(variant: str, metrics: Mapping[str, float | None]) -> Iterator[Record]:
        return records_of("phases", variant, metrics, precision=precision_name(opt),
                          conditions=conditions, environment=key)

    def cycles(p: PhaseCycles) -> dict[str, float | None]:
        return {"cycles": p.cycles, "expected_cycles": p.expected, "slowest_cycles": p.slowest,
                "warp_cycles": p.warp}

    found = [*records("step", step)]
    for phase in phases:
        found += records(phase.phase, cycles(phase))
        mine = [p for p in parts if p.phase == phase.phase]
        for part in mine if len(mine) > 1 else []:
            found += records(f"{part.phase}/{part.part}", cycles(part))
    return found


def with_stamps(work: PreparedRun, steps: int) -> tuple[PreparedRun, Choice]:
    """The same work, whose kernel stamps the phases of so many steps; how it shares the work."""
    op = work.train.find(kind=KIND)[0]
    chosen = traced(op.attributes["chosen"], steps)
    words = chosen.layout.workspaces(steps)[TRACE]
    workspace = Tensor(WORKSPACE + TRACE, (words,), "int32", Role.SCRATCH, symbol=TRACE)
    stamped = replace(op, operands={**op.operands, TRACE: workspace.name},
                      attributes={**op.attributes, "chosen": chosen})
    train = work.train.with_tensors(workspace).substitute([op], [stamped])
    return replace(work, train=train, unmeasured=train), chosen


def _microseconds(runner: GpuRunner, steps: int) -> float:
    """Of a step, in the median of the timed epochs, which follow each other."""
    begun = perf_counter()
    while perf_counter() - begun < WARMED:
        runner.epoch(measured=True)
        runner.metrics()
    for _ in range(TIMED):
        runner.epoch(measured=True)
    runner.metrics()
    return float(np.median(runner.epoch_milliseconds()[-TIMED:])) * 1e3 / steps


def of_phases(chosen: Choice, trace: Trace) -> tuple[list[PhaseCycles], list[PhaseCycles]]:
    """The phases, and their parts, in the order of their first stamps."""
    expected: dict[str, float] = {}
    for phase in cost.phases(chosen.sharding, chosen.costs):
        if phase.name == cost.LAUNCH:  # which stands below the steps
            continue
        expected[phase.name] = expected.get(phase.name, 0.0) + phase.cycles
    names = dict.fromkeys(stamp.phase for stamp in trace.stamps)
    of_parts = dict.fromkeys((stamp.phase, stamp.part) for stamp in trace.stamps)

    def row(phase: str, part: str, value: float | None) -> PhaseCycles:
        mine = [i for i, stamp in enumerate(trace.stamps)
                if stamp.phase == phase and part in ("", stamp.part)]
        blocks = np.median(trace.cycles[:, :, mine].sum(axis=2), axis=0)
        own = np.median(trace.own[:, :, mine].sum(axis=2), axis=0).mean()
        return PhaseCycles(phase=phase, part=part, expected=value, cycles=float(np.median(blocks)),
                           slowest=float(blocks.max()), warp=float(own))

    rows = [row(name, "", expected.pop(name, None)) for name in names]
    rows += [PhaseCycles(phase=name, expected=value, cycles=0.0, slowest=0.0, warp=0.0)
             for name, value in expected.items()]
    return rows, [row(*both, None) for both in of_parts]


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
    GPU_DEVICE), resumes=False)
