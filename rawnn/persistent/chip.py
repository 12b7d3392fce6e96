"""What a GPU gives to kernels that train on the chip."""

from __future__ import annotations

from dataclasses import dataclass

from rawnn.common.target import Target
from rawnn.persistent.cost import FITTED, Costs, costs_of
from rawnn.persistent.decompose import CLUSTER

NEEDED = ("asynchronous copies", "bfloat16", "tf32")
"""Features of a target without which there is no kernel."""


@dataclass(frozen=True)
class Chip:
    """The bytes of shared memory that a block can have, and how many clusters of so many blocks run
    at once, a block a multiprocessor: (blocks, clusters) of each size; what its cycles cost."""

    shared: int
    clusters: tuple[tuple[int, int], ...]
    costs: Costs = FITTED

    def most_groups(self, ranks: int, exchange: str = CLUSTER) -> int:
        """Groups of `ranks` blocks that run at once, of blocks that exchange so; 0 where there are
        none."""
        if exchange == CLUSTER:
            return dict(self.clusters).get(ranks, 0)
        return self.blocks // ranks

    @property
    def blocks(self) -> int:
        """That run at once, where none need to be neighbours."""
        return dict(self.clusters).get(1, 0)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Blocks of the clusters that there are."""
        return tuple(size for size, most in self.clusters if most)


def chip_of(target: Target) -> Chip:
    """The chip of a target."""
    return Chip(target.shared_per_block,
                tuple((size, blocks // size) for size, blocks in sorted(target.at_once.items())),
                costs_of(target))
