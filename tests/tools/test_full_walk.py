"""tools/full_walk.py: all cases, part by part, and what failed is kept."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tools import full_walk
from tools.full_walk import Part, Record, Step, main, read_record, steps, table, updated, walk

TEST = """import pytest
from tests.slices import sliced

@pytest.mark.parametrize("n", sliced(range(20)))
def test_small(n):
    assert n != 7
    if n == 8:
        pytest.skip("no 8")
"""
A = Part(name="tests/x/test_a.py", commit="a" * 40, passed=1200, skipped=1, failed=[], seconds=60)
B = Part(name="tests/x/test_b.py", commit="b" * 40, passed=3, skipped=0, failed=["t"], seconds=30)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A checkout with one test that takes slices."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "__init__.py").write_text("")
    (tmp_path / "tests" / "test_small.py").write_text(TEST)
    (tmp_path / "tests" / "test_other.py").write_text("def test_other():\n    pass\n")
    shutil.copy(full_walk.ROOT / "tests" / "slices.py", tmp_path / "tests" / "slices.py")
    monkeypatch.setattr(full_walk, "ROOT", tmp_path)
    full_walk.imported.cache_clear()
    yield tmp_path
    full_walk.imported.cache_clear()


def test_a_part_is_walked_whole(tree: Path) -> None:
    step, = steps()
    assert step == Step("tests/test_small.py")
    found = walk(step, "c", 1)
    assert (found.passed, found.skipped) == (18, 1)
    assert found.failed == ["tests/test_small.py::test_small[7]"]
    assert 0 <= found.seconds < 20


def test_a_part_takes_the_place_of_what_was_known_of_it() -> None:
    every = [Step(A.name), Step(B.name)]
    other = Part(name=A.name, commit="c", passed=1, skipped=0, failed=[], seconds=1)
    record = updated(updated(Record(parts=[]), B, every), A, every)
    assert record.parts == [A, B]
    assert updated(record, other, every).parts == [other, B]
    assert updated(record, other, every[:1]).parts == [other]


def test_the_table_says_what_failed_and_of_which_commit() -> None:
    assert table(Record(parts=[])) == "Not walked yet.\n"
    said = table(Record(parts=[A, B]))
    assert f"Not walked yet: `{steps()[0].file}`" in said
    assert said.count("| `tests/x` | 1 |") == 2
    assert "commit aaaaaaa." in said
    assert "commit bbbbbbb." in said
    both = table(Record(parts=[A, msgspec.structs.replace(B, commit=A.commit)]))
    assert "| `tests/x` | 2 | 1,203 | 1 | 1 | 1.5 |" in both


def test_every_part_is_a_test_that_takes_slices() -> None:
    names = {step.name for step in steps()}
    assert {"tests/persistent/test_emulator.py", "tests/proof/test_planted.py",
            "tests/properties/test_runners.py (slice 9)"} <= names
    assert "tests/test_model.py" not in names


def test_a_walk_is_of_a_commit_with_nothing_changed_but_what_it_writes(
        monkeypatch: pytest.MonkeyPatch) -> None:
    changed = ["rawnn/a.py", *full_walk.WRITTEN]

    def run(words: list[str], **more: Any) -> Any:
        lines = ["abc"] if words[1] == "rev-parse" else [f" M {name}" for name in changed]
        return SimpleNamespace(stdout="\n".join([*lines, ""]))

    monkeypatch.setattr(full_walk.subprocess, "run", run)
    with pytest.raises(SystemExit, match=r"commit first: rawnn/a\.py differ from the last commit"):
        full_walk.commit_of_code()
    del changed[0]
    assert full_walk.commit_of_code() == "abc"
    changed.clear()
    assert full_walk.commit_of_code() == "abc"


def test_a_walk_takes_what_is_asked_for_and_not_known_and_goes_on_where_it_stopped(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
        ) -> None:
    walked: list[str] = []
    jobs_of = set()

    def walk(step: Step, commit: str, jobs: int) -> Part:
        if len(walked) == 4:
            raise KeyboardInterrupt
        walked.append(step.name)
        jobs_of.add(jobs)
        return msgspec.structs.replace(A, name=step.name, commit=commit,
                                       failed=["t[7]"] * (step.file == B.name))

    every = [Step(A.name), Step(B.name), *(Step("tests/y/test_c.py", n) for n in range(3))]
    slices = [step.name for step in every[2:]]
    assert slices[1] == "tests/y/test_c.py (slice 1)"
    monkeypatch.setattr(full_walk, "RECORD", tmp_path / "walk.json")
    for name, value in (("steps", lambda: every), ("walk", walk),
                        ("commit_of_code", lambda: "f" * 40)):
        monkeypatch.setattr(full_walk, name, value)
    assert main(["--only", "test_a|slice", "--jobs", "3"]) == 0
    assert (walked, jobs_of) == ([A.name, *slices], {3})
    assert capsys.readouterr().out.startswith(
        f"{A.name}: 1200 passed, 1 skipped, 0 failed; 60 s of tests in ")
    with pytest.raises(KeyboardInterrupt):
        main(["--again"])
    walked.clear()
    assert main([]) == 1  # a test of what was not known yet fails
    assert walked == [B.name]
    assert "1 failed; 60 s of tests in " in (said := capsys.readouterr().out)
    assert said.endswith("\n  t[7]\n")
    assert [part.name for part in read_record().parts] == [step.name for step in every]
    walked.clear()
    assert main(["--only", "test_a"]) == 1  # that test is known of this commit
    assert walked == []
    assert main(["--only", "slice 2", "--again"]) == 1
    assert walked == slices[2:]
    capsys.readouterr()
    full_walk.RECORD.write_bytes(msgspec.json.encode(Record(parts=[B])))
    assert main(["--list"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{A.name}  -", f"{B.name}  bbbbbbb: 3 passed, 1 failed, 30 s",
        *(f"{name}  -" for name in slices)]
    walked.clear()
    assert main(["--only", "test_b"]) == 1  # what is known of another commit is walked again
    assert walked == [B.name]


def test_the_variables_of_a_part_choose_its_cases_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in full_walk.LEFT_OUT:
        monkeypatch.setenv(name, "set by the caller")
    whole, of_slice = (step.environment for step in (Step("a"), Step("a", 0)))
    assert {name: whole.get(name) for name in full_walk.LEFT_OUT} == {
        "RAWNN_FULL": "1", "RAWNN_SLICE": None, "PYTEST_ADDOPTS": None}
    assert {name: of_slice.get(name) for name in full_walk.LEFT_OUT} == {
        "RAWNN_FULL": None, "RAWNN_SLICE": "0", "PYTEST_ADDOPTS": None}
    assert whole["PATH"] == full_walk.os.environ["PATH"]
