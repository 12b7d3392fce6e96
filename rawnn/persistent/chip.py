"""What a GPU offers to the persistent kernel."""

from __future__ import annotations

from dataclasses import dataclass

from rawnn.common.target import Target
from rawnn.persistent.cost import FITTED, Costs, costs_of
from rawnn.persistent.sharding import DSMEM

RESERVED = 1024
"""Bytes of a multiprocessor's shared memory that each block takes besides its own."""
NEEDED = ("asynchronous copies", "bfloat16", "tf32")
"""Features of a target without which there is no kernel."""


@dataclass(frozen=True)
class Chip:
    """The resources of a GPU.

    shared: bytes of shared memory that a block can have.
    clusters: (blocks, clusters) for each cluster size: how many clusters run at once, with one
        block a multiprocessor.
    costs: the constants of the cost model on this GPU.
    shared_per_multiprocessor, threads: bytes of shared memory and threads of a multiprocessor,
        which several blocks of small networks share.
    """

    shared: int
    clusters: tuple[tuple[int, int], ...]
    costs: Costs = FITTED
    shared_per_multiprocessor: int = 228 << 10
    threads: int = 2048

    def most_groups(self, tp_size: int, transport: str = DSMEM) -> int:
        """Tensor-parallel groups of a size that run at once; 0 where there are none."""
        if transport == DSMEM:
            return dict(self.clusters).get(tp_size, 0)
        return self.blocks // tp_size

    def most_clusters(self, size: int) -> int:
        """Clusters of a size that run at once: of a size that the GPU was not asked for, at least
        as many as of the next larger one."""
        return dict(self.clusters)[min(s for s in self.sizes if s >= size)] \
            if size <= max(self.sizes, default=0) else 0

    @property
    def blocks(self) -> int:
        """Co-resident blocks that need no cluster."""
        return dict(self.clusters).get(1, 0)

    def room(self, resident: int = 0) -> int:
        """Bytes of shared memory of a block, of which so many share a multiprocessor."""
        if resident < 2:
            return self.shared
        return min(self.shared, self.shared_per_multiprocessor // resident - RESERVED)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The cluster sizes of this GPU."""
        return tuple(size for size, most in self.clusters if most)


def chip_of(target: Target) -> Chip:
    """The chip of a target."""
    return Chip(target.shared_per_block,
                tuple((size, blocks // size) for size, blocks in sorted(target.at_once.items())),
                costs_of(target), target.shared_per_multiprocessor, target.threads)
