"""The simulated device's checks work: every fault planted in a run that is otherwise right is
caught, and the table in docs/testing.md says so. Here one in ONE_IN is planted;
tools/fault_table.py plants all of them."""

from __future__ import annotations

import re

import pytest

from tests.proof.plants import CLASSES, PLANS, tally
from tests.proof.table import committed, row
from tests.slices import FULL

pytestmark = [pytest.mark.timeout(120),
              pytest.mark.filterwarnings("ignore::RuntimeWarning")]  # nonsense in, nonsense out


ONE_IN = 1 if FULL else 16


@pytest.mark.parametrize("plan", PLANS)
def test_planted_faults_are_caught_and_in_the_table(plan: str) -> None:
    found = tally(plan, ONE_IN)
    for name, counted in found.items():
        assert not counted.missed, f"{name}: nothing noticed {', '.join(counted.missed)}"
    assert row(plan, found) in committed().splitlines(), \
        "docs/testing.md is out of date: run tools/fault_table.py"


def test_the_table_has_every_plan_once_and_right_totals() -> None:
    head, _, *rows = (line for line in committed().splitlines() if line.startswith("|"))
    assert [cell.strip() for cell in head.split("|")[2:-1]] == list(CLASSES)
    names = [line.split("|")[1].strip() for line in rows]
    assert names == [*PLANS, "**all**"]
    counts = [[sum(map(int, re.findall(r"^\d+", cell.strip()))) for cell in line.split("|")[2:-1]]
              for line in rows]
    assert counts[-1] == [sum(column) for column in zip(*counts[:-1], strict=True)]
    assert all(total > 0 for total in counts[-1])
    for cell in rows[-1].split("|")[2:-1]:
        planted, _, caught = cell.strip().partition(" / ")
        assert planted == caught
