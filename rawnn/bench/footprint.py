"""Why a step takes as long as it does: its launches, the bytes that they move, and what no program
could do without."""

from __future__ import annotations

from typing import Any

import msgspec

from rawnn.bench.costing import Bound, least_time
from rawnn.bench.floors import kept
from rawnn.bench.moved import least, moved
from rawnn.engine.machine import Opened
from rawnn.engine.runners.prepared_run import PreparedRun

NO_FLOORS = "x floor: left out, as no limits of this GPU with this driver are kept; `python -m " \
            "rawnn bench floors` measures them"


class Footprint(msgspec.Struct, frozen=True, kw_only=True):
    """`launches` of kernels, library calls and copies a step, 0 on the host; `bytes` that they read
    and write by the plan, a tensor counted as often as an op touches it (what a library keeps for
    itself is not known); `least_bytes` that any program must move: each example and its answer
    once, parameters and optimizer state read and written once. `nodes` of the graph, None without
    one; `steps` of an epoch. `floor` is the least time of a step by this GPU's limits, None where
    they are not kept.
    """

    launches: float
    bytes: int
    least_bytes: int
    nodes: int | None = None
    steps: int = 0
    floor: Bound | None = None


def footprint(work: PreparedRun, facts: dict[str, Any], opened: Opened) -> Footprint:
    """Of a run's measured step; `facts` are what its runner describes."""
    plan = work.train
    launches = len(plan.ops) / plan.steps if opened.device else 0.0
    return Footprint(launches=launches, bytes=moved(plan) // plan.steps,
                     least_bytes=least(plan) // plan.steps, nodes=facts.get("graph_nodes"),
                     steps=work.updates, floor=_floor(work, opened))


def _floor(work: PreparedRun, opened: Opened) -> Bound | None:
    device = opened.device
    found = kept(device.info.name, device.info.driver) if device else None
    return least_time(work.train, found.result) if found else None


def traffic(print_: Footprint | None) -> tuple[str, str, str]:
    """The texts under columns.TRAFFIC: launches of a step, nodes of the graph, and megabytes that a
    step moves; empty where that is not known, there is no graph, or nothing is launched."""
    if print_ is None or not print_.launches:
        return "", "", ""
    nodes = "" if print_.nodes is None else f"{print_.nodes:,}"
    return f"{print_.launches:.3g}", nodes, f"{print_.bytes / 1e6:.3g}"


def x_floor(us: float | None, print_: Footprint | None) -> str:
    """How many times the least time a step took; "" where that is not known."""
    if us is None or print_ is None or print_.floor is None or print_.floor.us <= 0:
        return ""
    factor = us / print_.floor.us
    return f"{factor:.2f}" if factor < 10 else f"{factor:.0f}"
