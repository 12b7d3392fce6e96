"""A profile as a trace for Perfetto (ui.perfetto.dev) and chrome://tracing.

Source: the Trace Event Format ("X", complete events; "M", metadata); times are microseconds.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import msgspec

from rawnn.bench.profiling import ProfileResult
from rawnn.common.files import write_atomically

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
