"""Kernels of many networks on the CPU emulator: each member is, to the last bit, what the kernel of
one network makes of it; an evaluation is right against NumPy; and faults of the indices are found.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rawnn.persistent import layout
from rawnn.persistent.chip import Chip
from rawnn.persistent.phases import input as input_phase
from rawnn.persistent.problem import Unsupported
from rawnn.persistent.schedule import Schedule, build
from rawnn.plan.ops.members import SCORES
from rawnn.ptx.kernels import kernel_for
from rawnn.ptx.persistent import members
from tests import requires
from tests.persistent.member_launch import ROOM, MemberLaunch, check_member, group_of
from tests.ptx.emulator.emulator import EmulatorError
from tests.slices import sliced

pytestmark = requires.GXX

COLUMN = 2

CASES: list[tuple[str, dict[str, Any]]] = [
    ("1x1:128:FFFF", {"folds": 2, "optimizer": "adam", "varied": ("weight_decay", "beta1")}),
    ("1x1:32:FFFF", {"optimizer": "sgd", "momentum": 0.5, "varied": ("momentum",)}),
    ("4x1:64:FGSF", {"folds": 3, "optimizer": "adamw", "varied": ("weight_decay",)}),
    ("1x1:64:FFF", {"layers": (8, 32, 1), "loss": "mse", "schedule": "constant", "folds": 2}),
    ("2x1:64:FGFS", {"loss": "mse", "partial": False, "activation": "tanh"}),
    ("1x1:64:FFFF", {"opt": "bf16", "optimizer": "adam", "folds": 2}),
    ("1x1:128:FFFF", {"opt": "bf16,sr", "shuffle": False, "optimizer": "adam"}),
    ("2x1:64:FSFF", {"opt": "fp16", "varied": ("weight_decay",), "shuffle": False, "folds": 2}),
    ("1x1:64:FFFF", {"opt": "tf32", "rows": 33, "loss": "bce", "activation": "gelu"}),
    ("1x1:64x2:FFFF", {"folds": 2, "optimizer": "adam"}),
    ("1x1:32x1:FFFF:2", {"batch": 21, "optimizer": "adam", "varied": ("beta1",)}),
    ("4x1:64:FSFF:2", {"momentum": 0.5}),
    ("1x1:128x2:FFFF:3", {"opt": "bf16,sr", "optimizer": "adam", "shuffle": False}),
    ("1x1:64x1:FFF", {"layers": (8, 32, 1), "loss": "mse", "opt": "tf32", "optimizer": "adamw",
                      "bias": False}),
    ("1x1:32:FFF", {"layers": (8, 9, 3), "rows": 100, "batch": 3}),
    ("1x1:32x1:FFF", {"layers": (8, 9, 3), "rows": 38, "batch": 1, "folds": 2}),
    ("1x1:64:FFFF", {"rows": (25, 35, 22), "folds": 3, "optimizer": "adam"}),
    ("4x1:64:FSFF:2", {"rows": (13, 34), "folds": 2, "partial": False}),
    ("1x1:64x2:FFF", {"layers": (8, 9, 1), "rows": (31, 23), "folds": 2, "loss": "mse",
                      "shuffle": False}),
]
"""A sharding, and what is special about the members: every kind of order, loss, number and state,
whole and partial batches, lists of rows of different lengths, micro-batches, state in registers,
and more steps than are put in order at once."""


@pytest.mark.parametrize(("sharding", "how"), CASES, ids=str)
def test_extents_of_operands_are_those_of_the_tensors(sharding: str, how: dict[str, Any]) -> None:
    """Of all but tables with padded rows."""
    plans = MemberLaunch(group_of(5, **how), sharding).plans
    for plan in (plans.train, plans.evaluate):
        (op,) = plan.ops
        sizes = {name: n for name, n in op.attributes.items() if isinstance(n, int)}
        for role, extents in kernel_for(op).shapes.items():
            if role == "members" or role in SCORES:
                continue
            elements = [prod(int(n) if n.isdigit() else sizes[n] for n in extent.split("*"))
                        for extent in extents]
            words = 2 if role == "parts" else 1  # doubles
            assert words * prod(elements) == prod(plan[op.operands[role]].shape), role


@pytest.fixture
def two_at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two micro-batches are put in order at once: three steps use each place of the ring."""
    members._written.cache_clear()
    monkeypatch.setattr(input_phase, "ORDERED_AT_ONCE", 1)
    yield
    members._written.cache_clear()


