"""Interleaved rounds: their order, their budget, what breaks, what a file keeps and goes on
from."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from rawnn.bench import harness as module
from rawnn.bench.conditions import Conditions
from rawnn.bench.harness import CUT_OFF, INTERRUPTED, Harness, Sample, Variant
from rawnn.bench.record import read_results
from rawnn.common.errors import ConfigError, MissingLibrary, RawnnError
from tests.bench.measuring import place, standing, variant


def raising(error: BaseException, at: int) -> Any:
    def take(number: int) -> float:
        if number == at:
            raise error
        return float(number)

    return take


def measure(harness: Harness, variants: list[Variant], rounds: int, **more: Any) -> None:
    harness.ask(variants)
    harness.interleave(variants, rounds, **more)
    harness.end()


def test_every_variant_takes_a_turn_before_any_takes_another() -> None:
    order: list[tuple[str, int]] = []

    def taking(name: str) -> Variant:
        return variant(name, lambda number: order.append((name, number)) or float(number))

    received: list[tuple[int, ...]] = []
    with standing(progress=lambda done, total, rounds, last: received.append((done, total, rounds))
                  ) as harness:
        measure(harness, [taking("a"), taking("b")], 3)
    assert order == [(name, number) for number in range(3) for name in "ab"]
    assert received == [(done, 6, 3) for done in range(1, 7)]
    assert [r.samples for r in harness.results.records] == [[0.0, 1.0, 2.0]] * 2
    assert harness.results.is_whole("made-up")


@pytest.mark.parametrize(("error", "status"), [
    (MissingLibrary("no cuBLASLt here"), "unavailable"), (ConfigError("no such"), "unavailable"),
    (RawnnError("cuLaunchKernel failed"), "failed")])
def test_what_fails_keeps_its_samples_and_the_reason_and_the_others_go_on(
        error: RawnnError, status: str) -> None:
    with standing() as harness:
        measure(harness, [variant("a", raising(error, 1)), variant("b", float)], 3)
    a, b = harness.results.entries()
    assert (a.status, a.reason, a.samples("epoch_ms")) == (status, str(error), [0.0])
    assert (b.status, b.samples("epoch_ms")) == ("measured", [0.0, 1.0, 2.0])


def test_the_file_has_everything_after_each_sample(tmp_path: Path) -> None:
    file, seen = tmp_path / "r.json", []

    def take(number: int) -> float:
        found = read_results(file)
        seen.append(([len(r.samples) for r in found.records], found.ended))
        return 1.0

    with standing(path=file) as harness:
        measure(harness, [variant("a", take), variant("b", take)], 2)
    assert [counts for counts, _ in seen] == [[0, 0], [1, 0], [1, 1], [2, 1]]
    assert all(ended == {"made-up": CUT_OFF} for _, ended in seen)  # were it killed there
    assert read_results(file) == harness.results
    assert not harness.results.ended


def test_ctrl_c_keeps_what_there_is_and_a_resumed_file_gets_what_it_lacks(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    with standing(path=file) as harness:
        measure(harness, [variant("a", float), variant("b", raising(KeyboardInterrupt(), 1)),
                          variant("c", float)], 3)
        with pytest.raises(KeyboardInterrupt):
            harness.check()
    left = read_results(file)
    assert left.ended == {"made-up": INTERRUPTED}
    assert not left.is_whole("made-up")
    assert [len(r.samples) for r in left.records] == [2, 1, 1]
    asked: list[tuple[str, int]] = []
    again = [variant(name, lambda n, name=name: asked.append((name, n)) or 9.0)  # type: ignore[misc]
             for name in "abc"]
    with standing(path=file, earlier=left) as harness:
        measure(harness, again, 3)
        harness.check()
    assert asked == [("b", 1), ("c", 1), ("a", 2), ("b", 2), ("c", 2)]
    whole = read_results(file)
    assert [r.samples for r in whole.records] == [[0.0, 1.0, 9.0], [0.0, 9.0, 9.0], [0.0, 9.0, 9.0]]
    assert whole.is_whole("made-up")


def test_progress_of_what_is_resumed_counts_what_is_left() -> None:
    """A variant that is refused counts for nothing; one that has more samples takes none back."""
    with standing() as harness:
        measure(harness, [variant(name, float) for name in "ab"], 2)
    received: list[tuple[int, ...]] = []
    refused = variant("d", float)
    refused.refuse("unavailable", "it cannot run here")
    with standing(earlier=harness.results,
                  progress=lambda done, total, rounds, last: received.append((done, total))
                  ) as harness:
        harness.ask([*(both := [variant(name, float) for name in "abc"]), refused])
        harness.interleave([*both, refused], 3)
        harness.interleave(both, 1)
    assert received == [(done, 5) for done in range(1, 6)]


def test_what_failed_before_is_tried_again() -> None:
    with standing() as harness:
        measure(harness, [variant("a", raising(RawnnError("a fault"), 0))], 2)
    with standing(earlier=harness.results) as harness:
        measure(harness, [variant("a", float)], 2)
    entry, = harness.results.entries()
    assert (entry.status, entry.reason, entry.samples("epoch_ms")) == ("measured", "", [0.0, 1.0])


@pytest.mark.parametrize("other", [
    place(commit="1234567"), place(gpu={**place().gpu, "name": "Other GPU"}),  # type: ignore[dict-item]
    place(gpu={**place().gpu, "driver": "590"})])  # type: ignore[dict-item]
def test_a_file_of_another_machine_or_commit_is_not_gone_on_with(other: Any) -> None:
    with standing() as harness:
        measure(harness, [variant("a", float)], 1)
    with pytest.raises(ConfigError, match="the file to be resumed was measured on Some GPU at "
                                          "commit abcdef0"), \
            standing(earlier=harness.results, where=other):
        pass


def test_other_conditions_are_other_variants() -> None:
    with standing() as harness:
        measure(harness, [variant("a", float, epochs=2)], 1)
    with standing(earlier=harness.results) as harness:
        measure(harness, [variant("a", lambda n: 7.0, epochs=3)], 1)
    assert [(r.conditions, r.samples) for r in harness.results.records] == [
        ({"epochs": 2}, [0.0]), ({"epochs": 3}, [7.0])]


class Clock:
    """Seconds that pass when something is taken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(module, "monotonic", lambda: self.now)

    def taking(self, name: str, seconds: float) -> Variant:
        def take(number: int) -> float:
            self.now += seconds
            return 1.0

        return variant(name, take)


