"""Faults planted in the kernels are caught by the CPU emulator: a few drawn at random, and some
that no test caught before it. tools/kernel_faults.py plants all of them; results/kernel-faults.json
keeps what became of each, which is so while the code is the same (outcomes.py)."""

from __future__ import annotations

import json

import pytest

from rawnn.persistent.phases.gradient_all_reduce import ALL, SHARE
from tests import requires
from tests.persistent.test_emulator import Launch
from tests.ptx.emulator import attempts, faults, outcomes
from tests.ptx.emulator.harmless import HARMLESS, OUT_OF_REACH, why_harmless
from tests.slices import FULL, SLICE, sliced

KNOWN = {
    "the release fence of the metrics": ("losses/metrics.cuh", "fence", 0),
    "one group of copies too few in tiled": ("gemm/tiled.cu", "wait for one too few", 0),
    "bfloat16 pairs swapped": ("primitives/types.cuh", "pair", 1),
}
KINDS = ("barrier", "wait", "exchange", "generation", "meeting", "turn", "fence")
DRAWN = 2
SEED = 20 + SLICE


def is_probed(fault: faults.Fault) -> bool:
    """Whether a kernel runs that it may show in: of those of many networks, and of traces, none is
    run with a fault."""
    return fault.file in faults.written_files() or bool(attempts.dependents(fault.file))


def test_few_faults_are_in_kernels_that_none_runs() -> None:
    assert {fault.file for fault in faults.every() if not is_probed(fault)} == {
        "persistent/members.cuh", "persistent/trace.cuh"}


@requires.GXX
@pytest.mark.parametrize("name", sliced(KNOWN))
def test_what_survived_once_is_caught(name: str) -> None:
    file, kind, which = KNOWN[name]
    fault = [f for f in faults.faults_of(file) if f.kind == kind][which]
    found = attempts.attempt(fault)
    assert found.what == "caught", (fault.name, found.how)


@requires.GXX
@pytest.mark.parametrize("turn", range(DRAWN))
def test_a_fault_drawn_at_random_is_caught(turn: int) -> None:
    """What headers and the CPU emulator have to do with it is not in the record: that stays true
    so."""
    fault = faults.sample(DRAWN, SEED, [f for f in faults.every() if f.name not in OUT_OF_REACH
                                        and is_probed(f)])[turn]
    found = attempts.attempt(fault)
    assert found.what in ("caught", "invalid") or why_harmless(fault), (fault.name, found.how)


@requires.GXX
@pytest.mark.parametrize("kind", sliced(KINDS, 2))
def test_a_fault_in_a_whole_step_is_caught(kind: str) -> None:
    """In the text of a kernel that is written for a network, or in its headers."""
    among = [fault for fault in faults.every() if fault.kind == kind and not why_harmless(fault)
             and is_probed(fault)
             and (fault.file in faults.written_files() or fault.file.startswith("persistent/"))]
    fault = faults.sample(1, SEED, among)[0]
    found = attempts.attempt(fault)
    assert found.what in ("caught", "invalid"), (fault.name, found.how)


def test_kernels_that_are_written_take_every_way() -> None:
    """What none of them does, no fault could show."""
    layouts = [Launch(*how).op.attributes["choice"].layout for how in faults.WRITTEN]
    problems = [found.sharding.problem for found in layouts]
    assert {found.sync for found in layouts} == {"", ALL, SHARE}
    assert {found.schedule.all_reduce.warps_of_tile(found.sharding) > 1
            for found in layouts if found.sync == SHARE} == {True, False}
    assert {bool(found.global_tiles) for found in layouts if found.sync} == {True, False}
    assert any(found.global_tiles and not found.sync for found in layouts)
    assert any(layer.forward.split > 1 for found in layouts for layer in found.layers)
    assert {"float32", "bfloat16"} <= {p.numbers for p in problems}
    for what in ("labelled", "ordered", "scheduled", "normalised", "converted"):
        assert {bool(getattr(p, what)) for p in problems} == {True, False}, what
    types = "".join(found.sharding.boundaries for found in layouts if found.receive_floats)
    assert set(types) == set("FGS")


def test_what_is_argued_away_is_a_fault() -> None:
    names = {fault.name for fault in faults.every()}
    assert not (HARMLESS.keys() | OUT_OF_REACH.keys()) - names


@pytest.mark.skipif(not FULL, reason="walked by hand, for hours: RAWNN_FULL=1 asks for all")
def test_every_outcome_is_of_the_code_as_it_is() -> None:
    """A fault's name stays the same while the code around it changes."""
    every = {fault.name: fault for fault in faults.every()}
    old = outcomes.left(outcomes.read(every), every)
    files = ", ".join(sorted({every[name].file for name in old}))
    assert not old, f"{len(old)} faults to walk: python tools/kernel_faults.py; of {files}"


def test_every_walked_fault_is_settled() -> None:
    """Caught, or beyond the host's reach, or argued harmless: no more than one in twenty. The
    record says how many were walked in the code as it is."""
    every = {fault.name: fault for fault in faults.every()}
    counted = outcomes.summary(outcomes.read(every), every)
    assert json.loads(outcomes.KEPT.read_text()).items() >= counted.items()
    assert counted["missed"] == 0
    if counted["walked"] == counted["faults of the rules"]:
        assert counted["harmless"] <= counted["planted"] / 20
    assert counted["beyond reach"] <= len(OUT_OF_REACH)
    assert all(len(reason) > 20 for reason in (HARMLESS | OUT_OF_REACH).values())
