"""Arrays between red zones: every byte outside counts, on either side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rawnn.lab.red_zones import Image, place


def image(count: int, dtype: Any = np.uint8) -> Image:
    return Image.of(np.zeros(count, dtype), np.random.default_rng(0))


@pytest.mark.parametrize(("count", "dtype", "zone"), [
    (1, np.uint8, 16 << 10), (5001, np.float32, 20_224), (4096, np.float32, 16 << 10),
    (4097, np.float32, 16_640), (1 << 20, np.float32, 256 << 10)])
def test_a_zone_is_as_large_as_its_array_in_whole_lines(count: int, dtype: Any, zone: int) -> None:
    made = image(count, dtype)
    assert made.zone == zone
    assert made.content.size == count * np.dtype(dtype).itemsize + 2 * zone


@pytest.mark.parametrize(("offset", "words"), [
    (-1, "1 element outside of it, the first 1 element before its beginning"),
    (0, ""), (99, ""), (100, "1 element outside of it, the first at element 100, and it has 100"),
    (101, "1 element outside of it, the first at element 101, and it has 100")])
def test_the_bytes_next_to_an_array(offset: int, words: str) -> None:
    made = image(100)
    content = made.content.copy()
    content[made.zone + offset] ^= 1
    assert made.out_of_bounds(content) == words
    assert made.changed(content).tolist() == ([offset] if 0 <= offset < 100 else [])


def test_both_ends_of_both_zones() -> None:
    made = image(100, np.float32)
    for where in (0, made.zone - 1, made.zone + 400, made.content.size - 1):
        content = made.content.copy()
        content[where] ^= 255
        assert made.out_of_bounds(content), where


def test_other_zones_and_poison_leave_the_rest() -> None:
    made = Image.of(np.arange(50, dtype=np.float32), np.random.default_rng(1))
    moved = made.with_other_zones(np.random.default_rng(2))
    assert (moved.inside() == made.inside()).all()
    for part in (slice(0, made.zone), slice(made.zone + made.nbytes, None)):
        assert np.mean(moved.content[part] == made.content[part]) < 0.02
    blank = made.poisoned(None)
    assert (blank.inside() == 255).all()
    assert blank.out_of_bounds(made.content) == ""
    assert (made.poisoned(np.random.default_rng(3)).inside()
            != made.poisoned(np.random.default_rng(4)).inside()).any()
    assert made.values(made.content).tolist() == list(range(50))


def test_the_place_of_an_element() -> None:
    assert [place(17, (3, 10)), place(2, (5,)), place(0, ())] == ["[1, 7]", "[2]", "[]"]
