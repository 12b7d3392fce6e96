"""The receive buffers of a schedule's exchanges: their sizes, and which exchanges share one.

In a cluster a block has two receive buffers in shared memory, which exchanges use in turn. Via L2
the receive buffers lie in global memory (ptx/persistent/exchange_l2.cuh says how they are reused).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rawnn.persistent.schedule import Schedule

LINE = 32
"""Floats of a line of the L2 cache."""


@dataclass(frozen=True)
class Slot:
    """Where an exchange via L2 is received: the first float in the receive buffer of the group, how
    many exchanges of a micro-batch use that place, and the number of this one among them."""

    offset: int
    uses: int = 1
    number: int = 0


def dsmem_floats(schedule: Schedule) -> int:
    """Floats of one of the two receive buffers of a block in a cluster; 0 without exchanges."""
    d = schedule.sharding
    return max((each.floats_of_block(d) for each in schedule.exchanges), default=0)


def l2_slots(schedule: Schedule) -> tuple[Slot, ...]:
    """The slot of each exchange of a micro-batch via L2, in order.

    An exchange reuses the slot of an earlier one of the same shape that every block has read: not
    the one before, around the end of a micro-batch as well. So the buffers stay small, and are
    written again while they are in the L2 cache."""
    d, exchanges = schedule.sharding, schedule.exchanges
    if not d.via_l2:
        return ()
    shapes = [(each.kind, each.rows, each.features, each.idle) for each in exchanges]
    shared: list[list[int]] = []
    for i, shape in enumerate(shapes):
        for users in shared:
            if shapes[users[0]] == shape and i - users[-1] >= 2 \
                    and users[0] + len(shapes) - i >= 2:
                users.append(i)
                break
        else:
            shared.append([i])
    found: dict[int, Slot] = {}
    offset = 0
    for users in shared:
        found |= {i: Slot(offset, len(users), number) for number, i in enumerate(users)}
        offset += exchanges[users[0]].floats_via_l2(d)
    return tuple(found[i] for i in range(len(exchanges)))


def group_floats(schedule: Schedule) -> int:
    """Floats of a copy of a group's receive buffer via L2, with the slots of all exchanges."""
    d = schedule.sharding
    return max((slot.offset + each.floats_via_l2(d) for slot, each in
                zip(l2_slots(schedule), schedule.exchanges, strict=False)), default=0)


def copies(schedule: Schedule) -> int:
    """Copies of a group's receive buffer via L2. The only exchange of a micro-batch alternates
    between two."""
    return 2 if len(l2_slots(schedule)) == 1 else 1
