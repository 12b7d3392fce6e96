"""Workloads with sets of toggles: interleaved runs, what cannot run, and what Ctrl-C leaves."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rawnn.bench import rounds, sets
from rawnn.bench.conditions import Conditions, joules, slowed, unslowed
from rawnn.bench.sets import Progress, SetsResult, run_sets
from rawnn.common.errors import ConfigError, RawnnError
from rawnn.engine.training import Session
from tests.engine import random_dataset

DATA = random_dataset(784, 10, 300, 60)
TWO = [("linear", "best"), ("linear", "none")]


def test_sets_are_interleaved_and_measured(tmp_path: Path) -> None:
    heard: list[Progress] = []
    result = run_sets("workloads", TWO, repeats=2, epochs=2, device="host", data=DATA,
                      on_progress=heard.append)
    assert [(s.done, s.measurement.opt, s.complete) for s in heard] == [
        (1, "best", False), (2, "none", False), (3, "best", True), (4, "none", True)]
    for m, (name, opt) in zip(result.measurements, TWO, strict=True):
        assert (m.workload, m.opt, m.steps, m.reason) == (name, opt, 2, "")
        assert len(m.accuracies) == 2
        assert m.us is not None
        assert m.epoch_ms is not None
        assert m.us.median == pytest.approx(m.epoch_ms.median * 500)
    file = tmp_path / "sets.json"
    result.write_json(file)
    assert msgspec.json.decode(file.read_bytes(), type=SetsResult) == result
    assert result.markdown().count("| `linear` |") == 2


def test_what_cannot_run_is_kept_with_the_reason() -> None:
    result = run_sets("workloads", [("wide7", "graphs"), ("wide7", "best")], repeats=1, epochs=1,
                      device="host", data=DATA)
    assert "only for a GPU" in result.measurements[0].reason
    assert "only for a GPU" in result.measurements[0].cells()[9]
    assert result.measurements[1].us is not None


def test_emulated_number_formats_say_nothing_of_their_worth_on_the_host() -> None:
    wanted = [("linear", "best,bf16"), ("linear", "fp16=acc16")]
    for found in run_sets("toggles", wanted, 1, 1, "host", data=DATA).measurements:
        assert "only emulates" in found.reason
        assert found.us is None
    kept, = run_sets("workloads", wanted[:1], 1, 1, "host", data=DATA).measurements
    assert kept.us is not None  # whoever asks for it by name gets it


def test_a_set_that_fails_later_keeps_its_figures_and_the_reason(
        monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Session):
        def run(self):  # type: ignore[no-untyped-def]
            if self.config.seed == 1:
                raise RawnnError("cuLaunchKernel failed")
            return super().run()

    monkeypatch.setattr(sets, "Session", Broken)
    only, = run_sets("workloads", TWO[:1], repeats=3, epochs=1, device="host",
                     data=DATA).measurements
    assert (len(only.accuracies), only.reason) == (1, "cuLaunchKernel failed")


def test_ctrl_c_leaves_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Session):
        def run(self):  # type: ignore[no-untyped-def]
            if (self.config.seed, self.config.opt) == (1, "none"):
                raise KeyboardInterrupt
            return super().run()

    monkeypatch.setattr(sets, "Session", Interrupted)
    result = run_sets("workloads", TWO, repeats=2, epochs=1, device="host", data=DATA)
    assert result.interrupted
    assert [len(m.accuracies) for m in result.measurements] == [2, 1]
    assert "of 1-2 interleaved runs" in result.provenance()


def test_what_was_measured_before_is_kept_and_the_rest_measured() -> None:
    said: list[str] = []
    heard: list[Progress] = []

    def go_on(earlier: SetsResult) -> SetsResult:
        said.clear()
        heard.clear()
        return run_sets("workloads", TWO, repeats=2, epochs=2, device="host", data=DATA,
                        earlier=earlier, notify=said.append, on_progress=heard.append)

    both = run_sets("workloads", TWO, repeats=1, epochs=2, device="host", data=DATA)
    first, second = both.measurements
    lacking = msgspec.structs.replace(both, interrupted=True, measurements=[
        first, msgspec.structs.replace(second, times_ms=[], us=None, epoch_ms=None)])
    result = go_on(lacking)
    assert result.measurements[0] == first
    assert len(result.measurements[1].times_ms) == 2
    assert (result.sittings, result.interrupted) == (2, False)
    assert "in 2 sittings" in result.provenance()
    assert [(p.measurement.opt, p.done) for p in heard] == [("best", 0), ("none", 1), ("none", 2)]
    assert said == ["1 of 2 sets were measured before"]
    assert go_on(result).measurements == result.measurements  # nothing is left
    for other in (msgspec.structs.replace(both, dataset="other"),
                  msgspec.structs.replace(both, kind="toggles")):
        assert len(go_on(other).measurements[0].times_ms) == 2
        assert "nothing is taken from before" in said[0]
    longer = run_sets("workloads", TWO, repeats=1, epochs=1, device="host", data=DATA,
                      earlier=both)
    assert longer.sittings == 1  # other epochs are other sets


@pytest.mark.parametrize(("wanted", "repeats", "match"), [
    ([("linear", "best"), ("wide", "best")], 1, "unknown workload 'wide'"),
    (TWO, 0, "nothing to measure"), ([], 1, "nothing to measure")])
def test_what_means_nothing_is_refused_before_anything_runs(
        wanted: list[sets.WorkloadSet], repeats: int, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        run_sets("workloads", wanted, repeats=repeats, device="host", data=DATA)


def test_a_budget_ends_the_rounds_and_every_set_is_run_once(
        monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 10))  # each look at it ten seconds later
    monkeypatch.setattr(rounds, "monotonic", lambda: next(clock))
    heard: list[Progress] = []
    result = run_sets("workloads", TWO, 5, 1, "host", data=DATA, budget=35,
                      on_progress=heard.append)
    assert result.repeats == 3
    assert not result.interrupted
    assert [len(m.accuracies) for m in result.measurements] == [3, 2]
    assert "medians and median deviations of 2-3 interleaved runs" in result.provenance()
    assert [s.measurement.opt for s in heard if s.complete] == ["best", "none"]
    # what a killed process leaves is not whole
    assert all(s.result.interrupted for s in heard if not s.complete)
    once = run_sets("workloads", TWO, 5, 1, "host", data=DATA, budget=0.001)
    assert [len(m.accuracies) for m in once.measurements] == [1, 1]
    assert [*rounds.Rounds(3, 0.001)] == [0]
    assert [*rounds.Rounds(3)] == [0, 1, 2]


def test_a_run_on_a_slowed_gpu_is_repeated_and_then_marked() -> None:
    hot = Conditions(slowdowns=["power limit", "too hot"], energy_j=30.0, seconds=2.0)
    limited = Conditions(slowdowns=["power limit"])
    for seen, runs, words in (([hot, Conditions()], 2, ""), ([hot, hot, limited], 2, "too hot"),
                              ([limited], 1, ""), ([None], 1, "")):
        left = list(seen)
        _, kept = unslowed(lambda left=left: (None, left.pop(0)))
        assert len(seen) - len(left) == runs
        assert words in slowed(kept)
        assert bool(words) == bool(slowed(kept))
    assert joules(hot, 20) == "1.5"
    assert joules(Conditions(energy_j=1.0, seconds=0.2), 20) == ""  # less than the counter tells
