"""What a GPU gives to kernels that train on the chip."""

from __future__ import annotations

from dataclasses import dataclass

from rawnn.device.target import Target

NEEDED = ("asynchronous copies", "bfloat16", "tf32")
"""Features of a target without which there is no kernel."""


@dataclass(frozen=True)
class Chip:
    """The bytes of shared memory that a block can have, and how many clusters of so many blocks run
    at once, a block a multiprocessor: (blocks, clusters) of each size."""

    shared: int
    clusters: tuple[tuple[int, int], ...]

    def most_groups(self, ranks: int) -> int:
        """Clusters of `ranks` blocks that run at once; 0 where there are none."""
        return dict(self.clusters).get(ranks, 0)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Blocks of the clusters that there are."""
        return tuple(size for size, most in self.clusters if most)


def chip_of(target: Target) -> Chip:
    """The chip of a target."""
    return Chip(target.shared_per_block,
                tuple((size, blocks // size) for size, blocks in sorted(target.at_once.items())))
