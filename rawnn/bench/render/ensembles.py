"""What `bench many` found: throughput of ensembles and of the best peer."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from statistics import median

from rawnn.bench.peers.ensemble import CALL_EPOCHS
from rawnn.bench.record import Entry, Results
from rawnn.bench.render import charts
from rawnn.bench.render.charts import Axis, Chart, Line
from rawnn.bench.render.grid import Grid
from rawnn.bench.render.networks import (
    NAMES,
    OURS,
    PRECISIONS,
    Network,
    form,
    networks,
    peers_of,
    program,
    system,
)
from rawnn.bench.render.random_networks import SUMMARY, pair, speedup, summaries_of
from rawnn.bench.render.tables import compared, interval, provenance, remarks, time_of, workload
from rawnn.bench.render.texts import factor, three_digits
from rawnn.bench.render.training import subtitle
from rawnn.bench.statistics import geometric_mean
from rawnn.common.words import counted

SHOWN = ("float32 against true float32", "float32 against tf32", "tf32 against tf32",
         "bf16 against bf16")
"""Classes of the summary, of random_networks.CLASSES."""
NAMED = ("ensemble", "members", "class", "rawnn", "best peer", "program", "ratio",
         "95 % interval", "s to result", "peer's s")
RANDOM = "sampled/"
"""How the names of random ensembles begin."""


def measured(results: Results) -> list[Network]:
    """The ensembles that were measured, in order."""
    return [n for n in networks(results, "many") if "layers" in n.entries[0].conditions]


def is_random(network: Network) -> bool:
    return network.name.startswith(RANDOM)


def title(network: Network) -> str:
    """A, or seed 7 of the random ones."""
    name, _, number = network.name.partition("/")
    return f"seed {number}" if is_random(network) else name


def members(entry: Entry) -> int:
    found = entry.conditions.get("members")
    return found if isinstance(found, int) else 1


def rate(entry: Entry) -> float:
    """Million network-steps a second."""
    return members(entry) / median(time_of(entry))


def classes_of(found: Sequence[Network]) -> list[str]:
    """The classes in which some ensemble has both sides, else those of the peers' default."""
    return [name for name in SHOWN if any(speedup(n, name) is not None for n in found)] \
        or list(SHOWN[1:])


def tables(results: Results) -> list[Grid]:
    """The summaries of random and named ensembles, all named ones, and all random ones."""
    found = measured(results)
    random = [n for n in found if is_random(n)]
    named = [n for n in found if not is_random(n)]
    grids = []
    for what, some in (("Random ensembles", random), ("Named ensembles", named)):
        if some:
            entries = [e for n in some for e in n.entries]
            grids.append(Grid(SUMMARY, [s.cells() for s in summaries_of(some, SHOWN)], SUMMARY[:2],
                              f"{what}: time of the peer over that of rawnn",
                              notes=[slower(some)], source=source(results, some), entries=entries))
    if named:
        entries = [e for n in named for e in n.entries]
        grids.append(Grid(
            NAMED, [row for n in named for row in named_rows(n, classes_of(named))],
            (*NAMED[:3], "program"),
            "Million network-steps a second of each named ensemble",
            [f"Seconds to result: of a call from Python, {CALL_EPOCHS} epochs; of a peer its "
             f"setup and as many epochs.", *remarks(entries, program)],
            source(results, named), entries).without_empty(NAMED[-2:]))
    if random:
        entries = [e for n in random for e in n.entries]
        heads = ("ensemble", "members", *classes_of(random))
        grids.append(Grid(heads, [random_row(n, heads[2:]) for n in random], heads[:1],
                          "Each random ensemble: ratio (million network-steps a second of both)",
                          remarks(entries, program), source(results, random), entries))
    return grids


def source(results: Results, found: Sequence[Network]) -> str:
    """Where some ensembles, all named or all random, were measured, and how many were asked for."""
    kind = is_random(found[0])
    asked = {e.case for e in results.entries("many") if "layers" in e.conditions
             and workload(e).startswith(RANDOM) is kind}
    return provenance(results, [e for n in found for e in n.entries],
                      f"{len(found)} of {counted(len(asked), 'ensemble')}, {{runs}}")


def slower(found: Sequence[Network]) -> str:
    """The ensembles and classes in which rawnn is slower, in a sentence."""
    worse = [f"{title(n)} of {members(n.entries[0])} ({name}, {value:.2f} x)"
             for name in SHOWN for n in found
             if (value := speedup(n, name)) is not None and value < 1]
    return f"rawnn is slower in {len(worse)}: {', '.join(worse)}." if worse else \
        "rawnn is slower in none that has a peer's time."


