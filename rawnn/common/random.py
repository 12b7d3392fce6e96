"""Random numbers that depend only on their coordinates, bit for bit those of
`rawnn/ptx/primitives/random.cuh` on the device.

The generator is Philox4x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"): a seed
of 64 bits, a stream of 32 bits (such as one per tensor) and a counter of 64 bits give four words.
(NumPy's Philox has words of 64 bits, whose products take several GPU instructions.) There is no
state, so that any part of a sequence can be computed alone.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rawnn.common.errors import ConfigError

ROUNDS = 10
"""Rounds of the published generator."""
ROUNDING_ROUNDS = 7
"""Rounds for the bits of stochastic rounding, which the innermost loop generates."""
PERMUTATION_ROUNDS = 8
MAX_PERMUTATION = 2**30
"""The longest permutation, in elements."""

PART, THREADS = 1 << 19, 16
"""Numbers that a thread generates at once, and the most threads."""

_WORD = 0xFFFFFFFF


class Purpose(IntEnum):
    """The use of a sample: the generator's last counter word, so that no two uses share one."""

    UNIFORM = 0
    ROUNDING = 1
    PERMUTATION = 2


def philox(
    seed: int, stream: int, counter: ArrayLike, purpose: int = Purpose.UNIFORM,
    rounds: int = ROUNDS,
) -> NDArray[np.uint32]:
    """Four random words for each 64-bit counter: uint32, shape (*counter.shape, 4)."""
    counters = np.asarray(counter, np.uint64)
    low = counters & np.uint64(_WORD)
    high = counters >> np.uint64(32)
    word2 = np.full_like(counters, stream & _WORD)
    word3 = np.full_like(counters, purpose & _WORD)
    key0, key1 = seed & _WORD, seed >> 32 & _WORD
    for _ in range(rounds):
        even = low * np.uint64(0xD2511F53)
        odd = word2 * np.uint64(0xCD9E8D57)
        low = (odd >> np.uint64(32)) ^ high ^ np.uint64(key0)
        word2 = (even >> np.uint64(32)) ^ word3 ^ np.uint64(key1)
        high = odd & np.uint64(_WORD)
        word3 = even & np.uint64(_WORD)
        key0, key1 = key0 + 0x9E3779B9 & _WORD, key1 + 0xBB67AE85 & _WORD
    return np.stack([low, high, word2, word3], axis=-1).astype(np.uint32)


def uniform(seed: int, stream: int, count: int, bound: float) -> NDArray[np.float32]:
    """`count` float32 numbers in [-bound, bound), with the bound as float32. Element i is word i %
    4 of counter i // 4; it lies on a grid of 2^24 points and is rounded once.

    Several threads generate parts of it: 45 million numbers take 3.4 s in one part, and 0.3 s on 4
    cores."""
    sampled = np.empty(count, np.float32)

    def sample(first: int) -> None:
        part = sampled[first : first + PART]
        counters = np.arange(first // 4, first // 4 + -(-part.size // 4), dtype=np.uint64)
        words = philox(seed, stream, counters).reshape(-1)[: part.size]
        centred = (words >> np.uint32(8)).astype(np.int32) - np.int32(0x800000)
        np.multiply(centred.astype(np.float32) * np.float32(2.0**-23), np.float32(bound), out=part)

    parts = range(0, count, PART)
    if len(parts) < 2:
        for first in parts:
            sample(first)
    else:
        with ThreadPoolExecutor(min(len(parts), os.cpu_count() or 1, THREADS)) as threads:
            list(threads.map(sample, parts))
    return sampled


def rounding_bits(
    seed: int, stream: int, step: int, elements: ArrayLike
) -> NDArray[np.uint16]:
    """16 random bits for each element index (below 2^32, row by row without padding) at one step of
    training, counted from its start. Eight neighbours share a sample."""
    index = np.asarray(elements, np.uint64)
    groups, place = np.unique(index // np.uint64(8), return_inverse=True)
    words = philox(seed, stream, groups | np.uint64((step & _WORD) << 32), Purpose.ROUNDING,
                   ROUNDING_ROUNDS)
    shifts = np.array([0, 16], np.uint32)
    halves = (words[:, :, None] >> shifts).astype(np.uint16).reshape(-1, 8)
    sampled: NDArray[np.uint16] = halves[place.reshape(index.shape), index % np.uint64(8)]
    return sampled


def permutation(seed: int, epoch: int, count: int) -> NDArray[np.int32]:
    """The order of `count` examples in an epoch: int32, a permutation of 0 .. count - 1.

    A balanced Feistel network over the smallest domain of an even number of bits that holds
    `count`; values outside the range are mapped again. Raises ConfigError for a count that is
    negative or above 2^30.
    """
    if not 0 <= count <= MAX_PERMUTATION:
        raise ConfigError(f"cannot shuffle {count} examples: the most is {MAX_PERMUTATION}")
    counters = np.array([0, 1], np.uint64) | np.uint64((epoch & _WORD) << 32)
    keys = philox(seed, 0, counters, Purpose.PERMUTATION).reshape(-1)
    half = max(1, -(-(count - 1).bit_length() // 2))
    order = _feistel(np.arange(count, dtype=np.uint32), keys, half)
    outside = np.flatnonzero(order >= count)
    while outside.size:
        walked = _feistel(order[outside], keys, half)
        order[outside] = walked
        outside = outside[walked >= count]
    return order.view(np.int32)


def _feistel(index: NDArray[np.uint32], keys: NDArray[np.uint32], half: int) -> NDArray[np.uint32]:
    bits, mask = np.uint32(half), np.uint32((1 << half) - 1)
    left, right = index >> bits, index & mask
    mixed, shifted = np.empty_like(index), np.empty_like(index)
    for key in keys[:PERMUTATION_ROUNDS]:
        np.bitwise_xor(right, key, out=mixed)
        np.multiply(mixed, np.uint32(0x7FEB352D), out=mixed)
        np.right_shift(mixed, np.uint32(15), out=shifted)
        np.bitwise_xor(mixed, shifted, out=mixed)
        np.multiply(mixed, np.uint32(0x846CA68B), out=mixed)
        np.right_shift(mixed, np.uint32(16), out=shifted)
        np.bitwise_xor(mixed, shifted, out=mixed)
        np.bitwise_and(mixed, mask, out=mixed)
        np.bitwise_xor(left, mixed, out=left)
        left, right = right, left
    return (left << bits) | right
