"""Every op of a step with its time: on the device between events, or as CUPTI saw its kernels."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import islice
from typing import Any, Literal

import msgspec

from rawnn.bench import cupti
from rawnn.bench.costing import OWN, op_costs
from rawnn.bench.cupti import Activity
from rawnn.bench.gpu_limits import stored_limits
from rawnn.bench.harness import place_of
from rawnn.bench.peers.rawnn_system import Training
from rawnn.bench.peers.worker import timed
from rawnn.bench.statistics import Spread, spread
from rawnn.common.errors import ConfigError
from rawnn.common.files import write_atomically
from rawnn.cuda.stream import Event
from rawnn.data import Dataset
from rawnn.engine.config import Config
from rawnn.engine.machine import Opened
from rawnn.engine.result import Environment
from rawnn.engine.runners.gpu import GpuRunner
from rawnn.engine.runners.prepared_run import PreparedRun
from rawnn.graphs.unrolling import graph_plans
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from rawnn.ptx.kernels import KERNELS, kernel_for

Way = Literal["events", "cupti"]
WAYS: tuple[Way, ...] = ("events", "cupti")
WARM = 5
"""Steps ahead of those that are measured."""
SHOWN_STEPS = 20
"""Steps in a trace at most."""
EMPTY_PAIRS = 50


class OpTime(msgspec.Struct, frozen=True, kw_only=True):
    """An op of a step: microseconds, and those between the end of what ran before it and its start.
    `nbytes` and `operations` are the plan's; `least_us` is what they take by this GPU's limits,
    None where these are not kept."""

    name: str
    kind: str
    us: Spread
    gap_us: Spread | None = None
    nbytes: int = 0
    operations: int = 0
    least_us: float | None = None

    @property
    def fraction(self) -> float | None:
        """The share of the time that its bytes or operations take at least."""
        return self.least_us / self.us.median if self.least_us and self.us.median else None


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """One op at one step: microseconds from the first one's start."""

    name: str
    kind: str
    step: int
    start_us: float
    us: float


