"""Inputs that are rounded once, ahead of the steps: where that is, and that it changes no bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rawnn.model.layers import Network
from rawnn.persistent import rounding
from rawnn.persistent.problem import problem_of
from rawnn.persistent.rounding import with_rounded_inputs
from rawnn.plan import epoch_plans
from rawnn.plan.tensor import Role
from tests import requires
from tests.persistent.problems import prepared, problem
from tests.persistent.test_emulator import Launch
from tests.slices import sliced

ALIKE = [
    ("bfloat16", 2, 1, "FSFG", 0, 1), ("float16, float32 inputs", 2, 2, "FGSF", 0, 1),
    ("float16, Adam, tanh", 1, 3, "FFFF", 0, 1), ("stochastic rounding, Adam", 2, 2, "FSFF", 0, 1),
    ("bfloat16, float32 inputs in an order", 2, 1, "FSFF", 5, 1),
    ("bfloat16, float32 inputs in an order", 8, 1, "FGFF", 0, 1),
    ("bfloat16, normalised", 1, 2, "FFFF", 0, 1), ("bfloat16, long rows", 2, 2, "FG", 4, 1),
    ("bfloat16, long rows", 1, 2, "FF", 0, 2), ("float16, mean squares", 4, 3, "FGFS", 0, 1),
    ("bfloat16, float32 inputs in an order", 4, 3, "SFGF", 0, 1),  # slices of 8 either way
]
"""Problems, blocks and clusters that share them, types, examples left, and micro-batches."""


def trained(launch: Launch, folder: Path) -> dict[str, np.ndarray]:
    """What the kernel leaves of what is trained, and of losses."""
    found = launch.on_emulator(folder, 1)
    return {role: found[role] for role in launch.op.spec.writes
            if launch.plan[launch.op.operands[role]].role is not Role.SCRATCH}


@requires.GXX
@pytest.mark.parametrize(("name", "ranks", "groups", "types", "left", "turns"), sliced(ALIKE))
def test_inputs_rounded_ahead_change_no_bit(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, ranks: int, groups: int,
        types: str, left: int, turns: int) -> None:
    """Products that round inputs behind each load, as the copy would be too large, have the same
    sums, in the same tiles."""
    ahead = Launch(name, ranks, groups, types, left=left, turns=turns)
    assert ahead.sharding.problem.rounded
    monkeypatch.setattr(rounding, "MOST_BYTES", 0)
    plain = Launch(name, ranks, groups, types, left=left, turns=turns)
    assert not plain.sharding.problem.rounded
    for role in ("mean", "inverse_std"):
        if role in plain.arrays:
            plain.arrays[role] = ahead.of_inputs[role]
    plain.arrays |= {role: array for role, array in ahead.arrays.items() if role != "images"}
    plain.arrays["images"] = ahead.of_inputs["images"]
    found, wanted = (trained(launch, tmp_path) for launch in (ahead, plain))
    for role, array in wanted.items():
        assert np.array_equal(found[role].view(np.uint8), array.view(np.uint8)), role


def test_where_inputs_are_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where products take 16 bits, unless inputs are compared with outputs, lie so already, or are
    too many."""
    halves = problem(numbers="bf16")
    assert halves.rounded
    assert halves.inputs == "bfloat16"
    assert not halves.converted
    assert not problem().rounded
    assert not problem(numbers="tf32").rounded
    own = problem(numbers="bf16", layers=(33, 8, 33), network={"loss": "mse"},
                  form={"labels": "", "targets": 0, "reconstruct": True})
    assert not own.rounded
    assert own.converted
    stored = problem(numbers="fp16", layers=(33, 8, 33), network={"loss": "mse"},
                     form={"labels": "", "targets": 0, "reconstruct": True, "inputs": "float16",
                           "scale": 1.0})
    assert (stored.inputs, stored.rounded, stored.converted) == (stored.numbers, False, True)
    there = prepared(Network((40, 12)), 8, "fp16", form={"inputs": "float16", "scale": 1.0})
    assert problem_of(there).rounded
    assert there.find(kind="gather")[0].operands["images"] == "images"
    scaled = {"inputs": "float16", "scale": 0.5}
    changed = prepared(Network((40, 12)), 8, "fp16", form=scaled)
    assert changed.find(kind="gather")[0].operands["images"] == "images.float16"
    assert with_rounded_inputs(changed) is changed
    monkeypatch.setattr(rounding, "MOST_BYTES", changed["images.float16"].nbytes - 1)
    many = prepared(Network((40, 12)), 8, "fp16", form=scaled)
    assert many.find(kind="gather")[0].operands["images"] == "images"
    assert problem_of(many).converted


@pytest.mark.parametrize("normalised", [False, True])
def test_inputs_are_rounded_as_the_gather_of_a_step_does(normalised: bool) -> None:
    """All of them at the start, in their own order, whatever the step."""
    form = {"inputs": "uint8", "scale": 1 / 255, "normalised": normalised}
    plan = prepared(Network((40, 12)), 8, "bf16", shuffle=True, form=form)
    start = epoch_plans.start(plan, Network((40, 12)), 0)
    op = start.find(kind="gather")[0]
    assert op.attributes == {"offset": 0, "stride": 0, "scale": plan.scale}
    assert ("mean" in op.operands) is normalised
    assert "order" not in op.operands
    assert start[op.operands["x"]] == replace(plan["images.bfloat16"])
