"""Members whose steps are launches of all of them, on the simulated GPU: bit for bit what single
runs with the sharding `launches` come to, in any number, order and company."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rawnn.engine.machine import Opened
from rawnn.engine.training import Session
from rawnn.many.launches import LaunchMembers, kind_of
from rawnn.many.members import Group, MemberTrainer
from rawnn.many.parts import PartedMembers
from rawnn.many.trainers import trainer_of
from rawnn.persistent.problem import Unsupported
from tests.many.test_gpu_members import folded, group_of, opened, uneven

__all__ = ["opened"]


def check(trainer: MemberTrainer, group: Group, member: int, epochs: int) -> None:
    """A member is what a single run of its config with this sharding comes to on its data."""
    data = group.dataset_of(int(group.fold[member]))
    config = replace(group.members[member], device="sim", sharding=trainer.sharding)
    with Session(config, data=data) as session:
        found = session.run()
        single = session.runner.state()
    state = trainer.state(np.array([member], np.int32))
    assert state["epoch"][0] == epochs
    for name, value in single.items():
        assert np.array_equal(state[name][0], value), name
    scores = trainer.scores()
    assert list(scores.train_loss[member, :epochs]) == [r.train_loss for r in found.history]
    for epoch, report in enumerate(found.history):
        np.testing.assert_allclose(scores.validation_loss[member, epoch], report.test_loss,
                                   rtol=1e-5)
        np.testing.assert_equal(scores.validation_score[member, epoch], report.test_accuracy)


KINDS: list[dict[str, Any]] = [
    {"optimizer": "adam", "weight_decay": 0.01}, {"momentum": 0.9, "schedule": "constant"},
    {"loss": "mse", "schedule": "warmup:1,step:1:0.5"}, {"shuffle": False, "partial": False},
    {"layers": (13, 4), "loss": "bce", "schedule": "constant"}, {"layers": (13, 4)},
    {"opt": "tf32", "activation": "gelu", "bias": False}, {"opt": "bf16,sr", "optimizer": "adam"},
    {"opt": "fp16"}, {"opt": "fp8"},
]


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_a_member_is_a_single_run(opened: Opened, options: dict[str, Any]) -> None:
    group = group_of(5, **options)
    trainer = LaunchMembers(group, opened)
    assert trainer.sharding == "launches"
    trainer.run(np.arange(5, dtype=np.int32), 2)
    trainer.run(np.array([1, 4], np.int32), 1)
    for member in (1, 4):
        check(trainer, group, member, 3)
    scores = trainer.scores()
    assert scores.train_loss.shape == scores.validation_loss.shape == (5, 3)
    assert np.isnan(scores.train_loss[[0, 2, 3], 2]).all()
    assert np.isfinite(scores.train_loss[:, :2]).all()
    trainer.close()


@pytest.mark.parametrize("options", [
    {"optimizer": "adam"}, {"loss": "mse", "shuffle": False, "layers": (13, 9, 1)}], ids=str)
def test_members_of_folds(opened: Opened, options: dict[str, Any]) -> None:
    group = folded(4, **options)
    trainer = LaunchMembers(group, opened)
    trainer.run(np.arange(4, dtype=np.int32), 3)
    for member in (0, 3):
        check(trainer, group, member, 3)
    trainer.close()


def test_epochs_of_several_graphs(opened: Opened) -> None:
    group = group_of(2, 8 * 70 + 3, epochs=1)
    trainer = LaunchMembers(group, opened)
    trainer.run(np.arange(2, dtype=np.int32), 1)
    check(trainer, group, 1, 1)
    trainer.close()


@pytest.mark.parametrize("count", [1, 2, 133])
def test_the_number_of_members_changes_nothing(opened: Opened, count: int) -> None:
    group = group_of(count, 11, epochs=1, layers=(5, 3))
    trainer = LaunchMembers(group, opened)
    trainer.run(np.arange(count, dtype=np.int32), 1)
    for member in {0, count // 2, count - 1}:
        check(trainer, group, member, 1)
    trainer.close()


def test_members_go_on_from_a_state(opened: Opened) -> None:
    group = group_of(4, optimizer="adam", opt="bf16")
    whole, first, second = (LaunchMembers(group, opened) for _ in range(3))
    every = np.arange(4, dtype=np.int32)
    whole.run(every, 3)
    first.run(every, 2)
    second.load(np.array([3, 1], np.int32), first.state(np.array([3, 1], np.int32)))
    second.run(np.array([1, 3], np.int32), 1)
    wanted, found = (t.state(np.array([1, 3], np.int32)) for t in (whole, second))
    for name, value in wanted.items():
        assert np.array_equal(found[name], value), name
    assert np.array_equal(second.scores().train_loss[[1, 3], 0],
                          whole.scores().train_loss[[1, 3], 2])
    for trainer in (whole, first, second):
        trainer.close()


def test_lists_of_different_lengths_are_parts(opened: Opened) -> None:
    group = uneven(6, (37, 40, 23), (13, 10, 11), optimizer="adam", sharding="launches")
    trainer = trainer_of(group, opened, lambda message: None, shared={})
    assert isinstance(trainer, PartedMembers)
    trainer.run(np.arange(6, dtype=np.int32), 2)
    first = trainer.state(np.array([4, 0, 2], np.int32))
    trainer.run(np.array([0, 2, 4], np.int32), 1)
    for member in (4, 0, 2):
        check(trainer, group, member, 3)
    assert np.isnan(trainer.scores().train_loss[[1, 3, 5], 2]).all()
    trainer.load(np.array([4, 0, 2], np.int32), first)
    trainer.run(np.array([0, 2, 4], np.int32), 1)
    check(trainer, group, 2, 3)
    trainer.close()


def test_what_memory_does_not_hold_trains_in_parts(opened: Opened,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    group = group_of(5, sharding="launches", opt="bf16")
    assert opened.device is not None
    monkeypatch.setattr(opened.device, "info", replace(opened.device.info, memory=50_000))
    monkeypatch.setattr(type(opened.device), "free_memory", lambda device: 40_000)
    trainer = trainer_of(group, opened, lambda message: None, shared={})
    assert isinstance(trainer, PartedMembers)
    assert len(trainer._trainers) > 1
    trainer.run(np.arange(5, dtype=np.int32), 3)
    for member in (0, 4):
        check(trainer, group, member, 3)
    trainer.close()


@pytest.mark.parametrize(("layers", "members", "options", "kind"), [
    ((784, 512, 512, 10), 16, {}, "LaunchMembers"), ((784, 512, 512, 10), 1, {}, ""),
    ((784, 128, 10), 1056, {"opt": "tf32"}, "LaunchMembers"),
    ((784, 10), 1000, {}, "GpuMembers"), ((20, 64, 64, 3), 4096, {}, "GpuMembers"),
    ((784, 128, 10), 1056, {"sharding": "8x1:256:SFF:4"}, "GpuMembers"),
    ((784, 128, 10), 1056, {"opt": "persistent=8x1:256:SFF:4"}, "GpuMembers"),
])
def test_the_faster_kind_is_chosen(opened: Opened, layers: tuple[int, ...], members: int,
                                   options: dict[str, Any], kind: str) -> None:
    group = group_of(1, 1280, layers=layers, batch=128, **options)
    group = replace(group, members=group.members * members, fold=np.zeros(members, np.int32))
    if kind:
        assert kind_of(group, opened, group.config.sharding or "").__name__ == kind
    else:
        with pytest.raises(Unsupported, match="fits neither a block nor a cluster"):
            kind_of(group, opened, "")
