"""Normalisation: what is learned, what is given, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rawnn.common.errors import ConfigError
from rawnn.data.normalise import Normalisation, TargetNormalisation, learned

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("dtype", "scale"), [("uint8", 1 / 255), ("float32", 1.0),
                                              ("float16", 1.0)])
def test_the_default_depends_on_the_type(dtype: str, scale: float) -> None:
    x = np.ones((3, 4), dtype)
    made = Normalisation.of(None, x)
    assert made.scale == scale
    assert made.trivial == (scale == 1.0)
    np.testing.assert_array_equal(made.apply(x), np.full((3, 4), np.float32(scale)))
    assert Normalisation.of("none", x).trivial
    assert Normalisation.of("pixels", x).scale == 1 / 255


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float16"])
def test_learned_gives_mean_zero_and_deviation_one(dtype: str,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rawnn.data.normalise._CHUNK", 70)  # ten rows at a time
    x = (RNG.random((123, 7)) * 200 * RNG.random(7) + 20).astype(dtype)
    made = Normalisation.of("learned", x)
    out = made.apply(x)
    np.testing.assert_allclose(out.mean(axis=0, dtype=np.float64), 0, atol=1e-4)
    np.testing.assert_allclose(out.std(axis=0, dtype=np.float64), 1, atol=1e-3)
    wanted = x.astype(np.float64) * made.scale
    np.testing.assert_allclose(made.mean, wanted.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(made.std, wanted.std(axis=0), rtol=1e-5)


@pytest.mark.parametrize("scale", [-1 / 255, -2.0, 0.25])
def test_a_scale_of_either_sign_is_learned_with(scale: float) -> None:
    x = (RNG.random((60, 3)) * 100 + 20).astype(np.float32)
    made = Normalisation.of("learned", x, scale)
    wanted = x.astype(np.float64) * scale
    np.testing.assert_allclose(made.mean, wanted.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(made.std, wanted.std(axis=0), rtol=1e-6)
    np.testing.assert_allclose(made.apply(x), (wanted - wanted.mean(0)) / wanted.std(0), atol=1e-5)


def test_a_constant_feature_becomes_zero() -> None:
    x = np.column_stack([np.full(50, 0.1), np.full(50, 3e38), np.full(50, 1e-40), RNG.random(50)])
    x = x.astype(np.float32)
    made = learned(x)
    assert made.std is not None
    assert made.std[:3].tolist() == [1, 1, 1]
    out = made.apply(x)
    assert np.isfinite(out).all()
    np.testing.assert_allclose(out[:, [0, 2]], 0, atol=1e-7)


@pytest.mark.parametrize("spread", [1e-45, 1e-40, 1e-38])
def test_a_spread_that_float32_cannot_divide_by_is_left_alone(spread: float) -> None:
    x = np.column_stack([np.arange(50) % 2 * spread, RNG.random(50)]).astype(np.float32)
    made = learned(x)
    assert made.std is not None
    assert made.std[0] == 1
    assert np.isfinite(made.apply(x)).all()


@pytest.mark.parametrize(("mean", "spread"), [(1.0, 1e-6), (-100.0, 1e-4), (1e4, 0.01),
                                              (1e6, 1e3), (0.1, 0.3), (-3e-5, 1e-9)])
def test_a_mean_is_stored_as_exactly_as_the_spread_needs(mean: float, spread: float) -> None:
    x = (mean + spread * RNG.normal(size=(3000, 2))).astype(np.float32)
    made = learned(x)
    found = made.apply(x).astype(np.float64)
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=1.5e-3)
    np.testing.assert_allclose(found.std(axis=0), 1, atol=1e-3)


def test_large_means_do_not_cancel() -> None:
    """The mean of squares less the squared mean would lose every digit here."""
    x = (1e4 + RNG.normal(size=(4000, 3)) * 0.01).astype(np.float32)
    made = learned(x)
    np.testing.assert_allclose(made.std, x.astype(np.float64).std(axis=0), rtol=1e-6)


@pytest.mark.parametrize("power", [-1000, -600, 0, 600, 1000])
def test_values_whose_squares_float64_cannot_hold_are_learned_from(power: int) -> None:
    """Powers of two change no digit: everything is that of the same values near 1."""
    x = np.random.default_rng(4).normal(size=(50, 3))
    x[:, 1] *= 2.0**20
    small, made = learned(x), learned(np.ldexp(x, power))
    assert small.mean is not None
    assert small.std is not None
    assert np.array_equal(made.mean, np.ldexp(small.mean, power))  # type: ignore[arg-type]
    assert np.array_equal(made.std, np.ldexp(small.std, power))  # type: ignore[arg-type]
    assert np.allclose(made.apply(np.ldexp(x, power)), (x - x.mean(0)) / x.std(0), atol=1e-6)
    target = TargetNormalisation.of("learned", np.ldexp(x, power))
    assert target is not None
    assert np.allclose(np.ldexp(target.std, -power), x.std(0), rtol=1e-14)
    assert np.allclose(target.apply(np.ldexp(x, power)), (x - x.mean(0)) / x.std(0), atol=1e-6)


def test_given_numbers() -> None:
    x = np.array([[0, 255], [255, 0]], np.uint8)
    made = Normalisation.of({"mean": 0.1307, "std": [0.3, 0.4]}, x)
    np.testing.assert_allclose(made.apply(x), (x / 255 - 0.1307) / [0.3, 0.4], rtol=1e-6)
    only = Normalisation.of({"mean": 5, "scale": 2}, x)
    np.testing.assert_array_equal(only.apply(x), x * 2.0 - 5)
    assert Normalisation.of({"scale": 0.5}, x).mean is None
    again = Normalisation.of(made, x)
    assert again is made
    double = made.apply(x, np.float64)
    assert double.dtype == np.float64


@pytest.mark.parametrize(("wanted", "sentence"), [
    ("learnt", "did you mean 'learned'"),
    ("q", "use one of none, pixels, learned"),
    (3, "normalise is a int"),
    ({"meen": 1}, "unknown key 'meen'; did you mean 'mean'"),
    ({"scale": "x"}, "is no number"),
    ({"scale": 0}, "must be finite and not 0"),
    ({"scale": np.inf}, "must be finite and not 0"),
    ({"scale": 1e-50}, "must be finite and not 0 in float32"),
    ({"scale": 1e300}, "must be finite and not 0 in float32"),
    ({"mean": [1, 2, 3]}, r"mean is of shape \[3\], but the data have 2 features"),
    ({"mean": "x"}, "must be a number or one number a feature"),
    ({"std": [1, 0]}, "std of feature 1 is 0"),
    ({"std": [1, -1]}, "std of feature 1 is -1"),
    ({"std": 1e-45}, "std of feature 0"),
    ({"mean": [np.nan, 0]}, "mean of feature 0 is nan"),
    (Normalisation(1.0, np.zeros(3, np.float32), np.ones(3, np.float32)), "is for 3 features"),
])
def test_refusals(wanted: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Normalisation.of(wanted, np.zeros((4, 2), np.uint8))
    if not isinstance(wanted, Normalisation):
        with pytest.raises(ConfigError, match=r"both must be|or neither"):
            Normalisation(1.0, np.zeros(2, np.float32), None)


def test_it_says_what_it_does() -> None:
    assert str(Normalisation()) == "none"
    assert str(Normalisation(0.5)) == "scale 0.5"
    assert "mean and std" in str(learned(RNG.random((5, 2)).astype(np.float32)))


@pytest.mark.parametrize("name", ["mean", "std"])
@pytest.mark.parametrize(("value", "said"), [
    ([1, 2, 3], "{} is of shape [3], but the data have 2 features"),
    ([[1, 2]], "{} is of shape [1, 2], but the data have 2 features"),
    ("x", "{} must be a number or one number a feature")])
def test_the_number_that_does_not_fit_is_named(name: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Normalisation.of({"mean": 1.0, "std": 2.0, name: value}, np.ones((3, 2), np.float32))
    assert str(caught.value) == f"normalise: {said.format(name)}"


@pytest.mark.parametrize("mean", [{}, {"mean": 3.0}, {"mean": [3.0]}, {"mean": [3.0, -1.0]}])
@pytest.mark.parametrize("std", [{}, {"std": 4.0}, {"std": [4.0]}, {"std": [4.0, 0.5]}])
@pytest.mark.parametrize("scale", [{}, {"scale": 0.5}])
def test_one_number_is_for_every_feature(mean: dict[str, Any], std: dict[str, Any],
                                         scale: dict[str, Any]) -> None:
    """(scale * x - mean) / std and back, with what is not given as it is: 1, 0 and 1."""
    x = np.array([[1.0, 2.0], [-3.0, 0.25]], np.float32)
    made = Normalisation.of({**mean, **std, **scale}, x)
    wanted = (x * scale.get("scale", 1.0) - np.array(mean.get("mean", 0.0))) \
        / np.array(std.get("std", 1.0))
    np.testing.assert_allclose(made.apply(x), wanted, rtol=1e-6)
    np.testing.assert_allclose(made.invert(made.apply(x)), x, rtol=1e-6)


@pytest.mark.parametrize("chunk", [1, 2, 7, 8, 1000])
def test_rows_that_are_wider_than_a_chunk_are_learned_from_one_by_one(
        monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr("rawnn.data.normalise._CHUNK", chunk)
    x = (RNG.random((9, 7)) * 200 + 20).astype(np.float32)
    made = learned(x, 0.5)
    np.testing.assert_allclose(made.mean, x.astype(np.float64).mean(0) * 0.5, rtol=1e-6)
    np.testing.assert_allclose(made.std, x.astype(np.float64).std(0) * 0.5, rtol=1e-5)
