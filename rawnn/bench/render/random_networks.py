"""What random samples of networks say: speedups over the peers by precision, network by network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from rawnn.bench.peers import training_problem as problem
from rawnn.bench.record import Entry, Results
from rawnn.bench.render import charts
from rawnn.bench.render.charts import Axis, Chart, Line
from rawnn.bench.render.grid import Grid
from rawnn.bench.render.networks import (
    NAMES,
    OURS,
    PRECISIONS,
    Network,
    comparison_source,
    networks,
    peers_of,
    program,
    system,
    title,
)
from rawnn.bench.render.tables import compared, multiple, remarks, time_of, workload
from rawnn.bench.render.texts import factor
from rawnn.bench.render.training import subtitle
from rawnn.bench.statistics import geometric_mean

CLASSES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "float32 against true float32": (("float32",), ("float32",)),
    "float32 against tf32": (("float32",), ("tf32",)),
    "tf32 against tf32": (("tf32",), ("tf32",)),
    "bf16 against bf16": (("bf16",), ("bf16",)),
    "fastest against fastest": (PRECISIONS, PRECISIONS),
}
"""A row of the summary -> our precisions and theirs. JAX takes tf32 for float32 unless it is asked
for more, PyTorch with `set_float32_matmul_precision("high")`."""
THREE_FOR_ONE = "float32 against tf32"
"""The class in which rawnn computes three tf32 GEMMs where the others compute one."""
BEST = "the best peer"
CHARTED = ("float32 against tf32", "fastest against fastest")


@dataclass(frozen=True)
class Summary:
    """One class of precisions against one peer, or the better of all: speedups of rawnn by network,
    networks in which ours is not right, and those in which theirs is not."""

    name: str
    against: str
    speedups: Sequence[tuple[float, str]]
    failures: int
    missing: int

    @property
    def mean(self) -> tuple[float, float, float]:
        """The geometric mean with its 95 % interval over the networks."""
        return geometric_mean([value for value, _ in self.speedups])

    @property
    def worst(self) -> tuple[float, str]:
        return min(self.speedups)

    def cells(self) -> list[str]:
        """Its row of the table."""
        failed = str(self.failures) + (f", {self.missing} of theirs" if self.missing else "")
        if not self.speedups:
            return [self.name, self.against, *[""] * 5, failed]
        mean, low, high = self.mean
        worst, where = self.worst
        faster = sum(value > 1 for value, _ in self.speedups)
        return [self.name, self.against, f"{mean:.2f} x", f"{low:.2f}-{high:.2f}",
                f"{median(v for v, _ in self.speedups):.2f} x", f"{worst:.2f} x ({where})",
                f"{faster} of {len(self.speedups)}", failed]


SUMMARY = ("class", "against", "geometric mean", "95 % interval", "median", "worst", "faster in",
           "failed")
NETWORKS = ("network", *(f"{who} {n}" for n in PRECISIONS for who in (OURS, "best peer")))


def pair(network: Network, name: str,
         peers: Sequence[str] = ()) -> tuple[Entry | None, Entry | None]:
    """Ours and the best of some peers, or of all that the network has, in a class of precisions;
    theirs is None where not all of them were asked for it."""
    ours, theirs = CLASSES[name]
    peers = peers or peers_of([network])
    other = network.best(peers, theirs) if network.is_compared(peers, theirs) else None
    return network.best((OURS,), ours), other


def speedup(network: Network, name: str, peers: Sequence[str] = ()) -> float | None:
    """The peer's time over ours in a class of precisions; None where either is missing."""
    return _ratio(*pair(network, name, peers))


def _ratio(mine: Entry | None, other: Entry | None) -> float | None:
    return median(time_of(other)) / median(time_of(mine)) if mine and other else None


def losses(found: Sequence[Network]) -> Iterator[tuple[float, Network, str, Entry, Entry]]:
    """Every network and class in which a peer is faster: the peer's time over ours, and both."""
    for network in found:
        for name in CLASSES:
            mine, other = pair(network, name)
            ratio = _ratio(mine, other)
            if mine and other and ratio is not None and ratio < 1:
                yield ratio, network, name, mine, other


