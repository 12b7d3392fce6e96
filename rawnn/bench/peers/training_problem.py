"""A training problem that every system is given alike: a network, its start, data and batches.

All of it follows from a few plain values, so that a process can be handed a problem as text and
makes the arrays itself: the same initial weights, the same examples in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Literal, TypeVar, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from rawnn.common.random import permutation
from rawnn.data import Dataset, load_dataset
from rawnn.engine.config import Config

SAMPLE_VERSION = 1
"""Of `sampled`: another version makes other networks of the same seeds, which cannot be
compared."""
STEPS = 64
"""Steps of a random network's epoch."""
RUN_STEPS = 1_000_000
"""Steps of the run that ours is asked for, by which `best` judges what a compilation is worth. A
time a step leaves everybody's making-ready out, so that the run is one for which that does not
decide: 2 to 30 seconds, as against up to a few that a generated kernel compiles. What being made
ready took is a figure of its own, system by system (`setup_s`)."""

DEPTHS = (1, 6)
WIDTHS = (16, 1024)
CLASSES = (2, 32)
BATCHES = (1, 4096)
Loss = Literal["cross_entropy", "mse", "bce"]
Rule = Literal["sgd", "adam"]
LEARNING_RATES: dict[Rule, float] = {"sgd": 0.05, "adam": 1e-3}

Array = NDArray[np.float32]
Number = TypeVar("Number", bound=np.generic)


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A network and how it is trained: an epoch is `steps` batches of `batch` examples. `data` is
    "random" (float32 from a generator, of which all follows from `seed`) or a data set's name, of
    which the first examples are used."""

    name: str
    seed: int
    layers: tuple[int, ...]
    batch: int
    loss: Loss
    optimizer: Rule
    lr: float
    steps: int = STEPS
    bias: bool = True
    activation: Literal["relu"] = "relu"
    shuffle: bool = True
    data: str = "random"

    @property
    def examples(self) -> int:
        return self.steps * self.batch

    @property
    def weights(self) -> int:
        """Weights of all layers, without biases."""
        return sum(a * b for a, b in pairwise(self.layers))

    @property
    def flops(self) -> float:
        """Operations of a step's matrix products, two a multiply-add: forward, weight gradients,
        and input gradients of all layers but the first."""
        sizes = [a * b for a, b in pairwise(self.layers)]
        return 2.0 * self.batch * (3 * sum(sizes) - sizes[0])

    @property
    def program_bytes(self) -> int:
        """About what a program of a peer holds on the device: parameters, gradients and optimizer
        state, the examples of an epoch, and the activations of a batch with their gradients."""
        copies = 4 if self.optimizer == "adam" else 2
        return 4 * (copies * self.weights + 3 * self.batch * sum(self.layers)
                    + self.examples * self.layers[0])

    def config(self, opt: str, device: str) -> Config:
        """The run as rawnn is asked for it."""
        return Config(layers=self.layers, bias=self.bias, activation=self.activation,
                      loss=self.loss, batch=self.batch, shuffle=self.shuffle,
                      optimizer=self.optimizer, lr=self.lr, seed=self.seed, opt=opt, device=device,
                      epochs=-(-RUN_STEPS // self.steps))

    def initial(self) -> list[Array]:
        """Weights [out, in] and biases [out] of the layers in order, as rawnn starts from them;
        not to be written to."""
        return list(_initial(self))

    def dataset(self) -> Dataset:
        """The data set that `data` names, cut to the examples of an epoch."""
        found = load_dataset(self.data)
        cut = self.examples
        assert found.train_labels is not None
        return replace(found, train_images=found.train_images[:cut],
                       train_labels=found.train_labels[:cut])

    def arrays(self) -> tuple[Array, NDArray[np.int32] | Array]:
        """Inputs [examples, features] and labels [examples], or values [examples, outputs]."""
        if self.data == "random":
            return self._random()
        found = self.dataset()
        assert found.train_labels is not None
        x = found.normalisation.apply(found.train_images.reshape(self.examples, -1))
        return np.asarray(x, np.float32), found.train_labels.astype(np.int32)

    def _random(self) -> tuple[Array, NDArray[np.int32] | Array]:
        """Inputs of a normal distribution, and what a random linear map makes of them, squashed."""
        generator = np.random.default_rng([self.seed, 1])
        features, outputs = self.layers[0], self.layers[-1]
        x = generator.standard_normal((self.examples, features), dtype=np.float32)
        w = generator.standard_normal((features, outputs), dtype=np.float32)
        z = np.tanh(x @ (w / np.float32(math.sqrt(features))))
        if self.loss == "cross_entropy":
            return x, z.argmax(axis=1).astype(np.int32)
        return x, (z > 0).astype(np.float32) if self.loss == "bce" else z

    def order(self, epoch: int) -> NDArray[np.int32]:
        """The examples of an epoch (from 0) in the order in which they are seen."""
        if not self.shuffle:
            return np.arange(self.examples, dtype=np.int32)
        return permutation(self.seed, epoch, self.examples)

    def by_step(self, order: NDArray[np.int32]) -> NDArray[np.int32]:
        """An epoch's order [examples] as [steps, batch]."""
        return order.reshape(self.steps, self.batch)

    def compared(self, losses: NDArray[np.float64]) -> NDArray[np.float64]:
        """What of the losses of an epoch is compared: all of them."""
        return losses

    def is_complete(self, losses: NDArray[np.float64]) -> bool:
        """Whether these are the losses of a whole epoch, which a slow loop breaks off."""
        return len(losses) >= self.steps

    def __str__(self) -> str:
        return (f"{'-'.join(map(str, self.layers))}, batch {self.batch}, {self.loss}, "
                f"{self.optimizer}")


