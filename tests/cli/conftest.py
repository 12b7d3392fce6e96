"""The command line called in this process: exit status, stdout, stderr."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from rawnn.cli import run


class Done(NamedTuple):
    status: int
    out: str
    err: str


Rawnn = Callable[..., Done]


@pytest.fixture
def rawnn(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
          tmp_path: Path) -> Rawnn:
    """Call `rawnn ARGUMENTS`; the kernels' cache is a folder of the test's own."""
    monkeypatch.setenv("RAWNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str) -> Done:
        capsys.readouterr()
        status = run(arguments)
        return Done(status, *capsys.readouterr())

    return call
