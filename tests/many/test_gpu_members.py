"""Members on the simulated GPU: bit for bit what single runs come to, in any number, order and
company, with validation, early stops, states and all kinds of members. What both trainers do is
tested with each; what only launches do, in test_launches.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rawnn.common.errors import ConfigError
from rawnn.cuda.device import Device
from rawnn.data import Dataset
from rawnn.data.normalise import Normalisation, TargetNormalisation
from rawnn.engine.config import Config
from rawnn.engine.machine import Opened, machine_of
from rawnn.engine.training import Session
from rawnn.many.gpu import GpuMembers
from rawnn.many.launches import LaunchMembers
from rawnn.many.member_plans import schedule_of, table_of
from rawnn.many.members import Group, MemberTrainer
from rawnn.opts.launch_sharding import LAUNCHES
from rawnn.persistent.problem import Unsupported
from rawnn.plan.ops.members import member_words
from rawnn.sim import Simulation
from tests.engine import dataset_for

OPTIONS: dict[str, Any] = {
    "layers": (13, 9, 4), "batch": 8, "partial": True, "shuffle": True, "epochs": 3,
    "device": "sim", "opt": "none", "schedule": "cosine"}


@pytest.fixture
def opened() -> Any:
    simulation = Simulation(1)
    device = Device(simulation.backend())
    yield Opened(device, machine_of(device), 0.0)
    device.close()
    simulation.assert_clean()


VARIED: dict[str, tuple[float, ...]] = {
    "weight_decay": (0.01, 0.0, 0.3), "momentum": (0.9, 0.5), "beta1": (0.9, 0.6, 0.8),
    "beta2": (0.999, 0.9)}
"""What members differ in, if the options of all name it; the first member has its first value."""


def members_of(count: int, **options: Any) -> tuple[Config, ...]:
    return tuple(Config(**{
        **OPTIONS, "seed": 5 * i, "lr": 0.02 * (1 + i % 4), **options,
        **{name: own[i % len(own)] for name, own in VARIED.items() if name in options}})
        for i in range(count))


def group_of(count: int, train: int = 43, **options: Any) -> Group:
    configs = members_of(count, **options)
    data = dataset_for(configs[0].network(), train, 19)
    return Group(configs[0], data, configs, (), (), np.zeros(count, np.int32),
                 (data.normalisation,), (None,))


def folded(count: int, folds: int = 2, **options: Any) -> Group:
    """Members on lists of rows, each with its own normalisation, scored on the other rows."""
    group = group_of(count, 50, **options)
    generator = np.random.default_rng(1)
    rows = tuple(generator.permutation(50)[:37].astype(np.int32) for _ in range(folds))
    held = tuple(np.setdiff1d(np.arange(50), each).astype(np.int32) for each in rows)
    images, targets = group.dataset.train_images, group.dataset.train_targets
    learned = tuple(Normalisation.of("learned", images[each]) for each in rows)
    if targets is None:
        return replace(group, rows=rows, held_out=held, normalisations=learned,
                       fold=np.arange(count, dtype=np.int32) % folds,
                       target_normalisations=(None,) * folds)
    exact = targets.astype(np.float64)
    return replace(group, rows=rows, held_out=held, normalisations=learned, exact_targets=exact,
                   fold=np.arange(count, dtype=np.int32) % folds, target_normalisations=tuple(
                       TargetNormalisation.of("learned", exact[each]) for each in rows))


def check(trainer: MemberTrainer, group: Group, member: int, epochs: int) -> None:
    """A member is what a single run of its config on its data comes to: with the sharding
    LAUNCHES if its trainer has that."""
    data: Dataset = group.dataset_of(int(group.fold[member]))
    config = replace(group.members[member], device="sim")
    if trainer.sharding == LAUNCHES:
        config = replace(config, sharding=LAUNCHES)
    with Session(config, data=data) as session:
        found = session.run()
        single = session.runner.state()
    state = trainer.state(np.array([member], np.int32))
    assert state["epoch"][0] == epochs
    for name, value in single.items():
        assert np.array_equal(state[name][0], value), name
    scores = trainer.scores()
    assert list(scores.train_loss[member, :epochs]) == [r.train_loss for r in found.history]
    for epoch, report in enumerate(found.history):
        np.testing.assert_allclose(scores.validation_loss[member, epoch], report.test_loss,
                                   rtol=1e-5)
        np.testing.assert_equal(scores.validation_score[member, epoch], report.test_accuracy)


KINDS: list[dict[str, Any]] = [
    {"optimizer": "adam", "weight_decay": 0.01, "beta1": 0.9, "beta2": 0.999},
    {"momentum": 0.9, "weight_decay": 0.01, "schedule": "constant"},
    {"loss": "mse", "schedule": "warmup:1,step:1:0.5"}, {"shuffle": False, "partial": False},
    {"layers": (13, 4), "loss": "bce", "schedule": "constant"},
]
LAUNCHED_KINDS: list[dict[str, Any]] = [
    {"layers": (13, 4)}, {"opt": "tf32", "activation": "gelu", "bias": False},
    {"opt": "bf16,sr", "optimizer": "adam"}, {"opt": "fp16"}, {"opt": "fp8"},
]
"""More of them, which launches train."""
Trainer = type[GpuMembers]
both_trainers = pytest.mark.parametrize("trainer_class", [GpuMembers, LaunchMembers])


@pytest.mark.parametrize(("trainer_class", "options"), [
    *((each, kind) for each in (GpuMembers, LaunchMembers) for kind in KINDS),
    *((LaunchMembers, kind) for kind in LAUNCHED_KINDS)],
    ids=lambda each: getattr(each, "__name__", str(each)))
def test_a_member_is_a_single_run(opened: Opened, trainer_class: Trainer,
                                  options: dict[str, Any]) -> None:
    group = group_of(5, **options)
    trainer = trainer_class(group, opened)
    assert (trainer.sharding == LAUNCHES) == (trainer_class is LaunchMembers)
    trainer.run(np.arange(5, dtype=np.int32), 2)
    trainer.run(np.array([1, 4], np.int32), 1)
    for member in (1, 4):
        check(trainer, group, member, 3)
    scores = trainer.scores()
    assert scores.train_loss.shape == scores.validation_loss.shape == (5, 3)
    assert np.isnan(scores.train_loss[[0, 2, 3], 2]).all()
    assert np.isfinite(scores.train_loss[:, :2]).all()
    trainer.close()


@pytest.mark.parametrize("options", [
    {"optimizer": "adam"}, {"loss": "mse", "shuffle": False, "layers": (13, 9, 1)}], ids=str)
@both_trainers
def test_members_of_folds(opened: Opened, trainer_class: Trainer,
                          options: dict[str, Any]) -> None:
    group = folded(4, **options)
    trainer = trainer_class(group, opened)
    trainer.run(np.arange(4, dtype=np.int32), 3)
    for member in (0, 3):
        check(trainer, group, member, 3)
    trainer.close()


@pytest.mark.parametrize("schedule", ["cosine", "warmup:1,cosine:0.001"])
def test_members_of_fewer_epochs_end_their_schedules_earlier(opened: Opened,
                                                             schedule: str) -> None:
    group = group_of(3, schedule=schedule)
    configs = tuple(replace(config, epochs=epochs)
                    for config, epochs in zip(group.members, (3, 1, 2), strict=True))
    group = replace(group, config=replace(group.config, epochs=3), members=configs)
    trainer = GpuMembers(group, opened)
    for active in ([0, 1, 2], [0, 2], [0]):
        trainer.run(np.array(active, np.int32), 1)
    for member, epochs in enumerate((3, 1, 2)):
        check(trainer, group, member, epochs)
    trainer.close()


@pytest.mark.parametrize(("trainer_class", "count"), [
    *((GpuMembers, count) for count in (1, 2, 131, 132, 133)),
    *((LaunchMembers, count) for count in (1, 2, 133))])
def test_the_number_of_members_changes_nothing(opened: Opened, trainer_class: Trainer,
                                               count: int) -> None:
    group = group_of(count, 11, epochs=1, layers=(5, 3))
    trainer = trainer_class(group, opened)
    trainer.run(np.arange(count, dtype=np.int32), 1)
    for member in {0, count // 2, count - 1}:
        check(trainer, group, member, 1)
    trainer.close()


@pytest.mark.parametrize(("trainer_class", "opt"), [(GpuMembers, "none"), (LaunchMembers, "bf16")])
def test_members_go_on_from_a_state(opened: Opened, trainer_class: Trainer, opt: str) -> None:
    group = group_of(4, optimizer="adam", opt=opt)
    whole, first, second = (trainer_class(group, opened) for _ in range(3))
    every = np.arange(4, dtype=np.int32)
    whole.run(every, 3)
    first.run(every, 2)
    second.load(np.array([3, 1], np.int32), first.state(np.array([3, 1], np.int32)))
    second.run(np.array([1, 3], np.int32), 1)
    wanted, found = (t.state(np.array([1, 3], np.int32)) for t in (whole, second))
    for name, value in wanted.items():
        assert np.array_equal(found[name], value), name
    assert np.array_equal(second.scores().train_loss[[1, 3], 0],
                          whole.scores().train_loss[[1, 3], 2])
    for trainer in (whole, first, second):
        trainer.close()


def test_scores_of_more_epochs_than_columns(opened: Opened) -> None:
    """Members of one epoch each take turns, so that there are more columns than their epochs."""
    group = group_of(3, epochs=1)
    trainer = GpuMembers(group, opened)
    for member in range(3):
        trainer.run(np.array([member], np.int32), 1)
    trainer.run(np.array([], np.int32), 1)
    scores = trainer.scores()
    assert np.array_equal(np.isfinite(scores.train_loss), np.eye(3, 4, dtype=bool))
    check_first = trainer.state(np.arange(3))
    assert list(check_first["epoch"]) == [1, 1, 1]
    trainer.close()


@pytest.mark.parametrize("sharding", ["1x1:64:FFF", "1x1:64x4:FFF", "1x1:32x1:FFF:2",
                                      "2x1:64:FSF:2"])
def test_a_named_sharding_is_taken_and_said_and_trains_one_network(opened: Opened,
                                                                   sharding: str) -> None:
    group = group_of(2, optimizer="adam", epochs=1)
    trainer = GpuMembers(group, opened, sharding=sharding)
    assert trainer.sharding == sharding
    trainer.run(np.arange(2, dtype=np.int32), 1)
    config = replace(group.members[1], sharding=sharding, device="sim")
    with Session(config, data=group.dataset) as session:
        session.run()
        single = session.runner.state()
    state = trainer.state(np.array([1], np.int32))
    for name, value in single.items():
        assert np.array_equal(state[name][0], value), name
    trainer.close()


@pytest.mark.parametrize(("sharding", "reason"), [
    ("1x2:64x2:FFF", "has one group"), ("2x1:64x2:FSF", "one each"),
    ("1x1:512x8:FFF", "2048 threads at most"),
])
def test_blocks_that_cannot_share_a_multiprocessor_are_refused(opened: Opened, sharding: str,
                                                               reason: str) -> None:
    with pytest.raises(ConfigError, match=reason), Session(
            Config(**OPTIONS, sharding=sharding), data=group_of(1).dataset):
        raise AssertionError(sharding)


def test_what_its_kernels_do_not_do_is_refused(opened: Opened) -> None:
    with pytest.raises(Unsupported, match="more examples than there are"):
        GpuMembers(group_of(2, 20, batch=21), opened)
    with pytest.raises(Unsupported, match="8-bit"):
        GpuMembers(group_of(2, opt="fp8"), opened)
    with pytest.raises(Unsupported, match="toggle"):
        GpuMembers(group_of(2, opt="batch=4"), opened)


def test_what_fits_no_block_is_refused(opened: Opened) -> None:
    with pytest.raises(Unsupported, match="fits neither a block nor a cluster"):
        GpuMembers(group_of(2, layers=(2000, 2000, 2000, 4)), opened)


@pytest.mark.parametrize("options", [
    {"optimizer": "adam", "beta1": 0.8}, {"momentum": 0.9, "schedule": "warmup:1,step:1:0.5"}],
    ids=str)
def test_the_table_of_members_has_the_words_of_each(options: dict[str, Any]) -> None:
    group = folded(7, **options)
    group = replace(group, members=tuple(
        replace(config, seed=(1 << 40) * (i % 3) + i, epochs=2 + i % 2, lr=[0.1, 0.02, 0.3][i // 3])
        for i, config in enumerate(group.members)))
    optimizer = group.config.recipe().optimizer
    names = tuple(name for name, value in optimizer.attributes().items()
                  if not isinstance(value, bool))
    for i, row in enumerate(table_of(group, names)):
        config = group.members[i]
        wanted = member_words(config.seed, int(group.fold[i]), schedule_of(group, i), [
            float(config.recipe().optimizer.attributes()[name]) for name in names])
        assert row.tolist() == wanted.tolist()


def uneven(count: int, sizes: tuple[int, ...], scored: tuple[int, ...] = (),
           **options: Any) -> Group:
    """Members on lists of rows of different lengths, each scored on so many of the other rows."""
    group = group_of(count, 50, **options)
    generator = np.random.default_rng(2)
    rows = tuple(generator.permutation(50)[:size].astype(np.int32) for size in sizes)
    held = tuple(np.setdiff1d(np.arange(50), each).astype(np.int32)[:most]
                 for each, most in zip(rows, scored or (50,) * len(sizes), strict=True))
    lists = len(sizes)
    return replace(group, rows=rows, held_out=held, normalisations=group.normalisations * lists,
                   target_normalisations=(None,) * lists,
                   fold=np.arange(count, dtype=np.int32) % lists)


@pytest.mark.parametrize("options", [
    {"optimizer": "adam"}, {"partial": False, "shuffle": False}, {"sharding": "1x1:64x2:FFF:2"},
    {"loss": "mse", "schedule": "step:1:0.5", "opt": "bf16"}], ids=str)
def test_lists_of_different_lengths_train_in_one_launch(opened: Opened,
                                                        options: dict[str, Any]) -> None:
    group = uneven(5, (37, 40, 23), **options)
    trainer = GpuMembers(group, opened)
    trainer.run(np.arange(5, dtype=np.int32), 2)
    trainer.run(np.array([0, 1, 2, 4], np.int32), 1)
    for member in (0, 1, 2, 4):
        check(trainer, group, member, 3)
    trainer.close()


def test_lists_that_are_scored_on_rows_of_different_numbers(opened: Opened) -> None:
    group = uneven(4, (33, 33, 33, 33), (17, 3, 16, 9))
    trainer = GpuMembers(group, opened)
    trainer.run(np.arange(4, dtype=np.int32), 3)
    for member in range(4):
        check(trainer, group, member, 3)
    trainer.close()
