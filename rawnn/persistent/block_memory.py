"""A layer's part in the shared memory of a block, and how that memory is handed out."""

from __future__ import annotations

from dataclasses import dataclass

from rawnn.persistent.sharding import ceil, up
from rawnn.persistent.tiles import Tiling

FIXED_BYTES = 1024
"""Static shared memory of the templates."""


@dataclass(frozen=True)
class LayerLayout:
    """A layer's part in a block.

    rows, pitch: rows of weights, and floats of each.
    weights, bias: the floats where weights and biases begin.
    across, tiles, bias_tiles: tiles of the weight gradient side by side and in all, and of the
        biases' gradient.
    base: the number of the layer's first tile. Tiles are numbered in the order in which their
        gradients are computed, from the last layer on.
    state, global_tile: the float where optimizer state begins in shared memory, or None and its
        first tile in global memory.
    forward, backward, update: the tilings of the GEMMs.
    in_registers: whether the optimizer state of its weights lies in registers (held_tiles.cuh), and
        that of its biases alone from `state` on.
    """

    rows: int
    pitch: int
    weights: int
    bias: int
    across: int
    tiles: int
    bias_tiles: int
    forward: Tiling
    backward: Tiling | None
    update: Tiling
    base: int = 0
    state: int | None = None
    global_tile: int = 0
    in_registers: bool = False

    @property
    def all_tiles(self) -> int:
        return self.tiles + self.bias_tiles

    @property
    def state_tiles(self) -> int:
        """Tiles of weights whose optimizer state lies in memory."""
        return 0 if self.in_registers else self.tiles

    @property
    def is_state_global(self) -> bool:
        """Whether optimizer state, if there is any, lies in global memory."""
        return self.state is None and not self.in_registers

    def loaded(self, states: int) -> int:
        """Registers of a thread for a task's sums and so many states of its weights."""
        return 4 * self.update.down * self.update.across * (states + 1)

    def registers(self, warps: int) -> int:
        """Registers of a thread for one number of each of its weights."""
        return 4 * ceil(self.update.tasks, warps) * self.update.down * self.update.across


class Memory:
    """Hands out the shared memory of a block, in floats."""

    def __init__(self) -> None:
        self.cursor = 0
        self.places: dict[str, int] = {}
        self.contents: dict[str, str] = {}

    def take(self, name: str, floats: int, what: str) -> int:
        self.contents[name] = what
        self.places[name] = place = up(self.cursor, 4)
        self.cursor = place + floats
        return place

    def has(self, floats: int, room: int) -> bool:
        """Whether so many more fit in `room` bytes."""
        return (up(self.cursor, 4) + floats) * 4 <= room - FIXED_BYTES
