"""Class labels: numbers, words, one-hot rows; what is missing, and what predictions give back."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rawnn.common.errors import ConfigError, DataError
from rawnn.data import from_arrays
from rawnn.data import labels as labels_module
from rawnn.engine.model import Model
from rawnn.engine.result import Result
from rawnn.engine.training import train
from tests import requires

RNG = np.random.default_rng(0)
PLACES = np.arange(60) % 3
X = (np.eye(3)[PLACES] + 0.05 * RNG.normal(size=(60, 3))).astype(np.float32)
"""Three classes that a network of one layer learns to tell apart."""


def trained(y: Any, outputs: int = 3, **options: Any) -> Result:
    return train(**{"data": (X, y), "layers": (3, outputs), "epochs": 20, "batch": 4, "lr": 1.0,
                    "device": "host", **options})


@pytest.mark.parametrize(("values", "dtype", "names"), [
    ([1, 2, 3], "int64", ("1", "2", "3")),
    ([0, 2, 5], "int32", ("0", "2", "5")),
    ([-1, 0, 1], "int8", ("-1", "0", "1")),
    ([10, 9, 100], "uint16", ("9", "10", "100")),
    ([1, 2, 3], "float64", ("1", "2", "3")),
    ([0, 1, 2], "int64", ()),
    ([0, 1, 2], "uint8", ()),
    ([0, 1, 2], "float32", ()),
    ([7, 8, 9], object, ("7", "8", "9")),
])
def test_numbers_of_any_kind_are_labels(values: list[int], dtype: Any, names: tuple[str, ...],
                                        tmp_path: Path) -> None:
    y = np.array(values)[PLACES].astype(dtype)
    result = trained(y, save=str(tmp_path))
    assert (result.test_accuracy, result.label_names) == (1.0, names)
    for model in (result.model, Model.load(tmp_path)):
        labels = model.predict(X, "labels")
        assert labels.dtype == ("int64" if dtype is object else dtype)
        np.testing.assert_array_equal(labels, y.astype(labels.dtype))
        for answers in (y, y.tolist(), y.reshape(-1, 1), y.astype(float)):
            assert model.score(X, answers).accuracy == 1.0
        assert model.confusion(X, y).trace() == 60


def test_minus_one_and_one() -> None:
    y = np.where(PLACES == 0, -1, 1)
    result = trained(y, 2)
    assert result.label_names == ("-1", "1")
    np.testing.assert_array_equal(result.model.predict(X, "labels"), y)
    assert from_arrays((X, y), (X, y)).label_names == ("-1", "1")


def test_truth_values_come_back_as_truth_values() -> None:
    labels = trained(PLACES == 0, 2).model.predict(X, "labels")
    assert labels.dtype == bool
    np.testing.assert_array_equal(labels, PLACES == 0)


def test_labels_below_the_number_of_outputs_stay_indices() -> None:
    """A class that these data happen not to have keeps its output."""
    y = np.array([0, 2, 5])[PLACES]
    model = trained(y, 6).model
    assert model.label_names == ()
    np.testing.assert_array_equal(model.predict(X), y)
    np.testing.assert_array_equal(model.predict(X, "labels"), y)


def test_a_data_set_made_beforehand_gets_names_where_the_network_is_smaller() -> None:
    y = np.array([1, 2, 5])[PLACES]
    data = from_arrays((X, y), (X, y))
    assert (data.classes, data.label_names) == (6, ())
    options: dict[str, Any] = {"epochs": 20, "batch": 4, "lr": 1.0, "device": "host"}
    assert train(data=data, layers=(3, 6), **options).label_names == ()
    result = train(data=data, layers=(3, 3), **options)
    assert result.label_names == ("1", "2", "5")
    np.testing.assert_array_equal(result.model.predict(X, "labels"), y)
    with pytest.raises(ConfigError, match="ends in 2 outputs, but arrays has 6"):
        train(data=data, layers=(3, 2), device="host")


def test_given_names_of_numbers_are_matched_by_name() -> None:
    y = np.array([30, 20, 30, 20])
    x = np.zeros((4, 2), np.float32)
    data = from_arrays((x, y), (x, y), label_names=["10", "20", "30"])
    assert data.train_labels is not None
    assert (data.classes, data.train_labels.tolist()) == (3, [2, 1, 2, 1])
    words = from_arrays((x, y // 20), (x, y // 20), label_names=["cat", "dog"])
    assert words.train_labels is not None
    assert words.train_labels.tolist() == [1, 1, 1, 1]


def test_a_label_that_training_does_not_know() -> None:
    y = np.array([1, 2, 4])[PLACES]
    with pytest.raises(DataError, match="row 5 has the label '3', but the classes are 1, 2, 4"):
        trained(y, validation=(X, np.where(np.arange(60) == 5, 3, y)))
    with pytest.raises(DataError, match="row 5 has the label '3', but the classes are 1, 2, 4"):
        trained(y).model.score(X, np.where(np.arange(60) == 5, 3, y))


# -- one-hot -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "int64", "bool", "uint8"])
def test_one_hot_rows_are_labels(dtype: str) -> None:
    y = np.eye(3)[PLACES].astype(dtype)
    result = trained(y)
    assert "one-hot, and taken by argmax" in " ".join(result.notes)
    assert (result.test_accuracy, result.label_names) == (1.0, ())
    assert result.model.score(X, y).accuracy == 1.0
    np.testing.assert_array_equal(result.model.predict(X, "labels"), PLACES)


def test_one_hot_columns_name_the_classes() -> None:
    pandas = requires.module("pandas")
    words = np.array(["eel", "cat", "dog"])[PLACES]
    y = pandas.get_dummies(pandas.Series(words))
    model = trained(y).model
    assert model.label_names == ("cat", "dog", "eel")
    np.testing.assert_array_equal(model.predict(X, "labels"), words)
    for answers in (y, y[["eel", "dog", "cat"]], words):  # by name, whatever the order
        assert model.score(X, answers).accuracy == 1.0


def test_one_hot_columns_are_as_many_as_outputs_also_where_no_row_has_the_last() -> None:
    with pytest.raises(ConfigError, match="3 outputs, but arrays has 6"):
        trained(np.eye(6)[PLACES], 3)


def test_rows_that_are_not_one_hot_are_refused_and_values_stay_values() -> None:
    y = np.eye(3)[PLACES]
    for bad in ([0.5, 0.5, 0], [1, 1, 0], [0, 0, 0], [2, 0, 0], [np.nan, 1, 0]):
        soft = y.copy()
        soft[41] = bad
        with pytest.raises(DataError, match="row 41 does not hold a single 1"):
            trained(soft)
    assert from_arrays((X, y), (X, y)).train_targets is not None
    assert trained(y, loss="mse").label_names == ()


# -- missing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["", " ", "nan", "NaN", "None", "<NA>", "NaT", "NA", "null", "?"])
def test_words_for_what_is_missing_are_refused(word: str) -> None:
    y = np.array(["a", "b", "c"], dtype="U4")[PLACES]
    y[17] = word
    with pytest.raises(DataError, match=r"labels: row 17 has no value \('"):
        trained(y)
    model = trained(np.array(["a", "b", "c"])[PLACES]).model
    with pytest.raises(DataError, match=r"answers: row 17 has no value \('"):
        model.score(X, y)


@pytest.mark.parametrize("value", [None, np.nan])
def test_objects_for_what_is_missing_are_refused(value: Any) -> None:
    for labels in (["a", "b", "c"], [0, 1, 2]):
        y = np.array(labels, object)[PLACES]
        y[17] = value
        with pytest.raises(DataError, match=r"y: row 17 has no value"):
            trained(y)
    with pytest.raises(DataError, match="labels: row 17 has no value"):
        trained(np.where(np.arange(60) == 17, np.nan, PLACES))


def test_a_class_may_be_named_so() -> None:
    y = np.array(["none", "mild"])[PLACES % 2]
    with pytest.raises(DataError, match=r"name them all: rawnn.from_arrays\(data, label_names="):
        from_arrays((X, y))
    data = from_arrays((X, y), label_names=["none", "mild"])
    model = train(data=data, layers=(3, 2), epochs=1, batch=4, device="host").model
    assert set(model.predict(X, "labels")) <= {"none", "mild"}
    assert model.score(X, y).loss > 0


# -- labels that would become one class, or none --------------------------------------------------


@pytest.mark.parametrize("value", [1e19, -1e19, 2.0**63, 1e300])
def test_numbers_beyond_int64_are_refused(value: float) -> None:
    with pytest.raises(DataError, match="beyond the whole numbers of int64"):
        trained(np.where(PLACES == 1, value, PLACES))
    largest = np.nextafter(2.0**63, 0)
    model = trained(np.where(PLACES == 1, largest, -(2.0**63)), outputs=2).model
    assert model.labels.tolist() == [-(2.0**63), largest]


def test_bytes_that_are_no_text_are_refused() -> None:
    assert trained(np.array(["ä".encode(), b"b", b"c"])[PLACES]).label_names == ("b", "c", "ä")
    with pytest.raises(DataError, match=r"is b'\\xff', which is no text in UTF-8"):
        trained(np.array([b"\xff", b"\xfe", b"c"])[PLACES])


def test_a_number_and_a_word_of_one_spelling_are_refused() -> None:
    y = np.array([1, 2, "three"], object)[PLACES]
    assert trained(y).label_names == ("1", "2", "three")
    y[41] = "1"
    with pytest.raises(DataError, match=r"hold 1 as a number and '1' as a word"):
        trained(y)


def test_names_and_kinds_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(ConfigError, match="label_names has 'b' twice"):
        from_arrays((X, PLACES), label_names=["a", "b", "b"])
    with pytest.raises(ConfigError, match="kind = 'label'; did you mean 'labels'"):
        from_arrays((X, PLACES), kind="label")  # type: ignore[arg-type]
    for validation in ("0.2", True):
        with pytest.raises(ConfigError, match=r"validation = .*: give a fraction"):
            from_arrays((X, PLACES), validation)


@pytest.mark.parametrize("seed", range(30))
def test_an_index_leads_back_to_the_label_that_was_given(seed: int) -> None:
    """Whole numbers with gaps, negative ones, words, truth values and one-hot rows; in random rows.
    """
    generator = np.random.default_rng(seed)
    kind = ["indices", "gaps", "words", "truth", "one-hot"][seed % 5]
    classes, count = int(generator.integers(2, 7)), int(generator.integers(20, 40))
    which = np.concatenate([np.arange(classes), generator.integers(0, classes, count)])
    pool: Any = {
        "indices": np.arange(classes), "one-hot": np.arange(classes),
        "gaps": np.sort(generator.choice(np.arange(-50, 50) * 2, classes, replace=False)),
        "words": np.array(sorted(f"w{n}" for n in generator.permutation(99)[:classes])),
        "truth": np.array([False, True])}[kind]
    which %= len(pool)
    given = np.eye(classes, dtype=np.float32)[which] if kind == "one-hot" else pool[which]
    read = labels_module.given_labels(given, "train")
    names = labels_module.class_names([read], (), None, len(pool))
    indices = labels_module.class_indices(read, names, read, "train")
    if kind in ("words", "gaps"):
        assert names == tuple(str(value) for value in pool.tolist())
        assert [names[i] for i in indices.tolist()] == [str(value) for value in given.tolist()]
    else:
        assert np.array_equal(indices, which)


@pytest.mark.parametrize("at", [0, 3, 7])
@pytest.mark.parametrize("value", [-1, 4, 100])
@pytest.mark.parametrize("rows", [None, np.array([10, 11, 13, 17, 19, 23, 29, 31], np.int32)])
def test_the_row_of_a_label_out_of_range_is_the_callers(at: int, value: int, rows: Any) -> None:
    values = np.array([0, 1, 2, 3, 3, 2, 1, 0])
    labels_module.check_labels(values, 4, "labels", rows)
    values[at] = value
    row = at if rows is None else int(rows[at])
    with pytest.raises(DataError, match=f"labels: row {row} has the label {value}, but labels run "
                                        f"from 0 to 3"):
        labels_module.check_labels(values, 4, "labels", rows)
    names = ("a", "b", "c", "d")
    words = np.array([*names, *names], "U2")
    assert labels_module.label_indices(words, names, "words", rows).tolist() == [0, 1, 2, 3] * 2
    words[at] = "e"
    with pytest.raises(DataError, match=f"words: row {row} has the label 'e'"):
        labels_module.label_indices(words, names, "words", rows)
    words[at] = "NA"
    given = labels_module.given_labels(words, "train")
    with pytest.raises(DataError, match=f"words: row {row} has no value"):
        labels_module.check_words(given, names, "words", rows)
    labels_module.check_words(given, (*names, "NA"), "words", rows)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8", "bool"])
def test_fractions_have_both_their_ends(dtype: str) -> None:
    for held in ([0, 1], [0, 0], [1, 1], [0.5, 0.25]):
        labels_module.check_fractions(np.array(held).astype(dtype), "x")
    past = [] if dtype == "bool" else [[0, 2]] if dtype == "uint8" else \
        [[0, 1.001], [-0.001, 1], [-7, -6]]
    for beyond in past:
        array = np.array(beyond).astype(dtype)
        with pytest.raises(DataError, match=f"x reach from {float(array.min()):g} to "
                                            f"{float(array.max()):g}, but"):
            labels_module.check_fractions(array, "x")


@pytest.mark.parametrize("made", [
    lambda word: (X, [word if place else "other" for place in PLACES]),
    lambda word: ({word: X[:, 0], "b": X[:, 1], "c": X[:, 2]}, PLACES)])
def test_a_name_that_no_file_can_hold_is_refused(made: Any) -> None:
    """Predictions of that class ended in a UnicodeEncodeError."""
    assert trained(None, data=made("\U0001f33a"), epochs=1).test_accuracy is not None
    with pytest.raises(DataError, match=r"the name 'a\\udce9' of a class or column"):
        trained(None, data=made(b"a\xe9".decode(errors="surrogateescape")), epochs=1)


def test_whole_numbers_in_float16_are_labels_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = labels_module.given_labels(np.array([0, 2, 1], np.float16), "train")
    assert (found.values.tolist(), found.dtype) == ([0, 2, 1], "float16")
