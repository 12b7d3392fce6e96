"""Members on the host: bit for bit single runs, whatever trains them and in whatever pieces."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import rawnn
from rawnn.common.errors import OutOfMemory, RawnnError
from rawnn.engine.config import Config
from rawnn.engine.machine import open_device
from rawnn.many import host
from rawnn.many.folds import folds_of
from rawnn.many.grouping import load, members_of
from rawnn.many.host import HostMembers, core_count
from rawnn.many.members import Group
from rawnn.many.sessions import (
    Job,
    MemberSessions,
    MemberState,
    SessionMembers,
    _session_bytes,
)

RNG = np.random.default_rng(3)
X = RNG.normal(size=(90, 5)).astype(np.float32) * 3 + 1
Y = (X[:, 0] + X[:, 1] > 2).astype(np.int64)
V = RNG.normal(size=(90, 2)).astype(np.float64) * (1e3, 2.0) + 1e5
OPTIONS: dict[str, Any] = {"layers": (5, 9, 2), "epochs": 4, "batch": 16, "shuffle": True,
                           "device": "host", "partial": True, "optimizer": "adam"}


def silent(message: str) -> None:
    pass


def group_of(configs: list[Config], data: Any = (X, Y), folds: Any = None, rows: Any = None,
             validation: Any = None) -> Group:
    kind = "folds" if folds is not None else "rows" if rows is not None else ""
    found, exact = load(data, configs[0], validation, None, kind, silent)
    lists = folds_of(folds, 1, rows, found, 0)
    members = members_of(configs, lists, found, None, exact)
    assert len(members.groups) == 1
    return members.groups[0]


def check_member(group: Group, trainer: SessionMembers, member: int, single: rawnn.Result) -> None:
    state = trainer.state(np.array([member], np.int32))
    for name, array in single.parameters.items():
        assert np.array_equal(state[name][0], array), name
    scores = trainer.scores()
    for row, report in enumerate(single.history):
        assert scores.train_loss[member, row] == report.train_loss
        assert scores.validation_loss[member, row] == report.test_loss
        assert np.array_equal(scores.validation_score[member, row], report.test_accuracy,
                              equal_nan=True)


@pytest.mark.parametrize("workers", [0, 2])
def test_members_are_single_runs_bit_for_bit(workers: int) -> None:
    configs = [Config(**OPTIONS, seed=seed, lr=lr) for seed in (0, 5) for lr in (0.01, 0.003)]
    group = group_of(configs)
    trainer = HostMembers(group, open_device("host", silent), silent, workers)
    everyone = np.arange(4, dtype=np.int32)
    trainer.run(everyone, 1)
    trainer.run(np.array([1, 3], np.int32), 1)  # two go on alone
    trainer.run(np.array([1, 3], np.int32), 2)
    try:
        for member in (1, 3):
            single = rawnn.train(configs[member], data=group.dataset)
            state = trainer.state(np.array([member], np.int32))
            assert state["epoch"] == [4]
            check_member(group, trainer, member, single)
        scores = trainer.scores()
        assert np.isnan(scores.train_loss[[0, 2], 1:]).all()
        assert np.isfinite(scores.train_loss[:, 0]).all()
    finally:
        trainer.close()


def test_an_open_session_of_an_older_state_is_not_gone_on_with() -> None:
    """A worker may get a member back that another has trained meanwhile."""
    group, opened = group_of([Config(**OPTIONS, lr=0.02)]), open_device("host", silent)
    first, second = MemberSessions(group, opened), MemberSessions(group, opened)
    _, one = first.train(0, MemberState(), 1)
    _, two = second.train(0, one, 1)
    figures, three = first.train(0, two, 1)
    wanted, again = second.train(0, two, 1)
    assert np.array_equal(figures, wanted)
    assert three.epoch == again.epoch == 3
    assert all(np.array_equal(array, again.arrays[name]) for name, array in three.arrays.items())
    first.close()
    second.close()


def test_a_state_loaded_elsewhere_goes_on_bit_for_bit() -> None:
    configs = [Config(**{**OPTIONS, "schedule": "cosine"}, seed=seed, lr=0.02) for seed in range(3)]
    group, opened = group_of(configs), open_device("host", silent)
    everyone = np.arange(3, dtype=np.int32)
    first, second = (HostMembers(group, opened, silent, 0) for _ in range(2))
    first.run(everyone, 2)
    second.load(everyone, first.state(everyone))
    second.run(everyone, 2)
    first.run(everyone, 2)
    after, again = first.state(everyone), second.state(everyone)
    assert after.keys() == again.keys() > {"epoch", "clock", "fc1.weight.m"}
    for name, array in after.items():
        assert np.array_equal(array, again[name]), name
    first.close()
    second.close()


def check_folds(config: Config, x: Any, y: Any) -> None:
    """Each of three folds is the single run on its rows."""
    group = group_of([config], (x, y), folds=3)
    trainer = SessionMembers(group, open_device("host", silent), silent)
    trainer.run(np.arange(3, dtype=np.int32), 4)
    for fold in range(3):
        rows, held = group.rows[fold], group.held_out[fold]
        single = rawnn.train(config, data=(x[rows], y[rows]), validation=(x[held], y[held]))
        check_member(group, trainer, fold, single)
        check_member(group, trainer, fold, rawnn.train(config, data=group.dataset_of(fold)))
    trainer.close()


@pytest.mark.parametrize("more", [
    {}, {"normalise": "learned"}, {"optimizer": "sgd", "momentum": 0.9},
    {"loss": "mse", "normalise_targets": "learned", "normalise": "learned"},
])
def test_folds_are_single_runs_on_their_rows(more: dict[str, Any]) -> None:
    config = Config(**{**OPTIONS, **more}, lr=0.01)
    y = V if config.loss == "mse" else Y
    check_folds(config, X, y)


@pytest.mark.parametrize("most", [1, 255])
def test_bytes_of_folds_are_scaled_as_those_of_a_single_run(most: int) -> None:
    x = np.random.default_rng(1).integers(0, most + 1, (90, 5), dtype=np.uint8)
    check_folds(Config(**OPTIONS, normalise="learned", lr=0.01), x, Y)


@pytest.mark.parametrize(("text", "count"), [("1", 1), ("7", 7), ("0", 0), ("-1", 0), ("", 0),
                                             ("1.5", 0), ("two", 0), ("\u0663", 0)])
def test_workers_are_as_many_as_the_environment_says(monkeypatch: pytest.MonkeyPatch, text: str,
                                                     count: int) -> None:
    monkeypatch.setenv("RAWNN_WORKERS", text)
    if count:
        assert core_count() == count
        return
    with pytest.raises(RawnnError, match="give a whole number of at least 1"):
        core_count()


def test_double_inputs_are_normalised_from_their_own_rows() -> None:
    x = X.astype(np.float64) * 1e3 + 1e9  # which float32 cannot tell apart
    config = Config(**OPTIONS, normalise="learned", lr=0.01)
    rows = [np.arange(0, 90, 2), np.arange(1, 90, 2)]
    group = group_of([config], (x, Y), rows=rows, validation=(x[:20], Y[:20]))
    trainer = SessionMembers(group, open_device("host", silent), silent)
    trainer.run(np.arange(2, dtype=np.int32), 4)
    for fold in range(2):
        single = rawnn.train(config, data=(x[rows[fold]], Y[rows[fold]]),
                             validation=(x[:20], Y[:20]))
        check_member(group, trainer, fold, single)
    trainer.close()


def test_a_member_that_diverges_stops_alone() -> None:
    configs = [Config(**{**OPTIONS, "optimizer": "sgd", "layers": (5, 9, 2)}, lr=lr)
               for lr in (0.01, 1e30)]
    group = group_of(configs)
    trainer = HostMembers(group, open_device("host", silent), silent, 0)
    trainer.run(np.arange(2, dtype=np.int32), 4)
    scores = trainer.scores()
    assert np.isfinite(scores.train_loss[0]).all()
    assert np.isnan(scores.train_loss[1, -1])
    check_member(group, trainer, 0, rawnn.train(configs[0], data=group.dataset))
    trainer.close()


class FakeGpu:
    """A GPU whose free memory is read in turns, and whose streams are counted."""

    def __init__(self, free: Sequence[int]) -> None:
        self.free, self.streams, self.closed = list(free), 0, 0

    def free_memory(self) -> int:
        return self.free.pop(0) if len(self.free) > 1 else self.free[0]

    def with_own_stream(self) -> FakeGpu:
        self.streams += 1
        return self

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> Callable[..., MemberSessions]:
    """Of members on a GPU; a session may be closed once."""
    @dataclass
    class Opened:
        device: FakeGpu

    class Held:
        sharding = ""

        def __init__(self, config: Config, opened: Any, data: Any) -> None:
            self.is_open = True

        def __exit__(self, *exception: object) -> None:
            assert self.is_open
            self.is_open = False

    monkeypatch.setattr("rawnn.many.sessions.Session", Held)

    def make(count: int, *free: int, residents: Any = None) -> MemberSessions:
        group = group_of([Config(**OPTIONS, seed=seed) for seed in range(count)])
        return MemberSessions(group, Opened(FakeGpu(free)),  # type: ignore[arg-type]
                              residents=residents)
    return make


@pytest.mark.parametrize(("before", "after", "members", "at_once", "most"), [
    (1000, 900, 9, 4, 4), (200, 100, 9, 1, 1), (212, 112, 9, 2, 2), (300, 200, 9, 2, 2),
    (334, 234, 9, 3, 3), (10_000, 9_900, 9, 4, 24), (20_000, 19_900, 9, 4, 32),
    (10_000, 9_900, 2, 2, 24), (100, 100, 9, 4, 25), (100, 120, 9, 4, 30), (1000, 0, 9, 1, 1)])
def test_members_train_at_once_where_a_gpu_has_room_for_their_sessions(
        sessions: Any, before: int, after: int, members: int, at_once: int, most: int) -> None:
    """Nine tenths of what is free beside the first for others that train, a quarter for all that
    stay open."""
    made = sessions(members, before, after)
    opened = made._session(0, MemberState(), 0)
    assert (made._at_once, made._most) == (at_once, most)
    made._idle[0] = opened
    made._session(1, MemberState(), 0)
    assert (made._at_once, made._most) == (at_once, most)  # the first says it for all


@pytest.mark.parametrize(("batch", "is_double"), [(16, False), (None, False), (16, True)])
def test_a_session_is_known_by_what_it_copies_and_holds(batch: int | None, is_double: bool) -> None:
    """5-9-2: 63 weights six times over, 16 numbers an example of a batch, twice, and of 2000
    examples of the test set, and a quarter of a MiB; 72 of the rows are trained on."""
    group = group_of([Config(**{**OPTIONS, "batch": 16})])
    group = replace(group, config=replace(group.config, batch=batch), normalisations=(
        cast(Any, SimpleNamespace(is_double=is_double)),))
    assert _session_bytes(group) == 4 * (6 * 63 + 16 * (2 * (batch or 1) + 2000)) + 72 * 8 \
        + is_double * 72 * 5 * 4 + 2**18


def test_a_session_that_is_forgotten_is_closed_once_and_leaves_its_stream(sessions: Any) -> None:
    made = sessions(3, 10_000, 9_900)
    gpu = made._opened.device
    held = [made._session(member, MemberState(), member) for member in range(3)]
    made._idle.update(enumerate(held))
    for _ in range(2):
        made.forget(1)
    assert [each.session.is_open for each in held] == [True, False, True]
    made._idle[1] = made._session(1, MemberState(), 0)
    assert made._idle[1].opened is held[1].opened
    assert gpu.streams == 3
    assert made.release()
    assert not made.release()
    assert not any(each.session.is_open for each in held)
    made.close()
    assert gpu.closed == 3


def test_a_session_of_another_epoch_is_closed_and_so_is_the_one_used_longest_ago(
        sessions: Any) -> None:
    made = sessions(4, 10_000, 9_900)
    held = [made._session(member, MemberState(), member) for member in range(3)]
    made._idle.update(enumerate(held))
    assert made._session(0, MemberState(), 0) is held[0]
    made._idle[0] = replace(held[0], epoch=2)
    begun = made._session(0, MemberState(), 0)
    assert (held[0].session.is_open, begun.session.is_open) == (False, True)
    made._idle[0], made._most = begun, 3
    made._session(3, MemberState(), 0)
    assert [held[1].session.is_open, *made._idle] == [False, 2, 0]
    made._session(1, MemberState(), 1)
    assert [*made._idle] == [0]


def test_a_session_that_cannot_begin_leaves_its_stream(
        sessions: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*given: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    made = sessions(2, 10_000, 9_900)
    gpu = made._opened.device
    monkeypatch.setattr("rawnn.many.sessions.Session", refused)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            made._begin(0)
    assert not made._is_measured
    made.close()
    assert (gpu.streams, gpu.closed) == (1, 1)


@pytest.mark.parametrize("at_once", [1, 2, 3, 9])
def test_as_many_members_are_in_training_as_there_is_room_for(
        sessions: Any, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """Each gets an epoch in turn, a member that is done makes room for the next, and all are done
    once."""
    made = sessions(4, 10_000, 9_900)
    made._is_measured, made._at_once, made._most = True, at_once, 9
    running: list[int] = []
    epochs: list[tuple[int, int]] = []

    def training(session: Any, before: MemberState, count: int) -> Any:
        member = before.epoch  # as numbered below
        running.append(member)
        assert len(running) <= at_once
        for epoch in range(count):
            epochs.append((member, epoch))
            yield
        running.remove(member)
        return None, MemberState(member + 10)

    monkeypatch.setattr(made, "_training", training)
    monkeypatch.setattr(made, "_session", lambda member, before, busy: made._begin(member))
    done: list[int] = []
    made.train_all(Job((0, member), 2 + member, MemberState(member),
                       lambda figures, after: done.append(after.epoch - 10))
                   for member in range(4))
    assert sorted(done) == [0, 1, 2, 3]
    assert sorted(epochs) == [(member, e) for member in range(4) for e in range(2 + member)]
    assert epochs[:2] == ([(0, 0), (0, 1)] if at_once == 1 else [(0, 0), (1, 0)])
    assert {member: each.epoch for member, each in made._idle.items()} == {
        member: member + 10 for member in range(4)}


@pytest.mark.parametrize(("cores", "processes", "members", "seconds", "workers"), [
    (8, 1, (9, 9), 1.0, 8), (8, 3, (9, 9), 1.0, 2), (8, 1, (2, 3), 1.0, 5), (8, 16, (9,), 1.0, 0),
    (8, 8, (9,), 1.0, 0), (1, 1, (9,), 1.0, 0), (8, 1, (1,), 1.0, 0), (8, 1, (9, 9), 0.5, 0),
    (8, 1, (9, 9), 0.50001, 8)])
def test_a_core_of_this_process_has_a_worker_where_it_is_worth_it(
        monkeypatch: pytest.MonkeyPatch, cores: int, processes: int, members: tuple[int, ...],
        seconds: float, workers: int) -> None:
    """`seconds` are in units of twice what it is worth from."""
    monkeypatch.setattr(host, "core_count", lambda: cores)
    monkeypatch.setattr(host, "seconds_of", lambda group: (
        2 * seconds * host.WORTH_SECONDS / len(members)))
    pool = host.WorkerPool(None, processes)
    for count in members:
        pool.register(range(count))  # type: ignore[arg-type]
    assert pool.count == workers
    for asked in (0, 3):
        assert host.WorkerPool(asked, processes).count == asked


def test_groups_of_a_device_free_what_they_hold_for_one_another(
        sessions: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    residents: list[Any] = []
    first, second = (sessions(2, 10_000, 9_900, residents=residents) for _ in range(2))
    assert residents == [first, second]
    held = first._idle[0] = first._begin(0)
    begin = second._begin

    def full(member: int) -> Any:
        if first._idle:
            raise OutOfMemory("full")
        return begin(member)

    monkeypatch.setattr(second, "_begin", full)
    assert second._session(0, MemberState(), 0).session.is_open
    assert not held.session.is_open
    monkeypatch.setattr(second, "_begin", begin)
    first.close()
    second.close()


def test_a_worker_without_jobs_takes_the_last_of_the_longest_queue(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """The state goes along where another worker has the member's session, and only there."""
    sent: list[tuple[int, int, int, Any]] = []

    class Worker:
        def __init__(self, number: int) -> None:
            self.number, self.connection = number, self

        def send(self, job: Any) -> None:
            (_, member), epochs, epoch, arrays = job
            sent.append((self.number, member, epochs, arrays))
            assert epoch == 10 * member

        def recv(self) -> tuple[str, str]:
            return "figures", f"state of worker {self.number}"

    done: dict[int, Any] = {}
    jobs = [Job((0, n), n + 1, MemberState(10 * n, {"of": n}),  # type: ignore[dict-item]
                lambda *found, n=n: done.__setitem__(n, found)) for n in range(7)]
    pool = host.WorkerPool(3)
    pool._workers = [Worker(number) for number in range(3)]  # type: ignore[misc]
    pool.owner = {(0, 0): 0, (0, 1): 0, (0, 2): 0, (0, 3): 1}
    monkeypatch.setattr(host, "wait", lambda busy: [max(busy, key=lambda each: each.number)])
    pool._train(jobs)
    own = {n: {"of": n} for n in range(7)}
    assert sent == [(0, 0, 1, None), (1, 3, 4, None), (2, 4, 5, own[4]), (2, 6, 7, own[6]),
                    (2, 2, 3, own[2]), (2, 1, 2, own[1]), (2, 5, 6, own[5])]
    assert pool.owner == {(0, n): {0: 0, 3: 1}.get(n, 2) for n in range(7)}
    assert done == {n: ("figures", f"state of worker {pool.owner[0, n]}") for n in range(7)}


def test_groups_are_read_from_the_file_that_workers_map() -> None:
    """Their arrays lie there as they are, from multiples of 64 bytes on."""
    groups = [group_of([Config(**OPTIONS, seed=seed)], data=(X[:rows], Y[:rows]))
              for seed, rows in ((0, 61), (1, 83))]
    with tempfile.TemporaryFile() as file:
        host._write(groups, file)
        found = host.read(file.fileno())
        assert [group.members for group in found] == [group.members for group in groups]
        for own, group in zip(found, groups, strict=True):
            for name in ("train_images", "train_labels", "test_images", "test_labels"):
                array = getattr(own.dataset, name)
                assert np.array_equal(array, getattr(group.dataset, name))
                assert array.ctypes.data % 64 == 0
                assert not array.flags.writeable
