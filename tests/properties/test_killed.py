"""A training process killed at any moment, and its newest checkpoint at times torn, ends with the
weights of one that was left alone, bit for bit."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rawnn.engine.checkpoint import find, listed
from tests.properties.killed_training import EPOCHS, RECIPES, run

ROOT = Path(__file__).resolve().parents[2]
KILLS = 6


def killed(recipe: str, directory: Path, seconds: float) -> tuple[bool, str]:
    """Run the process and kill it `seconds` after training began. Returns whether it was done
    before, and what it said."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.properties.killed_training", recipe, str(directory)],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert process.stdout is not None
    expected = ""
    for line in process.stdout:
        expected += line
        if line == "started\n":
            break
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
    expected += process.stdout.read()
    process.stdout.close()
    assert process.wait() in (0, -signal.SIGKILL), expected
    return process.returncode == 0, expected


@pytest.mark.parametrize("recipe", list(RECIPES))
def test_sigkill_at_random_moments(recipe: str, tmp_path: Path) -> None:
    generator = random.Random(recipe)
    alone, interrupted = tmp_path / "alone", tmp_path / "killed"
    for directory in (alone, interrupted):
        directory.mkdir()
    began = time.perf_counter()
    wanted = run(recipe, str(alone))
    whole = time.perf_counter() - began
    kills = torn = 0
    while True:
        done, expected = killed(recipe, interrupted,
                            generator.uniform(0, whole) if kills < KILLS else 120)
        if done:
            break
        kills += 1
        files = listed(interrupted)
        assert len(files) <= 4  # three, and at times the one that is about to be deleted
        if torn:
            assert "continuing from" in expected or "started" not in expected
        if len(files) > 1 and generator.random() < 0.4:
            content = files[-1][1].read_bytes()
            files[-1][1].write_bytes(content[: generator.randrange(len(content))])
            torn += 1
    assert kills + torn > 0
    kept = find(interrupted, lambda message: None)[1]
    assert kept.epoch == EPOCHS
    last = find(alone, lambda message: None)[1]
    for ours, theirs in ((kept.parameters, wanted.parameters), (kept.state, last.state)):
        assert set(ours) == set(theirs)
        for name, array in theirs.items():
            np.testing.assert_array_equal(ours[name], array, err_msg=name)
    assert [path.name for _, path in listed(interrupted)] == [p.name for _, p in listed(alone)]
