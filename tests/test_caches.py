"""RAWNN_CACHE moves everything that rawnn keeps for itself."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest

import rawnn
from rawnn.common.files import cache_directory
from rawnn.cuda.compiling import cache
from rawnn.data import store


def test_one_variable_moves_kernels_and_data(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(rawnn, "__file__", str(tmp_path / "site" / "rawnn" / "__init__.py"))
    places = cache.default_directory, store.default_directory
    monkeypatch.delenv("RAWNN_CACHE", raising=False)
    usual = Path(platformdirs.user_cache_dir("rawnn", appauthor=False))
    assert [place() for place in places] == [usual / name for name in ("cubins", "data")]
    monkeypatch.setenv("RAWNN_CACHE", str(tmp_path / "moved"))
    assert {place().parent for place in places} == {tmp_path / "moved"}
    monkeypatch.setenv("RAWNN_CACHE", "~/mine")
    assert cache_directory() == Path.home() / "mine"
