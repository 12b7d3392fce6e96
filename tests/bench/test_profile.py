"""A step taken apart: by events on the simulated GPU, by CUPTI as a stand-in says; as a trace."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from rawnn.bench import cupti
from rawnn.bench.cupti import Activity
from rawnn.bench.profiling import (
    OUTSIDE,
    OpTime,
    ProfileResult,
    Span,
    Way,
    named,
    profile,
    trace_events,
    write_trace,
)
from rawnn.bench.profiling import _kernel_name as kernel_name
from rawnn.bench.statistics import spread
from rawnn.cli import run as command
from rawnn.cli.profile import HEADINGS, differences, rows
from rawnn.common.errors import ConfigError, MissingLibrary
from rawnn.engine.config import Config
from rawnn.engine.machine import open_device
from rawnn.model.layers import Network
from tests.bench.test_lower_bounds import made
from tests.engine import dataset_for, make_work

SMALL = ["--device", "sim", "--dataset", "synthetic", "--layers", "784-16-10", "--batch", "2000",
         "--steps", "3"]
LAYERS, BATCH, EXAMPLES = (12, 8, 4), 8, 64
DATA = dataset_for(Network(LAYERS), EXAMPLES, 16)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAWNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RAWNN_FLOORS", raising=False)
    monkeypatch.setenv("COLUMNS", "200")


def taken_apart(opt: str, layers: tuple[int, ...] = LAYERS, way: Way | None = None
                ) -> ProfileResult:
    config = Config(layers=layers, batch=BATCH, opt=opt, device="sim")
    opened = open_device("sim", lambda message: None)
    assert opened.device
    try:
        return profile(config, DATA, opened, 3, way)
    finally:
        opened.device.close()


@pytest.mark.parametrize("opt", ["preload,arena,nosync,fuse", "preload,graphs=step,fuse",
                                 "best,bf16,-persistent", "arena", "preload,persistent"])
def test_every_op_of_a_step_is_timed(opt: str) -> None:
    result = taken_apart(opt)
    assert result.way == "events"
    assert result.steps == 3
    assert len({op.name for op in result.ops}) == len(result.ops)
    assert [s.name for s in result.spans] == 3 * [op.name for op in result.ops]
    for op in result.ops:
        assert op.us.n == 3
        copies = 2 if op.kind == "upload/memcpy" else 1
        assert op.us.median == pytest.approx(copies)  # a task takes a microsecond there
        assert op.nbytes > 0
    starts = [s.start_us for s in result.spans]
    assert starts == sorted(starts)


def test_the_roofline_is_this_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAWNN_FLOORS", str(tmp_path / "f.json"))
    made("simulated GPU").results.write(tmp_path / "f.json")
    plain = taken_apart("preload,arena,nosync")
    assert all(op.least_us is None for op in plain.ops)  # another driver's
    monkeypatch.setattr("rawnn.bench.profiling.stored_limits", lambda gpu, driver: {
        ("simulated GPU", "unknown"): made(gpu)}[gpu, driver])
    known = taken_apart("preload,arena,nosync")
    for op in known.ops:
        assert op.least_us
        assert op.fraction == pytest.approx(op.least_us / op.us.median)


@pytest.mark.parametrize(("opt", "kernels"), [
    ("none", {"upload": "", "matmul": "matmul_tn", "bias_add": "bias_add", "sgd": "sgd"}),
    ("arena,cublas,fuse", {"upload": "", "matmul": "", "bias_sgd": "bias_sgd"})])
def test_what_a_library_runs_and_a_copy_have_no_kernel_of_ours(opt: str, kernels: dict[str, str]
                                                               ) -> None:
    found = {op.kind: kernel_name(op) for op in make_work(opt, LAYERS, DATA).train.ops}
    assert kernels.items() <= found.items()


def test_a_trace_has_every_op_at_its_time(tmp_path: Path) -> None:
    """As the Trace Event Format wants it: complete events of a process and a track."""
    file = tmp_path / "t.json"
    result = taken_apart("preload,arena,nosync,fuse")
    write_trace([result], file)
    trace = json.loads(file.read_text())
    events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    named_ = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"]
              if e["name"] == "thread_name"}
    ops = [e for e in events if named_[e["pid"], e["tid"]] == "ops"]
    steps = [e for e in events if named_[e["pid"], e["tid"]] == "steps"]
    assert [(e["name"], e["cat"]) for e in ops] == 3 * [(op.name, op.kind) for op in result.ops]
    assert [e["name"] for e in steps] == ["step 0", "step 1", "step 2"]
    for before, after in pairwise(ops):
        assert after["ts"] >= before["ts"] + before["dur"]
    for event in ops:
        step = steps[event["args"]["step"]]
        assert step["ts"] <= event["ts"] <= event["ts"] + event["dur"]
        assert event["ts"] + event["dur"] <= step["ts"] + step["dur"] + 1e-6
    assert trace["otherData"]["timed by"] == "events"


def test_two_sets_are_shown_beside_each_other(tmp_path: Path,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    file, kept = tmp_path / "t.json", tmp_path / "p.json"
    assert command(["profile", *SMALL, "--opt", "preload,arena,nosync", "--diff",
                    "preload,arena,nosync,fuse", "--trace", str(file), "--json", str(kept)]) == 0
    out = capsys.readouterr().out
    for words in ("all ops 8.00 us", "fc1.weight.sgd", "the roofline is left out", "SIMULATED"):
        assert words in out
    found = msgspec.json.decode(kept.read_bytes(), type=ProfileResult)
    assert "fc1.bias_add" in {op.name for op in found.ops}
    said = out.splitlines()
    (gone,) = [line for line in said if "relu1.backward" in line and "activate" not in line]
    assert [cell.strip() for cell in gone.split("│")[1:-1]] == ["relu1.backward", "1.00", "-",
                                                                "-1.00"]
    assert any("the step as it runs" in line for line in said)
    events = json.loads(file.read_text())["traceEvents"]
    assert {e["args"]["name"].rpartition(": ")[2] for e in events
            if e["name"] == "process_name"} == {"preload,arena,nosync", "preload,arena,nosync,fuse"}


@pytest.mark.parametrize(("words", "said"), [
    (["--device", "host"], "a profile is of a GPU: --device host was asked for"),
    (["--opt", "none,preload"], "add arena to the toggles"),
    (["--opt", "nosink"], "did you mean 'nosync'"),
    (["--trace", "/nowhere/t.json"], "/nowhere")])
def test_what_cannot_be_is_refused_in_a_sentence(words: list[str], said: str,
                                                 capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["profile", *SMALL, *words]) != 0
    assert said in capsys.readouterr().err


# -- CUPTI -----------------------------------------------------------------------------------------


def stand_in(monkeypatch: pytest.MonkeyPatch, records: Callable[[], list[Any]]) -> list[str]:
    """A package `cupti` that says what `records` returns; returns what it was asked."""
    asked: list[str] = []
    module = ModuleType("cupti.cupti")
    hold: dict[str, Any] = {}

    def register(requested: Callable[[], tuple[int, int]], completed: Any) -> None:
        assert requested()[0] > 0
        hold["completed"] = completed

    module.__dict__.update(
        ActivityKind=SimpleNamespace(CONCURRENT_KERNEL="kernel", MEMCPY="copy", MEMSET="fill"),
        activity_register_callbacks=register,
        activity_enable=lambda kind: asked.append(f"on {kind}"),
        activity_disable=lambda kind: asked.append(f"off {kind}"),
        activity_flush_all=lambda flag: hold["completed"](records()))
    package = ModuleType("cupti")
    package.__dict__["cupti"] = module
    monkeypatch.setitem(sys.modules, "cupti", package)
    monkeypatch.setitem(sys.modules, "cupti.cupti", module)
    return asked


def test_activities_come_by_their_start(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = stand_in(monkeypatch, lambda: [SimpleNamespace(name="b", start=20, end=30),
                                           SimpleNamespace(start=5, end=6)])
    ran: list[int] = []
    found = cupti.activities(lambda: ran.append(1))
    assert ran == [1]
    assert found == [Activity("SimpleNamespace", 5, 6), Activity("b", 20, 30)]
    assert asked == ["on kernel", "on copy", "on fill", "off kernel", "off copy", "off fill"]


def test_the_order_of_activities_is_that_of_starts_however_they_overlap(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of several streams: one that starts first may end last, and buffers come unordered.
    """
    generator = np.random.default_rng(3)
    starts = generator.permutation(50)
    ends = starts + generator.integers(1, 100, len(starts))
    stand_in(monkeypatch, lambda: [SimpleNamespace(name=f"k{s}", start=s, end=e)
                                   for s, e in zip(starts, ends, strict=True)])
    found = cupti.activities(lambda: None)
    assert [(a.name, a.start) for a in found] == [(f"k{n}", n) for n in range(50)]
    assert sorted(a.end for a in found) == sorted(ends)


