"""Whether one results file is slower than another, set by set.

Series are paired by suite and set. What a pair says is the ratio of its medians, B over A, so above
1 is slower. Interval and p-value come from a bootstrap of residuals: a handful of runs cannot say
how noisy they are by themselves, so each pair's variance is drawn towards the usual one of all
pairs (empirical Bayes as in Smyth 2004, with a fixed weight), and the shape of the noise is taken
from all residuals together. Two runs of a command differ by more than the repetitions within one:
other clocks, another place in memory, another GPU of the same kind. How much more is estimated from
the pairs, of which four in five are taken not to have changed, for each suite by itself, and for
sets that the host launches apart from those that it does not (a random effect as in DerSimonian and
Laird 1986, fitted by a quantile as genomic control is, Devlin and Roeder 1999). P-values are
adjusted for the number of pairs (Holm 1979). A difference counts if it is significant and at least
as large as the smallest effect that counts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from rawnn.bench.series import Series, SeriesFile
from rawnn.errors import ConfigError

EFFECT = 0.03
"""The smallest effect that counts, as a share of the time."""
LEVEL = 0.05
"""The chance of one false alarm in a whole comparison."""
RESAMPLES = 20_000
PRIOR = 4.0
"""Degrees of freedom that the usual variance of all pairs counts as."""
ENOUGH = 10
"""Pairs from which on it is known how much two runs of a command differ."""
UNCHANGED = 0.8
"""The share of the pairs that are taken not to have changed."""
QUANTILE = 1.2816
"""That quantile of the absolute value of a normal variable of unit variance."""
SMALLEST_NOISE = 2e-4
"""Below this no clock tells two runs apart: CUDA events tick every 0.5 us."""

Verdict = Literal["slower", "faster", "same", "noise", "lost", "new", "not measured"]
MEANING: dict[str, str] = {
    "slower": "significantly slower, by at least the smallest effect that counts",
    "faster": "significantly faster, by at least the smallest effect that counts",
    "same": "not further apart than the smallest effect that counts",
    "noise": "further apart than that, but not significantly: measure more often",
    "lost": "measured in A, but not any more in B",
    "new": "only in B",
    "not measured": "in neither",
}


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """One set in both files: `ratio` is the median of B over that of A, `low` and `high` its 95 %
    interval, `p` the chance of such a difference without a cause, adjusted for all pairs."""

    suite: str
    set: str
    verdict: Verdict
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    runs: tuple[int, int] = (0, 0)
    reason: str = ""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All pairs of two files. `overall` is the geometric mean of the ratios, with its interval
    over the pairs, None without any. `between` is by how much (a standard deviation, as a share of
    the time) sets differ between the files beyond what their repetitions explain, by a name for the
    sets; those of which too few are paired to know are not in it."""

    a: str
    b: str
    effect: float
    level: float
    notes: list[str]
    pairs: list[Pair]
    overall: tuple[float, float, float] | None
    between: dict[str, float] = {}

    @property
    def regressions(self) -> list[Pair]:
        """What makes B worse than A."""
        return [pair for pair in self.pairs if pair.verdict in ("slower", "lost")]


def compare(a: SeriesFile, b: SeriesFile, effect: float = EFFECT, level: float = LEVEL,
            seed: int = 0) -> Comparison:
    """Compare two files. Raises ConfigError where they have no set in common."""
    first, second = ({(s.suite, s.set): s for s in file.series} for file in (a, b))
    both = [key for key in first if key in second]
    if not both:
        raise ConfigError(f"{a.path} and {b.path} have no set in common: A has "
                          f"{_some(a.series)}, B has {_some(b.series)}")
    timed = [key for key in both if first[key].times and second[key].times]
    found, between = _judged([(first[k].times, second[k].times) for k in timed],
                             _alike(timed, [first[k].host or second[k].host for k in timed]),
                             effect, level, seed)
    judged = dict(zip(timed, found, strict=True))
    pairs = [judged_pair(first[key], second.get(key), judged.get(key)) for key in first]
    pairs += [Pair(suite=s.suite, set=s.set, verdict="new" if s.times else "not measured",
                   runs=(0, len(s.times)), reason=s.reason)
              for key, s in second.items() if key not in first]
    return Comparison(a=a.path, b=b.path, effect=effect, level=level, notes=_notes(a, b),
                      pairs=pairs, overall=_overall([p.ratio for p in pairs if p.ratio], seed),
                      between=between)


def judged_pair(mine: Series, other: Series | None, figures: _Figures | None) -> Pair:
    """A pair with what was found out about it. A set that B does not have at all was not asked of
    it; one that B could not run is lost."""
    runs = (len(mine.times), len(other.times) if other else 0)
    if figures is not None and other is not None:
        return Pair(suite=mine.suite, set=mine.set, verdict=figures.verdict, ratio=figures.ratio,
                    low=figures.low, high=figures.high, p=figures.p, runs=runs,
                    reason=other.reason)
    lost = bool(mine.times) and other is not None
    new = not mine.times and other is not None and bool(other.times)
    return Pair(suite=mine.suite, set=mine.set, runs=runs,
                verdict="lost" if lost else "new" if new else "not measured",
                reason=other.reason if other else "B does not have it")


class _Figures(msgspec.Struct, frozen=True, kw_only=True):
    verdict: Verdict
    ratio: float
    low: float
    high: float
    p: float


