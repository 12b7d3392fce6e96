"""The losses of many steps, of which each block has a part, as kernels add them up at their end: in
several rounds through shared memory that something else lay in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rawnn.ptx import SOURCES
from tests.ptx.twin.twin import Kernels, compiler

HERE = Path(__file__).resolve().parent / "twin"
STEPS, PARTS = 20, 24


def check_losses(sources: Path = SOURCES) -> None:
    twin = Kernels(("losses.cu",), ("add_up",), folders=(HERE,), sources=sources).build()
    rng = np.random.default_rng(3)
    losses = rng.standard_normal((STEPS, PARTS)).astype(np.float32)
    hits = rng.integers(0, 9, (STEPS, PARTS)).astype(np.int32)
    for seed in range(4):
        loss, right = np.zeros(STEPS, np.float32), np.zeros(STEPS, np.int32)
        twin.call("add_up", (3,), (64,), shared=1600, run=seed, losses=losses, hits=hits,
                  tally=np.zeros((STEPS, PARTS, 2), np.float32), ticket=np.zeros(1, np.uint32),
                  loss=loss, right=right, steps=STEPS)
        assert np.allclose(loss, losses.sum(1), atol=1e-5)
        assert np.array_equal(right, hits.sum(1))


@pytest.mark.skipif(compiler() is None, reason="no g++ on PATH")
def test_many_parts_are_added_up_in_rounds() -> None:
    check_losses()
