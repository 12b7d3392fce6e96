"""The example of one memory in two libraries, with PyTorch and a GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests import requires
from tests.lab.test_examples import LAB

pytestmark = pytest.mark.gpu


def test_one_memory_in_two_libraries() -> None:
    requires.module("torch")
    done = subprocess.run([sys.executable, str(LAB / "zero_copy.py")], capture_output=True,
                          text=True, check=False, timeout=240,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(
                              [str(LAB.parents[1]), *sys.path])})
    assert done.returncode == 0, done.stderr
    assert "on a stream of PyTorch: 0.7311, silu(1) = 0.7311" in done.stdout
    there, here = done.stdout.split("our array in PyTorch: ")[1].split(" there, ")
    assert there == here.split()[0] == "7.8561"
