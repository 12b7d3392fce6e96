"""How clusters that share a batch add up their gradients, and what that is expected to take."""

from __future__ import annotations

from dataclasses import dataclass

ALL, SHARE = "all", "share"
"""Every cluster adds up and updates everything; or each its share, and gets the rest from the
others."""

TILE_WORDS = 48
"""Words of 16 bytes that a tile takes in the workspace (onchip_groups.cuh)."""
TILE_BYTES = 43 * 16
"""Bytes of them that are handed over: 128 floats, and a stamp for each three."""

MOST_STATE = 128 * 1024
"""Bytes of the optimizer's state in a block up to which every cluster keeps all of it."""


@dataclass(frozen=True)
class MeetingCosts:
    """Cycles from the store of a tile until another block has it (`latency`); of what a block reads
    there, bytes a cycle where all clusters read the same (`summed_bytes`) and where each reads its
    share and then the others' weights (`shared_bytes`, of a tile once); of an update of a tile,
    and more for each tensor of the optimizer's state (H200; taken from round trips to the L2 cache
    and an earlier form of the meeting, not measured)."""

    latency: float = 1200.0
    summed_bytes: float = 60.0
    shared_bytes: float = 22.0
    update: float = 6.0
    update_state: float = 6.0

    def all(self, groups: int, tiles: int, states: int) -> float:
        """Where every cluster sums and updates all of a block's `tiles`."""
        return self.latency + tiles * (groups * TILE_BYTES / self.summed_bytes + self.update
                                       + self.update_state * states)

    def share(self, groups: int, tiles: int, states: int) -> float:
        """Where each does so with its share."""
        return 2 * self.latency + tiles * (
            TILE_BYTES / self.shared_bytes + (self.update + self.update_state * states) / groups)



H200 = MeetingCosts()


def shares(groups: int, warps: int, tiles: int) -> int:
    """How many warps share the clusters of a tile, where each cluster sums its share of a block's
    `tiles`: as many as leave no warp without work."""
    owned, found = -(-tiles // groups), 1
    while found * 2 <= min(warps, groups) and owned * found < warps:
        found *= 2
    return found


def way(groups: int, tiles: int, states: int, costs: MeetingCosts = H200) -> str:
    """How `groups` clusters are expected to be fastest with `tiles` a block, for each weight of
    which the optimizer keeps `states` numbers; "" where there is but one cluster."""
    if groups == 1:
        return ""
    if states * tiles * 512 > MOST_STATE:
        return SHARE
    both = costs.all(groups, tiles, states), costs.share(groups, tiles, states)
    return ALL if both[0] <= both[1] else SHARE


def of_a_tile(groups: int, states: int, costs: MeetingCosts = H200) -> float:
    """What a tile adds to a meeting."""
    both = costs.all(groups, 1, states), costs.share(groups, 1, states)
    return min(both[0] - costs.latency, both[1] - 2 * costs.latency)


def cycles(groups: int, tiles: int, states: int, how: str, costs: MeetingCosts = H200) -> float:
    """What a meeting takes, done one way or the other."""
    return (costs.all if how == ALL else costs.share)(groups, tiles, states)
