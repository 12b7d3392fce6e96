"""Faults planted in the kernels are caught by the twin: a few drawn at random, and some that no
test caught before it. tools/kernel_faults.py plants all of them; results/kernel-faults.json keeps
what became of each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.ptx.twin import faults
from tests.ptx.twin.harmless import HARMLESS
from tests.ptx.twin.twin import compiler

KEPT = Path(__file__).resolve().parents[2] / "results" / "kernel-faults.json"
KNOWN = {
    "the release fence of the metrics": ("metrics.cuh", "fence", 0),
    "one group of copies too few in tiled": ("tiled.cu", "wait for one too few", 0),
    "bfloat16 pairs swapped": ("types.cuh", "pair", 1),
}
DRAWN = 5
SEED = 20


@pytest.mark.skipif(compiler() is None, reason="no g++ on PATH")
@pytest.mark.parametrize("name", KNOWN)
def test_what_survived_once_is_caught(name: str) -> None:
    file, kind, which = KNOWN[name]
    fault = [f for f in faults.faults_of(file) if f.kind == kind][which]
    found = faults.attempt(fault)
    assert found.what == "caught", (fault.name, found.how)


@pytest.mark.skipif(compiler() is None, reason="no g++ on PATH")
@pytest.mark.parametrize("turn", range(DRAWN))
def test_a_fault_drawn_at_random_is_caught(turn: int) -> None:
    fault = faults.sample(DRAWN, SEED)[turn]
    found = faults.attempt(fault)
    assert found.what in ("caught", "invalid") or fault.name in HARMLESS, (fault.name, found.how)


def test_no_more_than_one_in_twenty_is_called_harmless() -> None:
    kept = json.loads(KEPT.read_text())
    assert kept["harmless"] <= kept["planted"] / 20
    assert all(len(reason) > 20 for reason in HARMLESS.values())
