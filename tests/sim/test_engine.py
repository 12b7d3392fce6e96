"""The real engine on the simulated GPU: clean as it is, and caught when an edge is missing."""

from __future__ import annotations

import pytest

from rawnn.device.cuda.device import Device
from rawnn.device.sim import Simulation
from rawnn.runners.host import HostRunner
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