def test_without_the_package_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupti", None)
    monkeypatch.setitem(sys.modules, "cupti.cupti", None)
    assert "cannot be imported" in cupti.missing()
    with pytest.raises(MissingLibrary, match="pip install cupti-python"):
        cupti.activities(lambda: None)


def test_cupti_that_does_not_work_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, list)

    def refuses(kind: str) -> None:
        raise RuntimeError("another profiler")

    sys.modules["cupti.cupti"].activity_enable = refuses  # type: ignore[attr-defined]
    with pytest.raises(MissingLibrary, match="another profiler"):
        cupti.activities(lambda: None)


def test_activities_are_ops_by_their_kernels_in_order() -> None:
    """Mangled or not; branches of a graph may overtake each other; libraries' kernels lie between
    those of their neighbours."""
    def seen(*names: str) -> list[Activity]:
        return [Activity(name, n, n + 1) for n, name in enumerate(names)]

    kernels = ["gather", "matmul_nt", "matmul_nt", "sgd"]
    assert named(seen("tick", "_Z6gatherIhfhEvPKT_", "matmul_nt<float>", "_Z9matmul_ntIfE", "sgd"),
                 kernels) == [None, 0, 1, 2, 3]
    assert named(seen("gather", "sgd", "matmul_nt", "matmul_nt"), kernels) == [0, 3, 1, 2]
    assert named(seen("gather", "sm90_gemm", "splitKreduce", "sgd", "tick"),
                 ["gather", "", "sgd"]) == [0, 1, 1, 2, None]
    assert named(seen("gather", "bias_add", "_Z8bias_addPf", "sm90_gemm", "sgd"),
                 ["gather", "", "sgd"]) == [0, None, None, 1, 2]  # ours, of something else


