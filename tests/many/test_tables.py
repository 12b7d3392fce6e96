"""Tables of many networks, against what each member's history says row by row: members that stop,
diverge or never begin among them."""

from __future__ import annotations

import math
from statistics import fmean, pstdev
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from rawnn.many.progress import FIGURES, Progress, Status, best_of
from rawnn.many.result import Many
from tests.bench.built import place

CONFIGURATIONS, LISTS, EPOCHS = 5, 3, 6
MEMBERS = CONFIGURATIONS * LISTS


class Stored(SimpleNamespace):
    """As much of a checkpoint as tables touch."""

    def __len__(self) -> int:
        return MEMBERS


def many(seed: int, monitor: str, has_accuracy: bool = True) -> Many:
    generator = np.random.default_rng(seed)
    run = Progress.new(MEMBERS, EPOCHS)
    run.epoch = generator.integers(0, EPOCHS + 1, MEMBERS)
    run.status = generator.integers(0, len(Status), MEMBERS).astype(np.int32)
    run.rung = generator.integers(0, 3, MEMBERS).astype(np.int32)
    for member, epochs in enumerate(run.epoch):
        run.history[member, :epochs] = np.round(generator.uniform(0, 1, (epochs, 3)), 1)
        if epochs and generator.random() < 0.3:
            run.history[member, generator.integers(epochs), :2] = math.nan
        if epochs and generator.random() < 0.5:
            run.best_epoch[member] = generator.integers(1, epochs + 1)
    if not has_accuracy:
        run.history[:, :, 2] = math.nan
    rates = np.repeat(np.round(generator.uniform(0, 1, CONFIGURATIONS), 3), LISTS).tolist()
    stored = Stored(
        run=run.arrays(), fold=np.tile(np.arange(LISTS), CONFIGURATIONS),
        candidate=np.repeat(np.arange(CONFIGURATIONS), LISTS), epoch=EPOCHS,
        configs=[{"lr": rate, "layers": [4, 8 + n // LISTS, 3], "seed": 1}
                 for n, rate in enumerate(rates)],
        settings={"monitor": monitor, "varied": ["lr", "layers"], "rungs": [2, 4],
                  "seconds": 4.5, "steps": 900}, facts={"dataset": "mine"},
        group=np.zeros(MEMBERS, np.int32), groups=[SimpleNamespace(sharding="1x1:32:FFF")])
    return Many(cast(Any, stored), environment=place(), interrupted=True, notes=("a note",))


def ended_with(run: Progress, member: int) -> int:
    """The epoch whose parameters a member has: 0 for none."""
    if run.best_epoch[member]:
        return int(run.best_epoch[member])
    return 0 if run.status[member] == Status.DIVERGED else int(run.epoch[member])


def reached(run: Progress, member: int, figure: str) -> float:
    epoch = ended_with(run, member)
    return float(run.history[member, epoch - 1, FIGURES.index(figure)]) if epoch else math.nan


def is_same(a: Any, b: Any) -> bool:
    return bool(np.array_equal(np.asarray(a, float), np.asarray(b, float), equal_nan=True))


CASES = [(seed, monitor) for seed in range(4) for monitor in FIGURES]


@pytest.mark.parametrize(("seed", "monitor"), CASES)
def test_a_row_is_of_one_member(seed: int, monitor: str) -> None:
    found = many(seed, monitor)
    table, run = found.table(), found.progress
    sign = -1 if monitor == "test_accuracy" else 1
    for member in range(MEMBERS):
        row = dict(zip(table.dtype.names, table[member], strict=True))
        assert row["member"] == member
        assert row["fold"] == member % LISTS
        assert row["layers"] == f"4-{8 + member // LISTS}-3"
        assert row["lr"] == found.stored.configs[member]["lr"]
        assert (row["rung"], row["epochs"]) == (run.rung[member], run.epoch[member])
        assert row["status"] == Status(int(run.status[member])).words == found[member].status
        for figure in FIGURES:
            assert is_same(row[figure], reached(run, member, figure))
        values = run.history[member, :, FIGURES.index(monitor)]
        known = [(sign * value, epoch) for epoch, value in enumerate(values, 1)
                 if not math.isnan(value)]
        value, epoch = min(known, default=(math.nan, 0))
        assert row["best_epoch"] == epoch
        assert is_same(row[f"best_{monitor}"], sign * value)
        assert [report.epoch for report in found[member].history] == list(
            range(1, run.epoch[member] + 1))


@pytest.mark.parametrize(("seed", "monitor"), CASES)
def test_a_configuration_has_the_mean_and_deviation_over_its_lists(seed: int, monitor: str) -> None:
    found = many(seed, monitor)
    table, run = found.configurations(), found.progress
    assert len(table) == CONFIGURATIONS
    for number, row in enumerate(table):
        own = [number * LISTS + i for i in range(LISTS)]
        assert (row["configuration"], row["member"], row["members"]) == (number, own[0], LISTS)
        assert row["lr"] == found.stored.configs[own[0]]["lr"]
        assert row["rung"] == run.rung[own[0]]
        assert row["epochs"] == max(run.epoch[own])
        for figure in FIGURES:
            values = [reached(run, member, figure) for member in own]
            is_known = not any(map(math.isnan, values))
            assert row[f"mean_{figure}"] == pytest.approx(fmean(values), nan_ok=True)
            assert row[f"std_{figure}"] == pytest.approx(
                pstdev(values) if is_known else math.nan, nan_ok=True)


@pytest.mark.parametrize(("seed", "monitor"), CASES)
def test_the_best_come_first_and_those_without_a_figure_last(seed: int, monitor: str) -> None:
    found = many(seed, monitor)
    for by in (None, *FIGURES):
        figure = by or monitor
        sign = -1 if figure == "test_accuracy" else 1
        values = [sign * reached(found.progress, member, figure) for member in range(MEMBERS)]
        wanted = sorted(range(MEMBERS), key=lambda m: (math.isnan(values[m]), values[m]
                                                       if not math.isnan(values[m]) else 0, m))
        assert [member.index for member in found.best(MEMBERS, by)] == wanted
        assert [member.index for member in found.best(2, by)] == wanted[:2]


@pytest.mark.parametrize(("seed", "monitor"), CASES)
def test_what_is_printed_is_the_best_figure_of_what_is_kept(seed: int, monitor: str) -> None:
    found = many(seed, monitor)
    best = found.best(1)[0].index
    value = reached(found.progress, best, monitor)
    said = "" if math.isnan(value) else f", best {monitor} {value:.4g} of member {best}"
    assert repr(found) == f"rawnn.Many({MEMBERS} members, {EPOCHS} epochs{said}, interrupted)"


@pytest.mark.parametrize("has_accuracy", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_cv_results_have_the_scores_of_each_list_and_their_ranks(seed: int, has_accuracy: bool
                                                                 ) -> None:
    found = many(seed, "test_loss", has_accuracy)
    results, run = found.cv_results(return_train_score=True), found.progress
    for part, figure in (("test", "test_accuracy" if has_accuracy else "test_loss"),
                         ("train", "train_loss")):
        sign = 1 if figure == "test_accuracy" else -1
        grid = [[sign * reached(run, c * LISTS + i, figure) for i in range(LISTS)]
                for c in range(CONFIGURATIONS)]
        for i in range(LISTS):
            assert is_same(results[f"split{i}_{part}_score"], [row[i] for row in grid])
        means = [fmean(row) for row in grid]
        assert results[f"mean_{part}_score"] == pytest.approx(means, nan_ok=True)
        if part == "test":
            known = [-math.inf if math.isnan(mean) else mean for mean in means]
            assert results["rank_test_score"].tolist() == [
                1 + sum(other > mean + 1e-12 for other in known) for mean in known]
    assert results["mean_fit_time"] == pytest.approx([4.5 / MEMBERS] * CONFIGURATIONS)
    assert [p["layers"] for p in results["params"]] == [(4, 8 + n, 3)
                                                       for n in range(CONFIGURATIONS)]
    assert results["param_lr"].tolist() == [found.stored.configs[n * LISTS]["lr"]
                                            for n in range(CONFIGURATIONS)]


def test_to_dict_has_all_that_is_known() -> None:
    found = many(1, "test_loss")
    table, kept = found.table(), found.to_dict()
    history, environment = kept.pop("history"), kept.pop("environment")
    assert {name: np.array(values) for name, values in kept.pop("table").items()}.keys() == {
        *table.dtype.names}
    for i, name in enumerate(FIGURES):
        assert is_same(history[name], found.progress.history[:, :, i])
    assert msgspec.convert(environment, type(place())) == place()
    assert kept == {
        "schema_version": kept["schema_version"], "members": MEMBERS,
        "settings": found.stored.settings, "facts": {"dataset": "mine"},
        "shardings": ["1x1:32:FFF"], "groups": [0] * MEMBERS,
        "candidates": np.repeat(np.arange(CONFIGURATIONS), LISTS).tolist(),
        "varied": {"lr": [config["lr"] for config in found.stored.configs],
                   "layers": [f"4-{8 + n // LISTS}-3" for n in range(MEMBERS)]},
        "config": found.stored.configs[0], "network_steps_per_second": 200.0, "interrupted": True,
        "notes": ["a note"]}


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("seed", range(5))
def test_the_best_of_each_epoch_is_the_first_of_equal_ones(name: str, seed: int) -> None:
    """Infinite figures are figures, too."""
    generator = np.random.default_rng(seed)
    values = generator.choice([0.1, 0.2, 0.3, math.inf, -math.inf, math.nan], (6, 12))
    values[:, 0], values[1:, 1] = math.nan, math.nan
    found = best_of(values, name)
    for column, best in enumerate(found):
        known = [i for i in range(6) if not math.isnan(values[i, column])]
        sign = -1 if name == "test_accuracy" else 1
        assert best == min(known, key=lambda i: (sign * values[i, column], i), default=-1)