@pytest.mark.parametrize(("sharding", "how"), sliced(CASES), ids=str)
def test_a_member_is_what_one_network_is(tmp_path: Path, sharding: str, how: dict[str, Any],
                                         request: pytest.FixtureRequest) -> None:
    """Of five members three are active: the others stay as they are."""
    if how.get("batch", 11) > 3:  # others have more steps than are put in order at once
        request.getfixturevalue("two_at_once")
    launch = MemberLaunch(group_of(5, **how), sharding)
    active = np.array([1, 2, 4])
    wanted = {member: launch.single(member, tmp_path, run=member) for member in (1, 4)}
    before = {name: array.copy() for name, array in launch.arrays.items()}
    launch.launch(launch.plans.train, active, COLUMN, tmp_path, run=2)
    for member, found in wanted.items():
        check_member(launch, found, member, COLUMN)
    for name in launch.plans.train.tensors:
        if name not in ("active", "optimizer_state", "tally", "rates"):
            for member in (0, 3):
                size = len(before[name]) // 5
                own = slice(member * size, (member + 1) * size)
                np.testing.assert_array_equal(launch.arrays[name][own], before[name][own], name)
    assert np.array_equal(np.isnan(launch.arrays["train_loss"][:, COLUMN]), [1, 0, 0, 1, 0])
    check_evaluation(launch, active, tmp_path)


@pytest.mark.parametrize(("sharding", "in_registers"), sliced(
    [("1x1:64x2:FFFF", True), ("1x1:64x1:FFFF:2", True), ("1x1:64:FFFF", False)]))
def test_bits_do_not_depend_on_where_state_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                sharding: str, in_registers: bool) -> None:
    """That of the members lies in global memory, and that of one network in the block."""
    group = group_of(3, layers=(21, 40, 40, 7), batch=24, rows=60, optimizer="adam")
    near = MemberLaunch(group, sharding)
    wanted = near.single(2, tmp_path)
    laid_out = layout._with_state

    def far(schedule: Schedule, layers: Any, memory: Any, room: int) -> Any:
        return laid_out(schedule, layers, memory, 0 if schedule.sharding.members else room)

    tilings_of_single = layout._tilings_of_single
    monkeypatch.setattr(layout, "_tilings_of_single",
                        lambda d, room: tilings_of_single(d, ROOM.shared))
    monkeypatch.setattr(layout, "_with_state", far)
    launch = MemberLaunch(group, sharding)
    assert launch.plans.choice.layout.global_tiles
    assert not near.plans.choice.layout.global_tiles
    assert any(part.in_registers for part in near.plans.choice.layout.layers) == in_registers
    launch.launch(launch.plans.train, np.array([2]), 0, tmp_path, run=1)
    check_member(launch, wanted, 2, 0)


@pytest.mark.parametrize(("sharding", "opt", "missing", "held"), sliced(
    [("1x1:128x3:FFFF", "tf32", 0.25, {1, 2}), ("1x1:64x1:FFFF:2", "none", 0.5, {2}),
     ("1x1:32x2:FFFF", "bf16", 0.5, set())], 1))
def test_bits_do_not_depend_on_which_buffers_share_memory(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sharding: str, opt: str, missing: float,
        held: set[int]) -> None:
    """Of the members a gradient lies where activations did, as there is no room for some of both;
    registers hold the state of some layers' weights, and global memory that of others."""
    group = group_of(3, layers=(21, 40, 40, 7), batch=24, rows=60, optimizer="adam", opt=opt)
    wide = MemberLaunch(group, sharding)
    wanted = wide.single(2, tmp_path)
    found = wide.plans.choice.layout
    values = 4 * (found.places["z2"] - found.places["z1"])
    without_state = layout._layout(build(found.sharding), 0, False).nbytes
    room = without_state - int(missing * values)
    monkeypatch.setattr(Chip, "room", lambda self, resident=0: room)
    launch = MemberLaunch(group, sharding)
    narrow = launch.plans.choice.layout
    assert not found.schedule.aliases
    assert dict(narrow.schedule.aliases) == {"z1": "a2"}
    assert narrow.places["z1"] == narrow.places["a2"]
    assert narrow.nbytes <= room
    assert narrow.global_tiles
    assert {n for n, part in enumerate(narrow.layers) if part.in_registers} == held
    launch.launch(launch.plans.train, np.array([2]), 0, tmp_path, run=1)
    check_member(launch, wanted, 2, 0)


