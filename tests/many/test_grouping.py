"""Members as configurations and lists of rows have them, whatever groups they are in."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rawnn.common.target import gpu_named
from rawnn.data import from_arrays
from rawnn.data.normalise import Normalisation, TargetNormalisation
from rawnn.engine.config import Config
from rawnn.many import member_plans, training
from rawnn.many.folds import folds_of
from rawnn.many.grouping import _whole, load, members_of
from rawnn.many.members import Group, group_key
from rawnn.many.variation import several

RNG = np.random.default_rng(5)
X = RNG.normal(size=(40, 3)) * (1, 20, 3) + (0, 5, 9)
Y = np.arange(40) % 2
V = RNG.normal(size=(40, 2)) * (1e3, 2) + 1e4
LISTS: dict[str, Any] = {
    "none": {}, "folds": {"folds": 3}, "repeats": {"folds": 2, "repeats": 2},
    "own folds": {"folds": [(range(25), range(25, 40)), (range(30), range(30, 40))]},
    "rows": {"rows": [range(30), range(5, 40)]}}


def drawn(seed: int, **shared: Any) -> list[Config]:
    rng = np.random.default_rng(seed)
    return [Config(layers=(3, int(rng.choice([4, 6])), 2), seed=int(rng.integers(9)), batch=8,
                   epochs=int(rng.integers(1, 9)), lr=float(rng.choice([0.1, 0.2])),
                   momentum=float(rng.choice([0, 0.5])), device="host",
                   schedule=str(rng.choice(["constant", "cosine"])), normalise="learned", **shared)
            for _ in range(7)]


def check(group: Group, place: int, config: Config, rows: Any, held_out: Any) -> None:
    member, fold = group.members[place], group.fold[place]
    assert member == replace(config, batch=member.batch, partial=member.partial)
    assert member.batch == 8
    assert member.partial is True
    assert group_key(member) == group_key(group.config)
    assert group.config.epochs == max(each.epochs for each in group.members)
    trained = np.arange(40) if rows is None else np.asarray(rows)
    if rows is not None:
        assert group.rows[fold].tolist() == list(rows)
    if held_out is not None:
        assert group.held_out[fold].tolist() == list(held_out)
        assert group.counts[fold].tolist() == [len(trained), len(held_out)]
    assert group.steps_of(place) == -(-len(trained) // 8)
    found = group.normalisations[fold].apply(X[trained])
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(found.std(axis=0), 1, atol=1e-6)
    targets = group.target_normalisations[fold]
    assert (targets is None) == (config.normalise_targets is None)
    if targets is not None:
        np.testing.assert_allclose(targets.mean, V[trained].mean(axis=0))
        np.testing.assert_allclose(targets.std, V[trained].std(axis=0))


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("has_values", [False, True])
def test_a_member_has_its_configuration_and_list_in_its_group(kind: str, seed: int,
                                                              has_values: bool) -> None:
    shared: dict[str, Any] = {"loss": "mse", "normalise_targets": "learned"} if has_values else {}
    configs, asked = drawn(seed, **shared), LISTS[kind]
    data, exact = load((X, V if has_values else Y), configs[0],
                       (X, V if has_values else Y) if "folds" not in asked else None, None,
                       "rows" if "rows" in asked else "folds" if asked else "", lambda text: None)
    lists = folds_of(asked.get("folds"), asked.get("repeats", 1), asked.get("rows"), data, seed)
    members = members_of(configs, lists, data, None, exact)
    count = len(lists)
    assert len(members) == len(configs) * count
    assert sum(map(len, members.groups)) == len(members)
    keys = [group_key(group.config) for group in members.groups]
    assert len(set(keys)) == len(keys) > 1
    rng = np.random.default_rng(seed)
    for number, group in enumerate(members.groups):
        own = np.flatnonzero(members.group == number)
        assert sorted(members.place[own]) == list(range(len(group)))
        some = np.sort(rng.choice(len(group), (len(group) + 1) // 2, replace=False))
        for part, places in ((group, np.arange(len(group))), (group.part(some), some)):
            assert len(part) == len(places)
            for at, place in enumerate(places):
                member = int(own[members.place[own] == place][0])
                assert members.candidate[member] == member // count
                assert members.fold[member] == member % count
                fold = member % count
                check(part, at, configs[member // count],
                      lists.rows[fold] if lists.rows else None,
                      lists.held_out[fold] if lists.held_out else None)


@pytest.mark.parametrize("has_values", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rows_that_were_split_off_are_put_back_in_their_places(seed: int, has_values: bool) -> None:
    x, answers = X.astype(np.float32), V.astype(np.float32) if has_values else Y
    data = from_arrays((x, answers), 0.3, seed=seed)
    assert len(data.test_images) == 12
    whole = _whole(data)
    assert whole.split is None
    for part in ("train", "test"):
        np.testing.assert_array_equal(getattr(whole, f"{part}_images"), x)
        kind = "targets" if has_values else "labels"
        np.testing.assert_array_equal(getattr(whole, f"{part}_{kind}"), answers)
    assert _whole(whole) is whole


def test_gpus_of_one_kind_share_plans_and_others_take_the_sharding_of_the_first(
        monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, ...]] = []

    def plan(group: Any, machine: Any, sharding: str, epochs: int, at_once: int | None) -> Any:
        made.append((group, machine.target, sharding, epochs, at_once))
        return SimpleNamespace(choice=SimpleNamespace(sharding=SimpleNamespace(text="chosen")))

    monkeypatch.setattr(member_plans, "member_plans", plan)
    shared, (one, other) = member_plans.SharedPlans(), (
        SimpleNamespace(target=gpu_named(name)) for name in ("H100", "H200"))
    group: Any = object()
    first = shared(group, one, "", 5, None)
    second = shared(group, other, "", 5, None)
    assert first is not second
    for _ in range(2):
        assert shared(group, one, "", 5, None) is first
        assert shared(group, other, "", 5, None) is second
    for different in ((object(), one, "", 5, None), (group, one, "own", 5, None),
                      (group, one, "", 6, None), (group, one, "", 5, 2)):
        found = shared(*different)  # type: ignore[arg-type]
        assert found is not first
        assert found is not second
    assert made[:2] == [(group, one.target, "", 5, None), (group, other.target, "chosen", 5, None)]
    assert [call[2:] for call in made[2:]] == [
        ("", 5, None), ("own", 5, None), ("", 6, None), ("", 5, 2)]


@pytest.mark.parametrize("name", ["opt", "target", "skip"])
def test_a_list_of_words_is_one_value_of_such_options(name: str) -> None:
    assert several(name, ["a", "b"]) is None
    assert several("loss", ["mse", "bce"]) == ("mse", "bce")


@pytest.mark.parametrize(("value", "values"), [
    (0.5, None), (np.float32(0.5), None), (np.array(0.5), None), (np.array([0.5]), (0.5,)),
    ([0.5], (0.5,)), (np.array([0.5, 0.25]), (0.5, 0.25)), (range(2), (0, 1))])
def test_what_has_a_dimension_is_a_list_of_values(value: Any, values: tuple[float, ...] | None
                                                  ) -> None:
    assert several("lr", value) == values


@pytest.mark.parametrize("before", [None, TargetNormalisation(np.array([3.0, -1.0]),
                                                               np.array([2.0, 5.0]))])
@pytest.mark.parametrize("held_out", [True, False])
@pytest.mark.parametrize("normalised", [True, False])
def test_the_data_of_a_list_are_its_rows_in_its_own_units(
        before: TargetNormalisation | None, held_out: bool, normalised: bool) -> None:
    """Each list has learned means of its own; what is scored is held out, or the data set's own
    test part, whose values may have been normalised before."""
    test = V[:9] * 1.5
    data = from_arrays((X, V), validation=(X[:9] + 1, test))
    data = replace(data, target_normalisation=before, test_targets=(
        test if before is None else before.apply(test)).astype(np.float32))
    rows = (np.arange(30, dtype=np.int32), np.arange(39, 4, -2, dtype=np.int32))
    held = (np.arange(30, 40, dtype=np.int32), np.arange(5, dtype=np.int32))
    own = tuple(TargetNormalisation(V[each].mean(0), V[each].std(0)) if normalised else None
                for each in rows)
    inputs = tuple(Normalisation.of("learned", data.train_images[each]) for each in rows)
    config = Config(layers=(3, 2), loss="mse", batch=8, partial=False)
    group = Group(config, data, (config,) * 2, rows, held if held_out else (),
                  np.arange(2, dtype=np.int32), inputs, own, V)
    for fold in (0, 1):
        found, of = group.dataset_of(fold), own[fold]
        np.testing.assert_array_equal(found.train_images, X[rows[fold]].astype(np.float32))
        scored = V[held[fold]] if held_out else test
        np.testing.assert_array_equal(found.test_images, (
            X[held[fold]] if held_out else X[:9] + 1).astype(np.float32))
        for values, exact in ((found.train_targets, V[rows[fold]]), (found.test_targets, scored)):
            wanted = exact if of is None else (exact - of.mean) / of.std
            np.testing.assert_allclose(values, wanted, rtol=1e-5, atol=1e-4)
        assert found.normalisation is inputs[fold]
        assert found.target_normalisation is of


def test_each_group_that_goes_on_on_the_host_says_what_it_leaves_out(
        monkeypatch: pytest.MonkeyPatch) -> None:
    configs = [Config(layers=layers, batch=8, opt="bf16", device="host")
               for layers in ((3, 2), (3, 4, 2), (3, 5, 2))]
    data, exact = load((X, Y), configs[0], (X, Y), None, "rows", lambda text: None)
    lists = folds_of(None, 1, [range(24)], data, 0)
    members = members_of(configs, lists, data, None, exact)
    asked: list[Any] = []

    def select(opt: str, network: Any, steps: int, machine: str, **more: Any) -> int:
        asked.append((opt, network.layers, steps, machine, more["batch"], more["lenient"]))
        return len(network.layers)

    said: list[str] = []
    monkeypatch.setattr(training, "select", select)
    monkeypatch.setattr(training, "continued_on_host", lambda layers: f"{layers}" * (layers > 2))
    run: Any = SimpleNamespace(opened=SimpleNamespace(machine="its machine"), notify=said.append)
    again = training._on_host(members, run)
    assert asked == [("bf16", config.layers, 3, "its machine", 8, True) for config in configs]
    assert said == ["3", "3"]
    assert [group.is_lenient for group in again.groups] == [True] * 3
    assert not any(group.is_lenient for group in members.groups)
