"""The pages that explain results name every key of what is written."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import rawnn.result
from rawnn.bench import records, sets
from rawnn.bench.peers.records import ContestsResult
from rawnn.opts import TOGGLES
from rawnn.opts.registry import Toggle
from tools.worth_tables import page, results

DOCS = Path(__file__).parents[2] / "docs"


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


def test_every_key_of_a_result_is_explained() -> None:
    assert keys(rawnn.result.schema()) <= explained("results.md")


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


@pytest.mark.parametrize("toggle", TOGGLES.values(), ids=lambda toggle: toggle.name)
def test_a_toggles_page_has_the_table_of_what_was_measured(toggle: Toggle) -> None:
    path, text = page(toggle, results())
    assert path.read_text() == text
