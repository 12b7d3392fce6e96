"""Counters that wrap around, and counts that get large: a run may be as long as it likes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rawnn.common.cuda_text import CudaText
from rawnn.common.errors import ConfigError
from rawnn.cuda.device import Device
from rawnn.engine.runners.gpu import GpuRunner
from rawnn.engine.runners.host import HostRunner
from rawnn.model.optimizers import Optimizer
from rawnn.persistent.buffers import copies, l2_slots
from rawnn.persistent.schedule import build
from rawnn.persistent.sharding import L2
from rawnn.plan.ops.epoch import CLOCK_PERIOD, MAX_STEPS, count_after
from rawnn.sim import Simulation
from tests import requires
from tests.engine import make_work, random_dataset
from tests.persistent.test_emulator import Launch, check
from tests.slices import sliced

needs_emulator = requires.GXX
AHEAD = 3
"""Arrivals, or exchanges, ahead of 2^32 at which a counter starts."""

MEETINGS = [("softmax, SGD", 2, 2, "SFGF"), ("more outputs than a register file", 2, 3, "FG"),
            ("float16", 2, 3, "SFGF")]
"""Clusters that all update everything, or each its share; with a loss scale."""


@needs_emulator
@pytest.mark.parametrize(("name", "ranks", "groups", "types"), sliced(MEETINGS))
def test_clusters_meet_where_their_number_wraps_around(
        tmp_path: Path, name: str, ranks: int, groups: int, types: str) -> None:
    """Whose meetings are counted from shortly ahead of 2^32 on and not from 0: from a number at
    which the first mark is 1, as the slots hold zeros."""
    launch = Launch(name, ranks, groups, types)
    launch.arrays["all_reduces"][:] = -4
    check(launch, tmp_path, 1)


@needs_emulator
@pytest.mark.parametrize(("name", "ranks", "groups", "types"), sliced(MEETINGS))
def test_clusters_meet_in_the_next_launch(
        tmp_path: Path, name: str, ranks: int, groups: int, types: str) -> None:
    """What they told each other in the launch before, of an odd number of steps, still lies there,
    with the marks of then."""
    launch = Launch(name, ranks, groups, types)
    for run in (1, 3):
        left = launch.on_emulator(tmp_path, run)
        for role in ("all_reduces", "gradients", "weight_changes", "overflows"):
            if role in left:
                launch.arrays[role] = left[role].view(launch.arrays[role].dtype)
    check(launch, tmp_path, 0)


@needs_emulator
@pytest.mark.parametrize(("name", "ranks", "groups", "types"), sliced([
    ("softmax, SGD", 4, 1, "FGSF"), ("Adam in an order", 4, 1, "FSFF")]))
def test_mailboxes_take_turns_where_their_count_wraps_around(
        tmp_path: Path, name: str, ranks: int, groups: int, types: str) -> None:
    launch = Launch(name, ranks, groups, types)
    text, changed = re.subn(r"(Dsmem<[^;]*, rank, )0}", rf"\g<1>{2**32 - 4}u}}",
                            launch.impl.code.text)
    assert changed == 1
    launch.impl = replace(launch.impl, code=CudaText(text))
    check(launch, tmp_path, 1)


@needs_emulator
@pytest.mark.parametrize(("name", "ranks", "groups", "types"), sliced([
    ("five layers", 4, 1, "SFSFSF"), ("Adam in an order", 4, 2, "FSFF"),
    ("five layers", 3, 2, "FGSFSF"), ("softmax, SGD", 4, 1, "FGSF")], 2))
def test_exchanges_through_l2_where_their_count_wraps_around(
        tmp_path: Path, name: str, ranks: int, groups: int, types: str) -> None:
    """Launches go on where the last one ended: here shortly ahead of 2^32, with the marks
    in the boxes that turns ahead of it left there."""
    launch = Launch(name, ranks, groups, types, exchange=L2)
    launch.arrays["generations"][:] = -AHEAD
    schedule = build(launch.sharding)
    boxes = launch.arrays["receive_buffers"].view(np.uint32).reshape(groups, copies(schedule), -1)
    if copies(schedule) == 2:
        for turn in (-AHEAD, 1 - AHEAD):
            boxes[:, turn & 1] = turn >> 1 & 1
    else:
        for slot in sorted(l2_slots(schedule), key=lambda slot: slot.offset):
            boxes[:, :, slot.offset :] = -AHEAD * slot.uses & 1
    check(launch, tmp_path, 1)


def test_messages_of_a_turn_lie_in_two_boxes_or_share_places() -> None:
    """The test above takes all: a turn's only message, places of one and of two messages."""
    found = [build(Launch(name, ranks, groups, types, exchange=L2).sharding)
             for name, ranks, groups, types in (("five layers", 4, 1, "SFSFSF"),
                                                ("Adam in an order", 4, 2, "FSFF"),
                                                ("five layers", 3, 2, "FGSFSF"))]
    assert [copies(schedule) for schedule in found] == [1, 2, 1]
    assert [sorted({slot.uses for slot in l2_slots(schedule)}) for schedule in found] \
        == [[1, 2], [1], [1, 2]]


