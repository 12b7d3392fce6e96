"""Ensembles: many small networks of one shape, trained at once, that every system is given alike.

An ensemble is a problem whose member i is the network of the seed `seed + i`: its initial weights
and its order of the examples follow from that seed, as `rawnn.train_many(seed=range(...))` has
them. Data, batch, optimizer and learning rate are shared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from rawnn.bench.peers.training_problem import (
    LEARNING_RATES,
    Array,
    Loss,
    Problem,
    Rule,
    fixed,
    log_uniform,
)
from rawnn.common.random import permutation

Item = TypeVar("Item")

ENSEMBLE_VERSION = 1
"""Of `sampled_ensemble`: another version makes other ensembles of the same seeds."""
DEPTHS = (1, 4)
WIDTHS = (4, 128)
BATCHES = (8, 256)
MEMBERS = (16, 4096)
ROWS = 8192
STEPS = (32, 256)
"""An epoch has about ROWS examples, but so many steps at least and at most."""
CALL_EPOCHS = 20
"""Epochs of the call whose whole time is measured (`call_s`); a peer's is its setup and as many
epochs."""
CHECKED = 8
"""Members at most whose losses are compared, evenly spread, the first and the last included."""


class Ensemble(Problem, frozen=True, kw_only=True):
    """`members` networks. Of each epoch the mean loss of every member is compared, not the loss of
    each step."""

    members: int

    @property
    def checked(self) -> tuple[int, ...]:
        """The members whose losses are compared."""
        count = min(CHECKED, self.members)
        return tuple(sorted({round(i * (self.members - 1) / max(count - 1, 1))
                             for i in range(count)}))

    @property
    def parameters(self) -> int:
        """Of one member, biases included."""
        return self.weights + (sum(self.layers[1:]) if self.bias else 0)

    @property
    def program_bytes(self) -> int:
        """About what a peer's program holds on the device: parameters, gradients and optimizer
        state, the order of the examples, and the activations of a batch with their gradients."""
        copies = 4 if self.optimizer == "adam" else 2
        activations = 3 * self.batch * sum(self.layers)
        return 4 * self.members * (copies * self.parameters + activations + self.examples)

    def initial(self) -> list[Array]:
        """Weights [members, out, in] and biases [members, out] of the layers in order."""
        return self.initial_of(range(self.members))

    def initial_of(self, members: Sequence[int]) -> list[Array]:
        """The same of some members, which cannot be written into."""
        return _initial(self, tuple(members))

    def order(self, epoch: int) -> NDArray[np.int32]:
        """The examples of an epoch in the order in which each member sees them:
        [members, examples]."""
        return self.order_of(epoch, range(self.members))

    def order_of(self, epoch: int, members: Sequence[int]) -> NDArray[np.int32]:
        """The same of some members, which cannot be written into."""
        return _order(self, epoch, tuple(members))

    def by_step(self, order: NDArray[np.int32]) -> NDArray[np.int32]:
        """An epoch's order [members, examples] as [steps, members, batch], contiguous."""
        steps = order.reshape(self.members, self.steps, self.batch).swapaxes(0, 1)
        return np.ascontiguousarray(steps)

    def compared(self, losses: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of the members' mean losses of an epoch [members] those that are compared; NaN where the
        loss of any member is not finite."""
        picked = losses[list(self.checked)]
        return picked if np.isfinite(losses).all() else np.full_like(picked, np.nan)

    def is_complete(self, losses: NDArray[np.float64]) -> bool:
        return True

    def __str__(self) -> str:
        return f"{self.members} of {super().__str__()}"


@lru_cache(2)
def _initial(problem: Ensemble, members: tuple[int, ...]) -> list[Array]:
    network = problem.config("best", "host").network()
    each = _in_threads(lambda i: list(network.initial(problem.seed + i).values()), members)
    return [fixed(np.stack([np.asarray(a, np.float32) for a in arrays]))
            for arrays in zip(*each, strict=True)]


@lru_cache(4)
def _order(problem: Ensemble, epoch: int, members: tuple[int, ...]) -> NDArray[np.int32]:
    if not problem.shuffle:
        return fixed(np.tile(np.arange(problem.examples, dtype=np.int32), (len(members), 1)))
    return fixed(np.stack(_in_threads(
        lambda i: permutation(problem.seed + i, epoch, problem.examples), members)))


def _in_threads(make: Callable[[int], Item], members: Sequence[int]) -> list[Item]:
    with ThreadPoolExecutor() as pool:
        return list(pool.map(make, members))


def steps_of(batch: int) -> int:
    """Steps of an epoch."""
    return max(STEPS[0], min(STEPS[1], ROWS // batch))


def ensemble(name: str, layers: Sequence[int], batch: int, members: int, loss: Loss,
             optimizer: Rule, seed: int = 0) -> Ensemble:
    """An ensemble with the learning rate and the epoch that all have."""
    return Ensemble(name=name, seed=seed, layers=tuple(layers), batch=batch, loss=loss,
                    optimizer=optimizer, lr=LEARNING_RATES[optimizer], steps=steps_of(batch),
                    members=members)


def sampled_ensemble(seed: int, name: str) -> Ensemble:
    """The ensemble of a seed: one to four layers of weights, uniform; 4 to 128 units, batches of 8
    to 256 and 16 to 4,096 members, log-uniform; class labels or values, SGD or Adam, each as
    often; ReLU between layers."""
    generator = np.random.default_rng([seed, ENSEMBLE_VERSION, MEMBERS[1]])
    depth = int(generator.integers(DEPTHS[0], DEPTHS[1] + 1))
    layers = [log_uniform(generator, WIDTHS) for _ in range(depth + 1)]
    batch, members = log_uniform(generator, BATCHES), log_uniform(generator, MEMBERS)
    loss: Loss = "cross_entropy" if generator.random() < 0.5 else "mse"
    optimizer: Rule = "sgd" if generator.random() < 0.5 else "adam"
    return ensemble(name, layers, batch, members, loss, optimizer, seed)


def reduced(problem: Ensemble) -> Ensemble:
    """The ensemble with sizes that a machine without a GPU gets through."""
    return msgspec.structs.replace(problem, layers=tuple(min(n, 12) for n in problem.layers),
                                   batch=min(problem.batch, 8), steps=4,
                                   members=min(problem.members, 5))


LARGE_BYTES = 2**28
"""Of one program. A system makes about ten of a problem, and several problems wait together."""


def is_large(problem: Problem) -> bool:
    """Whether the programs of a problem should not lie on the device side by side."""
    return problem.program_bytes > LARGE_BYTES
