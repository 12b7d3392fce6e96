"""Median, quartiles, and the bootstrap interval of a ratio of medians: all that tables claim.

By Python's statistics and NumPy, as SciPy would be a large dependency for ten lines of bootstrap.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

ENOUGH = 8
"""Samples a side from which on the bootstrap interval of a ratio means something. Resampled medians
of fewer take few different values: of three samples ten, so that their quantiles are the range."""
RESAMPLES = 2000


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """What n repetitions of one measurement gave, in its own unit. `mad` is the median of the
    absolute deviations from the median, `iqr` the distance of the quartiles (by linear
    interpolation). One disturbed repetition moves neither."""

    n: int
    median: float
    min: float
    max: float
    mad: float
    iqr: float | None = None


def spread(values: Sequence[float]) -> Spread:
    """The spread of at least one value. Raises statistics.StatisticsError for none."""
    middle = statistics.median(values)
    return Spread(
        n=len(values), median=middle, min=min(values), max=max(values),
        mad=statistics.median(abs(v - middle) for v in values), iqr=interquartile_range(values),
    )


def interquartile_range(values: Sequence[float]) -> float:
    """The distance of the quartiles of at least one value, by linear interpolation."""
    low, high = np.quantile(np.asarray(values, np.float64), [0.25, 0.75])
    return float(high - low)


def mean_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (n - 1; 0 for a single value)."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


@dataclass(frozen=True)
class Ratio:
    """The median of some samples over that of others. `low` and `high` are the bootstrap's 95 %
    interval where each side has at least ENOUGH samples (`is_interval`), else the range: the least
    over the greatest and the greatest over the least."""

    value: float
    low: float
    high: float
    is_interval: bool
    samples: tuple[int, int]

    @property
    def is_noise(self) -> bool:
        """Whether the interval, or the range, holds 1: the samples do not show a difference. One
        sample a side cannot show that."""
        return self.low <= 1.0 <= self.high


def ratio(a: Sequence[float], b: Sequence[float], seed: int = 0) -> Ratio:
    """median(a) / median(b) with its interval or range. Both have at least one positive sample."""
    value, sizes = statistics.median(a) / statistics.median(b), (len(a), len(b))
    if min(sizes) < ENOUGH:
        return Ratio(value, min(a) / max(b), max(a) / min(b), False, sizes)
    generator = np.random.default_rng(seed)
    low, high = _interval(_medians(a, generator) / _medians(b, generator))
    return Ratio(value, low, high, True, sizes)


def _medians(values: Sequence[float], generator: np.random.Generator) -> NDArray[np.float64]:
    """The medians of samples that are chosen from some values with replacement."""
    chosen = generator.choice(np.asarray(values, np.float64), (RESAMPLES, len(values)))
    return np.asarray(np.median(chosen, axis=1))


def _interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """What 95 % of the values lie in."""
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """The bootstrap's 95 % interval of the median, of fewer than ENOUGH values their range."""
    if len(values) < ENOUGH:
        return min(values), max(values)
    return _interval(_medians(values, np.random.default_rng(0)))


def geometric_mean(ratios: Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """Of at least one ratio, with the bootstrap's 95 % interval over the ratios."""
    logs = np.log(np.asarray(ratios, np.float64))
    resampled = np.random.default_rng(seed).choice(logs, (RESAMPLES, len(logs))).mean(axis=1)
    low, high = np.exp(np.quantile(resampled, [0.025, 0.975]))
    return float(np.exp(logs.mean())), float(low), float(high)


def runs_text(counts: Collection[int]) -> str:
    """How often things were measured, for a sentence: "medians of 3-5 interleaved runs"."""
    low, high = min(counts, default=0), max(counts, default=0)
    if high <= 1:
        return "one run each, so that no spread is known" if high else "no run has ended"
    return f"medians of {low if low == high else f'{low}-{high}'} interleaved runs"


def with_deviation(value: float, deviation: float, n: int, digits: int = 4) -> str:
    """ "0.9223 ± 0.0003"; of one measurement there is no deviation."""
    return f"{value:.{digits}f}" + (f" ± {deviation:.{digits}f}" if n > 1 else "")
