"""What tests of the engine share: small data sets, plans, works made ready and run."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from rawnn.cuda.device import Device
from rawnn.data import Dataset
from rawnn.data.normalise import PIXEL_SCALE
from rawnn.engine.runners.gpu import GpuRunner
from rawnn.engine.runners.host import HostRunner
from rawnn.engine.runners.prepared_run import PreparedRun, Runner, prepare
from rawnn.model.layers import Network
from rawnn.model.optimizers import Optimizer
from rawnn.opts import TOGGLES, select
from rawnn.opts.registry import Machine
from rawnn.plan.build import evaluation_step, training_step
from rawnn.plan.plan import Plan
from rawnn.plan.recipe import DataSpec, Recipe
from rawnn.sim import Simulation

CAPABLE = Machine(None, (9, 0), 13000, lambda package: True)
"""A machine on which every toggle can run."""

LADDER = (
    "none", "nosync", "arena", "preload", "preload,arena", "preload,arena,nosync",
    "preload,arena,nosync,cublas", "preload,arena,nosync,cublas,report=2",
    "preload,arena,nosync,cublas,report=2,fuse",
    "preload,arena,nosync,cublas,report=2,fuse,cudnn", "seed", "best", "best,-graphs",
    "fuse", "preload,fuse", "cublas", "cudnn", "report=2", "cublas,fuse",
)
VALUES = {"batch": "2"}
"""Values of the toggles that mean nothing without one."""


def spelled(name: str) -> str:
    """A toggle as one types it, with a value where it must have one."""
    parameter = TOGGLES[name].parameter
    needed = parameter is not None and parameter.default is None
    return f"{name}={VALUES[name]}" if needed else name


GRAPHS = ("step", "epoch", "while", "3")


def random_dataset(features: int = 29, classes: int = 7, train: int = 70, test: int = 23,
                   seed: int = 0) -> Dataset:
    """Noise with a faint class pattern, so that training moves the loss."""
    generator = np.random.default_rng(seed)
    patterns = generator.integers(0, 256, (classes, features))

    def draw(count: int) -> tuple[Any, Any]:
        labels = generator.integers(0, classes, count).astype(np.uint8)
        noise = generator.integers(0, 256, (count, features))
        return ((patterns[labels] + noise) // 2).astype(np.uint8), labels

    x, y = draw(train)
    xt, yt = draw(test)
    return Dataset("random", x, y, xt, yt, classes, (1, features), "a generator", True)


def dataset_for(network: Network, train: int, test: int, seed: int = 0) -> Dataset:
    """Noise with the answers that the network's loss compares with: class labels, values of both
    signs, or (for binary cross-entropy) zeros and ones."""
    data = random_dataset(network.layers[0], network.outputs, train, test, seed)
    if network.loss_spec.target_kind == "labels":
        return data
    generator = np.random.default_rng(seed + 1)

    def draw(count: int) -> Any:
        values = generator.normal(size=(count, network.outputs))
        return (values > 0 if network.loss == "bce" else values).astype(np.float32)

    return replace(data, train_labels=None, test_labels=None, classes=0,
                   train_targets=draw(train), test_targets=draw(test))


def form_for(network: Network, examples: int, **options: Any) -> DataSpec:
    """uint8 pixels, with the answers that the network's loss compares with."""
    if network.loss_spec.target_kind == "targets":
        options = {"labels": "", "targets": network.outputs, **options}
    return DataSpec(examples, **{"scale": PIXEL_SCALE, **options})


def step_plan(network: Network, batch: int, examples: int, lr: float = 0.1,
              optimizer: Optimizer | None = None, form: dict[str, Any] | None = None,
              rest: bool = False, **recipe: Any) -> Plan:
    """The baseline plan of a step; `form` goes to DataSpec, `recipe` to Recipe."""
    return training_step(network, Recipe(batch, optimizer or Optimizer(lr=lr), **recipe),
                         form_for(network, examples, **(form or {})), partial=rest)


def measuring_plan(network: Network, batch: int, examples: int) -> Plan:
    """The baseline plan that measures a batch of the test set."""
    return evaluation_step(network, batch, form_for(network, examples))


def make_work(opt: str, layers: tuple[int, ...], data: Dataset, batch: int = 8, lr: float = 0.1,
              seed: int = 0, machine: Machine = CAPABLE, optimizer: Optimizer | None = None,
              network_options: dict[str, Any] | None = None, **recipe_options: Any) -> PreparedRun:
    """`network_options` go to Network, `recipe_options` to Recipe."""
    network = Network(layers, **(network_options or {}))
    recipe = Recipe(batch, optimizer or Optimizer(lr=lr), seed=seed, **recipe_options)
    selection = select(f"none,{opt}", network, len(data.train_images) // batch, machine)
    return prepare(network, data, selection, recipe, evaluation_batch=8)


def trained(runner: HostRunner | GpuRunner, epochs: int = 2) -> SimpleNamespace:
    """Train and collect everything that can be compared."""
    for _ in range(epochs):
        runner.epoch(True)
    loss, correct = runner.metrics()
    evaluation = runner.evaluate()
    return SimpleNamespace(loss=loss.copy(), correct=correct.copy(), evaluation=evaluation,
                           parameters=runner.parameters())


def run_on(device: Device, work: PreparedRun, epochs: int = 2) -> SimpleNamespace:
    runner = GpuRunner(device, work)
    try:
        return trained(runner, epochs)
    finally:
        runner.close()


def outcome(runner: Runner) -> SimpleNamespace:
    """Three epochs, the middle one not reported, and all that can be compared of them."""
    losses, correct = [], []
    for reported in (True, False, True):
        runner.epoch(reported)
        if reported:
            found = runner.metrics()
            losses.append(found[0].copy())
            correct.append(found[1].copy())
    return SimpleNamespace(loss=losses, correct=correct, evaluation=runner.evaluate(),
                           parameters=runner.parameters(), facts=runner.describe())


def check_against_host(opt: str, how: str, layers: tuple[int, ...], data: Dataset,
                       **options: Any) -> None:
    """`opt` on the simulated GPU, run as the toggles `how` say, comes to what it does on the host,
    bit for bit."""
    simulation = Simulation(1)
    device = Device(simulation.backend())
    found = run_on(device, make_work(opt + how, layers, data, **options))
    device.close()
    simulation.assert_clean()
    wanted = trained(HostRunner(make_work(opt, layers, data, **options)))
    np.testing.assert_array_equal(found.loss, wanted.loss)
    same_parameters(found, wanted)


def same_run(found: Any, wanted: Any) -> None:
    """Two runs came to the same numbers: parameters, metrics and evaluation, where an accuracy may
    be NaN."""
    same_parameters(found, wanted)
    for name in ("loss", "correct"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), err_msg=name)
    np.testing.assert_array_equal(*([e.loss, e.accuracy] for e in (found.evaluation,
                                                                   wanted.evaluation)))


def same_parameters(found: Any, wanted: Any) -> None:
    """The parameters of two runs, or of two results, are the same numbers."""
    assert found.parameters.keys() == wanted.parameters.keys()
    for name, value in wanted.parameters.items():
        np.testing.assert_array_equal(found.parameters[name], value, err_msg=name)
