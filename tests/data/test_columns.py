"""Frames, dictionaries, sparse matrices: what becomes an array, and the sentence for what does
not."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from rawnn.common.errors import ConfigError, DataError
from rawnn.data import columns, from_arrays
from rawnn.data.columns import read_answers, read_inputs
from tests import requires

AGE, TALL, COUNT = [31.5, 40.0, 7.25], [True, False, True], [3, 1, 2]
WANTED = np.array([[31.5, 1, 3], [40.0, 0, 1], [7.25, 1, 2]])
NAMES = ("age", "tall", "count")


def frames(kind: str) -> Any:
    values = dict(zip(NAMES, (AGE, TALL, COUNT), strict=True))
    if kind == "dict":
        return values
    if kind == "structured":
        return np.array(list(zip(AGE, TALL, COUNT, strict=True)),
                        [("age", "f8"), ("tall", "?"), ("count", "i4")])
    if kind.startswith("polars"):
        polars = requires.module("polars")
        frame = polars.DataFrame(values)
        return frame.lazy() if kind == "polars lazy" else frame
    pandas = requires.module("pandas")
    frame = pandas.DataFrame(values)
    if kind == "pandas nullable":
        return frame.astype({"age": "Float64", "tall": "boolean", "count": "Int64"})
    return frame.astype(object) if kind == "pandas objects" else frame


@pytest.mark.parametrize("kind", ["dict", "structured", "polars", "polars lazy", "pandas",
                                  "pandas nullable", "pandas objects"])
def test_columns_become_an_array_of_numbers(kind: str) -> None:
    found = read_inputs(frames(kind), "X")
    assert isinstance(found.array, np.ndarray)
    assert found.array.dtype.kind in "if"
    np.testing.assert_array_equal(found.array, WANTED)
    assert found.names == NAMES
    data = from_arrays((frames(kind), [0, 1, 0]), (frames(kind), [0, 1, 0]))
    np.testing.assert_array_equal(data.train_images, WANTED.astype(np.float32))
    assert data.feature_names == NAMES


def test_dummies_of_pandas() -> None:
    pandas = requires.module("pandas")
    frame = pandas.get_dummies(pandas.DataFrame({"v": [0.5, 1.5], "c": ["x", "y"]}))
    np.testing.assert_array_equal(read_inputs(frame, "X").array, [[0.5, 1, 0], [1.5, 0, 1]])


def test_a_frame_of_one_type_shares_its_memory() -> None:
    pandas = requires.module("pandas")
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    found = read_inputs(pandas.DataFrame(x, copy=False), "X")
    assert np.shares_memory(found.array, x)
    assert found.names == ()  # they are but numbers from 0


def test_a_matrix_is_an_array() -> None:
    x, y = np.array([[1.0, 2], [3, 4], [5, 6]]), [0, 1, 0]
    data = from_arrays((np.matrix(x), np.matrix(y).T), (np.matrix(x), y), normalise="learned")
    assert type(data.train_images) is np.ndarray
    np.testing.assert_array_equal(data.train_labels, y)


def test_sparse_matrices_are_made_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    sparse = requires.module("scipy.sparse")
    x = np.array([[0, 2.5], [1, 0], [0, 0]])
    for kind in (sparse.csr_matrix, sparse.coo_array, sparse.dok_matrix):
        data = from_arrays((kind(x), [0, 1, 0]), (kind(x), [0, 1, 0]))
        np.testing.assert_array_equal(data.train_images, x)
        assert data.notes[0] == "the training inputs: the sparse matrix, 3 x 2, is made dense " \
                                "(48 bytes)"
    monkeypatch.setattr(columns, "DENSE_LIMIT", 47)
    with pytest.raises(DataError, match=r"X: a sparse matrix, 3 x 2, that takes .* reduce"):
        from_arrays((sparse.csr_matrix(x), [0, 1, 0]), 0.5)


MISSING: list[Any] = [None, np.nan, np.float32("nan"), np.datetime64("NaT"), Decimal("NaN")]


@pytest.mark.parametrize("value", MISSING)
def test_what_is_missing_is_named_with_column_and_row(value: Any) -> None:
    rows = r"column 'b' has no value in row 2 \("
    with pytest.raises(DataError, match=f"X: {rows}"):
        read_inputs({"a": [1, 2, 3], "b": [1, True, value]}, "X")
    with pytest.raises(DataError, match=f"y: {rows}"):
        read_answers({"a": [1, 2, 3], "b": [1, True, value]}, "y")
    bare = np.array([[1, 2], [3, value]], object)
    with pytest.raises(DataError, match=r"X: row 1, column 1 has no value \("):
        read_inputs(bare, "X")
    with pytest.raises(DataError, match=r"y: row 1 has no value \("):
        read_answers(np.array(["a", value], object), "y")


def test_what_pandas_and_polars_call_missing() -> None:
    pandas, polars = requires.module("pandas"), requires.module("polars")
    for value in (pandas.NA, pandas.NaT, None):
        with pytest.raises(DataError, match="column 'b' has no value in row 1"):
            read_inputs(pandas.DataFrame({"a": [1, 2], "b": [1, value]}), "X")
        for dtype in (object, "string", "category"):
            with pytest.raises(DataError, match="y: row 1 has no value"):
                read_answers(pandas.Series(["u", None, "v"], dtype=dtype), "y")
    for dtype in ("Int64", "Float64", "boolean"):
        with pytest.raises(DataError, match="X: column 'b' has no value in row 1"):
            read_inputs(pandas.DataFrame({"a": [1, 2], "b": pandas.array([1, None], dtype)}), "X")
    for values in ([1, None], [True, None], [0.5, None]):
        with pytest.raises(DataError, match="X: column 'b' has no value in row 1"):
            read_inputs(polars.DataFrame({"a": [1, 2], "b": values}), "X")
    with pytest.raises(DataError, match="y: row 1 has no value"):
        read_answers(polars.Series(["u", None]), "y")


@pytest.mark.parametrize(("values", "sentence"), [
    (["red", "blue"], "holds 'red' in row 0, which is no number: .* pandas.get_dummies"),
    (np.array([1, "blue"], object), "holds 'blue' in row 1, which is no number: .*get_dummies"),
    (np.array(["2020-01-01", "2020-01-02"], "M8[D]"), "holds '2020-01-01' in row 0.* days since"),
    (np.array([1, 2], "m8[s]"), ".* which is no number: make numbers of durations"),
    ([1j, 2], ".* which is no number: give real and imaginary parts"),
    ([[1, 2], [3, 4]], r"is of shape \[2, 2\], but a column holds one value a row"),
    ([1, 2, 3], "column 'b' has 3 rows, but 'a' has 2"),
])
def test_what_is_no_number_is_named_with_the_fix(values: Any, sentence: str) -> None:
    with pytest.raises(DataError, match=f"X: column 'b' {sentence}|X: {sentence}"):
        read_inputs({"a": [1, 2], "b": values}, "X")


def test_arrays_that_are_no_numbers_name_the_fix() -> None:
    days = np.array([["2020-01-01"]] * 4, "M8[D]")
    with pytest.raises(DataError, match="make numbers of dates"):
        from_arrays((days, [0, 1, 0, 1]))
    with pytest.raises(DataError, match=r"of type object: .* \.astype\(float\) makes"):
        from_arrays((np.array([[1, 2.5]] * 4, object), [0, 1, 0, 1]))
    with pytest.raises(DataError, match="X: there is no column"):
        read_inputs({}, "X")


def test_columns_in_another_order_are_refused() -> None:
    first, second = {"a": [1, 2], "b": [3, 4]}, {"b": [3, 4], "a": [1, 2]}
    with pytest.raises(DataError, match="the validation inputs have the columns b, a, but the "
                                        "training inputs have a, b, in this order"):
        from_arrays((first, [0, 1]), (second, [0, 1]))
    with pytest.raises(DataError, match="the validation y have the columns b, a"):
        from_arrays((np.eye(2), first), (np.eye(2), second))


def test_integer_names_of_training_and_validation_are_compared() -> None:
    pandas = requires.module("pandas")
    x, y = np.arange(12.0).reshape(4, 3), [0, 1, 0, 1]
    first = pandas.DataFrame(x)
    for second in (first[[2, 1, 0]], pandas.DataFrame(x, columns=[1, 2, 3])):
        with pytest.raises(DataError, match=r"the validation inputs have the columns .*, but the "
                                            "training inputs have 0, 1, 2, in this order"):
            from_arrays((first, y), (second, y))
    with pytest.raises(DataError, match=r"inputs have the columns 0, 1, 2, but .* have 2, 1, 0"):
        from_arrays((first[[2, 1, 0]], y), (first, y))
    with pytest.raises(DataError, match="the validation y have the columns 2, 1, 0"):
        from_arrays((x, first), (x, first[[2, 1, 0]]))
    assert from_arrays((first, y), (x, y)).feature_names == ()


def test_named_columns_go_by_position_where_training_had_no_names() -> None:
    pandas = requires.module("pandas")
    x = np.arange(8.0).reshape(4, 2)
    for frame in (pandas.DataFrame(x, columns=["b", "a"]), {"b": x[:, 0], "a": x[:, 1]}):
        found = read_inputs(frame, "X", (), 2)
        assert found.names == ("b", "a")
        np.testing.assert_array_equal(found.array, x)
    swapped = read_inputs(pandas.DataFrame(x)[[1, 0]], "X", (), 2)
    np.testing.assert_array_equal(swapped.array, x)
    with pytest.raises(DataError, match="X have no column '0'"):
        read_inputs(pandas.DataFrame(x, columns=[1, 2]), "X", (), 2)


def test_a_number_that_is_not_finite_is_named_by_its_column() -> None:
    with pytest.raises(DataError, match=r"hold inf \(row 1, column 'b'\)"):
        from_arrays(({"a": [1, 2], "b": [1, np.inf]}, [0, 1]))


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_integers_that_become_equal_in_float64_are_noted(dtype: str) -> None:
    first = 2**60 + np.arange(40, dtype=dtype)
    assert len(np.unique(first.astype(np.float64))) == 1
    data = from_arrays(({"id": first, "x": np.linspace(0, 1, 40)}, np.arange(40) % 2),
                       normalise="learned")
    assert data.notes[0] == ("X: distinct integers become equal in float64, in column 'id' 40 "
                             "become 1: subtract the lowest value first")
    exact = from_arrays(({"id": first - first[0], "x": np.linspace(0, 1, 40)}, np.arange(40) % 2),
                        normalise="learned")
    assert not any("become equal" in note for note in exact.notes)


def test_one_hot_columns_are_found_by_integers_too() -> None:
    pandas = requires.module("pandas")
    y = np.array([2, 0, 1, 1, 0, 2])
    x, frame = np.arange(12.0).reshape(6, 2), pandas.DataFrame(np.eye(3)[y])
    for first, second in ((frame, frame[[2, 0, 1]]), (frame[[2, 0, 1]], frame)):
        data = from_arrays((x, first), (x, second), kind="labels")
        assert data.train_labels is not None
        assert data.test_labels is not None
        np.testing.assert_array_equal(data.train_labels, data.test_labels)
        names = np.array(data.label_names or ["0", "1", "2"]).astype(int)
        np.testing.assert_array_equal(names[data.train_labels], y)


@pytest.mark.parametrize(("given", "sentence"), [
    ({"classes": 2.5}, "classes = 2.5"), ({"classes": -1}, "classes = -1"),
    ({"classes": True}, "classes = True"), ({"seed": 2**64}, "seed = 18446744073709551616"),
    ({"label_names": "ab"}, "label_names = 'ab': give a list, one name a class"),
])
def test_arguments_of_another_type_are_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        from_arrays((np.eye(4), [0, 1, 0, 1]), **given)


def test_names_of_classes_are_refused_for_values() -> None:
    for given in ({"label_names": ["a", "b"]}, {"classes": 2}):
        with pytest.raises(ConfigError, match="are of class labels, but y is values"):
            from_arrays((np.eye(4), [0.5, 1, 0, 1]), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(("words", "fix"), [
    (["1", "2.5", " 3e2"], "all of them are texts of numbers, so that .astype(float) makes num"),
    (["1", "two", "3"], "leave the column out, or make a column of 0 and 1 for each word"),
    (["1", "inf", "3"], "leave the column out")])
def test_texts_of_numbers_have_their_fix(words: list[str], fix: str) -> None:
    for given in ({"a": words * 4}, {"a": np.array(words * 4, object)}, np.array([words] * 4)):
        with pytest.raises(DataError, match=re.escape(fix)):
            from_arrays((given, np.arange(12 if isinstance(given, dict) else 4) % 2))
