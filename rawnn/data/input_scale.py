"""The scale on which a network's inputs were given for training: whether later inputs are plainly
on another one, as bytes (0 to 255) are beside the same pixels from 0 to 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common.errors import DataError

if TYPE_CHECKING:
    from rawnn.data.dataset_types import Dataset


_KEY = "inputs"


@dataclass(frozen=True)
class InputScale:
    """The dtype of training inputs as they were given, and the least and the largest of them."""

    dtype: str
    low: float
    high: float

    @classmethod
    def of(cls, data: Dataset) -> InputScale | None:
        """That of a data set; None where nothing can be said of other inputs: of numbers that are
        neither bytes nor floats, and of floats that are normalised by their own mean."""
        inputs = data.train_images
        dtype = data.given_types.get("train_images", inputs.dtype.name)
        if dtype != "uint8" and (inputs.dtype.kind != "f" or data.normalisation.mean is not None):
            return None
        return cls(dtype, float(inputs.min()), float(inputs.max()))

    @classmethod
    def stored_in(cls, *records: Mapping[str, Any]) -> InputScale | None:
        """That of the first record of a checkpoint that has one; None without any."""
        for record in records:
            if found := record.get(_KEY):
                return cls(str(found["dtype"]), float(found["low"]), float(found["high"]))
        return None

    def record(self) -> dict[str, Any]:
        """An entry of a checkpoint's record of its data, or of a model's facts."""
        return {_KEY: asdict(self)}

    def check(self, inputs: NDArray[Any], name: str) -> None:
        """Raise DataError if `inputs` are plainly on another scale."""
        if not inputs.size or inputs.dtype.kind not in "biuf":
            return
        low, high = float(inputs.min()), float(inputs.max())
        given = f"{name} are {inputs.dtype} from {low:g} to {high:g}, but the network was " \
                f"trained on {self.dtype} from {self.low:g} to {self.high:g}"
        if self.dtype == "uint8":
            is_float = inputs.dtype.kind == "f"
            is_fraction = is_float and 0 < high <= 1 < self.high
            if low < 0 or is_fraction or (high > 255 and not is_float):
                raise DataError(f"{given}: give them on that scale; a model normalises its inputs "
                                f"itself")
        elif inputs.dtype == np.uint8 and self.high <= 1 < high:
            raise DataError(f"{given}: scale bytes as those were, for example by 1/255")


def check_scales(x: NDArray[Any], xt: NDArray[Any]) -> None:
    """Raises DataError where one part has bytes, which are scaled by 1/255 by default, and the
    other has numbers whose scale nobody knows."""
    for inputs, other, word, rest in ((x, xt, "training", "validation"),
                                      (xt, x, "validation", "training")):
        if inputs.dtype == np.uint8 and int(inputs.max()) > 1:
            raise DataError(
                f"the {word} inputs are bytes, which are scaled by 1/255, but the {rest} inputs "
                f"are {other.dtype}, of unknown scale: give both with one type, or say with "
                f"normalise how both are scaled ('none' leaves them as they are)")
