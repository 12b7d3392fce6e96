"""What tools/kernel_faults.py keeps (tests/ptx/emulator/outcomes.py): an outcome counts of the code
that it was found of, and of no other."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.ptx.emulator import attempts, faults, outcomes
from tests.ptx.emulator.faults import Fault
from tools import kernel_faults

A, B = "a.cu", "train_steps b"
ONE = "int f(int i) { return (i + 1) < rows; }\n"
TWO = "void train_steps_1f() {  // 12 blocks\n  __syncthreads();\n  wait();\n  __syncthreads(); }\n"


class Written(dict[str, str]):
    """Files by their names, and the faults of them."""

    def write(self, file: str, text: str) -> None:
        self[file] = text
        outcomes.digest.cache_clear()

    def every(self) -> dict[str, Fault]:
        return {fault.name: fault for file in self for fault in faults.faults_of(file)}


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Iterator[Written]:
    files = Written({A: ONE, B: TWO})
    for module in (faults, outcomes):
        monkeypatch.setattr(module, "text_of", files.__getitem__)
    monkeypatch.setattr(faults, "written_files", dict)
    outcomes.digest.cache_clear()
    yield files
    outcomes.digest.cache_clear()


@pytest.fixture
def kept(files: Written, tmp_path: Path) -> Path:
    """Every fault walked."""
    path = tmp_path / "kept.json"
    every = files.every()
    assert len(every) == 3
    outcomes.write({name: outcomes.found(f, "caught", f"{f.file}: off")
                    for name, f in every.items()}, every, path)
    return path


def left(files: Written, kept: Path) -> list[str]:
    every = files.every()
    return outcomes.left(outcomes.read(every, kept), every)


def test_what_is_walked_is_not_left(files: Written, kept: Path) -> None:
    assert left(files, kept) == []
    assert outcomes.left({}, files.every()) == list(files.every())
    assert outcomes.read(files.every(), kept.with_name("none")) == {}


def test_digests_are_kept_once_a_file(kept: Path) -> None:
    read = json.loads(kept.read_text())
    assert set(read["code"]) == {A, B}
    assert all("code" not in outcome for outcome in read["faults"].values())


@pytest.mark.parametrize("text", [
    TWO.replace("12 blocks", "fewer"), TWO.replace("  wait", "\n    wait"),
    TWO.replace("_1f", "_2e"), TWO.replace("  wait", "  /* more\n words */ wait")])
def test_comments_and_spacing_change_nothing(files: Written, kept: Path, text: str) -> None:
    files.write(B, text)
    assert left(files, kept) == []


def test_of_another_code_no_outcome_counts(files: Written, kept: Path) -> None:
    files.write(B, TWO.replace("wait()", "go()"))
    every = files.every()
    assert left(files, kept) == [name for name, fault in every.items() if fault.file == B]
    outcome = outcomes.read(every, kept)
    assert all(found["how"] == f"{every[name].file}: off" for name, found in outcome.items())
    assert outcomes.summary(outcome, every) == {
        "faults of the rules": 3, "walked": 1, "planted": 1, "caught": 1, "harmless": 0,
        "beyond reach": 0, "missed": 0}


def test_a_walk_may_stop_in_between(files: Written, kept: Path) -> None:
    files.write(B, TWO.replace("wait()", "go()"))
    every = files.every()
    known = outcomes.read(every, kept)
    first, second = left(files, kept)
    known[first] = outcomes.found(every[first], "survived", B)
    assert outcomes.write(known, every, kept)["walked"] == 2
    assert left(files, kept) == [second]
    files.write(B, TWO)
    assert left(files, kept) == [first]  # the other is of this code


def test_a_fault_of_another_rule_is_another(
        files: Written, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = [(kind, pattern, " != " if new == " <= " else new)
             for kind, pattern, new in faults.RULES]
    before = [name for name, fault in files.every().items() if fault.kind == "bound"]
    monkeypatch.setattr(faults, "RULES", rules)
    assert left(files, kept) == before != []


def test_faults_that_are_gone_are_left_out(files: Written, kept: Path) -> None:
    every = files.every()
    files.write(B, TWO.replace("__syncthreads(); }", "}"))
    assert len(outcomes.read(files.every(), kept)) == len(every) - 1


def test_what_survives_is_missed_without_a_reason(files: Written, kept: Path) -> None:
    every = files.every()
    known = outcomes.read(every, kept)
    for name, found in known.items():
        known[name] = {**found, "what": "survived"}
    assert outcomes.write(known, every, kept)["missed"] == 3


def test_the_command_plants_what_is_asked_for(
        files: Written, kept: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    planted: dict[str, str] = {}
    becomes = {"": "caught"}

    def attempt(fault: Fault, first: str) -> attempts.Outcome:
        planted[fault.name] = first
        what = becomes.get(fault.file, becomes[""])
        return attempts.Outcome(fault, what, f"{fault.file}: now", 1.6)

    monkeypatch.setattr(kernel_faults, "ProcessPoolExecutor", ThreadPoolExecutor)
    monkeypatch.setattr(attempts, "attempt", attempt)
    monkeypatch.setattr(faults, "every", lambda: list(files.every().values()))
    for name in ("read", "write"):
        monkeypatch.setattr(outcomes, name, partial(getattr(outcomes, name), path=kept))

    def run(*words: str) -> set[str]:
        planted.clear()
        monkeypatch.setattr("sys.argv", ["kernel_faults.py", "--jobs", "1", *words])
        assert kernel_faults.main() == (1 if outcomes.summary(
            outcomes.read(files.every()), files.every())["missed"] else 0)
        return set(planted)

    every = set(files.every())
    of_a, of_b = ({name for name in every if name.startswith(file)} for file in (A, B))
    assert run() == set()
    assert run("--again", "all") == every
    assert set(planted.values()) == {A, B}  # where each showed the last time
    assert f"caught (2 s)  {next(iter(of_a))}  ->  ' <= '  a.cu: now" in capsys.readouterr().out
    assert run("--again", "all", "--only", r"^a\.") == of_a
    parts = [run("--again", "all", "--part", f"{n}/2") for n in (1, 2)]
    assert parts[0] | parts[1] == every
    assert [len(part) for part in parts] == [2, 1]
    assert len(run("--again", "all", "--sample", "2")) == 2
    files.write(B, TWO.replace("wait()", "go()"))
    becomes[""] = "unknown"
    assert run() == run() == of_b  # what was not found out stays left
    becomes[""] = "caught"
    assert run() == of_b
    assert run() == set()
    becomes[A] = "survived"
    assert run("--again", "all") == every
    assert outcomes.summary(outcomes.read(files.every()), files.every())["missed"] == 1
    assert run("--again", "survived") == of_a
    kept.unlink()
    assert run("--only", "train") == of_b
    assert set(planted.values()) == {""}


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/0"])
def test_a_part_is_one_of_several(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"{text}: not a part K/N"):
        kernel_faults._part(text)
    assert [kernel_faults._part(f"{n}/3") for n in (1, 3)] == [(1, 3), (3, 3)]
