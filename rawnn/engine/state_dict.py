"""State dicts: parameters under PyTorch's names, read and written without importing PyTorch.

torch.nn.Sequential(Linear, ReLU, Linear) names its parameters "0.weight", "0.bias", "2.weight",
"2.bias"; rawnn names them "fc1.weight" and so on. Weights are [outputs, inputs] in both.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common.errors import CheckpointError, DataError, check_type
from rawnn.data.dlpack import DeviceArray, read
from rawnn.model.layers import Network, Parameters

_NUMBER = re.compile(r"[0-9]{1,9}")
_KEY = re.compile(r"(?P<layer>.*?)\.?(?P<part>weight|bias)")


def to_torch(parameters: Parameters, network: Network) -> dict[str, NDArray[Any]]:
    """The network's parameters under the names of a torch.nn.Sequential of Linear layers with an
    activation between them. Converted to tensors, they fit `torch.nn.Module.load_state_dict`."""
    named = {}
    for layer in range(1, network.depth + 1):
        named[f"{2 * (layer - 1)}.weight"] = parameters[network.weight(layer).name]
        if network.bias:
            named[f"{2 * (layer - 1)}.bias"] = parameters[network.bias_of(layer).name]
    return named


def from_torch(state: Mapping[str, Any], network: Network) -> Parameters:
    """The network's parameters, float32, from a state dict of the same layers.

    Layers whose names differ by numbers alone ("0", "2", ... or "fc1", "fc2", ... or "net.0", ...)
    are ordered by these, others ("fc1", "fc2", "out") as in the dict. Values may be NumPy
    arrays or tensors of any library with `__dlpack__` or `__array__` (float64, float32, float16 or
    bfloat16). Raises CheckpointError.
    """
    layers = _layers(state)
    if len(layers) != network.depth:
        raise CheckpointError(f"the state dict has {len(layers)} linear layers "
                              f"({', '.join(layers) or 'none'}), but the network {network} has "
                              f"{network.depth}")
    found: Parameters = {}
    for place, (layer, parts) in enumerate(layers.items(), 1):
        for part, tensor in (("weight", network.weight(place)), ("bias", network.bias_of(place))):
            key = parts.pop(part, None)
            if part == "bias" and not network.bias:
                if key is not None:
                    raise CheckpointError(f"the state dict has '{key}', but the network has no "
                                          f"biases")
                continue
            if key is None:
                raise CheckpointError(f"the state dict has no {part} for its layer '{layer}'")
            found[tensor.name] = _values(state[key], key, tensor.shape)
    return found


def layers_of(state: Mapping[str, Any]) -> tuple[tuple[int, ...], bool]:
    """The layer sizes that the shapes of a state dict imply, and whether there are biases.

    Raises CheckpointError if the outputs of a layer are not the inputs of the next.
    """
    sizes: list[int] = []
    biases = set()
    for layer, parts in _layers(state).items():
        if "weight" not in parts:
            raise CheckpointError(f"the state dict has no weight for its layer '{layer}'")
        weight = state[parts["weight"]]
        if not hasattr(weight, "shape"):
            raise CheckpointError(f"'{parts['weight']}' is a {type(weight).__name__}, but must be "
                                  f"an array or a tensor")
        shape = tuple(int(n) for n in weight.shape)
        if len(shape) != 2:
            raise CheckpointError(f"'{parts['weight']}' is of shape {list(shape)}, but the weight "
                                  f"of a linear layer has two dimensions")
        if sizes and sizes[-1] != shape[1]:
            raise CheckpointError(f"'{parts['weight']}' takes {shape[1]} inputs, but the layer "
                                  f"before it gives {sizes[-1]}")
        sizes += [shape[0]] if sizes else [shape[1], shape[0]]
        biases.add("bias" in parts)
    if not sizes:
        raise CheckpointError("the state dict holds no linear layer: no name ends in 'weight'")
    if len(biases) > 1:
        raise CheckpointError("some layers of the state dict have a bias and some have none")
    return tuple(sizes), biases.pop()


def read_state_dict(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """The tensors of any safetensors file as NumPy arrays. Raises CheckpointError."""
    from rawnn.engine.checkpoint import read_content, unpack

    return unpack(read_content(path), os.fspath(path))[1]


def _layers(state: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Layer -> "weight" or "bias" -> key, the layers in order."""
    check_type("state", state, Iterable, "a state dict: a mapping of names to arrays or tensors")
    found: dict[str, dict[str, str]] = {}
    for key in state:
        match = _KEY.fullmatch(key) if isinstance(key, str) else None
        if not match:
            raise CheckpointError(f"the state dict has '{key}', which is neither the weight nor "
                                  f"the bias of a linear layer")
        found.setdefault(match["layer"], {})[match["part"]] = key
    if len({_NUMBER.sub("#", layer) for layer in found}) > 1:
        return found  # "fc1", "fc2", "out": a number does not say where the last one stands
    return dict(sorted(found.items(), key=lambda item: [int(n) for n in _NUMBER.findall(item[0])]))


def _values(value: Any, key: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    array = _host(value, key)
    if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
        raise CheckpointError(f"'{key}' is of type {array.dtype}, but parameters are floats")
    if array.shape != shape:
        transposed = "; it looks transposed: weights are [outputs, inputs]" \
            if array.shape == shape[::-1] and len(shape) > 1 else ""
        raise CheckpointError(f"'{key}' is of shape {list(array.shape)}, but the network needs "
                              f"{list(shape)}{transposed}")
    with np.errstate(over="ignore"):
        values = np.array(array, np.float32, order="C")
    bad = ~np.isfinite(values)
    if bad.any():
        place = [int(i) for i in np.argwhere(bad)[0]]
        raise CheckpointError(f"'{key}' holds {float(array[tuple(place)])} at {place}: every "
                              f"parameter must be a finite number that float32 can hold")
    return values


def _host(value: Any, key: str) -> NDArray[Any]:
    if hasattr(value, "detach"):  # a tensor with a gradient refuses to share its memory
        value = value.detach()
    try:
        found = read(value, f"'{key}'")
    except DataError as error:
        raise CheckpointError(f"the state dict cannot be read: {error}") from None
    return found.numpy() if isinstance(found, DeviceArray) else found
