"""The real engine on the simulated device: every rung and every way of running against the host.

The simulated device also checks memory, argument packing and the order of all accesses, so a run
that ends without an error has shown all three.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rawnn.common.errors import ConfigError
from rawnn.cuda.device import Device
from rawnn.data import Dataset
from rawnn.engine.runners.gpu import GpuRunner
from rawnn.engine.runners.host import HostRunner
from rawnn.model.layers import Network
from rawnn.sim import Simulation, sim_backend
from tests.engine import (
    GRAPHS,
    LADDER,
    dataset_for,
    make_work,
    random_dataset,
    run_on,
    same_parameters,
    same_run,
    trained,
)


@pytest.fixture(params=[0, 1])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """A simulated device per seed of the order in which unordered work runs; no leaks allowed."""
    simulation = Simulation(seed=request.param)
    opened = Device(simulation.backend())
    yield opened
    opened.close()
    simulation.assert_clean()


@pytest.fixture(scope="module")
def data() -> Dataset:
    return random_dataset()


@pytest.mark.parametrize("layers", [(29, 7), (29, 18, 7)])
@pytest.mark.parametrize("opt", LADDER)
def test_every_rung_matches_the_host(
    device: Device, data: Dataset, opt: str, layers: tuple[int, ...]
) -> None:
    found = run_on(device, make_work(opt, layers, data))
    wanted = trained(HostRunner(make_work("none", layers, data), "float64"))
    for name, array in wanted.parameters.items():
        np.testing.assert_allclose(found.parameters[name], array, rtol=0, atol=1e-5)
    np.testing.assert_allclose(found.loss, wanted.loss, rtol=1e-5)
    assert found.evaluation.accuracy == pytest.approx(wanted.evaluation.accuracy)


@pytest.mark.parametrize("extra", ["", ",fuse", ",cublas,cudnn,fuse"])
@pytest.mark.parametrize("mode", GRAPHS)
def test_graphs_equal_the_stream_bit_for_bit(
    device: Device, data: Dataset, mode: str, extra: str
) -> None:
    base = "preload,arena,nosync" + extra
    layers = (29, 18, 7)
    stream = run_on(device, make_work(base, layers, data))
    graph = run_on(device, make_work(f"{base},graphs={mode}", layers, data))
    same_run(graph, stream)


@pytest.mark.parametrize("mode", ["step", "epoch"])
def test_graphs_take_batches_from_the_host(device: Device, data: Dataset, mode: str) -> None:
    stream = run_on(device, make_work("arena,nosync", (29, 7), data))
    graph = run_on(device, make_work(f"graphs={mode}", (29, 7), data))
    same_parameters(graph, stream)


@pytest.mark.parametrize("mode", ["while", "3"])
def test_graphs_that_cannot_take_batches_from_the_host_say_the_fix(
    data: Dataset, mode: str
) -> None:
    with pytest.raises(ConfigError, match="add preload"):
        make_work(f"graphs={mode}", (29, 7), data)


@pytest.mark.parametrize(("opt", "last"), [("preload,graphs=step", 3), ("preload,graphs=while", 8)])
def test_passes_over_more_batches_than_a_byte_counts_begin_anew(opt: str, last: int) -> None:
    """The number of the batch is set back, all four bytes of it: every epoch and every evaluation
    takes the same 257 batches, the last of which may be partial, as float64 NumPy does."""
    count = 256 * 8 + last
    long = random_dataset(features=5, classes=3, train=count, test=count)
    work = make_work(opt, (5, 3), long, partial=True)
    w, b = (array.astype(np.float64) for array in Network((5, 3)).initial(0).values())

    def forward(images: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
        """The mean loss and its gradient by the logits."""
        powers = np.exp(images / 255.0 @ w.T + b)
        p, right = powers / powers.sum(axis=1, keepdims=True), np.eye(3)[labels]
        return -np.log((p * right).sum(axis=1)).mean(), (p - right) / len(labels)

    simulation = Simulation()
    device = Device(simulation.backend())
    runner = GpuRunner(device, work)
    for _ in range(2):
        steps = []
        for at in range(0, count, 8):
            images = long.train_images[at : at + 8]
            loss, slopes = forward(images, long.train_labels[at : at + 8])
            steps.append(loss)
            w -= 0.1 * slopes.T @ (images / 255.0)
            b -= 0.1 * slopes.sum(axis=0)
        runner.epoch(True)
        np.testing.assert_allclose(runner.metrics()[0], steps, rtol=1e-4)
        tested = forward(long.test_images, long.test_labels)[0]
        assert runner.evaluate().loss == pytest.approx(tested, rel=1e-5)
    runner.close()
    device.close()
    simulation.assert_clean()


def test_a_long_product_is_cut_into_slices(device: Device) -> None:
    wide = random_dataset(features=256, classes=10, train=40, test=9)
    work = make_work("preload,cublas,fuse", (256, 10), wide)
    assert [op.kind for op in work.train.ops][1:3] == ["matmul_slices", "sum_slices"]
    found = run_on(device, work)
    wanted = trained(HostRunner(make_work("none", (256, 10), wide), "float64"))
    np.testing.assert_allclose(found.loss, wanted.loss, rtol=1e-5)


def test_the_baseline_allocates_at_each_use_and_the_arena_does_not(
    device: Device, data: Dataset
) -> None:
    run_on(device, make_work("arena", (29, 7), data))
    placed = device.memory.calls
    run_on(device, make_work("none", (29, 7), data))
    steps = 2 * (70 // 8)
    assert placed == 3  # training, two parts of the test set
    assert device.memory.calls - placed > 7 * steps


@pytest.mark.parametrize("opt", [
    "preload,arena", "preload,arena,bf16", "preload,arena,nosync,streams",
    "preload,arena,nosync,graphs=step", "preload,arena,nosync,graphs=3",
    "preload,arena,nosync,graphs=while", "preload,arena,nosync,streams,graphs=epoch",
])
def test_the_memory_that_a_run_is_expected_to_need_is_what_it_needs(device: Device,
                                                                     opt: str) -> None:
    """batch=max leaves a tenth of the free memory for what no plan knows of."""
    work = make_work(opt, (64, 32, 10), random_dataset(64, 10, 2000, 300), batch=700, partial=True)
    runner = GpuRunner(device, work)
    held = device.memory.current
    assert 0.95 * held < work.device_bytes() < 1.3 * held
    runner.close()


@pytest.mark.parametrize(("opt", "width"), [
    ("preload,arena", 512), ("pool", 50_000), ("preload,async", 512)])
def test_the_peak_of_memory_is_of_this_run_alone(opt: str, width: int) -> None:
    """Not of a larger one before it on the same device."""
    def peak_of(device: Device, width: int) -> int:
        network = Network((12, width, 4))
        runner = GpuRunner(device, make_work(opt, network.layers, dataset_for(network, 64, 16)))
        try:
            runner.epoch(True)
            return runner.peak_memory()
        finally:
            runner.close()

    device = Device(sim_backend())
    large, small = peak_of(device, width), peak_of(device, 8)
    assert small < large
    assert small == peak_of(Device(sim_backend()), 8)
    assert peak_of(device, width) == large


@pytest.mark.parametrize(("opt", "network"), [("none", {}), ("none", {"activation": "gelu"}),
                                              ("fp16", {}), ("none", {"loss": "mse"})])
def test_numbers_that_overflow_on_the_host_are_no_warnings(opt: str, network: dict[str, Any]
                                                           ) -> None:
    """A run that diverges ends with a sentence of its own."""
    data = dataset_for(Network((29, 18, 7), **network), 70, 23)
    runner = HostRunner(make_work(opt, (29, 18, 7), data, lr=1e20, network_options=network))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            runner.epoch(True)
    assert not np.isfinite(runner.metrics()[0]).all()
