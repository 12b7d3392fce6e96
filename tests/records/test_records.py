"""What rawnn decides and says is what was recorded, line by line."""

from __future__ import annotations

import difflib

import pytest

from tests import requires
from tests.records import FOLDER, lines_of, load, path_of

MOST_SHOWN = 40


@pytest.mark.parametrize("name", load())
def test_behaviour_is_as_recorded(name: str) -> None:
    if name in ("charts", "html_report"):
        requires.module("matplotlib")
    if name == "html_report":
        requires.module("jinja2")
    stored = path_of(name).read_text(encoding="utf-8").splitlines()
    found = lines_of(name)
    if found != stored:
        diff = list(difflib.unified_diff(stored, found, "recorded", "now", n=1, lineterm=""))
        left = f"\n... {len(diff) - MOST_SHOWN} more lines" if len(diff) > MOST_SHOWN else ""
        pytest.fail(
            "\n".join(diff[:MOST_SHOWN]) + left + "\nIf this is intended: python -m "
            f"tests.records {name}, and explain it in the commit",
            pytrace=False,
        )


def test_every_stored_record_is_compared() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(load())
