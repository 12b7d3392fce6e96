"""Comparing results files: planted slowdowns are found, two runs of the same commit are not told
apart, and every kind of file is read."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from rawnn.bench import noise
from rawnn.bench.compare import Comparison, compare
from rawnn.bench.noise import holm
from rawnn.bench.records import GPU_TIMER, LadderResult
from rawnn.bench.series import Series, SeriesFile, read_series, restored
from rawnn.bench.sets import Measurement, SetsResult, run_sets
from rawnn.bench.statistics import spread
from rawnn.cli.bench import bench
from rawnn.common.errors import ConfigError
from rawnn.engine.result import Environment
from rawnn.engine.runners.gpu import GpuRunner
from rawnn.engine.runners.times import EpochTimes
from tests.bench.conftest import GPU, make_ladder, make_rung
from tests.engine import random_dataset

RESULTS = Path(__file__).parents[2] / "results"
PLACE = Environment("0.1", "abc", "3.11", "Linux x86_64", "cuda", GPU, {"numpy": "2"}, {},
                    "2026-01-01T00:00:00+00:00")


def file(times: dict[str, list[float]], **more: Any) -> SeriesFile:
    return SeriesFile(path="x.json", kind="workloads", environment=PLACE, dataset="mnist",
                      series=[Series(suite="linear", set=name, times=t)
                              for name, t in times.items()], **more)


def noisy(seed: int, sets: int = 40, runs: int = 3, noise: float = 0.005,
          factor: float = 1.0) -> SeriesFile:
    """Sets of very different times with the same relative noise."""
    generator = np.random.default_rng(seed)
    usual = 2.0 ** np.arange(sets)
    return file({str(i): list(factor * t * np.exp(noise * generator.standard_normal(runs)))
                 for i, t in enumerate(usual)})


def verdicts(found: Comparison) -> dict[str, str]:
    return {pair.set: pair.verdict for pair in found.pairs}


def slowed(original: SeriesFile, name: str, factor: float) -> SeriesFile:
    return msgspec.structs.replace(original, series=[
        msgspec.structs.replace(s, times=[t * factor for t in s.times]) if s.set == name else s
        for s in original.series])


@pytest.mark.parametrize("seed", range(20))
def test_a_slowdown_of_5_percent_in_one_of_forty_sets_is_found_and_nothing_else(seed: int) -> None:
    found = compare(noisy(2 * seed), slowed(noisy(2 * seed + 1), "7", 1.05))
    assert verdicts(found) == {str(i): "slower" if i == 7 else "same" for i in range(40)}
    assert [pair.set for pair in found.regressions] == ["7"]
    slow = found.regressions[0]
    assert slow.ratio == pytest.approx(1.05, abs=0.02)
    assert slow.low is not None
    assert slow.high is not None
    assert slow.low < slow.ratio < slow.high


def test_noise_alone_raises_hardly_any_alarm() -> None:
    alarms = sum(bool(compare(noisy(i, noise=0.02), noisy(i + 1000, noise=0.02)).regressions)
                 for i in range(50))
    assert alarms <= 5  # the level is 5 %, and only differences of 3 % count


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    inside = total = 0
    for seed in range(20):
        for pair in compare(noisy(seed, noise=0.02), noisy(seed + 500, noise=0.02,
                                                           factor=1.1)).pairs:
            assert pair.low is not None
            assert pair.high is not None
            inside += pair.low <= 1.1 <= pair.high
            total += 1
    assert 0.91 <= inside / total <= 0.99


def test_a_difference_that_noise_explains_is_no_regression() -> None:
    a, b = [10.0, 11.0, 9.0], [10.6, 9.5, 11.2]
    assert verdicts(compare(file({"x": a}), file({"x": b}))) == {"x": "noise"}


def two_runs(seed: int) -> SeriesFile:
    """Graphs that differ by 0.6 % between two runs and by 0.2 % within, and, every third, sets that
    the host launches: 5 and 2 %. Most were run once."""
    generator = np.random.default_rng(seed)
    made = []
    for i in range(150):
        between, within = (0.05, 0.02) if i % 3 == 0 else (0.006, 0.002)
        shift = between / math.sqrt(2) * generator.standard_normal()
        noise = within * generator.standard_normal(1 if i % 5 else 4)
        made.append(Series(suite="linear", set=str(i), host=i % 3 == 0,
                           times=list(100 * np.exp(shift + noise))))
    return msgspec.structs.replace(file({}), series=made)


def test_what_two_runs_differ_by_beyond_their_repetitions_is_no_regression() -> None:
    alarms = 0
    for seed in range(5):
        a, b = two_runs(2 * seed), two_runs(2 * seed + 1)
        found = compare(a, b)
        alarms += bool(found.regressions)
        assert found.between["graphs of linear"] == pytest.approx(0.006, rel=0.4)
        assert found.between["sets launched by the host of linear"] == pytest.approx(0.06, rel=0.4)
        assert "5" in [p.set for p in compare(a, slowed(b, "5", 1.05)).regressions]
        # A graph that was run once may have been at its other speed.
        assert "7" not in [p.set for p in compare(a, slowed(b, "7", 1.04)).regressions]
        assert "7" in [p.set for p in compare(a, slowed(b, "7", 1.12)).regressions]
    assert alarms <= 1


def test_few_sets_of_one_run_are_not_told_apart_by_what_two_runs_usually_differ() -> None:
    """Four graphs of one run each, as they once differed at one commit."""
    ratios = {"a": 1.031, "b": 0.988, "c": 0.980, "d": 0.993}
    found = compare(file({name: [10.0] for name in ratios}),
                    file({name: [10 * ratio] for name, ratio in ratios.items()}))
    assert not found.regressions
    assert verdicts(found)["a"] == "noise"
    single = compare(file({"a": [10.0]}), file({"a": [10.31]}))
    assert verdicts(single) == {"a": "noise"}
    assert single.between == {"graphs": pytest.approx(0.016)}
    assert verdicts(compare(file({"a": [10.0]}), file({"a": [10.5]}))) == {"a": "slower"}


def test_peers_are_judged_apart_and_are_no_regression() -> None:
    generator = np.random.default_rng(0)

    def run(slow: float) -> SeriesFile:
        ours = noisy(int(slow))
        peers = [Series(suite="peers", set=f"torch {i}", ours=False, times=list(
            slow * 100 * np.exp(0.002 * generator.standard_normal(3)))) for i in range(20)]
        return msgspec.structs.replace(ours, series=ours.series + peers)

    a, b = run(1.0), run(2.0)
    found = compare(a, b)
    assert not found.regressions
    assert {p.verdict for p in found.peers} == {"slower"}
    assert {p.verdict for p in found.ours} == {"same"}
    assert [p.p for p in found.ours] == [p.p for p in compare(noisy(1), noisy(2)).pairs]
    assert found.overall_peers is not None
    assert found.overall_peers[0] == pytest.approx(2, rel=0.01)
    assert {"graphs of linear", "the peers' graphs of peers"} == set(found.between)
    gone = msgspec.structs.replace(b, series=[
        msgspec.structs.replace(s, times=[]) if not s.ours else s for s in b.series])
    assert not compare(a, gone).regressions


def test_one_of_many_sets_that_the_host_launches_may_be_half_as_slow_again() -> None:
    """As the quantiles of two runs of one commit were, whose other sets differed by 11 %."""
    seen = np.concatenate([np.random.default_rng(3).normal(0, 0.09, 42), [np.log(1.44)]])
    host = [Series(suite="toggles linear", set=str(i), host=True, times=[10.0]) for i in range(43)]
    slow = [msgspec.structs.replace(s, times=[10 * float(np.exp(d))])
            for s, d in zip(host, seen, strict=True)]
    a, b = two_runs(0), two_runs(1)
    assert not [p for p in compare(msgspec.structs.replace(a, series=a.series + host),
                                   msgspec.structs.replace(b, series=b.series + slow)).regressions
                if p.suite != "linear"]


def test_two_speeds_of_one_suite_are_no_regression() -> None:
    """A third of the small graphs run 15 % slower in one of the files, and others as fast."""
    a, b = two_runs(0), two_runs(1)
    small = [Series(suite="small", set=str(i), times=[100.0 * (1.15 if i % 3 == 1 else 1.0)])
             for i in range(30)]
    swapped = [msgspec.structs.replace(s, times=[100.0 * (1.15 if i % 3 == 2 else 1.0)])
               for i, s in enumerate(small)]
    found = compare(msgspec.structs.replace(a, series=[*a.series, *small]),
                    msgspec.structs.replace(b, series=[*b.series, *swapped]))
    assert not [p for p in found.regressions if p.suite == "small"]
    assert found.between["graphs of small"] > 0.05


def test_what_all_sets_have_in_common_stays() -> None:
    found = compare(two_runs(0), msgspec.structs.replace(two_runs(1), series=[
        msgspec.structs.replace(s, times=[1.05 * t for t in s.times])
        for s in two_runs(1).series]))
    slow = [p for p in found.regressions if int(p.set) % 3]
    assert len(slow) > 80
    assert found.overall is not None
    assert found.overall[0] == pytest.approx(1.05, abs=0.02)


def test_the_smallest_effect_that_counts_is_asked_for() -> None:
    a, b = noisy(0, noise=0.0005), noisy(1, noise=0.0005, factor=1.02)
    assert set(verdicts(compare(a, b)).values()) == {"same"}
    assert set(verdicts(compare(a, b, effect=0.01)).values()) == {"slower"}
    found = compare(a, b)
    assert found.overall is not None
    assert found.overall[0] == pytest.approx(1.02, abs=0.001)


def test_faster_is_no_regression() -> None:
    found = compare(noisy(0), noisy(1, factor=0.9))
    assert set(verdicts(found).values()) == {"faster"}
    assert not found.regressions


def test_a_set_that_could_not_be_run_any_more_is_a_regression() -> None:
    b = msgspec.structs.replace(file({"x": [1.0, 1.0, 1.0], "new": [1.0]}), series=[
        Series(suite="linear", set="x", times=[], reason="out of memory"),
        Series(suite="linear", set="new", times=[1.0]),
        Series(suite="linear", set="cut off", times=[])])
    found = compare(file({"x": [1.0, 1.0, 1.0], "only": [2.0], "cut off": [1.0]}), b)
    assert verdicts(found) == {"x": "lost", "only": "not measured", "new": "new",
                               "cut off": "not measured"}
    assert len(found.regressions) == 1
    assert found.regressions[0].reason == "out of memory"


def test_one_run_is_judged_by_the_noise_of_the_others_and_said() -> None:
    a, b = noisy(0), slowed(noisy(1), "3", 1.5)
    b.series[3].times[1:] = []
    a.series[3].times[1:] = []
    found = compare(a, b)
    assert verdicts(found)["3"] == "slower"
    assert any("one run only" in note for note in found.notes)


def test_files_without_a_common_set_are_refused() -> None:
    with pytest.raises(ConfigError, match="no set in common: A has linear: x, B has linear: y"):
        compare(file({"x": [1.0]}), file({"y": [1.0]}))


def test_other_machines_data_and_clocks_are_said() -> None:
    other = msgspec.structs.replace(file({"x": [1.0, 1.1]}), dataset="synthetic",
                                    environment=Environment("0", "", "", "", "cuda",
                                                            {**GPU, "name": "Another"}, {},
                                                            {"clocks": "locked"}, ""))
    notes = " ".join(compare(file({"x": [1.0, 1.1]}), other).notes)
    for words in ("machines differ: A Some GPU, B Another", "data differ", "locked clocks differ"):
        assert words in notes


def test_holms_adjustment() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize("values", [[3.0], [3.0, 4.0], [1.0, 3.0, 9.0], [1.0, 2.0, 3.0, 5.0, 9.0],
                                    [1.0, 2.0, 3.0, 4.0]])
def test_runs_are_restored_from_their_spread(values: list[float]) -> None:
    kept = spread(values)
    again = restored(kept)
    assert len(again) == len(values)
    assert (min(again), max(again)) == (kept.min, kept.max)
    if len(values) <= 3:
        assert again == values
    else:
        assert math.isclose(float(np.median(again)), kept.median, rel_tol=0.2)


@pytest.mark.parametrize("name", ["ladder-h200.json", "workloads-h200.json", "toggles-h200.json",
                                  "toggles-h100.json"])
def test_the_kept_results_are_read_and_equal_themselves(name: str) -> None:
    kept = read_series(RESULTS / name)
    assert sum(bool(s.times) for s in kept.series) > 5
    assert not compare(kept, kept).regressions


def test_a_file_of_the_first_schema_is_read(tmp_path: Path) -> None:
    """It kept the configuration of each set in place of its epochs."""
    now = json.loads((RESULTS / "workloads-h200.json").read_bytes())
    for measurement in now["measurements"]:
        measurement["config"] = {"epochs": measurement.pop("epochs")}
    (tmp_path / "old.json").write_text(json.dumps({**now, "schema_version": 1}))
    old = read_series(tmp_path / "old.json")
    assert old.series == read_series(RESULTS / "workloads-h200.json").series


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_series(tmp_path / "missing.json")
    (tmp_path / "odd.json").write_text('{"kind": "song"}')
    with pytest.raises(ConfigError, match="holds 'song'"):
        read_series(tmp_path / "odd.json")
    (tmp_path / "bad.json").write_text("[")
    with pytest.raises(ConfigError, match="is no results file"):
        read_series(tmp_path / "bad.json")


# -- the command ----------------------------------------------------------------------------------

def ladder_file(path: Path, factor: float) -> str:
    rungs = [make_rung(name, *(t * factor for t in times)) for name, times in
             {"baseline": (20.0, 20.1, 20.05), "fuse": (10.0, 10.02, 10.05)}.items()]
    rungs.append(make_rung("cudnn", status="unavailable", reason="no package"))
    result: LadderResult = make_ladder(*rungs)
    result.write_json(path)
    return str(path)


def sets_file(path: Path, factor: float) -> str:
    made = [Measurement(workload="linear", opt=opt, epochs=2, steps=10, times_ms=times,
                        epoch_ms=spread(times), us=spread(times), accuracies=[0.9] * len(times))
            for opt, times in (("best", [factor * 2.0, factor * 2.01, factor * 1.99]),
                               ("none", [9.0, 9.03, 8.98]))]
    SetsResult(kind="workloads", repeats=3, environment=PLACE, dataset="mnist", synthetic=False,
               timer=GPU_TIMER, measurements=made).write_json(path)
    return str(path)


def test_two_directories_are_compared_as_one(tmp_path: Path) -> None:
    for name, factor in (("a", 1.0), ("b", 1.05)):
        (tmp_path / name).mkdir()
        ladder_file(tmp_path / name / "ladder.json", 1.0)
        sets_file(tmp_path / name / "workloads.json", factor)
        (tmp_path / name / "notes.json").write_text("{}")
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    found = CliRunner().invoke(bench, ["compare", a, b, "--all"])
    assert found.exit_code == 1
    assert "workloads linear" in found.output
    assert "ladder 784-10" in found.output
    assert CliRunner().invoke(bench, ["compare", a, a]).exit_code == 0
    (tmp_path / "empty").mkdir()
    none = CliRunner().invoke(bench, ["compare", a, str(tmp_path / "empty")])
    assert "has no results file with times" in str(none.exception)


@pytest.mark.parametrize("make", [ladder_file, sets_file])
def test_the_command_exits_with_1_on_a_planted_slowdown(tmp_path: Path, make: Any) -> None:
    a, b = make(tmp_path / "a.json", 1.0), make(tmp_path / "b.json", 1.0005)
    slow = make(tmp_path / "slow.json", 1.05)
    run = CliRunner()
    same = run.invoke(bench, ["compare", a, b, "--all"])
    assert same.exit_code == 0, same.output
    assert "same: not further apart" in same.output
    worse = run.invoke(bench, ["compare", a, slow, "--json", str(tmp_path / "c.json")])
    assert worse.exit_code == 1
    assert "are worse in" in str(worse.exception)
    assert "slower" in worse.output
    kept = msgspec.json.decode((tmp_path / "c.json").read_bytes(), type=Comparison)
    assert kept.regressions
    assert run.invoke(bench, ["compare", slow, a]).exit_code == 0


def test_a_slowdown_of_5_percent_of_the_simulated_gpu_is_named(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real runs, whose clock counts commands: in one set each epoch gets one in twenty more."""
    wanted = [("linear", opt) for opt in ("none,preload,graphs=4", "none,preload,fuse,graphs=4",
                                          "none,preload,fuse,graphs=2")]
    data = random_dataset(784, 10, 1024, 60)

    def measured(name: str) -> str:
        run_sets("workloads", wanted, 2, 2, "sim", data=data).write_json(tmp_path / name)
        return str(tmp_path / name)

    plain, again = measured("plain.json"), measured("again.json")
    epoch, begin = GpuRunner.epoch, EpochTimes.begin

    def stretched(self: Any, measured: bool) -> None:
        device, end = self._device, self._times.end
        ran = device.driver.simulation.scheduler
        marks: list[int] = []

        def started() -> None:
            begin(self._times)
            device.stream.synchronize("stretching")
            marks.append(ran.ran)

        def late() -> None:
            device.stream.synchronize("stretching")
            block = device.memory.allocate(4, "stretching")
            for _ in range(round(0.05 * (ran.ran - marks[0]))):
                device.fill(block.address, 0, 4, "stretching")
            device.stream.synchronize("stretching")
            device.memory.free(block)
            end()

        if len(self._work.train.ops) > 8:  # the first set alone, without fusion
            self._times.begin, self._times.end = started, late
        try:
            epoch(self, measured)
        finally:
            vars(self._times).pop("begin", None)
            vars(self._times).pop("end", None)

    monkeypatch.setattr(GpuRunner, "epoch", stretched)
    planted = measured("planted.json")
    run = CliRunner()
    assert run.invoke(bench, ["compare", plain, again]).exit_code == 0
    worse = run.invoke(bench, ["compare", plain, planted])
    assert worse.exit_code == 1, worse.output
    assert "1 of 3 sets are worse" in str(worse.exception)
    assert str(worse.exception).endswith("linear, none,preload,graphs=4")


def test_resampling_grows_with_the_numbers_of_runs_not_with_the_pairs(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories have 1,800 pairs of few lengths. Each has its own scale, so its own interval."""
    drawn: list[int] = []
    original = noise._medians

    def counted(generator: Any, pool: Any, runs: int, count: int) -> Any:
        drawn.append(runs)
        return original(generator, pool, runs, count)

    monkeypatch.setattr(noise, "_medians", counted)
    draw = np.random.default_rng(0)
    pairs = [([*(100 * np.exp(0.01 * (1 + n % 5) * draw.standard_normal(5)))],
              [*(100 * np.exp(0.01 * (1 + n % 5) * draw.standard_normal(3 + n % 2)))])
             for n in range(60)]
    pairs[7] = ([100.0, 101.0, 100.0, 99.0, 100.0], [150.0, 151.0, 149.0, 150.0])
    found, _ = noise.judged(pairs, ["graphs"] * 60, [False] * 60, 0.05, 0)
    assert len(drawn) == 8  # (5, 3) and (5, 4), for the spread and for the noise
    widths = np.array([f.high - f.low for f in found])
    assert widths[4::5].mean() > 1.5 * widths[0::5].mean()
    assert [n for n, f in enumerate(found) if f.p < 0.05] == [7]
