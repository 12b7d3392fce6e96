"""The toggle `tune`: variants are timed in the step, kept where they are faster beyond doubt, and
read the next time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from rawnn.common.errors import DeviceError
from rawnn.cuda.device import Device
from rawnn.engine import launch_choices as choices
from rawnn.engine.launch_choices import chosen, key_of, with_choices
from rawnn.engine.runners.gpu import GpuRunner
from rawnn.engine.runners.prepared_run import PreparedRun
from rawnn.engine.runners.programs import Program
from rawnn.model.layers import Network
from rawnn.plan.plan import Plan
from rawnn.sim import Simulation
from rawnn.tuning import launch_tuning
from rawnn.tuning.launch_tuning import tuned
from tests.engine import dataset_for, make_work, run_on

NETWORK = Network((24, 16, 5))
OPTS = ("tune,arena", "tune", "tune,pool,streams", "tune,preload,fuse,graphs=epoch",
        "tune,graphs=step", "tune,preload,graphs=while", "tune,preload,cublas,fuse,graphs=2",
        "tune,preload,mma,bf16,fuse,streams,pdl,graphs=epoch")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAWNN_CACHE", str(tmp_path))
    monkeypatch.setattr(launch_tuning, "has_clock", lambda device: True)
    monkeypatch.setattr(launch_tuning, "SAMPLE_MS", 0.0)
    monkeypatch.setattr(launch_tuning, "STEPS", 2)
    return tmp_path


def work_of(opt: str) -> PreparedRun:
    return make_work(opt, NETWORK.layers, dataset_for(NETWORK, 24, 8))


def test_a_simulated_device_goes_by_rule(device: Device, cache: Path,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    work = work_of("tune,preload,graphs=epoch")
    assert tuned(device, work) is work
    assert not choices.file_of(device.info).exists()


class Clock:
    """Samples that follow from the variants of a plan: `cost(choices)` in place of measuring."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, costs: dict[str, dict[int, float]],
                 noise: float = 0.0) -> None:
        self.costs, self.noise, self.samples = costs, noise, 0
        trial = GpuRunner.trial

        def made(runner: GpuRunner, plan: Plan, steps: int) -> Program:
            cost = self.cost(plan)
            program = trial(runner, plan, steps)
            program.cost = cost  # type: ignore[attr-defined]
            return program

        monkeypatch.setattr(GpuRunner, "trial", made)
        monkeypatch.setattr(launch_tuning._StepTimer, "_sample",
                            lambda _, program: self.sample(program))

    def cost(self, plan: Plan) -> float:
        picked = {name: changes["choice"] for name, changes in chosen(plan).items()}
        if any(self.costs.get(n, {}).get(c, 0) is None for n, c in picked.items()):
            raise DeviceError("too much shared memory")
        return 50.0 + sum(self.costs.get(n, {}).get(c, 0.0) for n, c in picked.items())

    def sample(self, program: Program) -> float:
        self.samples += 1
        return program.cost + self.noise * (self.samples % 7)  # type: ignore[attr-defined]


