"""The schedule of a step and its walkers, beside the code that they replace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from rawnn.persistent import buffers
from rawnn.persistent.layout import far_sums, layout_of
from rawnn.persistent.schedule import OVERFLOW, REDUCE_SCATTER, Barrier, Schedule, build
from tests.persistent.hazards import hazards
from tests.persistent.problems import HOPPER
from tests.persistent.sampling import sampled


@pytest.mark.parametrize("seed", range(300))
def test_exchanges_are_the_messages_of_the_sharding(seed: int) -> None:
    d = sampled(seed)
    schedule, found = build(d), layout_of(d, HOPPER.shared)
    exchanges = [each for each in schedule.exchanges if each.name != OVERFLOW]
    assert [(e.rows, e.kind != REDUCE_SCATTER, e.idle, e.parts) for e in exchanges] \
        == [(m.rows, m.to_all, m.idle, m.parts) for m in d.messages]
    assert d.has_exchanges == bool(d.messages)
    assert buffers.reduction_floats(schedule) == far_sums(d)
    if d.via_l2:
        assert [(slot.offset, slot.uses, slot.number) for slot in buffers.l2_slots(schedule)] \
            == [(place.first, place.messages, place.number) for place in d.places]
        assert buffers.group_floats(schedule) == d.mail_floats
        assert buffers.copies(schedule) == d.boxes
    else:
        assert buffers.dsmem_floats(schedule) == found.exchange


@pytest.mark.parametrize("seed", range(300))
def test_barriers_stand_where_one_phase_needs_what_another_wrote(seed: int) -> None:
    schedule = build(sampled(seed))
    assert hazards(schedule) == []
    missing = [without for without in leaving_barriers_out(schedule) if not hazards(without)]
    # Behind the step of micro-batches there is one, though converted inputs have one as well.
    assert len(missing) <= (schedule.sharding.micro_batches > 1 and
                            schedule.sharding.problem.converted)


def leaving_barriers_out(schedule: Schedule) -> Iterator[Schedule]:
    """The schedule without one of its barriers."""
    for name in ("micro_batch", "step"):
        phases = getattr(schedule, name)
        for i, phase in enumerate(phases):
            if isinstance(phase, Barrier):
                fewer: Any = {name: phases[:i] + phases[i + 1:]}
                yield replace(schedule, **fewer)
