"""Figures that were measured once have one owner, and no page has a measured figure typed in."""

from pathlib import Path

import pytest

from tests.bench.typed import PAGES, ROOT, SET, typed
from tools import trials

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
        "Microseconds of a form.", "", "| form | us |", "|---|---:|", "| first | 1.50 |", "",
        "NVIDIA H200, commit abc1234; kept in `results/trials/a.toml`.", "",
        "| form | us |", "|---|---:|", "| second |  |", "",
        "NVIDIA H200, commit not recorded; kept in `results/trials/a.toml`."]
    assert trials.table("a.toml", "tried", tmp_path).markdown("a.toml") == text


def test_a_table_may_stand_on_a_page_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(FILE + '\n[kept]\npage = "docs/notes/a.md"\nabout = "A."\n'
                                     'gpu = "G"\ncommit = "abc1234"\ncolumns = ["a"]\n'
                                     'rows = [["b"]]\n')
    assert [(page, block) for page, block, _ in trials.read_trials(tmp_path)] == [
        ("docs/a.md", "tried"), ("docs/notes/a.md", "kept")]


def test_comparisons_of_several_commits_are_a_list_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(
        'page = "a.md"\n[t]\nabout = "A."\ngpu = "G"\n'
        'columns = ["what", "on", "before", "after", "unit", "commit"]\n'
        'rows = [["tiles", "784-10", "2", "1", "us", "abc1234"], '
        '["the same", "", "3", "4", "us", "def5678"]]\n')
    [(_, _, text)] = trials.read_trials(tmp_path)
    assert text.splitlines()[2:4] == [
        "- tiles, 784-10: 2 before, 1 us after (commit abc1234)",
        "- the same: 3 before, 4 us after (commit def5678)"]


def test_figures_of_two_gpus_together_are_no_table(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(
        'page = "a.md"\n[t]\nabout = "A."\ngpu = "NVIDIA H100 80GB HBM3 and H200"\n'
        'commit = "abc1234"\ncolumns = ["what", "us"]\nrows = [["fit", "2"]]\n')
    [(_, _, text)] = trials.read_trials(tmp_path)
    assert text.splitlines()[2:] == [
        "- fit: us 2 (commit abc1234)", "",
        "NVIDIA H100 80GB HBM3 and H200; kept in `results/trials/a.toml`."]


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


@pytest.mark.parametrize("planted", [
    "a step takes 4.5 us", "from 12\nto 17 us", "1,034 us", "takes 30 % less", "at 6 TB/s",
    "is 1.13 x as fast", "three times faster", "twice as long", "took 3.1 to", "in 700 cycles",
    "| 64 x 784 | 2.9 |", "300 times as long", "half: 0.25 s", "`best` takes 20 s"])
def test_a_planted_figure_is_found(planted: str) -> None:
    text = (ROOT / "docs/tuning.md").read_text(encoding="utf-8")
    head = "## `rawnn tune` measures it"
    assert typed("docs/tuning.md", text.replace(head, f"{planted}\n\n{head}"))


def test_nothing_on_a_page_hides_a_figure_behind_it() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert typed(str(page.relative_to(ROOT)), f"{text}\n\nIt takes 4.5 us.\n"), page


@pytest.mark.parametrize("harmless", [
    "784-128-10 at batch 64", "64 x 784 x 784", "compute capability 8.9", "NVRTC 12.9 and 13.5",
    "`takes 4.5 us`", "the 95 % interval", "16 KB",
    "[a](a.md#took-2.5-us)"])
def test_what_is_not_measured_is_left_alone(harmless: str) -> None:
    assert not typed("docs/tuning.md", harmless)


def test_what_tools_and_code_say_is_not_typed() -> None:
    assert not typed("a.md", "<!-- x -->\n4.5 us\n<!-- /x -->\n```\n4.5 us\n```\n")
    assert typed("a.md", "<!-- x -->\n<!-- /x -->\n4.5 us\n")


@pytest.mark.parametrize(("page", "words"), [(p, w) for p, each in SET.items() for w in each])
def test_what_is_set_still_stands_there(page: str, words: str) -> None:
    assert words in " ".join((ROOT / page).read_text(encoding="utf-8").split())
