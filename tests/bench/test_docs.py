"""The pages that explain results name every key of what is written."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

import rawnn.engine.result
import tools.pages
from rawnn.bench import records, sets
from rawnn.bench.peers.problem import draws
from rawnn.bench.peers.records import ContestsResult, read_contests
from rawnn.opts import TOGGLES
from tests import requires
from tests.bench.typed import PAGES, ROOT, prose, typed
from tools import trials
from tools.pages import BLOCKS, NOT_MEASURED, PICTURES, filled, missing, pages, worth

DOCS = ROOT / "docs"


def keys(schema: Any) -> set[str]:
    """Every property name, at any depth."""
    if isinstance(schema, list):
        return set().union(*map(keys, schema))
    if not isinstance(schema, dict):
        return set()
    own = set(schema["properties"]) if isinstance(schema.get("properties"), dict) else set()
    return own.union(*(keys(value) for value in schema.values()))


def explained(page: str) -> set[str]:
    """The words in code style of a page's tables."""
    lines = (DOCS / page).read_text().splitlines()
    return {word for line in lines if line.startswith("|") for word in re.findall(r"`(\w+)`", line)}


WRITTEN_BY_TOOLS = ("docs/options.md",)


def test_lines_of_the_pages_are_at_most_120_characters_long() -> None:
    own = [ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING")]
    pages = [p for p in [*own, *DOCS.rglob("*.md")]
             if str(p.relative_to(ROOT)) not in WRITTEN_BY_TOOLS]
    assert len(pages) > 30
    assert not [f"{page.relative_to(ROOT)}:{number}" for page in pages
                for number, line in prose(page.read_text()) if len(line) > 120]


def test_what_a_tool_writes_is_no_prose() -> None:
    text = "a\n<!-- x -->\nb\n<!-- /x -->\n```sh\nc\n```\n| d |\n" \
           "<!-- y: begin -->\ne\n<!-- y: end -->\nf"
    assert [line for _, line in prose(text) if line[0] not in "<`"] == ["a", "f"]


def test_every_key_of_a_result_is_explained() -> None:
    assert keys(rawnn.engine.result.schema()) <= explained("results.md")


def test_every_key_of_a_ladder_is_explained() -> None:
    config_and_place = explained("results.md")
    assert keys(records.schema()) <= explained("measuring.md") | config_and_place


def test_every_key_of_measured_sets_is_explained() -> None:
    config_and_place = explained("results.md")
    assert keys(msgspec.json.schema(sets.SetsResult)) <= explained("measuring.md") | \
        config_and_place


def test_every_key_of_contests_is_explained() -> None:
    known = explained("results.md") | explained("measuring.md") | explained("peers.md")
    assert keys(msgspec.json.schema(ContestsResult)) <= known


@pytest.mark.parametrize("name", ["ContestsResult", "Contest", "Entry", "Problem", "Conditions"])
def test_the_keys_of_contests_are_explained_on_their_own_page(name: str) -> None:
    definition = msgspec.json.schema(ContestsResult)["$defs"][name]
    assert set(definition["properties"]) <= explained("peers.md")


@pytest.mark.parametrize("name", ["SetsResult", "Measurement"])
def test_the_keys_of_measured_sets_are_explained_on_their_own_page(name: str) -> None:
    definition = msgspec.json.schema(sets.SetsResult)["$defs"][name]
    assert set(definition["properties"]) <= explained("measuring.md")


@pytest.mark.parametrize("name", ["Rung", "Run", "LadderResult", "Oracle", "Spread", "ClockSample"])
def test_a_ladders_own_keys_are_explained_on_its_own_page(name: str) -> None:
    definition = records.schema()["$defs"][name]
    assert set(definition["properties"]) <= explained("measuring.md")


def test_no_page_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not missing(), missing()
    monkeypatch.setitem(TOGGLES, "shrink", TOGGLES["fuse"])
    assert missing() == "there is no docs/toggles/shrink.md: figures go there, and " \
                        "CONTRIBUTING.md says what a toggle's page holds"
    monkeypatch.setitem(TOGGLES, "shrink", replace(TOGGLES["fuse"], name="shrink"))
    assert "docs/toggles/shrink.md" not in pages()
    with pytest.raises(SystemExit, match=r"no docs/toggles/shrink\.md"):
        tools.pages.main()
    monkeypatch.undo()
    monkeypatch.setattr(trials, "read_trials", lambda: iter([("docs/nowhere.md", "tried", "")]))
    assert missing().startswith("there is no docs/nowhere.md")


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return pages()


WRITTEN = sorted({*BLOCKS, *(page for page, _, _ in trials.read_trials()),
                  *(f"docs/toggles/{name}.md" for name in TOGGLES)})


@pytest.mark.parametrize("page", WRITTEN)
def test_a_page_says_what_the_results_say(page: str, made: dict[str, str]) -> None:
    if page not in made:
        pytest.skip("there is no such page, as another test says")
    assert (ROOT / page).read_text(encoding="utf-8") == made[page], "run python tools/pages.py"


def texts(picture: Path) -> list[str]:
    """What a picture says: its title, its labels, the figures beside its bars."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", picture.read_text(encoding="utf-8"))


@pytest.mark.parametrize("picture", PICTURES)
def test_a_picture_shows_what_the_results_say(picture: str, tmp_path: Path) -> None:
    requires.module("matplotlib")
    kept, drawn = ROOT / picture, tmp_path / "drawn.svg"
    PICTURES[picture](drawn)
    assert texts(drawn)
    assert texts(kept) == texts(drawn), "run python tools/pages.py"
    versions = {re.findall(r"Matplotlib v[\d.]+", p.read_text())[0] for p in (kept, drawn)}
    if len(versions) == 1:  # another version may place marks otherwise
        assert kept.read_bytes() == drawn.read_bytes(), "run python tools/pages.py"


def test_the_headline_says_how_many_draws_there_were_and_what_each_gave() -> None:
    found, text = read_contests(tools.pages.DRAWN), \
        tools.pages.random_headline()
    several = len(draws(found.asked)) > 1
    count = f" in {len(draws(found.asked))} draws" if several else ", that nobody"
    assert f"{len(found.contests)} networks drawn at random{count}" in text
    assert ("eometric means of the draws (seeds " in text) == several


def test_a_toggle_that_nobody_has_measured_says_so() -> None:
    assert worth(TOGGLES["fuse"], []) == NOT_MEASURED


def test_blocks_are_filled_and_what_is_around_them_stays() -> None:
    text = "a\n<!-- x -->\nold\n<!-- /x -->\nb\n<!-- y -->\n<!-- /y -->\n"
    assert filled(text, {"x": "new\n"}) == text.replace("old", "new")


@pytest.mark.parametrize("text", ["", "<!-- x -->\n", "<!-- /x -->\n<!-- x -->\n",
                                  "<!-- x -->\n<!-- /x -->\n" * 2])
def test_a_page_without_the_comments_of_a_block_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"<!-- /?x -->"):
        filled(text, {"x": "new\n"})


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_page_has_a_measured_figure_typed_in(page: Path) -> None:
    found = typed(str(page.relative_to(ROOT)), page.read_text(encoding="utf-8"))
    assert not found, "keep it in results/trials (tools/trials.py), or say it in words"
