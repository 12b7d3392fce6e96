"""Two ladders in one table: one that is kept, and the reader's own."""

from __future__ import annotations

from rawnn.bench.record import Results
from rawnn.bench.render.grid import Grid
from rawnn.bench.render.tables import machine
from rawnn.bench.render.texts import factor, milliseconds
from rawnn.bench.render.training import SIMULATED, rungs


def ladder_comparison(first: Results, second: Results) -> Grid:
    """Milliseconds an epoch and the speedup over the baseline of both, a row for each rung that
    both have. It has no ratio of the two: GPUs and epochs may differ."""
    found = [{entry.variant: entry for entry in rungs(results)} for results in (first, second)]
    places = [results.place(rungs(results)[0]) for results in (first, second)]
    rows = []
    for name in (name for name in found[0] if name in found[1]):
        row = [f"`{name}`"]
        for ladder in found:
            base = next(iter(ladder.values())).median("epoch_ms")
            value = ladder[name].median("epoch_ms")
            row += [milliseconds(value) if value else ladder[name].status,
                    factor(base / value) if base and value else ""]
        rows.append(row)
    names = [machine(place).partition(",")[0] for place in places]
    columns = ("epoch (ms)", "x baseline")
    heads = ["rung", *(f"{name}: {what}" for name in names for what in columns)]
    notes = [SIMULATED] if any(place.device == "sim" for place in places) else []
    return Grid(heads, rows, heads[:1], notes=notes)
