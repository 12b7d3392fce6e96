"""Normalisation: how the numbers of a data set become the network's inputs.

`x = (inputs * scale - mean) / std`, feature by feature. It belongs to the data set; the gather on
the device applies it (or `apply` on the host), and checkpoints store it with the network. If
float32 cannot hold the inputs or their mean, mean and std are float64, and the host applies them
before rounding to float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rawnn.common.errors import ConfigError, nearest

PIXEL_SCALE = 1.0 / 255.0
"""uint8 pixels are scaled to [0, 1]."""

_CHUNK = 1 << 22
"""Elements per chunk of sums in float64: 32 MB, whatever the size of the set."""

_SQUARABLE = 400
"""Sums of squares of values from 2**-400 to 2**400 neither overflow in float64 nor vanish."""

SHIFT = 2.0**-10
"""Fraction of a standard deviation by which rounding the mean to float32 may shift it."""

Floats = NDArray[np.float32] | NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Normalisation:
    """`scale` is one number; `mean` and `std` are [features], either both or neither: float32, or
    float64 if the inputs are normalised in float64.

    The default leaves inputs unchanged.
    """

    scale: float = 1.0
    mean: Floats | None = None
    std: Floats | None = None
    inverse_std: Floats | None = field(init=False, default=None)  # 1 / std, in std's dtype

    def __post_init__(self) -> None:
        with np.errstate(over="ignore", under="ignore"):
            scale = float(self.scale if self.is_double else np.float32(self.scale))
        if not math.isfinite(scale) or scale == 0:
            raise ConfigError(f"normalise: scale = {self.scale} must be finite and not 0 in "
                              f"{'float64' if self.is_double else 'float32'}")
        if (self.mean is None) != (self.std is None):
            raise ConfigError("normalise: give mean and std, or neither")
        if self.mean is None or self.std is None:
            return
        if self.mean.shape != self.std.shape or self.mean.ndim != 1:
            raise ConfigError(f"normalise: mean is of shape {list(self.mean.shape)} and std of "
                              f"{list(self.std.shape)}; both must be [features]")
        for name, values in (("mean", self.mean), ("std", self.std)):
            bad = np.flatnonzero(~np.isfinite(values))
            if bad.size:
                raise ConfigError(f"normalise: {name} of feature {bad[0]} is {values[bad[0]]}")
        with np.errstate(divide="ignore", over="ignore"):
            inverse = (1.0 / self.std.astype(np.float64)).astype(self.std.dtype)
        bad = np.flatnonzero((self.std <= 0) | ~np.isfinite(inverse))
        if bad.size:
            raise ConfigError(f"normalise: std of feature {bad[0]} is {self.std[bad[0]]:g}, but "
                              f"must be a normal number above 0")
        object.__setattr__(self, "inverse_std", inverse)

    @property
    def trivial(self) -> bool:
        """Whether inputs stay unchanged."""
        return self.scale == 1.0 and self.mean is None

    @property
    def is_double(self) -> bool:
        """Whether inputs are normalised in float64, on the host, before they become float32."""
        return self.mean is not None and self.mean.dtype == np.float64

    @property
    def features(self) -> int | None:
        """Its number of features; None if it fits any number."""
        return None if self.mean is None else len(self.mean)

    @classmethod
    def of(cls, wanted: Normalise, inputs: NDArray[Any],
           scale: float | None = None) -> Normalisation:
        """The normalisation that the user asked for, for training inputs [N, F]. `scale` is that of
        inputs without an explicit one; by default it follows from their dtype.

        None            uint8 is scaled by 1/255, floats are unchanged
        "none"          no change, whatever the dtype
        "pixels"        scaled by 1/255
        "learned"       mean 0 and standard deviation 1 of every feature over the training set
        a mapping       any of `scale`, `mean`, `std`: numbers, or one number per feature
        a Normalisation unchanged

        Raises ConfigError.
        """
        features = inputs.shape[1]
        scale = default_scale(inputs.dtype) if scale is None else scale
        if isinstance(wanted, cls):
            if wanted.features not in (None, features):
                raise ConfigError(f"normalise is for {wanted.features} features, but the data have "
                                  f"{features}")
            return wanted
        if wanted is None:
            return cls(scale)
        if isinstance(wanted, str):
            check_name(wanted)
            if wanted == "learned":
                return learned(inputs, scale)
            return cls() if wanted == "none" else cls(PIXEL_SCALE)
        if not isinstance(wanted, Mapping):
            raise ConfigError(f"normalise is a {type(wanted).__name__}: use 'learned', 'pixels', "
                              f"'none' or a mapping with scale, mean, std")
        return cls._given(wanted, features, scale, inputs.dtype)

    @classmethod
    def _given(cls, values: Mapping[str, Any], features: int, scale: float,
               dtype: np.dtype[Any]) -> Normalisation:
        names = ("scale", "mean", "std")
        for name in values:
            if name not in names:
                raise ConfigError(f"normalise: unknown key '{name}'" + (
                    nearest(str(name), names) or "; use scale, mean, std"))
        try:
            scale = float(values.get("scale", scale))
        except (TypeError, ValueError):
            raise ConfigError(f"normalise: scale = {values['scale']!r} is no number") from None
        if not {"mean", "std"} & set(values):
            return cls(scale)
        mean = _per_feature("mean", values.get("mean", 0.0), features)
        std = _per_feature("std", values.get("std", 1.0), features)
        return cls(scale, *_stored(mean, std, dtype))

    def apply(self, inputs: NDArray[Any], dtype: Any = np.float32) -> NDArray[Any]:
        """The network's inputs, a new array of `dtype` [N, F]."""
        work = np.float64 if self.is_double else dtype
        x: NDArray[Any] = np.multiply(inputs, np.dtype(work).type(self.scale), dtype=work)
        if self.mean is not None and self.inverse_std is not None:
            x -= self.mean.astype(work, copy=False)
            x *= self.inverse_std.astype(work, copy=False)
        with np.errstate(over="ignore"):
            return x.astype(dtype, copy=False)

    def invert(self, x: NDArray[Any]) -> NDArray[Any]:
        """The inputs of which `x` [N, F] is the normalisation, in the data's units: float32, or
        float64 if inputs are normalised in float64."""
        found = x.astype(np.float64)
        if self.mean is not None and self.std is not None:
            found *= self.std
            found += self.mean
        found /= self.scale
        return found if self.is_double else found.astype(np.float32)

    def __str__(self) -> str:
        if self.trivial:
            return "none"
        scale = "" if self.scale == 1.0 else f"scale {self.scale:.6g}"
        both = "" if self.mean is None else "mean and std per feature"
        return ", ".join(filter(None, (scale, both)))