@pytest.mark.parametrize("opt", OPTS)
def test_what_is_chosen_trains_the_same(device: Device, sim: Simulation, opt: str,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device that knows one order of sums: before, measuring, and reading what was found."""
    monkeypatch.setattr(launch_tuning, "SCREENED", 1)
    monkeypatch.setattr(launch_tuning, "CONFIRMED", 2)
    without = run_on(device, work_of(opt.removeprefix("tune").lstrip(",") or "none"))
    measured = run_on(device, work_of(opt))
    read = run_on(device, work_of(opt))
    for found in (measured, read):
        assert (found.loss == without.loss).all()
        for name, array in without.parameters.items():
            assert (found.parameters[name] == array).all()


def test_the_fastest_variants_are_kept_and_remembered(
        device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    monkeypatch.setattr(device, "_notify", messages.append)
    clock = Clock(monkeypatch, {"fc1.forward": {1: -3, 2: -8, 3: -5}, "fc2.forward": {2: 4},
                                "fc2.weight_grad": {4: -1},
                                "relu1": {1: None}})  # type: ignore[dict-item]
    work = work_of("tune,preload,graphs=epoch")
    found = chosen(tuned(device, work).train)
    assert found == {"fc1.forward": {"choice": 2}, "fc2.weight_grad": {"choice": 4}}
    assert "us a step, 50.0 before" in messages[0]
    assert len(messages) == 3
    assert messages[1].startswith("tune: matmul/naive nt")
    assert "choice 2, 42.0 us a step, 50.0 before" in messages[1]
    samples = clock.samples
    assert chosen(tuned(device, work).train) == found
    assert clock.samples == samples  # nothing was measured again
    runner = GpuRunner(device, work)
    assert runner.describe()["choices"] == found
    runner.close()


def test_times_are_microseconds_of_one_step(device: Device,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of 7 us: samples take as many runs, each of two steps, as SAMPLE_MS asks for."""
    said: list[str] = []
    runs_of: list[int] = []
    monkeypatch.setattr(device, "_notify", said.append)
    monkeypatch.setattr(launch_tuning, "SAMPLE_MS", 0.5)

    def milliseconds(timer: launch_tuning._StepTimer, program: Program, runs: int) -> float:
        assert timer._steps == 2
        runs_of.append(runs)
        return runs * 2 * 0.007

    monkeypatch.setattr(launch_tuning._StepTimer, "_milliseconds", milliseconds)
    tuned(device, work_of("tune,preload"))
    assert said[-1].endswith(": 7.0 us a step, 7.0 before")
    assert set(runs_of) >= {1, max(runs_of)}
    assert max(runs_of) * 2 * 0.007 >= 0.5
    kept = choices.read(choices.file_of(device.info), lambda message: None)
    assert {(found.before, found.after) for found in kept.values()} == {(7.0, 7.0)}


def test_noise_is_no_gain(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, {"fc1.forward": {1: -1.0, 2: -1.5}, "fc2.forward": {1: -30.0}}, noise=2.0)
    found = chosen(tuned(device, work_of("tune,preload")).train)
    assert found == {"fc2.forward": {"choice": 1}}


def test_an_interruption_keeps_what_was_found(device: Device, cache: Path,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, {"gather": {1: -3}, "fc1.forward": {1: -3}})
    work = work_of("tune,preload,graphs=epoch")
    sample = clock.sample

    def interrupted(program: Program) -> float:
        if clock.samples > 80:
            raise KeyboardInterrupt
        return sample(program)

    monkeypatch.setattr(clock, "sample", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tuned(device, work)
    kept = choices.read(choices.file_of(device.info), lambda message: None)
    assert key_of(work.train.find(kind="matmul")[0], work.train) in kept
    assert len(kept) < len({key_of(op, work.train) for op in work.train.ops})
    monkeypatch.setattr(clock, "sample", sample)
    assert "fc1.forward" in chosen(tuned(device, work).train)


def test_a_broken_file_is_measured_anew(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    monkeypatch.setattr(device, "_notify", messages.append)
    Clock(monkeypatch, {"fc1.forward": {1: -3}})
    path = choices.file_of(device.info)
    path.parent.mkdir()
    path.write_text("nonsense")
    assert "fc1.forward" in chosen(tuned(device, work_of("tune,preload")).train)
    assert "measured again" in messages[0]


def test_all_plans_of_a_run_are_changed() -> None:
    work = make_work("preload,fuse,report=2", NETWORK.layers, dataset_for(NETWORK, 27, 8),
                     partial=True)
    key = key_of(work.train.find(kind="matmul")[0], work.train)
    changed = choices.applied(work, {key: {"choice": 1}})
    assert chosen(changed.train) == chosen(changed.unreported) == {"fc1.forward": {"choice": 1}}
    assert chosen(with_choices(work.train, {})) == {}
    assert changed.partial is not None
    assert chosen(changed.partial) == {}  # a smaller batch is another shape


def test_each_op_of_each_plan_gets_the_choice_of_its_key() -> None:
    work = make_work("preload,fuse,report=2", NETWORK.layers, dataset_for(NETWORK, 27, 11),
                     partial=True)

    def plans(run: PreparedRun) -> list[Plan]:
        assert run.partial is not None
        return [run.train, run.unreported, run.partial, *(part.plan for part in run.evaluate)]

    keys = dict.fromkeys(key_of(op, plan) for plan in plans(work) for op in plan.ops)
    wanted = {key: {"choice": n} for n, key in enumerate(keys, 1)}
    changed = choices.applied(work, wanted)
    assert len(plans(work)) == 5  # of the test set a batch and the rest
    for before, after in zip(plans(work), plans(changed), strict=True):
        for op, new in zip(before.ops, after.ops, strict=True):
            assert new == replace(op, attributes={**op.attributes, **wanted[key_of(op, before)]})
    assert choices.choices_of(changed) == wanted


@pytest.mark.parametrize("first", [0.007, 9.0])
def test_a_variants_first_sample_does_not_count(device: Device, monkeypatch: pytest.MonkeyPatch,
                                                first: float) -> None:
    """A new program's kernels and caches are cold in it; the median of all others is taken."""
    timer = launch_tuning._StepTimer.__new__(launch_tuning._StepTimer)
    taken = iter([first, 3.0, 1.0, 2.0])
    monkeypatch.setattr(timer, "_sample", lambda program: next(taken))
    program: Program = cast(Program, None)
    assert timer.us(program, 3) == 2.0
    assert next(taken, None) is None
