"""Samples sizes and inputs for trials of a kernel, with the edge cases where kernels fail."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common.dtypes import check_unmasked, first_lossy
from rawnn.common.errors import ConfigError, RawnnError
from rawnn.lab.expressions import evaluate, names_in

Sizes = dict[str, int]
MOST_ELEMENTS = 1 << 18
"""Most elements of an array whose sizes are not given."""
_EDGES = (8, 32, 64, 128, 256, 1024)
"""Common tile sizes of kernels: samples are multiples of these, and one off them."""
_OFFSETS = (1, 0, -1)
"""The first samples, before the random ones: one above a multiple, a multiple, one below. All
_EDGES divide the largest, so that they test a kernel's bounds checks whatever its tile size."""
_RANGE = re.compile(r"\s*(\d+)\s*\.\.\s*(\d+)\s*")
_ALL = 64  # combinations of listed sizes up to which all are tried
_TRIES, _PATIENCE = 200, 10


def size_range(given: Any, name: str) -> tuple[int, int] | tuple[int, ...]:
    """The sizes in `sizes` of a Work, as (low, high) of a range or as a list. Types distinguish the
    two: (low, high) is given as a `range` or as text."""
    if isinstance(given, bool):
        raise ConfigError(f"sizes: {name} = {given!r} is no size")
    if isinstance(given, int | np.integer):
        found: tuple[int, ...] = (int(given),)
    elif isinstance(given, Sequence) and not isinstance(given, str | range) and given:
        found = tuple(given)
    else:
        low, high = _bounds(given, name)
        return low, high
    if any(not isinstance(n, int | np.integer) or n < 1 for n in found):
        raise ConfigError(f"sizes: {name} = {given!r}: sizes are whole numbers of at least 1")
    return found


def _bounds(given: Any, name: str) -> tuple[int, int]:
    if isinstance(given, range) and given.step == 1 and len(given):
        low, high = given.start, given.stop - 1
    else:
        match = _RANGE.fullmatch(given) if isinstance(given, str) else None
        try:
            low, high = map(int, match.groups() if match else "??")
        except ValueError:
            raise ConfigError(f"sizes: {name} = {given!r}: give a number, a list, or a range as "
                              f"\"1..4096\"") from None
    if not 1 <= low <= high:
        raise ConfigError(f"sizes: {name} = {given!r} is no range of sizes of at least 1")
    return low, high


def is_list(given: Any) -> bool:
    return isinstance(given, int | np.integer) or (
        isinstance(given, Sequence) and not isinstance(given, str | range))


def sample_sizes(names: Sequence[str], given: Mapping[str, Any], require: Sequence[str],
                 together: int, trials: int, generator: np.random.Generator,
                 known: Mapping[str, Any]) -> list[Sizes]:
    """The sizes to try, the smallest first. `together` is the largest number of names in one array,
    which bounds sizes without a range. Raises ConfigError if no sizes meet `require`.
    """
    most = max(2, round(MOST_ELEMENTS ** (1 / max(together, 1))))
    listed = {n: size_range(given[n], n) for n in names if n in given and is_list(given[n])}
    ranges = {n: _bounds(given.get(n, f"1..{most}"), n) for n in names if n not in listed}

    def fits(sizes: Sizes) -> bool:
        return all(evaluate(each, {**known, **sizes}, "require") for each in require)

    if not ranges:
        every = [dict(zip(listed, each, strict=True))
                 for each in itertools.product(*listed.values())]
        found = [sizes for sizes in every if fits(sizes)]
        if len(found) > max(_ALL, trials):
            selected = generator.choice(len(found), max(_ALL, trials), replace=False)
            found = [found[i] for i in sorted(selected)]
    else:
        found = []
        first = {n: low for n, (low, _) in ranges.items()}
        last = {n: high for n, (_, high) in ranges.items()}
        for attempt in range(_TRIES * trials):
            if len(found) >= trials:
                break
            even = attempt > _PATIENCE * trials  # conditions such as n % 16 == 0 are rarely met
            offset = _OFFSETS[attempt - 2] if 2 <= attempt < 2 + len(_OFFSETS) else None
            sampled = {n: _sample_size(low, high, generator, even, offset)
                       for n, (low, high) in ranges.items()}
            sizes = (first, last)[attempt] if attempt < 2 else sampled
            whole = {**sizes, **{n: int(generator.choice(v)) for n, v in listed.items()}}
            whole = {n: whole[n] for n in names}
            if whole not in found and fits(whole):
                found.append(whole)
    if not found:
        raise ConfigError(f"no sizes meet require = {list(require)}: give sizes= that do")
    return sorted(found, key=lambda sizes: prod(sizes.values()))


