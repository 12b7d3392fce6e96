"""Every kernel family on the twin, launched as the runner launches it, against the NumPy references
of its ops: real arithmetic and real synchronisation, in several orders of threads and copies."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rawnn.ptx import SOURCES
from rawnn.ptx.floors import PROBES
from tests.ptx.twin.cases import CASES, plan_of
from tests.ptx.twin.plans import Memory, build, check, has_kernel, kernel_for, runs
from tests.ptx.twin.twin import compiler

sys.path.insert(0, str(Path(__file__).resolve().parent / "emulation"))

import emulated_kernels
import epoch_cases

pytestmark = pytest.mark.skipif(compiler() is None, reason="no g++ on PATH")


@pytest.mark.parametrize("name", CASES)
def test_ops_do_what_their_references_do(name: str) -> None:
    plan = plan_of(name)
    twins = build([plan])
    for run, overflow, spoil in runs(CASES[name], plan):
        launched = check(twins, Memory(plan, 5, overflow, spoil), run)
        assert launched == sum(map(has_kernel, plan.ops))


def test_every_source_runs() -> None:
    """Here, or among the portable kernels' checks and those that measure limits."""
    ours = {kernel_for(op).source for name in CASES for op in plan_of(name).ops if has_kernel(op)}
    portable = {f"{name}.cu" for name in (*emulated_kernels.FILES, *epoch_cases.FILES)}
    measuring = {probe.source for probe in PROBES}
    assert {path.name for path in SOURCES.glob("**/*.cu")} <= ours | portable | measuring
