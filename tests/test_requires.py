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


def first_arguments(path: Path, function: str) -> list[str]:
    """The first arguments of a file's calls of a function, as "pytest.skip"; "" for what is no
    text."""
    text = path.read_text(encoding="utf-8")
    if function not in text:  # parsing all files takes ten times as long
        return []
    return [str(node.args[0].value) if node.args and isinstance(node.args[0], ast.Constant) else ""
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            and ast.unparse(node.func) == function]


FILES = [path for path in (ROOT / "tests").rglob("*.py") if path.name != "requires.py"]


def test_packages_are_asked_for_in_one_place() -> None:
    elsewhere = [f"{path.name}: {name}" for path in FILES
                 for name in first_arguments(path, "pytest.importorskip") if name not in OF_PYTHON]
    assert elsewhere == [], "tests.requires.module says how to install it"


def test_every_package_that_tests_ask_for_has_an_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = {name.partition(".")[0] for path in FILES
             for name in first_arguments(path, "requires.module") if name != "no_such.module"}
    assert len(asked) > 10
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
