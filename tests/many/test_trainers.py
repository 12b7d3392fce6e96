"""Who trains the members of a group, and with what: each class only notes what it is given."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rawnn.many import gpu, launches, trainers
from rawnn.many.member_plans import SharedPlans
from rawnn.many.trainers import OnDevice, trainer_of, trainers_of
from rawnn.persistent.problem import Unsupported


class Group(list[int]):
    """Members, and how they are configured."""

    config = SimpleNamespace(sharding="2x1:64:FF", network=lambda: "4-3")


class Made:
    """Stands for an object of a class."""

    def __init__(self, name: str, given: tuple[Any, ...], more: dict[str, Any]) -> None:
        self.name, self.given, self.more = name, given, more

    def __eq__(self, other: object) -> bool:
        return (self.name, self.given, self.more) == other


@pytest.fixture(autouse=True)
def classes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """All that train, by name."""
    found = {name: lambda *given, name=name, **more: Made(name, given, more)
             for name in ("HostMembers", "RankMembers", "SpreadMembers", "WorkerPool",
                          "MovableMembers", "PartedMembers", "SessionMembers", "GpuMembers")}
    for name, made in found.items():
        monkeypatch.setattr(gpu if name == "GpuMembers" else trainers, name, made)
    return found


def on(device: Any) -> Any:
    return SimpleNamespace(device=device)


def silent(message: str) -> None:
    pass


GROUPS: Any = (Group([1, 2, 3]), Group([4]), Group([5, 6]))


@pytest.mark.parametrize(("team", "processes"), [
    (None, 1), (SimpleNamespace(place=SimpleNamespace(local_size=3)), 3)])
def test_groups_on_the_host_share_one_pool(team: Any, processes: int) -> None:
    made: Any = list(trainers_of(GROUPS, on(None), silent, (), team))
    if team is None:
        pools = [each.given[3] for each in made]
        assert [each.given[:3] for each in made] == [(g, on(None), silent) for g in GROUPS]
    else:  # each rank has the groups begin at another one
        assert [each.name for each in made] == ["RankMembers"] * 3
        assert [(*each.given[:3], *each.given[4:]) for each in made] == [
            (group, on(None), team, silent, len(group), dealt)
            for group, dealt in zip(GROUPS, (0, 3, 4), strict=True)]
        own = [each.given[3](GROUPS[0], on(None), silent, 2) for each in made]
        assert {each.name for each in own} == {"HostMembers"}
        pools = [each.given[3] for each in own]
    assert pools[0] == ("WorkerPool", (), {"processes": processes})
    assert all(pool is pools[0] for pool in pools)


@pytest.mark.parametrize("together", [True, False])
def test_several_gpus_share_plans_and_each_the_arrays_of_its_groups(
        monkeypatch: pytest.MonkeyPatch, classes: dict[str, Any], together: bool) -> None:
    asked: list[Any] = []

    def kind_of(*given: Any) -> Any:
        asked.append(given)
        return classes["GpuMembers"]

    monkeypatch.setattr(launches, "kind_of", kind_of)
    gpus: Any = ["gpu 0", "gpu 1"]
    spread: Any = list(trainers_of(GROUPS, on("gpu 0"), silent, gpus, ends_together=together))
    assert [(each.name, *each.given[:2], *each.given[3:]) for each in spread] == [
        ("SpreadMembers", group, gpus, silent, len(group), dealt, together)
        for group, dealt in zip(GROUPS, (0, 3, 4), strict=True)]
    made: Any = [each.given[2](GROUPS[0], on(name), silent, 2) for name in gpus for each in spread]
    plan = asked[0][4]
    assert isinstance(plan, SharedPlans)
    assert asked == [(GROUPS[0], on(name), "2x1:64:FF", 2, plan) for name in gpus for _ in spread]
    residents = [each.given[2] for each in made]
    arrays = [each.given[1]("").more["shared"] for each in made]
    for shared in (residents, arrays):
        assert all(own is shared[0] for own in shared[:3])
        assert all(own is shared[3] for own in shared[3:])
        assert shared[0] is not shared[3]


@pytest.mark.parametrize("shared", [None, {}])
@pytest.mark.parametrize("is_one_kernel", [True, False])
def test_a_gpu_trains_all_members_by_one_kernel_or_parts_by_launches(
        monkeypatch: pytest.MonkeyPatch, classes: dict[str, Any], is_one_kernel: bool,
        shared: dict[Any, OnDevice] | None) -> None:
    """A trainer that is made again, elsewhere, has the sharding of the first and is silent."""
    kind: Callable[..., Made] = classes["GpuMembers"] if is_one_kernel else \
        lambda *given, **more: Made("launches", given, more)
    name = "GpuMembers" if is_one_kernel else "launches"
    monkeypatch.setattr(launches, "kind_of", lambda *given: kind)
    monkeypatch.setattr(launches, "parts_of", lambda group, opened: [group[:2], group[2:]])
    plan: Any = object()
    made: Any = trainer_of(GROUPS[0], on("gpu"), silent, 5, shared=shared, plan=plan)
    if not is_one_kernel:
        assert made.name == "PartedMembers"
        assert made.given[:2] == (GROUPS[0], [[1, 2], [3]])
        made = made.given[2](GROUPS[0])
    arrays = None
    if shared is not None:
        arrays = shared["gpu"].arrays
        assert (made.name, made.given[0], *made.given[2:]) == (
            "MovableMembers", 3, shared["gpu"].residents, silent)
        again = made.given[1]("3x1:64:FF").more
        assert again["sharding"] == "3x1:64:FF"
        assert again["notify"] is not silent
        made = made.given[1]("")
    assert made == (name, (GROUPS[0], on("gpu")), {
        "notify": silent, "sharding": "2x1:64:FF", "at_once": 5, "shared": arrays,
        "plan": plan if is_one_kernel else None})


@pytest.mark.parametrize(("members", "words"), [([1], "1 member"), ([1, 2], "2 members")])
def test_members_that_no_kernel_trains_train_launch_by_launch(
        monkeypatch: pytest.MonkeyPatch, members: list[int], words: str) -> None:
    def refuse(*given: Any) -> None:
        raise Unsupported("has one layer", "")

    said: list[str] = []
    monkeypatch.setattr(launches, "kind_of", refuse)
    shared: dict[Any, OnDevice] = {}
    group: Any = Group(members)
    made: Any = trainer_of(group, on("gpu"), said.append, shared=shared)
    assert made == ("SessionMembers", (group, on("gpu"), said.append, shared["gpu"].residents), {})
    assert said == [f"{words} of 4-3 train launch by launch, 4 side by side at most, since no "
                    f"kernel trains them at once: the step has one layer"]
