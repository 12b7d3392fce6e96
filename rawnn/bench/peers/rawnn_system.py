"""rawnn itself, as its peers are: `best` as a user gets it, in each precision."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.bench.costing import footprint
from rawnn.bench.peers.training_problem import Problem
from rawnn.bench.peers.worker import Offer
from rawnn.common.listener import Listener
from rawnn.data import Dataset, from_arrays
from rawnn.engine.config import Config
from rawnn.engine.machine import Opened, open_device
from rawnn.engine.session import Session

SETS = {"float32": "best", "tf32": "best,tf32", "bf16": "best,bf16"}
TESTS = 256
"""Examples that the run is tested on, which no time covers."""


def offers(problem: Problem, device: str, forms: list[str]) -> Iterator[Offer]:
    """`best` in float32, tf32 and bf16, or other sets of toggles ("bf16:best,sr"). On the host
    float32 alone, as the others are a GPU's."""
    opened = open_device(device, lambda message: None)
    data = dataset(problem)
    sets = [(n, o) for n, _, o in (f.partition(":") for f in forms)] or list(SETS.items())
    for precision, opt in sets:
        if opened.device is None and precision != "float32":
            continue
        yield Offer(precision, opt, "events" if opened.device else "wall",
                    partial(Training, problem.config(opt, device), data, opened))


def dataset(problem: Problem) -> Dataset:
    """A problem's examples as a user would bring them."""
    if problem.data != "random":
        return problem.dataset()
    x, y = problem.arrays()
    return from_arrays((x, y), (x[:TESTS], y[:TESTS]),
                       kind="labels" if problem.loss == "cross_entropy" else "values")


class Training:
    """A run of the engine; every epoch is measured, as without the toggle `report`, and the losses
    of a block's last one are copied to the host, within its time. Epochs follow each other without
    a wait, as the peers' do. It shuffles by itself."""

    def __init__(self, config: Config, data: Dataset, opened: Opened) -> None:
        self.session = Session(config, Listener(), data=data, opened=opened)
        self._runner = self.session.runner
        self.footprint = footprint(self.session.prepared, self._runner.describe(), opened)
        self._losses: NDArray[np.floating[Any]] = np.zeros(0)

    def reorder(self, order: NDArray[np.int32]) -> None:
        pass

    def block(self, epochs: int) -> float:
        for _ in range(epochs):
            self._runner.epoch(reported=True)
        self._losses = self._runner.metrics()[0]
        return float(np.mean(self._runner.epoch_milliseconds()[-epochs:]))

    def losses(self) -> NDArray[np.floating[Any]]:
        return self._losses


def versions() -> dict[str, str]:
    from rawnn.version import __version__

    return {"rawnn": __version__}
