"""Data sets as tensors of a plan: their spec, their contents, and their order if batches come from
the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common import random
from rawnn.common.dtypes import LARGEST, numpy_dtype, rounded
from rawnn.common.errors import ConfigError
from rawnn.data import Dataset, Normalisation
from rawnn.plan.recipe import DataSpec
from rawnn.plan.tensor import ROW_ALIGNMENT, Role, Tensor

Array = NDArray[Any]


def data_spec_of(data: Dataset, part: str, first: int = 0) -> DataSpec:
    """The spec of the examples of `part` ("train" or "test") from `first` on."""
    images = getattr(data, f"{part}_images")
    labels, targets = getattr(data, f"{part}_labels"), getattr(data, f"{part}_targets")
    normalisation = Normalisation() if data.normalisation.is_double else data.normalisation
    return DataSpec(
        len(images) - first,
        inputs="float32" if data.normalisation.is_double else images.dtype.name,
        labels="" if labels is None else labels.dtype.name,
        targets=0 if targets is None else targets.shape[1], scale=normalisation.scale,
        normalised=normalisation.mean is not None, reconstruct=data.autoencoder,
    )


def contents(data: Dataset, tensor: Tensor, part: str, first: int = 0,
             writable: bool = False) -> Array:
    """The content of a tensor of the data set. HOST tensors are ready to be copied: normalised, in
    their own dtype. With `writable` they share no memory with the data set. Inputs that are
    normalised in float64 are normalised here, before they become float32."""
    kind = tensor.symbol or tensor.name
    if kind == "mean" and data.normalisation.mean is not None:
        return data.normalisation.mean
    if kind == "inverse_std" and data.normalisation.inverse_std is not None:
        return data.normalisation.inverse_std
    array = getattr(data, f"{part}_{kind}", None)
    if array is None:
        raise ConfigError(f"the data set {data.name} has no {kind}")
    array = array[first:]
    if kind == "images" and (tensor.role is Role.HOST or data.normalisation.is_double):
        array = data.normalisation.apply(array)
        # NumPy converts what exceeds the largest value to NaN.
        if tensor.role is Role.HOST and tensor.dtype in LARGEST:
            array = rounded(array, tensor.dtype)
    if tensor.role is not Role.HOST:
        return array
    dtype = numpy_dtype(tensor.dtype)
    return np.array(array, dtype) if writable else np.asarray(array, dtype)


def resident(data: Dataset, tensors: Mapping[str, Tensor], part: str, first: int,
             ordinal: int) -> dict[str, int]:
    """Addresses of the tensors that are already on GPU `ordinal`, in the caller's memory and in the
    layout that kernels read. They are used in place."""
    found: dict[str, int] = {}
    for name, tensor in tensors.items():
        array = data.resident.get(f"{part}_{name}")
        if tensor.role is Role.DATA and array is not None \
                and array.fits(tensor.dtype, tensor.ld, ordinal):
            address = array.address + first * array.pitch * tensor.itemsize
            if address % ROW_ALIGNMENT == 0:
                found[name] = address
    return found


class HostBatches:
    """Host copies of a data set in the order of the current epoch, for plans that upload shuffled
    batches from the host. The plan's HOST tensors point at `arrays`."""

    def __init__(self, arrays: dict[str, Array], seed: int) -> None:
        self._arrays, self._seed = arrays, seed
        self._unshuffled = {name: array.copy() for name, array in arrays.items()}

    def shuffle(self, epoch: int) -> None:
        """Put the examples into the order of `epoch`. No copy may be reading the arrays."""
        examples = len(next(iter(self._arrays.values())))
        order = random.permutation(self._seed, epoch, examples)
        for name, array in self._arrays.items():
            np.take(self._unshuffled[name], order, axis=0, out=array)
