"""Figures that were measured once have one owner, and no other is typed into a page."""

from pathlib import Path

import pytest

from tools import trials

ROOT = Path(__file__).parents[2]
FILE = """page = "docs/a.md"

[tried]
about = "Microseconds of a form."
gpu = "NVIDIA H200"
columns = ["form", "us", "commit"]
rows = [["first", "1.50", "abc1234"], ["second", "", "unknown"]]
"""


def test_a_table_of_trials_becomes_the_text_of_its_block(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(FILE)
    [(page, block, text)] = trials.read_trials(tmp_path)
    assert (page, block) == ("docs/a.md", "tried")
    assert text.splitlines() == [
        "Microseconds of a form.", "", "| form | us | commit |", "|---|---:|---|",
        "| first | 1.50 | abc1234 |", "| second |  | unknown |", "",
        "NVIDIA H200; kept in `results/trials/a.toml`."]
    assert trials.cell("a.toml", "tried", "first", "us", tmp_path) == "1.50"


@pytest.mark.parametrize(("old", "new", "why"), [
    ('["second", "", "unknown"]', '["second", "unknown"]', "needs 3 cells"),
    ('"abc1234"', '"H200"', "digits of a commit"),
    (', "commit"]\n', ', "since"]\n', "digits of a commit"),
    ('gpu = "NVIDIA H200"\n', "", "gpu"), ('gpu = "NVIDIA H200"\n', "gpus = 2\n", "gpus")])
def test_a_table_without_its_provenance_is_refused(old: str, new: str, why: str,
                                                   tmp_path: Path) -> None:
    assert old in FILE
    (tmp_path / "a.toml").write_text(FILE.replace(old, new))
    with pytest.raises(ValueError, match=why):
        list(trials.read_trials(tmp_path))
