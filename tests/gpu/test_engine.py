"""The engine on a GPU: every op against its reference, every way of running against the host."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from rawnn.cuda.device import Device
from rawnn.errors import DeviceError
from rawnn.machine import machine_of, open_gpu
from rawnn.network import Network
from rawnn.opts import select
from rawnn.opts.registry import Machine
from rawnn.runners.base import prepare
from rawnn.runners.host import HostRunner
from rawnn.runners.lowering import Lowering
from rawnn.step.build import evaluation_step, training_step
from tests.engine import GRAPHS, LADDER, make_work, op_error, random_dataset, run_on, trained

pytestmark = pytest.mark.gpu

TOLERANCE = 2e-6
"""Relative error of one op in float32: sums of up to 784 products, whose rounding grows with the
square root of the length (sqrt(784) * 2**-24 = 1.7e-6)."""

SHAPES = [((784, 10), 128), ((29, 7), 8), ((31, 33, 5), 13), ((1, 2), 1), ((64, 128, 10), 32)]


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    try:
        opened = open_gpu(0, print)
    except DeviceError as error:
        pytest.skip(str(error))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def machine(device: Device) -> Machine:
    return machine_of(device)


@pytest.mark.parametrize("opt", ["none", "preload,fuse", "preload,cublas", "preload,cudnn",
                                 "preload,cublas,fuse", "preload,cublas,cudnn,fuse"])
@pytest.mark.parametrize(("layers", "batch"), SHAPES)
def test_every_op_matches_its_reference(
    device: Device, machine: Machine, opt: str, layers: tuple[int, ...], batch: int
) -> None:
    network = Network(layers)
    selection = select(opt, network, 3, machine)
    lowering = Lowering(device)
    try:
        for build in (lambda: training_step(network, batch, 3 * batch, 0.1),
                      lambda: evaluation_step(network, batch, 3 * batch)):
            plan, _ = selection.apply(build())
            for index, op in enumerate(plan.advancing().ops):
                error = op_error(device, lowering, op, plan, seed=index)
                assert error < TOLERANCE, f"{op}: relative error {error:.2e}"
    finally:
        lowering.close()


@pytest.mark.parametrize("layers", [(29, 7), (29, 18, 7)])
@pytest.mark.parametrize("opt", LADDER)
def test_every_rung_matches_the_host(
    device: Device, machine: Machine, opt: str, layers: tuple[int, ...]
) -> None:
    data = random_dataset()
    work = make_work(opt, layers, data, machine=machine)
    found = run_on(device, work)
    wanted = trained(HostRunner(make_work("none", layers, data), "float64"))
    for name, array in wanted.parameters.items():
        np.testing.assert_allclose(found.parameters[name], array, rtol=0, atol=1e-5)
    np.testing.assert_allclose(found.loss, wanted.loss, rtol=1e-5)
    assert found.evaluation.accuracy == pytest.approx(wanted.evaluation.accuracy)
    assert found.evaluation.loss == pytest.approx(wanted.evaluation.loss, rel=1e-5)


@pytest.mark.parametrize("layers", [(29, 7), (29, 18, 7)])
@pytest.mark.parametrize("extra", ["", ",fuse", ",cublas", ",cublas,cudnn,fuse"])
@pytest.mark.parametrize("mode", GRAPHS)
def test_graphs_equal_the_stream_bit_for_bit(
    device: Device, machine: Machine, mode: str, extra: str, layers: tuple[int, ...]
) -> None:
    data = random_dataset()
    base = "preload,arena,nosync" + extra
    stream = run_on(device, make_work(base, layers, data, machine=machine))
    graph = run_on(device, make_work(f"{base},graphs={mode}", layers, data, machine=machine))
    for name, array in stream.parameters.items():
        np.testing.assert_array_equal(graph.parameters[name], array)
    np.testing.assert_array_equal(graph.loss, stream.loss)
    np.testing.assert_array_equal(graph.correct, stream.correct)
    assert graph.evaluation == stream.evaluation


@pytest.mark.parametrize("mode", ["step", "epoch"])
def test_graphs_take_batches_from_the_host(device: Device, machine: Machine, mode: str) -> None:
    data = random_dataset()
    stream = run_on(device, make_work("arena,nosync", (29, 7), data, machine=machine))
    graph = run_on(device, make_work(f"graphs={mode}", (29, 7), data, machine=machine))
    for name, array in stream.parameters.items():
        np.testing.assert_array_equal(graph.parameters[name], array)


def test_a_diverged_run_shows_its_nan(device: Device, machine: Machine) -> None:
    data = random_dataset()
    for opt in ("none", "preload,fuse", "seed", "best"):
        network = Network((29, 7))
        initial = network.initial(0)
        initial["fc1.weight"][0, 0] = np.nan
        selection = select(opt, network, 8, machine)
        found = run_on(device, prepare(network, data, initial, selection, 8, 0.1))
        assert np.isnan(found.loss).all(), opt
