"""The search among sets of toggles: which are tried, what counts, what is kept."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rawnn.common.errors import MissingLibrary
from rawnn.cuda.device import Device
from rawnn.engine.machine import machine_of
from rawnn.engine.runners.prepared_run import PreparedRun
from rawnn.model.layers import Network
from rawnn.model.optimizers import Optimizer
from rawnn.opts import TOGGLES, select
from rawnn.opts.registry import Machine
from rawnn.plan.recipe import Recipe
from rawnn.tuning import search
from rawnn.tuning.search import (
    Search,
    Task,
    axes,
    changed,
    fits,
    format_toggles,
    random_data,
    shortened,
)
from tests.engine import CAPABLE, dataset_for

NETWORK = Network((20, 16, 5))


@pytest.fixture
def task(device: Device, monkeypatch: pytest.MonkeyPatch) -> Task:
    monkeypatch.setattr(search, "STEPS", 4)
    monkeypatch.setattr(search, "MEASURED_MS", 0.1)
    return Task.of(NETWORK, Recipe(8, Optimizer()), "bf16", None, machine_of(device))


def planted(monkeypatch: pytest.MonkeyPatch, cost: dict[str, float]) -> None:
    """Times by toggle in place of measured ones; a negative one cannot run."""

    prepared: list[str] = []

    def times(self: Search, work: PreparedRun) -> list[float]:
        costs = [cost.get(word, 0.0) for word in prepared[-1].split(",")]
        total = 100.0 + sum(costs)
        if min(costs) < -1000:
            raise MissingLibrary("not installed")
        return [total - 1, total, total + 2]

    prepare = Task.prepare

    def remembered(self: Task, toggles: str) -> PreparedRun:
        prepared.append(toggles)
        return prepare(self, toggles)

    monkeypatch.setattr(Task, "prepare", remembered)
    monkeypatch.setattr(Search, "_times", times)


class Epochs:
    """In place of a runner: the first epoch takes `first` milliseconds, others half of that."""

    def __init__(self, first: float, ran: list[int]) -> None:
        self.first, self.ran, self.milliseconds = first, ran, list[float]()

    def epoch(self, measured: bool) -> None:
        self.milliseconds.append(self.first / 2 if self.milliseconds else self.first)

    def epoch_milliseconds(self) -> list[float]:
        return list(self.milliseconds)

    def time_each_epoch(self) -> None:
        pass

    def close(self) -> None:
        self.ran.append(len(self.milliseconds))


@pytest.mark.parametrize(("first", "fastest", "epochs"), [
    (6.0, 0.0, 10), (0.001, 0.0, 400), (1e-9, 0.0, 400), (100.0, 0.0, 5), (6.0, 600.0, 10),
    (6.0, 500.1, 10), (6.0, 499.9, 0), (6.0, 1.0, 0)])
def test_a_set_is_measured_for_a_while_unless_it_is_far_slower(
        device: Device, monkeypatch: pytest.MonkeyPatch, first: float, fastest: float,
        epochs: int) -> None:
    """Sixty milliseconds in 5 to 400 epochs behind one that warms up; of 4 steps each. A first
    epoch of more than three times the fastest set's time a step is all that is measured."""
    monkeypatch.setattr(search, "STEPS", 4)
    ran: list[int] = []
    monkeypatch.setattr(search, "GpuRunner", lambda device, work: Epochs(first, ran))
    found = Search(device, Task.of(NETWORK, Recipe(8, Optimizer()), "", None, machine_of(device)))
    if fastest:
        found.found["fuse"] = search.Measured("fuse", us=fastest)
    work: Any = SimpleNamespace(steps=4)
    times = found._times(work)
    assert ran == [1 + epochs]
    assert times == ([pytest.approx(first / 2 * 1e3 / 4)] * epochs if epochs else
                     [pytest.approx(first * 1e3 / 4)])


def test_sets_are_spelled_in_the_order_of_the_registry() -> None:
    assert format_toggles(["pdl", "fuse", "", "mma=sync"]) == "mma=sync,fuse,pdl"
    assert changed("mma=sync,fuse,pdl", search.GEMM_TOGGLES, "cublas") == "cublas,fuse,pdl"
    assert changed("cublas,fuse", search.OVERLAP_TOGGLES,
                   "streams,pdl") == "cublas,fuse,streams,pdl"
    assert changed("cublas,fuse,streams,pdl", search.OVERLAP_TOGGLES, "") == "cublas,fuse"
    assert changed("fuse", search.FUSION, "") == ""


def test_what_cannot_run_here_is_not_varied() -> None:
    old = Machine(None, (7, 5), 13000, lambda package: False)
    assert axes(old)[:3] == [("tiled", ""), ("", "streams"), ("", "fuse")]
    wanted = axes(CAPABLE)
    assert wanted[:3] == [search.GEMM_TOGGLES, search.OVERLAP_TOGGLES, search.FUSION]
    varied = {word for choices in wanted for choice in choices for word in choice.split(",")}
    kernels = {n for n, t in TOGGLES.items() if t.group == "kernels"}
    assert kernels - {"tune"} <= varied


