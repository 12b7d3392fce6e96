import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawnn.bench.statistics import mean_std, spread

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
