"""Values that float32 or float64 would turn into 0 or infinity are refused with row and fix."""

from __future__ import annotations

import contextlib
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rawnn.common.csvformat import CsvFormat
from rawnn.common.errors import DataError
from rawnn.data import from_arrays
from rawnn.data.csvfile import Sheet
from rawnn.data.normalise import TargetNormalisation
from rawnn.data.tables import load_table, read_table
from rawnn.engine.training import train

TINY = "0." + "0" * 400 + "1"


@pytest.mark.parametrize("cell", ["1e-400", "-2.5E-330", TINY, "0.004e-322", " 7e-999", "1e-400 "])
@pytest.mark.parametrize("column", ["a", "y"])
def test_text_that_float64_rounds_to_zero_is_refused(cell: str, column: str,
                                                     tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    row = {"a": "1.5", "y": "0.25", column: cell}
    file.write_text(f"a,b,y\n3,4,0.5\n{row['a']},2,{row['y']}\n")
    with pytest.raises(DataError) as caught:
        read_table(file, "y")
    shown = cell.strip() if len(cell) < 40 else cell[:37] + "..."
    assert str(caught.value) == (
        f"{file}: line 3, column '{column}' holds {shown}, which float64 rounds to 0: write 0, or "
        f"multiply the column by a power of ten")


@pytest.mark.parametrize("cell", ["0e-400", "-0.0", "0." + "0" * 400, "1e-300", "5e-324"])
def test_other_small_text_is_read(cell: str, tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text(f"a,b-e,y\n3,4,0.5\n{cell},2,1.5\n")
    assert read_table(file, "y", exact=True).inputs[1, 0] == float(cell)


def test_decimal_commas_underflow_alike(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("a;b;y\n3;4;0,5\n1,5e-400;2;1\n")
    with pytest.raises(DataError, match="line 3, column 'a' holds 1,5e-400, which float64 rounds"):
        read_table(file, "y", csv_format=CsvFormat(decimal=","))


def test_a_csv_file_is_checked_for_float32_where_it_becomes_float32(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("a,y\n" + "".join(f"{n}e-50,{n % 2}\n" for n in range(1, 41)))
    for read in (lambda: load_table(file, "y"), lambda: read_table(file, "y")):
        with pytest.raises(DataError, match="column 'a' is too close to 0 for float32, which "
                                            r"rounds it to 0 \(\d+e-50\).*power of ten"):
            read()
    found = load_table(file, "y", normalise="learned")
    scaled = found.normalisation.apply(found.train_images)
    np.testing.assert_allclose(scaled.std(), 1, rtol=1e-5)


@pytest.mark.parametrize("text", ["1e39", "1e400", "-3.5e38"])
def test_large_text_names_the_fix(text: str, tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    for row, column, end in ((f"{text},0.5", "a", ", or the column out (--skip a)"),
                             (f"2.5,{text}", "y", " out")):
        file.write_text(f"a,y\n1,0.25\n{row}\n")
        with pytest.raises(DataError) as caught:
            load_table(file, "y")
        assert f"line 3, column '{column}' holds " in str(caught.value)
        assert str(caught.value).endswith(
            f": divide the column by a power of ten, or leave the row{end}")


X = np.arange(1.0, 41).reshape(20, 2)
Y = np.arange(20) % 2


def changed(array: np.ndarray, row: int, value: float) -> np.ndarray:
    found = array.astype(np.float64)
    found.reshape(len(found), -1)[row, -1] = value
    return found


@pytest.mark.parametrize(("value", "words"), [
    (1e-60, "is too close to 0 for float32, which rounds it to 0 (1e-60)"),
    (-1e-46, "is too close to 0 for float32, which rounds it to 0 (-1e-46)"),
    (1e39, "is too large for float32 (1e+39)")])
def test_arrays_of_float64(value: float, words: str) -> None:
    data = X / 7
    for given, what, column, fix in (
            ((changed(data, 3, value), Y), "the training inputs", 1,
             "normalise='learned' scales inputs in float64; or "),
            ((data, changed(Y + 0.5, 3, value)), "the training values", 0,
             "" if value > 1 else "normalise_targets='learned' scales targets in float64; or ")):
        with pytest.raises(DataError) as caught:
            from_arrays(given, (data, given[1]))
        sentence = str(caught.value)
        assert sentence.startswith(f"{what}: the value in row 3, column {column} {words}: {fix}")
        assert sentence.count("the column by a power of ten, or") == 1
    both = (changed(data, 3, value), Y)
    found = from_arrays(both, both, normalise="learned")
    assert found.train_images.dtype == np.float64


def test_targets_that_are_normalised_in_float64_may_be_small_but_not_large() -> None:
    small = (Y + 1.5) * 1e-60
    made = from_arrays((X, small), normalise_targets="learned")
    np.testing.assert_allclose(np.unique(made.train_targets),
                               np.unique((Y + 1.5 - 2) * 2), atol=0.6)
    with pytest.raises(DataError, match=r"row 4, column 0 is too large for float32 \(1e\+39\): "
                                        "divide the column by a power of ten, or leave the row"):
        from_arrays((X, changed(Y + 0.5, 4, 1e39)), normalise_targets="learned")
    narrow = TargetNormalisation(np.zeros(1), np.full(1, 1e-30))
    with pytest.raises(DataError, match=r"values once normalised: .*too large for float32"):
        from_arrays((X, changed(Y + 0.5, 4, 1e9)), normalise_targets=narrow)


def test_objects_that_float64_rounds_to_zero_are_refused() -> None:
    column = [Decimal(n) for n in range(20)]
    column[5] = Decimal("1e-400")
    with pytest.raises(DataError, match=r"X: column 'a' holds 1E-400 in row 5.*rounds"):
        from_arrays(({"a": column, "b": list(range(20))}, Y))


def test_predictions_refuse_what_training_refuses() -> None:
    model = train(data=(X / 7, (Y + 0.5)), layers=(2, 4, 1), loss="mse", epochs=1, batch=4,
                  device="host").model
    for value, words in ((1e-60, "too close to 0 for float32"), (1e39, "too large for float32")):
        with pytest.raises(DataError, match=f"the inputs: the value in row 3, column 1 .*{words}"):
            model.predict(changed(X, 3, value))
        with pytest.raises(DataError, match=f"the answers: the value in row 3, column 0 .*{words}"):
            model.score(X, changed(Y, 3, value))


def test_reading_stays_fast_for_lines_without_small_numbers(tmp_path: Path,
                                                            monkeypatch: Any) -> None:
    """The cells of such lines are not looked at one by one."""
    import rawnn.data.csvfile as module

    file = tmp_path / "t.csv"
    file.write_text("a,y\n" + "0,0\n" * 20)
    monkeypatch.setattr(module, "_underflows", lambda cell: pytest.fail("looked at"))
    with contextlib.closing(open(file, newline="")) as opened:
        Sheet(file, None).read(opened)
