"""Sizes to try: the edges where kernels go wrong are always among them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rawnn
from rawnn.common.errors import ConfigError
from rawnn.lab import Work, simulated
from rawnn.lab.parameter_roles import problem_of
from rawnn.lab.sampling import (
    _ALL,
    MOST_ELEMENTS,
    _sample_size,
    converted,
    largest,
    sample,
    sample_sizes,
    with_specials,
)
from tests import requires


def sizes(given: Any, trials: int, seed: int, *require: str) -> list[int]:
    drawn = sample_sizes(["n"], {"n": given}, require, 1, trials, np.random.default_rng(seed), {})
    return [each["n"] for each in drawn]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("given", ["1..20000", "300..5000", "1..1025", "1024..2048"])
def test_one_above_one_below_and_a_multiple_are_tried(given: str, seed: int) -> None:
    """Of 1,024, so of every smaller power of two, too."""
    found = sizes(given, 5, seed)
    assert {n % 1024 for n in found} >= {1, 0, 1023}
    low, high = map(int, given.split(".."))
    assert (found[0], found[-1]) == (low, high)
    assert found == sorted(found)


@pytest.mark.parametrize(("given", "edge"), [("1..600", 256), ("1..9", 8), ("5..40", 32)])
def test_small_ranges_go_by_the_largest_that_fits(given: str, edge: int) -> None:
    for seed in range(10):
        assert {n % edge for n in sizes(given, 5, seed)} >= {1, 0, edge - 1}


def test_later_draws_are_off_by_one_both_ways() -> None:
    """Three in four are, or a multiple: each in a quarter of all, and in an eighth of the rest."""
    generator = np.random.default_rng(0)
    rest = np.array([_sample_size(104, 100_000, generator, False) for _ in range(2000)])
    shares = [np.mean(rest % 8 == k) for k in range(8)]
    for k in (0, 1, 7):
        assert shares[k] == pytest.approx(0.25 + 0.25 / 8, abs=0.04)
    assert min(shares) > 0.015
    whole = np.array([_sample_size(104, 100_000, generator, True) for _ in range(200)])
    assert not (whole % 8).any()
    assert np.median(rest) == pytest.approx(np.sqrt(104 * 100_000), rel=0.25)  # over orders


@pytest.mark.parametrize("given", ["1..2", "3..3", "2..7", "1..1"])
def test_ranges_without_an_edge(given: str) -> None:
    low, high = map(int, given.split(".."))
    found = sizes(given, 12, 0)
    assert found == list(range(low, high + 1))


def test_conditions_hold_for_all() -> None:
    found = sizes("1..5000", 12, 1, "n % 16 == 0", "n > 100")
    assert len(found) == 12
    assert all(n % 16 == 0 and n > 100 for n in found)


@pytest.mark.parametrize("trials", [1, _ALL, _ALL + 1, 399, 400, 401, 5000])
def test_of_many_combinations_of_lists_as_many_as_asked_for_are_tried(trials: int) -> None:
    lists = {"n": list(range(1, 21)), "m": list(range(1, 21))}
    found = sample_sizes(["n", "m"], lists, (), 1, trials, np.random.default_rng(0), {})
    assert len(found) == min(400, max(_ALL, trials))
    assert len({(each["n"], each["m"]) for each in found}) == len(found)


@pytest.mark.parametrize("order", ["abc", "bac", "bca"])
def test_no_array_is_larger_than_what_is_sampled_at_most(order: str) -> None:
    """Whichever of the arrays has most sizes of its own: numbers and macros are none."""
    requires.module("cuda.bindings.nvrtc")
    shapes = {"a": ["m", "n", "k"], "b": ["k", "n * n", 3], "c": ["j", "TILE"]}
    source = "".join(f", {'' if name == 'a' else 'const '}float* {name}" for name in order)
    kernel = rawnn.Kernel(f"__global__ void f({source[2:]}) {{ a[0] = TILE; }}", "f",
                          defines={"TILE": 8}, device=simulated())
    problem = problem_of(kernel, Work(lambda b, c: b, shapes=shapes, grid=1, block=1))
    assert problem.together == 3
    assert sorted(problem.names) == ["j", "k", "m", "n"]
    assert largest(problem.names, {}, problem.together) == dict.fromkeys(
        problem.names, round(MOST_ELEMENTS ** (1 / 3)))


def test_every_combination_of_lists_is_tried() -> None:
    drawn = sample_sizes(["m", "n"], {"m": [3, 1], "n": [5, 2]}, (), 2, 1,
                         np.random.default_rng(0), {})
    assert [(each["m"], each["n"]) for each in drawn] == [(1, 2), (1, 5), (3, 2), (3, 5)]
    assert largest(["m", "n"], {"m": [3, 1], "n": "2..9"}, 2) == {"m": 3, "n": 9}
    assert largest(["m", "n"], {}, 2) == {"m": 512, "n": 512}


@pytest.mark.parametrize(("kind", "dtype", "shown"), [
    (1.5, "int32", "cannot hold 1.5"), (2**40, "int32", "cannot hold 1099511627776"),
    ("0..300", "uint8", "cannot hold 2[5-9][0-9]|cannot hold 300"), (1e39, "float32", "1e"),
    (lambda generator, shape: generator.normal(size=shape), "int32", "x is an array of int32"),
])
def test_inputs_that_the_array_cannot_hold_are_refused(kind: Any, dtype: str, shown: str) -> None:
    generator = np.random.default_rng(0)
    with pytest.raises(ConfigError, match=shown):
        sample(kind, generator, (2000,), np.dtype(dtype), {}, "x")
    for held in (3, "0..100", lambda generator, shape: np.full(shape, 7.0), float("inf")):
        if held != float("inf") or dtype == "float32":
            sample(held, generator, (5,), np.dtype(dtype), {}, "x")


@pytest.mark.parametrize(("low", "high"), [(1, 1), (1, 7), (3, 4096), (100, 300), (17, 17)])
@pytest.mark.parametrize("is_even", [False, True])
@pytest.mark.parametrize("offset", [None, -1, 0, 1])
def test_a_size_lies_in_its_range_and_next_to_a_tile_where_it_is_asked_for(
        low: int, high: int, is_even: bool, offset: int | None) -> None:
    generator = np.random.default_rng(low + high)
    drawn = [_sample_size(low, high, generator, is_even, offset) for _ in range(200)]
    assert all(low <= size <= high for size in drawn)
    if high < 4096:
        return
    if offset is not None:  # all of them as far from the largest tile
        assert len({(size - offset) % 1024 for size in drawn}) == 1
        return
    assert len(set(drawn)) > 20
    if is_even:
        assert {size % 8 for size in drawn if size > 8} == {0}
    else:
        assert sum((size + 1) % 8 < 3 for size in drawn) > 120  # three in four, and by luck


@pytest.mark.parametrize(("kind", "names", "value"), [
    ("3", {}, 3.0), ("n / 4", {"n": 10}, 2.5), (2, {}, 2.0),
    ("cdiv(n, 4) + m", {"n": 9, "m": 1}, 4.0)])
def test_an_input_may_be_a_number_of_the_sizes(kind: Any, names: dict[str, int], value: float
                                               ) -> None:
    found = sample(kind, np.random.default_rng(0), (2, 3), np.dtype(np.float32), names, "x")
    assert found.dtype == np.float32
    assert found.tolist() == [[value] * 3] * 2


@pytest.mark.parametrize("kind", ["normle", "n + k", "unifrom"])
def test_an_input_of_unknown_words_is_refused_with_what_there_is(kind: str) -> None:
    with pytest.raises(ConfigError, match=r'give "normal", "uniform", "lo..hi", a number'):
        sample(kind, np.random.default_rng(0), (2,), np.dtype(np.float32), {"n": 3}, "x")


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "bool", "float32", "float16"])
@pytest.mark.parametrize(("kind", "low", "high"), [
    ("0..1", 0, 1), ("n..n + 3", 5, 8), ("2..2", 2, 2)])
def test_a_range_has_both_its_ends(dtype: str, kind: str, low: int, high: int) -> None:
    """Of whole numbers each comes; floats lie between."""
    if dtype == "bool" and high > 1:
        return
    found = sample(kind, np.random.default_rng(1), (400,), np.dtype(dtype), {"n": 5}, "x")
    assert found.dtype == np.dtype(dtype)
    if np.dtype(dtype).kind == "f":
        assert found.min() >= low
        assert found.max() <= high
        assert len(set(found.tolist())) > 50 or low == high
    else:
        assert set(found.astype(int).tolist()) == set(range(low, high + 1))


@pytest.mark.parametrize("shape", [(), (1,), (5, 2)])
def test_every_member_of_a_struct_is_sampled(shape: tuple[int, ...]) -> None:
    kind = np.dtype([("a", "f4", (2, 3)), ("b", "f8"), ("c", [("d", "f2"), ("e", "f4", (4,))])])
    found = sample(None, np.random.default_rng(0), shape, kind, {}, "x")
    assert (found.shape, found.dtype) == (shape, kind)
    for part in (found["a"], found["b"], found["c"]["d"], found["c"]["e"]):
        values = np.asarray(part, np.float64).ravel()
        assert len(np.unique(values)) == len(values)
        assert (values != 0).all()


@pytest.mark.parametrize(("given", "dtype"), [
    (300, "uint8"), (-1, "uint16"), (0.5, "int32"), (2**31, "int32"), (1 + 1j, "float32"),
    (np.nan, "int64")])
@pytest.mark.parametrize("shape", [(1,), (2, 2)])
def test_what_an_array_cannot_hold_is_refused_of_any_shape(given: Any, dtype: str,
                                                           shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=f"x is an array of {dtype}, which cannot hold"):
        converted(np.full(shape, given), np.dtype(dtype), "x")
    assert converted(np.full(shape, 7), np.dtype(dtype), "x").tolist() == np.full(shape, 7).tolist()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "complex64",
                                   [("a", "f4")]])
@pytest.mark.parametrize("count", [0, 3, 100])
def test_what_is_no_number_stands_in_eight_places(dtype: Any, count: int) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype) if dtype == "bfloat16" else dtype)
    given = np.zeros(count, kind)
    given[...] = np.full(count, 7).astype(kind)
    kept = given.copy()
    found = with_specials(given, np.random.default_rng(0))
    assert given.tobytes() == kept.tobytes()
    assert (found.dtype, found.shape) == (kind, given.shape)
    if kind.kind not in "fV" or kind.names:
        assert found.tobytes() == kept.tobytes()
        return
    odd = sorted(str(value) for value in found.astype(np.float32) if value != 7)
    assert odd == sorted(("nan", "inf", "-inf", "-0.0", "nan", "inf", "0.0", "1.0")[:count])
