"""Runs of several ranks in one process: a thread for each, on simulated GPUs or on the host."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np

from rawnn.cuda.device import Device
from rawnn.data import Dataset
from rawnn.distributed import RankContext, Team
from rawnn.engine.runners.gpu import GpuRunner
from rawnn.engine.runners.host import HostRunner
from rawnn.engine.runners.prepared_run import PreparedRun, prepare
from rawnn.model.layers import Network
from rawnn.model.optimizers import Optimizer
from rawnn.opts import select
from rawnn.opts.registry import Machine
from rawnn.plan.recipe import Recipe
from rawnn.sim import Simulation
from tests.engine import CAPABLE
from tests.together import all_fine, together


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def teams(size: int, act: Callable[[Team], Any], facts: Callable[[int], dict[str, str]] =
          lambda rank: {}, seconds: float = 10.0) -> list[Any]:
    """What `act(team)` returned or raised, by rank."""
    port = free_port()

    def run(rank: int) -> Any:
        team = Team(RankContext(rank, size, rank, size, "a test", "127.0.0.1", port, seconds),
                    facts(rank))
        try:
            return act(team)
        except BaseException as error:
            team.fail(error)
            raise
        finally:
            team.close()

    return together(size, run)


def work_of(opt: str, layers: tuple[int, ...], data: Dataset, batch: int, ranks: int, rank: int,
            machine: Machine = CAPABLE, optimizer: Optimizer | None = None,
            network: dict[str, Any] | None = None, **recipe: Any) -> PreparedRun:
    made = Network(layers, **(network or {}))
    whole = Recipe(batch, optimizer or Optimizer(lr=0.1), world_size=ranks, rank=rank, **recipe)
    selection = select(f"none,{opt}", made, len(data.train_images) // batch, machine)
    return prepare(made, data, selection, whole, evaluation_batch=8)


def collected(runner: GpuRunner | HostRunner, work: PreparedRun, epochs: int,
              resumed: Any = None) -> SimpleNamespace:
    if resumed is not None:
        runner.load(resumed)
    for _ in range(epochs):
        runner.epoch(True)
    loss, correct = runner.metrics()
    evaluation = runner.evaluate()
    return SimpleNamespace(loss=loss.copy(), correct=correct.copy(), evaluation=evaluation,
                           parameters=runner.parameters(), state=runner.state(), work=work,
                           facts=runner.describe())


def on_simulated(opt: str, layers: tuple[int, ...], data: Dataset, batch: int, ranks: int,
                 epochs: int = 2, resumed: Any = None, seed: int = 0,
                 **options: Any) -> list[SimpleNamespace]:
    """The run on simulated GPUs joined by the simulated NCCL, by rank."""
    return all_fine(tried(opt, layers, data, batch, ranks, epochs, resumed, seed, **options))


def tried(opt: str, layers: tuple[int, ...], data: Dataset, batch: int, ranks: int,
          epochs: int = 2, resumed: Any = None, seed: int = 0, **options: Any) -> list[Any]:
    """What every rank of it came to: a run, or an error."""

    def act(team: Team) -> SimpleNamespace:
        with ExitStack() as closing:
            simulation = Simulation(seed=seed + team.rank)
            device = Device(simulation.backend())
            closing.callback(device.close)
            work = work_of(opt, layers, data, batch, ranks, team.rank, **options)
            runner = GpuRunner(device, work, team)
            closing.callback(runner.close)
            found = collected(runner, work, epochs, resumed)
            closing.close()
            simulation.assert_clean()
            found.calls = simulation.calls
            return found

    return teams(ranks, act)


def on_hosts(opt: str, layers: tuple[int, ...], data: Dataset, batch: int, ranks: int,
             epochs: int = 2, dtype: str = "float32", **options: Any) -> list[SimpleNamespace]:
    """The run on the host, gradients through the team."""

    def act(team: Team) -> SimpleNamespace:
        work = work_of(opt, layers, data, batch, ranks, team.rank, **options)
        runner = HostRunner(work, dtype, team)
        try:
            return collected(runner, work, epochs)
        finally:
            runner.close()

    return all_fine(teams(ranks, act))


def joined(found: list[SimpleNamespace]) -> tuple[Any, Any]:
    """Losses and counts of all ranks as one: what the loop makes of them."""
    losses, correct = 0.0, 0
    for each in found:
        work = each.work
        weights = np.array([(work.train if s < work.steps or work.partial is None else work.partial)
                            .weight for s in range(work.updates)])
        losses = losses + each.loss * weights
        correct = correct + each.correct * (weights > 0)
    return losses, correct