def summarized(found: Sequence[Network], name: str, against: str,
               peers: Sequence[str]) -> Summary:
    """A class of precisions against some peers."""
    speedups, failures, missing = [], 0, 0
    for network in found:
        mine, other = pair(network, name, peers)
        value = _ratio(mine, other)
        failures += mine is None
        missing += mine is not None and other is None \
            and network.is_compared(peers, CLASSES[name][1])
        if value is not None:
            speedups.append((value, title(network.name)))
    return Summary(name, against, speedups, failures, missing)


def summaries(found: Sequence[Network]) -> list[Summary]:
    """Each class against the better of the peers, and against each of them; networks that tensor
    cores bind are shown apart as well."""
    peers = peers_of(found)
    against = [(BEST, peers)] if len(peers) > 1 else []
    against += [(peer, (peer,)) for peer in peers]
    held = {e.precision for network in found for e in network.entries}
    built = []
    for name, (ours, theirs) in CLASSES.items():
        if not (held.intersection(ours) and held.intersection(theirs)):
            continue
        built += [summarized(found, name, words, group) for words, group in against]
        if name == THREE_FOR_ONE and any(n.is_tensor_bound for n in found):
            words, group = against[0]
            built += [replace(summarized([n for n in found if n.is_tensor_bound is bound], name,
                                        words, group), name=f"{name}, {label}")
                     for label, bound in (("tensor-bound", True), ("others", False))]
    return built


def summaries_of(found: Sequence[Network], names: Sequence[str]) -> list[Summary]:
    """Some classes against the better of the peers, and against each of them."""
    peers = peers_of(found)
    against = [(BEST, peers)] if len(peers) > 1 else []
    against += [(peer, (peer,)) for peer in peers]
    lines = [summarized(found, name, words, group) for name in names for words, group in against]
    return [line for line in lines if line.speedups]


def against_best(found: Sequence[Network]) -> list[Summary]:
    """Each class against the better of the peers, or the one that there is, where both are right in
    some network."""
    lines = summaries(found)
    return [s for s in lines if s.against == lines[0].against and s.speedups]


def sample(results: Results) -> list[Grid]:
    """The summary of random networks, and a row for each of them."""
    found = networks(results, "sample")
    if not found:
        return []
    entries = [e for network in found for e in network.entries]
    source = comparison_source(results, entries, f"{len(found)} of {len(asked(results))} networks")
    return [
        Grid(SUMMARY, [s.cells() for s in summaries(found)], SUMMARY[:2],
             notes=[*filter(None, (tensor_bound(found), by_sample(results), setups(found)))],
             source=source, entries=entries),
        Grid(NETWORKS, [network_row(network) for network in found], NETWORKS[:1],
             "Microseconds a step; the peer's in brackets is the speedup of rawnn.",
             remarks(entries, program) or ["Nothing failed, was refused or was wrong."], source,
             entries)]


def asked(results: Results) -> list[str]:
    """All networks of the sample, those that were not reached included."""
    return list(dict.fromkeys(e.case for e in results.entries("sample") if workload(e)))


def tensor_bound(found: Sequence[Network]) -> str:
    """Which networks are tensor-bound, and why they are shown apart; "" where none is."""
    names = [title(n.name) for n in found if n.is_tensor_bound]
    return (f"Tensor-bound ({', '.join(names)}): by this GPU's limits a step's GEMMs take longer "
            f"than memory and exchanges, even in tf32; float32 as three of them cannot be as fast "
            f"there, so that these are shown apart as well.") if names else ""


def samples_of(results: Results) -> list[list[Network]]:
    """The random samples: networks whose seeds follow each other, among those asked for."""
    found = {int(n.name): n for n in networks(results, "sample")}
    seeds = sorted(int(case.partition("/")[2]) for case in asked(results))
    built = [[found[seed] for seed in part if seed in found] for part in problem.samples_of(seeds)]
    return [part for part in built if part]


def by_sample(results: Results) -> str:
    """The geometric means of several samples by themselves: whether another would say the same; ""
    for a single one."""
    parts = samples_of(results)
    if len(parts) < 2:
        return ""
    seeds = ", ".join(f"{p[0].name}-{p[-1].name}" for p in parts)
    means: dict[str, list[str]] = {}
    for part in parts:
        for line in against_best(part):
            means.setdefault(line.name, []).append(f"{line.mean[0]:.2f}")
    words = "; ".join(f"{name} {', '.join(each)}" for name, each in means.items())
    return f"Geometric means of the random samples (seeds {seeds}) by themselves: {words}."