def test_a_budget_lets_quick_variants_take_more_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    with standing(budget=10.0) as harness:
        measure(harness, [clock.taking("slow", 4.0), clock.taking("quick", 1.0)], 9)
    assert [len(r.samples) for r in harness.results.records] == [2, 2]
    assert clock.now == 10.0
    assert harness.results.is_whole("made-up")  # as the budget says, and nothing ended it


def test_with_whole_rounds_none_is_begun_that_would_not_end_in_time(
        monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    with standing(budget=12.0) as harness:
        measure(harness, [clock.taking("slow", 4.0), clock.taking("quick", 1.0)], 9,
                whole_rounds=True)
    assert [len(r.samples) for r in harness.results.records] == [2, 2]
    with standing(budget=1.0) as harness:  # the first round is always run
        measure(harness, [clock.taking("slow", 4.0), clock.taking("quick", 1.0)], 9)
    assert [len(r.samples) for r in harness.results.records] == [1, 1]


def test_one_that_is_hopeless_takes_one_turn() -> None:
    with standing() as harness:
        measure(harness, [variant("a", float), variant("b", float)], 3,
                is_skipped=lambda v: v.name == "b")
    assert [len(r.samples) for r in harness.results.records] == [3, 1]


HOT = Conditions({"sm_mhz": [1000.0, 1050.0, 1100.0]}, ["too hot"], energy_j=5.0, seconds=2.0)
COOL = Conditions({"sm_mhz": [1900.0, 1950.0, 2000.0]}, ["power limit"], energy_j=7.0, seconds=2.0)


def test_a_sample_of_a_slowed_down_gpu_is_taken_once_more_and_said_if_that_does_not_help() -> None:
    seen = [HOT, COOL, HOT, HOT]
    with standing() as harness:
        measure(harness, [variant("a", lambda n: Sample({"epoch_ms": 1.0},
                                                        conditions=seen.pop(0)))], 2)
    entry, = harness.results.entries()
    assert not seen
    assert entry.samples("epoch_ms") == [1.0, 1.0]
    assert entry.samples("energy_j") == [7.0, 5.0]
    assert entry.samples("sm_mhz") == [1000.0, (1950.0 + 1050.0) / 2, 2000.0]
    assert entry.notes == ["ran on a slowed-down GPU (too hot), even when it was run again"]


def test_a_gpu_that_stays_slow_is_said_once() -> None:
    with standing() as harness:
        measure(harness, [variant("a", lambda n: Sample({"epoch_ms": 1.0}, conditions=HOT))], 3)
    entry, = harness.results.entries()
    assert len(entry.notes) == 1


def test_a_full_disk_is_said_once_and_the_last_try_counts(monkeypatch: pytest.MonkeyPatch,
                                                          tmp_path: Path) -> None:
    full, said = [True], list[str]()

    def write(path: Any, content: bytes) -> None:
        if full[0]:
            raise RawnnError(f"cannot write {path}: No space left on device")

    monkeypatch.setattr("rawnn.bench.record.write_atomically", write)
    with standing(path=tmp_path / "r.json", notify=said.append) as harness:
        measure(harness, [variant("a", float)], 2)
        with pytest.raises(RawnnError, match="No space"):
            harness.check()
        full[0] = False
        harness.end()
        harness.check()
    assert [line for line in said if "going on, to be tried again" in line] == said
    assert len(said) == 1


def _measure_elsewhere(file: str, ready: Any, done: Any) -> None:
    with Harness("made-up", file):
        ready.set()
        done.wait(20)


def test_a_file_has_one_writer(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    spawn = multiprocessing.get_context("spawn")
    ready, done = spawn.Event(), spawn.Event()
    other = spawn.Process(target=_measure_elsewhere, args=(str(file), ready, done))
    other.start()
    try:
        assert ready.wait(20)
        with pytest.raises(ConfigError, match=rf"another measurement writes {file} \(pid "), \
                Harness("made-up", str(file)):
            pass
    finally:
        done.set()
        other.join()
    with Harness("made-up", str(file)):
        pass
    assert not list(tmp_path.iterdir())
