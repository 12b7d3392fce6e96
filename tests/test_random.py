"""The random numbers of the host: Philox against its published vectors, permutations of every
length, and statistics that a broken generator would fail."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rawnn.common import random
from rawnn.common.errors import ConfigError
from rawnn.common.random import (
    MAX_PERMUTATION,
    Purpose,
    permutation,
    philox,
    rounding_bits,
    uniform,
)
from tests.calls import count_lines
from tests.slices import sliced

SEEDS = st.integers(0, 2**64 - 1)
# Salmon et al., Random123, kat_vectors: counter, key, result.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
     (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]  # fmt: skip


def deviations(counts: np.ndarray, expected: float, freedom: int) -> float:
    """By how many standard deviations the chi-square of `counts` lies above what chance gives."""
    chi = float(((counts - expected) ** 2 / expected).sum())
    return (chi - freedom) / np.sqrt(2 * freedom)


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_philox_gives_the_published_words(counter, key, words):
    low, high, stream, purpose = counter
    drawn = philox(key[1] << 32 | key[0], stream, high << 32 | low, purpose)
    assert tuple(drawn) == words


def test_philox_draws_each_counter_alone():
    counters = np.array([[0, 1], [2**32, 2**64 - 1]], np.uint64)
    together = philox(7, 3, counters)
    assert together.shape == (2, 2, 4)
    assert together.dtype == np.uint32
    for index in np.ndindex(counters.shape):
        assert np.array_equal(together[index], philox(7, 3, counters[index]))


def test_seed_stream_and_purpose_each_change_the_draw():
    drawn = {tuple(philox(seed, stream, 5, purpose))
             for seed in (1, 1 << 32, 1 << 63) for stream in (0, 1) for purpose in Purpose}
    assert len(drawn) == 18


def test_uniform_is_a_prefix_of_a_longer_draw():
    longer = uniform(3, 1, 1000, 0.5)
    for count in (0, 1, 3, 4, 997):
        assert np.array_equal(uniform(3, 1, count, 0.5), longer[:count])


@given(SEEDS, st.floats(2.0**-100, 2.0**100, width=32))
@settings(max_examples=50, deadline=None)
def test_uniform_stays_within_its_bound_and_is_rounded_once(seed, bound):
    values = uniform(seed, 9, 256, bound)
    assert values.dtype == np.float32
    assert (values >= -np.float32(bound)).all()
    assert (values < np.float32(bound)).all()
    grid = (philox(seed, 9, np.arange(64)).reshape(-1) >> 8).astype(np.int64) - 2**23
    exact = grid * 2.0**-23 * float(np.float32(bound))  # exact in float64: 24 + 24 bits
    assert np.array_equal(values, exact.astype(np.float32))


def test_uniform_covers_its_interval_evenly():
    values = uniform(1, 2, 1 << 18, 1.0).astype(np.float64)
    counts = np.histogram(values, 64, (-1, 1))[0]
    assert abs(deviations(counts, (1 << 18) / 64, 63)) < 4
    assert abs(values.mean()) < 4 / np.sqrt(3 * len(values))
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 4 / np.sqrt(len(values))
    assert not uniform(1, 2, 8, 0.0).any()


def test_rounding_bits_follow_the_element_wherever_it_is_asked_for():
    everything = rounding_bits(5, 6, 7, np.arange(4096))
    assert everything.dtype == np.uint16
    some = np.array([[4095, 0], [17, 8]])
    assert np.array_equal(rounding_bits(5, 6, 7, some), everything[some])
    assert rounding_bits(5, 6, 7, 2**32 - 1).shape == ()
    for other in (rounding_bits(6, 6, 7, np.arange(4096)), rounding_bits(5, 7, 7, np.arange(4096)),
                  rounding_bits(5, 6, 8, np.arange(4096))):
        assert (everything == other).mean() < 0.01


def test_rounding_bits_are_even_over_elements_and_over_steps():
    elements = rounding_bits(5, 0, 0, np.arange(1 << 16))
    steps = np.stack([rounding_bits(5, 0, step, np.arange(64)) for step in range(1024)])
    for bits in (elements, steps):
        counts = np.bincount((bits >> 8).reshape(-1), minlength=256)
        assert abs(deviations(counts, bits.size / 256, 255)) < 4
        ones = np.array([(bits >> i & 1).mean() for i in range(16)])
        assert (np.abs(ones - 0.5) < 2.5 / np.sqrt(bits.size)).all()


def mixed(value: int) -> int:
    """The integer hash of 32 bits that every device has, too."""
    value = value * 0x7FEB352D & 0xFFFFFFFF
    value = (value ^ value >> 15) * 0x846CA68B & 0xFFFFFFFF
    return value ^ value >> 16


@pytest.mark.parametrize(("seed", "epoch", "count"), [
    (0, 0, 1), (0, 0, 2), (1, 0, 4), (1, 5, 5), (2**63 + 9, 2**32 + 1, 16), (7, 3, 17),
    (3, 1, 257), (2**33, 2**31, 300)])  # fmt: skip
def test_a_permutation_is_that_of_the_network_one_example_after_the_other(seed, epoch, count):
    """Stored runs, and kernels, count on its orders: other ones would be as random."""
    keys = [int(key) for counter in (0, 1) for key in
            philox(seed, 0, (epoch % 2**32) << 32 | counter, Purpose.PERMUTATION)]
    half = next(bits for bits in range(1, 20) if 4**bits >= count)

    def mapped(index: int) -> int:
        left, right = divmod(index, 2**half)
        for key in keys:
            left, right = right, left ^ mixed(right ^ key) % 2**half
        index = left * 2**half + right
        return index if index < count else mapped(index)

    assert permutation(seed, epoch, count).tolist() == [mapped(i) for i in range(count)]


@pytest.mark.parametrize("step", [0, 3, 2**32 + 3])
def test_rounding_bits_are_the_halves_of_the_words_of_eight_neighbours(step):
    """The low half comes first, as kernels read it."""
    words = [int(word) for group in range(3) for word in
             philox(5, 6, (step % 2**32) << 32 | group, Purpose.ROUNDING, rounds=7)]
    halves = [half for word in words for half in (word % 2**16, word >> 16)]
    assert rounding_bits(5, 6, step, np.arange(24)).tolist() == halves


@given(SEEDS, st.integers(0, 2**31 - 1), st.integers(0, 5000))
@settings(max_examples=200, deadline=None)
def test_permutations_hold_every_example_once(seed, epoch, count):
    order = permutation(seed, epoch, count)
    assert order.dtype == np.int32
    assert np.array_equal(np.sort(order), np.arange(count))


@pytest.mark.parametrize("count", [2**16 - 1, 2**16, 2**16 + 1, 60_000, 2**18 + 1])
def test_long_permutations_hold_every_example_once(count):
    assert np.array_equal(np.sort(permutation(3, 1, count)), np.arange(count))


def test_as_many_as_there_may_be_are_permuted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "MAX_PERMUTATION", 60)
    assert sorted(permutation(0, 0, 60)) == list(range(60))
    with pytest.raises(ConfigError, match="cannot shuffle 61 examples: the most is 60"):
        permutation(0, 0, 61)


@pytest.mark.parametrize("count", [-1, MAX_PERMUTATION + 1])
def test_a_length_out_of_range_is_refused(count):
    with pytest.raises(ConfigError, match=f"cannot shuffle {count} examples"):
        permutation(0, 0, count)


@pytest.mark.parametrize("count", [3, 4])
def test_every_order_of_a_few_examples_comes_equally_often(count):
    orders = [tuple(permutation(11, epoch, count)) for epoch in range(6000)]
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    total = {3: 6, 4: 24}[count]
    assert len(counts) == total
    assert deviations(counts, 6000 / total, total - 1) < 4


@pytest.mark.parametrize("count", sliced([5, 16, 17, 60]))
def test_every_example_comes_equally_often_at_every_place(count):
    epochs = 3000
    counts = np.zeros((count, count))
    for epoch in range(epochs):
        counts[np.arange(count), permutation(7, epoch, count)] += 1
    assert abs(deviations(counts, epochs / count, (count - 1) ** 2)) < 4


def test_epochs_and_seeds_have_orders_of_their_own():
    """Two orders agree at one place on average, and so do an order and that of the next epoch read
    one or more places on: no pattern is carried over."""
    count = 60_000
    base = permutation(7, 0, count)
    for other in (permutation(7, 1, count), permutation(7, 2, count), permutation(8, 0, count),
                  permutation(7 + (1 << 32), 0, count), np.arange(count)):
        for shift in (0, 1, 256, 30_000):
            assert (base == np.roll(other, shift)).sum() < 12
        assert abs(np.corrcoef(base, other)[0, 1]) < 5 / np.sqrt(count)


def test_neighbours_part_and_batches_mix():
    count, batch = 60_000, 128
    order = permutation(1, 1, count).astype(np.int64)
    distance = np.abs(np.diff(order))
    assert (distance == 1).sum() < 15  # about 2 by chance
    assert abs(distance.mean() / (count / 3) - 1) < 0.02
    # Tenths of the data set in each batch, as from a sorted data set of ten classes.
    tenths = order[: count // batch * batch].reshape(-1, batch) // (count // 10)
    counts = np.stack([(tenths == t).sum(axis=1) for t in range(10)])
    assert abs(deviations(counts, batch / 10, 9 * counts.shape[1])) < 4


def test_shuffling_takes_no_python_for_each_example() -> None:
    """60,000 examples take as many lines as 60, but for walks that end sooner or later."""
    permutation(1, 0, 60)
    few, many = (count_lines(lambda n=n: permutation(1, 1, n)) for n in (60, 60_000))
    assert many < 5 * few


def test_parts_that_threads_draw_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = uniform(5, 3, 1003, 0.1)
    monkeypatch.setattr("rawnn.common.random.PART", 64)
    np.testing.assert_array_equal(uniform(5, 3, 1003, 0.1), whole)
    assert uniform(5, 3, 0, 0.1).shape == (0,)
