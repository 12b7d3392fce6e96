"""What `bench grid` found: speedups over the best peer in the same precision, as heat maps of width
against batch, and cell by cell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rawnn.bench.record import Results
from rawnn.bench.render import random_networks
from rawnn.bench.render.charts import LIGHT, Chart
from rawnn.bench.render.grid import Grid
from rawnn.bench.render.networks import PRECISIONS, Network, networks, program
from rawnn.bench.render.random_networks import NETWORKS, SUMMARY, network_row, summaries_of
from rawnn.bench.render.tables import provenance, remarks
from rawnn.bench.render.texts import factor
from rawnn.bench.render.training import subtitle
from rawnn.bench.statistics import geometric_mean

SHOWN = {"float32": "float32 against true float32", "tf32": "tf32 against tf32",
         "bf16": "bf16 against bf16"}
"""Precision -> its class in random_networks.CLASSES: each against the same."""
AXES = {"width": "width", "batch": "cell_batch", "depth": "depth", "optimizer": "optimizer"}
"""An axis of the grid -> the condition that has it."""
FULL = 4.0
"""A speedup, or its inverse, from which on a cell has its full colour."""
BY = ("axis", "value", *PRECISIONS, "worst")


def speedup(network: Network, precision: str) -> float | None:
    """The best peer's time over ours in one precision."""
    return random_networks.speedup(network, SHOWN[precision])


def place(network: Network, axis: str) -> Any:
    return network.entries[0].conditions.get(AXES[axis], "")


def cells_of(found: Sequence[Network], precision: str, *axes: str) -> dict[Any, list[float]]:
    """The speedups of each combination of values of some axes."""
    cells: dict[Any, list[float]] = {}
    for network in found:
        if (value := speedup(network, precision)) is not None:
            cells.setdefault(tuple(place(network, a) for a in axes), []).append(value)
    return cells


def grid(results: Results) -> list[Grid]:
    """The summary, means by each axis, a heat map of each precision as a table, and every cell."""
    found = networks(results, "grid")
    if not found:
        return []
    entries = [e for n in found for e in n.entries]
    asked = len({e.case for e in results.entries("grid") if "width" in e.conditions})
    source = provenance(results, entries, f"{len(found)} of {asked} cells, " + "{runs}")
    maps = [heat_table(found, p, source) for p in PRECISIONS if cells_of(found, p)]
    lines = summaries_of(found, tuple(SHOWN.values()))
    return [Grid(SUMMARY, [s.cells() for s in lines], SUMMARY[:2], source=source, entries=entries),
            Grid(BY, by_axis(found), BY[:2], "Geometric means by what a cell has", source=source,
                 entries=entries),
            *maps,
            Grid(NETWORKS, [network_row(n) for n in found], NETWORKS[:1],
                 "Microseconds a step; the peer's in brackets is the speedup of rawnn.",
                 remarks(entries, program), source, entries)]


def by_axis(found: Sequence[Network]) -> list[list[str]]:
    """A row for each value of each axis: the geometric mean of each precision, and the worst."""
    rows = []
    for axis in AXES:
        cells = {p: cells_of(found, p, axis) for p in PRECISIONS}
        for (value,) in sorted({key for of in cells.values() for key in of}):
            each = [cells[p].get((value,), []) for p in PRECISIONS]
            rows.append([axis, str(value),
                         *(f"{geometric_mean(v)[0]:.2f} x ({len(v)})" if v else "" for v in each),
                         f"{min(v for several in each for v in several):.2f} x"])
    return rows


def heat_table(found: Sequence[Network], precision: str, source: str) -> Grid:
    """Widths in rows, batches in columns: geometric means over depths and optimizers, with the
    number of cells; the worst is set in bold."""
    cells = cells_of(found, precision, "width", "batch")
    widths, batches = (sorted({key[n] for key in cells}) for n in range(2))
    worst = min(cells, key=lambda key: min(cells[key]))

    def text(key: tuple[Any, Any]) -> str:
        if key not in cells:
            return ""
        mean = f"{geometric_mean(cells[key])[0]:.2f} ({len(cells[key])})"
        return f"**{mean}, worst {min(cells[key]):.2f}**" if key == worst else mean

    heads = ("width", *(f"batch {b:,}" for b in batches))
    return Grid(heads, [[f"{w:,}", *(text((w, b)) for b in batches)] for w in widths], (),
                f"{precision}: geometric mean over depths and optimizers (cells)", source=source,
                entries=[e for n in found for e in n.entries])


def grid_charts(results: Results) -> dict[str, Chart]:
    """A heat map for each precision, side by side."""
    found = networks(results, "grid")
    maps = {p: cells for p in PRECISIONS if (cells := cells_of(found, p, "width", "batch"))}
    if not maps:
        return {}
    return {"grid": heat_map(
        "Speedup over the best peer in the same precision",
        subtitle(results, found[0].entries, "mean over depths and optimizers; the worst is framed"),
        maps)}


def heat_map(title: str, subtitle: str,
             maps: Mapping[str, Mapping[tuple[Any, Any], Sequence[float]]]) -> Chart:
    """Widths upwards, batches to the right; blue where rawnn is faster, red where it is slower; the
    cell with the worst speedup of each map is framed."""
    widths, batches = (sorted({key[n] for cells in maps.values() for key in cells})
                       for n in range(2))

    def draw(several: Any) -> None:
        from matplotlib.patches import Rectangle

        panels = several if len(maps) > 1 else [several]
        for axes, (name, cells) in zip(panels, maps.items(), strict=True):
            worst = min(cells, key=lambda key: min(cells[key]))
            for key, values in cells.items():
                mean = geometric_mean(values)[0]
                x, y = batches.index(key[1]), widths.index(key[0])
                strength = min(abs(math.log(mean)) / math.log(FULL), 1)
                axes.add_patch(Rectangle(
                    (x - 0.48, y - 0.48), 0.96, 0.96, linewidth=0,
                    facecolor=LIGHT["blue" if mean >= 1 else "red"], alpha=0.12 + 0.5 * strength))
                axes.annotate(factor(mean), (x, y), ha="center", va="center", fontsize=7)
                if key == worst:
                    axes.add_patch(Rectangle((x - 0.46, y - 0.46), 0.92, 0.92, fill=False,
                                             edgecolor=LIGHT["ink"], linewidth=1.2))
            axes.set_xlim(-0.5, len(batches) - 0.5)
            axes.set_ylim(-0.5, len(widths) - 0.5)
            axes.set_xticks(range(len(batches)), [f"{b:g}" for b in batches], fontsize=7)
            axes.set_yticks(range(len(widths)), [f"{w:g}" for w in widths])
            mean = geometric_mean([v for values in cells.values() for v in values])[0]
            axes.set_title(f"{name}: geometric mean {mean:.2f}x", loc="left", fontsize=9.5)
            axes.set_xlabel("batch")
        panels[0].set_ylabel("width")

    return Chart(title, subtitle, draw, 1.8 + 0.36 * len(widths), len(maps))
