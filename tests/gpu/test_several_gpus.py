"""Many networks on several real GPUs, and side by side on one: the bits of one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rawnn
from rawnn.cuda.device import Device
from rawnn.engine.machine import Opened
from rawnn.many.gpu import GpuMembers
from rawnn.many.sessions import SessionMembers
from rawnn.opts.registry import TOGGLES, Machine
from tests.many.test_devices import same
from tests.many.test_gpu_members import folded, group_of
from tests.many.test_side_by_side import check, everyone

pytestmark = pytest.mark.gpu
RNG = np.random.default_rng(7)
X = RNG.normal(size=(2000, 20)).astype(np.float32)
Y = (X[:, 0] * X[:, 1] > 0).astype(np.int64) + (X[:, 2] > 1)
OPTIONS: dict[str, Any] = {"data": (X, Y), "layers": (20, 64, 64, 3), "batch": 32, "epochs": 6,
                           "optimizer": "adam", "shuffle": True, "sharding": "1x1:128:FFFF"}


@pytest.fixture
def opened(device: Device, machine: Machine) -> Opened:
    if reason := TOGGLES["persistent"].needs(machine):
        pytest.skip(f"persistent {reason}")
    return Opened(device, machine, 0.0)


def test_groups_side_by_side(opened: Opened) -> None:
    groups = [group_of(200, 250, opt="preload", device="gpu", optimizer="adam"),
              group_of(150, 250, opt="preload", device="gpu", layers=(13, 4)),
              folded(40, opt="preload", device="gpu")]
    trainers = [GpuMembers(group, opened) for group in groups]
    for _ in range(3):
        for trainer, group in zip(trainers, groups, strict=True):
            trainer.run(everyone(group), 1)
    for trainer, group in zip(trainers, groups, strict=True):
        one = GpuMembers(group, opened, sharding=trainer.sharding)
        one.run(everyone(group), 3)
        assert np.array_equal(one.scores().figures, trainer.scores().figures, equal_nan=True)
        for name, array in one.state(everyone(group)).items():
            assert np.array_equal(array, trainer.state(everyone(group))[name]), name
        one.close()
        trainer.close()


@pytest.mark.parametrize("opt", ["best,-persistent", "preload,graphs=epoch", "best"])
def test_sessions_side_by_side(opened: Opened, opt: str) -> None:
    group = group_of(6, 500, opt=opt, device="gpu", layers=(13, 256, 4), batch=32, partial=False)
    trainer = SessionMembers(group, opened, lambda message: None)
    trainer.run(everyone(group), 3)
    check(group, trainer, 3, device="gpu")
    trainer.close()


@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize("more", [
    {"seed": range(40)}, {"lr": np.geomspace(1e-4, 1e-1, 27), "halving": 3},
    {"lr": np.geomspace(1e-3, 1, 12), "patience": 1}, {"seed": [0, 1], "folds": 3},
    {"layers": [(20, 64, 3), (20, 600, 600, 600, 3)], "seed": range(5), "sharding": None},
], ids=["seeds", "halving", "patience", "folds", "groups"])
def test_all_gpus_have_the_bits_of_one(device: Device, more: dict[str, Any]) -> None:
    if device.count < 2:
        pytest.skip("there is one GPU")
    options = {**OPTIONS, **more}
    several = rawnn.train_many(**options, device="gpu:all")
    if options["sharding"] is None:
        for member in several:
            single = rawnn.train(member.config, data=member.dataset)
            assert all(np.array_equal(single.parameters[n], member.model.parameters[n])
                       for n in single.parameters)
        return
    one = rawnn.train_many(**options, device="gpu:0")
    assert same(one, several)
    assert np.array_equal(one.scores("train_loss"), several.scores("train_loss"), equal_nan=True)
    assert np.array_equal(one.progress.status, several.progress.status)
