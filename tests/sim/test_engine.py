"""The real engine on the simulated GPU: clean as it is, and caught when an edge is missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rawnn
from rawnn.bench.peers.rawnn_system import Training, dataset
from rawnn.cuda.device import Device
from rawnn.engine.machine import open_device
from rawnn.engine.runners.host import HostRunner
from rawnn.sim import Simulation
from rawnn.sim.bindings import Binding
from tests.bench.measuring import tiny
from tests.engine import make_work, random_dataset, run_on, trained
from tests.sim.races import each_missing_edge_is_a_race

LAYERS = (29, 16, 7)
DATA = random_dataset(29, 7, 32, 8)
GRAPH = "best,graphs=epoch,streams"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("opt", ["none", "seed", GRAPH, "best,graphs=while", "cublas,cudnn,arena"])
def test_every_order_of_unordered_work_gives_the_hosts_result(opt: str, seed: int) -> None:
    simulation = Simulation(seed)
    device = Device(simulation.backend())
    found = run_on(device, make_work(opt, LAYERS, DATA))
    device.close()
    simulation.assert_clean()
    wanted = trained(HostRunner(make_work("none", LAYERS, DATA)))
    assert found.loss == pytest.approx(wanted.loss, rel=1e-5)
    assert (found.correct == wanted.correct).all()


def test_each_edge_of_the_epochs_graph_is_needed_and_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert each_missing_edge_is_a_race(monkeypatch, GRAPH, LAYERS, DATA, 4) > 25


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_whole_steps_end_with_a_partial_batch_whose_loss_is_in_parts(loss: str) -> None:
    """`fuse` finds a place in the step on the rest alone; the op of whole steps does that, too."""
    x = np.random.default_rng(0).standard_normal((150, 16)).astype(np.float32)
    y = x[:, :8] if loss == "mse" else (x[:, 0] > 0).astype(int)
    found = [rawnn.train(layers=(16, 24, 8), batch=16, epochs=2, loss=loss, data=(x, y), opt=opt,
                         device="sim") for opt in ("preload,persistent", "best,persistent")]
    assert found[0].test_loss == found[1].test_loss
    assert [r.train_loss for r in found[0].history] == [r.train_loss for r in found[1].history]


def test_a_kernel_that_makes_the_next_epochs_order_writes_the_figures_of_this_one(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """Its `offset` is the number of the epoch, and no step from which its rows begin."""
    steps: list[int] = []
    window = Binding._window

    def seen(binding: Binding, operand: Any, step: int, *more: Any) -> Any:
        steps.append(step)
        return window(binding, operand, step, *more)

    monkeypatch.setattr(Binding, "_window", seen)
    problem = tiny(layers=(24, 24, 10), batch=16, steps=4)
    with open_device("sim", lambda message: None) as opened:
        training = Training(problem.config("best", "sim"), dataset(problem), opened)
        with training.session:
            training.block(3)
    assert steps == [0] * 2 * 3  # loss and count of three epochs
