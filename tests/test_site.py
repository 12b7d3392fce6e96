"""The site of docs/: every page has its place, every public name its entry, links go on leading
to the same files. `mkdocs build --strict`, which CI runs, checks the rest."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import rawnn
from rawnn.engine.config import Config
from rawnn.opts import TOGGLES
from tools import site

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
MKDOCS = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
NAV = re.findall(r"- (?:\w+: )?([\w./-]+\.md)$", MKDOCS.partition("\nnav:\n")[2], re.MULTILINE)


def test_the_navigation_holds_every_page_once() -> None:
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    inside = [page for page in NAV if (DOCS / page).is_file()]
    assert len(NAV) == len(set(NAV))
    assert sorted(inside) == sorted(pages), "mkdocs.yml: nav"
    outside = set(NAV) - pages
    assert {"CONTRIBUTING.md", "CHANGELOG.md", "rawnn/ptx/README.md"} <= outside
    assert outside <= set(site.linked_files([*(f"docs/{page}" for page in pages), *site.OUTSIDE]))


def test_the_navigation_has_the_toggles_in_their_order_and_by_mechanism() -> None:
    section = MKDOCS.partition("  - Toggles:\n")[2].partition("\n  - Guides:")[0]
    named = re.findall(r"toggles/(\w+)\.md", section)
    assert named[0] == "index"
    assert set(named[1:]) == set(TOGGLES)
    groups = [TOGGLES[name].group for name in named[1:]]
    assert len([g for n, g in enumerate(groups) if not n or groups[n - 1] != g]) == len(set(groups))


MOST_LINES = 120
"""Of the page of a toggle: more goes to docs/notes or to a page of its own."""


@pytest.mark.parametrize("name", TOGGLES)
def test_the_page_of_a_toggle_is_short_and_has_its_parts(name: str) -> None:
    text = (DOCS / "toggles" / f"{name}.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_LINES
    assert f"`{name}`" in text.splitlines()[0]
    for part in ("**When it helps.**", "**When it hurts.**", "## Measured worth"):
        assert part in text


def test_every_public_name_is_in_the_reference() -> None:
    named = re.findall(r"^::: rawnn\.(\w+)$", (DOCS / "api.md").read_text(), re.MULTILINE)
    assert sorted([*named, "__version__"]) == sorted(rawnn.__all__)


PUBLIC = [name for name in rawnn.__all__ if name not in ("__version__", "TOGGLES", "Config")]


@pytest.mark.parametrize("name", [*PUBLIC, "lab.Work", "lab.simulated"])
def test_the_docstring_of_a_public_name_says_what_each_parameter_is(name: str) -> None:
    found: Any = rawnn
    for part in name.split("."):
        found = getattr(found, part)
    text = inspect.getdoc(found) or ""
    assert text
    missing = [p.name for p in inspect.signature(found).parameters.values()
               if not re.search(rf"\b{p.name}\b|\*_{p.name.rpartition('_')[2]}\b", text)]
    assert not missing


def test_every_option_of_a_config_is_in_its_docstring() -> None:
    text = (inspect.getdoc(Config) or "").partition("Parameters\n---")[2]
    listed = {name for line in text.splitlines() if line and not line.startswith((" ", "-"))
              for name in line.split(", ")}
    assert listed == {field.name for field in dataclasses.fields(Config)}


@pytest.mark.parametrize(("page", "link", "there"), [
    ("docs/measuring.md", "[x](../results/sample.svg)", "[x](results/sample.svg)"),
    ("docs/toggles/mma.md", "[x](../measuring.md#a)", "[x](../measuring.md#a)"),
    ("docs/toggles/mma.md", "[x](../../README.md)", "[x](../index.md)"),
    ("CONTRIBUTING.md", "[x](docs/design.md)", "[x](design.md)"),
    ("rawnn/ptx/README.md", "[x](../persistent)", "[x](../persistent/__init__.py)"),
    ("rawnn/ptx/README.md", "[x](../../docs/lab.md#is-it-right)", "[x](../../lab.md#is-it-right)"),
    ("docs/lab.md", "kernel[1](x, y)", "kernel[1](x, y)"),
    ("docs/lab.md", "[x](https://a.b/c.md) [y](#z)", "[x](https://a.b/c.md) [y](#z)"),
    ("docs/lab.md", "[x](nowhere.md)", "[x](nowhere.md)")])
def test_links_to_files_outside_docs_are_rewritten(page: str, link: str, there: str) -> None:
    assert site.rewritten(link, page) == there


def test_what_pages_link_to_is_on_the_site() -> None:
    found = site.linked_files(["docs/benchmarks/results.md", "CONTRIBUTING.md"])
    assert {"results/sweep-width.svg", "rawnn/ptx/README.md"} <= set(found)
    assert not [path for path in found if path.startswith("docs/") or path == "README.md"]


@pytest.mark.parametrize("page", [*(f"docs/{p.relative_to(DOCS)}" for p in DOCS.rglob("*.md")),
                                  *site.OUTSIDE, "rawnn/ptx/README.md", "examples/lab/README.md"])
def test_a_link_to_a_file_leads_somewhere(page: str) -> None:
    """Also where mkdocs is not installed."""
    code = re.compile(r"^```.*?^```$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
    text = code.sub("", (ROOT / page).read_text(encoding="utf-8"))
    links = [m["path"] for m in site.LINK.finditer(text)]
    folder = os.path.dirname(page)
    assert not [link for link in links if not (ROOT / folder / link).exists()]


def test_the_toml_of_the_page_on_files_is_a_configuration() -> None:
    (text,) = re.findall(r"^```toml\n(.*?)^```$", (DOCS / "files.md").read_text(),
                         re.DOTALL | re.MULTILINE)
    values = tomllib.loads(text)
    config = Config.from_mapping({**values, "opt": ",".join(values["opt"])}, "files.md")
    assert config.layers == (784, 128, 10)
