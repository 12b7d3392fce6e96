"""Where tests of the libraries have NVIDIA's wheels looked for."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(params=["nothing imported", "nvidia imported"])
def wheels(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one folder of NVIDIA's wheels, an empty one; also behind a test that has imported their
    package, whose folder Python would name first."""
    if request.param == "nvidia imported":
        elsewhere = tmp_path / "elsewhere" / "nvidia"
        for name in ("cudnn/lib/libcudnn.so.9", "cublas/lib/libcublasLt.so.12"):
            (elsewhere / name).parent.mkdir(parents=True)
            (elsewhere / name).write_bytes(b"of another test")
        imported = ModuleType("nvidia")
        imported.__spec__ = ModuleSpec("nvidia", None, is_package=True)
        imported.__spec__.submodule_search_locations = [str(elsewhere)]
        monkeypatch.setitem(sys.modules, "nvidia", imported)
    folder = tmp_path / "site" / "nvidia"
    folder.mkdir(parents=True)
    monkeypatch.setattr("sys.path", [str(folder.parent)])
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    return folder