@pytest.mark.parametrize("opt", ["graphs=epoch", "graphs=3", "graphs=step", "nosync"])
def test_an_epoch_as_cupti_saw_it(monkeypatch: pytest.MonkeyPatch, opt: str) -> None:
    """Of a graph of all steps, of some or of one, or of no graph: each kernel under its op's name,
    at its step, with its gap. The copies of batches without `preload` have no kernel."""
    steps = EXAMPLES // BATCH
    records = [SimpleNamespace(name="tick", start=10, end=510)]
    for n in range(steps):
        records += [SimpleNamespace(name="_Z14linear_forwardI", start=1000 + 4000 * n,
                                    end=2000 + 4000 * n),
                    SimpleNamespace(name="_Z13linear_updateI", start=2500 + 4000 * n,
                                    end=4500 + 4000 * n)]
    stand_in(monkeypatch, lambda: records)
    result = taken_apart(f"preload,fuse,{opt}", (12, 4), "cupti")
    times = {op.name: op for op in result.ops}
    assert (result.way, result.steps, result.empty_us) == ("cupti", steps, 0.0)
    assert [(s.name, s.kind == OUTSIDE, s.step, round(s.start_us, 6), s.us)
            for s in result.spans] == [
        ("tick", True, 0, 0.0, 0.5), *(span for n in range(steps) for span in (
            ("linear_forward", False, n, round(0.99 + 4 * n, 6), 1.0),
            ("linear_update", False, n, round(2.49 + 4 * n, 6), 2.0)))]
    forward, update = times["linear_forward"], times["linear_update"]
    assert (forward.us.n, forward.us.median) == (steps, 1.0)
    assert update.us.median == 2.0
    assert forward.gap_us
    assert update.gap_us
    assert (update.gap_us.median, forward.gap_us.median, forward.gap_us.n) == (0.5, 0.5, steps)
    assert times["tick"].gap_us is None
    assert result.ops_us == pytest.approx(3.5)


