"""`rawnn kernel try`, where there is a GPU (a simulated one), and where there is none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from rawnn.bench import attempt
from rawnn.bench.attempt import LossDifference, check_ops, time_ops, training_plan
from rawnn.bench.peers import worker
from rawnn.cli import attempt as attempt_command
from rawnn.cli import run
from rawnn.common.errors import ConfigError, RawnnError
from rawnn.cuda.compiling.resources import Usage
from rawnn.cuda.device import Device
from rawnn.engine.config import Config
from rawnn.engine.machine import machine_of
from rawnn.lab.plug import load
from rawnn.ptx.user_kernels import USER_KERNELS, unregister
from rawnn.sim import Simulation
from tests.engine import random_dataset

MINE = """/* rawnn
op = "bias_relu"
grid = "cdiv(rows * cols, 64)"
block = 64
*/
__global__ void bias_relu(const float* z, int ldz, const float* bias, float* a, int lda, int rows,
                          int cols) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < rows * cols)
    a[i / cols * lda + i % cols] = fmaxf(z[i / cols * ldz + i % cols] + bias[i % cols], 0.0f);
}
"""
SMALL = ("--dataset", "synthetic", "--layers", "784-12-10", "--batch", "3000", "--rounds", "2")


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    path = Path("mine.cu")
    path.write_text(MINE)
    yield path
    for word in list(USER_KERNELS):
        unregister(word)


def test_without_a_gpu_all_but_execution(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kernel", "try", str(mine), "--device", "host", *SMALL]) == 0
    text = capsys.readouterr().out
    assert "bias_relu=mine runs relu1 of 784-12-10 at batch 3000" in text
    assert "3 steps on the simulated GPU: arguments, bounds and order are right" in text
    assert "there is no GPU here: what it computes was not checked" in " ".join(text.split())


def test_a_configuration_file_says_which_network(mine: Path, capsys: pytest.CaptureFixture[str]
                                                 ) -> None:
    """And no other is taken in its place; options win over it."""
    Path("own.toml").write_text('layers = [784, 9, 10]\nbatch = 3000\ndataset = "synthetic"\n')
    for options, layers in (((), "784-9-10"), (("--layers", "784-11-10"), "784-11-10")):
        assert run(["kernel", "try", str(mine), "--device", "host", "--config", "own.toml",
                    *options]) == 0
        assert f"runs relu1 of {layers} at batch 3000" in capsys.readouterr().out


def test_beside_best_in_turns(mine: Path, capsys: pytest.CaptureFixture[str],
                              monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WARM_S": 0.0, "PATIENCE_S": 0.0, "SAMPLES": 1}.items():
        monkeypatch.setattr(worker, name, value)
    assert run(["kernel", "try", str(mine), "--as", "bias_relu", "--device", "sim", *SMALL]) == 0
    printed = capsys.readouterr()
    text, turns = printed.out, re.findall(r"turn (\d) of (\d): (.*)", printed.err)
    assert turns == [(str(n), "4", what) for n, what in enumerate(
        ("best", "best,bias_relu=mine.cu") * 2, 1)]
    assert "alone     relu1: " in text
    assert "best,bias_relu=mine.cu is" in text
    assert "the loss curve stayed" in text
    assert "right     not asked" in text


def test_what_does_not_fit_is_said_before_anything_runs(
        mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kernel", "try", str(mine), "--as", "bias_add", *SMALL]) == 2
    assert "says op = 'bias_relu' in its header" in capsys.readouterr().err
    assert run(["kernel", "try", str(mine), *SMALL[:2], "--layers", "784-10"]) == 2
    assert "bias_relu=mine has nothing to do: the step has no op" in capsys.readouterr().err


def test_a_kernel_that_is_wrong_is_found(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the simulated GPU a meaning of one's own stands for what the kernel does."""
    own = load(mine)
    device = Device(Simulation(1).backend())
    config, data = Config(layers=(29, 12, 7), batch=8), random_dataset()
    plan = training_plan(config, "preload,arena,bias_relu=mine", data, machine_of(device))
    free = device.free_memory()
    assert all(each.right for each in check_ops(device, own, plan))
    assert device.free_memory() == free
    meant = own.reference

    def off(t: Any, a: Any) -> None:
        meant(t, a)
        t.a[3, 1] += 0.01

    def skipping(t: Any, a: Any) -> None:
        t.a[:-1] = np.maximum(t.z[:-1] + t.bias, 0)

    expected = own.kernel
    for wrong, message in ((off, r"a1\[3, 1\] is "), (skipping, r"a1\[7, 0\] was not written")):
        own(lambda t, a, wrong=wrong: wrong(t, a) if t.a.dtype == np.float32 else meant(t, a))
        plan = training_plan(config, "preload,arena,bias_relu=mine", data, machine_of(device))
        found = check_ops(device, own, plan)
        assert [each.right for each in found] == [False]
        assert re.search(message, str(found[0].outcomes[0]))
    assert own.kernel is expected
    (timed,) = time_ops(device, own, plan)  # a launch takes a microsecond there
    assert (timed.op, timed.user_us, timed.rawnn_us) == (
        "relu1", pytest.approx(1.0, abs=0.2), pytest.approx(2.0, abs=0.2))
    monkeypatch.setattr(attempt, "_microseconds", lambda device, lowering, ops, plan: (
        2.0 if [op.kind for op in ops] == ["bias_relu=mine"] else 7.0))
    assert time_ops(device, own, plan) == [
        attempt.IsolatedTime("relu1", 2.0, 7.0, ("bias_add/naive", "activate/naive"))]
    device.close()


