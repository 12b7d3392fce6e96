"""Loss curves, and what networks of several sizes learn in as many steps, and how fast."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from rawnn.bench.record import Entry, Results
from rawnn.bench.render import charts
from rawnn.bench.render.charts import Axis, Chart, Line
from rawnn.bench.render.grid import Grid
from rawnn.bench.render.networks import (
    NAMES,
    Network,
    form,
    networks,
    program,
    system,
)
from rawnn.bench.render.tables import is_measured, provenance, remarks, workload
from rawnn.bench.render.training import subtitle

EXACT = "float64"
"""The precision of the run that the others are compared with."""
LAST = 50
"""Steps whose mean loss is what a network has reached."""
CURVES = ("workload", "system", "precision", "variant", "first loss", "last loss",
          "tolerance used")


def last_loss(entry: Entry) -> float | None:
    """The mean loss of the last LAST steps; None where the curve ends in a loss that is not
    finite."""
    tail = entry.samples("loss")[-LAST:]
    return None if entry.status == "wrong" or not tail else sum(tail) / len(tail)


def curves(results: Results) -> list[Grid]:
    """Where each curve begins and ends."""
    entries = [e for e in results.entries("curves") if workload(e) and e.status != "not measured"]
    rows = []
    for e in entries:
        losses, last, error = e.samples("loss"), last_loss(e), e.median("loss_error")
        rows.append([workload(e), system(e), e.precision, form(e),
                     f"{losses[0]:.5f}" if losses else e.reason,
                     "" if not losses else "not finite" if last is None else f"{last:.5f}",
                     "" if error is None else f"{error:.0%}"])
    longest = {str(max(len(e.samples("loss")) for e in n.entries))
               for n in networks(results, "curves")}
    steps = ", ".join(sorted(longest, key=int))
    return [Grid(CURVES, rows, CURVES[:4], notes=remarks(entries, program), source=provenance(
        results, entries, f"{steps} steps from the same weights on the same batches"),
        entries=entries)] if rows else []


def curve_charts(results: Results) -> dict[str, Chart]:
    """How far the losses of each workload are from those in float64, and speed and loss over the
    size of the networks."""
    found = networks(results, "curves")
    built = {}
    for network in found:
        exact = next((e.samples("loss") for e in network.entries if e.precision == EXACT), [])
        lines = [Line(f"{NAMES.get(system(e), system(e))} {e.precision}, {form(e)}", points,
                      system(e), e.precision) for e in network.entries
                 if "loss" in e and e.precision != EXACT
                 and (points := _windows(e.samples("loss"), exact))]
        if not lines:
            continue
        title, label = (f"Loss of {network.name}: distance from float64", "|loss - loss in float64|"
                        ) if exact else (f"Loss of {network.name}, step by step", "loss")
        built[f"curves-{network.name}"] = charts.lines(
            title, subtitle(results, network.entries, f"{network}"), lines, Axis("step"),
            Axis(label, "log", lambda v: f"{v:.3g}"), marked=False)
    if len({n.weights for n in found if n.layers}) > 1:
        built |= _by_size(results, found)
    return built


def _windows(losses: Sequence[float], exact: Sequence[float]) -> list[tuple[float, float]]:
    """A curve as means of a hundred windows: distances from the `exact` losses of the same steps,
    where there are any, else losses. Windows of no distance, which a log scale cannot show, are
    left out."""
    values = [abs(a - b) for a, b in zip(losses, exact, strict=False)] if exact else list(losses)
    size = max(1, len(values) // 100)
    means = ((at, sum(values[at:at + size]) / size)
             for at in range(0, len(values) - size + 1, size))
    return [(at, mean) for at, mean in means if mean > 0]


def _by_size(results: Results, found: Sequence[Network]) -> dict[str, Chart]:
    """Examples a second and the last loss against the size of a network, of the fastest variant."""
    speed: dict[tuple[str, str], list[tuple[float, float]]] = {}
    loss: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for network in found:
        for key in {(system(e), e.precision) for e in network.entries if is_measured(e)}:
            best = network.best(key[:1], key[1:])
            if best is None or "step_us" not in best:
                continue
            us = median(best.samples("step_us"))
            speed.setdefault(key, []).append((network.weights, network.batch / us * 1e6))
            if (last := last_loss(best)) is not None:
                loss.setdefault(key, []).append((network.weights, last))
    words = subtitle(results, found[0].entries, "the fastest variant of each system")
    x = Axis("weights of the network", "log", lambda v: f"{v:,.0f}")
    return {name: charts.lines(title, words, [
        Line(f"{NAMES.get(who, who)} {precision}", sorted(points), who, precision)
        for (who, precision), points in sorted(series.items())], x, y)
            for name, title, series, y in (
                ("curves-by-size-speed", "Examples a second over the size of the network", speed,
                 Axis("examples a second", "log", lambda v: f"{v / 1e6:g} M")),
                ("curves-by-size-loss", "Loss at the end of the curves over the size", loss,
                 Axis("loss at the end of the curves", "log"))) if series}
