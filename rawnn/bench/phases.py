"""What each phase of a step on the chip takes: the cost model beside a kernel that is traced.

docs/toggles/persistent.md says what the columns are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from time import perf_counter
from typing import Literal

import msgspec
import numpy as np

from rawnn.bench.columns import markdown_table
from rawnn.bench.measured import Measured
from rawnn.bench.peers.problem import Problem
from rawnn.bench.peers.rawnn_system import dataset
from rawnn.bench.records import place_of
from rawnn.common.errors import ConfigError
from rawnn.engine.machine import Opened
from rawnn.engine.resolved_options import resolve_options
from rawnn.engine.result import Environment
from rawnn.engine.run_planner import RunPlanner
from rawnn.engine.runners.gpu import GpuRunner
from rawnn.engine.runners.prepared_run import PreparedRun
from rawnn.persistent import cost
from rawnn.persistent.choose import Choice
from rawnn.persistent.tracing import Trace, read_trace, traced
from rawnn.plan.ops.train_steps import KIND, WORKSPACE
from rawnn.plan.tensor import Role, Tensor

SCHEMA_VERSION = 1
HEADINGS = ("phase", "part", "expected", "measured", "slowest block", "of a warp")
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


class PhasesResult(Measured, frozen=True, kw_only=True):
    """The phases of a network's step, with what a launch of `steps` takes besides, in cycles (the
    slowest block). `us` and `traced_us` are microseconds a step of an epoch, without and with
    stamps; `expected_us` those of the model; `kernel_us` and `epoch_us` those of a traced launch by
    the GPU's own clock and by events around its epoch; `clock` is cycles a microsecond. `opt` says
    how the work was shared."""

    kind: Literal["phases"] = "phases"
    schema_version: int = SCHEMA_VERSION
    environment: Environment
    layers: tuple[int, ...]
    batch: int
    loss: str
    optimizer: str
    opt: str
    steps: int
    blocks: int
    us: float
    traced_us: float
    expected_us: float
    kernel_us: float
    epoch_us: float
    clock: float
    load: float
    store: float
    step: float
    phases: list[PhaseCycles]
    parts: list[PhaseCycles]

    def rows(self) -> list[list[str]]:
        """The table: each phase, and below it its parts where it has several."""
        found = []
        for phase in self.phases:
            parts = [p for p in self.parts if p.phase == phase.phase]
            found.append(_cells(phase))
            found += [_cells(p) for p in parts] if len(parts) > 1 else []
        expected = sum(p.expected or 0.0 for p in self.phases)
        return [*found, ["step", "", f"{expected:,.0f}", f"{self.step:,.0f}", "", ""],
                ["load, once a launch", "", "", f"{self.load:,.0f}", "", ""],
                ["store, once a launch", "", "", f"{self.store:,.0f}", "", ""]]

    def head(self) -> str:
        """What was measured, in a line or two."""
        return (f"{'-'.join(map(str, self.layers))}, batch {self.batch}, {self.loss}, "
                f"{self.optimizer}: {self.opt}\n{self.us:.2f} us a step ({self.traced_us:.2f} "
                f"traced, {self.expected_us:.2f} expected) of {self.steps} a launch; the traced "
                f"kernel took {self.kernel_us:.1f} us, its epoch {self.epoch_us:.1f}; "
                f"{self.clock:,.0f} cycles a microsecond")

    def provenance(self) -> str:
        """Where and when it was measured."""
        gpu = self.environment.gpu or {}
        where = "a SIMULATED GPU, which stamps nothing and whose times say nothing about a real " \
            "one" if self.environment.device == "sim" else \
            f"{gpu.get('name', 'no GPU')}, driver {gpu.get('driver', 'unknown')}"
        return f"{where}; {self.environment.date}, commit {self.environment.commit or 'unknown'}"

    def markdown(self) -> str:
        """The table in Markdown, with its provenance below."""
        lines = markdown_table(HEADINGS, self.rows(), ("phase", "part"))
        return "\n".join([self.head(), "", *lines, "", f"{self.provenance()}.", ""])


PHASES: Mapping[str, tuple[type[PhasesResult], int]] = {"phases": (PhasesResult, SCHEMA_VERSION)}


def _cells(p: PhaseCycles) -> list[str]:
    return ["" if p.part else p.phase, p.part, "" if p.expected is None else f"{p.expected:,.0f}",
            f"{p.cycles:,.0f}", f"{p.slowest:,.0f}", f"{p.warp:,.0f}"]


def measure(opened: Opened, problem: Problem, opt: str,
            notify: Callable[[str], object] = lambda line: None) -> PhasesResult:
    """Train some epochs of a network as `opt` says, with `persistent` among it and a graph of an
    epoch, then with a kernel that is traced.

    Raises ConfigError without a GPU, and where `opt` does not come to one launch an epoch.
    """
    if opened.device is None:
        raise ConfigError(f"phases can be traced on a GPU only: {opened.machine.gpu}")
    device = opened.device
    config = problem.config(opt, "gpu" if device.backend.name == "cuda" else device.backend.name)
    planner = RunPlanner(config, dataset(problem), opened, None, notify)
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
    taken = resolve_options(opt, selection, work, opened.machine)
    return PhasesResult(
        environment=place_of(opened), layers=problem.layers, batch=problem.batch,
        loss=problem.loss, optimizer=problem.optimizer, opt=taken.toggles,
        steps=problem.steps, blocks=chosen.sharding.blocks, us=plain_us, traced_us=traced_us,
        expected_us=chosen.us, kernel_us=trace.us, epoch_us=traced_us * problem.steps,
        clock=trace.clock, load=float(trace.load.max()), store=float(trace.store.max()),
        step=float(np.median(trace.step, axis=0).max()), phases=rows, parts=parts)


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
