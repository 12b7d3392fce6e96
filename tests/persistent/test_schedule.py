"""The schedule of a step and its walkers, beside the code that they replace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from rawnn.persistent.schedule import Barrier, Schedule, build
from tests.persistent.hazards import hazards
from tests.persistent.sampling import sampled


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