@pytest.mark.parametrize(("cost", "best"), [
    ({"fuse": -10, "pdl": -5, "streams": 3, "cublas": 20}, "fuse,pdl"),
    ({"fuse": -10, "cublas": -20, "pdl": 3, "cudnn": -2, "streams": 1}, "cublas,cudnn,fuse"),
    ({"fuse": 10, "mma": -20, "pdl": 3, "cudnn": 5, "streams": -1}, "mma,streams"),
    ({"fuse": -9, "mma": -20, "mma=sync": -9999, "cublas": -9999, "pdl": 2, "streams": 2},
     "mma,fuse"),
])
def test_the_fastest_set_is_found(device: Device, task: Task, monkeypatch: pytest.MonkeyPatch,
                                  cost: dict[str, float], best: str) -> None:
    planted(monkeypatch, cost)
    found = Search(device, task)
    found.run()
    fastest = found.fastest()[0]
    kept = {word for word in fastest.toggles.split(",") if word in cost or word in best}
    assert kept == set(best.split(","))
    assert fastest.low <= fastest.us <= fastest.high
    assert fastest.us == 100 + sum(cost.get(word, 0.0) for word in fastest.toggles.split(","))
    refused = [m for m in found.found.values() if m.refusal]
    assert bool(refused) == (-9999 in cost.values())
    assert all(search.gemm_toggle(words) != search.gemm_toggle(fastest.toggles)
               for words in found.others())


def test_large_gemms_are_tried_with_cublas_one_shape_after_the_other(
        device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of five shapes are faster by cuBLASLt, which the model does not expect of so small ones;
    of the two layers of one shape both move."""
    monkeypatch.setattr(search, "STEPS", 4)
    monkeypatch.setattr(search, "LARGE_GEMM", 8 * 16 * 16)
    network = Network((20, 16, 16, 16, 5))
    forward, both = "fc2.forward+fc3.forward", "fc2.forward+fc3.forward+fc1.weight_grad"
    planted(monkeypatch, {"mma": -50, "pdl": 1, "streams": 1, "fuse": -1, f"cublas={forward}": -5,
                          f"cublas={both}": -9, "cublas": 9})
    found = Search(device, Task.of(network, Recipe(8, Optimizer()), "bf16", None,
                                   machine_of(device)))
    found.run()
    assert found.fastest()[0].toggles == f"mma,cublas={both},fuse"
    tried = {word for toggles in found.found for word in toggles.split(",")}
    assert "cublas=fc4.forward" not in tried  # 5 columns: not large
    assert search.gemm_toggle(f"mma,cublas={both},fuse") == "mma,cublas=auto"


def test_training_is_measured_and_the_device_left_clean(device: Device, task: Task) -> None:
    messages = []
    found = Search(device, task, messages.append)
    found.run()
    assert [m.toggles for m in messages] == list(found.found)
    assert all(m.us > 0 for m in found.fastest())
    assert any(m.same_as is not None for m in found.found.values())  # mma=sync, where auto is it


def test_toggles_are_selected_for_the_batch_that_is_measured(
        task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(search, "select", lambda words, network, steps, machine, **more: (
        asked.append((words, network, steps, machine, more)),
        select(words, network, steps, machine, **more))[1])
    task.prepare("mma,fuse")
    assert asked == [("preload,arena,nosync,mma,fuse,bf16,graphs=epoch", NETWORK, 4, task.machine,
                      {"batch": 8})]


def test_of_sets_with_one_plan_the_shortest_is_named(device: Device, task: Task) -> None:
    tuned = Search(device, task)
    for toggles, us, same_as in (("tiled,fuse", 5.0, None), ("fuse", 0.0, "tiled,fuse"),
                                 ("tiled,fuse,pdl", 0.0, "tiled,fuse"), ("cublas", 7.0, None)):
        tuned.found[toggles] = search.Measured(toggles, us=us, same_as=same_as)
    tuned._shorten("tiled,fuse")
    tuned._shorten("cublas")
    assert [(m.toggles, m.us) for m in tuned.fastest()] == [("fuse", 5.0), ("cublas", 7.0)]
    assert {m.same_as for m in tuned.found.values()} == {None, "fuse"}
    library = "cublas=fc1.forward+fc2.forward"  # one toggle, of more letters
    tuned.found = {"mma,pdl": search.Measured("mma,pdl", 7.0, 6.0, 9.0),
                   library: search.Measured(library, same_as="mma,pdl")}
    tuned._shorten("mma,pdl")
    assert tuned.found == {"mma,pdl": search.Measured("mma,pdl", same_as=library),
                           library: search.Measured(library, 7.0, 6.0, 9.0)}


def test_what_was_found_outlives_an_interruption(device: Device, task: Task,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    def tell(found: search.Measured) -> None:
        if len(tuned.found) == 3:
            raise KeyboardInterrupt

    tuned = Search(device, task, tell)
    with pytest.raises(KeyboardInterrupt):
        tuned.run()
    assert len(tuned.fastest()) >= 1


def test_a_hopeless_set_is_measured_once(device: Device, task: Task,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = Search(device, task)
    tuned.found["x"] = search.Measured("x", us=1e-6)
    assert len(tuned._times(task.prepare("fuse"))) == 1


def test_data_are_as_long_as_a_measurement_needs() -> None:
    data = dataset_for(NETWORK, 30, 20)
    longer = shortened(data, 70)
    assert len(longer.train_images) == 70
    assert longer.train_labels is not None
    assert data.train_labels is not None
    assert np.array_equal(longer.train_labels[30:60], data.train_labels)
    assert len(longer.test_images) == 16
    for loss in ("cross_entropy", "mse", "bce"):
        network = replace(NETWORK, loss=loss)
        made = random_data(network, 50)
        assert fits(network, made)
        assert not fits(Network((21, 5)), made)
    assert not fits(replace(NETWORK, loss="mse"), data)


def test_large_networks_take_fewer_steps() -> None:
    steps = [len(Task.of(Network((n, n, n)), Recipe(64), "", None, CAPABLE).data.train_images) // 64
             for n in (16, 2048)]
    assert steps == [search.STEPS, search.STEPS]
    big = Task.of(Network((512, 8192, 8192)), Recipe(256), "", None, CAPABLE)
    assert 5 <= big.recipe.steps(len(big.data.train_images)) < search.STEPS