def check_name(wanted: Normalise) -> None:
    """Raise ConfigError for a text that names no normalisation."""
    names = ("none", "pixels", "learned")
    if isinstance(wanted, str) and wanted not in names:
        raise ConfigError(f"normalise = '{wanted}'" + (
            nearest(wanted, names) or f": use one of {', '.join(names)}"))


def default_scale(dtype: np.dtype[Any]) -> float:
    """1/255 for bytes, 1 for floats."""
    return PIXEL_SCALE if dtype == np.uint8 else 1.0


def learned(inputs: NDArray[Any], scale: float = 1.0) -> Normalisation:
    """Mean and standard deviation of every feature of `inputs * scale`, summed in float64.

    A constant feature (or one whose spread float32 cannot divide by) gets the standard deviation 1,
    so that it becomes 0.
    """
    count, features = inputs.shape
    rows = max(_CHUNK // features, 1)
    parts = [slice(i, i + rows) for i in range(0, count, rows)]
    lowest, highest = inputs.min(axis=0), inputs.max(axis=0)
    exponents = _exponents(lowest, highest)
    shift = exponents.any()

    def shifted(values: NDArray[Any]) -> NDArray[np.float64]:
        exact = values.astype(np.float64)
        return np.ldexp(exact, -exponents) if shift else exact

    total = np.zeros(features)
    for part in parts:
        total += shifted(inputs[part]).sum(axis=0) if shift else \
            inputs[part].sum(axis=0, dtype=np.float64)
    mean = total / count
    squares = np.zeros(features)
    for part in parts:  # a second pass: mean of squares - squared mean would cancel
        apart = shifted(inputs[part])
        apart -= mean
        squares += np.einsum("ij,ij->j", apart, apart)
    constant = lowest == highest
    mean = np.ldexp(mean, exponents)
    mean[constant] = inputs[0][constant]  # sums of large numbers are inexact
    std = np.ldexp(np.sqrt(squares / count), exponents) * abs(scale)
    tiny = np.finfo(np.float32 if np.can_cast(inputs.dtype, np.float32) else np.float64).tiny
    std[constant | (std < tiny)] = 1.0
    return Normalisation(scale, *_stored(mean * scale, std, inputs.dtype))


def _exponents(lowest: NDArray[Any], highest: NDArray[Any]) -> NDArray[np.int32]:
    """The power of two by which each feature is divided before it is summed: 0, unless squares of
    its values may be beyond what float64 can hold, or below. Division by it changes no digit."""
    largest = np.maximum(np.abs(lowest.astype(np.float64)), np.abs(highest.astype(np.float64)))
    found: NDArray[np.int32] = np.frexp(largest)[1].astype(np.int32)
    found[np.abs(found) < _SQUARABLE] = 0
    return found


def _stored(mean: NDArray[np.float64], std: NDArray[np.float64],
            dtype: np.dtype[Any]) -> tuple[Floats, Floats]:
    """Mean and standard deviation for inputs of `dtype`: float64 for inputs that float32 cannot
    hold, and if float32 would shift its own inputs by a fraction of their spread."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = mean.astype(np.float32)
        shifted = dtype == np.float32 and np.any(np.abs(rounded - mean) > SHIFT * std)
        if shifted or not np.can_cast(dtype, np.float32):
            return mean, std
        return rounded, std.astype(np.float32)


def _per_feature(name: str, values: ArrayLike, features: int) -> NDArray[np.float64]:
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise ConfigError(f"normalise: {name} must be a number or one number a feature") from None
    if array.shape not in ((), (1,), (features,)):
        raise ConfigError(f"normalise: {name} is of shape {list(array.shape)}, but the data have "
                          f"{features} features")
    return np.ascontiguousarray(np.broadcast_to(array, (features,)))


@dataclass(frozen=True, eq=False)
class TargetNormalisation:
    """The normalisation of target values: (value - mean) / std, column by column.

    `mean` and `std` are float64 [outputs]. Raises ConfigError for non-finite numbers, and for a std
    that is not above 0.
    """

    mean: NDArray[np.float64]
    std: NDArray[np.float64]

    def __post_init__(self) -> None:
        if self.mean.shape != self.std.shape or self.mean.ndim != 1:
            raise ConfigError(f"normalise_targets: mean is of shape {list(self.mean.shape)} and "
                              f"std of {list(self.std.shape)}; both must be [outputs]")
        if not (np.isfinite(self.mean).all() and np.isfinite(self.std).all()
                and (self.std > 0).all()):
            raise ConfigError("normalise_targets: mean and std must be finite, and std above 0")

    @classmethod
    def of(cls, wanted: NormaliseTargets, values: NDArray[Any]) -> TargetNormalisation | None:
        """The normalisation that the user asked for, for training values [N, outputs].

        None, "none"           values are unchanged
        "learned"              mean 0 and standard deviation 1 of every column
        a TargetNormalisation  unchanged

        Raises ConfigError.
        """
        if wanted is None or wanted == "none":
            return None
        if isinstance(wanted, cls):
            if len(wanted.mean) != values.shape[1]:
                raise ConfigError(f"normalise_targets is for {len(wanted.mean)} outputs, but the "
                                  f"data have {values.shape[1]}")
            return wanted
        if wanted != "learned":
            raise ConfigError(f"normalise_targets = {wanted!r}" + (
                nearest(str(wanted), ("learned", "none")) or ": use learned or none"))
        exact = values.astype(np.float64)
        lowest, highest = exact.min(axis=0), exact.max(axis=0)
        exponents = _exponents(lowest, highest)
        scaled = np.ldexp(exact, -exponents) if exponents.any() else exact
        mean, std = (np.ldexp(each, exponents) for each in (scaled.mean(axis=0),
                                                            scaled.std(axis=0)))
        tiny = np.finfo(np.float32 if np.can_cast(values.dtype, np.float32) else np.float64).tiny
        std[(lowest == highest) | (std < tiny)] = 1.0
        return cls(mean, std)

    def apply(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """The normalised values, float32 [N, outputs], for values of any dtype."""
        with np.errstate(over="ignore"):
            return ((values.astype(np.float64) - self.mean) / self.std).astype(np.float32)

    def undo(self, outputs: NDArray[Any]) -> NDArray[np.float64]:
        """The values, float64 [N, outputs], for outputs of the network."""
        found: NDArray[np.float64] = outputs.astype(np.float64) * self.std + self.mean
        return found

    def same(self, other: TargetNormalisation) -> bool:
        """Whether both are equal, bit for bit."""
        return np.array_equal(self.mean, other.mean) and np.array_equal(self.std, other.std)


NormaliseTargets: TypeAlias = TargetNormalisation | str | None
"""Types that `TargetNormalisation.of` takes."""

Normalise: TypeAlias = Normalisation | Mapping[str, Any] | str | None
"""Types that `Normalisation.of` takes."""
