import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawnn.bench.statistics import (
    ENOUGH,
    geometric_mean,
    interquartile_range,
    mean_std,
    median_interval,
    ratio,
    runs_text,
    spread,
    with_deviation,
)
from tests import requires

numbers = st.floats(-1e6, 1e6)


def test_one_disturbed_repetition_moves_neither_median_nor_mad() -> None:
    found = spread([1.0, 1.1, 0.9, 1.0, 50.0])
    assert (found.n, found.median, found.min, found.max) == (5, 1.0, 0.9, 50.0)
    assert found.mad == pytest.approx(0.1)


@given(st.lists(numbers, min_size=1))
def test_half_of_the_values_lie_within_the_mad(values: list[float]) -> None:
    found = spread(values)
    assert found.min <= found.median <= found.max
    within = [v for v in values if abs(v - found.median) <= found.mad * (1 + 1e-12) + 1e-9]
    assert 2 * len(within) >= len(values)


def test_nothing_has_no_spread() -> None:
    with pytest.raises(statistics.StatisticsError):
        spread([])


def test_mean_and_sample_deviation() -> None:
    assert mean_std([1.0, 3.0]) == (2.0, pytest.approx(2**0.5))
    assert mean_std([4.0]) == (4.0, 0.0)


ODD = [3.1, 2.7, 9.4, 2.9, 3.3, 3.0, 12.5]
EVEN, TIES = [4.0, 1.0, 3.0, 2.0], [5.0, 5.0, 5.0, 7.0, 5.0, 1.0]


@pytest.mark.parametrize(("values", "median", "mad", "iqr", "mean", "deviation"), [
    (ODD, 3.1, 0.2, 3.4, 5.271428571428572, 3.985270499273663),
    (EVEN, 2.5, 1.0, 1.5, 2.5, 1.2909944487358056),
    (TIES, 5.0, 0.0, 0.0, 4.666666666666667, 1.96638416050035),
    ([10.0, 14.0], 12.0, 2.0, 2.0, 12.0, 2.8284271247461903),
    ([6.5], 6.5, 0.0, 0.0, 6.5, 0.0)])
def test_figures_are_those_of_scipy(values: list[float], median: float, mad: float, iqr: float,
                                    mean: float, deviation: float) -> None:
    """numpy.median, scipy.stats.median_abs_deviation and iqr, numpy.std with ddof=1."""
    found = spread(values)
    assert (found.n, found.min, found.max) == (len(values), min(values), max(values))
    assert (found.median, found.mad, found.iqr) == (pytest.approx(median), pytest.approx(mad),
                                                    pytest.approx(iqr))
    assert mean_std(values) == (pytest.approx(mean), pytest.approx(deviation))
    stats = requires.module("scipy.stats")
    assert interquartile_range(values) == pytest.approx(stats.iqr(values))
    assert found.mad == pytest.approx(stats.median_abs_deviation(values))


A = [100 + 10 * math.sin(7 * i) for i in range(200)]
B = [50 + 4 * math.cos(3 * i) for i in range(150)]
RATIOS = [math.exp(0.2 + 0.3 * math.sin(5 * i)) for i in range(60)]


@pytest.mark.parametrize(("name", "low", "high"), [
    ("median", 97.8922, 102.1501), ("ratio", 1.9451, 2.0587), ("inverse", 0.4857, 0.5141),
    ("geometric mean", 1.1571, 1.2864)])
def test_intervals_are_those_of_scipy(name: str, low: float, high: float) -> None:
    """scipy.stats.bootstrap(method="percentile", confidence_level=0.95, n_resamples=50000); those
    of 90 % are 16 to 18 % narrower."""
    one, inverse = ratio(A, B), ratio(B, A)
    found = {"median": median_interval(A), "ratio": (one.low, one.high),
             "inverse": (inverse.low, inverse.high),
             "geometric mean": geometric_mean(RATIOS)[1:]}[name]
    width = high - low
    assert found[1] - found[0] == pytest.approx(width, rel=0.08)
    assert found == (pytest.approx(low, abs=0.08 * width), pytest.approx(high, abs=0.08 * width))