def test_a_trace_of_two_profiles() -> None:
    """Each a process: ops on a track of their own, and each step from its first op to the end of
    its last, whatever order they come in."""
    spread_of = spread([1.0])
    ops = [OpTime(name="a", kind="k/i", us=spread_of, nbytes=8, operations=16)]
    spans = [Span(name="b", kind=OUTSIDE, step=0, start_us=3.0, us=1.0),
             Span(name="a", kind="k/i", step=0, start_us=1.0, us=2.5),
             Span(name="a", kind="k/i", step=1, start_us=6.0, us=0.5)]
    one = msgspec.structs.replace(taken_apart("preload,arena,nosync"), ops=ops, spans=spans)
    events = trace_events([one, msgspec.structs.replace(one, spans=[])])

    def event(name: str, kind: str, at: float, us: float, track: int, **more: int) -> Any:
        return {"name": name, "cat": kind, "ph": "X", "ts": at, "dur": us, "pid": 1, "tid": track,
                "args": more}

    def names(pid: int) -> list[Any]:
        gpu = {"name": "simulated GPU: preload,arena,nosync"}
        return [{"name": name, "ph": "M", "pid": pid, "tid": tid, "args": args}
                for name, tid, args in (("process_name", 0, gpu),
                                        ("thread_name", 1, {"name": "ops"}),
                                        ("thread_name", 2, {"name": "steps"}))]

    assert events == [
        *names(1), event("b", OUTSIDE, 3.0, 1.0, 1, step=0, bytes=0, operations=0),
        event("a", "k/i", 1.0, 2.5, 1, step=0, bytes=8, operations=16),
        event("a", "k/i", 6.0, 0.5, 1, step=1, bytes=8, operations=16),
        event("step 0", "step", 1.0, 3.0, 2), event("step 1", "step", 6.0, 0.5, 2), *names(2)]


def test_ranges_are_nothing_without_nvtx_and_named_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvtx", None)
    with cupti.ranges()("step 1"):
        pass
    entered: list[str] = []

    @contextmanager
    def annotate(name: str, domain: str) -> Iterator[None]:
        entered.append(f"{domain} {name}")
        yield

    monkeypatch.setitem(sys.modules, "nvtx", SimpleNamespace(annotate=annotate))
    with cupti.ranges()("step 1"):
        pass
    assert entered == ["rawnn step 1"]


def test_a_config_error_is_no_crash() -> None:
    with pytest.raises(ConfigError, match="a profile is of a GPU"):
        profile(Config(device="host"), DATA, open_device("host", print))


@pytest.mark.parametrize("gap", [None, 0.5])
@pytest.mark.parametrize("nbytes", [0, 4_000_000])
@pytest.mark.parametrize("least", [None, 1.5])
def test_a_row_has_bytes_in_a_second_and_shares_of_the_step(gap: float | None, nbytes: int,
                                                            least: float | None) -> None:
    """4 MB in 2 us are 2,000 GB/s; 2 us of 8 are a quarter."""
    times = [1.0, 2.0, 3.0]
    op = OpTime(name="fc1", kind="matmul/mma", us=spread(times), nbytes=nbytes, least_us=least,
                gap_us=None if gap is None else spread([gap]))
    other = OpTime(name="fc2", kind="sgd/own", us=spread([6.0]))
    result = msgspec.structs.replace(taken_apart("preload,arena,nosync"), ops=[op, other])
    assert result.ops_us == 8.0
    first, second = rows(result)
    assert dict(zip(HEADINGS, first, strict=True)) == {
        "op": "fc1", "kind": "matmul/mma", "us": "2.00", "min-max": "1.00-3.00",
        "gap (us)": "" if gap is None else "0.50", "bytes": "4,000,000" if nbytes else "",
        "GB/s": "2,000" if nbytes else "", "of the roofline": "75%" if least else "",
        "share": "25%"}
    assert second == ("fc2", "sgd/own", "6.00", "6.00-6.00", "", "", "", "", "75%")
    slower = msgspec.structs.replace(
        result, ops=[other, msgspec.structs.replace(op, us=spread([3.5]), name="fc3")],
        step_us=spread([20.0]))
    whole = result.step_us.median
    assert differences(result, slower) == [
        ("fc1", "2.00", "-", "-2.00"), ("fc2", "6.00", "6.00", "+0.00"),
        ("fc3", "-", "3.50", "+3.50"), ("all ops", "8.00", "9.50", "+1.50"),
        ("the step as it runs", f"{whole:.2f}", "20.00", f"{20 - whole:+.2f}")]
