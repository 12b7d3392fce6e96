from __future__ import annotations

import os
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
