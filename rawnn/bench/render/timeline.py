"""Timelines of the ladder: a training step before and after an optimization.

A timeline joins two facts. A simulated driver says which calls and ops there are, in which order,
and what runs side by side. A results file says how long a step takes. Boxes within a step have no
measured length and are drawn alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from rawnn.bench.driver_calls import WAITS, DriverCalls, driver_calls
from rawnn.bench.record import Entry, Results
from rawnn.bench.render.charts import LIGHT, SMALL, Chart
from rawnn.bench.render.training import rungs, subtitle
from rawnn.common.errors import ConfigError
from rawnn.graphs.unrolling import GraphPlan
from rawnn.plan.op import Op

PYTHON, WAIT, COPY, GEMM, ELEMENTS, UPDATE, FUSED = (
    "Python calls the driver", "Python waits", "gather or copy", "GEMM", "loss, bias, activation",
    "update", "several in one kernel")
COLOURS = {PYTHON: "bar", WAIT: "red", COPY: "grey", GEMM: "blue", ELEMENTS: "orange",
           UPDATE: "green", FUSED: "purple"}
PYTHON_LANE = "Python"
FILLED = 0.82
"""The share of its slot that a box fills."""
TOGGLES_NOTE = "toggles: "
"""What a note of an entry begins with that lists the toggles of its run."""


@dataclass(frozen=True)
class Box:
    """Something in a lane from `start` on, in microseconds."""

    lane: str
    kind: str
    start: float
    length: float


def timeline(results: Results, rung: str) -> Chart:
    """A step of a rung of the ladder below a step of the rung before it, on one scale.

    results: of `bench ladder`.
    rung: its name, such as "nosync"; not the first.
    Raises ConfigError for a rung that the results do not have.
    """
    found = rungs(results)
    at = next((n for n, entry in enumerate(found) if entry.variant == rung), 0)
    if not at:
        names = ", ".join(entry.variant for entry in found[1:])
        raise ConfigError(f"the results have no rung '{rung}' with one before it; they have "
                          f"{names}")
    pair = found[at - 1:at + 1]
    window = max(step_us(entry) for entry in pair)

    def draw(axes: Any) -> None:
        _draw(axes, [(entry.variant, boxes(calls_of(entry), step_us(entry), window))
                     for entry in pair], window)

    title = (f"Step {at}, {rung}: a training step of {step_us(pair[0]):.1f} µs becomes "
             f"{step_us(pair[1]):.1f} µs")
    return Chart(title, subtitle(results, pair), draw, 3.1)


def step_us(entry: Entry) -> float:
    """Microseconds of a step. Raises ConfigError for a rung that was not measured."""
    value = entry.median("step_us")
    if value is None:
        raise ConfigError(f"{entry.variant} was not measured: {entry.reason or entry.status}")
    return value


def calls_of(entry: Entry) -> DriverCalls:
    """What a simulated GPU records of the toggles of an entry."""
    note = next((n for n in entry.notes if n.startswith(TOGGLES_NOTE)), None)
    if note is None:
        raise ConfigError(f"{entry.variant} does not say which toggles it ran with")
    layers, batch = entry.conditions.get("layers"), entry.conditions.get("batch")
    assert isinstance(layers, list)
    assert isinstance(batch, int)
    return _recorded(f"none,{note.removeprefix(TOGGLES_NOTE)}", tuple(map(int, layers)), batch)


@cache
def _recorded(toggles: str, layers: tuple[int, ...], batch: int) -> DriverCalls:
    return driver_calls(toggles, layers, batch, is_reported="report=" not in toggles)


def kind_of(op: Op) -> str:
    """The group of an op, which has a colour."""
    if op.kind in ("gather", "upload") or op.kind.startswith("copy"):
        return COPY
    if op.kind in ("train_steps", "linear_forward", "linear_update") or "narrow" in op.kind:
        return FUSED
    if op.kind.startswith("matmul"):
        return GEMM
    if any(name.endswith((".weight", ".bias")) for name, _ in op.writes):
        return UPDATE
    return ELEMENTS


# -- where the boxes stand -------------------------------------------------------------------------


def boxes(calls: DriverCalls, us: float, window: float) -> list[Box]:
    """What happens within `window` microseconds, if a step takes `us`."""
    if calls.is_whole:
        return [Box(PYTHON_LANE, PYTHON, 0.0, us / 4), Box("GPU", FUSED, us / 4, window)]
    if calls.graph:
        return list(_of_graph(calls.graph, len(calls.ops), us, window))
    return list(_of_calls(calls, us, window))


def _of_calls(calls: DriverCalls, us: float, window: float) -> Iterator[Box]:
    """Ops launched one by one: a slot for each call, and the op in the slot behind its call."""
    slot = us / len(calls.step_calls)
    for step in range(int(window / us) + 1):
        ops = iter(calls.ops)
        for place, call in enumerate(calls.step_calls):
            start = step * us + place * slot
            if call in WAITS:
                yield Box(PYTHON_LANE, WAIT, start, slot * FILLED)
                continue
            yield Box(PYTHON_LANE, PYTHON, start, slot * FILLED)
            op = None if "Memcpy" in call else next(ops, None)
            yield Box("GPU", kind_of(op) if op else COPY, start + slot / 2, slot * FILLED / 2)


def _of_graph(graph: GraphPlan, ops: int, us: float, window: float) -> Iterator[Box]:
    """The nodes of a graph with so many `ops` a step: each as soon as those that it waits for are
    done, independent ones in lanes of their own."""
    steps = min(int(window / us) + 2, graph.plan.steps)
    shown = steps * ops
    levels: list[int] = []
    for before in graph.edges()[:shown]:
        levels.append(1 + max((levels[i] for i in before), default=-1))
    slot = us * steps / (max(levels) + 1)
    used: dict[int, int] = {}
    for op, level in zip(graph.plan.ops, levels, strict=False):
        lane = used.setdefault(level, 0)
        used[level] += 1
        yield Box("GPU" if not lane else f"GPU, branch {lane + 1}", kind_of(op), level * slot,
                  slot * FILLED)
    launch = graph.plan.steps * us
    for number in range(int(window / launch) + 1):
        yield Box(PYTHON_LANE, PYTHON, number * launch, us / 4)


# -- drawing ---------------------------------------------------------------------------------------


def _draw(axes: Any, strips: Sequence[tuple[str, list[Box]]], window: float) -> None:
    from matplotlib.patches import Patch

    names: list[str] = []
    kinds: dict[str, None] = {}
    for rung, found in strips:
        lanes = {box.lane for box in found}
        for lane in sorted(lanes, key=lambda name: (name != PYTHON_LANE, name)):
            place = len(names)
            names.append(f"{rung}: {lane}")
            for box in found:
                if box.lane != lane or box.start >= window:
                    continue
                kinds[box.kind] = None
                axes.broken_barh([(box.start, min(box.length, window - box.start))],
                                 (place - 0.36, 0.72), color=LIGHT[COLOURS[box.kind]], linewidth=0)
        if rung != strips[-1][0]:
            axes.axhline(len(names) - 0.5, color=LIGHT["muted"], linewidth=0.8)
    axes.set_xlim(0, window)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("µs; steps are to scale, boxes in them show the order only")
    axes.grid(axis="x")
    axes.legend(handles=[Patch(color=LIGHT[COLOURS[kind]], label=kind)
                         for kind in COLOURS if kind in kinds],
                loc="upper center", bbox_to_anchor=(0.4, -0.22), ncols=3, fontsize=SMALL)
