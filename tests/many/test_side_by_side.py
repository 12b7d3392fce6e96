"""Groups, and members that no kernel trains, side by side on one simulated GPU: on streams of their
own, with the bits of single runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import rawnn
from rawnn.common.errors import OutOfMemory
from rawnn.common.interrupts import EpochAborted
from rawnn.cuda.device import Device
from rawnn.engine.machine import Opened, machine_of
from rawnn.engine.session import Session
from rawnn.many import loop, run, sessions
from rawnn.many.gpu import GpuMembers
from rawnn.many.members import Group, MemberTrainer, columns_from
from rawnn.many.progress import best_of
from rawnn.many.residents import MovableMembers, release_another
from rawnn.many.sessions import SIDE_BY_SIDE, SessionMembers
from rawnn.sim import Simulation
from tests.many.test_devices import OPTIONS, same
from tests.many.test_gpu_members import folded, group_of
from tests.many.test_train_many import Recorder


def opened_on(simulation: Simulation) -> Opened:
    device = Device(simulation.backend())
    return Opened(device, machine_of(device), 0.0)


def everyone(group: Group) -> Any:
    return np.arange(len(group), dtype=np.int32)


@pytest.mark.parametrize("seed", range(4))
def test_groups_are_enqueued_before_any_is_waited_for(seed: int) -> None:
    """In whatever order the simulated GPU runs what is on different streams."""
    simulation = Simulation(seed)
    opened = opened_on(simulation)
    groups = [group_of(3), group_of(2, layers=(13, 4)), folded(2, optimizer="adam")]
    trainers = [GpuMembers(group, opened) for group in groups]
    assert opened.device is not None
    streams = {trainer._device.stream.handle for trainer in trainers}
    assert len(streams | {opened.device.stream.handle}) == 4
    waits = simulation.calls.count("cuStreamSynchronize")
    for trainer, group in zip(trainers, groups, strict=True):
        trainer.run(everyone(group), 3)
    assert simulation.calls.count("cuStreamSynchronize") == waits
    scores = [trainer.scores() for trainer in trainers]
    states = [trainer.state(everyone(group))
              for trainer, group in zip(trainers, groups, strict=True)]
    for trainer in trainers:
        trainer.close()
    for group, score, state in zip(groups, scores, states, strict=True):
        one = GpuMembers(group, opened)
        one.run(everyone(group), 3)
        assert np.array_equal(one.scores().figures, score.figures, equal_nan=True)
        for name, array in one.state(everyone(group)).items():
            assert np.array_equal(array, state[name]), name
        one.close()
    opened.close()
    simulation.assert_clean()


def test_one_group_runs_while_another_is_waited_for() -> None:
    """The work of the second is not done when the first is, at least in one order."""
    left = []
    for seed in range(4):
        simulation = Simulation(seed)
        opened = opened_on(simulation)
        groups = [group_of(2), group_of(2, layers=(13, 4))]
        trainers = [GpuMembers(group, opened) for group in groups]
        for trainer, group in zip(trainers, groups, strict=True):
            trainer.run(everyone(group), 3)
        trainers[1].scores()
        left.append(simulation.scheduler.pending)
        for trainer in trainers:
            trainer.close()
        opened.close()
    assert max(left) > 0


@pytest.mark.parametrize("data", [
    {}, {"loss": "mse", "layers": (13, 9, 2)}, {"opt": "bf16"},
], ids=["labels", "targets", "rounded"])
def test_groups_share_one_copy_of_the_data(data: dict[str, Any]) -> None:
    simulation = Simulation(2)
    opened = opened_on(simulation)
    assert opened.device is not None
    memory = opened.device.memory
    first = group_of(2, 400, **data)
    other = group_of(2, 400, **{**data, "layers": (13, first.config.layers[-1])})
    second = replace(other, dataset=first.dataset, normalisations=first.normalisations)
    shared: Any = {}

    def memory_of(**named: Any) -> tuple[int, GpuMembers]:
        before = memory.current
        trainer = GpuMembers(second, opened, **named)
        return memory.current - before, trainer

    whole, alone = memory_of()
    alone.close()
    one = GpuMembers(first, opened, shared=shared)
    added, two = memory_of(shared=shared)
    assert whole - added >= first.dataset.train_images.nbytes + first.dataset.test_images.nbytes
    both = [one, two]
    for trainer in both:
        trainer.run(everyone(first), 2)
    for trainer, group in zip(both, (first, second), strict=True):
        alone = GpuMembers(group, opened)
        alone.run(everyone(group), 2)
        assert np.array_equal(alone.scores().figures, trainer.scores().figures, equal_nan=True)
        for name, array in alone.state(everyone(group)).items():
            assert np.array_equal(array, trainer.state(everyone(group))[name]), name
        alone.close()
        trainer.close()
    opened.close()
    simulation.assert_clean()


@pytest.mark.parametrize("more", [
    {}, {"halving": 2, "min_epochs": 1}, {"patience": 1}, {"folds": [(range(60), range(60, 96)),
                                                                 (range(40), range(60, 96))]},
], ids=["plain", "halving", "patience", "folds"])
def test_groups_that_do_not_fit_together_train_in_parts(more: dict[str, Any],
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU with memory for all groups, for two of them, and for one."""
    options = {**OPTIONS, "layers": [(6, 64, 3), (6, 63, 3), (6, 62, 3)], "lr": [0.1, 0.02],
               "optimizer": "adam", "epochs": 5, "device": "sim", "shuffle": True, **more}
    plenty = rawnn.train_many(**options)
    size = plenty_of(options)
    for memory, said in ((size, False), (size * 2 // 3, True), (size // 2, True)):
        simulation = Simulation(2, memory=memory)
        monkeypatch.setattr(run, "open_device", lambda *names, of=simulation: opened_on(of))
        many = rawnn.train_many(**options)
        assert any("at once: they train one after the other" in n for n in many.notes) == said
        assert same(plenty, many)
        assert np.array_equal(plenty.scores(), many.scores(), equal_nan=True)
        for a, b in zip(plenty, many, strict=True):
            assert all(np.array_equal(a.checkpoint.state[n], b.checkpoint.state[n])
                       for n in a.checkpoint.state)
        simulation.assert_clean()


def plenty_of(options: dict[str, Any]) -> int:
    """Bytes that all groups of a run take together."""
    found = []

    class Look(rawnn.Listener):
        def started(self, session: Any) -> None:
            found.append(session.opened.device.memory.current)

    rawnn.train_many(**{**options, "epochs": 2}, listener=Look())
    return int(found[0] * 1.02)


def test_a_group_that_does_not_fit_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    size = plenty_of({**OPTIONS, "device": "sim"})
    simulation = Simulation(1, memory=size // 2)
    monkeypatch.setattr(run, "open_device", lambda *names: opened_on(simulation))
    with pytest.raises(OutOfMemory):
        rawnn.train_many(**OPTIONS, device="sim")
    simulation.assert_clean()


def test_members_move_to_the_host_and_back() -> None:
    simulation = Simulation(1)
    with opened_on(simulation) as opened:
        group, other = group_of(3, 27, epochs=4), group_of(2, 27, layers=(13, 4), epochs=4)
        residents: list[Any] = []
        one, two = (MovableMembers(len(each), lambda sharding, of=each: GpuMembers(
            of, opened, sharding=sharding), residents, print) for each in (group, other))
        alone = GpuMembers(group, opened, sharding=one.sharding)
        for trainer in (one, alone):
            trainer.run(everyone(group), 1)
        assert one.release()
        assert not one.release()
        assert np.array_equal(one.state(np.array([2, 0], np.int32))["fc1.weight"],
                              alone.state(np.array([2, 0], np.int32))["fc1.weight"])
        assert one._trainer is None
        for trainer in (one, alone):
            trainer.run(np.array([0, 2], np.int32), 2)
        assert one._trainer is None  # nothing is waited for yet
        for first in range(5):
            assert np.array_equal(one.scores(first).figures, alone.scores(first).figures,
                                  equal_nan=True)
        assert release_another(residents, two)
        assert one._trainer is None
        state = alone.state(np.array([1], np.int32))
        for trainer in (one, alone):
            trainer.load(np.array([2], np.int32), state)
            trainer.run(np.array([1, 2], np.int32), 1)
        for name, array in alone.state(everyone(group)).items():
            assert np.array_equal(one.state(everyone(group))[name], array), name
        for each in (one, two, alone):
            each.close()
    simulation.assert_clean()


def test_lines_of_several_groups_are_whole() -> None:
    recorder = Recorder()
    many = rawnn.train_many(**{**OPTIONS, "layers": [(6, 12, 3), (6, 3)], "epochs": [2, 3]},
                            device="sim", listener=recorder)
    assert [(r.epoch, r.members, r.total) for r in recorder.reports] == [
        (1, 4, 4), (2, 4, 4), (3, 2, 4)]
    for report in recorder.reports:
        values = many.scores()[:, report.epoch - 1]
        assert report.best == np.nanmin(values)
        assert report.best_member == np.nanargmin(values)


# -- what no kernel trains -------------------------------------------------------------------------


def check(group: Group, trainer: MemberTrainer, epochs: int, device: str = "sim") -> None:
    """Members are what single runs of their configurations come to."""
    state, scores = trainer.state(everyone(group)), trainer.scores()
    for member in range(len(group)):
        with Session(replace(group.members[member], device=device),
                     data=group.dataset_of(int(group.fold[member]))) as session:
            found = session.run()
            single = session.runner.state()
        assert state["epoch"][member] == epochs
        for name, value in single.items():
            assert np.array_equal(state[name][member], value), name
        assert list(scores.train_loss[member]) == [r.train_loss for r in found.history]
        assert list(scores.validation_loss[member]) == [r.test_loss for r in found.history]


@pytest.mark.parametrize(("count", "options"), [
    (6, {"opt": "preload,fuse", "optimizer": "adam"}),
    (3, {"opt": "preload,graphs=epoch", "partial": False, "optimizer": "adam"}),
])
def test_sessions_train_side_by_side(count: int, options: dict[str, Any]) -> None:
    simulation = Simulation(1)
    opened = opened_on(simulation)
    group = group_of(count, 27, **options)
    trainer = SessionMembers(group, opened, lambda message: None)
    launched = len(simulation.calls)
    trainer.run(everyone(group), 1)
    assert len(simulation.calls) == launched  # nothing yet: other groups come first
    trainer.run(everyone(group), 2)
    check(group, trainer, 3)
    found = trainer._sessions._idle.values()
    assert trainer._sessions._at_once == min(SIDE_BY_SIDE, count)
    assert len(found) == count
    assert simulation.calls.count("cuStreamCreate") == 1 + len(found)
    assert len({each.session.device.stream.handle for each in found if each.session.device}) \
        == len(found)
    trainer.close()
    opened.close()
    simulation.assert_clean()


def memory_of_session(group: Group) -> int:
    """Bytes that a session of the first member takes."""
    with opened_on(Simulation(1)) as opened:
        assert opened.device is not None
        before = opened.device.free_memory()
        with Session(group.members[0], data=group.dataset, opened=opened):
            return before - opened.device.free_memory()


def test_as_many_train_as_fit_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the first session says too little of the others."""
    group = group_of(5, 27, opt="preload,fuse")
    size = memory_of_session(group)
    for memory, used, expected in ((int(2.5 * size), 0.9, 2), (int(3.5 * size), 99.0, 3)):
        monkeypatch.setattr(sessions, "USED_MEMORY", used)
        simulation = Simulation(1, memory=memory)
        with opened_on(simulation) as opened:
            trainer = SessionMembers(group, opened, lambda message: None)
            trainer.run(everyone(group), 3)
            check(group, trainer, 3)
            assert len(trainer._sessions._idle) == expected
            trainer.close()
        simulation.assert_clean()
    simulation = Simulation(1, memory=size // 2)
    with opened_on(simulation) as opened:
        trainer = SessionMembers(group, opened, lambda message: None)
        trainer.run(everyone(group), 3)
        with pytest.raises(OutOfMemory):
            trainer.scores()
        trainer.close()


def test_groups_close_their_sessions_for_one_that_needs_the_memory() -> None:
    groups = [group_of(3, 27, opt="preload,fuse"),
              group_of(2, 27, opt="preload,fuse", layers=(13, 1500, 4))]
    small, large = map(memory_of_session, groups)
    simulation = Simulation(1, memory=large + small // 2)
    with opened_on(simulation) as opened:
        residents: list[Any] = []
        trainers = [SessionMembers(group, opened, lambda message: None, residents)
                    for group in groups]
        for _ in range(3):
            for trainer, group in zip(trainers, groups, strict=True):
                trainer.run(everyone(group), 1)
            for trainer in trainers:
                trainer.scores()
        for trainer, group in zip(trainers, groups, strict=True):
            check(group, trainer, 3)
            trainer.close()
    simulation.assert_clean()


def test_what_aborts_an_epoch_leaves_whole_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(1)
    group = group_of(3, 27, opt="preload,fuse")
    with opened_on(simulation) as opened:
        trainer = SessionMembers(group, opened, lambda message: None)
        trainer.run(everyone(group), 1)
        before = trainer.state(everyone(group))
        trainer.run(everyone(group), 2)

        def abort(*arguments: Any) -> Any:
            raise EpochAborted

        monkeypatch.setattr(sessions, "_evaluation", abort)
        with pytest.raises(EpochAborted):
            trainer.scores()
        monkeypatch.undo()
        assert np.isnan(trainer.scores(1).train_loss).all()
        for name, array in trainer.state(everyone(group)).items():
            assert np.array_equal(array, before[name]), name
        trainer.run(everyone(group), 2)
        state = trainer.state(everyone(group))
        trainer.close()
        whole = SessionMembers(group, opened, lambda message: None)
        whole.run(everyone(group), 3)
        for name, array in whole.state(everyone(group)).items():
            assert np.array_equal(array, state[name]), name
        whole.close()
    simulation.assert_clean()


@pytest.mark.usefixtures("unsupported")
def test_kernels_and_sessions_decide_alike_whatever_runs_at_once() -> None:
    options = {**OPTIONS, "layers": [(6, 12, 3), (6, 3)], "seed": range(3), "opt": "preload,fuse",
               "epochs": 4, "patience": 1, "lr": 0.5}
    many = rawnn.train_many(**options, device="sim")
    for member in many:
        config = replace(member.config, patience=1)
        single = rawnn.train(config, data=member.dataset)
        assert member.epochs == len(single.history)
        assert all(np.array_equal(single.parameters[n], member.model.parameters[n])
                   for n in single.parameters)
    assert same(many, rawnn.train_many(**options, device="sim"))


# -- columns ---------------------------------------------------------------------------------------


def test_columns_from() -> None:
    whole = np.arange(2 * 9 * 3).reshape(2, 9, 3)
    blocks = [whole[:, :0], whole[:, :4], whole[:, 4:4], whole[:, 4:5], whole[:, 5:]]
    for first in range(11):
        assert np.array_equal(columns_from(blocks, first), whole[:, first:])


@pytest.mark.parametrize("epochs", [3, 2])
def test_scores_read_in_parts_are_scores_read_at_once(epochs: int) -> None:
    """Also where there are more epochs than the device has columns."""
    simulation = Simulation(1)
    with opened_on(simulation) as opened:
        group = group_of(4, 27, epochs=epochs)
        calls = [[0, 1, 2, 3], [0, 2], [1], [3, 1][::-1][:epochs - 1]]
        found = []
        for is_read in (False, True):
            trainer = GpuMembers(group, opened)
            parts = []
            for number, members in enumerate(calls):
                trainer.run(np.array(members, np.int32), 1)
                if is_read:
                    parts.append(trainer.scores(number).figures)
            whole = trainer.scores().figures
            found.append(whole)
            if is_read:
                assert np.array_equal(np.concatenate(parts, axis=1), whole, equal_nan=True)
            assert np.isfinite(whole[:, :, 0]).sum() == sum(map(len, calls))
            trainer.close()
        assert np.array_equal(*found, equal_nan=True)


def test_the_loop_asks_for_new_columns_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "CHUNK_SECONDS", 0.0)  # an epoch at a time
    read: list[int] = []
    original = GpuMembers._read_scores

    def reading(self: GpuMembers) -> None:
        read.append(self._epochs - self._read)
        original(self)

    monkeypatch.setattr(GpuMembers, "_read_scores", reading)
    asked: list[tuple[int, ...]] = []
    scores = GpuMembers.scores

    def noted(self: GpuMembers, first: int = 0) -> Any:
        found = scores(self, first)
        asked.append(found.train_loss.shape)
        return found

    monkeypatch.setattr(GpuMembers, "scores", noted)
    rawnn.train_many(**{**OPTIONS, "epochs": 6}, lr=[0.1, 0.02], device="sim")
    assert read == [1] * 6
    assert asked == [(2, 1)] * 6


def test_the_best_of_each_epoch() -> None:
    nan, inf = np.nan, np.inf
    values = np.array([[nan, 2.0, nan, inf, -inf], [3.0, 1.0, nan, nan, nan],
                       [3.0, 1.0, nan, inf, -inf]])
    assert best_of(values, "test_loss").tolist() == [1, 1, -1, 0, 0]
    assert best_of(values, "test_accuracy").tolist() == [1, 0, -1, 0, 0]
    assert best_of(values[:, 3:] * -1, "test_accuracy").tolist() == [0, 0]
    assert best_of(np.array([[nan], [inf]]), "test_loss").tolist() == [1]
    assert best_of(np.array([[nan], [-inf]]), "test_accuracy").tolist() == [1]
