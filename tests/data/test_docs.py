"""The Python code of the pages on data, checkpoints and models runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["own-data.md", "checkpoints.md", "model.md"])
def test_the_code_of_a_page_runs(page: str, tmp_path: Path,
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)


@pytest.mark.parametrize("page", ["own-data.md", "checkpoints.md", "model.md", "data.md"])
def test_links_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([\w./-]+\.md)", (DOCS / page).read_text()):
        assert (DOCS / link).is_file()
