"""Contests: held in turns, within a budget, kept and gone on with; systems and lanes that break."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rawnn.bench.clocks import ManagedGpu
from rawnn.bench.compare import compare
from rawnn.bench.conditions import Watch
from rawnn.bench.peers.arrange import Arrangement, drawn, thorough_of
from rawnn.bench.peers.contest import Rules, run_contests
from rawnn.bench.peers.lanes import Lane, Lanes, most
from rawnn.bench.peers.problem import Problem, smaller
from rawnn.bench.peers.process import SystemProcess
from rawnn.bench.peers.records import Contest, read_contests
from rawnn.bench.peers.worker import Prepare
from rawnn.bench.series import read_series
from rawnn.common.errors import ConfigError
from tests.bench.contests import tiny


def test_contests_are_held_in_turns_and_kept(tmp_path: Path) -> None:
    asked = [smaller(p, 20, 8, 4) for p in drawn((0,), 2, "gpu")]
    arranged = Arrangement("random-peers", asked, Rules(("rawnn", "numpy"), "host"), {})
    heard: list[str] = []

    def over(contest: Contest) -> None:
        heard.append(contest.problem.name)
        assert arranged.result().ended  # what a killed process leaves is not whole

    result = arranged.hold(600, over, heard.append)
    assert [c.problem.name for c in result.contests] == ["seed 0", "seed 1"]
    for contest in result.contests:
        assert {(e.system, e.status, len(e.us)) for e in contest.entries} == {
            ("rawnn", "measured", 8), ("numpy", "measured", 8)}
        assert all(e.error is not None and e.error < 0.1 for e in contest.entries)
    assert result.ended == ""
    assert "numpy" in result.environment.libraries
    file = tmp_path / "r.json"
    result.write_json(file)
    assert read_contests(file) == result
    series = read_series(file)
    assert len(series.series) == 4
    assert not compare(series, series).regressions


def test_the_budget_ends_between_contests_and_a_file_is_gone_on_with() -> None:
    asked = [smaller(p, 20, 8, 4) for p in drawn((0,), 3, "gpu")]
    rules = Rules(("rawnn", "numpy"), "host", at_once=1)
    ended = Arrangement("random-peers", asked, rules, {}).hold(0.5, lambda c: None,
                                                               lambda m: None)
    assert "the budget of 0 s was spent" in ended.ended
    assert len(ended.contests) == 1  # what was begun is finished
    again = Arrangement("random-peers", asked, rules, {}, ended)
    result = again.hold(600, lambda c: None, lambda m: None)
    assert [c.problem.name for c in result.contests] == ["seed 0", "seed 1", "seed 2"]
    assert result.contests[0] == ended.contests[0]


def test_a_part_holds_every_second_network() -> None:
    asked = [smaller(p, 20, 8, 4) for p in drawn((0,), 3, "gpu")]
    rules = Rules(("rawnn", "numpy"), "host")
    second = Arrangement("random-peers", asked, rules, {}, part=(2, 2)).hold(
        600, lambda c: None, lambda m: None)
    assert [c.problem.name for c in second.contests] == ["seed 1"]
    assert second.asked == asked
    assert not second.ended


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_networks_that_are_slow_to_make_are_dealt_to_the_parts_and_begun_first(parts: int) -> None:
    asked = drawn((12001, 12101), 30, "gpu")
    slow = thorough_of(asked)
    assert len(slow) == 10
    shares = [[p.name for p in Arrangement("random-peers", asked, Rules(("rawnn",), "host"), {},
                                           part=(k + 1, parts)).mine()] for k in range(parts)]
    assert sorted(name for share in shares for name in share) == sorted(p.name for p in asked)
    for share in shares:
        count = sum(name in slow for name in share)
        assert count in (10 // parts, -(-10 // parts))
        assert set(share[:count]) <= slow


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
    heard: list[float] = []

    def command(problem: Problem, system: str) -> Prepare:
        return Prepare(problem, "host", ["slow"] if problem.name in "ab" else [], 60)

    def suffices(ready: int, seconds: float) -> bool:
        heard.append(seconds)
        return True

    several = [tiny(name=name, steps=4) for name in "abcd"]
    with Lanes(("numpy",), 1, cores=1) as lanes:
        lanes.prepare(several, command, suffices=suffices)
    assert len(heard) == 3
    assert heard[0] > 0, "of b, as long as a took"
    assert heard[1] == 0, "of c, the first without"
    assert heard[2] > 0


def test_a_file_of_other_contests_is_not_gone_on_with() -> None:
    asked = drawn((0,), 2, "host")
    rules = Rules(("rawnn", "numpy"), "host")
    before = Arrangement("random-peers", asked, rules, {}).result()
    with pytest.raises(ConfigError, match="with rawnn, numpy on the host, and this is"):
        Arrangement("random-peers", asked, Rules(("rawnn", "torch"), "host"), {}, before)
    other = msgspec.structs.replace(before, contests=[Contest(problem=tiny(), entries=[])])
    with pytest.raises(ConfigError, match=r"has tiny .* which is not asked for"):
        Arrangement("random-peers", asked, rules, {}, other)


def test_a_system_that_breaks_is_an_entry_and_the_others_go_on() -> None:
    rules = Rules(("rawnn", "nosuch", "numpy"), "host")
    contest, = run_contests([tiny(steps=4)], rules, Watch(ManagedGpu(0)))
    found = {e.system: e for e in contest.entries}
    assert found["nosuch"].status == "failed"
    assert "No module named 'rawnn.bench.peers.nosuch_system'" in found["nosuch"].reason
    assert found["rawnn"].status == found["numpy"].status == "measured"


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
