"""Each block of Python on the pages runs as it stands there, by itself. Those of docs/lab.md, which
go on from one to the next, of docs/testing.md and of the tutorial have tests of their own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rawnn.data
from rawnn.bench.case import Case
from rawnn.bench.harness import Harness
from rawnn.bench.suites import read_suites
from rawnn.data import load_dataset
from rawnn.engine import data_source

DOCS = Path(__file__).parents[2] / "docs"


TESTED_ELSEWHERE = ("lab.md", "testing.md", "tutorial.md")
CODE = {str(path.relative_to(DOCS)): blocks for path in sorted(DOCS.rglob("*.md"))
        if (blocks := re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL))
        and path.name not in TESTED_ELSEWHERE and path.parent.name != "notes"}

FEWER = {"guides/many-networks.md": (("1e-1, 64)", "1e-1, 3)"), ("range(16)", "range(2)"))}
"""What a page does a thousand times is done a few times here."""


@pytest.mark.parametrize("page", CODE)
def test_each_block_of_a_page_runs_by_itself(page: str, tmp_path: Path,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "results").symlink_to(DOCS.parent / "results")
    monkeypatch.chdir(tmp_path)
    for module in (rawnn.data, data_source):  # MNIST may have to be fetched
        monkeypatch.setattr(module, "load_dataset", lambda name="mnist", path=None, **options:
                            load_dataset("synthetic" if name == "mnist" else name, path, **options))
    for text, fewer in FEWER.get(page, ()):
        assert any(text in block for block in CODE[page])
        CODE[page] = [block.replace(text, fewer) for block in CODE[page]]
    for block in CODE[page]:
        names: dict[str, object] = {}
        exec(compile(block, page, "exec"), names)
        if case := names.get("CASE"):
            assert isinstance(case, Case)
            with Harness(case.name) as harness:
                case.measure(harness, read_suites(), repeats=2, device="host")
            assert [len(record.samples) for record in harness.results.records] == [2, 2]


def test_the_code_of_every_page_is_run() -> None:
    assert {"own-data.md", "checkpoints.md", "model.md", "data.md", "start.md", "suites.md",
            "records.md", "guides/many-networks.md"} <= CODE.keys()


@pytest.mark.parametrize("page", ["own-data.md", "checkpoints.md", "model.md", "data.md"])
def test_links_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([\w./-]+\.md)", (DOCS / page).read_text()):
        assert (DOCS / link).is_file()
