"""Systems compared: in turns, within a budget, kept and gone on with; systems and lanes that
break."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rawnn.bench.cases.sample import part_of, random_networks, samples_of, thorough
from rawnn.bench.peers.lanes import Lane, Lanes, Prepared, most
from rawnn.bench.peers.process import SystemProcess
from rawnn.bench.peers.system_comparison import (
    Rules,
    Task,
    asked_part,
    compare,
    failures,
    task_of,
)
from rawnn.bench.peers.training_problem import Problem, sampled, smaller
from rawnn.bench.peers.worker import Prepare
from rawnn.bench.record import Results, read_results
from rawnn.bench.regressions import pairs_of
from tests.bench.measuring import place, standing, tiny

RULES = Rules(("rawnn", "numpy"), "host")
HOST = place(device="host", gpu=None)


def small(count: int) -> list[Task]:
    return [task_of(smaller(sampled(seed), 20, 8, 4), f"sample/{seed}") for seed in range(count)]


def compared(tasks: Sequence[Task], rules: Rules = RULES, earlier: Results | None = None,
             part: Callable[[Sequence[Task]], Sequence[Task]] = lambda tasks: tasks, **more: Any
             ) -> Results:
    with standing("sample", earlier=earlier, where=HOST, **more) as harness:
        compare(harness, tasks, rules, part)
    return harness.results


def test_programs_are_timed_in_turns_and_kept(tmp_path: Path) -> None:
    file, said = tmp_path / "r.json", list[str]()

    def echo(text: str) -> None:
        said.append(text)
        assert read_results(file).ended  # what a killed process leaves is not whole

    found = compared(small(2), path=file, echo=echo)
    assert [text.strip().partition("  ")[0] for text in said] == ["seed 0", "seed 1"]
    entries = found.entries("sample")
    assert [(e.case, e.variant, e.precision, e.status) for e in entries] == [
        (f"sample/{seed}", name, "float32", "measured") for seed in range(2)
        for name in ("rawnn best", "numpy arrays")]
    for entry in entries:
        assert len(entry.samples("step_us")) == 8
        assert (entry.median("loss_error") or 0) < 0.1
        assert (entry.median("setup_s") or 0) > 0
        assert entry.conditions["clock"] == "wall"
    assert "launches" in entries[0]
    assert "launches" not in entries[1]
    assert found.is_whole("sample")
    assert "numpy" in found.place(entries[0]).libraries
    assert read_results(file) == found
    assert {p.verdict for p in pairs_of(found, found)} == {"same"}
    assert not failures("sample", found)


def test_the_budget_ends_between_networks_and_a_file_is_gone_on_with() -> None:
    tasks, rules = small(3), Rules(("rawnn", "numpy"), "host", at_once=1)
    ended = compared(tasks, rules, budget=0.5)
    assert "the budget of 0 s was spent" in ended.ended["sample"]
    assert [(e.case, e.status) for e in ended.entries()] == [  # what was begun is finished
        ("sample/0", "measured"), ("sample/0", "measured"), ("sample/1", "not measured"),
        ("sample/2", "not measured")]
    before = ended.where(case="sample/0")
    whole = compared(tasks, rules, earlier=ended, budget=600.0)
    assert whole.is_whole("sample")
    assert [e.case for e in whole.entries()] == [f"sample/{n}" for n in (0, 0, 1, 1, 2, 2)]
    assert whole.where(case="sample/0") == before


def test_ctrl_c_leaves_the_networks_that_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()

    def echo(text: str) -> None:
        said.append(text)
        raise KeyboardInterrupt

    found = compared(small(2), echo=echo)
    assert found.ended == {"sample": "it was interrupted"}
    assert {e.case: e.status for e in found.entries()} == {"sample/0": "measured",
                                                           "sample/1": "not measured"}


def test_ctrl_c_while_a_network_is_timed_prepares_no_other(monkeypatch: pytest.MonkeyPatch
                                                           ) -> None:
    groups, prepare, time = list[int](), Lanes.prepare, Prepared.time

    def counted(lanes: Lanes, problems: Sequence[Problem], *more: Any) -> Any:
        groups.append(len(problems))
        return prepare(lanes, problems, *more)

    def interrupted(prepared: Prepared, *more: Any) -> Any:
        if prepared.problem.name == "seed 1":
            raise KeyboardInterrupt
        return time(prepared, *more)

    monkeypatch.setattr(Lanes, "prepare", counted)
    monkeypatch.setattr(Prepared, "time", interrupted)
    found = compared(small(3))
    assert groups == [3]
    assert {e.case: e.status for e in found.entries()} == {
        "sample/0": "measured", "sample/1": "not measured", "sample/2": "not measured"}


def test_parts_are_measured_apart_and_merged() -> None:
    tasks = small(3)
    first, second = (compared(tasks, part=partial(part_of, (k, 2))) for k in (1, 2))
    assert {e.case for e in second.entries() if e.status == "measured"} == {"sample/1"}
    assert len({e.case for e in second.entries()}) == 3
    second.environments = {k: place(device="host", gpu=None) for k in second.environments}
    first.parts = {"sample": (1, 2)}
    first.merge(second)
    assert first.parts == {}
    assert first.is_whole("sample")
    assert {e.status for e in first.entries()} == {"measured"}


def test_a_resumed_file_goes_on_with_its_part(tmp_path: Path) -> None:
    """Unless another is asked for. A file of all has none."""
    for asked, kept, parts in (((2, 3), (2, 3), {"sample": (2, 3)}),
                               (None, (2, 3), {"sample": (2, 3)}),
                               ((1, 3), (1, 3), {"sample": (1, 3)}), ((1, 1), (1, 1), {})):
        with standing("sample") as harness:
            if (tmp_path / "part.json").exists():
                harness.results = read_results(tmp_path / "part.json")
            assert asked_part(harness, asked) == kept
            harness.results.write(tmp_path / "part.json")
            assert read_results(tmp_path / "part.json").parts == parts
    with standing("sample") as harness:
        assert asked_part(harness, None) == (1, 1)
        assert harness.results.parts == {}


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_networks_that_are_slow_to_make_are_dealt_to_the_parts_and_begun_first(parts: int) -> None:
    asked = random_networks((12001, 12101), 30, "gpu")
    slow = thorough([p.seed for p in asked])
    assert len(slow) == 10
    tasks = [task_of(p, f"sample/{p.seed}") for p in asked]
    shares = [[t.problem.seed for t in part_of((k + 1, parts), tasks)] for k in range(parts)]
    assert sorted(seed for share in shares for seed in share) == sorted(p.seed for p in asked)
    for share in shares:
        count = sum(seed in slow for seed in share)
        assert count in (10 // parts, -(-10 // parts))
        assert set(share[:count]) <= slow
    assert [len(s) for s in samples_of([p.seed for p in asked])] == [30, 30]


def test_one_slow_network_is_not_taken_for_all_that_come() -> None:
    assert most([]) == 0
    assert most([7.0]) == 7
    assert most([1.0, 2.0, 60.0, 3.0, 4.0]) == 4


def test_time_is_kept_for_what_is_being_made_ready() -> None:
    made: list[str] = []

    def command(problem: Problem, system: str) -> Prepare:
        return Prepare(problem, "host", [], 60)

    several = [tiny(name=name, steps=4) for name in "abc"]
    with Lanes(("numpy",), 1, cores=1) as lanes:
        found = lanes.prepare(several, command, lambda prepared: made.append(prepared.problem.name),
                              lambda ready, seconds: ready < 2)
        assert lanes.usual() > 0
    assert (made, list(found)) == (["a", "b"], ["a", "b"])


def test_what_slow_forms_take_is_not_expected_of_networks_without_them() -> None:
    received: list[float] = []

    def command(problem: Problem, system: str) -> Prepare:
        return Prepare(problem, "host", ["slow"] if problem.name in "ab" else [], 60)

    def has_time_for(ready: int, seconds: float) -> bool:
        received.append(seconds)
        return True

    several = [tiny(name=name, steps=4) for name in "abcd"]
    with Lanes(("numpy",), 1, cores=1) as lanes:
        lanes.prepare(several, command, has_time_for=has_time_for)
    assert len(received) == 3
    assert received[0] > 0, "of b, as long as a took"
    assert received[1] == 0, "of c, the first without"
    assert received[2] > 0


def test_a_system_that_breaks_is_an_entry_and_the_others_go_on() -> None:
    rules = Rules(("rawnn", "nosuch", "numpy"), "host")
    entries = compared([task_of(tiny(steps=4), "sample/3")], rules).entries()
    found = {e.conditions["system"]: e for e in entries}
    assert found["nosuch"].status == "failed"
    assert "No module named 'rawnn.bench.peers.nosuch_system'" in found["nosuch"].reason
    assert found["rawnn"].status == found["numpy"].status == "measured"


def test_what_is_wrong_or_failed_of_ours_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rawnn.bench.peers.system_comparison.checker",
                        lambda problem, programs: lambda program: 2.5)
    found = compared([task_of(tiny(steps=4), "sample/3")])
    assert {(e.status, e.reason) for e in found.entries()} == {
        ("wrong", "its losses are off by 2.5 times the tolerance")}
    assert all(len(e.samples("step_us")) == 8 for e in found.entries())  # timed for all that
    assert failures("sample", found) == \
        "rawnn was refused, failed or was wrong in 1 of 1 network (3)"


def test_a_process_that_is_killed_is_said_and_never_waited_for() -> None:
    process = SystemProcess("numpy")
    process.prepare(Prepare(tiny(steps=4), "host", [], 60), 60)
    process.close()
    assert "its process ended" in process.time("tiny", 0, 5.0).reason
    assert "its process ended" in process.time("tiny", 0, 5.0).reason


def test_a_process_that_does_not_answer_is_given_up() -> None:
    process = SystemProcess("numpy")
    assert process.prepare(Prepare(tiny(steps=4), "host", [], 60), 0.0) == []
    assert process.lost == "its process did not answer in time"


def test_a_lane_whose_process_ends_makes_the_others_ready_again() -> None:
    lane = Lane("numpy", 1)
    try:
        first, second, third = (
            lane.prepare(Prepare(tiny(name=name, steps=4), "host", [], 60)) for name in "abc")
        assert not second.time(0, 60).reason
        third.forget()
        lane.process.close()
        assert "its process ended" in first.time(0, 60).reason
        assert "its process ended" in first.reason
        assert len(second.time(0, 60).milliseconds) == 4
    finally:
        lane.close()


def test_lanes_share_the_cores() -> None:
    with Lanes(("numpy", "rawnn"), 1, cores=16) as lanes:
        found = lanes.prepare([tiny(steps=4)], lambda p, s: Prepare(p, "host", [], 60))
        assert [p.system for p in found["tiny"]] == ["numpy", "rawnn"]
        assert set(lanes.versions) == {"numpy", "rawnn"}