def headline(results: Results) -> str:
    """A paragraph for the first page: the best peer's time over that of rawnn in tf32."""
    found = measured(results)
    place = results.place(found[0].entries[0])
    means = []
    for what in ("random", "named"):
        values = [v for n in found if is_random(n) is (what == "random")
                  and (v := speedup(n, "tf32 against tf32")) is not None]
        if values:
            means.append(f"**{geometric_mean(values)[0]:.2f} x** on {len(values)} {what} ensembles "
                         f"(worst {min(values):.2f} x)")
    return textwrap.fill(
        f"[Many networks at once](docs/guides/many-networks.md), in tf32 against the faster peer: "
        f"{', '.join(means)} ({place.machine.partition(',')[0]}, {place.date[:10]}, "
        f"commit {place.commit[:7]}).", 118, subsequent_indent="  ", break_long_words=False,
        break_on_hyphens=False)


def named_rows(network: Network, classes: Sequence[str]) -> list[list[str]]:
    """A row for each class."""
    rows: list[list[str]] = []
    for name in classes:
        mine, other = pair(network, name)
        if mine is None and other is None:
            continue
        found = compared(other, mine)
        first = not rows
        rows.append([
            f"{title(network)}: {network}" if first else "",
            f"{members(network.entries[0]):,}" if first else "", name,
            three_digits(rate(mine)) if mine else "-", three_digits(rate(other)) if other else "-",
            f"{system(other)} {form(other)}" if other else "",
            f"{factor(found.value)} x{', in the noise' if found.is_noise else ''}"
            if found else "", interval(found, lambda v: f"{v:.2f}") if found else "",
            seconds(mine), seconds(other)])
    return rows


def seconds(entry: Entry | None) -> str:
    """From the call to the result of CALL_EPOCHS epochs."""
    value = None if entry is None else result_seconds(entry)
    return "" if value is None else three_digits(value)


def result_seconds(entry: Entry) -> float | None:
    if system(entry) == OURS:
        return entry.median("call_s")
    setup, steps = entry.median("setup_s"), entry.conditions.get("steps")
    if setup is None or not isinstance(steps, int):
        return None
    return setup + CALL_EPOCHS * steps * median(time_of(entry)) * 1e-6


def random_row(network: Network, classes: Sequence[str]) -> list[str]:
    """An ensemble with its ratio in each class, and both rates."""
    cells = [f"{title(network)}: {network}", f"{members(network.entries[0]):,}"]
    for name in classes:
        mine, other = pair(network, name)
        value = speedup(network, name)
        rates = ", ".join(three_digits(rate(e)) if e else "-" for e in (mine, other))
        cells.append(f"{factor(value)} x ({rates} {system(other)})"
                     if value is not None and other else f"- ({rates})")
    return cells


# -- charts ----------------------------------------------------------------------------------------


def charts_of(results: Results) -> dict[str, Chart]:
    """Throughput of the named ensembles against their members, and all ratios to the best peer."""
    found = measured(results)
    return {name: chart for name, chart in (("many-throughput", throughput(results, found)),
                                            ("many-ratio", ratios(results, found))) if chart}


def throughput(results: Results, found: Sequence[Network]) -> Chart | None:
    """A panel for each named ensemble: the fastest program of each system and precision."""
    parts: dict[str, list[Line]] = {}
    for name in dict.fromkeys(title(n) for n in found if not is_random(n)):
        several = [n for n in found if title(n) == name]
        lines = []
        for who in (OURS, *peers_of(several)):
            for precision in PRECISIONS if who == OURS else PRECISIONS[1:]:
                points = [(float(members(best)), rate(best)) for n in several
                          if (best := n.best((who,), (precision,)))]
                if points:
                    lines.append(Line(f"{NAMES.get(who, who)} {precision}", sorted(points), who,
                                      precision))
        if lines:
            sizes = "-".join(map(str, several[0].layers))
            parts[f"{name}: {sizes}, batch {several[0].batch}"] = lines
    if not parts:
        return None
    named = [n for n in found if not is_random(n)]
    axes = Axis("networks trained at once", "log2"), Axis("million network-steps a second", "log")
    where = subtitle(results, named[0].entries, "the fastest program of each system")
    if len(parts) == 1:
        ((name, lines),) = parts.items()
        return charts.lines(f"Steps of many networks a second, {name}", where, lines, *axes)
    return charts.panels("Steps of many networks a second", where, parts, *axes)


def ratios(results: Results, found: Sequence[Network]) -> Chart | None:
    """Of every ensemble the best peer's time over ours, against its members."""
    series = []
    for name in SHOWN[1:]:
        points = [(float(members(n.entries[0])), value) for n in found
                  if (value := speedup(n, name)) is not None]
        if points:
            mean = geometric_mean([v for _, v in points])[0]
            series.append(Line(f"{name}: geometric mean {mean:.2f}x", points))
    if not series:
        return None
    faster = sum(v > 1 for _, v in series[0].points)
    return charts.scatter(
        f"Faster than the best peer on {faster} of {len(series[0].points)} ensembles",
        subtitle(results, found[0].entries, series[0].label.partition(":")[0]), series,
        Axis("networks trained at once", "log2"), Axis("time of the best peer over rawnn's", "log"))
