"""Members spread over several simulated GPUs: the bits of one GPU, whatever trains where."""

from __future__ import annotations

import os
import re
import signal
import threading
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest

import rawnn
from rawnn.common.errors import ConfigError, DeviceError
from rawnn.cuda.device import Device
from rawnn.engine.machine import Opened, machine_of
from rawnn.many import gpus, run, sessions
from rawnn.many.gpus import Gpu
from rawnn.many.sessions import SessionMembers
from rawnn.many.spread import SpreadMembers
from rawnn.many.trainers import trainer_of
from rawnn.sim import Fault, Faults, Simulation
from tests.many.test_devices import OPTIONS, X, Y, same
from tests.many.test_gpu_members import group_of
from tests.many.test_train_many import Recorder

FIXED: dict[str, Any] = {**OPTIONS, "sharding": "1x1:64:FFF"}


@pytest.fixture
def simulations(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The simulated GPUs that a run opens, by their names; `faults` of some may be given. All
    have to be clean at the end."""
    found: dict[str, Simulation] = {}
    faults: dict[str, Faults] = {}

    def opening(name: str, notify: Any) -> Opened:
        found[name] = Simulation(int(name.partition(":")[2]), faults.get(name))
        device = Device(found[name].backend(), 0, notify)
        return Opened(device, machine_of(device), 0.0)

    monkeypatch.setattr(gpus, "open_device", opening)
    found_and_faults: Any = (found, faults)
    yield found_and_faults
    for name, simulation in found.items():
        if name not in faults:
            simulation.assert_clean()


def test_bits_are_those_of_one_gpu(simulations: Any) -> None:
    options = {**FIXED, "lr": [0.1, 0.02, 0.3], "seed": [0, 1], "optimizer": "adam"}
    one = rawnn.train_many(**options, device="sim")
    for device in ("sim:0,1", "sim:0,1,2,3"):
        several = rawnn.train_many(**options, device=device)
        assert same(one, several)
        for figure in ("train_loss", "test_loss", "test_accuracy"):
            assert np.array_equal(one.scores(figure), several.scores(figure))
        for a, b in zip(one, several, strict=True):
            assert a.checkpoint.state.keys() == b.checkpoint.state.keys()
            assert all(np.array_equal(a.checkpoint.state[n], b.checkpoint.state[n])
                       for n in a.checkpoint.state)
        launched = [sum("cuLaunchKernel" in call for call in s.calls)
                    for s in simulations[0].values()]
        assert min(launched) == max(launched) > 0
    member = several[5]
    assert member.config.device == "sim:0"
    single = rawnn.train(member.config, data=member.dataset)
    assert all(np.array_equal(single.parameters[n], member.model.parameters[n])
               for n in single.parameters)
    assert one.environment
    assert (one.environment.device, one.environment.gpu) == (
        "sim", single.environment.gpu and {**single.environment.gpu})


def test_the_sharding_is_chosen_for_the_members_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from rawnn.many import member_plans

    asked: list[int] = []
    original = member_plans.choose_members

    def choose(problem: Any, chip: Any, members: Any, networks: int) -> Any:
        asked.append(networks)
        return original(problem, chip, members, networks)

    monkeypatch.setattr(member_plans, "choose_members", choose)
    many = rawnn.train_many(**{**OPTIONS, "epochs": 1}, seed=range(7), device="sim:0,1,2")
    assert asked == [3]
    assert many[0].sharding == many[6].sharding
    asked.clear()
    rows = [range(60), range(59), range(1, 61), range(61)]
    uneven = {**OPTIONS, "epochs": 1, "rows": rows, "validation": (X[:20], Y[:20]),
              "lr": [0.1, 0.2]}
    found = rawnn.train_many(**uneven, device="sim")
    assert len(found.stored.groups) == 1
    assert asked == [8]
    rawnn.train_many(**uneven, device="sim:0,1")
    assert asked[1:] == [4]
    few = rawnn.train_many(**uneven, device="sim:0,1,2,3")
    assert asked[2:] == [2]
    assert len({member.sharding for member in few}) == 1
    assert any("spread over 3 GPUs: sim:0, sim:1, sim:2" in note for note in many.notes)


@pytest.mark.usefixtures("simulations")
@pytest.mark.parametrize("more", [
    {"lr": np.geomspace(1e-3, 0.3, 9), "halving": 3, "epochs": 9},
    {"lr": np.geomspace(3e-3, 1, 6), "patience": 1, "epochs": 12},
    {"lr": [0.1, 0.02], "folds": 3}, {"epochs": [1, 5, 2, 4, 3, 5]},
    {"layers": [(6, 12, 3), (6, 8, 3)], "seed": [0], "sharding": None},
], ids=["halving", "patience", "folds", "epochs", "few"])
def test_halving_patience_and_folds_decide_alike(more: dict[str, Any]) -> None:
    options = {**FIXED, **more}
    one, several = (rawnn.train_many(**options, device=device) for device in ("sim", "sim:0,1,2"))
    assert same(one, several)
    assert np.array_equal(one.scores(), several.scores(), equal_nan=True)
    for name, array in one.progress.arrays().items():
        assert np.array_equal(array, several.progress.arrays()[name], equal_nan=True), name


def spread(simulated: int, count: int, **options: Any) -> tuple[list[Gpu], SpreadMembers]:
    found = [Gpu(f"sim:{number}") for number in range(simulated)]
    for gpu in found:
        gpu.open(lambda message: None).result()
    group = group_of(count, sharding="1x1:64:FFF", **options)
    return found, SpreadMembers(group, found, trainer_of, lambda message: None, count)


@pytest.mark.usefixtures("simulations")
def test_members_move_so_that_no_gpu_has_more_than_its_share() -> None:
    found, trainer = spread(3, 12)
    trainer.run(np.arange(12, dtype=np.int32), 1)
    assert np.bincount(trainer._owner).tolist() == [4, 4, 4]
    left = np.flatnonzero(trainer._owner == 1).astype(np.int32)  # all of one GPU
    before = trainer.state(left)
    trainer.run(left, 1)
    assert sorted(np.bincount(trainer._owner[left])) == [1, 1, 2]
    trainer.run(left[:3], 1)
    scores = trainer.scores()
    assert np.array_equal(np.isfinite(scores.train_loss).sum(axis=0), [12, 4, 3])
    alone_found, alone = spread(1, 12)
    for members, epochs in ((np.arange(12, dtype=np.int32), 1), (left, 1), (left[:3], 1)):
        alone.run(members, epochs)
    assert np.array_equal(alone.scores().figures, scores.figures, equal_nan=True)
    after, wanted = trainer.state(left), alone.state(left)
    for name, array in wanted.items():
        assert np.array_equal(array, after[name]), name
    assert not np.array_equal(before["fc1.weight"], after["fc1.weight"])
    for each in (trainer, alone):
        each.close()
    for gpu in (*found, *alone_found):
        gpu.close()


@pytest.mark.usefixtures("simulations")
def test_scores_of_the_last_epochs_alone() -> None:
    found, trainer = spread(2, 3)
    for _ in range(3):
        trainer.run(np.arange(3, dtype=np.int32), 1)
    assert len(trainer._running) == 6
    whole = trainer.scores().figures
    assert not trainer._running  # what is waited for is forgotten
    for first in range(4):
        assert np.array_equal(trainer.scores(first).figures, whole[:, first:])
    trainer.close()
    for gpu in found:
        gpu.close()


def test_fewer_members_than_gpus(simulations: Any) -> None:
    many = rawnn.train_many(**FIXED, lr=[0.1, 0.02], device="sim:0,1,2,3")
    assert same(many, rawnn.train_many(**FIXED, lr=[0.1, 0.02], device="sim"))
    busy = {name for name, s in simulations[0].items()
            if any("cuLaunchKernel" in call for call in s.calls)}
    assert busy == {"sim:0", "sim:1"}


def test_groups_of_one_member_are_on_different_gpus(simulations: Any) -> None:
    rawnn.train_many(**{**OPTIONS, "layers": [(6, 12, 3), (6, 8, 3), (6, 3)]}, device="sim:0,1,2")
    assert all(any("cuLaunchKernel" in call for call in s.calls)
               for s in simulations[0].values())


@pytest.mark.usefixtures("simulations")
@pytest.mark.parametrize(("first", "second"), [
    ("sim:0,1,2", "sim:0,1"), ("sim:0,1", "sim"), ("sim", "sim:0,1,2,3")])
def test_a_run_goes_on_on_another_number_of_gpus(tmp_path: Path, first: str, second: str) -> None:
    options = {**FIXED, "lr": [0.1, 0.02], "seed": [0, 1], "epochs": 5, "halving": 2,
               "min_epochs": 3}
    whole = rawnn.train_many(**options, device="sim")
    part = rawnn.train_many(**options, device=first, save=tmp_path / "a", listener=Recorder(
        lambda recorder, report: recorder.run.stop("enough") if report.epoch == 2 else None))
    assert part.progress.epoch.max() == 2
    resumed = rawnn.train_many(resume=tmp_path / "a", data=(X, Y), device=second)
    again = part.resume(device=second)
    for each in (resumed, again):
        assert same(whole, each)
        assert np.array_equal(whole.scores(), each.scores(), equal_nan=True)
    one = rawnn.train(resume=f"{tmp_path / 'a'}#0", data=(X, Y), epochs=6)
    assert one.config.device in ("sim:0", "sim")


@pytest.mark.usefixtures("unsupported", "simulations")
def test_what_no_kernel_trains_is_spread_too() -> None:
    options = {**OPTIONS, "lr": [0.1, 0.02, 0.3], "opt": "preload,fuse"}
    one, several = (rawnn.train_many(**options, device=device) for device in ("sim", "sim:0,1"))
    assert same(one, several)
    assert np.array_equal(one.scores(), several.scores())


@pytest.mark.usefixtures("unsupported", "simulations")
def test_a_second_signal_gives_up_the_epochs_in_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the threads of the GPUs, which get no signal."""
    begun, waited = [], threading.Event()
    original = sessions._evaluation

    def evaluated(*arguments: Any) -> Any:
        begun.append(threading.current_thread().name)
        if len(begun) == 8:  # the second epoch
            os.kill(os.getpid(), signal.SIGINT)
            sleep(0.3)
            os.kill(os.getpid(), signal.SIGINT)
            assert waited.wait(10)
        return original(*arguments)

    aborted = SessionMembers.abort

    def abort(self: SessionMembers) -> None:
        aborted(self)
        waited.set()

    monkeypatch.setattr(sessions, "_evaluation", evaluated)
    monkeypatch.setattr(SessionMembers, "abort", abort)
    options = {**OPTIONS, "opt": "preload,fuse"}
    many = rawnn.train_many(**{**options, "epochs": 400}, lr=[0.1, 0.02], seed=[0, 1],
                            device="sim:0,1")
    assert many.interrupted
    for member in many:
        assert 1 <= member.epochs < 400
        one = rawnn.train(replace(member.config, epochs=member.epochs), data=member.dataset)
        assert all(np.array_equal(one.parameters[n], member.model.parameters[n])
                   for n in one.parameters)


def test_a_gpu_that_fails_is_named_and_the_checkpoint_is_said(simulations: Any,
                                                             tmp_path: Path) -> None:
    faults = Faults()
    simulations[1]["sim:1"] = faults

    def fail(recorder: Recorder, report: Any) -> None:
        if report.epoch == 3:
            faults.add(Fault("CUDA_ERROR_ECC_UNCORRECTABLE", "cuStreamSynchronize", nth=None))

    options = {**FIXED, "lr": [0.1, 0.02, 0.3], "epochs": 5}
    with pytest.raises(DeviceError) as caught:
        rawnn.train_many(**options, device="sim:0,1,2", save=tmp_path / "a",
                         listener=Recorder(fail))
    said = str(caught.value)
    assert re.match(r"sim:1: cuStreamSynchronize failed with CUDA_ERROR_ECC_UNCORRECTABLE", said)
    assert said.endswith(f"{tmp_path / 'a'}/rawnn-000002.safetensors is valid: continue with "
                         f"--resume {tmp_path / 'a'}")
    assert "\n" not in said
    resumed = rawnn.train_many(resume=tmp_path / "a", data=(X, Y), device="sim:0,2")
    assert same(resumed, rawnn.train_many(**options, device="sim"))


def test_a_gpu_that_fails_at_the_start_is_named(simulations: Any) -> None:
    simulations[1]["sim:2"] = Faults(Fault("CUDA_ERROR_OUT_OF_MEMORY", "cuMemAlloc"))
    with pytest.raises(DeviceError, match=r"^sim:2: cuMemAlloc failed"):
        rawnn.train_many(**FIXED, lr=[0.1, 0.02, 0.3], device="sim:0,1,2")


@pytest.mark.parametrize(("device", "said"), [
    ("gpu:0,0", "device = 'gpu:0,0' names a GPU twice"), ("sim:1,01", "names a GPU twice"),
    ("gpu:0,", "use auto, gpu"), ("host:0,1", "use auto, gpu"), ("sim:all", "use auto, gpu"),
    ("gpu:0-3", "use auto, gpu"),
])
def test_bad_lists_of_gpus(device: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        rawnn.train_many(**OPTIONS, device=device)
    assert said in str(error.value)


@pytest.mark.parametrize("device", ["sim:0,1", "gpu:0,1,2", "gpu:all"])
def test_one_network_takes_one_gpu(device: str) -> None:
    with pytest.raises(ConfigError, match=r"only train_many \(rawnn many\) spreads networks over "
                                          r"several GPUs; python -m rawnn launch -n [23] "):
        rawnn.train(**{**OPTIONS, "device": device})


def test_all_gpus_that_the_process_sees(simulations: Any,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    original = gpus.open_device

    def opening(name: str, notify: Any) -> Opened:
        found = original(name, notify)
        assert found.device is not None
        found.device.count = 3
        return found

    monkeypatch.setattr(gpus, "open_device", opening)
    many = rawnn.train_many(**{**FIXED, "epochs": 1}, seed=range(6), device="gpu:all")
    assert sorted(simulations[0]) == ["gpu:0", "gpu:1", "gpu:2"]
    assert many[3].config.device == "gpu"


@pytest.mark.parametrize(("device", "count"), [("auto", 4), ("auto", 1), ("gpu", 4)])
def test_other_gpus_are_mentioned(device: str, count: int,
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    def opening(name: str, notify: Any, ordinal: int = 0) -> Opened:
        found = Device(Simulation(1).backend(), 0, notify)
        found.count = count
        return Opened(found, machine_of(found), 0.0)

    monkeypatch.setattr(run, "open_device", opening)
    many = rawnn.train_many(**{**FIXED, "epochs": 1}, device=device)
    said = [note for note in many.notes if "one of 4 GPUs: device = 'gpu:all'" in note]
    assert len(said) == (device == "auto" and count == 4)


def test_gpus_of_different_kinds_are_refused(simulations: Any,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    original = gpus.open_device

    def other(name: str, notify: Any) -> Opened:
        found = original(name, notify)
        assert found.device is not None
        if name == "sim:1":
            found.device.info = replace(found.device.info, name="another GPU")
        return found

    monkeypatch.setattr(gpus, "open_device", other)
    with pytest.raises(ConfigError, match="sim:0 is simulated GPU and sim:1 another GPU: name "):
        rawnn.train_many(**FIXED, device="sim:0,1")


def test_gpus_are_opened_and_closed_side_by_side(simulations: Any,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    opening, closing = threading.Barrier(4), threading.Barrier(4)
    original, close = gpus.open_device, Opened.close

    def together(name: str, notify: Any) -> Opened:
        opening.wait(20)
        return original(name, notify)

    def closed(self: Opened) -> None:
        closing.wait(20)
        close(self)

    monkeypatch.setattr(gpus, "open_device", together)
    monkeypatch.setattr(Opened, "close", closed)
    rawnn.train_many(**{**FIXED, "epochs": 1}, seed=range(4), device="sim:0,1,2,3")
    assert len(simulations[0]) == 4


def test_gpus_that_are_being_opened_are_closed_where_another_fails(
        simulations: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original, failed = gpus.open_device, threading.Event()

    def opening(name: str, notify: Any) -> Opened:
        if name == "sim:0":
            raise DeviceError("no usable GPU")
        assert failed.wait(20)
        return original(name, notify)

    def closing(opened: Any) -> None:
        failed.set()
        close_all(opened)

    close_all = gpus.close_all
    monkeypatch.setattr(gpus, "open_device", opening)
    monkeypatch.setattr(gpus, "close_all", closing)
    with pytest.raises(DeviceError, match=r"^sim:0: no usable GPU"):
        rawnn.train_many(**FIXED, device="sim:0,1,2")
    assert len(simulations[0]) == 2  # which the fixture finds clean


@pytest.mark.usefixtures("simulations")
def test_the_first_gpu_plans_and_compiles_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    from rawnn.cuda import device as devices
    from rawnn.many import member_plans

    planned: list[int] = []
    compiled: list[tuple[str, tuple[str, ...]]] = []
    plan, compile_source = member_plans.member_plans, devices.compile_source

    def planning(group: Any, *more: Any) -> Any:
        planned.append(len(group))
        return plan(group, *more)

    def compiling(*arguments: Any, **named: Any) -> Any:
        compiled.append((named["name"], tuple(named["expressions"])))
        return compile_source(*arguments, **named)

    monkeypatch.setattr(member_plans, "member_plans", planning)
    monkeypatch.setattr(devices, "compile_source", compiling)
    many = rawnn.train_many(**{**OPTIONS, "epochs": 1}, seed=range(8), device="sim:0,1,2,3")
    assert planned == [8]
    assert len(compiled) == len(set(compiled)) > 3
    assert len({member.sharding for member in many}) == 1


@pytest.mark.usefixtures("simulations")
def test_a_gpu_of_other_facts_plans_with_the_sharding_of_the_first(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """As where fewer clusters run at once on it."""
    from rawnn.many import member_plans

    original, asked = gpus.open_device, list[str]()

    def opening(name: str, notify: Any) -> Opened:
        found = original(name, notify)
        target = found.machine.target
        if name == "sim:1":
            target = replace(target, at_once={**target.at_once, 8: 64})
        return replace(found, machine=replace(found.machine, measure=lambda: target))

    plan = member_plans.member_plans

    def planning(group: Any, machine: Any, sharding: str, *more: Any) -> Any:
        asked.append(sharding)
        return plan(group, machine, sharding, *more)

    monkeypatch.setattr(gpus, "open_device", opening)
    monkeypatch.setattr(member_plans, "member_plans", planning)
    many = rawnn.train_many(**{**OPTIONS, "epochs": 1}, seed=range(6), device="sim:0,1,2")
    first, second = sorted(asked)
    assert (first, second) == ("", many[0].sharding)


@pytest.mark.parametrize(("more", "times"), [({}, 1), ({"patience": 3}, 2)])
@pytest.mark.usefixtures("simulations")
def test_each_gpu_reads_the_states_of_its_members(more: dict[str, Any], times: int,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """In one piece, unless members are spread round-robin because they may stop early."""
    from rawnn.many.gpu import GpuMembers

    read: list[int] = []
    parts = GpuMembers._parts

    def counted(self: GpuMembers, members: Any) -> Any:
        for found in parts(self, members):
            read.append(found[1].nbytes)
            yield found

    monkeypatch.setattr(GpuMembers, "_parts", counted)
    many = rawnn.train_many(**{**FIXED, "epochs": 1, **more}, seed=range(16), device="sim:0,1")
    total = sum(array.nbytes for array in many.stored.groups[0].states.values())
    assert 0.8 * times * total < sum(read) < 1.3 * times * total or more
    assert (sum(read) > 1.3 * total) == (times > 1)


@pytest.mark.parametrize("bad", [False, True])
def test_devices_are_begun_to_be_opened_before_members_are_made(
        bad: bool, simulations: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that is missing is reported before bad data are."""
    from rawnn.many import training

    called: list[str] = []
    members_of = training.members_of
    monkeypatch.setattr(run, "start_opening", lambda device: called.append(device))

    def making(*arguments: Any) -> Any:
        called.append("members")
        return members_of(*arguments)

    def opening(name: str, notify: Any) -> Opened:
        called.append(name)
        raise DeviceError("no usable GPU")

    monkeypatch.setattr(training, "members_of", making)
    monkeypatch.setattr(gpus, "open_device", opening)
    options = {**FIXED, **({"data": (X, Y[:5])} if bad else {})}
    with pytest.raises(DeviceError, match="no usable GPU"):
        rawnn.train_many(**options, device="sim:0,1")
    assert called[0] == "sim:0,1"
    assert called.count("members") == (not bad)
    assert sorted(called[1 + (not bad):]) == ["sim:0", "sim:1"]
