"""The calls of an epoch that timelines and the tutorial show, against the simulated driver's."""

from __future__ import annotations

from collections import Counter

import pytest

from rawnn.bench.driver_calls import TIMING, DriverCalls, driver_calls
from rawnn.common.listener import Listener
from rawnn.cuda.device import Device
from rawnn.data import load_dataset
from rawnn.engine.config import Config
from rawnn.engine.machine import Opened, machine_of
from rawnn.engine.runners.gpu import GpuRunner
from rawnn.engine.session import Session
from rawnn.sim import Simulation

LAYERS, BATCH = (784, 10), 5000


def epochs(toggles: str, is_reported: bool, count: int) -> tuple[list[list[str]], GpuRunner]:
    """The calls of each of some epochs, and what ran them."""
    simulation = Simulation()
    device = Device(simulation.backend())
    config = Config(layers=LAYERS, batch=BATCH, opt=toggles, device="sim", dataset="synthetic",
                    epochs=count)
    found = list[list[str]]()
    with Opened(device, machine_of(device), 0.0) as opened, Session(
            config, Listener(), data=load_dataset("synthetic"), opened=opened) as session:
        runner = session.runner
        assert isinstance(runner, GpuRunner)
        for _ in range(count):
            before = len(simulation.calls)
            runner.epoch(reported=is_reported)
            runner.metrics()
            found.append([call for call in simulation.calls[before:] if call not in TIMING])
    return found, runner


@pytest.mark.parametrize(("toggles", "is_reported"), [
    ("none,pool", True), ("none,preload,arena,nosync,report=3", False),
    ("none,preload,arena,nosync,fuse,graphs=epoch,report=3", False),
    ("none,persistent,report=3", False)])
def test_the_calls_are_those_of_an_epoch_in_the_midst_of_training(toggles: str,
                                                                is_reported: bool) -> None:
    """Not of the first, which may begin what later ones find; by the plan that such epochs run."""
    found = driver_calls(toggles, LAYERS, BATCH, is_reported)
    every, runner = epochs(toggles, is_reported, 3)
    assert list(found.calls) == every[1] == every[2]
    assert ("pool" in toggles) == (every[0] != every[1])  # which allocates in the first
    work = runner.prepared
    plan = work.train if is_reported else work.unreported
    assert [op.name for op in found.ops] == [op.name for op in plan.ops]
    assert found.steps == work.steps
    assert found.is_whole == ("persistent" in toggles)
    assert (found.graph is not None) == ("graphs" in toggles)


def test_a_step_has_its_share_of_the_calls_and_waits_are_counted() -> None:
    calls = ("cuLaunch", "cuStreamSynchronize", "cuMemcpy") * 4 + ("cuCtxSynchronize",)
    found = DriverCalls("none", 4, calls, ())
    assert found.step_calls == calls[:3]
    assert found.waits == 5
    counts = Counter(calls)
    assert "13 in 4 steps" in str(found)
    for call, count in counts.items():
        assert f"{count} x {call}" in " ".join(str(found).split())
