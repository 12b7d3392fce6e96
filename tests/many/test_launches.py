"""Members whose steps are launches of all of them, on the simulated GPU: what test_gpu_members.py
does not ask of both trainers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rawnn.engine.machine import Opened
from rawnn.many import launch_plans, launches
from rawnn.many.gpu import GpuMembers
from rawnn.many.launches import LaunchMembers, kind_of
from rawnn.many.members import Group
from rawnn.many.parts import PartedMembers
from rawnn.many.trainers import trainer_of
from rawnn.persistent.problem import Unsupported
from tests.many.test_gpu_members import check, folded, group_of, opened, uneven

__all__ = ["opened"]


def test_epochs_of_several_graphs(opened: Opened) -> None:
    group = group_of(2, 8 * 70 + 3, epochs=1)
    trainer = LaunchMembers(group, opened)
    trainer.run(np.arange(2, dtype=np.int32), 1)
    check(trainer, group, 1, 1)
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


@pytest.mark.parametrize("networks", [1, 2, 3, 10, 37, 1000])
def test_graphs_are_made_for_the_smallest_size_that_holds_all_active_members(
        monkeypatch: pytest.MonkeyPatch, networks: int) -> None:
    """Sizes are seven tenths of each other, rounded down: few graphs, of few idle blocks."""
    sizes = [networks]
    while (fewer := sizes[-1] * 7 // 10) >= 1:
        sizes.append(fewer)
    made: list[int] = []
    monkeypatch.setattr(launches, "GraphProgram", lambda lowering, size, *more: made.append(size)
                        or SimpleNamespace(close=lambda: None))
    graphs = SimpleNamespace(graphs=lambda size: size)
    trainer: Any = LaunchMembers.__new__(LaunchMembers)
    trainer._group, trainer._graphs, trainer._closing = range(networks), {}, ExitStack()
    trainer._launched = SimpleNamespace(training=graphs, evaluation=graphs, end="end",
                                        scores="scores")
    trainer._lowering = trainer._addresses = None
    trainer._all = lambda plan, size: (plan, size)
    for active in (*range(1, min(networks, 40) + 1), networks):
        made.clear()
        found = trainer._of_members(active)
        size = min(size for size in sizes if size >= active)
        assert (found.end, found.scores) == (("end", size), ("scores", size))
        assert made in ([size, size], [])
    assert set(trainer._graphs) <= set(sizes)


@pytest.mark.parametrize(("make", "least"), [(group_of, 6), (folded, 1), (folded, 100)])
def test_members_are_scored_on_all_rows_in_chunks_of_any_size(
        opened: Opened, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Group], least: int
        ) -> None:
    """Of 19 rows, or 13 held out, in chunks of a batch at least; the last has what is left."""
    monkeypatch.setattr(launch_plans, "LEAST_MEASURED", least)
    group = make(3, batch=4, sharding="launches")
    trainer = LaunchMembers(group, opened)
    trainer.run(np.arange(3, dtype=np.int32), 3)
    check(trainer, group, 1, 3)
    trainer.close()


def test_the_numbers_that_are_asked_for_are_those_of_all_members(opened: Opened) -> None:
    """With their values: fp16=acc16 adds up in 16 bits."""
    for opt, sums in (("fp16", set()), ("fp16=acc16", {"float16"})):
        plans = launch_plans.launch_plans(group_of(2, opt=opt, sharding="launches"),
                                          opened.machine, "", 2)
        found = {op.attributes.get("compute") for op in plans.single.find(kind="matmul")}
        assert found & {"float16"} == sums


def test_members_say_how_they_are_trained_once(opened: Opened) -> None:
    said: list[str] = []
    group = group_of(3)
    for kind in (GpuMembers, LaunchMembers):
        trainer = kind(group, opened, notify=said.append)
        trainer.run(np.arange(3, dtype=np.int32), 1)
        trainer.close()
    by_kernel, by_launches = said
    assert by_kernel.startswith("3 members: each on 1 thread block of ")
    ops = len(launch_plans.launch_plans(group, opened.machine, "", 2).training.whole.ops)
    assert by_launches == f"3 members: {ops} launches a step, each of all, launches"


def test_a_grid_has_so_many_places_for_members(opened: Opened,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_plans, "MOST_MEMBERS", 3)
    plans = launch_plans.launch_plans(group_of(3), opened.machine, "", 7, 2)
    shapes = [{n: t.shape for n, t in plan.scores.tensors.items()} for plan in (
        plans, launch_plans.launch_plans(group_of(3), opened.machine, "", 7))]
    assert shapes[0] == shapes[1]  # however many train at once
    assert all(graph.chain for part in (plans.training, plans.evaluation)
               for graph in part.graphs(2))
    for group, why in ((group_of(4), "more than 3 members"),
                       (uneven(2, (37, 40)), "of different lengths")):
        with pytest.raises(Unsupported, match=why):
            launch_plans.launch_plans(group, opened.machine, "", 1)