def check_evaluation(launch: MemberLaunch, active: np.ndarray, folder: Path) -> None:
    """Loss and score are those of NumPy, as exact as the numbers are."""
    launch.launch(launch.plans.evaluate, active, COLUMN, folder, run=3)
    plan = launch.plans.evaluate
    op = plan.ops[0]
    operands = {role: launch.arrays[name].copy() for role, name in op.operands.items()}
    for role, array in operands.items():
        tensor = plan[op.operands[role]]
        if role not in SCORES and tensor.floating:
            array = array.astype(np.float32)
        operands[role] = array[:, :tensor.shape[1]] if len(tensor.shape) > 1 else array
        if tensor.packed:
            operands[role] = operands[role].reshape(-1)
    numbers = {**kernel_for(op).scalars(op, plan), "launched": len(active), "offset": COLUMN}
    op.spec.reference(SimpleNamespace(**operands), numbers)
    numbers_are = launch.group.config.opt.split(",")[0]
    unit = {"none": 1e-6, "tf32": 1e-3, "bf16": 1e-2, "fp16": 1e-3}[numbers_are]
    np.testing.assert_allclose(launch.arrays["validation_loss"], operands["validation_loss"],
                               rtol=unit)
    if op.attributes["answers"]:
        assert np.nanmax(np.abs(launch.arrays["validation_score"]
                                - operands["validation_score"])) <= 100 * unit


FAULTS = [
    ("w1 += static_cast<long long>(member) * (26ll * ldw1);",
     "w1 += static_cast<long long>(member) * (25ll * ldw1);"),
    ("active[blockIdx.x]", "static_cast<int>(blockIdx.x)"),
    ("rows += static_cast<long long>(fold) * examples;",
     "rows += static_cast<long long>(fold) * (examples - 1);"),
    ("seed_of_member(of_member)", "seed_of_member(of_member - ldmembers)"),
    ("permutation(seed, clock[0], examples)", "permutation(seed, clock[0] + 1, examples)"),
    ("rates += static_cast<long long>(member) * span;", ""),
    ("mean += static_cast<long long>(fold) * ldmean;", ""),
    ("loss += static_cast<long long>(member) * span;",
     "loss += static_cast<long long>(blockIdx.x) * span;"),
    ("settings[0]", "settings[1]"),
    ("b3 += static_cast<long long>(member) * 7;", "b3 += static_cast<long long>(member) * 8;"),
]
"""Wrong strides, lists, fold boundaries, seeds, epochs, rates and settings."""


@pytest.mark.parametrize(("right", "wrong"), sliced(FAULTS, 2))
def test_a_wrong_index_is_found(tmp_path: Path, right: str, wrong: str) -> None:
    launch = MemberLaunch(group_of(4, folds=2, varied=("weight_decay",), momentum=0.9),
                          "1x1:32:FFFF")
    wanted = launch.single(3, tmp_path)
    impl = kernel_for(launch.plans.train.ops[0])
    assert impl.code is not None
    text = impl.code.text
    assert right in text

    def train_wrongly() -> None:
        launch.launch(launch.plans.train, np.array([1, 3]), 0, tmp_path,
                      text=text.replace(right, wrong))
        check_member(launch, wanted, 3, 0)

    with pytest.raises((AssertionError, EmulatorError)):
        train_wrongly()


@pytest.mark.parametrize(("right", "wrong"), sliced([
    ("(u + 2) % 16 == 0", "(u + 1) % 16 == 0"), ("((u + 1) % 17)", "((u + 1) % 16)")]))
def test_an_order_that_is_computed_too_late_or_read_elsewhere_is_found(
        tmp_path: Path, right: str, wrong: str) -> None:
    launch = MemberLaunch(group_of(2, layers=(8, 9, 3), rows=100, batch=3), "1x1:32:FFF")
    wanted = launch.single(1, tmp_path)
    impl = kernel_for(launch.plans.train.ops[0])
    assert impl.code is not None
    assert right in impl.code.text

    def train_wrongly() -> None:
        launch.launch(launch.plans.train, np.array([1]), 0, tmp_path,
                      text=impl.code.text.replace(right, wrong))
        check_member(launch, wanted, 1, 0)

    with pytest.raises((AssertionError, EmulatorError)):
        train_wrongly()


@pytest.mark.parametrize("members", sliced([1, 2]))
def test_few_members(tmp_path: Path, members: int) -> None:
    launch = MemberLaunch(group_of(members, folds=2), "1x1:32:FFFF")
    wanted = launch.single(members - 1, tmp_path)
    launch.launch(launch.plans.train, np.arange(members), 0, tmp_path, run=1)
    check_member(launch, wanted, members - 1, 0)


@pytest.mark.parametrize(("sharding", "reason"), [
    ("1x2:128:FFFF", "data-parallel"), ("4x1@l2:64:FGSF", "through L2"),
    ("4x1:64:FGFS", "softmax"), ("1x1:128:FFFFF", "boundaries"), ("2x1:48:FGSF", "threads"),
])
def test_what_members_cannot_have_is_refused(sharding: str, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        MemberLaunch(group_of(2), sharding)
