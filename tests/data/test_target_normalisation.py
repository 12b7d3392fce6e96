"""Target values with mean 0 and standard deviation 1, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rawnn.common.errors import ConfigError, DataError
from rawnn.data import from_arrays
from rawnn.data.normalise import TargetNormalisation
from rawnn.data.tables import load_table

RNG = np.random.default_rng(5)
X = RNG.normal(size=(50, 3)).astype(np.float32)
Y = np.stack([RNG.uniform(1e5, 9e5, 50), RNG.normal(3, 0.5, 50)], axis=1)


def test_statistics_are_those_of_the_training_rows() -> None:
    data = from_arrays((X[:40], Y[:40]), (X[40:], Y[40:]), normalise_targets="learned")
    found = data.target_normalisation
    assert found is not None
    np.testing.assert_allclose(found.mean, Y[:40].mean(axis=0), rtol=1e-15)
    np.testing.assert_allclose(found.std, Y[:40].std(axis=0), rtol=1e-15)
    assert (found.mean.dtype, found.std.dtype) == (np.float64, np.float64)
    assert data.train_targets is not None
    assert data.test_targets is not None
    assert data.train_targets.dtype == data.test_targets.dtype == np.float32
    np.testing.assert_array_equal(
        data.test_targets, ((Y[40:] - Y[:40].mean(axis=0)) / Y[:40].std(axis=0)).astype(np.float32))
    np.testing.assert_allclose(found.undo(data.train_targets), Y[:40], rtol=1e-7)


@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_values_are_normalised_before_they_are_rounded(dtype: Any) -> None:
    """float32 has no number between 1e9 and 1e9 + 64."""
    y = (1_000_000_000 + np.arange(50) % 4).astype(dtype)
    data = from_arrays((X, y), 0.2, normalise_targets="learned", kind="values")
    assert data.train_targets is not None
    assert len(np.unique(data.train_targets)) == 4
    found = data.target_normalisation
    assert found is not None
    assert set(found.undo(data.train_targets).round(3).ravel().tolist()) == \
        {1e9, 1e9 + 1, 1e9 + 2, 1e9 + 3}
    assert data.notes == ()


def test_what_float32_merges_names_the_fix() -> None:
    y = 1_000_000_000 + np.arange(50) % 4
    with pytest.raises(DataError, match=r"training values hold integers beyond 16,777,216, which "
                                        r"float32 cannot tell apart: normalise_targets='learned' "
                                        r"scales targets in float64; or scale them first"):
        from_arrays((X, y), 0.2, kind="values")
    data = from_arrays((X, y.astype(np.float64)), 0.2, kind="values")
    assert data.notes[-1] == (
        "the training values: distinct values become equal in float32, in column 0 4 become 1: "
        "normalise_targets='learned' computes in float64, which keeps them apart")
    extreme = np.where(np.arange(50) == 7, 1e30, y)
    data = from_arrays((X, extreme), (X, extreme), kind="values", normalise_targets="learned")
    assert data.notes[-1].startswith(
        "the training values: distinct values become equal in float32, in column 0 5 become 2: "
        "subtract the lowest value first")


def test_targets_of_a_table_that_merge_are_named(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("a,price\n" + "".join(f"{i % 7},{10**9 + i % 4}\n" for i in range(40)))
    data = load_table(file, "price", kind="values")
    assert data.notes == (
        "the training values: distinct values become equal in float32, in column 'price' 4 become "
        "1: normalise_targets='learned' computes in float64, which keeps them apart",)
    assert load_table(file, "price", kind="values", normalise_targets="learned").notes == ()


def test_columns_of_a_frame_name_the_targets() -> None:
    y = {"price": Y[:, 0], "rooms": Y[:, 1]}
    data = from_arrays((X, y), 0.2, normalise_targets="learned")
    assert data.target_names == ("price", "rooms")
    assert data.train_targets is not None
    np.testing.assert_allclose(data.train_targets.mean(axis=0), 0, atol=1e-6)
    assert from_arrays((X, Y), 0.2).target_names == ()


def test_so_are_those_of_a_table(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("a,y,z\n" + "".join(f"{i},{10**9 + i % 4}.5,{i}\n" for i in range(40)))
    for target in ("y", "z", "y,z"):
        data = load_table(file, target, normalise_targets="learned")
        assert data.train_targets is not None
        assert len(np.unique(data.train_targets[:, 0])) == (32 if target == "z" else 4)
        # An input is as large as the target was; no note is of the target itself.
        assert all(note.startswith("the training inputs") for note in data.notes)
        assert len(data.notes) == (target == "z")


def test_a_column_that_never_changes_becomes_0() -> None:
    y = np.stack([np.full(50, 7.1), Y[:, 0]], axis=1)
    data = from_arrays((X, y), 0.2, normalise_targets="learned")
    assert data.train_targets is not None
    assert data.target_normalisation is not None
    assert data.target_normalisation.std[0] == 1
    assert np.abs(data.train_targets[:, 0]).max() < 1e-12
    assert data.target_normalisation.undo(data.train_targets)[:, 0] == pytest.approx(7.1)


def test_a_data_set_is_normalised_later_as_well() -> None:
    plain = from_arrays((X, Y.astype(np.float32)), 0.2)
    later = plain.with_targets("learned")
    at_once = from_arrays((X, Y.astype(np.float32)), 0.2, normalise_targets="learned")
    assert later.target_normalisation is not None
    assert at_once.target_normalisation is not None
    assert later.target_normalisation.same(at_once.target_normalisation)
    assert later.train_targets is not None
    assert at_once.train_targets is not None
    np.testing.assert_array_equal(later.train_targets, at_once.train_targets)
    assert later.with_targets(later.target_normalisation) is later
    other = TargetNormalisation(np.array([1e5, 1.0]), np.array([1e4, 2.0]))
    changed = later.with_targets(other)
    assert plain.train_targets is not None
    assert changed.train_targets is not None
    np.testing.assert_allclose(changed.train_targets, other.apply(plain.train_targets), rtol=2e-6,
                               atol=2e-6)
    assert later.reconstructing().target_normalisation is None


@pytest.mark.parametrize(("data", "wanted", "sentence"), [
    ((X, np.arange(50) % 3), "learned", "class labels have no mean and deviation"),
    (X, "learned", "targets are the normalised inputs"),
    ((X, Y), "lerned", "normalise_targets = 'lerned'; did you mean 'learned'"),
    ((X, Y[:, 0]), TargetNormalisation(np.zeros(2), np.ones(2)), "for 2 outputs, but .* have 1"),
])
def test_what_cannot_be_normalised(data: Any, wanted: Any, sentence: str) -> None:
    kind = "labels" if isinstance(data, tuple) and data[1].dtype.kind == "i" else None
    with pytest.raises(ConfigError, match=sentence):
        from_arrays(data, 0.2, normalise_targets=wanted, kind=kind)  # type: ignore[arg-type]


def test_values_that_are_none_are_still_refused() -> None:
    for bad, sentence in ((np.nan, "hold nan"), (np.inf, "hold inf"), (1e40, "too large")):
        y = Y.copy()
        y[3, 1] = bad
        with pytest.raises(DataError, match=sentence):
            from_arrays((X, y), 0.2, normalise_targets="learned")
    with pytest.raises(DataError, match="only numbers"):
        from_arrays((X, np.array(["a"] * 50)), 0.2, normalise_targets="learned", kind="values")
    for mean, std in (([np.nan], [1.0]), ([0.0], [0.0]), ([0.0], [1.0, 2.0])):
        with pytest.raises(ConfigError, match="normalise_targets: mean"):
            TargetNormalisation(np.array(mean), np.array(std))
