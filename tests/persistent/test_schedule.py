"""The schedule of a step and its walkers, beside the code that they replace."""

from __future__ import annotations

import pytest

from rawnn.persistent import buffers
from rawnn.persistent.layout import far_sums, layout_of
from rawnn.persistent.schedule import OVERFLOW, REDUCE_SCATTER, build
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
