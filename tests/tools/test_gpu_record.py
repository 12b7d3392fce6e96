"""The record of what tests and sanitizers said on a GPU: counts, what passed alone or was cut."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import gpu_record
from tools.gpu_record import (
    CHECKED,
    LISTS,
    Record,
    checked_of,
    checked_table,
    list_of,
    lists_table,
    record,
)

T = "tests/gpu/test_x.py::test_"


def lines(path: Path, *rows: tuple[str, str, str, str]) -> None:
    path.write_text("\n".join(json.dumps(dict(zip(
        ("test", "when", "outcome", "text"), (T + name, *more), strict=True)))
        for name, *more in rows) + '\n{"test": "cut o')


@pytest.fixture
def found(tmp_path: Path) -> Record:
    lines(tmp_path / "whole.jsonl", ("a", "call", "passed", ""), ("b", "call", "passed", ""),
          ("b", "teardown", "failed", "x\nE   ValueError: `no`"),
          ("c", "call", "failed", "E   assert 2 < 1"), ("d", "setup", "skipped", "no nccl"),
          ("e", "setup", "skipped", "Skipped: NOT REACHED"))
    lines(tmp_path / "again.jsonl", ("c", "call", "passed", ""), ("b", "call", "passed", ""),
          ("b", "teardown", "failed", "E   ValueError: `no`"))
    (tmp_path / "gpu.txt").write_text("Some GPU, 580.1\n")
    (tmp_path / "san-p4x2-racecheck.log").write_text(
        "========= COMPUTE-SANITIZER\n===== 1 passed in 12.46s =====\n"
        "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n")
    (tmp_path / "l2-memcheck.log").write_text("========= COMPUTE-SANITIZER\n..")
    return record([tmp_path], "0123456789")


def test_every_test_is_counted_once_and_what_passed_alone_is_said(found: Record) -> None:
    (whole,) = found.lists
    assert (whole.passed, whole.skipped, whole.not_reached) == (1, 1, 1)
    assert [(f.test[-1], f.text, f.passed_alone) for f in whole.failures] == [
        ("b", "E   ValueError: `no`", False), ("c", "E   assert 2 < 1", True)]
    text = lists_table(found)
    assert "| whole | all of `tests/gpu` | 1 | 2 | 1 | 1 | 1 |" in text
    assert "- `test_x.py::test_c` (whole; passed alone): `assert 2 < 1`" in text
    assert "- `test_x.py::test_b` (whole): `ValueError: no`" in text
    assert "Some GPU, 580.1, commit 0123456." in text


def test_what_passed_alone_is_in_the_file_of_that_list(found: Record, tmp_path: Path) -> None:
    lines(tmp_path / "as-8.0.jsonl", ("c", "call", "failed", "E   no"))
    assert [f.passed_alone for f in list_of(tmp_path / "as-8.0.jsonl", "0").failures] == [False]
    for name in ("whole", "as-8.0"):
        lines(tmp_path / f"again-{name}.jsonl", ("b", "call", "passed", ""),
              ("c", "call", "passed" if name == "as-8.0" else "failed", ""))
        failures = list_of(tmp_path / f"{name}.jsonl", "0").failures
        assert {f.test[-1]: f.passed_alone for f in failures} == (
            {"c": True} if name == "as-8.0" else {"b": True, "c": False})


def test_a_sanitizer_that_did_not_end_is_not_clean(found: Record) -> None:
    text = checked_table(found)
    assert "| `persistent` in 4 x 2 blocks | racecheck | clean; 1 passed |" in text
    assert "| memcheck | did not come to its end |" in text


@pytest.mark.parametrize(("words", "errors"), [
    ("1 failed\n========= ERROR SUMMARY: 3 errors", 3), ("========= ERROR SUMMARY: 0 errors", None),
    ("10 products in clusters, 0 wrong\n========= RACECHECK SUMMARY: 2 hazards displayed", 2)])
def test_what_a_sanitizer_counts(tmp_path: Path, words: str, errors: int | None) -> None:
    log = tmp_path / "san-clusters-mma-racecheck.log"
    log.write_text(words)
    seen = checked_of(log, "0")
    assert seen is not None
    assert (seen.name, seen.errors) == ("clusters-mma", errors)
    assert checked_of(tmp_path / "whole.log", "0") is None


def test_what_is_new_takes_the_place_of_what_was(found: Record, tmp_path: Path) -> None:
    (tmp_path / "next").mkdir()
    lines(tmp_path / "next" / "as-8.0.jsonl", ("a", "call", "passed", ""))
    both = record([tmp_path / "next"], "fedcba98", found)
    assert [(each.name, each.commit[:4]) for each in both.lists] == [("whole", "0123"),
                                                                    ("as-8.0", "fedc")]
    assert both.checked == found.checked


def test_runs_on_another_gpu_are_told_by_their_commit(found: Record, tmp_path: Path) -> None:
    (tmp_path / "next").mkdir()
    lines(tmp_path / "next" / "chip.jsonl", ("a", "call", "passed", ""))
    (tmp_path / "next" / "gpu.txt").write_text("Another GPU, 1.0\n")
    both = record([tmp_path / "next"], "fedcba98", found)
    text = lists_table(both)
    assert text.count("| list |") == 2  # no table has lists of two commits or GPUs
    assert "Some GPU, 580.1, commit 0123456." in text
    assert "Another GPU, 1.0, commit fedcba9." in text
    assert "Another" not in checked_table(both)


def test_lists_and_checks_stand_in_the_order_of_their_tables(tmp_path: Path) -> None:
    for name in ("zz", *reversed(LISTS)):
        lines(tmp_path / f"{name}.jsonl", ("a", "call", "passed", ""))
    for name in ("aa", *reversed(CHECKED)):
        for tool in ("synccheck", "memcheck"):
            (tmp_path / f"{name}-{tool}.log").write_text("1 passed\n== ERROR SUMMARY: 1 error\n")
    found = record([tmp_path], "0123456")
    assert [each.name for each in found.lists] == [*LISTS, "zz"]
    assert [(each.name, each.tool) for each in found.checked] == [
        (name, tool) for name in (*CHECKED, "aa") for tool in ("memcheck", "synccheck")]
    assert "| aa | memcheck | 1 errors; 1 passed |" in checked_table(found)
    assert lists_table(found).endswith("\nNothing failed.\n")
    assert "| zz |  | 1 | 0 |  | 0 |  |" in lists_table(found)


def test_a_failure_is_told_by_its_last_line_without_the_folder_of_the_run(tmp_path: Path) -> None:
    path = tmp_path / "chip.jsonl"
    path.write_text("\n".join(json.dumps(
        {"test": name, "when": "call", "outcome": "failed", "seconds": 1.26, "text": text})
        for name, text in (("x", "E   first\n/home/me/a-b/rawnn/lab/x.py:3: Error\n \n"),
                           ("y", "y" * 300), ("z", "\n"))))
    found = list_of(path, "c")
    assert [f.text for f in found.failures] == ["rawnn/lab/x.py:3: Error", "y" * 200, ""]
    assert (found.seconds, found.passed, found.commit) == (3.8, 0, "c")


def test_the_command_keeps_what_was_unless_it_is_to_be_new(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
        ) -> None:
    monkeypatch.setattr(gpu_record, "RECORD", tmp_path / "kept.json")
    for folder, name in (("one", "whole"), ("two", "ranks")):
        (tmp_path / folder).mkdir()
        lines(tmp_path / folder / f"{name}.jsonl", ("a", "call", "passed", ""))

    def run(*words: str) -> list[tuple[str, str]]:
        monkeypatch.setattr("sys.argv", ["gpu_record.py", *words])
        gpu_record.main()
        return [(each.name, each.commit) for each in gpu_record.read_record().lists]

    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    assert run(one, "--commit", "1") == [("whole", "1")]
    assert run(two, "--commit", "2") == [("whole", "1"), ("ranks", "2")]
    assert run(two, "--commit", "3", "--new") == [("ranks", "3")]
    assert run(one, two, "--commit", "4") == [("whole", "4"), ("ranks", "4")]
    with pytest.raises(SystemExit):
        run(one, str(tmp_path / "three"), "--commit", "5")
    assert f"there is no folder {tmp_path / 'three'}" in capsys.readouterr().err