def setup_medians(found: Sequence[Network]) -> dict[str, float]:
    """System -> the median over the networks of the seconds until the program that was fastest in
    the end was ready."""
    each = {name: [s for n in found if (e := n.best((name,), PRECISIONS))
                   for s in e.samples("setup_s")] for name in (OURS, *peers_of(found))}
    return {name: median(seconds) for name, seconds in each.items() if seconds}


def break_even_steps(found: Sequence[Network]) -> list[float]:
    """For each network, the number of steps from which setup and steps of rawnn take less time
    than those of every peer, each with its fastest program: 0 where rawnn is ahead from the start,
    infinity where it never is."""
    steps = []
    for network in found:
        costs = {}
        for name in (OURS, *peers_of([network])):
            best = network.best((name,), PRECISIONS)
            setup = best.median("setup_s") if best else None
            if best and setup is not None:
                costs[name] = setup, median(time_of(best)) * 1e-6
        if OURS in costs and len(costs) > 1:
            setup, step = costs.pop(OURS)
            steps.append(max(_break_even(setup - other, step - theirs)
                             for other, theirs in costs.values()))
    return steps


def _break_even(setup: float, step: float) -> float:
    """The least n from which `setup + n * step` is at most 0; infinity if it is not for large n."""
    if step >= 0:
        return 0.0 if setup <= 0 and step == 0 else math.inf
    return max(0.0, math.ceil(setup / -step))


def setups(found: Sequence[Network]) -> str:
    """What making a network's programs ready took each system, in a sentence: the compilation that
    no time of a step covers. Medians over the networks, of the program that was fastest in the end
    and of all that were tried."""
    fastest = [f"{name} {value:.1f}" for name, value in setup_medians(found).items()]
    every = []
    for name in (OURS, *peers_of(found)):
        sums = [sum(s) for n in found if (s := [x for e in n.entries if system(e) == name
                                                for x in e.samples("setup_s")])]
        every += [f"{name} {median(sums):.1f}"] if sums else []
    return (f"Seconds until a network's fastest program was ready, several at a time on all cores, "
            f"in the median: {', '.join(fastest) or 'none was right'} (all that were tried: "
            f"{', '.join(every)}).")


def network_row(network: Network) -> list[str]:
    """A network's row below NETWORKS."""
    peers = peers_of([network])
    row = [f"{title(network.name)}: {network}{', tensor-bound' if network.is_tensor_bound else ''}"]
    for precision in PRECISIONS:
        mine = network.best((OURS,), (precision,))
        other = network.best(peers, (precision,)) \
            if network.is_compared(peers, (precision,)) else None
        bound = multiple(mine, network.plan(precision))
        row.append("-" if mine is None else f"{median(time_of(mine)):.2f}"
                   + (f" ({bound} x lower bound)" if bound else ""))
        found = compared(other, mine)
        row.append("-" if other is None else f"{median(time_of(other)):.2f} {system(other)}" + (
            f" ({factor(found.value)} x{', in the noise' if found.is_noise else ''})"
            if found else ""))
    return row


def sample_charts(results: Results) -> dict[str, Chart]:
    """The speedup against the size of a step, a dot for each network."""
    found = networks(results, "sample")
    peers = peers_of(found)
    series = []
    for name in CHARTED:
        points = [(n.multiply_adds, value) for n in found
                  if (value := speedup(n, name)) is not None]
        if points:
            mean = geometric_mean([v for _, v in points])[0]
            series.append(Line(f"{name}: geometric mean {mean:.2f}x", points))
    if not series:
        return {}
    faster = sum(v > 1 for v in (p[1] for p in series[0].points))
    who = " and ".join(NAMES.get(p, p) for p in peers)
    return {"sample": charts.scatter(
        f"Faster than the better of {who} on {faster} of {len(series[0].points)} random networks",
        subtitle(results, found[0].entries, series[0].label.partition(":")[0]), series,
        Axis("multiply-adds of a step's GEMMs", "log"),
        Axis("time of the faster peer over rawnn's", "log"))}
