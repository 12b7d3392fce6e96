"""Median and spread of repeated measurements, and intervals of ratios: by Python's statistics and
NumPy, as SciPy would be a large dependency for its bootstrap alone."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence

import msgspec
import numpy as np


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """What n repetitions of one measurement gave, in the measurement's own unit.

    `mad` is the median of the absolute deviations from the median, unscaled: half of the
    repetitions lie within median +- mad. `iqr` is the interquartile range, by linear interpolation;
    files from before have none. Unlike a standard deviation neither is moved by the one repetition
    that something else on the machine disturbed.
    """

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
    """The distance of the quartiles of at least one value."""
    low, high = np.quantile(np.asarray(values, np.float64), [0.25, 0.75])
    return float(high - low)


def runs_text(counts: Collection[int]) -> str:
    """How often things were measured, for a sentence: "medians of 3-5 interleaved runs"."""
    low, high = min(counts, default=0), max(counts, default=0)
    if high <= 1:
        return "one run each, so that no spread is known" if high else "no run has ended"
    return f"medians of {low if low == high else f'{low}-{high}'} interleaved runs"


def with_deviation(value: float, deviation: float, n: int, digits: int = 4) -> str:
    """ "0.9223 ± 0.0003"; of one measurement there is no deviation."""
    return f"{value:.{digits}f}" + (f" ± {deviation:.{digits}f}" if n > 1 else "")


def mean_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (n - 1; 0 for a single value)."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def median_interval(values: Sequence[float], resamples: int = 2000,
                    seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of the median, by a bootstrap of the measurements."""
    generator = np.random.default_rng(seed)
    drawn = generator.choice(np.asarray(values, np.float64), (resamples, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    return float(low), float(high)


def ratio_interval(a: Sequence[float], b: Sequence[float], resamples: int = 2000,
                   seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of median(a) / median(b), by a bootstrap of the measurements of each."""
    generator = np.random.default_rng(seed)
    ratios = [np.median(generator.choice(np.asarray(v, np.float64), (resamples, len(v))), axis=1)
              for v in (a, b)]
    low, high = np.quantile(ratios[0] / ratios[1], [0.025, 0.975])
    return float(low), float(high)
