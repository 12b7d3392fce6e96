"""Large offsets: normalized in float64 before anything becomes float32; and the message if distinct
values become equal in float32."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rawnn.common.errors import DataError
from rawnn.data import Normalisation, from_arrays, load_dataset
from rawnn.data.precision import check_finite, merged_columns
from rawnn.data.tables import read_table
from rawnn.engine.model import Model
from rawnn.engine.result import Result
from rawnn.engine.training import train

PLACES = np.random.default_rng(0).integers(0, 4, 400)
LOSSY = "distinct values become equal in float32"


def trained(x: Any, y: Any = PLACES, **options: Any) -> Result:
    return train(**{"data": (x, y), "layers": (np.shape(x)[1], 16, 4), "normalise": "learned",
                    "epochs": 30, "batch": 16, "lr": 0.5, "seed": 1, "device": "host", **options})


@pytest.mark.parametrize(("offset", "dtype"), [
    (1e8, "float64"), (10**8, "int64"), (10**8, "int32"), (1.7e9, "float64"), (2**52, "int64"),
])
@pytest.mark.parametrize("opt", ["none", "preload"])
def test_ids_are_told_apart(offset: float, dtype: str, opt: str, tmp_path: Path) -> None:
    x = (np.array(offset, dtype) + PLACES.astype(dtype)).reshape(-1, 1)
    result = trained(x, opt=opt, save=str(tmp_path))
    assert result.test_accuracy == 1.0
    assert not [note for note in result.notes if LOSSY in note]
    for model in (result.model, Model.load(tmp_path)):
        assert model.normalisation.mean is not None
        assert model.normalisation.mean.dtype == np.float64
        for inputs in (x, x.astype(float), x.astype(np.int64), {"id": x[:, 0]}):
            np.testing.assert_array_equal(model.predict(inputs), PLACES)
        np.testing.assert_array_equal(model.predict(x, device="sim"), PLACES)
        assert model.score(x, PLACES).accuracy == 1.0


def test_statistics_and_inputs_are_those_of_float64() -> None:
    x = 1e9 + np.random.default_rng(1).normal(size=(200, 3)) * [1, 10, 100]
    data = from_arrays((x, np.arange(200) % 2), (x, np.arange(200) % 2), normalise="learned")
    normalisation = data.normalisation
    assert normalisation.is_double
    np.testing.assert_array_equal(data.train_images, x)
    np.testing.assert_allclose(normalisation.mean, x.mean(axis=0), rtol=1e-15)
    wanted = (x - x.mean(axis=0)) / x.std(axis=0)
    found = normalisation.apply(data.train_images)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, atol=1e-5)  # float32 alone is 60 off
    np.testing.assert_allclose(normalisation.invert(found), x, atol=1e-4)


def test_a_given_mean_is_subtracted_in_float64() -> None:
    x = (1e8 + PLACES).reshape(-1, 1)
    result = trained(x, normalise={"mean": 1e8 + 1.5, "std": 1.0})
    assert result.test_accuracy == 1.0


def test_float32_inputs_keep_what_they_have() -> None:
    """Neighbours of a large number: the mean between them is none that float32 can hold."""
    x = np.float32(1e8) + 8 * PLACES.astype(np.float32).reshape(-1, 1)
    made = Normalisation.of("learned", x)
    assert made.is_double
    np.testing.assert_allclose(made.apply(x).mean(), 0, atol=1e-6)
    plain = Normalisation.of("learned", PLACES.astype(np.float32).reshape(-1, 1))
    assert not plain.is_double


def test_a_feature_that_never_changes_becomes_zero_in_float64() -> None:
    x = np.column_stack([np.full(50, 0.1), np.full(50, 1e300), np.arange(50.0)])
    out = Normalisation.of("learned", x).apply(x)
    np.testing.assert_array_equal(out[:, :2], 0)
    large = np.full((50, 1), 3e38, np.float32)
    np.testing.assert_array_equal(Normalisation.of("learned", large).apply(large), 0)


def test_without_a_normalisation_it_is_said() -> None:
    x = (1e8 + PLACES).reshape(-1, 1)
    result = trained(x, normalise=None, epochs=1)
    messages = [note for note in result.notes if LOSSY in note]
    assert messages == ["the training inputs: distinct values become equal in float32, in column 0 "
                    "4 become 1: normalise='learned' computes in float64, which keeps them apart"]
    with pytest.raises(DataError, match=r"16,777,216.*normalise='learned' scales inputs in"):
        trained(x.astype(np.int64), normalise=None)


@pytest.mark.parametrize(("value", "dtype"), [
    (2**24, "int32"), (-(2**24), "int32"), (2**24 + 1, "int32"), (-(2**24) - 1, "int32"),
    (-(2**24), "int64"), (2**40, "int64"), (-(2**40), "int64"), (2**24 + 1, "uint32")])
def test_integers_that_float32_skips_are_refused_on_either_side_of_zero(value: int,
                                                                        dtype: str) -> None:
    x = np.where(PLACES == 3, value, PLACES).astype(dtype).reshape(-1, 1)
    if abs(value) <= 2**24:
        assert from_arrays((x, PLACES)).train_images.min() == min(value, 0)
        return
    with pytest.raises(DataError, match="hold integers beyond 16,777,216"):
        from_arrays((x, PLACES))


@pytest.mark.parametrize("x", [
    np.where(PLACES == 3, 1e30, PLACES).reshape(-1, 1), 10**18 + PLACES.reshape(-1, 1),
    np.where(PLACES == 3, 1e30, PLACES).reshape(-1, 1).astype(np.float32),
])
def test_of_extreme_values_it_is_said_too(x: Any) -> None:
    result = trained(x, epochs=1)
    assert [note for note in result.notes if LOSSY in note and "column 0 4 become " in note]


def test_of_values_to_be_reached_it_is_said_too() -> None:
    y = 1e9 + PLACES
    data = from_arrays((np.zeros((400, 1)), y), (np.zeros((400, 1)), y))
    assert [note for note in data.notes if note.startswith(f"the training values: {LOSSY}")]


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e6])
def test_of_ordinary_numbers_nothing_is_said(scale: float) -> None:
    x = np.random.default_rng(2).normal(size=(60_000, 2)) * scale
    assert merged_columns(x, lambda values: values.astype(np.float32)) == []
    assert merged_columns(x, Normalisation.of("learned", x).apply) == []


def test_validation_inputs_beyond_float32_are_named() -> None:
    x = np.arange(8.0).reshape(-1, 1)
    far = np.where(x == 5, 1e300, x)
    with pytest.raises(DataError, match="validation inputs: the value in row 5, column 0 is too"):
        from_arrays((x, x[:, 0] > 3), (far, x[:, 0] > 3), normalise="learned")


# -- tables --------------------------------------------------------------------------------------


def table(path: Path) -> Path:
    file = path / "ids.csv"
    file.write_text("id,time,kind\n" + "".join(
        f"{10**8 + i},{1.7e9 + i / 4:.2f},{i + 1}\n" for i in PLACES.tolist()))
    return file


def test_numbers_of_a_table_are_read_in_float64(tmp_path: Path) -> None:
    file = table(tmp_path)
    exact = read_table(file, "kind", exact=True).inputs
    np.testing.assert_array_equal(exact[:, 0], 10**8 + PLACES)
    np.testing.assert_array_equal(exact[:, 1], 1.7e9 + PLACES / 4)
    assert read_table(file, "kind").inputs.dtype == np.float32
    messages: list[str] = []
    load_dataset(path=file, target="kind", normalise="learned", notify=messages.append)
    assert messages == []
    load_dataset(path=file, target="kind", notify=messages.append)
    assert len(messages) == 1
    assert f"the training inputs: {LOSSY}, in column 'id' 4 become 1" in messages[0]
    result = trained(np.zeros((1, 2)), data=str(file), target="kind")
    assert (result.test_accuracy, result.label_names) == (1.0, ("1", "2", "3", "4"))


# -- bytes ---------------------------------------------------------------------------------------

BITS = np.array([[0, 0], [0, 1], [1, 0], [1, 1]] * 50)


@pytest.mark.parametrize("dtype", ["uint8", "bool", "float64", "float32"])
def test_bytes_of_0_and_1_stay_as_they_are(dtype: str) -> None:
    x, y = BITS.astype(dtype), BITS[:, 0] ^ BITS[:, 1]
    result = trained(x, y, layers=(2, 16, 2), normalise=None)
    assert result.test_accuracy == 1.0
    assert result.model.normalisation.trivial
    assert result.facts["normalisation"] == "none"
    assert (sum("bytes of 0 and 1, and stay" in note for note in result.notes)
            == (dtype == "uint8"))
    assert result.model.score(x, y).accuracy == 1.0


def test_other_bytes_are_scaled_and_that_is_said(tmp_path: Path) -> None:
    x, y = (BITS * 2).astype(np.uint8), BITS[:, 0]
    data = from_arrays((x, y), (x, y))
    assert data.normalisation.scale == 1 / 255
    assert data.notes == ("the training inputs are bytes, scaled by 1/255; normalise='none' leaves "
                          "them as they are",)
    # It is the training part that decides.
    bits = BITS.astype(np.uint8)
    assert from_arrays((bits, y), (x, y)).normalisation.scale == 1.0
    assert from_arrays((bits, y), normalise="pixels").normalisation.scale == 1 / 255
    file = tmp_path / "bits.npz"
    np.savez(file, X=bits, y=y)
    assert load_dataset(path=file, notify=lambda message: None).normalisation.trivial


def test_a_program_is_warned_of_values_that_become_equal(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("id,y\n" + "".join(f"{2**60 + i},{i % 2}\n" for i in range(40)))
    run: dict[str, Any] = {"layers": (1, 2), "epochs": 1, "batch": 8, "device": "host"}
    cases: list[dict[str, Any]] = [
        {"data": (1e9 + np.arange(40.0)[:, None], np.arange(40) % 2), "lr": 0.0},
        {"data": ({"id": 2**60 + np.arange(40)}, np.arange(40) % 2), "normalise": "learned"},
        {"data": str(file), "target": "y", "normalise": "learned"}]
    for case in cases:
        with pytest.warns(RuntimeWarning, match="become equal in float"):
            train(**run, **case)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(**run, data=(np.arange(40.0)[:, None], np.arange(40) % 2), lr=0.0)


@pytest.mark.parametrize("chunk", [1, 4, 6, 1000])
@pytest.mark.parametrize(("row", "value"), [(0, np.nan), (3, -np.inf), (8, np.inf)])
def test_the_first_value_that_is_no_number_is_named_in_any_chunk(
        monkeypatch: pytest.MonkeyPatch, chunk: int, row: int, value: float) -> None:
    monkeypatch.setattr("rawnn.data.precision._CHUNK", chunk)
    array = np.arange(18.0).reshape(9, 2)
    check_finite(array, "the inputs")
    array[row, 1] = value
    with pytest.raises(DataError, match=rf"the inputs hold {value} \(row {row}, .*1"):
        check_finite(array, "the inputs")
