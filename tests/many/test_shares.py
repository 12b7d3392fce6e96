"""Members in shares of several places: who has whose state, whatever trains on, against one that
counts by itself."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from rawnn.common.errors import ConfigError
from rawnn.many.members import Arrays, Rows
from rawnn.many.shares import UNEVEN, SharedMembers, check_alike


class Shares(SharedMembers):
    """Each place counts the epochs of the members whose states it has; others' are stale there."""

    def __init__(self, epochs: Sequence[int], places: int, at_once: int) -> None:
        group: Any = Group(epochs)
        super().__init__(group, places, at_once)
        self.epochs = np.zeros((self._shares, len(epochs)), np.int64)
        self.columns = np.zeros((self._shares, len(epochs), 0, 3))
        self.largest = 0

    def _run(self, active: Sequence[Rows], epochs: int) -> None:
        self.largest = max(map(len, active))
        new = np.full((*self.epochs.shape, epochs, 3), np.nan)
        for share, members in enumerate(active):
            for column in range(epochs):
                self.epochs[share, members] += 1
                new[share, members, column] = self.epochs[share, members, None]
        self.columns = np.concatenate([self.columns, new], axis=2)

    def _figures(self, first: int) -> Sequence[NDArray[np.float64]]:
        return [each[:, first:] for each in self.columns]

    def _states(self, members: Sequence[Rows]) -> Sequence[Arrays]:
        return [{"epoch": self.epochs[share, own], "w": self.epochs[share, own][:, None] * 0.5}
                if len(own) else {} for share, own in enumerate(members)]

    def _load(self, members: Sequence[Rows], states: Sequence[Arrays]) -> None:
        for share, (own, state) in enumerate(zip(members, states, strict=True)):
            self.epochs[share, own] = state["epoch"]

    sharding = ""

    def close(self) -> None:
        """Nothing is held."""


class Group:
    def __init__(self, epochs: Sequence[int]) -> None:
        self.members = [SimpleNamespace(epochs=each) for each in epochs]

    def __len__(self) -> int:
        return len(self.members)


@pytest.mark.parametrize("places", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("seed", range(4))
def test_states_move_with_their_members_and_scores_are_of_whoever_trained(places: int, seed: int
                                                                          ) -> None:
    generator = np.random.default_rng([places, seed])
    count = int(generator.integers(1, 20))
    trainer = Shares(generator.integers(1, 9, count).tolist(), places, 8)
    assert trainer.at_once == len(range(0, 8, places))
    done, active = np.zeros(count, np.int64), np.arange(count, dtype=np.int32)
    scores = np.empty((count, 0))
    while len(active):
        epochs, before = int(generator.integers(1, 3)), trainer._owner.copy()
        trainer.run(active, epochs)
        had, has = (np.bincount(of[active], minlength=places) for of in (before, trainer._owner))
        assert np.sum(trainer._owner != before) == np.maximum(had - has, 0).sum()  # none in vain
        fair = -(-len(active) // min(count, places))
        assert trainer.largest <= fair * UNEVEN
        new = np.full((count, epochs), np.nan)
        new[active] = done[active, None] + np.arange(1, epochs + 1)
        scores = np.concatenate([scores, new], axis=1)
        done[active] += epochs
        asked = np.sort(generator.permutation(count)[:generator.integers(1, count + 1)])
        state = trainer.state(asked.astype(np.int32))
        assert np.array_equal(state["epoch"], done[asked])
        assert np.array_equal(state["w"], done[asked, None] * 0.5)
        active = np.sort(generator.permutation(active)[:len(active) * 2 // 3])
    for first in (0, 1, scores.shape[1] - 1):
        found = trainer.scores(first)
        assert np.array_equal(found.train_loss, scores[:, first:], equal_nan=True)
        assert np.array_equal(found.validation_score, scores[:, first:], equal_nan=True)
    members = np.arange(count, dtype=np.int32)
    trainer.load(members, {"epoch": members + 100})
    assert np.array_equal(trainer.state(members)["epoch"], members + 100)


def test_members_that_train_as_long_are_dealt_evenly() -> None:
    """So that as many of each share train on to the end."""
    epochs = [9, 1, 9, 1, 9, 1, 9, 1]
    trainer = Shares(epochs, 2, 8)
    trainer.run(np.arange(8, dtype=np.int32), 1)
    before = trainer._owner.copy()
    trainer.run(np.array([0, 2, 4, 6], np.int32), 1)
    assert trainer.largest == 2
    assert np.array_equal(trainer._owner, before)  # nothing had to move


def test_places_of_several_kinds_are_refused() -> None:
    kind = ("GpuMembers", "1x1:128:FFF")
    check_alike({"gpu:0": kind, "gpu:1": kind})
    with pytest.raises(ConfigError, match="gpu:1 cannot train the network as gpu:0 does, 1x1:128"):
        check_alike({"gpu:0": kind, "gpu:1": cast(Any, ("GpuMembers", "1x1:64:FFF"))})
    with pytest.raises(ConfigError, match="launch by launch"):
        check_alike({"gpu:0": ("SessionMembers", ""), "gpu:1": kind})


def test_a_state_has_what_all_places_have_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One place may hold more, as the host does of what only it needs."""
    trainer = Shares([9] * 6, 3, 6)
    trainer.run(np.arange(6, dtype=np.int32), 2)
    states = trainer._states

    def with_more(members: Sequence[Rows]) -> Sequence[Arrays]:
        return [{**each, "more": each["w"]} if share != 1 and each else each
                for share, each in enumerate(states(members))]

    monkeypatch.setattr(trainer, "_states", with_more)
    found = trainer.state(np.arange(6, dtype=np.int32))
    assert {name: array.shape for name, array in found.items()} == {"epoch": (6,), "w": (6, 1)}
    assert (found["epoch"] == 2).all()
    alone = np.flatnonzero(trainer._owner == 0).astype(np.int32)
    assert sorted(trainer.state(alone)) == ["epoch", "more", "w"]


@pytest.mark.parametrize(("epochs", "places", "together", "owner"), [
    ((9, 1, 8, 2, 7, 3), 2, False, [1, 0, 0, 1, 1, 0]), ((5, 5, 5, 4), 3, False, [1, 2, 0, 0]),
    ((3,) * 5, 2, False, [0, 1, 0, 1, 0]), ((3,) * 5, 2, True, [0, 0, 0, 1, 1]),
    ((3, 3, 4), 2, True, [0, 1, 0]), ((1, 2), 4, True, [0, 1])])
def test_shares_get_members_of_like_epochs_in_turn(
        epochs: tuple[int, ...], places: int, together: bool, owner: list[int]) -> None:
    """From the fewest epochs on; in pieces where all end together."""
    made = cast(Any, Shares.__new__(Shares))
    SharedMembers.__init__(made, cast(Any, Group(epochs)), places, 7, together)
    assert made._owner.tolist() == owner
    assert made.at_once == -(-7 // places)
