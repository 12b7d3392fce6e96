"""How far two series of times are apart, and how far noise alone takes them.

What is compared is the ratio of the medians, B over A, in logarithms. Interval and p-value come
from a bootstrap of residuals: a handful of runs cannot say how noisy they are by themselves, so
each pair's variance is drawn towards the usual one of its like (empirical Bayes as in Smyth 2004,
with a fixed weight), and the shape of the noise is taken from all residuals together.

Two runs of a command differ by more than the repetitions within one: other clocks, another place in
memory, another GPU of the same kind. How much more is estimated from the pairs, of which four in
five are taken not to have changed, for each suite by itself, and for sets that the host launches
apart from those that it does not (a random effect as in DerSimonian and Laird 1986, fitted by a
quantile as genomic control is, Devlin and Roeder 1999). Few pairs do not know it, whatever their
repetitions say: it is drawn towards what is usual for graphs and for sets that the host launches
(USUAL). P-values are adjusted for the number of pairs (Holm 1979).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache

import msgspec
import numpy as np
from numpy.typing import NDArray

RESAMPLES = 20_000
PRIOR = 4.0
"""Degrees of freedom that the usual variance of a pair's like counts as."""
SMALLEST_NOISE = 2e-4
"""Below this no clock tells two runs apart: CUDA events tick every 0.5 us."""

GRAPHS, HOST = "graphs", "sets launched by the host"
USUAL = {GRAPHS: 0.016, HOST: 0.08}
"""A standard deviation, as a share of the time, by which a set differs between two runs of a
command where nothing else is known. Two runs of `bench all` of one commit, at once on two H200s of
one host, differed by 0.4 % in 159 graphs (1.5 % at most) and by 11 % in 43 sets launched by the
host; a short run some minutes after another by up to 3 % in four graphs."""
WEIGHT = 4.0
"""Pairs that the usual counts as, beside those that there are."""
ENOUGH = 10
"""Pairs of a suite from which on they stand for themselves."""
UNCHANGED = 0.8
"""The share of the pairs that are taken not to have changed."""
QUANTILE = 1.2816
"""That quantile of the absolute value of a normal variable of unit variance."""
FREEDOM, TAILS = 5, 1.2816 / 1.4759
"""There are outliers among sets that the host launches, 1.44 times the time among those 43, and
among graphs: a GPU may run one at either of two speeds, clocks alike, of which one run sees one. Of
140 that an H200 ran again a quarter of an hour later, mostly once, half were within 0.9 %, four in
five within 6 %, and nine 12 to 16 % apart. This noise of both is Student's t of so many degrees,
scaled to have the normal distribution's quantile."""

Logs = Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]]


class Apart(msgspec.Struct, frozen=True, kw_only=True):
    """How far a pair of series is apart, in natural logarithms: the `difference` of the medians
    with its 95 % interval, and `p`, the chance of one as large without a cause, adjusted for all
    pairs."""

    difference: float
    low: float
    high: float
    p: float


def kinds_of(suites: Sequence[str], by_host: Sequence[bool], what: str = "") -> list[str]:
    """A name for each pair that those have in common whose noise is of one kind: of one suite where
    there are enough, and launched by the host or not. `what` is said in front of it."""
    words = [what + (HOST if host else GRAPHS) for host in by_host]
    own = [f"{word} of {suite}" for word, suite in zip(words, suites, strict=True)]
    many = Counter(own)
    return [name if many[name] >= ENOUGH else word for name, word in zip(own, words, strict=True)]


