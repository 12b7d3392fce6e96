"""What noise alone could do, beside what the distributions say; and verdicts at their limits."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from rawnn.bench import noise
from rawnn.bench.compare import Pair, judged_pair
from rawnn.bench.noise import GRAPHS, HOST, Apart, holm, judged, kinds_of
from rawnn.bench.series import Series, restored
from rawnn.bench.statistics import Spread, spread
from tests import requires

NORMAL_975, T5_975 = 1.959963984540054, 2.5705818356363146
"""scipy.stats.norm.ppf(0.975) and t.ppf(0.975, 5)."""
NORMAL_90, T5_90 = 1.2815515655446004, 1.4758840488244815
"""scipy.stats.norm.ppf(0.9), that of an absolute value at 0.8, and t.ppf(0.9, 5)."""
GRAPH, OTHER = 0.016, 0.08


def one_pair(factor: float, host: bool = False, runs: tuple[int, int] = (2, 2)
             ) -> tuple[Apart, dict[str, float]]:
    """Two series of equal times each, so that only what two runs usually differ by is noise."""
    pair = [10.0] * runs[0], [10.0 * factor] * runs[1]
    found, between = judged([pair], ["it"], [host], 0.05, 0)
    return found[0], between


@pytest.mark.parametrize(("host", "runs", "half"), [
    (False, (2, 2), NORMAL_975 * GRAPH), (True, (2, 3), T5_975 * NORMAL_90 / T5_90 * OTHER),
    (False, (1, 1), T5_975 * NORMAL_90 / T5_90 * GRAPH),
    (False, (1, 3), T5_975 * NORMAL_90 / T5_90 * GRAPH),
    (False, (4, 1), T5_975 * NORMAL_90 / T5_90 * GRAPH)])
def test_an_interval_is_one_of_95_percent(host: bool, runs: tuple[int, int], half: float) -> None:
    """Normal for graphs, Student's t where the host launches, or ran it once. Of 90 % it would be
    16 to 22 % narrower."""
    found, between = one_pair(1.02, host, runs)
    middle = math.log(1.02)
    assert between == {"it": pytest.approx(OTHER if host else GRAPH)}
    assert found.difference == pytest.approx(middle)
    assert found.low == pytest.approx(middle - half, abs=0.05 * half)
    assert found.high == pytest.approx(middle + half, abs=0.05 * half)


@pytest.mark.parametrize(("host", "factor", "p"), [
    (False, math.exp(1.5 * GRAPH), 0.1336144), (False, math.exp(-1.5 * GRAPH), 0.1336144),
    (False, math.exp(2.5 * GRAPH), 0.0124193),
    (True, math.exp(2 * NORMAL_90 / T5_90 * OTHER), 0.1019395)])
def test_a_p_value_counts_both_sides(host: bool, factor: float, p: float) -> None:
    """2 * norm.sf(1.5), 2 * norm.sf(2.5) and 2 * t.sf(2, 5)."""
    found, _ = one_pair(factor, host)
    assert found.p == pytest.approx(p, rel=0.06)
    assert (found.difference > 0) == (factor > 1)


def test_the_constants_are_quantiles() -> None:
    stats = requires.module("scipy.stats")
    within = stats.norm.ppf((1 + noise.UNCHANGED) / 2)
    assert within == pytest.approx(noise.QUANTILE, abs=1e-4)
    scale = within / stats.t.ppf((1 + noise.UNCHANGED) / 2, noise.FREEDOM)
    assert scale == pytest.approx(noise.TAILS, abs=1e-4)
    assert stats.norm.ppf(0.975) == pytest.approx(NORMAL_975)
    assert stats.t.ppf(0.975, noise.FREEDOM) == pytest.approx(T5_975)


def test_what_two_runs_differ_by_is_drawn_towards_the_usual() -> None:
    """numpy.quantile of the distances from the middle, [0, 0.05, 0.25, 0.25, 0.45], at 0.8: 0.29.
    The usual counts as four pairs, the five as four degrees of freedom."""
    differences, none = np.array([0.1, -0.2, 0.3, 0.05, -0.4]), np.zeros(5)
    own = 0.29 / NORMAL_90
    assert noise._between(differences, none + 1e-9, GRAPH) == pytest.approx(
        math.sqrt((4 * GRAPH**2 + 4 * own**2) / 8), rel=1e-4)
    explained = noise._between(differences, none + 1.0, GRAPH)
    assert explained == pytest.approx(GRAPH / math.sqrt(2))
    assert noise._between(np.array([0.3]), np.array([1e-9]), OTHER) == pytest.approx(OTHER)


def test_a_pairs_noise_is_drawn_towards_that_of_its_like() -> None:
    """Sums of squares 0.1, 0.02 and 0.4 of four degrees each; the usual is the middle of those of
    graphs, 0.025 and 0.005, and 0.1 of sets that the host launches."""
    def pair(a: float, b: float) -> tuple[np.ndarray, np.ndarray]:
        return np.array([0.0, a, -a]), np.array([0.0, b, -b])

    logs = [pair(0.1, 0.2), pair(0.1, 0.0), pair(0.2, 0.4)]
    found = noise._scales(logs, [False, False, True])
    assert found == pytest.approx([math.sqrt((4 * 0.015 + 0.1) / 8),
                                   math.sqrt((4 * 0.015 + 0.02) / 8), math.sqrt(0.1)])
    single = [(np.array([1.0]), np.array([2.0]))]
    assert noise._scales(single, [False]) == pytest.approx([2e-4])


def test_residuals_have_unit_variance_and_the_shape_of_all() -> None:
    series = [np.array([0.0, x, -x]) for x in np.linspace(0.1, 1.0, 20)]
    pool = noise._residuals([(s, s) for s in series], [0.5] * 20)
    assert pool.std() == pytest.approx(1.0)
    assert pool.mean() == pytest.approx(0.0, abs=1e-12)
    assert pool.max() / np.median(np.abs(pool)) == pytest.approx(1.0 / 0.55, rel=0.05)
    normal = noise._residuals([(np.array([0.0, 1.0]), np.array([0.0, 1.0]))] * 50, [1.0] * 50)
    assert len(normal) == 4001  # medians of two runs say nothing of their shape
    assert normal.std() == pytest.approx(1.0, abs=0.03)


def test_medians_of_more_runs_spread_less() -> None:
    """Of three normal variables the median has a variance of 0.4487, of one 1."""
    quantiles = np.array([NormalDist().inv_cdf((i + 0.5) / 2001) for i in range(2001)])
    found = [noise._spread_of_medians(quantiles, *counts) for counts in ((1, 1), (3, 3), (1, 3))]
    assert found == pytest.approx([math.sqrt(2), math.sqrt(2 * 0.4487), math.sqrt(1.4487)],
                                  rel=0.06)


def test_a_kind_of_its_own_from_ten_pairs_on() -> None:
    names = ["a"] * 10 + ["b"] * 9
    found = kinds_of(names, [False] * 19)
    assert found == [f"{GRAPHS} of a"] * 10 + [GRAPHS] * 9
    assert kinds_of(names, [True] * 19, "the peers' ")[-1] == f"the peers' {HOST}"


@pytest.mark.parametrize(("given", "adjusted"), [
    ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]), ([0.02], [0.02]), ([], []),
    ([0.5, 0.6], [1.0, 1.0]), ([0.001, 0.001], [0.002, 0.002])])
def test_holms_adjustment(given: list[float], adjusted: list[float]) -> None:
    assert holm(given) == pytest.approx(adjusted)


@pytest.mark.parametrize(("difference", "p", "verdict"), [
    (math.log(1.029), 0.001, "same"), (math.log(1.031), 0.001, "slower"),
    (math.log(1.0302), 0.001, "slower"), (-math.log(1.031), 0.001, "faster"),
    (-math.log(1.029), 0.001, "same"), (0.5, 0.051, "noise"), (0.5, 0.05, "slower"),
    (-0.5, 0.049, "faster")])
def test_verdicts_at_their_limits(difference: float, p: float, verdict: str) -> None:
    mine = Series(suite="s", set="x", times=[10.0] * 3)
    other = Series(suite="s", set="x", times=[10.0] * 5)
    found = judged_pair(mine, other, Apart(difference=difference, low=difference - 0.1,
                                           high=difference + 0.2, p=p), 0.03, 0.05)
    assert found == Pair(suite="s", set="x", verdict=verdict,  # type: ignore[arg-type]
                         ratio=pytest.approx(math.exp(difference)),
                         low=pytest.approx(math.exp(difference - 0.1)),
                         high=pytest.approx(math.exp(difference + 0.2)), p=p, runs=(3, 5))


@pytest.mark.parametrize("values", [[4.0], [4.0, 9.0], [4.0, 5.0, 9.0], [1.0, 4.0, 5.0, 6.0, 9.0],
                                    [1.0, 3.0, 4.0, 5.0, 7.0, 8.0, 20.0]])
def test_measurements_are_restored_with_their_spread(values: list[float]) -> None:
    made = restored(spread(values))
    again = spread(made)
    kept = spread(values)
    assert len(made) == len(values)
    assert (again.median, again.min, again.max) == (kept.median, kept.min, kept.max)
    if len(values) <= 3:
        assert made == sorted(values)
    else:
        assert again.mad == pytest.approx(kept.mad)
    assert restored(Spread(n=4, median=5.0, min=1.0, max=9.0, mad=2.0)) == [1.0, 3.0, 5.0, 9.0]
