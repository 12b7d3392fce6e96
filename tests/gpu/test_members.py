"""Many networks on a GPU: bit for bit what single runs with the same sharding come to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rawnn.cuda.device import Device
from rawnn.engine.machine import Opened
from rawnn.engine.training import Session
from rawnn.many import indexed_inputs
from rawnn.many.launch_plans import launch_plans
from rawnn.many.launches import kind_of
from rawnn.many.members import Group
from rawnn.opts.registry import TOGGLES, Machine
from rawnn.plan.tensor import Role
from tests.many.test_gpu_members import folded, group_of, uneven

pytestmark = pytest.mark.gpu


@pytest.fixture
def opened(device: Device, machine: Machine) -> Opened:
    if reason := TOGGLES["persistent"].needs(machine):
        pytest.skip(f"persistent {reason}")
    return Opened(device, machine, 0.0)


def check(opened: Opened, group: Group, sharding: str = "", members: tuple[int, ...] = ()) -> None:
    """Parameters, optimizer state and losses of some members are those of single runs."""
    count = len(group)
    kind = kind_of(group, opened, sharding)
    trainer = kind(group, opened, sharding=sharding)
    trainer.run(np.arange(count, dtype=np.int32), 2)
    chosen = sorted({0, count // 2, count - 1, *members})
    trainer.run(np.array(chosen, np.int32), 1)
    scores, states = trainer.scores(), trainer.state(np.array(chosen, np.int32))
    for place, member in enumerate(chosen):
        config = replace(group.members[member], sharding=trainer.sharding, device="gpu")
        with Session(config, data=group.dataset_of(int(group.fold[member])),
                     opened=opened) as session:
            found = session.run()
            single = session.runner.state()
        for name, value in single.items():
            assert np.array_equal(states[name][place].view(np.uint8),
                                  np.ascontiguousarray(value).view(np.uint8)), (member, name)
        assert list(scores.train_loss[member]) == [r.train_loss for r in found.history]
        unit = 1e-2 if "bf16" in config.opt else 1e-3 if config.opt != "preload" else 1e-5
        np.testing.assert_allclose(scores.validation_loss[member],
                                   [r.test_loss for r in found.history], rtol=unit)
    trainer.close()


@pytest.mark.parametrize("opt", ["preload", "tf32", "bf16", "fp16", "bf16,sr"])
@pytest.mark.parametrize("options", [
    {"layers": (20, 64, 64, 3), "batch": 32, "optimizer": "adam", "lr": 1e-3},
    {"layers": (8, 32, 32, 1), "batch": 16, "loss": "mse", "schedule": "warmup:1,constant"},
], ids=["adam", "mse"])
def test_members_are_single_runs(opened: Opened, opt: str, options: dict[str, Any]) -> None:
    if opt == "bf16,sr":
        options = {**options, "optimizer": "adam"}
    check(opened, group_of(133, 250, opt=opt, device="gpu", **options))


@pytest.mark.parametrize("sharding", ["1x1:32:FFFF", "1x1:64:FFFF", "1x1:512:FFFF", "4x1:256:FGSF",
                                      "8x1:128:FSFG", "1x1:128x2:FFFF", "1x1:256x2:FFFF",
                                      "1x1:128x1:FFFF:2", "2x1:256:FSFF:2"])
def test_a_named_sharding(opened: Opened, sharding: str) -> None:
    if int(sharding[0]) not in opened.machine.target.at_once:
        pytest.skip("has no such clusters")
    check(opened, group_of(5, 250, opt="preload", device="gpu", layers=(20, 64, 64, 3), batch=32,
                           optimizer="adamw", weight_decay=0.02), sharding)


@pytest.mark.parametrize("count", [1, 2, 131, 132, 1000])
def test_the_number_of_members_changes_nothing(opened: Opened, count: int) -> None:
    group = folded(count, opt="preload", device="gpu", momentum=0.9)
    check(opened, group, "1x1:64:FFF")


@pytest.mark.parametrize("options", [
    {"layers": (784, 128, 10), "batch": 128, "opt": "tf32"}, {"layers": (784, 10), "batch": 128},
    {"layers": (54, 128, 64, 7), "batch": 32, "optimizer": "adam"},
    {"layers": (20, 33, 1), "batch": 16, "opt": "bf16,sr", "momentum": 0.9, "loss": "mse"},
    {"layers": (13, 40, 7), "batch": 16, "opt": "fp16", "activation": "gelu"}], ids=str)
def test_members_of_launches_are_single_runs(opened: Opened, options: dict[str, Any]) -> None:
    check(opened, group_of(5, 300, **options), "launches")
    check(opened, folded(4, **{**options, "batch": 8}), "launches")


@pytest.mark.parametrize("options", [
    {"opt": "tf32"}, {}, {"opt": "bf16", "loss": "mse"}, {"optimizer": "adam", "opt": "fp16"}],
    ids=str)
def test_members_that_read_rows_by_index_are_single_runs(
        opened: Opened, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexed_inputs, "LEAST_BYTES", 0)
    group = group_of(5, 300, layers=(784, 128, 10), batch=128, **options)
    plans = launch_plans(group, opened.machine, "", 1)
    assert any(t.role is Role.ROUNDED for t in plans.start.tensors.values())
    check(opened, group, "launches")


def test_lists_of_different_lengths(opened: Opened) -> None:
    check(opened, uneven(6, (37, 40, 23), (13, 3, 20), optimizer="adam"))


@pytest.mark.parametrize(("opt", "unit"), [("preload", 1e-5), ("tf32", 1e-3), ("bf16", 1e-2)])
@pytest.mark.parametrize("count", [3, 140])
@pytest.mark.parametrize(("layers", "batch"), [((5, 7, 54, 105, 10), 188),
                                               ((4, 95, 20, 29, 10), 220)])
def test_members_of_uneven_widths_train_as_the_host(
        opened: Opened, layers: tuple[int, ...], batch: int, count: int, opt: str,
        unit: float) -> None:
    """Few networks have clusters each, of which some blocks have no rows of a layer; many have one
    full block, where rows of padding must stay zero."""
    group = group_of(count, 2 * batch, layers=layers, batch=batch, opt=opt, optimizer="adam",
                     lr=1e-3, activation="tanh", device="gpu")
    trainer = kind_of(group, opened, "")(group, opened, sharding="")
    trainer.run(np.arange(count, dtype=np.int32), group.members[0].epochs)
    scores = trainer.scores()
    trainer.close()
    for member in (0, 1, count - 1):
        config = replace(group.members[member], device="host",
                         opt="preload" if opt == "tf32" else opt)
        with Session(config, data=group.dataset_of(0)) as session:
            history = session.run().history
        np.testing.assert_allclose(scores.train_loss[member], [r.train_loss for r in history],
                                   rtol=unit)
