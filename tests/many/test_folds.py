"""Lists of rows in every form that a caller may give, and which rows train and which score."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rawnn.common.errors import ConfigError
from rawnn.data import Dataset, from_arrays
from rawnn.many.folds import Folds, folds_of
from rawnn.many.members import Group

COUNT = 23
RNG = np.random.default_rng(1)
LABELS = np.concatenate([np.zeros(11), np.ones(7), np.full(5, 2)]).astype(np.int64)[
    RNG.permutation(COUNT)]


def data(has_labels: bool = True) -> Dataset:
    x = RNG.normal(size=(COUNT, 3)).astype(np.float32)
    answers = LABELS if has_labels else RNG.normal(size=(COUNT, 1)).astype(np.float32)
    return from_arrays((x, answers), validation=(x, answers))


def lists(found: tuple[Any, ...]) -> list[list[int]]:
    assert all(each.dtype == np.int32 for each in found)
    return [each.tolist() for each in found]


MASK = np.arange(COUNT) % 3 == 0
FORMS: list[tuple[Any, list[int]]] = [
    ([2, 0, 5], [2, 0, 5]), ((2, 0), [2, 0]), (range(3), [0, 1, 2]), (np.array([7]), [7]),
    (np.array([1, 2], np.uint8), [1, 2]), ([0, 0, COUNT - 1], [0, 0, COUNT - 1]),
    (MASK, list(range(0, COUNT, 3))), (MASK.tolist(), list(range(0, COUNT, 3)))]


@pytest.mark.parametrize(("given", "rows"), FORMS, ids=lambda each: str(each)[:20])
def test_rows_come_in_many_forms(given: Any, rows: list[int]) -> None:
    """Numbers in any order and more than once, and masks of all rows."""
    found = folds_of(None, 1, [given, [1]], data(), 0)
    assert lists(found.rows) == [rows, [1]]
    assert found.held_out == ()
    pairs = folds_of([(given, [3]), ([4], given)], 1, None, data(), 0)
    assert lists(pairs.rows) == [rows, [4]]
    assert lists(pairs.held_out) == [[3], rows]


@pytest.mark.parametrize(("given", "words"), [
    ([COUNT], f"has the row {COUNT}, but the data have the rows 0 to {COUNT - 1}"),
    ([0, -1], "has the row -1"), ([], "must be a list of row numbers"),
    ([0.5], "must be a list of row numbers"), ([[1, 2], [3, 4]], "must be a list of row numbers"),
    (MASK[1:], "must be a list of row numbers"), ([[1], [2, 3]], "must be a list of row numbers"),
    (np.zeros(COUNT, bool), "must be a list of row numbers")], ids=str)
def test_what_names_no_rows_is_refused(given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"rows\[1\] {words}"):
        folds_of(None, 1, [[0], given], data(), 0)
    with pytest.raises(ConfigError, match=rf"folds\[0\]\[1\] {words}"):
        folds_of([([0], given)], 1, None, data(), 0)


@pytest.mark.parametrize("has_labels", [True, False])
@pytest.mark.parametrize("folds", [2, 3, 7, COUNT])
@pytest.mark.parametrize("repeats", [1, 3])
def test_each_row_scores_once_a_repeat_and_classes_are_shared_evenly(has_labels: bool, folds: int,
                                                                     repeats: int) -> None:
    own = data(has_labels)
    found = folds_of(folds, repeats, None, own, 5)
    assert (len(found.rows), found.folds, found.repeats) == (folds * repeats, folds, repeats)
    for repeat in range(repeats):
        of_repeat = slice(repeat * folds, (repeat + 1) * folds)
        held = found.held_out[of_repeat]
        assert sorted(row for rows in held for row in rows.tolist()) == list(range(COUNT))
        sizes = [len(rows) for rows in held]
        assert max(sizes) - min(sizes) <= 1
        for rows, scored in zip(found.rows[of_repeat], held, strict=True):
            assert sorted([*rows.tolist(), *scored.tolist()]) == list(range(COUNT))
            assert rows.tolist() == sorted(rows.tolist())
        if has_labels:
            for label in range(3):
                parts = [int((LABELS[rows] == label).sum()) for rows in held]
                assert max(parts) - min(parts) <= 1
    assert lists(found.rows) == lists(folds_of(folds, repeats, None, own, 5).rows)
    if folds < COUNT:
        assert lists(found.rows) != lists(folds_of(folds, repeats, None, own, 6).rows)
    different = Counter(tuple(rows.tolist()) for rows in found.held_out)
    assert folds == COUNT or max(different.values()) == 1  # a repeat has folds of its own


@pytest.mark.parametrize("folds", [1, 0, -3, COUNT + 1, True])
def test_numbers_of_folds_that_cannot_be(folds: Any) -> None:
    with pytest.raises(ConfigError, match=r"^folds"):
        folds_of(folds, 1, None, data(), 0)


def test_nothing_asked_for_is_no_list() -> None:
    found = folds_of(None, 1, None, data(), 0)
    assert vars(found) == vars(Folds()) == {"rows": (), "held_out": (), "folds": 0, "repeats": 1}


def test_targets_are_those_of_the_part_that_is_asked_for() -> None:
    values = np.arange(8.0).reshape(4, 2)
    for train, test in ((values, None), (None, values)):
        group: Any = SimpleNamespace(
            dataset=SimpleNamespace(train_targets=train, test_targets=test,
                                    target_normalisation=None),
            target_normalisations=(None,), exact_targets=None)
        for part, wanted in (("train", train), ("test", test)):
            found = Group.targets_of(group, part, 0, slice(1, 3))
            assert (found is None) == (wanted is None)
            if wanted is not None:
                np.testing.assert_array_equal(found, wanted[1:3])