def test_rows_that_are_padded_need_their_distance(mine: Path) -> None:
    plain = MINE
    for role in "za":
        plain = plain.replace(f", int ld{role}", "").replace(f"ld{role}", "cols")
    mine.write_text(plain)
    load(mine)
    device = Device(Simulation(1).backend())
    opt, data = "preload,arena,bias_relu=mine", random_dataset()
    assert training_plan(Config(layers=(29, 12, 7), batch=8), opt, data, machine_of(device))
    with pytest.raises(ConfigError, match=r"rows of 'z' \(13 elements\) lie 16 apart, as they are "
                                          r"padded to 16 bytes: take int ldz and address z\[row"):
        training_plan(Config(layers=(29, 13, 7), batch=8), opt, data, machine_of(device))
    device.close()


def test_a_curve_stays_as_near_as_other_orders_of_arithmetic() -> None:
    assert LossDifference(3e-6, 1e-6).is_within_tolerance
    assert not LossDifference(3e-3, 1e-6).is_within_tolerance
    for usual, least in ((0.0, 2.0**-20), (2.0**-20, 2.0**-20), (1e-3, 1e-3)):
        assert LossDifference(attempt.ORDER * least, usual).is_within_tolerance
        assert not LossDifference(attempt.ORDER * least * 1.001, usual).is_within_tolerance
    assert "did NOT stay" in str(LossDifference(3e-3, 1e-6))


