"""A fully connected network: its layer sizes, its parameters and how they start."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rawnn.step.tensor import Role, Tensor

Parameters = dict[str, NDArray[np.floating]]


@dataclass(frozen=True)
class Network:
    """Layer sizes from the input features to the classes; ReLU between, softmax at the end."""

    layers: tuple[int, ...]

    @property
    def depth(self) -> int:
        """Number of weight matrices."""
        return len(self.layers) - 1

    def weight(self, layer: int) -> Tensor:
        """The weight of layer 1..depth, shaped [outputs, inputs] as in torch.nn.Linear."""
        shape = (self.layers[layer], self.layers[layer - 1])
        return Tensor(f"fc{layer}.weight", shape, "float32", Role.PARAMETER)

    def bias(self, layer: int) -> Tensor:
        return Tensor(f"fc{layer}.bias", (self.layers[layer],), "float32", Role.PARAMETER)

    def parameters(self) -> list[Tensor]:
        """All parameters, layer by layer, weight first."""
        return [t for i in range(1, self.depth + 1) for t in (self.weight(i), self.bias(i))]

    def initial(self, seed: int) -> Parameters:
        """Parameters drawn uniformly from +-1/sqrt(inputs), PyTorch's default for linear layers.

        float32 arrays keyed by parameter name; the same seed gives the same numbers everywhere
        (NumPy's PCG64).
        """
        generator = np.random.default_rng(seed)
        drawn: Parameters = {}
        for tensor in self.parameters():
            layer = int(tensor.name[2:].split(".")[0])
            bound = 1.0 / np.sqrt(self.layers[layer - 1])
            drawn[tensor.name] = generator.uniform(-bound, bound, tensor.shape).astype(np.float32)
        return drawn

    def __str__(self) -> str:
        return "-".join(map(str, self.layers))
