"""The stamps of a traced kernel: which phase of the schedule ends at each, and what part of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rawnn.persistent.sharding import Sharding

if TYPE_CHECKING:
    from rawnn.persistent.phases.phase import Phase
    from rawnn.persistent.schedule import Schedule


@dataclass(frozen=True)
class Stamp:
    """The end of a part of a phase. `phase` is its line in the cost table; `part` says what a block
    did in it."""

    phase: str
    part: str = "work"


def stamps(schedule: Schedule) -> list[Stamp]:
    """The stamps of a step in order."""
    return [*stamps_of(schedule.sharding, schedule.micro_batch) * schedule.sharding.micro_batches,
            *stamps_of(schedule.sharding, schedule.step)]


def stamps_of(d: Sharding, listed: Iterable[Phase]) -> list[Stamp]:
    """The stamps of some phases. The barrier behind a phase often stamps in its place."""
    return [Stamp(phase.name, part) for phase in listed for part in phase.stamps(d)]