class ProfileResult(msgspec.Struct, frozen=True, kw_only=True):
    """A step taken apart. `step_us` is a whole step as the policy runs it; `way` how ops were
    timed, `empty_us` what two events with nothing between them took, which is taken off each op."""

    kind: Literal["profile"] = "profile"
    schema_version: int = 1
    config: Config
    environment: Environment
    dataset: str
    toggles: list[str]
    notes: list[str]
    way: Way
    steps: int
    step_us: Spread
    empty_us: float
    ops: list[OpTime]
    spans: list[Span]

    @property
    def ops_us(self) -> float:
        """All ops of a step."""
        return sum(op.us.median for op in self.ops)

    def write_json(self, path: str | os.PathLike[str]) -> None:
        """Write it atomically. Raises RawnnError where the file cannot be written."""
        write_atomically(path, msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")


def check_gpu(opened: Opened) -> None:
    """Raise ConfigError without a GPU."""
    if opened.device is None:
        raise ConfigError(f"a profile is of a GPU: {opened.machine.no_gpu}")


def profile(config: Config, data: Dataset, opened: Opened, steps: int = 50,
            way: Way | None = None) -> ProfileResult:
    """Take a step of a run apart: by CUPTI where it can be asked and is wanted (`way`; None: where
    it can), else by events around each op, launched one by one on a stream.

    Raises ConfigError without a GPU, MissingLibrary where CUPTI was asked for and is not there.
    """
    check_gpu(opened)
    assert opened.device is not None
    sim = opened.device.backend.name == "sim"
    chosen: Way = way or ("events" if sim or cupti.missing() else "cupti")
    program = Training(config, data, opened)
    with program.session as session:
        runner = session.runner
        assert isinstance(runner, GpuRunner)
        work = runner.prepared
        whole = [program.block(1)] if sim else timed(program).milliseconds
        if chosen == "cupti":
            activities = cupti.activities(lambda: (program.block(1), None)[1])
            spans, empty = _spans_of(activities, work), 0.0
        else:
            spans, empty = _between_events(opened, runner, work, steps)
        ops = _ops_of(spans, work, opened)
        place = place_of(opened)
        return ProfileResult(
            config=session.config, environment=place, dataset=data.name,
            toggles=[n if v is None else f"{n}={v}" for n, v in session.selection.values.items()],
            notes=list(session.selection.notes), way=chosen,
            steps=len({span.step for span in spans}),
            step_us=spread([ms * 1e3 / work.updates for ms in whole]),
            empty_us=empty, ops=ops, spans=[s for s in spans if s.step < SHOWN_STEPS])


# -- by events -------------------------------------------------------------------------------------


def _between_events(opened: Opened, runner: GpuRunner, work: PreparedRun,
                    steps: int) -> tuple[list[Span], float]:
    """The spans of some steps whose ops are launched one by one, and what two events with nothing
    between them take."""
    device = opened.device
    assert device is not None
    stream, annotated = device.stream, cupti.ranges()
    commands = runner.commands(work.train)
    with ExitStack() as closing:

        def event() -> Event:
            made = Event(device.driver)
            closing.callback(made.close)
            return made

        pairs = [(event(), event()) for _ in range(EMPTY_PAIRS)]
        for first, second in pairs:
            first.record(stream)
            second.record(stream)
        marks: list[tuple[Op, int, Event, Event]] = []
        for step in range(-WARM, steps):
            with annotated(f"step {step}" if step >= 0 else "warm-up"):
                for op, several in commands:
                    start, end = event(), event()
                    with annotated(op.own_name):
                        start.record(stream)
                        for command in several:
                            command.run((step + WARM) % max(work.steps, 1))
                        end.record(stream)
                    if step >= 0:
                        marks.append((op, step, start, end))
        stream.synchronize("a profile")
        empty = spread([b.milliseconds_since(a) * 1e3 for a, b in pairs]).median
        origin = marks[0][2]
        return [Span(name=op.own_name, kind=f"{op.kind}/{op.impl}", step=step,
                     start_us=start.milliseconds_since(origin) * 1e3,
                     us=max(end.milliseconds_since(start) * 1e3 - empty, 0.0))
                for op, step, start, end in marks], empty


# -- by CUPTI --------------------------------------------------------------------------------------


def _spans_of(activities: Sequence[Activity], work: PreparedRun) -> list[Span]:
    """What CUPTI saw of an epoch as spans, each by the name of its op."""
    enqueued = _in_order(work)
    names = named(activities, [_kernel_name(op) for op, _ in enqueued])
    origin = activities[0].start if activities else 0
    spans = []
    for activity, place in zip(activities, names, strict=True):
        op, step = enqueued[place] if place is not None else (None, 0)
        spans.append(Span(
            name=op.own_name if op else activity.name,
            kind=f"{op.kind}/{op.impl}" if op else OUTSIDE, step=step,
            start_us=(activity.start - origin) / 1e3, us=(activity.end - activity.start) / 1e3))
    return spans


def _in_order(work: PreparedRun) -> list[tuple[Op, int]]:
    """The ops of an epoch in the order in which they are enqueued, each with its step."""
    if not work.policy.graph:
        return [(op, step) for step in range(work.steps) for op in work.train.ops]
    found: list[tuple[Op, int]] = []
    first = 0
    for part in graph_plans(work.train, work.policy, work.steps):
        for _ in range(part.launches):
            found += [(op, first + op.offset) for op in part.plan.ops]
            first += part.plan.steps
    return found


def _kernel_name(op: Op) -> str:
    """Of the kernel that runs it, "" where it is a library's or a copy."""
    try:
        return kernel_for(op).name
    except ConfigError:
        return ""


def named(activities: Sequence[Activity], kernels: Sequence[str]) -> list[int | None]:
    """Which of the kernels, in the order in which they were enqueued, each activity is, by its
    place; None for one that is none of them. Activities that overtake each other (branches of a
    graph) are found among the next few. "" stands for what has kernels of a library, or is a copy:
    the activities between its neighbours, unless they are kernels of ours."""
    left = deque(enumerate(kernels))
    own = {kernel.name for kernel in KERNELS.values()}
    found: list[int | None] = []
    for activity in activities:
        words = set(re.split(r"\W+", activity.name))
        match = next((n for n, (_, kernel) in enumerate(islice(left, REACH)) if kernel and (
            kernel in words or _mangled(kernel) in activity.name)), None)
        if match is not None:
            ahead = [left.popleft() for _ in range(match)]
            found.append(left.popleft()[0])
            left.extendleft(reversed([entry for entry in ahead if entry[1]]))
        elif left and not left[0][1] and not any(
                name in words or _mangled(name) in activity.name for name in own):
            found.append(left[0][0])
        else:
            found.append(None)
    return found


REACH = 64
"""Kernels ahead among which an activity is looked for."""
OUTSIDE = "outside the steps"


def _mangled(kernel: str) -> str:
    """A name as it stands in that of a C++ function."""
    return f"{len(kernel)}{kernel}"


# -- what is said of them --------------------------------------------------------------------------


def _ops_of(spans: Sequence[Span], work: PreparedRun, opened: Opened) -> list[OpTime]:
    times: dict[tuple[str, str], list[float]] = {}
    gaps: dict[tuple[str, str], list[float]] = {}
    before: Span | None = None
    for span in spans:
        key = span.name, span.kind
        times.setdefault(key, []).append(span.us)
        if before is not None:
            gap = span.start_us - before.start_us - before.us
            gaps.setdefault(key, []).append(max(gap, 0.0))
        before = span
    work_of = _work_of(work.train, work, opened)
    made = []
    for (name, kind), us in times.items():
        nbytes, operations, least = work_of.get(name, (0, 0, None))
        found = gaps.get((name, kind))
        made.append(OpTime(name=name, kind=kind, us=spread(us),
                           gap_us=spread(found) if found else None, nbytes=nbytes,
                           operations=operations, least_us=least))
    return made


def _work_of(plan: Plan, work: PreparedRun,
             opened: Opened) -> dict[str, tuple[int, int, float | None]]:
    """By op: bytes, operations, and the microseconds that they take at least."""
    assert opened.device is not None
    info = opened.device.info
    limits = stored_limits(info.name, info.driver)
    found = {}
    for cost in op_costs(plan, work.policy, limits):
        least = None if cost.bound == OWN or cost.memory_us is None \
            else max(cost.memory_us, cost.arithmetic_us or 0.0)
        found[cost.op.own_name] = (cost.nbytes, cost.operations, least)
    return found


# -- as a trace for Perfetto (ui.perfetto.dev) and chrome://tracing --------------------------------
# Source: the Trace Event Format ("X", complete events; "M", metadata); times are microseconds.

OPS, STEPS = 1, 2
"""The tracks of a profile."""


def trace_events(results: Sequence[ProfileResult]) -> list[dict[str, Any]]:
    """The events of some profiles, each a process: ops on one track, steps on another."""
    events: list[dict[str, Any]] = []
    for pid, result in enumerate(results, 1):
        gpu = (result.environment.gpu or {}).get("name", "GPU")
        events += [_name("process_name", pid, 0, f"{gpu}: {result.config.opt}"),
                   _name("thread_name", pid, OPS, "ops"),
                   _name("thread_name", pid, STEPS, "steps")]
        work = {op.name: op for op in result.ops}
        ends: dict[int, list[float]] = {}
        for span in result.spans:
            op = work.get(span.name)
            events.append({
                "name": span.name, "cat": span.kind, "ph": "X", "ts": span.start_us,
                "dur": span.us, "pid": pid, "tid": OPS,
                "args": {"step": span.step, "bytes": op.nbytes if op else 0,
                         "operations": op.operations if op else 0}})
            first, last = ends.setdefault(span.step, [span.start_us, 0.0])
            ends[span.step] = [min(first, span.start_us), max(last, span.start_us + span.us)]
        events += [{"name": f"step {step}", "cat": "step", "ph": "X", "ts": first,
                    "dur": last - first, "pid": pid, "tid": STEPS, "args": {}}
                   for step, (first, last) in ends.items()]
    return events


def _name(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def write_trace(results: Sequence[ProfileResult], path: str | os.PathLike[str]) -> None:
    """Write a trace file atomically. Raises RawnnError where it cannot be written."""
    whole = {"traceEvents": trace_events(results), "displayTimeUnit": "ns",
             "otherData": {"made by": "rawnn profile", "timed by": results[0].way}}
    write_atomically(path, msgspec.json.encode(whole) + b"\n")
