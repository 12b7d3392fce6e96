"""Members whose products read rows of shared inputs by index, on the simulated GPU: which do, and
that they are single runs bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rawnn.data.normalise import Normalisation
from rawnn.engine.machine import Opened
from rawnn.many import indexed_inputs
from rawnn.many.launch_plans import LaunchPlans, launch_plans
from rawnn.many.launches import LaunchMembers
from rawnn.many.members import Group
from rawnn.plan.ops.each_member import INDEXED
from rawnn.plan.tensor import Role
from tests.many.test_gpu_members import check, folded, group_of, opened

__all__ = ["opened"]


def copies_of(plans: LaunchPlans) -> list[tuple[str, tuple[int, ...], int]]:
    """Name, shape and pitch of the copies of inputs."""
    return [(t.name, t.shape, t.ld) for t in plans.start.tensors.values()
            if t.role is Role.ROUNDED]


def unlike(group: Group) -> Group:
    """With lists of rows that have the inputs' own values in common."""
    same = Normalisation.of("none", group.dataset.train_images)
    return replace(group, normalisations=(same,) * len(group.normalisations))


@pytest.mark.parametrize("options", [
    {"optimizer": "adam", "weight_decay": 0.01}, {"opt": "tf32", "loss": "mse"},
    {"opt": "bf16,sr"}, {"opt": "fp16"}, {"opt": "fp8"}, {"normalise": "learned"}], ids=str)
def test_they_are_single_runs(opened: Opened, options: dict[str, Any],
                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexed_inputs, "LEAST_BYTES", 0)
    group = group_of(8, **options)
    trainer = LaunchMembers(group, opened)
    assert copies_of(trainer._launched)
    trainer.run(np.arange(8, dtype=np.int32), 2)
    trainer.run(np.array([1, 4], np.int32), 1)
    for member in (1, 4):
        check(trainer, group, member, 3)
    trainer.close()


def test_lists_of_rows(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexed_inputs, "LEAST_BYTES", 0)
    group = unlike(folded(8, optimizer="adam"))
    trainer = LaunchMembers(group, opened)
    assert copies_of(trainer._launched)
    trainer.run(np.arange(8, dtype=np.int32), 3)
    for member in (0, 3):
        check(trainer, group, member, 3)
    trainer.close()


def test_what_a_step_has_then(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """43 rows in place of 8 batches of 8; the partial batch reads the same copy."""
    monkeypatch.setattr(indexed_inputs, "LEAST_BYTES", 0)
    plans = launch_plans(group_of(8), opened.machine, "", 1)
    assert copies_of(plans) == [("images.float32", (43, 13), 16)]
    for part in (plans.training.whole, plans.training.partial):
        gather, forward = part.ops[0], part.ops[1]
        assert not {"images", "x"} & gather.operands.keys()
        assert forward.operands["a"] == "images.float32"
        read = [op.name for op in part.ops if INDEXED in op.attributes["stacks"].values()]
        assert read == ["fc1.forward", "fc1.weight.sgd"]
        assert not {name for name in part.tensors if name.endswith("x")}
    (copied,) = plans.start.find(kind="gather")
    assert (copied.operands["images"], copied.operands["x"]) == ("images", "images.float32")


@pytest.mark.parametrize(("members", "options"), [
    (5, {}), (8, {"shuffle": False}), (8, {"opt": "bf16", "layers": (13, 4)})],
    ids=["a larger copy", "no order", "another kernel reads inputs"])
def test_who_gathers(opened: Opened, members: int, options: dict[str, Any],
                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexed_inputs, "LEAST_BYTES", 0)
    plans = launch_plans(group_of(members, **options), opened.machine, "", 1)
    assert not copies_of(plans)
    assert any("x" in op.operands for op in plans.training.whole.ops if "gather" in op.name)


def test_lists_with_normalisations_of_their_own_gather(opened: Opened,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexed_inputs, "LEAST_BYTES", 0)
    assert not copies_of(launch_plans(folded(8), opened.machine, "", 1))


@pytest.mark.parametrize(("members", "copied"), [(1056, True), (82, True), (81, False)])
def test_as_many_as_l2_does_not_hold(opened: Opened, members: int, copied: bool) -> None:
    """A batch of 128 rows of 800 floats is 409,600 bytes: those of 81 are less than 32 MiB."""
    group = group_of(1, 300, layers=(784, 32, 10), batch=128, opt="tf32")
    group = replace(group, members=group.members * members, fold=np.zeros(members, np.int32))
    assert bool(copies_of(launch_plans(group, opened.machine, "", 1))) == copied
