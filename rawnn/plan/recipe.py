"""What a plan is built for, besides the network: the data's form, the batch, the optimizer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from rawnn.model.optimizers import Optimizer


@dataclass(frozen=True)
class DataSpec:
    """What a set of examples looks like to a plan.

    `inputs` and `labels` are storage types (labels "" where there are none), `targets` the columns
    of float targets, 0 for none; with `reconstruct` the targets are the inputs themselves. Inputs
    become (value * scale - mean) * inverse_std, the latter two per feature and only where
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
    """Examples of a batch from `first` on, `rows` of them, whose mean is `weight` of the batch's.
    """

    first: int
    rows: int
    weight: float


@dataclass(frozen=True)
class Recipe:
    """How a network is trained.

    `batch` examples a step; `partial` keeps the last, smaller batch of an epoch; `shuffle` draws a
    new order for each epoch from `seed`; `schedule` is a text of rawnn.model.schedules. Of
    several `ranks` each takes its share of every batch; this one is number `rank`.
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
        """This rank's part of a batch of `rows` examples: as even as it goes, the first ranks
        having one more. One that gets none computes on the last example, which counts nothing."""
        each, more = divmod(rows, self.world_size)
        mine = each + (self.rank < more)
        if not mine:
            return Share(rows - 1, 1, 0.0)
        return Share(self.rank * each + min(self.rank, more), mine, mine / rows)

    def steps(self, examples: int) -> int:
        """Whole batches in an epoch."""
        return examples // self.batch

    def rest(self, examples: int) -> int:
        """Examples of the partial batch that is kept, 0 for none."""
        return examples % self.batch if self.partial else 0

    def updates(self, examples: int) -> int:
        """Optimizer steps in an epoch."""
        return self.steps(examples) + (self.rest(examples) > 0)
