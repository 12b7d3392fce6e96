"""The ladder: what each rung trains with, in turns, and what becomes of a rung that cannot run."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from rawnn.bench import training
from rawnn.bench.cases.ladder import _Once, check_rungs, climb, failures, measure, run_ladder
from rawnn.bench.harness import Harness
from rawnn.bench.record import Entry, Record, Results
from rawnn.bench.reference import host_accuracy
from rawnn.bench.suites import read_suites
from rawnn.common.errors import ConfigError, MissingLibrary, RawnnError
from rawnn.engine.config import Config
from rawnn.engine.result import Result
from rawnn.engine.session import Session
from tests.engine import random_dataset

DATA = random_dataset()
CONFIG = Config(layers=(29, 7), batch=8, epochs=2, device="sim")
HOST = Config(layers=(29, 7), batch=8, epochs=2, device="host")
SUITE = read_suites().ladder


def ladder(config: Config, repeats: int, rungs: Sequence[str] = SUITE.rungs,
           reference: Record | None = None, **more: Any) -> tuple[Results, Harness]:
    with Harness("ladder", **more) as harness:
        run_ladder(harness, config, repeats, rungs, SUITE.base, DATA, reference)
    return harness.results, harness


def words(entry: Entry) -> str:
    return entry.notes[0].removeprefix("toggles: ") if entry.notes else ""


def trained_opts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The toggles and the seed of each run, in order."""
    found: list[tuple[str, int]] = []

    class Seen(Session):
        def run(self) -> Result:
            found.append((self.config.opt, self.config.seed))
            return super().run()

    monkeypatch.setattr(training, "Session", Seen)
    return found


def test_rungs_are_cumulative_and_interleaved(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = trained_opts(monkeypatch)
    found, _ = ladder(CONFIG, 2)
    opts = [
        "none,preload,arena", "none,preload,arena,nosync", "none,preload,arena,nosync,cublas",
        "none,preload,arena,nosync,cublas,report=10",
        "none,preload,arena,nosync,cublas,report=10,fuse",
        "none,preload,arena,nosync,cublas,report=10,fuse,cudnn",
        "none,preload,arena,nosync,cublas,report=10,fuse,cudnn,graphs",
        "none,preload,arena,nosync,cublas,report=10,fuse,cudnn,graphs,streams",
        "none,preload,arena,nosync,cublas,report=10,fuse,cudnn,streams,graphs=epoch", "best",
    ]
    assert seen == [(opt, seed) for seed in range(2) for opt in opts]
    entries = found.entries("ladder")
    assert [e.variant for e in entries] == ["baseline", *SUITE.rungs]
    for entry in entries:
        assert (entry.status, len(entry.samples("epoch_ms"))) == ("measured", 2)
        assert entry.conditions["layers"] == [29, 7]
    assert "graph_nodes" in entries[7]
    assert "graph_nodes" not in entries[0]
    place = found.place(entries[0])
    assert place.device == "sim"
    assert "cudnn" in place.libraries
    assert "says nothing about a GPU" in place.timer["epoch_ms"]
    # Same data, same seeds: what differs is rounding.
    assert len({round(e.median("accuracy") or 0, 1) for e in entries}) == 1


def test_memory_of_one_rung_does_not_count_for_the_next() -> None:
    found, _ = ladder(CONFIG, 1, ("fuse", "-fuse"))
    before, fused, after = (e.median("peak_memory_bytes") or 0 for e in found.entries())
    assert before == after > fused > 0


def test_on_the_host_only_what_applies_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = trained_opts(monkeypatch)
    found, _ = ladder(HOST, 1)
    assert [opt for opt, _ in seen] == \
        ["none,preload", "none,preload,report=10", "none,preload,report=10,fuse", "best"]
    first = found.entries()[0]
    left_out = "left out: nosync, cublas, cudnn, graphs, streams, graphs=epoch"
    assert any(left_out in note for note in first.notes)
    assert "wall clock" in found.place(first).timer["epoch_ms"]


def broken(monkeypatch: pytest.MonkeyPatch, toggle: str, error: BaseException,
           from_run: int = 0) -> None:
    """Sessions that fail from a run on when a toggle is on."""
    runs = [0]

    class Broken(Session):
        def run(self) -> Result:
            if toggle in self.selection.values:
                runs[0] += 1
                if runs[0] > from_run:
                    raise error
            return super().run()

    monkeypatch.setattr(training, "Session", Broken)


@pytest.mark.parametrize(("error", "status"), [
    (MissingLibrary("libcublasLt is not there"), "unavailable"),
    (RawnnError("cuLaunchKernel failed"), "failed"),
])
def test_a_rung_that_cannot_run_is_a_row_and_is_not_carried_on(
        monkeypatch: pytest.MonkeyPatch, error: RawnnError, status: str) -> None:
    broken(monkeypatch, "cublas", error)
    found, _ = ladder(CONFIG, 2, ("nosync", "cublas", "fuse"))
    _, nosync, cublas, fuse = found.entries()
    assert (cublas.status, cublas.reason, cublas.samples("epoch_ms")) == (status, str(error), [])
    assert "cublas" not in words(fuse)
    assert "nosync" in words(fuse)
    assert [len(e.samples("epoch_ms")) for e in (nosync, fuse)] == [2, 2]
    assert failures(found) == ("1 of 4 rungs failed (cublas); the reasons stand below the table"
                               if status == "failed" else "")


def test_a_later_failure_keeps_the_runs_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, "fuse", RawnnError("boom"), from_run=2)
    base, fuse = ladder(HOST, 4, ("fuse",))[0].entries()
    assert (fuse.status, len(fuse.samples("epoch_ms")), len(base.samples("epoch_ms"))) == (
        "failed", 2, 4)


