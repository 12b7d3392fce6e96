"""Graphs without one of their edges, which the simulated GPU catches."""

from __future__ import annotations

import pytest

from rawnn.cuda.device import Device
from rawnn.data import Dataset
from rawnn.graphs import unrolling as graphplan
from rawnn.sim import Race, Simulation
from tests.engine import make_work, run_on


def each_missing_edge_is_a_race(monkeypatch: pytest.MonkeyPatch, opt: str, layers: tuple[int, ...],
                                data: Dataset, steps: int) -> int:
    """The graph of an epoch of `steps` without one of its edges is caught by the simulated GPU,
    whichever it is; how many there are."""
    derive = graphplan.dependencies
    edges = derive(make_work(opt, layers, data).train.unrolled(steps).ops)
    every = [(before, after) for after, found in enumerate(edges) for before in found]
    for edge in every:
        monkeypatch.setattr(graphplan, "dependencies", lambda ops, edge=edge: [
            tuple(i for i in found if (i, index) != edge)
            for index, found in enumerate(derive(ops))
        ])
        device = Device(Simulation().backend())
        with pytest.raises(Race, match="nothing orders the two"):
            run_on(device, make_work(opt, layers, data), epochs=1)
    return len(every)
