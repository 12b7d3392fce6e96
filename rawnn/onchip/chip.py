"""What a GPU gives to kernels that train on the chip."""

from __future__ import annotations

from dataclasses import dataclass

from rawnn.errors import ConfigError

CLUSTERED = (9, 0)
"""Compute capability from which blocks can form clusters."""
LEAST = (8, 0)
"""Compute capability from which there are the tensor cores and asynchronous copies of the kernels."""


@dataclass(frozen=True)
class Chip:
    """A GPU's compute capability, its multiprocessors, and the bytes of shared memory that a block
    can have."""

    capability: tuple[int, int]
    multiprocessors: int
    shared: int

    @property
    def most_ranks(self) -> int:
        """Blocks of the largest cluster; from compute capability 10.0 on those that are portable
        are known to run on every such GPU, on 9.0 16 do."""
        if self.capability < CLUSTERED:
            return 1
        return 16 if self.capability[0] in (9, 10) else 8

    def most_groups(self, ranks: int) -> int:
        """Clusters of so many blocks that run at once, a block a multiprocessor. Clusters do not
        reach over the borders of the GPU's processing clusters, whose sizes differ from chip to
        chip: the larger a cluster, the more multiprocessors may be left over."""
        if ranks <= 2:
            return self.multiprocessors // ranks
        return max(self.multiprocessors * 7 // 8 // ranks, 1)

    def __str__(self) -> str:
        major, minor = self.capability
        return f"{major}.{minor}/{self.multiprocessors}/{self.shared}"


def parse(text: str) -> Chip:
    """A chip from its text. Raises ConfigError."""
    try:
        capability, multiprocessors, shared = text.split("/")
        major, minor = capability.split(".")
        return Chip((int(major), int(minor)), int(multiprocessors), int(shared))
    except ValueError:
        raise ConfigError(f"'{text}' is no chip: give its compute capability, multiprocessors and "
                          f"bytes of shared memory of a block, as in 9.0/132/232448") from None
