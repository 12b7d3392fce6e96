"""tools/false_alarms.py: correct plans and shardings pass, and what is refused can be run again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rawnn.sim.errors import Race
from tests.ptx.emulator.emulator import compiler
from tests.slices import SLICE
from tools import false_alarms
from tools.false_alarms import Alarm, NotSampled, Record, Run, check_some, main, sample, table


@pytest.mark.parametrize(("kind", "count"), [("plan", 4), ("sharding", 4), ("kernel", 1)])
def test_what_is_correct_is_not_refused(kind: str, count: int) -> None:
    if kind == "kernel" and compiler() is None:
        pytest.skip("no g++ on PATH")
    assert list(check_some(kind, count, 1000 + SLICE, Counter())) == [None] * count


def test_samples_follow_from_the_seed_and_their_number() -> None:
    first, again, other = ([sample("sharding", seed, n) for n in range(40)] for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert len({each.opt for each in first}) == 40


def test_what_is_refused_is_named_and_can_be_run_again(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(*_: Any) -> None:
        raise Race("a race that is none")

    monkeypatch.setattr(false_alarms, "RECORD", tmp_path / "kept.json")
    monkeypatch.setattr(false_alarms, "commit_of_code", lambda: "c" * 40)
    assert main(["--count", "2", "--compiled", "0", "--seed", "5"]) == 0
    assert "0 of 2 refused" in capsys.readouterr().out
    monkeypatch.setattr(false_alarms, "on_simulated_gpu", refuse)
    assert main(["--count", "2", "--compiled", "0", "--seed", "6"]) == 1
    assert main(["--count", "2", "--compiled", "0", "--seed", "6"]) == 1  # in place of the first
    said = capsys.readouterr().out
    assert "2 of 2 refused" in said
    assert "refused  --seed 6 --only sharding:0  Sample(case=" in said
    runs = false_alarms.read_record().runs
    assert [(run.seed, run.samples["plan"], len(run.refused)) for run in runs] == [
        (5, 1, 0), (6, 1, 2)]
    assert runs[1].refused[1].why == "Race: a race that is none"
    with pytest.raises(Race):
        main(["--seed", "6", "--only", runs[1].refused[1].sample])
    with pytest.raises(SystemExit):
        main(["--only", "nothing:1"])


def test_options_that_the_engine_refuses_are_no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(self: false_alarms.Sample) -> None:
        if "graphs" in self.opt:
            raise NotSampled("no graphs of 12.5 steps")

    monkeypatch.setattr(false_alarms.Sample, "check", check)
    left_out: Counter[str] = Counter()
    assert list(check_some("plan", 20, 0, left_out)) == [None] * 20
    assert [*left_out] == ["plan: no graphs of N steps"]
    assert left_out.total() > 2


def test_the_table_has_a_line_a_commit() -> None:
    counts = {"plan": 700, "sharding": 600, "kernel": 100}
    runs = [Run(seed=seed, commit=commit * 40, samples=counts, refused=refused, seconds=90.0)
            for seed, commit, refused in ((0, "a", []), (1, "b", []),
                                          (2, "a", [Alarm(sample="plan:1", why="a race")]))]
    lines = table(Record(runs=runs)).splitlines()
    assert lines[2:] == ["| aaaaaaa | 2 | 1,400 | 1,200 | 200 | 1 | 3.0 |",
                         "| bbbbbbb | 1 | 700 | 600 | 100 | 0 | 1.5 |"]
    assert table(Record(runs=[])) == "Not sampled yet.\n"
