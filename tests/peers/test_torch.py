"""Loss curves against PyTorch: a thousand steps from the same parameters on the same batches.

Both round to float32 at different places, and training amplifies the difference step by step, so
two bounds are set: over the first steps what rounding alone explains, over all of them a distance
far below the spread between two seeds (0.05 for mlp4). Runs where torch is installed (the extra
`peers`).
"""

from __future__ import annotations

import os
from functools import cache

import numpy as np
import pytest

from rawnn.data import load_dataset
from rawnn.engine.config import Config
from rawnn.engine.runners.gpu import GpuRunner
from rawnn.engine.runners.host import HostRunner
from rawnn.engine.runners.prepared_run import PreparedRun, prepare
from rawnn.model.workloads import workload
from rawnn.opts import select
from tests import requires
from tests.engine import CAPABLE

torch = requires.module("torch")

STEPS = 1000
EARLY = 50


def work_of(name: str, opt: str) -> PreparedRun:
    config = Config(**{**workload(name), "opt": opt, "epochs": 3, "seed": 7})
    data = load_dataset("mnist" if os.environ.get("RAWNN_DATA") else "synthetic")
    selection = select(opt, config.network(), config.recipe().steps(len(data.train_images)),
                       CAPABLE)
    return prepare(config.network(), data, selection, config.recipe())


@cache
def torch_losses(name: str) -> np.ndarray:
    """The loss of each step of a workload's training by torch.optim.SGD on torch.nn modules."""
    work = work_of(name, "preload")
    orders = orders_of(work)
    network, recipe = work.network, work.recipe
    layers: list[torch.nn.Module] = []
    for layer in range(1, network.depth + 1):
        layers.append(torch.nn.Linear(*network.layers[layer - 1 : layer + 1], bias=network.bias))
        if layer < network.depth:
            layers.append(torch.nn.ReLU())
    model = torch.nn.Sequential(*layers)
    initial = list(network.initial(recipe.seed).values())
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), initial, strict=True):
            parameter.copy_(torch.from_numpy(value))
    optimizer = torch.optim.SGD(model.parameters(), lr=recipe.optimizer.lr)
    images = torch.from_numpy(np.multiply(work.data.train_images, np.float32(1 / 255)))
    labels = torch.from_numpy(work.data.train_labels.astype(np.int64))
    losses = []
    for order in orders:
        for step in range(work.steps):
            rows = torch.from_numpy(order[step * recipe.batch : (step + 1) * recipe.batch])
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images[rows]), labels[rows])
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
            if len(losses) == STEPS:
                return np.array(losses)
    raise AssertionError("too few epochs")


def orders_of(work: PreparedRun) -> list[np.ndarray]:
    from rawnn.common import random

    count = len(work.data.train_images)
    epochs = -(-STEPS // work.steps)
    if not work.recipe.shuffle:
        return [np.arange(count)] * epochs
    return [random.permutation(work.recipe.seed, e, count).astype(np.int64) for e in range(epochs)]


def our_losses(runner: object, work: PreparedRun) -> np.ndarray:
    losses: list[np.ndarray] = []
    try:
        while sum(map(len, losses)) < STEPS:
            runner.epoch(True)
            losses.append(runner.metrics()[0].copy())
    finally:
        runner.close()
    return np.concatenate(losses)[:STEPS].astype(np.float64)


def compare(ours: np.ndarray, theirs: np.ndarray, early: float, all_steps: float) -> None:
    distance = np.abs(ours - theirs)
    assert distance[:EARLY].max() <= early
    assert distance.mean() <= all_steps


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["linear", "mlp4", "wide256"])
def test_the_host_runner_learns_as_torch_does(name):
    work = work_of(name, "preload")
    compare(our_losses(HostRunner(work), work), torch_losses(name), 1e-5, 3e-3)


@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["linear", "mlp4", "wide256"])
@pytest.mark.parametrize(("opt", "early", "all_steps"), [
    ("best", 1e-5, 3e-3), ("best,cublas", 1e-5, 3e-3), ("best,cublas,tf32", 5e-3, 1e-2),
    ("best,bf16", 2e-2, 2e-2), ("best,fp16", 5e-3, 1e-2), ("best,sr", 3e-2, 3e-2)])
def test_the_gpu_learns_as_torch_does(gpu, name, opt, early, all_steps):
    work = work_of(name, opt)
    ours = our_losses(GpuRunner(gpu, work), work)
    compare(ours, torch_losses(name), early, all_steps)