@lru_cache(maxsize=1)
def _initial(problem: Problem) -> list[Array]:
    """All programs of a problem begin with the same: 400 million weights take five seconds."""
    start = problem.config("best", "host").network().initial(problem.seed)
    return [fixed(np.asarray(a, np.float32)) for a in start.values()]


def fixed(array: NDArray[Number]) -> NDArray[Number]:
    """The array, which several programs share, so that none of them writes into it."""
    array.flags.writeable = False
    return array


def sampled(seed: int) -> Problem:
    """The network of a seed: one to six layers of 16 to 1024 units and a batch of 1 to 4096, both
    log-uniform, half of them rounded up to multiples of 16; three in five classifiers have 2 to 32
    classes; ReLU between layers."""
    generator = np.random.default_rng([seed, SAMPLE_VERSION])
    depth = int(generator.integers(DEPTHS[0], DEPTHS[1] + 1))
    sizes = [log_uniform(generator, WIDTHS) for _ in range(depth + 1)]
    batch = log_uniform(generator, BATCHES)
    if generator.random() < 0.5:
        sizes = [-(-n // 16) * 16 for n in sizes]
        batch = -(-batch // 16) * 16
    loss: Loss = get_args(Loss)[int(generator.integers(3))]
    optimizer: Rule = "sgd" if generator.random() < 0.5 else "adam"
    if loss == "cross_entropy" and generator.random() < 0.6:
        sizes[-1] = log_uniform(generator, CLASSES)
    return Problem(name=f"seed {seed}", seed=seed, layers=tuple(sizes), batch=batch, loss=loss,
                   optimizer=optimizer, lr=LEARNING_RATES[optimizer])


def smaller(problem: Problem, width: int = 48, batch: int = 32, steps: int = 16) -> Problem:
    """The problem with sizes that a machine without a GPU gets through."""
    return msgspec.structs.replace(problem, layers=tuple(min(n, width) for n in problem.layers),
                                   batch=min(problem.batch, batch), steps=steps)


def log_uniform(generator: np.random.Generator, bounds: tuple[int, int]) -> int:
    """A whole number between two bounds, both included."""
    low, high = bounds
    return min(high, max(low, round(math.exp(generator.uniform(math.log(low), math.log(high))))))


def samples_of(seeds: Sequence[int]) -> list[list[int]]:
    """Seeds by sample: each is a row of seeds that follow each other."""
    found: list[list[int]] = []
    for seed in seeds:
        if found and seed == found[-1][-1] + 1:
            found[-1].append(seed)
        else:
            found.append([seed])
    return found