@needs_emulator
def test_a_second_launch_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    """What the launch before sent still lies in the boxes."""
    launch = Launch("softmax, SGD", 2, 2, "FGSF", exchange=L2)
    left = launch.on_emulator(tmp_path, 1)
    assert left["generations"].any()
    for role in ("generations", "receive_buffers"):
        launch.arrays[role] = left[role].view(launch.arrays[role].dtype)
    check(launch, tmp_path, 3)


@needs_emulator
def test_a_kernel_whose_steps_are_counted_high(tmp_path: Path) -> None:
    launch = Launch("Adam in an order", 4, 1, "FSFF")
    launch.arrays["clock"][:] = 9, MAX_STEPS - 2
    check(launch, tmp_path, 0)


# -- steps since training began --------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 2**30, MAX_STEPS - 1, MAX_STEPS, MAX_STEPS + 1,
                                   2**31 - 1, 2**31, 2**32, 2**32 + 7, 10**15])
def test_the_count_leaves_room_for_an_epoch(steps: int) -> None:
    shown = count_after(steps)
    assert shown == steps if steps < MAX_STEPS else MAX_STEPS - CLOCK_PERIOD <= shown < MAX_STEPS
    assert shown % CLOCK_PERIOD == steps % CLOCK_PERIOD
    assert shown + CLOCK_PERIOD < 2**31
    assert count_after(shown + 5) == count_after(steps + 5)


OPTIONS = [("preload", "host"), ("persistent,graphs=epoch", "sim"), ("preload,fuse", "sim"),
           ("preload,bf16,sr", "host"), ("preload,bf16,sr", "sim")]


@pytest.mark.parametrize(("opt", "where"), OPTIONS)
def test_training_goes_on_past_2_to_the_31_steps(opt: str, where: str) -> None:
    """Adam, whose bias is gone by then, does what it did at step 10^9; with bits drawn at random,
    host and device draw the same."""

    def after(first: int) -> tuple[dict[str, Any], dict[str, Any]]:
        data = random_dataset(12, 4, 40, 8)
        work = make_work(opt, (12, 5, 4), data, optimizer=Optimizer("adam", 1e-2), shuffle=True)
        simulation = Simulation()
        device = Device(simulation.backend())
        runner = HostRunner(work) if where == "host" else GpuRunner(device, work)
        try:
            runner.load({**runner.state(), "clock": np.array([3, first], np.int32)})
            for _ in range(4):
                runner.epoch(True)
            return dict(runner.parameters()), dict(runner.state())
        finally:
            runner.close()
            device.close()
            simulation.assert_clean()

    steps = 5  # of an epoch
    begin = MAX_STEPS - 2 * steps + 2
    parameters, state = after(begin)
    assert list(state["clock"]) == [7, count_after(begin + 4 * steps)]
    assert all(np.isfinite(array).all() for array in parameters.values())
    if "sr" not in opt:
        for name, array in after(10**9)[0].items():
            np.testing.assert_array_equal(array, parameters[name])


def test_a_schedule_says_how_far_it_counts() -> None:
    data = random_dataset(12, 4, 40, 8)
    make_work("preload", (12, 4), data, schedule="cosine", epochs=MAX_STEPS // 5)
    with pytest.raises(ConfigError, match=r"is too long for it, which counts up to 1,610,612,736"):
        make_work("preload", (12, 4), data, schedule="cosine", epochs=MAX_STEPS // 5 + 1)
