"""Networks with every loss: partial batches, shuffled or not, uploaded or gathered, fused or not,
with epochs that are not measured. The simulated GPU against the host in float64, and every kind of
graph against the stream, bit for bit."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rawnn.cuda.device import Device
from rawnn.engine.runners.gpu import GpuRunner
from rawnn.engine.runners.host import HostRunner
from rawnn.engine.runners.prepared_run import PreparedRun
from rawnn.model.layers import Network
from rawnn.model.losses import LOSSES
from rawnn.model.optimizers import Optimizer
from rawnn.sim import Simulation
from tests.engine import GRAPHS, dataset_for, make_work, outcome, same_run
from tests.slices import sliced
from tests.tolerances import RUN

LAYERS, BATCH, EXAMPLES = (13, 9, 6, 5), 6, 28
ORDERS = [{}, {"shuffle": True}, {"partial": True}, {"shuffle": True, "partial": True}]
WAYS = ("nosync", "nosync,fuse", "arena,nosync,cublas,fuse", "preload,nosync",
        "preload,arena,nosync,fuse", "preload,arena,nosync,cudnn,fuse", "preload,tiled,fuse",
        "preload,arena,nosync,mma,fuse", "preload,mma,fuse")


def work_of(opt: str, loss: str, options: dict[str, Any]) -> PreparedRun:
    network = Network(LAYERS, loss=loss, activation="tanh")
    return make_work(f"{opt},report=2", LAYERS, dataset_for(network, EXAMPLES, 11), batch=BATCH,
                     network_options={"loss": loss, "activation": "tanh"}, seed=2, epochs=3,
                     **options)


def on_host(loss: str, options: dict[str, Any]) -> SimpleNamespace:
    runner = HostRunner(work_of("", loss, options), "float64")
    found = outcome(runner)
    runner.close()
    return found


def simulated(opt: str, loss: str, options: dict[str, Any], seed: int = 0) -> SimpleNamespace:
    simulation = Simulation(seed)
    device = Device(simulation.backend())
    runner = GpuRunner(device, work_of(opt, loss, options))
    try:
        return outcome(runner)
    finally:
        runner.close()
        device.close()
        simulation.assert_clean()


@pytest.mark.parametrize(("loss", "opt", "options"), sliced(product(LOSSES, WAYS, ORDERS), 36),
                         ids=lambda v: ("+".join(v) or "plain") if isinstance(v, dict) else v)
def test_the_gpu_agrees_with_the_host(loss: str, opt: str, options: dict[str, Any]) -> None:
    found, wanted = simulated(opt, loss, options), on_host(loss, options)
    steps = EXAMPLES // BATCH + bool(options.get("partial"))
    assert [len(part) for part in found.loss] == [steps, steps]
    np.testing.assert_allclose(found.loss, wanted.loss, rtol=RUN, atol=RUN)
    np.testing.assert_array_equal(found.correct, wanted.correct)
    for name, array in wanted.parameters.items():
        np.testing.assert_allclose(found.parameters[name], array, rtol=0, atol=RUN, err_msg=name)
    assert found.evaluation.loss == pytest.approx(wanted.evaluation.loss, rel=RUN)
    assert found.evaluation.accuracy == pytest.approx(wanted.evaluation.accuracy, nan_ok=True)


@pytest.mark.parametrize(("loss", "mode", "base"), sliced(product(LOSSES, GRAPHS, (
    "preload,arena,nosync", "preload,arena,nosync,fuse,streams",
    "preload,arena,nosync,mma,fuse,streams")), 12))
def test_graphs_equal_the_stream_bit_for_bit(loss: str, mode: str, base: str) -> None:
    options = {"shuffle": True, "partial": True, "schedule": "warmup:1,cosine",
               "optimizer": Optimizer("adam", 0.05)}
    same_run(simulated(f"{base},graphs={mode}", loss, options), simulated(base, loss, options))


@pytest.mark.parametrize("mode", ["step", "epoch"])
@pytest.mark.parametrize("loss", LOSSES)
def test_graphs_of_uploaded_batches_equal_the_stream_bit_for_bit(loss: str, mode: str) -> None:
    options = {"shuffle": True, "partial": True}
    same_run(simulated(f"graphs={mode},fuse", loss, options),
             simulated("arena,nosync,fuse", loss, options))