def test_a_resumed_ladder_goes_on_with_the_toggles_that_it_had(
        monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, "fuse", KeyboardInterrupt(), from_run=1)
    found, harness = ladder(HOST, 2, ("report=10", "fuse"))
    assert harness.interrupted
    assert [len(e.samples("epoch_ms")) for e in found.entries()] == [2, 2, 1]
    seen = trained_opts(monkeypatch)
    whole, _ = ladder(HOST, 3, ("report=10", "fuse"), earlier=found)
    assert seen == [("none,preload,report=10,fuse", 1), ("none,preload", 2),
                    ("none,preload,report=10", 2), ("none,preload,report=10,fuse", 2)]
    assert {len(e.samples("epoch_ms")) for e in whole.entries()} == {3}


def test_a_run_cut_short_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cut(Session):
        def run(self) -> Result:
            result = super().run()
            object.__setattr__(result, "interrupted", "fuse" in self.selection.values)
            return result

    monkeypatch.setattr(training, "Session", Cut)
    found, harness = ladder(HOST, 3, ("fuse",))
    assert harness.interrupted
    assert [len(e.samples("epoch_ms")) for e in found.entries()] == [1, 0]


def test_the_reference_is_a_record_of_its_own() -> None:
    reference = host_accuracy(HOST, DATA, (0, 1))
    *_, last = ladder(HOST, 1, ("fuse",), reference)[0].entries()
    assert (last.variant, last.precision, last.samples("accuracy")) == (
        "reference", "float64", reference.samples)


@pytest.mark.parametrize(("words", "added", "wanted"), [
    (("a",), ("fuse",), ("a", "fuse")),
    (("graphs",), ("graphs=epoch",), ("graphs=epoch",)),
    (("nosync", "fuse"), ("-fuse",), ("nosync",)),
    (("nosync",), ("best",), ("best",)),
    (("best",), ("-cudnn",), ("best", "-cudnn")),
    (("nosync",), ("best", "report=10"), ("best", "report=10")),
])
def test_climbing(words: tuple[str, ...], added: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    assert climb(words, added) == wanted


@pytest.mark.parametrize(("rung", "sentence"), [
    ("cubals", "did you mean 'cublas'"), ("fuse+grafs", "did you mean 'graphs'"),
    ("graphs=0", "graphs=0"), ("arena=3", "takes no value"), ("best=1", "is called 'best'"),
])
def test_rungs_that_do_not_exist_are_refused_before_anything_runs(rung: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_rungs([rung])


@pytest.mark.parametrize(("base", "rungs"), [(["preloud"], "fuse"), ([], "fuse,preloud")])
def test_the_whole_ladder_is_judged_before_anything_is_read(base: list[str], rungs: str) -> None:
    suites: Any = SimpleNamespace(ladder=replace(SUITE, base=base))
    unused: Any = None
    with pytest.raises(ConfigError, match="did you mean 'preload'"):
        measure(unused, suites, rungs=rungs, repeats=1, oracle="", data="no such file",
                device="host")


def test_each_message_of_many_runs_is_passed_on_once() -> None:
    said: list[str] = []
    once = _Once(said.append)
    for message in ("a", "b", "a", "a", "c", "b"):
        once.notify(message)
    assert said == ["a", "b", "c"]
    assert not once.reads