def _alike(keys: Sequence[tuple[str, str]], by_host: Sequence[bool]) -> list[str]:
    """A name for each pair that those have in common whose noise is of one kind: of one suite where
    there are enough, and launched by the host or not."""
    words = ["graphs", "sets launched by the host"]
    own = [f"{words[host]} of {suite}" for (suite, _), host in zip(keys, by_host, strict=True)]
    many = Counter(own)
    return [name if many[name] >= ENOUGH else words[host]
            for name, host in zip(own, by_host, strict=True)]


def _judged(pairs: Sequence[tuple[list[float], list[float]]], kinds: Sequence[str],
            effect: float, level: float, seed: int) -> tuple[list[_Figures], dict[str, float]]:
    """Ratio, interval, adjusted p-value and verdict of each pair of series, and by how much two
    runs differ for each of the kinds of which there are enough."""
    if not pairs:
        return [], {}
    logs = [(np.log(a), np.log(b)) for a, b in pairs]
    scales = _scales(logs)
    pool = _residuals(logs, scales)
    generator = np.random.default_rng(seed)
    # The smallest p-value that resampling can find must be below the level after adjustment.
    count = max(RESAMPLES, math.ceil(4 * len(pairs) / level))
    differences = np.array([float(np.median(b) - np.median(a)) for a, b in logs])
    errors = np.array([scale * _spread_of_medians(pool, len(a), len(b))
                       for (a, b), scale in zip(logs, scales, strict=True)])
    places = {kind: np.array([k == kind for k in kinds]) for kind in dict.fromkeys(kinds)}
    between = {kind: _between(differences[place], errors[place]) for kind, place in places.items()
               if place.sum() >= ENOUGH}
    found = []
    for (a, b), scale, difference, kind in zip(logs, scales, differences.tolist(), kinds,
                                               strict=True):
        noise = scale * (_medians(generator, pool, len(b), count)
                         - _medians(generator, pool, len(a), count))
        noise += between.get(kind, 0.0) * generator.standard_normal(count)
        low, high = np.quantile(noise, [0.025, 0.975])
        beyond = int(np.count_nonzero(np.abs(noise) >= abs(difference)))
        found.append((difference, difference - high, difference - low,
                      (1 + beyond) / (1 + count)))
    adjusted = holm([p for *_, p in found])
    return [_Figures(ratio=math.exp(d), low=math.exp(lo), high=math.exp(hi), p=p,
                     verdict=_verdict(d, p, effect, level))
            for (d, lo, hi, _), p in zip(found, adjusted, strict=True)], between


def _between(differences: NDArray[np.float64], errors: NDArray[np.float64]) -> float:
    """The standard deviation by which two runs differ beyond the errors of their medians: that with
    which four in five of the differences from the middle one are within that quantile of a normal
    distribution."""
    apart = np.abs(differences - np.median(differences))

    def excess(more: float) -> float:
        return float(np.quantile(apart / np.hypot(errors, more), UNCHANGED)) - QUANTILE

    low, high = 0.0, 2 * float(apart.max())
    if high == 0 or excess(low) <= 0:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high


def _spread_of_medians(pool: NDArray[np.float64], a: int, b: int) -> float:
    """The standard deviation of the difference of two medians, of noise of unit variance."""
    generator = np.random.default_rng(2)
    return float((_medians(generator, pool, b, 2000) - _medians(generator, pool, a, 2000)).std())


def _verdict(difference: float, p: float, effect: float, level: float) -> Verdict:
    if abs(difference) < math.log1p(effect):
        return "same"
    if p > level:
        return "noise"
    return "slower" if difference > 0 else "faster"


Logs = Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]]


def _scales(logs: Logs) -> list[float]:
    """The noise of one run of each pair: its own standard deviation, drawn towards the usual."""
    sums = [(sum(float(((x - np.median(x)) ** 2).sum()) for x in pair), len(pair[0]) + len(pair[1])
             - 2) for pair in logs]
    known = [total / freedom for total, freedom in sums if freedom > 0]
    usual = max(float(np.median(known)) if known else 0.0, SMALLEST_NOISE**2)
    return [math.sqrt((PRIOR * usual + total) / (PRIOR + freedom)) for total, freedom in sums]


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


def _overall(ratios: Sequence[float], seed: int) -> tuple[float, float, float] | None:
    """Geometric mean of ratios and its bootstrap 95 % interval over the pairs."""
    if not ratios:
        return None
    logs = np.log(ratios)
    drawn = np.random.default_rng(seed).choice(logs, (RESAMPLES, len(logs))).mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return math.exp(float(logs.mean())), math.exp(float(low)), math.exp(float(high))


def _notes(a: SeriesFile, b: SeriesFile) -> list[str]:
    """What makes the two files hard to compare."""
    notes = []
    if a.machine != b.machine:
        notes.append(f"the machines differ: A {a.machine}, B {b.machine}")
    if a.dataset != b.dataset:
        notes.append(f"the data differ: A {a.dataset}, B {b.dataset}")
    if a.environment.clocks != b.environment.clocks:
        notes.append(f"the locked clocks differ: A {a.environment.clocks or 'none'}, "
                     f"B {b.environment.clocks or 'none'}")
    short = [s for file in (a, b) for s in file.series if len(s.times) == 1]
    if short:
        notes.append(f"{len(short)} series have one run only, whose noise is taken from the others")
    if any(s.summarised for file in (a, b) for s in file.series):
        notes.append("a file keeps only medians and spreads; runs are restored from them")
    return notes


def _some(series: Sequence[Series]) -> str:
    words = [f"{s.suite}: {s.set}" for s in series]
    return ", ".join(words[:3]) + (f" and {len(words) - 3} more" if len(words) > 3 else "")
