"""Every program of every system, by workload, by width and by batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from statistics import median

from rawnn.bench.record import Results
from rawnn.bench.render import charts
from rawnn.bench.render.charts import Axis, Chart, Line
from rawnn.bench.render.grid import Grid
from rawnn.bench.render.networks import (
    NAMES,
    ORDER,
    OURS,
    PRECISIONS,
    Network,
    comparison_source,
    form,
    networks,
    peers_of,
    program,
    system,
)
from rawnn.bench.render.random_networks import CLASSES
from rawnn.bench.render.tables import compared, interval, multiple, remarks, time_of
from rawnn.bench.render.texts import factor
from rawnn.bench.render.training import subtitle
from rawnn.common.words import counted

PROGRAMS = ("workload", "system", "precision", "variant", "us/step", "x lower bound",
            "speedup of rawnn", "95 % interval", "losses")
SWEPT = ("float32 against tf32", "tf32 against tf32", "bf16 against bf16")
"""The precisions of rawnn against those of the peers that charts of a sweep show."""


def programs(suite: str) -> Callable[[Results], list[Grid]]:
    """A row for each program of a suite's networks, the fastest of each system first."""

    def grids(results: Results) -> list[Grid]:
        found = networks(results, suite)
        rows = [row for network in found for row in _program_rows(network)]
        entries = [e for network in found for e in network.entries]
        return [Grid(PROGRAMS, rows, (*PROGRAMS[:4], PROGRAMS[-1]),
                     notes=remarks(entries, program), source=comparison_source(
                         results, entries, counted(len(found), "network")), entries=entries)
                .without_empty(PROGRAMS[5:6])] if rows else []

    return grids


def _program_rows(network: Network) -> Iterator[list[str]]:
    order = sorted(network.entries, key=lambda e: (
        (*ORDER, system(e)).index(system(e)), e.precision,
        median(time_of(e)) if time_of(e) else math.inf))
    for place, entry in enumerate(order):
        head = [network.name if not place else "", system(entry), entry.precision, form(entry)]
        if not time_of(entry):
            yield [*head, entry.status, "", "", "", ""]
            continue
        checked = "WRONG" if entry.status == "wrong" else \
            "agree" if "loss_error" in entry else "not compared"
        mine = network.best((OURS,), (entry.precision,))
        ratio = compared(entry, mine) if system(entry) != OURS else None
        yield [*head, f"{median(time_of(entry)):.2f}",
               multiple(entry, network.plan(entry.precision)),
               f"{factor(ratio.value)} x{', in the noise' if ratio.is_noise else ''}"
               if ratio else "", interval(ratio, lambda v: f"{v:.2f}") if ratio else "", checked]


HEADLINE = ("workload", "network", "precision", *NAMES.values(), "speedup over the best peer",
            "x lower bound")


def headline(results: Results) -> list[Grid]:
    """The built-in workloads with the fastest variant of each system, a precision a row."""
    found, rows = networks(results, "peers"), []
    for network in found:
        sizes = "-".join(map(str, network.layers))
        for precision in PRECISIONS:
            each = {s: network.best((s,), (precision,)) for s in NAMES}
            mine, other = each[OURS], network.best(peers_of(found), (precision,))
            ratio = compared(other, mine)
            new = precision == PRECISIONS[0]
            rows.append([f"`{network.name}`" if new else "",
                         f"{sizes}, batch {network.batch}" if new else "", precision,
                         *(f"{median(time_of(e)):.1f}" if e else "" for e in each.values()),
                         f"**{ratio.value:.2f} x**" if ratio else "",
                         multiple(mine, network.plan(precision))])
    entries = [e for network in found for e in network.entries]
    return [Grid(HEADLINE, rows, HEADLINE[:3], source=comparison_source(
        results, entries, counted(len(found), "network")), entries=entries)] if rows else []


def sweep_charts(results: Results) -> dict[str, Chart]:
    """The time of the fastest peer over that of rawnn, against width or batch."""
    several: dict[str, list[Network]] = {}
    for network in networks(results, "sweep"):
        several.setdefault(network.name.split()[0], []).append(network)
    built = {}
    for name, found in sorted(several.items()):
        widths = len({n.layers for n in found}) > 1
        peers = peers_of(found)
        series = []
        for words in SWEPT:
            ours, theirs = CLASSES[words]
            points = [(n.layers[1] if widths else n.batch,
                       median(time_of(other)) / median(time_of(mine))) for n in found
                      if (mine := n.best((OURS,), ours)) and (other := n.best(peers, theirs))]
            if points:
                series.append(Line(words, sorted(points)))
        if series:
            what = "the width of the hidden layers" if widths else "batch"
            built[f"sweep-{name}"] = charts.scatter(
                f"Speedup over the fastest peer, against {what}",
                subtitle(results, found[0].entries, "the fastest variant of each system"), series,
                Axis("width of the hidden layers" if widths else "batch", "log2"),
                Axis("time of the fastest peer over rawnn's", "log"), joined=True)
    return built
