"""The loop over many networks, with trainers of scripted scores: who stops, who passes a rung, what
is stored when."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rawnn.common.listener import Listener
from rawnn.engine.callbacks import EarlyStopping
from rawnn.engine.result import Report
from rawnn.many.loop import ManyLoop, Rules
from rawnn.many.members import Arrays, Scores
from rawnn.many.progress import Progress, Status

STEPS = 7
"""Of an epoch."""


class Scripted:
    """A trainer whose members reach what `figures` [members, epochs, 3] says; their one parameter
    is the number of epochs that they have behind them."""

    sharding = ""

    def __init__(self, figures: NDArray[np.float64]) -> None:
        self.figures, self.columns = figures, np.empty((len(figures), 0, 3))
        self.epoch = np.zeros(len(figures), np.int64)

    def run(self, active: NDArray[np.int64], epochs: int) -> None:
        new = np.full((len(self.figures), epochs, 3), np.nan)
        for member in active:
            begin = self.epoch[member]
            new[member] = self.figures[member, begin : begin + epochs]
        self.epoch[active] += epochs
        self.columns = np.concatenate([self.columns, new], axis=1)

    def scores(self, first: int = 0) -> Scores:
        return Scores(*(self.columns[:, first:, i] for i in range(3)))

    def state(self, members: NDArray[np.int64]) -> Arrays:
        return {"w": self.epoch[members, None].astype(np.float32), "epoch": self.epoch[members]}

    def load(self, members: Any, state: Any) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


class Reported(Listener):
    def __init__(self) -> None:
        self.reports: list[Any] = []

    def reported(self, report: Any) -> None:
        self.reports.append(report)


def figures_of(test_loss: Any, train_loss: Any = 1.0) -> NDArray[np.float64]:
    losses = np.asarray(test_loss, np.float64)
    found = np.zeros((*losses.shape, 3))
    found[..., 0], found[..., 1], found[..., 2] = train_loss, losses, 1 - losses
    return found


def run(figures: NDArray[np.float64], rules: Rules, candidate: Sequence[int] | None = None,
        chunk: int = 1) -> SimpleNamespace:
    """All members in one group; `saved` are the epochs at which the run was stored."""
    count, epochs = figures.shape[:2]
    members: Any = SimpleNamespace(
        configs=[SimpleNamespace(epochs=epochs)] * count,
        groups=[SimpleNamespace(steps_of=lambda place: STEPS)],
        group=np.zeros(count, np.int32), place=np.arange(count, dtype=np.int32),
        candidate=np.arange(count, dtype=np.int32) if candidate is None else np.array(candidate))
    progress, listener = Progress.new(count, epochs), Reported()
    saved: list[int] = []
    best: dict[int, Arrays] = {}
    loop = ManyLoop(members, [Scripted(figures)], progress, rules, listener,
                    lambda: saved.append(int(progress.epoch.max())), best)
    loop._chunk = chunk
    assert loop.run() == 0
    return SimpleNamespace(progress=progress, saved=saved, reports=listener.reports, loop=loop,
                           best={member: int(state["w"][0]) for member, state in best.items()})


@pytest.mark.parametrize("every", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("chunk", [1, 2, 4, 100])
def test_a_run_is_stored_every_so_many_epochs_and_at_the_end(every: int, chunk: int) -> None:
    found = run(figures_of(np.ones((2, 11))), Rules(save_every=every), chunk=chunk)
    assert found.saved == [*range(every, 11, every), 11]
    assert [report.epoch for report in found.reports] == list(range(1, 12))


def test_members_stop_early_as_single_runs_do() -> None:
    """Improvements, plateaus and steps of exactly `min_delta`, against the listener of one run."""
    generator = np.random.default_rng(3)
    losses = generator.integers(0, 9, (40, 14)) / 8.0  # of which differences are exact
    losses[0], losses[1] = 0.5, np.arange(14, 0, -1) / 8.0
    for min_delta in (0.0, 0.125):
        found = run(figures_of(losses), Rules(patience=3, min_delta=min_delta))
        for member, values in enumerate(losses):
            stops, best = _single(values, 3, min_delta)
            assert found.progress.epoch[member] == stops
            assert found.progress.best_epoch[member] == found.best[member] == best
            if stops < 14:
                assert found.progress.status[member] == Status.STOPPED
        assert found.progress.epoch[0] == 4  # a plateau is no improvement


def _single(values: Sequence[float], patience: int, min_delta: float) -> tuple[int, int]:
    """The epochs of a run that reports these losses, and its best one."""
    session: Any = SimpleNamespace(facts={}, stopped="", runner=SimpleNamespace(state=dict))
    session.stop = lambda reason: setattr(session, "stopped", reason)
    listener = EarlyStopping(patience, min_delta)
    listener.started(session)
    for epoch, value in enumerate(values, 1):
        listener.reported(Report(epoch, 1.0, 0.0, float(value), 0.0, 1.0))
        if session.stopped:
            break
    return epoch, listener.best_epoch


@pytest.mark.parametrize("monitor", ["test_loss", "test_accuracy"])
def test_a_member_that_diverged_passes_no_rung(monitor: str) -> None:
    losses = np.array([[0.1, 0.1, 0.1, 0.1], [0.4, 0.4, 0.4, 0.4], [0.3, 0.3, 0.3, 0.3],
                       [0.5, 0.5, 0.5, 0.5]])
    figures = figures_of(losses)
    figures[0, 1:] = np.nan  # the best of all, for an epoch
    found = run(figures, Rules(halving=2, rungs=(2,), monitor=monitor))
    assert found.progress.status.tolist() == [Status.DIVERGED, Status.FINISHED, Status.FINISHED,
                                              Status.HALVED]
    assert found.progress.rung.tolist() == [0, 1, 1, 0]
    assert found.progress.epoch.tolist() == [1, 4, 4, 2]


def test_members_that_stopped_early_compete_at_a_rung() -> None:
    """By what they have reached, though they train no further."""
    losses = np.array([[0.1] * 8, np.linspace(0.9, 0.2, 8), np.linspace(0.9, 0.3, 8)])
    found = run(figures_of(losses), Rules(patience=2, halving=3, rungs=(4,)))
    assert found.progress.epoch.tolist() == [3, 4, 4]
    assert found.progress.rung.tolist() == [1, 0, 0]


def test_a_candidate_is_judged_by_all_of_its_members() -> None:
    losses = np.repeat(np.array([[0.1], [0.9], [0.4], [0.5]]), 3, axis=1)
    found = run(figures_of(losses), Rules(halving=2, rungs=(1,)), candidate=[0, 0, 1, 1])
    assert found.progress.epoch.tolist() == [1, 1, 3, 3]
    assert [report.members for report in found.reports] == [4, 2, 2]


def test_steps_are_counted_and_those_that_are_left_are_foreseen() -> None:
    """Of 9 members 3 train on behind the first epoch, and one behind the third."""
    losses = np.repeat(np.arange(9.0)[:, None] / 10, 9, axis=1)
    found = run(figures_of(losses), Rules(patience=9, halving=3, rungs=(1, 3)))
    assert found.progress.epoch.tolist() == [9, 3, 3, *[1] * 6]
    assert found.loop.steps == STEPS * (9 + 2 * 3 + 6)
    left = [report.seconds_left * report.steps_per_second / STEPS for report in found.reports]
    assert left == pytest.approx([3 * 2 + 6, 3 * 1 + 6, 6, 5, 4, 3, 2, 1, 0])
    assert {report.total for report in found.reports} == {9}


def test_a_diverged_member_counts_the_epochs_that_it_finished() -> None:
    figures = figures_of(np.ones((2, 6)))
    figures[1, 2:] = np.nan
    for chunk in (1, 6):
        found = run(figures, Rules(), chunk=chunk)
        assert found.progress.epoch.tolist() == [6, 2]
        assert found.progress.status.tolist() == [Status.FINISHED, Status.DIVERGED]
        assert found.loop.steps == STEPS * 8
        assert np.isnan(found.progress.history[1, 2:]).all()


@pytest.mark.parametrize("seed", range(6))
def test_each_member_has_the_figures_of_its_own_epochs_whatever_the_groups_and_chunks(seed: int
                                                                                     ) -> None:
    """Groups of several sizes and steps, members with epochs of their own, in chunks of any length.
    """
    generator = np.random.default_rng(seed)
    sizes = generator.integers(1, 6, 3)
    group = generator.permutation(np.repeat(np.arange(3, dtype=np.int32), sizes))
    place = np.array([np.count_nonzero(group[:i] == g) for i, g in enumerate(group)], np.int32)
    own = generator.integers(1, 9, len(group))
    figures = generator.uniform(1, 2, (len(group), 8, 3))
    steps = (3, 5, 7)
    members: Any = SimpleNamespace(
        configs=[SimpleNamespace(epochs=int(epochs)) for epochs in own],
        groups=[SimpleNamespace(steps_of=lambda place, each=each: each) for each in steps],
        group=group, place=place,
        candidate=np.arange(len(group), dtype=np.int32))
    trainers = [Scripted(figures[group == g]) for g in range(3)]
    progress = Progress.new(len(group), 8)
    loop = ManyLoop(members, trainers, progress, Rules(), Reported(), lambda: None, {})
    loop._chunk = int(generator.integers(1, 5))
    assert loop.run() == 0
    assert np.array_equal(progress.epoch, own)
    for member, epochs in enumerate(own):
        assert np.array_equal(progress.history[member, :epochs], figures[member, :epochs])
    assert loop.steps == sum(epochs * steps[g] for epochs, g in zip(own, group, strict=True))
    assert [int(n) for g in range(3) for n in trainers[g].epoch] == [
        int(n) for g in range(3) for n in own[group == g]]
    assert set(progress.status) == {Status.FINISHED}
