"""What epochs take, by a clock that the test sets: who shares a time with whom, and what is left
out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rawnn.engine.runners import times
from rawnn.engine.runners.times import MAX_EPOCHS_PER_SPAN, EpochTimes


class Clock:
    """A device on which time passes only where the test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.driver = self.stream = self

    def synchronize(self, context: str) -> None:
        pass


class FakeEvent:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def record(self, stream: Any) -> None:
        self.at = self.clock.now

    def milliseconds_since(self, start: FakeEvent) -> float:
        return self.at - start.at

    def close(self) -> None:
        pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(times, "Event", FakeEvent)
    return Clock()


def train(clock: Clock, measured: EpochTimes, *epochs: float) -> None:
    for milliseconds in epochs:
        measured.begin()
        clock.now += milliseconds
        measured.end()


def test_the_first_epoch_has_a_time_of_its_own_and_others_share_theirs(clock: Clock) -> None:
    measured = EpochTimes(clock, clock)
    train(clock, measured, 100.0, 4.0, 8.0, 12.0)
    assert measured.milliseconds() == [100.0, 8.0, 8.0, 8.0]
    train(clock, measured, 6.0)
    assert measured.milliseconds() == [100.0, 8.0, 8.0, 8.0, 6.0]


def test_so_many_share_a_time(clock: Clock) -> None:
    measured = EpochTimes(clock, clock)
    train(clock, measured, 1.0, *[2.0] * MAX_EPOCHS_PER_SPAN, *[5.0] * 3)
    assert measured.milliseconds() == [1.0, *[2.0] * MAX_EPOCHS_PER_SPAN, *[5.0] * 3]
    measured.epochs_per_span = 1
    train(clock, measured, 7.0, 9.0)
    assert measured.milliseconds()[-2:] == [7.0, 9.0]


def test_what_comes_between_is_left_out_and_what_belongs_to_an_epoch_counts(clock: Clock) -> None:
    measured = EpochTimes(clock, clock)
    train(clock, measured, 3.0, 4.0)
    measured.pause()
    clock.now += 1000.0
    train(clock, measured, 5.0)
    with measured.attributed_to_last():
        clock.now += 0.5
    clock.now += 1000.0
    train(clock, measured, 6.0)
    assert measured.milliseconds() == [3.0, 4.0, 5.5, 6.0]


def test_a_step_takes_its_share_of_the_second_of_two_runs(clock: Clock) -> None:
    """The first warms up."""
    takes = iter((900.0, 12.0))

    def run(steps: int) -> None:
        clock.now += next(takes)

    program: Any = SimpleNamespace(run=run, close=lambda: None)
    device: Any = clock
    assert times.microseconds(device, program, 4) == 3000.0