def judged(pairs: Sequence[tuple[list[float], list[float]]], kinds: Sequence[str],
           by_host: Sequence[bool], level: float, seed: int
           ) -> tuple[list[Apart], dict[str, float]]:
    """How far each pair of series is apart, and by how much two runs differ beyond what repetitions
    explain (a standard deviation), for each of the `kinds`. P-values are fine enough for the
    `level`."""
    if not pairs:
        return [], {}
    logs = [(np.log(a), np.log(b)) for a, b in pairs]
    scales = _scales(logs, by_host)
    pool = _residuals(logs, scales)
    generator = np.random.default_rng(seed)
    # The smallest p-value that resampling can find must be below the level after adjustment.
    count = max(RESAMPLES, math.ceil(4 * len(pairs) / level))
    differences = np.array([float(np.median(b) - np.median(a)) for a, b in logs])
    spread = cache(lambda a, b: _spread_of_medians(pool, a, b))
    errors = np.array([scale * spread(len(a), len(b))
                       for (a, b), scale in zip(logs, scales, strict=True)])
    between = {}
    for kind, host in dict(zip(kinds, by_host, strict=True)).items():
        place = np.array([k == kind for k in kinds])
        between[kind] = _between(differences[place], errors[place], USUAL[HOST if host else GRAPHS])
    # Noise of unit size depends on the numbers of runs alone: one sample of it serves all pairs of
    # those, each scaled by its own. Each p-value is what it would be from a sample of its own.
    unit = cache(lambda a, b: _medians(generator, pool, b, count)
                 - _medians(generator, pool, a, count))
    others = {True: TAILS * generator.standard_t(FREEDOM, count),
              False: generator.standard_normal(count)}
    found = []
    for (a, b), scale, difference, kind, host in zip(logs, scales, differences.tolist(), kinds,
                                                     by_host, strict=True):
        once = min(len(a), len(b)) == 1
        noise = scale * unit(len(a), len(b)) + between[kind] * others[host or once]
        low, high = np.quantile(noise, [0.025, 0.975], overwrite_input=True)  # in another order now
        beyond = int(np.count_nonzero(np.abs(noise) >= abs(difference)))
        found.append((difference, difference - high, difference - low,
                      (1 + beyond) / (1 + count)))
    adjusted = holm([p for *_, p in found])
    return [Apart(difference=d, low=low, high=high, p=p)
            for (d, low, high, _), p in zip(found, adjusted, strict=True)], between


def _between(differences: NDArray[np.float64], errors: NDArray[np.float64],
             usual: float) -> float:
    """The standard deviation by which two runs differ beyond the errors of their medians: that with
    which four in five of the differences from the middle one are within that quantile of a normal
    distribution, drawn towards the usual one."""
    apart = np.abs(differences - np.median(differences))

    def excess(more: float) -> float:
        return float(np.quantile(apart / np.hypot(errors, more), UNCHANGED)) - QUANTILE

    low, high = 0.0, 2 * float(apart.max())
    if high == 0 or excess(low) <= 0:
        high = 0.0
    else:
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    freedom = len(differences) - 1
    return math.sqrt((WEIGHT * usual**2 + freedom * high**2) / (WEIGHT + freedom))


def _spread_of_medians(pool: NDArray[np.float64], a: int, b: int) -> float:
    """The standard deviation of the difference of two medians, of noise of unit variance."""
    generator = np.random.default_rng(2)
    return float((_medians(generator, pool, b, 2000) - _medians(generator, pool, a, 2000)).std())


def _scales(logs: Logs, by_host: Sequence[bool]) -> list[float]:
    """The noise of one run of each pair: its own standard deviation, drawn towards the usual one of
    graphs, or of sets that the host launches."""
    sums = [(sum(float(((x - np.median(x)) ** 2).sum()) for x in pair), len(pair[0]) + len(pair[1])
             - 2) for pair in logs]
    usual = {}
    for host in (True, False):
        known = [total / freedom for (total, freedom), here in zip(sums, by_host, strict=True)
                 if freedom > 0 and here is host]
        usual[host] = max(float(np.median(known)) if known else 0.0, SMALLEST_NOISE**2)
    return [math.sqrt((PRIOR * usual[host] + total) / (PRIOR + freedom))
            for (total, freedom), host in zip(sums, by_host, strict=True)]


def _residuals(logs: Logs, scales: Sequence[float]) -> NDArray[np.float64]:
    """All distances from the medians in units of each pair's noise, with unit variance; normal ones
    where there are too few to have a shape."""
    found = [(x - np.median(x)) / scale for pair, scale in zip(logs, scales, strict=True)
             for x in pair if len(x) > 2]
    pool = np.concatenate([*found, *(-f for f in found)]) if found else np.zeros(0)
    pool = pool[pool != 0]  # each series' median itself
    if len(pool) < 40:
        return np.random.default_rng(1).standard_normal(4001)
    unit: NDArray[np.float64] = pool / pool.std()
    return unit


def _medians(generator: np.random.Generator, pool: NDArray[np.float64],
             runs: int, count: int) -> NDArray[np.float64]:
    drawn: NDArray[np.float64] = np.median(generator.choice(pool, (count, runs)), axis=1)
    return drawn


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted so that the chance of any false alarm keeps below the level (Holm 1979)."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def overall(ratios: Sequence[float], seed: int) -> tuple[float, float, float] | None:
    """Geometric mean of ratios and its bootstrap 95 % interval over the pairs; None without any."""
    if not ratios:
        return None
    logs = np.log(ratios)
    drawn = np.random.default_rng(seed).choice(logs, (RESAMPLES, len(logs))).mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return math.exp(float(logs.mean())), math.exp(float(low)), math.exp(float(high))
