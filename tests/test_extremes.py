"""Values at the edge: rows of very unequal logits, the last class that a byte holds, settings that
nobody gives."""

from __future__ import annotations

import numpy as np
import pytest

from rawnn.data.arrays import check_finite, from_arrays
from rawnn.errors import DataError
from rawnn.network.losses.cross_entropy import softmax_of
from rawnn.network.optimizers import Optimizer


def test_a_softmax_is_of_each_row_however_far_apart_rows_lie() -> None:
    z = np.array([[1000.0, 999.0, 0.0], [-1000.0, -1001.0, -2000.0]], np.float32)
    wanted = np.array([1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1)), 0.0])
    np.testing.assert_allclose(softmax_of(z), [wanted, wanted], rtol=1e-6)


@pytest.mark.parametrize(("classes", "dtype"), [(256, "uint8"), (257, "int32"), (300, "int32")])
def test_labels_keep_their_value(classes: int, dtype: str) -> None:
    x = np.zeros((classes, 2), np.float32)
    labels = np.arange(classes, dtype=np.int64)
    data = from_arrays((x, labels), validation=(x[-1:], labels[-1:]))
    assert data.train_labels is not None
    assert data.train_labels.dtype == dtype
    np.testing.assert_array_equal(data.train_labels, labels)


def test_the_row_of_a_value_is_counted_from_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever part of the rows is looked at."""
    monkeypatch.setattr("rawnn.data.precision._CHUNK", 4)
    x = np.zeros((9, 2), np.float32)
    x[7, 1] = np.inf
    with pytest.raises(DataError, match=r"x hold inf \(row 7, column 1\)"):
        check_finite(x, "x")


@pytest.mark.parametrize(("name", "wanted"), [
    ("sgd", {"momentum": 0.0, "nesterov": 0.0, "decay": 0.0}),
    ("adam", {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decay": 0.0}),
    ("adamw", {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decay": 0.01})])
def test_settings_that_are_not_given_are_those_of_torch(name: str,
                                                        wanted: dict[str, float]) -> None:
    found = dict(Optimizer(name, 0.1).settings)
    assert {key: float(value) for key, value in found.items()} == wanted
