"""Ten slices come to all cases, and one is about a tenth of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import slices
from tests.slices import SLICES, sliced

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("number", [1, 2, 3, 7, 9, 10, 11, 14, 26, 99, 100, 101])
@pytest.mark.parametrize("count", [1, 2, 5, 40])
def test_ten_slices_take_every_case(monkeypatch: pytest.MonkeyPatch, number: int,
                                    count: int) -> None:
    monkeypatch.setattr(slices, "FULL", False)
    found = [sliced(range(number), count, of) for of in range(SLICES)]
    assert set().union(*found) == set(range(number))
    wanted = min(number, max(count, -(-number // SLICES)))
    assert {len(of) for of in found} == {wanted}
    assert all(of == sorted(of) for of in found)


def test_each_slice_has_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "FULL", False)
    numbers = {"a": 1, "b": 3, "c": 12}
    cases = [f"{kind}{n}" for n in range(12) for kind in numbers if n < numbers[kind]]
    found = [sliced(cases, 1, of, kind=lambda case: case[0]) for of in range(SLICES)]
    for of in found:
        assert [case[0] for case in of] == ["a", "b", "c", "c"]
    assert set().union(*found) == set(cases)
    monkeypatch.setattr(slices, "FULL", True)
    assert sorted(sliced(cases, kind=lambda case: case[0])) == sorted(cases)


def test_the_full_walk_takes_all_and_a_slice_is_that_of_the_run(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "FULL", False)
    monkeypatch.setattr(slices, "SLICE", 3)
    assert sliced("abcdefghij") == ["d"]
    assert sliced("abcdefghij") == sliced("abcdefghij", 1, 3)
    monkeypatch.setattr(slices, "FULL", True)
    assert sliced("abcdefghij") == list("abcdefghij")


def test_the_slice_is_the_number_of_commits_modulo_ten(tmp_path: Path) -> None:
    """And 0 where there is no git, or RAWNN_SLICE."""
    package = tmp_path / "tests"
    package.mkdir()
    (package / "slices.py").write_text((ROOT / "tests" / "slices.py").read_text())
    bare = {k: v for k, v in os.environ.items()
            if k not in ("RAWNN_FULL", "RAWNN_SLICE", "PYTHONPATH")}

    def header(**environment: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", "import slices; print(slices.header())"], cwd=package,
            env={**bare, **environment}, check=True, capture_output=True, text=True).stdout

    assert header().startswith("cases: slice 0 of 10")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    assert header().startswith("cases: slice 0 of 10")  # no commit yet
    for number in range(12):
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", str(number)], check=True)
    assert header().startswith("cases: slice 2 of 10")
    assert header(RAWNN_SLICE="17").startswith("cases: slice 7 of 10")
    assert header(RAWNN_FULL="1") == "cases: all (RAWNN_FULL)\n"
    assert header(PATH=str(tmp_path)).startswith("cases: slice 0 of 10")  # git is not installed


def test_pytest_prints_the_slice() -> None:
    from tests import conftest

    assert conftest.pytest_report_header() == slices.header()


def test_no_other_test_asks_for_the_variable() -> None:
    """All cases go through `sliced`, so that none is left out for good; the tool that sets the
    variable has a test."""
    named = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("*.py")
             if '"RAWNN_FULL"' in path.read_text()}
    assert named == {"tests/slices.py", "tests/test_slices.py", "tests/tools/test_full_walk.py"}
