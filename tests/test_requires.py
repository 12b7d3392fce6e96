"""A test that is skipped says how to have it run."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

from tests import requires

ROOT = Path(__file__).resolve().parents[1]
OF_PYTHON = {"pty", "termios"}
"""Modules of Python itself, which some systems lack."""


def calls(path: Path) -> list[tuple[str, str]]:
    """The names that a file calls, as `pytest.skip`, with their first argument where it is text."""
    return [(ast.unparse(node.func), str(node.args[0].value)
             if node.args and isinstance(node.args[0], ast.Constant) else "")
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call)]


FILES = [path for path in (ROOT / "tests").rglob("*.py") if path.name != "requires.py"]


def test_packages_are_asked_for_in_one_place() -> None:
    elsewhere = [f"{path.name}: {name}" for path in FILES for call, name in calls(path)
              if call == "pytest.importorskip" and name not in OF_PYTHON]
    assert elsewhere == [], "tests.requires.module says how to install it"


def test_every_package_that_tests_ask_for_has_an_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = {name.partition(".")[0] for path in FILES for call, name in calls(path)
             if call == "requires.module" and name != "no_such.module"}
    assert asked - requires.OTHERS.keys() <= requires.EXTRAS.keys()
    for package in asked:
        extra = requires.EXTRAS.get(package)
        assert extra is None or extra in extras
        assert requires.command(package).startswith("pip install ")


def test_a_reason_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(requires.OTHERS, "no_such", "pip install no-such")
    with pytest.raises(pytest.skip.Exception, match=r"needs no_such\.module: pip install no-such"):
        requires.module("no_such.module")
    assert requires.command("cuda") == "pip install -e '.[nvrtc12]'"
    assert requires.module("pytest") is pytest