def _sample_size(low: int, high: int, generator: np.random.Generator, even: bool,
                 offset: int | None = None) -> int:
    """A size, log-uniform; three in four are moved to a multiple of a common tile size, or one off
    it; with `even` always to a multiple. With `offset` it is that far from a multiple of the
    largest tile size within the range."""
    if offset is not None:
        edge = max([e for e in _EDGES if e + 1 <= high], default=1)
        least, most = max(-(-(low - offset) // edge), 1), (high - offset) // edge
        size = int(generator.integers(min(least, most), most + 1)) * edge + offset
        return min(max(size, low), high)
    size = int(np.exp(generator.uniform(np.log(low), np.log(high + 1))))
    if even or generator.random() < 0.75:
        edges = [e for e in _EDGES if e <= size] or [1]
        edge = int(generator.choice(edges))
        size = size // edge * edge + (0 if even else int(generator.integers(-1, 2)))
    return min(max(size, low), high)


def largest(names: Sequence[str], given: Mapping[str, Any], together: int) -> Sizes:
    """The largest of each size, which is timed unless other sizes are given."""
    most = max(2, round(MOST_ELEMENTS ** (1 / max(together, 1))))
    return {n: max(size_range(given.get(n, f"1..{most}"), n)) for n in names}


def sample(kind: Any, generator: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any],
           names: Mapping[str, Any], what: str) -> NDArray[Any]:
    """An array of the `kind` in `inputs` of a Work (None: by the dtype), rounded to `dtype`. Raises
    ConfigError for an unknown kind, and for a function that returns another shape."""
    if dtype.names:
        result = np.zeros(shape, dtype)
        for name in dtype.names:
            inner = dtype[name]
            result[name] = sample(None, generator, (*shape, *inner.shape), inner.base, names, what)
        return result
    if callable(kind):
        try:
            made = kind(generator, shape)
            check_unmasked(made, f"inputs: {what}")
            given = np.asarray(made)
        except RawnnError:
            raise
        except Exception as error:
            raise ConfigError(f"inputs: the function for {what} fails with (generator, {shape}): "
                              f"{type(error).__name__}: {error}") from error
        if given.shape != shape:
            raise ConfigError(f"inputs: the function for {what} gave an array of shape "
                              f"{given.shape}, and {shape} is needed")
        return converted(given, dtype, f"inputs: {what}")
    whole = dtype.kind in "iu"
    if kind is None:
        kind = "normal" if not whole and dtype.kind != "b" else \
            "0..1" if dtype.kind == "b" else "0..100" if dtype.kind == "u" else "-100..100"
    if kind in ("normal", "uniform"):
        def numbers() -> NDArray[Any]:
            return (generator.standard_normal(shape, np.float32) if kind == "normal"
                    else generator.random(shape, np.float32))

        return _rounded(numbers() + 1j * numbers() if dtype.kind == "c" else numbers(), dtype)
    if isinstance(kind, str) and ".." in kind:
        low, high = (evaluate(end, names, f"inputs: {what}") for end in kind.split("..", 1))
        if low > high:
            raise ConfigError(f"inputs: {what} = \"{kind}\" is no range")
        if whole or dtype.kind == "b":
            return converted(generator.integers(int(low), int(high) + 1, shape), dtype,
                             f"inputs: {what}")
        return _rounded(generator.uniform(low, high, shape), dtype)
    if isinstance(kind, str) and names_in(kind, f"inputs: {what}") - set(names):
        raise ConfigError(f"inputs: {what} = {kind!r}: give \"normal\", \"uniform\", \"lo..hi\", a "
                          f"number, or a function of (generator, shape)")
    what = f"inputs: {what}"
    return converted(np.full(shape, evaluate(kind, names, what)), dtype, what)


def converted(given: NDArray[Any], dtype: np.dtype[Any], what: str) -> NDArray[Any]:
    """The numbers as `dtype`. Raises ConfigError, which begins with `what`, for one that it cannot
    hold."""
    with np.errstate(over="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
        try:
            found = np.ascontiguousarray(given.astype(dtype))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{what} is an array of {dtype}: {error}") from None
    place = first_lossy(given, found)
    if place is not None:
        raise ConfigError(f"{what} is an array of {dtype}, which cannot hold "
                          f"{given[place]}: give numbers of that type")
    return found


def _rounded(numbers: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(numbers.astype(dtype))


def independent(kind: Any, dtype: np.dtype[Any]) -> bool:
    """Whether elements are sampled independently, so that any part of a long sample is valid."""
    return not callable(kind) and not dtype.names


def with_specials(values: NDArray[Any], generator: np.random.Generator) -> NDArray[Any]:
    """A copy with NaN, both infinities and zeros in some places, if the dtype has them."""
    result = values.copy()
    if result.dtype.kind not in "fV" or result.dtype.names or not result.size:
        return result
    flat = result.reshape(-1)
    places = generator.choice(flat.size, min(flat.size, 8), replace=False)
    with np.errstate(all="ignore"):
        for place, special in zip(places, (np.nan, np.inf, -np.inf, -0.0, np.nan, np.inf, 0.0, 1.0),
                                  strict=False):
            flat[place] = np.float32(special).astype(flat.dtype)
    return result
