"""tools/mutants.py: mutants are applied one at a time in a copy, and the rate is of those that
count."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tools import mutants

FILES = {
    "add.py": "def add(a, b):\n    return a + b\n\n\ndef wait(seconds):\n    return seconds * 0\n",
    "test_add.py": "import time\nfrom add import add, wait\n\n\n"
                   "def test_add():\n    assert add(2, 2) == 4\n\n\n"
                   "def test_wait():\n    time.sleep(wait(60))\n",
}
TIMES = {"path": "add.py", "old": "a + b", "new": "a * b"}
MINUS = {"path": "add.py", "old": "a + b", "new": "a - b"}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of its own, of which a file is not committed."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take half a second each time
    root = tmp_path / "tree"
    root.mkdir()
    for name, text in FILES.items():
        (root / name).write_text(text)
    subprocess.run(["git", "init", "-q", "."], cwd=root, check=True)
    subprocess.run(["git", "add", "add.py"], cwd=root, check=True)
    return root


def outcomes(tree: Path, *tables: dict[str, Any], jobs: int = 1, timeout: float = 60,
             baseline: bool = False) -> dict[int, mutants.Outcome]:
    path = tree.parent / "mutants.jsonl"
    path.write_text("".join(json.dumps({"tests": "-k add", **table}) + "\n" for table in tables))
    made = dict(enumerate(mutants.read(path), 1))
    found = mutants.attempts(made, jobs, timeout, baseline, tree)
    return {outcome.number: outcome for outcome in found}


def test_what_fails_is_caught_and_the_tree_stays(tree: Path) -> None:
    """2 * 2 is 2 + 2: the first mutant survives, and is gone before the second one."""
    found = outcomes(tree, TIMES, MINUS, {**MINUS, "equivalent": "for the sake of it"},
                     baseline=True)
    assert [found[n].what for n in (1, 2, 3)] == ["survived", "caught", "equivalent"]
    assert "test_add" in found[2].how
    assert mutants.rate(list(found.values())) == 0.5
    assert mutants.summary(list(found.values())).startswith("1 of 2 caught (50.0%), 0 of them by")
    assert {path.name: path.read_text() for path in tree.glob("*.py")} == FILES


def test_a_link_stays_a_link(tree: Path, tmp_path: Path) -> None:
    """bench.toml has one in the package, which a test asks for: any mutant would fail it."""
    (tree / "linked.py").symlink_to("add.py")
    copy = mutants.Copy(tree, tmp_path / "copy")
    assert (copy.tree / "linked.py").readlink() == Path("add.py")
    assert not (copy.tree / "add.py").is_symlink()


def test_mutants_run_beside_each_other(tree: Path) -> None:
    found = outcomes(tree, *[MINUS, TIMES] * 2, jobs=2)
    assert [found[n].what for n in (1, 2, 3, 4)] == ["caught", "survived"] * 2


def test_a_timeout_is_caught_and_said(tree: Path) -> None:
    slow = {"path": "add.py", "old": "* 0", "new": "* 1", "tests": ["-k", "wait"]}
    found = outcomes(tree, slow, timeout=3)[1]
    assert found.what == "caught by the timeout"
    assert found.seconds < 20
    assert "1 of 1 caught (100.0%), 1 of them by the timeout" in mutants.summary([found])


@pytest.mark.parametrize(("change", "said"), [
    ({"old": "a / b"}, "`old` occurs 0 times in add.py, not once: 'a / b'"),
    ({"old": "return"}, "`old` occurs 2 times in add.py"),
    ({"path": "none.py"}, "No such file"),
    ({"path": "../mutants.jsonl"}, "lies outside the checkout"),
    ({"tests": "-k nothing"}, "pytest finds no test"),
])
def test_what_cannot_be_applied_is_refused(tree: Path, change: dict[str, str], said: str) -> None:
    found = outcomes(tree, {**MINUS, **change})[1]
    assert found.what == "refused"
    assert said in found.how
    assert mutants.rate([found]) == 0


def test_tests_that_fail_without_a_mutant_are_refused(tree: Path) -> None:
    (tree / "test_add.py").write_text(FILES["test_add.py"].replace("== 4", "== 5"))
    with pytest.raises(mutants.Refused, match="without a mutant the tests -k add fail: FAILED"):
        outcomes(tree, MINUS, baseline=True)


@pytest.mark.parametrize(("name", "text", "said"), [
    ("m.toml", "[[mutant]]\npath = 'a'\n", "has to have path, old and new"),
    ("m.toml", "[[mutant]]\npath = 'a'\nold = 'b'\nnew = 'b'\n", "changes nothing"),
    ("m.toml", "[[mutant]]\npath = 'a'\nold = 'b'\nnew = 'c'\nwhy = 'd'\n", "may have tests"),
    ("m.toml", "", "has no mutant"), ("m.toml", "[[mutant]", "m.toml: "),
    ("m.jsonl", "[]\n", "is not a table"), ("m.jsonl", "{\n", "m.jsonl: "),
    ("m.jsonl", "3\n", "mutant 1 is not a table"),
])
def test_a_file_that_is_none_of_mutants_is_refused_in_one_line(
        tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str,
        said: str) -> None:
    (tmp_path / name).write_text(text)
    assert mutants.main([str(tmp_path / name)]) == 2
    line, = capsys.readouterr().err.splitlines()
    assert said in line


def test_toml_says_what_json_lines_say(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text(
        "[[mutant]]\npath = 'a.py'\nold = 'b'\nnew = 'c'\ntests = 'tests/a.py -k \"b or c\"'\n"
        "[[mutant]]\npath = 'a.py'\nold = 'b'\nnew = ''\n")
    (tmp_path / "m.jsonl").write_text(
        '{"path": "a.py", "old": "b", "new": "c", "tests": ["tests/a.py", "-k", "b or c"]}\n\n'
        '{"path": "a.py", "old": "b", "new": ""}\n')
    found = mutants.read(tmp_path / "m.toml")
    assert found == mutants.read(tmp_path / "m.jsonl")
    assert found[1].tests == mutants.DEFAULT_TESTS


def test_the_command_runs_what_is_asked_for_and_ends_by_the_rate(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
        ) -> None:
    file, kept = tmp_path / "m.jsonl", tmp_path / "outcomes.json"
    file.write_text("".join(json.dumps({"path": "a", "old": str(n), "new": ""}) + "\n"
                            for n in range(1, 7)))
    whats = {1: "caught", 2: "survived", 3: "caught by the timeout", 4: "equivalent",
             5: "caught", 6: "refused"}
    asked: list[tuple[Any, ...]] = []

    def attempts(found: dict[int, mutants.Mutant], *how: Any) -> Any:
        asked.append((sorted(found), *how))
        for n, mutant in found.items():
            yield mutants.Outcome(n, mutant, whats[n], "", 1.0)

    monkeypatch.setattr(mutants, "attempts", attempts)

    def run(*words: str) -> tuple[int, str]:
        return mutants.main([str(file), *words]), capsys.readouterr().out.splitlines()[-1]

    assert run("--only", "1-5", "--at-least", "0.75", "--jobs", "3") == (
        0, "3 of 4 caught (75.0%), 1 of them by the timeout; 1 survived, 1 equivalent, 0 refused")
    assert run("--only", "1-5", "--at-least", "0.76", "--no-baseline")[0] == 1
    assert run("--only", "1,3-5", "--timeout", "7", "--json", str(kept))[0] == 0
    assert [each["number"] for each in json.loads(kept.read_text())] == [1, 3, 4, 5]
    assert run("--at-least", "0")[0] == 2  # one is refused
    assert asked == [([1, 2, 3, 4, 5], 3, 900, True), ([1, 2, 3, 4, 5], 1, 900, False),
                     ([1, 3, 4, 5], 1, 7, True), ([1, 2, 3, 4, 5, 6], 1, 900, True)]
    assert mutants.main([str(file), "--only", "6-7"]) == 2
    assert f"refused: --only: {file} has mutants 1 to 6" in capsys.readouterr().err
