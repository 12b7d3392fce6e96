"""The inputs of a plan besides the network: the spec of the data, the batch, the optimizer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from rawnn.model.optimizers import Optimizer


@dataclass(frozen=True)
class DataSpec:
    """The properties of a set of examples that a plan depends on.

    `inputs` and `labels` are storage dtypes (`labels` is "" without labels), `targets` the columns
    of float targets, 0 for none; with `reconstruct` the targets are the inputs themselves. Inputs
    become (value * scale - mean) * inverse_std, with the latter two, per feature, only if
    `normalised`.
    """

    examples: int
    inputs: str = "uint8"
    labels: str = "uint8"
    targets: int = 0
    scale: float = 1.0
    normalised: bool = False
    reconstruct: bool = False


class Share(NamedTuple):
    """`rows` examples of a batch from `first` on, whose mean has the fraction `weight` in the
    batch's."""

    first: int
    rows: int
    weight: float


@dataclass(frozen=True)
class Recipe:
    """How a network is trained.

    `batch` examples per step; `partial` uses the last, smaller batch of an epoch; `shuffle` draws a
    new order for each epoch from `seed`; `schedule` is a text of rawnn.model.schedules. Each of
    `world_size` ranks takes a part of every batch; this one is number `rank`.
    """

    batch: int
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: str = "constant"
    shuffle: bool = False
    partial: bool = False
    seed: int = 0
    epochs: int = 1
    world_size: int = 1
    rank: int = 0

    def share(self, rows: int) -> Share:
        """This rank's part of a batch of `rows` examples: as even as possible, with one more for
        the first ranks. A rank without any computes the last example with weight 0."""
        each, more = divmod(rows, self.world_size)
        mine = each + (self.rank < more)
        if not mine:
            return Share(rows - 1, 1, 0.0)
        return Share(self.rank * each + min(self.rank, more), mine, mine / rows)

    def steps(self, examples: int) -> int:
        """Full batches in an epoch."""
        return examples // self.batch

    def partial_size(self, examples: int) -> int:
        """Examples of the partial batch, 0 for none."""
        return examples % self.batch if self.partial else 0

    def updates(self, examples: int) -> int:
        """Optimizer steps in an epoch."""
        return self.steps(examples) + (self.partial_size(examples) > 0)