def test_curves_are_compared_with_the_base_and_with_that_op_by_op_in_its_precision(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """The differences are relative, at whatever step they are the largest."""
    curves = {"best,bf16": [2.0, 1.0, 0.5], "best,bf16,mine": [2.0, 1.25, 0.5],
              "none,preload,bf16": [2.2, 1.0, 0.4]}
    ran: list[Any] = []

    def training(config: Config, data: Any, opened: Any) -> Any:
        ran.append(config.opt)
        return SimpleNamespace(session=nullcontext(), block=ran.append,
                               losses=lambda: np.array(curves[config.opt], np.float32))

    monkeypatch.setattr(attempt, "Training", training)
    found = attempt.compare_losses(Config(), "best,bf16", "best,bf16,mine", None, None)  # type: ignore[arg-type]
    assert ran == ["best,bf16", 1, "best,bf16,mine", 1, "none,preload,bf16", 1]
    assert (found.user, found.usual) == (pytest.approx(0.25), pytest.approx(0.2))


def test_some_whole_batches_are_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there are steps, of every part of the data, and no more of a large set."""
    seen: list[Any] = []

    class Session:
        def __enter__(self) -> Session:
            return self

        def __exit__(self, *exception: object) -> None: ...

    def training(config: Config, data: Any, opened: Any) -> Any:
        seen.append((config, data))
        return SimpleNamespace(session=Session(), block=lambda epochs: seen.append(epochs))

    monkeypatch.setattr(attempt, "Training", training)
    data = random_dataset(29, 7, 300, 200)
    assert attempt.simulate(Config(layers=(29, 7), batch=8), "nosync", data) == ""
    (config, few), epochs = seen
    assert (config.opt, config.device, epochs) == ("nosync", "sim", 1)
    assert [len(few.train_images), len(few.train_labels), len(few.test_images),
            len(few.test_labels)] == [3 * 8] * 4
    assert few.train_targets is None
    wide = Config(layers=(30_000, 30_000), batch=8)
    assert attempt.simulate(wide, "nosync", data) == \
        "the network is too large for NumPy: name a smaller one by --layers"


@pytest.mark.parametrize("spilled", [(0, 0), (8, 16)])
def test_what_an_instance_uses_is_said(mine: Path, capsys: pytest.CaptureFixture[str],
                                       monkeypatch: pytest.MonkeyPatch, spilled: tuple[int, int]
                                       ) -> None:
    used = attempt.Resources("bias_relu", Usage(40, 2048, 96, 400), spilled, None)
    monkeypatch.setattr(attempt, "compile_instances", lambda own, plan, arch: [used])
    monkeypatch.setattr(attempt, "simulate", lambda config, opt, data: "it is too large")
    assert run(["kernel", "try", str(mine), "--device", "host", *SMALL]) == 0
    said = capsys.readouterr().out
    assert f"compiled  bias_relu for sm_90: 40 registers, 2,048 B of shared memory, 96 B of " \
        f"stack, {sum(spilled)} B spilled" in said
    assert "ordering  not proved: it is too large" in said


@pytest.mark.parametrize(("batch", "examples"), [(None, 128), (8, 8)])
def test_a_few_steps_are_simulated_unless_they_take_numpy_too_long(
        monkeypatch: pytest.MonkeyPatch, batch: int | None, examples: int) -> None:
    asked: list[Any] = []

    def training(config: Config, data: Any, opened: Any) -> Any:
        asked.append((config.opt, config.device, config.batch, len(data.train_images),
                      len(data.test_labels), data.train_targets, data.resident))
        return SimpleNamespace(session=nullcontext(), block=asked.append)

    monkeypatch.setattr(attempt, "Training", training)
    work = 6 * attempt.STEPS * examples * (20 * 30 + 30 * 10)
    config = Config(layers=(20, 30, 10), batch=batch)
    data = replace(random_dataset(20, 10, 1000, 500), resident={"train_images": cast(Any, 1)})
    for most, said in ((work, ""), (work - 1, "the network is too large for NumPy: name a smaller "
                                              "one by --layers")):
        monkeypatch.setattr(attempt, "MOST_WORK", most)
        assert attempt.simulate(config, "fuse", data) == said
    rows = attempt.STEPS * examples
    assert asked == [("fuse", "sim", batch, rows, min(rows, 500), None, {}), 1]


@pytest.mark.parametrize("right", [False, True])
def test_outcomes_and_trespasses_of_an_op_are_printed(right: bool) -> None:
    printed: list[str] = []
    console = SimpleNamespace(print=lambda text, **how: printed.append(text))
    ops = [SimpleNamespace(op="bias", outcomes=["y is right"], trespasses=["x is written"],
                           right=right),
           SimpleNamespace(op="relu", outcomes=[1, 2], trespasses=[], right=True)]
    with nullcontext() if right else pytest.raises(
            RawnnError, match="mine does not compute what its op means: bias; nothing was timed"):
        attempt_command._check(ops, "mine", console)
    assert printed == [f"{'right' if right else 'WRONG'}     bias: y is right; x is written",
                       "right     relu: 1; 2"]
