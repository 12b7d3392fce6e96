"""A fully connected network: its layer sizes, activation and loss, and how its parameters start."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rawnn.common import random
from rawnn.common.errors import ConfigError, unknown
from rawnn.model.activations import Activation, activation
from rawnn.model.losses import Loss, loss

Parameters = dict[str, NDArray[np.floating]]

Bound = Callable[[int, int], float]

INITIALISERS: dict[str, tuple[Bound, Bound]] = {
    "uniform": (lambda i, o: 1 / math.sqrt(i), lambda i, o: 1 / math.sqrt(i)),
    "he": (lambda i, o: math.sqrt(6 / i), lambda i, o: 0.0),
    "glorot": (lambda i, o: math.sqrt(6 / (i + o)), lambda i, o: 0.0),
    "zeros": (lambda i, o: 0.0, lambda i, o: 0.0),
}
"""Name -> bounds of the uniform distribution that weights and biases are drawn from, by the layer's
inputs and outputs: PyTorch's default for linear layers, He et al. 2015, Glorot and Bengio 2010."""


@dataclass(frozen=True)
class Parameter:
    """A weight, shaped [outputs, inputs] as in torch.nn.Linear, or a bias [outputs] of layer 1 ..
    depth. It starts from the uniform distribution between -bound and bound. `symbol` is what
    formulas call it: w1, b1."""

    name: str
    shape: tuple[int, ...]
    bound: float
    layer: int
    symbol: str


@dataclass(frozen=True)
class Network:
    """Layer sizes from the input features to the outputs, an activation between layers, and a loss
    on the last outputs. Raises ConfigError for an unknown name.

    Parameters
    ----------
    layers
        sizes from the input features to the outputs, at least two
    bias
        whether layers have biases
    activation
        between layers, by name
    loss
        on the last outputs, by name
    init
        how parameters start: "uniform", "he", "glorot" or "zeros"
    """

    layers: tuple[int, ...]
    bias: bool = True
    activation: str = "relu"
    loss: str = "cross_entropy"
    init: str = "uniform"

    def __post_init__(self) -> None:
        sizes = self.layers
        if not isinstance(sizes, tuple | list) or len(sizes) < 2 or not all(
                isinstance(n, int | np.integer) and n >= 1 for n in sizes):
            raise ConfigError(f"layers = {sizes!r}: give two sizes or more, from inputs to outputs,"
                              f" each a whole number of at least 1, such as (784, 128, 10)")
        activation(self.activation)
        loss(self.loss)
        if self.init not in INITIALISERS:
            raise unknown("initialisation", self.init, INITIALISERS)

    @property
    def depth(self) -> int:
        """Number of weight matrices."""
        return len(self.layers) - 1

    @property
    def outputs(self) -> int:
        return self.layers[-1]

    @property
    def loss_spec(self) -> Loss:
        """The loss, as its registration."""
        return loss(self.loss)

    @property
    def activation_spec(self) -> Activation:
        """The activation, as its registration."""
        return activation(self.activation)

    def weight(self, layer: int) -> Parameter:
        """The weight of layer 1..depth."""
        return Parameter(f"fc{layer}.weight", (self.layers[layer], self.layers[layer - 1]),
                         self._bound(layer, bias=False), layer, f"w{layer}")

    def bias_of(self, layer: int) -> Parameter:
        """The bias of layer 1..depth."""
        return Parameter(f"fc{layer}.bias", (self.layers[layer],), self._bound(layer, bias=True),
                         layer, f"b{layer}")

    def parameters(self) -> list[Parameter]:
        """All parameters, layer by layer, weight first."""
        return [t for i in range(1, self.depth + 1)
                for t in ((self.weight(i), self.bias_of(i)) if self.bias else (self.weight(i),))]

    def _bound(self, layer: int, *, bias: bool) -> float:
        """Half the width of the distribution that a parameter is drawn from."""
        return INITIALISERS[self.init][bias](self.layers[layer - 1], self.layers[layer])

    def initial(self, seed: int) -> Parameters:
        """The parameters that a run of `seed` starts from: float32 arrays by name, the same numbers
        on every device (Philox by counter, one stream a parameter)."""
        return {
            t.name: random.uniform(seed, stream, math.prod(t.shape), t.bound).reshape(t.shape)
            for stream, t in enumerate(self.parameters())
        }

    def __str__(self) -> str:
        return "-".join(map(str, self.layers))