def test_intervals_beside_scipys_own() -> None:
    stats = requires.module("scipy.stats")

    def quotient(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.median(a, axis=axis) / np.median(b, axis=axis)

    def interval(data: tuple[list[float], ...], statistic: object) -> tuple[float, float]:
        found = stats.bootstrap(data, statistic, confidence_level=0.95, n_resamples=5000,
                                method="percentile", vectorized=True,
                                rng=np.random.default_rng(3)).confidence_interval
        return found.low, found.high

    few = [10.0, 10.4, 9.9, 10.1, 10.9, 10.2, 9.7, 10.3, 10.6, 9.8, 10.05]
    mean, one = geometric_mean(RATIOS, 1), ratio(A, B)
    assert mean[0] == pytest.approx(stats.gmean(RATIOS))
    for found, data, statistic in (
            (median_interval(few), (few,), np.median), (median_interval(A), (A,), np.median),
            ((one.low, one.high), (A, B), quotient), (mean[1:], (RATIOS,), stats.gmean)):
        low, high = interval(data, statistic)
        assert found == (pytest.approx(low, abs=0.1 * (high - low)),
                         pytest.approx(high, abs=0.1 * (high - low)))


def test_a_ratio_is_of_the_first_over_the_second() -> None:
    found = ratio([9.0, 10.0, 11.0], [4.0, 5.0, 6.0])
    assert (found.value, found.samples, found.is_interval) == (2.0, (3, 3), False)
    assert (found.low, found.high) == (9 / 6, 11 / 4)  # the range of all quotients
    assert not found.is_noise
    assert ratio([2.0], [4.0]).value == 0.5


def test_an_interval_needs_eight_samples_a_side() -> None:
    eight = [10.0, 10.1, 9.9, 10.2, 9.8, 10.0, 10.1, 30.0]
    assert len(eight) == ENOUGH
    found = ratio(eight, eight)
    assert found.is_interval
    assert found.high < 1.1, "one that was disturbed is in the range, but hardly in the interval"
    for sides in ((eight[:-1], eight), (eight, eight[1:])):
        assert not ratio(*sides).is_interval
    assert ratio(eight, eight[:-1]).high == 30.0 / 9.8
    assert median_interval(eight[:3]) == (9.9, 10.1)
    assert median_interval(eight[1:]) == (9.8, 30.0)
    assert median_interval(eight)[1] < 11


@pytest.mark.parametrize(("a", "b", "is_noise"), [
    ([1.0, 1.2], [1.1, 1.3], True), ([1.0, 1.2], [1.3, 1.4], False),
    ([1.0] * 8, [1.1] * 8, False), ([1.0, 1.2] * 4, [1.2, 1.0] * 4, True)])
def test_a_difference_within_the_noise_is_none(a: list[float], b: list[float],
                                               is_noise: bool) -> None:
    assert ratio(a, b).is_noise == ratio(b, a).is_noise == is_noise


def test_quartiles_are_numpys() -> None:
    assert interquartile_range(ODD) == np.quantile(ODD, 0.75) - np.quantile(ODD, 0.25)


def test_more_measurements_make_an_interval_narrower() -> None:
    """By the root of their number."""
    generator = np.random.default_rng(5)
    small, large = ([*generator.normal(100, 5, n)] for n in (40, 640))
    widths = [high - low for low, high in map(median_interval, (small, large))]
    assert 3 < widths[0] / widths[1] < 5.5
    assert geometric_mean([2.0, 2.0]) == (pytest.approx(2.0),) * 3
    assert geometric_mean([1.0, 4.0])[0] == pytest.approx(2.0)  # not the mean, 2.5


@pytest.mark.parametrize(("counts", "text"), [
    ([], "no run has ended"), ([0], "no run has ended"), ([1, 1], "one run each"),
    ([2, 2], "medians of 2 interleaved runs"), ([5, 3, 4], "medians of 3-5 interleaved runs")])
def test_how_often_was_measured(counts: list[int], text: str) -> None:
    assert runs_text(counts).startswith(text)


def test_a_deviation_of_two_measurements_is_one() -> None:
    assert with_deviation(0.92231, 0.00034, 2) == "0.9223 ± 0.0003"
    assert with_deviation(0.92231, 0.00034, 1) == "0.9223"
    assert with_deviation(1.5, 0.25, 9, 1) == "1.5 ± 0.2"
