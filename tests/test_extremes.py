"""Values at the edge: rows of very unequal logits, the last class that a byte holds, settings that
nobody gives."""

from __future__ import annotations

import numpy as np
import pytest

from rawnn.common.errors import ConfigError, DataError
from rawnn.data.arrays import check_finite, from_arrays
from rawnn.engine.runners.host import HostRunner
from rawnn.model.losses.cross_entropy import softmax_of
from rawnn.model.optimizers import Optimizer
from tests.engine import make_work, random_dataset


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


@pytest.mark.parametrize(("name", "key"), [("sgd", "momentum"), ("adam", "beta1"),
                                           ("adam", "beta2"), ("adamw", "beta2")])
def test_a_mean_that_forgets_nothing_is_refused(name: str, key: str) -> None:
    """Adam divides by 1 - beta^t."""
    assert dict(Optimizer(name, 0.1, {key: 0.0}).settings)[key] == 0.0
    with pytest.raises(ConfigError, match="it must be at least 0 and below 1"):
        Optimizer(name, 0.1, {key: 1.0})


def test_labels_of_a_model_of_many_classes_do_not_wrap() -> None:
    data = from_arrays((np.eye(2, 3, dtype=np.float32)[[0, 1, 0, 1]], np.array([0, 1, 0, 1])),
                       0.5)
    names = (*(f"class {n}" for n in range(299)), "0", "1")
    moved = data.relabelled(names, names)
    assert sorted({*moved.train_labels.tolist(), *moved.test_labels.tolist()}) == [299, 300]
    assert moved.classes == 301


def test_a_loaded_state_renews_the_rounded_copies_of_weights() -> None:
    """Steps in bfloat16 read the copies."""
    data = random_dataset()
    first, other = (HostRunner(make_work("bf16", (29, 18, 7), data, seed=seed)) for seed in (0, 1))
    first.epoch(True)
    other.load(first.state())
    for runner in (first, other):
        runner.epoch(True)
    for name, array in first.parameters().items():
        np.testing.assert_array_equal(other.parameters()[name], array, err_msg=name)
    first.close()
    other.close()


def test_eps_is_above_0_in_float32() -> None:
    for eps in (1e-50, 1e-39):
        with pytest.raises(ConfigError, match=r"eps = 1e-.*above 0, and at least 1.2e-38"):
            Optimizer("adam", 0.1, {"eps": eps})
    assert Optimizer("adam", 0.1, {"eps": 1e-37}).settings["eps"] == 1e-37
