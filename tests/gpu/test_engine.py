"""The engine on a GPU: every way of running against the host."""

from __future__ import annotations

import numpy as np
import pytest

from rawnn.cuda.device import Device
from rawnn.engine.runners.gpu import GpuRunner
from rawnn.engine.runners.host import HostRunner
from rawnn.opts.registry import Machine
from tests.engine import (
    GRAPHS,
    LADDER,
    make_work,
    random_dataset,
    run_on,
    same_parameters,
    same_run,
    trained,
)
from tests.tolerances import RUN

pytestmark = pytest.mark.gpu


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
        np.testing.assert_allclose(found.parameters[name], array, rtol=0, atol=RUN)
    np.testing.assert_allclose(found.loss, wanted.loss, rtol=RUN)
    assert found.evaluation.accuracy == pytest.approx(wanted.evaluation.accuracy)
    assert found.evaluation.loss == pytest.approx(wanted.evaluation.loss, rel=RUN)


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
    same_run(graph, stream)


@pytest.mark.parametrize("mode", ["step", "epoch"])
def test_graphs_take_batches_from_the_host(device: Device, machine: Machine, mode: str) -> None:
    data = random_dataset()
    stream = run_on(device, make_work("arena,nosync", (29, 7), data, machine=machine))
    graph = run_on(device, make_work(f"graphs={mode}", (29, 7), data, machine=machine))
    same_parameters(graph, stream)


@pytest.mark.parametrize("opt", ["none", "preload,fuse", "seed", "best"])
def test_a_diverged_run_shows_its_nan(device: Device, machine: Machine, opt: str) -> None:
    runner = GpuRunner(device, make_work(opt, (29, 7), random_dataset(), machine=machine))
    try:
        weight = runner.parameters()["fc1.weight"]
        weight[0, 0] = np.nan
        runner.load({"fc1.weight": weight})
        assert np.isnan(trained(runner).loss).all()
    finally:
        runner.close()
