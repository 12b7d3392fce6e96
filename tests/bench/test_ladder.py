import msgspec
import pytest

from rawnn.bench import ladder as module
from rawnn.bench.ladder import DEFAULT_RUNGS, Progress, check_rungs, climb, run_ladder
from rawnn.common.errors import ConfigError, MissingLibrary, RawnnError
from rawnn.engine.config import Config
from rawnn.engine.result import Result
from rawnn.engine.training import Session
from tests.engine import random_dataset

DATA = random_dataset()
CONFIG = Config(layers=(29, 7), batch=8, epochs=2, device="sim")
HOST = Config(layers=(29, 7), batch=8, epochs=2, device="host")


def test_rungs_are_cumulative_and_interleaved() -> None:
    order: list[tuple[int, str]] = []
    found = run_ladder(CONFIG, 2, on_progress=lambda p: order.append((p.repeat, p.rung)), data=DATA)
    names = ["baseline", *DEFAULT_RUNGS]
    assert order == [(repeat, name) for repeat in range(2) for name in names]
    assert [r.opt for r in found.rungs] == [
        "none,preload,arena", "none,preload,arena,nosync", "none,preload,arena,nosync,cublas",
        "none,preload,arena,nosync,cublas,report=10",
        "none,preload,arena,nosync,cublas,report=10,fuse",
        "none,preload,arena,nosync,cublas,report=10,fuse,cudnn",
        "none,preload,arena,nosync,cublas,report=10,fuse,cudnn,graphs",
        "none,preload,arena,nosync,cublas,report=10,fuse,cudnn,graphs,streams",
        "none,preload,arena,nosync,cublas,report=10,fuse,cudnn,streams,graphs=epoch", "best",
    ]
    assert {r.status for r in found.rungs} == {"measured"}
    for rung in found.rungs:
        assert [(run.repeat, run.seed, len(run.epoch_ms)) for run in rung.runs] == \
            [(0, 0, 2), (1, 1, 2)]
    assert found.rungs[7].graph_nodes is not None
    assert found.rungs[0].graph_nodes is None
    assert found.environment.device == "sim"
    assert "cudnn" in found.environment.libraries
    assert not found.interrupted
    # Same data, same seeds: what differs is rounding.
    assert len({round(r.accuracy_mean or 0, 1) for r in found.rungs}) == 1


def test_memory_of_one_rung_does_not_count_for_the_next() -> None:
    found = run_ladder(CONFIG, 1, ("fuse", "-fuse"), data=DATA)
    peaks = [r.peak_memory_bytes for r in found.rungs]
    assert peaks[0] == peaks[2]
    assert peaks[1] is not None
    assert peaks[2] is not None
    assert peaks[1] < peaks[2]


def test_on_the_host_only_what_applies_is_run() -> None:
    said: list[str] = []
    found = run_ladder(HOST, 1, notify=said.append, data=DATA)
    assert [r.name for r in found.rungs] == ["baseline", "report=10", "fuse", "best"]
    assert [r.opt for r in found.rungs] == \
        ["none,preload", "none,preload,report=10", "none,preload,report=10,fuse", "best"]
    assert {r.status for r in found.rungs} == {"measured"}
    left_out = "left out: nosync, cublas, cudnn, graphs, streams, graphs=epoch"
    assert any(left_out in note for note in found.notes)
    assert "wall clock" in found.timer["average_epoch_ms"]


class Broken(Session):
    """A session that fails when a toggle is on, and counts runs."""

    toggle, error, from_run = "fuse", RawnnError("boom"), 0
    runs = 0

    def run(self) -> Result:
        if self.toggle in self.selection.values:
            type(self).runs += 1
            if type(self).runs > self.from_run:
                raise self.error
        return super().run()


def broken(monkeypatch: pytest.MonkeyPatch, toggle: str, error: BaseException,
           from_run: int = 0) -> None:
    parts = {"toggle": toggle, "error": error, "from_run": from_run, "runs": 0}
    monkeypatch.setattr(module, "Session", type("Broken", (Broken,), parts))


@pytest.mark.parametrize(("error", "status"), [
    (MissingLibrary("libcublasLt is not there"), "unavailable"),
    (RawnnError("cuLaunchKernel failed"), "failed"),
])
def test_a_rung_that_cannot_run_is_a_row_and_is_not_carried_on(
        monkeypatch: pytest.MonkeyPatch, error: RawnnError, status: str) -> None:
    broken(monkeypatch, "cublas", error)
    found = run_ladder(CONFIG, 2, ("nosync", "cublas", "fuse"), data=DATA)
    rung = found.rungs[2]
    assert (rung.status, rung.reason, rung.runs) == (status, str(error), [])
    assert found.rungs[3].opt == "none,preload,arena,nosync,fuse"
    assert [len(r.runs) for r in found.rungs] == [2, 2, 0, 2]


def test_a_failing_baseline_leaves_the_other_rungs_their_base(
        monkeypatch: pytest.MonkeyPatch) -> None:
    class Once(Session):
        def run(self) -> Result:
            if "nosync" not in self.selection.values:
                raise RawnnError("boom")
            return super().run()

    monkeypatch.setattr(module, "Session", Once)
    found = run_ladder(CONFIG, 1, ("nosync",), data=DATA)
    assert found.rungs[0].status == "failed"
    assert found.rungs[1].opt == "none,preload,arena,nosync"


def test_a_later_failure_keeps_the_runs_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, "fuse", RawnnError("boom"), from_run=2)
    found = run_ladder(HOST, 4, ("fuse",), data=DATA)
    assert found.rungs[1].status == "failed"
    assert len(found.rungs[1].runs) == 2
    assert found.rungs[1].average_epoch_ms is not None
    assert len(found.rungs[0].runs) == 4


def test_ctrl_c_keeps_what_was_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, "fuse", KeyboardInterrupt(), from_run=1)
    found = run_ladder(HOST, 3, ("report=10", "fuse"), data=DATA)
    assert found.interrupted
    assert [len(r.runs) for r in found.rungs] == [2, 2, 1]


def test_a_run_cut_short_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cut(Session):
        def run(self) -> Result:
            result = super().run()
            object.__setattr__(result, "interrupted", "fuse" in self.selection.values)
            return result

    monkeypatch.setattr(module, "Session", Cut)
    found = run_ladder(HOST, 3, ("fuse",), data=DATA)
    assert found.interrupted
    assert [len(r.runs) for r in found.rungs] == [1, 0]


def test_progress_carries_everything_found_so_far() -> None:
    seen: list[Progress] = []
    found = run_ladder(HOST, 2, ("fuse",), seen.append, data=DATA)
    assert [(p.done, p.total) for p in seen] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert [sum(len(r.runs) for r in p.result.rungs) for p in seen] == [1, 2, 3, 4]
    assert all(p.result.interrupted for p in seen)  # what a killed process leaves is not whole
    last = msgspec.structs.replace(seen[-1].result, interrupted=False)
    assert msgspec.structs.asdict(last) == msgspec.structs.asdict(found)


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


def test_at_least_one_repeat() -> None:
    with pytest.raises(ConfigError, match="repeats = 0"):
        run_ladder(HOST, 0, data=DATA)
