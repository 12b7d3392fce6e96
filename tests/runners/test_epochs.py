"""What stands between two epochs: made ahead for the one that comes, by few calls of the driver,
and the same whatever comes between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rawnn.common import random
from rawnn.cuda.device import Device
from rawnn.engine.runners.gpu import GpuRunner
from rawnn.engine.runners.prepared_run import PreparedRun
from rawnn.model.optimizers import Optimizer
from rawnn.sim import Simulation
from tests.engine import make_work, random_dataset
from tests.slices import sliced

DATA, LAYERS, SEED, EXAMPLES = random_dataset(), (29, 7), 5, 70
WAYS = ("none", "nosync,pinned", "preload,arena,nosync", "preload,report=2,streams",
        "graphs=step", "preload,streams,graphs=3", "preload,streams,graphs=epoch",
        "preload,graphs=epoch", "streams,graphs=epoch", "preload,graphs=while", "best,-persistent",
        "persistent", "persistent,graphs=epoch,pdl", "persistent,graphs=2", "fp16,graphs=epoch",
        "preload,pool,nosync")
RECIPES: dict[str, dict[str, Any]] = {
    "in order": {},
    "adam, shuffled, rates": {"shuffle": True, "schedule": "warmup:1,cosine", "epochs": 5,
                              "optimizer": Optimizer("adam", 0.01)},
    "shuffled, partial": {"shuffle": True, "partial": True},
}


def work(opt: str, **options: Any) -> PreparedRun:
    return make_work(opt, LAYERS, DATA, seed=SEED, **options)


@contextmanager
def running(made: PreparedRun, simulation: Simulation | None = None) -> Iterator[GpuRunner]:
    simulation = simulation or Simulation(1)
    device = Device(simulation.backend())
    runner = GpuRunner(device, made)
    yield runner
    runner.close()
    device.close()
    simulation.assert_clean()


def epochs(runner: GpuRunner, count: int) -> list[Any]:
    """Losses of so many epochs, and the state behind them."""
    found = []
    for _ in range(count):
        runner.epoch(True)
        found.append(runner.metrics()[0].copy())
    return [*found, *runner.state().values()]


def assert_same(found: list[Any], wanted: list[Any]) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("opt", "recipe"), sliced(product(WAYS, RECIPES), 16))
def test_what_comes_between_epochs_changes_nothing(opt: str, recipe: str) -> None:
    """Four epochs by themselves, with all that a run may ask for between them, in two runners of
    which the second takes up where the first stopped, and in one that has been elsewhere."""
    made = work(opt, **RECIPES[recipe])
    with running(made) as runner:
        runner.epoch(True)
        first = runner.metrics()[0].copy()
        runner.epoch(True)
        runner.epoch(True)
        third = runner.metrics()[0].copy()
        wanted = epochs(runner, 1)
    with running(made) as runner:
        found = epochs(runner, 2)
        runner.evaluate()
        state = runner.state()
        runner.epoch_milliseconds()
        found += epochs(runner, 2)
        np.testing.assert_array_equal(found[0], first)
        assert_same(found[-len(wanted):], wanted)
    with running(made) as runner:
        runner.load(state)
        np.testing.assert_array_equal(epochs(runner, 1)[0], third)
        assert_same(epochs(runner, 1), wanted)
        runner.load(state)
        np.testing.assert_array_equal(epochs(runner, 1)[0], third)
        assert_same(epochs(runner, 1), wanted)


@pytest.mark.parametrize("opt", ["preload,nosync", "preload,streams,graphs=epoch", "persistent",
                                 "preload,graphs=2"])
def test_the_order_of_the_epoch_that_comes_is_made(opt: str) -> None:
    with running(work(opt, shuffle=True)) as runner:
        for epoch in range(3):
            runner.epoch(True)
            np.testing.assert_array_equal(runner._read("order"),
                                          random.permutation(SEED, epoch + 1, EXAMPLES))
        state = {**runner.state(), "clock": np.array([7, 56], np.int32)}
        runner.load(state)
        runner.epoch(False)
        np.testing.assert_array_equal(runner._read("order"), random.permutation(SEED, 8, EXAMPLES))


CALLS = ("cuLaunchKernel", "cuLaunchKernelEx", "cuGraphLaunch", "cuMemsetD8Async",
         "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync", "cuEventRecord", "cuStreamSynchronize")


@pytest.mark.parametrize(("opt", "options", "wanted"), [
    ("preload,streams,graphs=epoch", {"optimizer": Optimizer("adam", 0.01)}, {"cuGraphLaunch": 1}),
    ("persistent,graphs=epoch,pdl", {}, {"cuLaunchKernelEx": 1}),
    ("persistent,graphs=epoch,pdl", {"partial": True}, {"cuLaunchKernelEx": 1}),
    ("persistent,graphs=epoch,pdl", {"shuffle": False}, {"cuLaunchKernelEx": 1}),
    ("preload,graphs=4", {}, {"cuGraphLaunch": 2, "cuLaunchKernel": 1, "cuMemsetD8Async": 1}),
])
def test_what_an_epoch_asks_of_the_driver(opt: str, options: dict[str, Any],
                                          wanted: dict[str, int]) -> None:
    """Of one that follows another: its steps, and what stands between the two."""
    simulation = Simulation()
    with running(work(opt, **{"shuffle": True, **options}), simulation) as runner:
        runner.epoch(True)
        before = {call: simulation.faults.count(call) for call in CALLS}
        runner.epoch(True)
        found = {call: simulation.faults.count(call) - before[call] for call in CALLS}
        assert {call: n for call, n in found.items() if n} == wanted


def test_metrics_are_those_of_the_last_measured_epoch_whenever_they_are_asked_for() -> None:
    made = work("preload,arena,report=2", shuffle=True)
    with running(made) as runner:
        wanted = epochs(runner, 1)[0]
    with running(made) as runner:
        runner.epoch(True)
        runner.epoch(False)
        runner.evaluate()
        for _ in range(2):
            np.testing.assert_array_equal(runner.metrics()[0], wanted)
    with running(made) as runner:
        runner.epoch(True)
        runner.trial(made.train, 2).close()
        runner.commands(made.train)
        np.testing.assert_array_equal(runner.metrics()[0], wanted)


def test_times_of_epochs_leave_out_what_comes_between() -> None:
    """All but copies of their metrics, between two events of their own. The first epoch of all has
    its own time, others that follow each other have one together."""
    simulation = Simulation()
    with running(work("preload,nosync", shuffle=True), simulation) as runner:
        def recorded(pause: Callable[[], object] | None, epochs: int) -> int:
            before = simulation.faults.count("cuEventRecord")
            for _ in range(epochs):
                runner.epoch(True)
                if pause is not None:
                    pause()
            runner.epoch_milliseconds()
            return simulation.faults.count("cuEventRecord") - before

        assert recorded(None, 1) == 2
        assert recorded(None, 3) == 2
        assert recorded(None, 33) == 4
        assert recorded(runner.metrics, 3) == 12
        assert recorded(runner.parameters, 3) == 6
        assert recorded(runner.evaluate, 2) == 8  # ahead of which metrics are copied
        made = simulation.faults.count("cuEventCreate")
        runner.time_each_epoch()
        assert recorded(None, 3) == 4
        found = runner.epoch_milliseconds()
        assert len(found) == 48
        assert all(ms > 0 for ms in found)
        assert simulation.faults.count("cuEventCreate") == made  # they are used again


def test_no_epoch_takes_longer_for_what_comes_behind_it() -> None:
    """By the simulated clock. Two copies of metrics, with the event ahead of them, may count to the
    epoch that they are of."""
    def times(behind: Callable[[Any], object]) -> Any:
        with running(work("preload,arena,nosync")) as runner:
            runner.time_each_epoch()
            for _ in range(3):
                runner.epoch(True)
                behind(runner)
            return np.array(runner.epoch_milliseconds())

    alone = times(lambda runner: None)
    for name, behind in {
        "metrics": GpuRunner.metrics, "evaluate": GpuRunner.evaluate, "assemble": gathered,
        "parameters": GpuRunner.parameters, "state": GpuRunner.state,
        "trial": lambda runner: runner.trial(runner._prepared.train, 1).run(1),
        "commands": lambda runner: runner.commands(runner._prepared.train),
    }.items():
        longer = (times(behind) - alone) * 1e3  # a task takes a microsecond
        assert round(longer[0]) in (0, 3), name
        np.testing.assert_allclose(longer, longer[0], atol=1e-6, err_msg=name)


def gathered(runner: Any) -> None:
    """What ranks gather that keep shares of their state, here an evaluation."""
    (part, program, _), *_ = runner._tests
    runner._assemble, runner._is_sharded = SimpleNamespace(
        run=lambda steps: program.run(part.steps)), True
    runner.assemble()
    assert not runner._is_sharded


def test_an_epoch_that_is_not_reported_measures_nothing() -> None:
    measuring = {"cross_entropy", "accuracy"}
    rare, every = work("preload,report=2"), work("preload")
    assert measuring <= {op.kind for op in rare.train.ops}
    assert not measuring & {op.kind for op in rare.unreported.ops}
    assert [op for op in rare.train.ops if op.kind not in measuring] == list(rare.unreported.ops)
    assert every.unreported is every.train


@pytest.mark.parametrize("opt", ["preload,nosync", "preload,streams,graphs=epoch", "nosync"])
def test_a_state_that_is_loaded_goes_on_as_it_did(opt: str) -> None:
    """What was made ready for the epoch that came before is made anew."""
    with running(work(opt, shuffle=True)) as runner:
        runner.epoch(True)
        state = runner.state()
        runner.epoch(True)
        wanted = runner.parameters()
        runner.epoch(True)
        runner.load(state)
        runner.epoch(True)
        for name, array in runner.parameters().items():
            np.testing.assert_array_equal(array, wanted[name])
