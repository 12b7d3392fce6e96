"""`persistent` in the engine: trained on the host and on a simulated GPU as the plain plan is, and
chosen by `best`."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rawnn.common.errors import ConfigError
from rawnn.common.target import known
from rawnn.cuda.device import Device
from rawnn.engine.runners.gpu import GpuRunner
from rawnn.engine.runners.host import HostRunner
from rawnn.model.layers import Network
from rawnn.model.optimizers import Optimizer
from rawnn.opts import TOGGLES, Selection, select
from rawnn.opts.registry import Machine
from rawnn.plan.policy import Policy
from rawnn.plan.recipe import DataSpec, Recipe
from rawnn.sim import sim_backend
from tests.engine import (
    CAPABLE,
    dataset_for,
    make_work,
    measuring_plan,
    run_on,
    same_parameters,
    step_plan,
    trained,
)
from tests.persistent.problems import prepared

LAYERS = (29, 24, 7)
WAYS = ("persistent", "persistent,graphs=epoch", "persistent,graphs=3", "persistent,graphs=while",
        "persistent,graphs=epoch,report=2", "persistent=2x3,graphs=epoch",
        "persistent=2x2:256:FGF:2,graphs=epoch")
RECIPES: tuple[dict[str, Any], ...] = (
    {}, {"optimizer": Optimizer("adam", 1e-3), "shuffle": True, "partial": True},
    {"network_options": {"loss": "mse", "activation": "gelu"}, "schedule": "cosine"},
    {"network_options": {"loss": "bce", "bias": False}},
)


@pytest.mark.parametrize("options", RECIPES)
@pytest.mark.parametrize("opt", WAYS)
def test_it_trains_as_the_plain_plan(opt: str, options: dict[str, Any]) -> None:
    data = dataset_for(Network(LAYERS, **options.get("network_options", {})), 70, 23)
    wanted = trained(HostRunner(make_work("preload", LAYERS, data, **options)))
    work = make_work(opt, LAYERS, data, **options)
    device = Device(sim_backend(), 0)
    try:
        simulated = run_on(device, work)
    finally:
        device.close()
    for found in (simulated, trained(HostRunner(work))):
        np.testing.assert_array_equal(found.loss, wanted.loss)
        np.testing.assert_array_equal(found.correct, wanted.correct)
        same_parameters(found, wanted)


def test_the_partial_batch_is_a_step_of_the_same_op() -> None:
    data = dataset_for(Network(LAYERS), 70, 23)
    work = make_work("persistent,graphs=epoch", LAYERS, data, partial=True)
    assert work.partial is None
    assert work.steps == work.updates == 9
    assert [work.examples_of(step) for step in (0, 7, 8)] == [8, 8, 6]
    few = make_work("persistent", LAYERS, data, batch=100, partial=True)  # no whole batch
    assert few.partial is not None
    assert few.steps == 0


@pytest.mark.parametrize("numbers", ["fp16", "bf16", "sr"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_partial_batch_in_16_bits(numbers: str, shuffle: bool) -> None:
    data = dataset_for(Network(LAYERS), 70, 23)
    options: dict[str, Any] = {"partial": True, "shuffle": shuffle}
    wanted = trained(HostRunner(make_work(f"preload,{numbers}", LAYERS, data, **options)))
    device = Device(sim_backend(), 0)
    try:
        found = run_on(device, make_work(f"persistent,{numbers},graphs=4", LAYERS, data, **options))
    finally:
        device.close()
    np.testing.assert_array_equal(found.loss, wanted.loss)
    same_parameters(found, wanted)


@pytest.mark.parametrize("scale", [1.0, 2.0**24])
def test_float16_scales_its_loss_as_the_plain_plan_does(scale: float) -> None:
    data = dataset_for(Network(LAYERS), 70, 23)

    def run(opt: str, simulated: bool) -> SimpleNamespace:
        work, device = make_work(opt, LAYERS, data), Device(sim_backend(), 0)
        runner = GpuRunner(device, work) if simulated else HostRunner(work)
        try:
            runner.load({"loss_scale": np.array([scale, 0], np.float32)})
            return SimpleNamespace(**vars(trained(runner)), state=runner.state())
        finally:
            runner.close()
            device.close()

    wanted = run("preload,fp16", False)
    assert (wanted.state["loss_scale"][0] < scale) == (scale > 1)
    for found in (run("persistent,fp16", False), run("persistent,fp16,graphs=epoch", True)):
        np.testing.assert_array_equal(found.loss, wanted.loss)
        for name, array in {**wanted.parameters, **wanted.state}.items():
            np.testing.assert_array_equal({**found.parameters, **found.state}[name], array)


@pytest.mark.parametrize("seed", [0, 2**40 + 7])
def test_weights_rounded_by_chance_are_those_of_the_plain_plan(seed: int) -> None:
    data = dataset_for(Network(LAYERS), 70, 23)
    wanted = trained(HostRunner(make_work("preload,sr", LAYERS, data, seed=seed)))
    work = make_work("persistent,sr,graphs=epoch", LAYERS, data, seed=seed)
    device = Device(sim_backend(), 0)
    try:
        found = run_on(device, work)
    finally:
        device.close()
    np.testing.assert_array_equal(found.loss, wanted.loss)
    same_parameters(found, wanted)


def test_bfloat16_copies_are_kept_for_evaluations() -> None:
    data = dataset_for(Network(LAYERS), 70, 23)
    wanted = trained(HostRunner(make_work("preload,bf16", LAYERS, data)))
    found = trained(HostRunner(make_work("persistent,bf16", LAYERS, data)))
    assert found.evaluation == wanted.evaluation


@pytest.mark.parametrize(("opt", "message"), [
    ("persistent,fp8", "exclude each other"),
    ("persistent=3", "give auto, or a sharding: tp_size x dp_size blocks"),
])
def test_what_does_not_go_together_is_refused(opt: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        select(opt, Network(LAYERS), 8, CAPABLE)


def test_what_does_not_fit_is_refused_with_the_fix() -> None:
    network = Network((2048, 2048, 2048))
    with pytest.raises(ConfigError, match=r"does not fit the chip.*: leave persistent out, or"):
        select("persistent", network, 8, CAPABLE).apply(step_plan(network, 8, 64))


def test_half_precision_sums_are_refused_with_the_fix() -> None:
    network = Network(LAYERS)
    with pytest.raises(ConfigError, match="use fp16 in place of fp16=acc16"):
        select("persistent,fp16=acc16", network, 8, CAPABLE).apply(step_plan(network, 8, 64))


def test_older_gpus_have_no_such_kernel() -> None:
    with pytest.raises(ConfigError, match="cannot run here: it needs asynchronous copies"):
        select("persistent", Network(LAYERS), 8, replace(CAPABLE, compute_capability=(7, 5)))


def chosen(layers: tuple[int, ...] = (34, 27, 26), words: str = "best", epochs: int = 400,
           machine: Machine = CAPABLE) -> Selection:
    data_spec = DataSpec(25 * 256, inputs="float32", labels="int32")
    return select(words, Network(layers), 256, machine, batch=25, data_spec=data_spec,
                  recipe=Recipe(25, Optimizer("adam", 1e-3), epochs=epochs))


def test_best_takes_it_where_it_pays() -> None:
    found = chosen()
    assert found.values["persistent"] == "auto"
    assert found.values["graphs"] == "epoch"
    assert any("us a step are expected of it" in note for note in found.notes)


def test_best_leaves_it_out_of_short_runs_and_says_from_when_on() -> None:
    found = chosen(epochs=1)
    assert "persistent" not in found.values
    note = next(note for note in found.notes if "persistent" in note)
    assert "256 steps are too few to earn its compilation" in note
    needed = int(note.split("from about ")[1].split(" ")[0])
    assert 256 < needed < 400 * 256  # which test_best_takes_it_where_it_pays has


@pytest.mark.parametrize(("layers", "words"), [
    ((2048, 2048, 2048), "best"), ((34, 27, 26), "best,fp16=acc16"),
    ((34, 27, 26), "best,-persistent"),
])
def test_best_goes_without_what_cannot_be(layers: tuple[int, ...], words: str) -> None:
    assert "persistent" not in chosen(layers, words).values


@pytest.mark.parametrize("numbers", ["tf32", "bf16", "fp16", "sr"])
def test_best_takes_it_in_every_number_format_that_it_has(numbers: str) -> None:
    found = chosen((34, 27, 26), f"best,{numbers}", epochs=1000)
    assert {"persistent", numbers} <= set(found.values)


def test_best_leaves_out_micro_batches_which_nobody_has_timed() -> None:
    network, batch = Network((160, 32, 48, 32, 432, 48), loss="bce"), 3520
    data_spec = DataSpec(batch * 256, inputs="float32", labels="", targets=48)
    found = select("best", network, 256, CAPABLE, batch=batch, data_spec=data_spec,
                   recipe=Recipe(batch, epochs=400))
    assert "persistent" not in found.values
    assert any("micro-batches only" in note for note in found.notes)


def test_best_on_an_older_gpu() -> None:
    assert "persistent" not in chosen(
        machine=replace(CAPABLE, compute_capability=(7, 5))).values


@pytest.mark.parametrize(("sharding", "threads"), [
    ("1x1:64:FFF", 64), ("1x2:256:FFF", 512), ("2x4:256:FGF", 2048), ("4x8:256:FGF", 8192)])
def test_the_kernel_shuffles_what_its_threads_have_time_for(sharding: str, threads: int) -> None:
    """Four examples a thread, and never more than 16,384."""
    [op] = make_work(f"persistent={sharding}", LAYERS,
                     dataset_for(Network(LAYERS), 64, 8), batch=32).train.find(kind="train_steps")
    assert op.attributes["max_shuffled"] == min(16384, 4 * threads)


def test_other_plans_than_full_steps_keep_their_ops() -> None:
    """The partial batch of an epoch without full ones, and evaluations."""
    network = Network((40, 17, 10))
    toggle = TOGGLES["persistent"]
    for plan in (prepared(network, left=5, rest=True), measuring_plan(network, 32, 100)):
        assert toggle.apply(plan, Policy(), "auto")[0].ops == plan.ops
    full = replace(prepared(network), target=known((9, 0)))
    (op,) = toggle.apply(full, Policy(), "auto")[0].ops
    assert op.kind == "train_steps"
