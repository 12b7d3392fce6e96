from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from .clock_machine import FAKE, SUPPORTED, Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    tools = tmp_path / "bin"
    tools.mkdir()
    fake = tools / "nvidia-smi"
    fake.write_text(FAKE)
    fake.chmod(0o755)
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("RAWNN_", "FAKE_"))}
    env = {"FAKE_DIR": str(tmp_path), "FAKE_SUPPORTED": SUPPORTED}
    return Machine(tmp_path, {**keep, **env, "PATH": f"{tools}:{os.environ['PATH']}"})


@pytest.fixture(autouse=True)
def _hang_up_is_not_ignored() -> Iterator[None]:
    """Under nohup SIGHUP is ignored, which every child would inherit and bash cannot undo."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
