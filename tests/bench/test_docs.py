"""The pages that explain results name every key of what is written."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import rawnn.engine.result
from rawnn.bench.record import Environment, Record, Results, read_results
from tests.bench.typed import ROOT, prose

DOCS = ROOT / "docs"
KEPT = [path for path in (*(ROOT / "results").glob("*.json"),
                          *(ROOT / "tests/bench/old_results").glob("*.json"))
        if not path.name.startswith(("kernel", "gpu-tests", "float32", "full-walk"))]


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


def section(heading: str) -> set[str]:
    """The words in code style of the tables of a section of the page on results files."""
    text = (DOCS / "records.md").read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return {word for line in text.splitlines() if line.startswith("|")
            for word in re.findall(r"`(\w+)`", line.split(" | ")[0])}


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


def test_every_field_of_a_results_file_is_explained() -> None:
    names = {*Results.__struct_fields__, *Record.__struct_fields__, *Environment.__struct_fields__}
    assert names <= explained("records.md")


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_metric_and_condition_of_a_file_is_explained(path: Path) -> None:
    found = read_results(path).records
    assert {record.metric for record in found} <= section("Metrics")
    assert {name for record in found for name in record.conditions} <= section("Conditions")


def test_a_kept_file_is_of_the_format_that_is_written() -> None:
    for path in KEPT:
        if path.parent.name == "results":
            assert msgspec.json.decode(path.read_bytes())["format"] == 2, path.name
