"""Random runs: drawn from a seed alone, and judged by what rounding costs the run itself."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from rawnn.bench import random
from rawnn.bench.random import Outcome, check_run, run_random
from rawnn.bench.specification import SMALL, Limits, Specification, draw
from rawnn.cli.bench import bench
from rawnn.common.errors import ConfigError, OutOfMemory, RawnnError
from rawnn.cuda.errors import CallFailed
from rawnn.engine.machine import Opened, open_device
from rawnn.model.layers import Network
from rawnn.model.optimizers import Optimizer
from rawnn.opts.registry import Machine
from rawnn.plan.op import OPS, Attributes
from tests.engine import CAPABLE

HOST = Machine("there is none")


@pytest.fixture(scope="module")
def opened() -> Opened:
    return open_device("sim", lambda message: None)


@pytest.fixture(scope="module")
def specs() -> list[Specification]:
    return [draw(n, Limits(), CAPABLE) for n in range(120)]


def test_a_specification_follows_from_its_seed(specs: list[Specification]) -> None:
    assert [draw(n, Limits(), CAPABLE) for n in range(9)] == specs[:9]
    assert len({str(spec) for spec in specs}) == len(specs)
    spec = draw(3, SMALL, CAPABLE)
    assert np.array_equal(spec.data().train_images, spec.data().train_images)


def test_specifications_keep_to_their_limits_and_vary(specs: list[Specification]) -> None:
    for spec in specs:
        layers = spec.network.layers
        weights = sum(a * b for a, b in pairwise(layers))
        assert 1 <= spec.batch <= 4096
        assert 2 <= len(layers) <= 7
        assert max(layers) <= (1024 if spec.batch > 64 else 3072)
        assert 3 * weights * spec.batch <= 2e9
        assert spec.recipe.steps(spec.examples) >= 1
    seen = {name for spec in specs for name in (
        spec.network.loss, spec.network.activation, spec.network.init, spec.optimizer.name,
        spec.inputs, spec.numbers, spec.optimizer.kind)}
    assert {"cross_entropy", "mse", "bce", "relu", "tanh", "gelu", "he", "zeros", "sgd", "adam",
            "adamw", "momentum", "uint8", "float32", "float16", "bf16", "tf32", "sr"} <= seen
    toggles = {word.partition("=")[0] for spec in specs for word in spec.words}
    assert {"best", "seed", "none", "preload", "fuse", "graphs", "mma", "tiled", "cublas", "pdl",
            "streams", "pool", "async", "pinned"} <= toggles
    assert any(spec.autoencoder for spec in specs)
    assert any(spec.normalised for spec in specs)


def test_only_what_the_machine_can_run_is_asked_for() -> None:
    bare = Machine(None, (7, 5), 12020, lambda package: False)
    for machine in (bare, HOST):
        for seed in range(60):
            spec = draw(seed, SMALL, machine)
            spec.work(spec.opt(), spec.data(), machine)


@pytest.mark.parametrize("seed", range(12))
def test_random_runs_are_right_on_the_simulated_device(opened: Opened, seed: int) -> None:
    spec = draw(seed, SMALL, opened.machine)
    outcome, usable = check_run(spec, opened)
    assert (outcome.verdict, outcome.reason) == ("right", "")
    assert usable


def test_runs_leave_the_data_as_they_are(opened: Opened) -> None:
    """Batches from the host, in a new order each epoch: the order is not the caller's array's."""
    spec = replace(plain(""), network=Network((20, 12, 7), loss="mse"), shuffle=True,
                   inputs="float32")
    data = spec.data()
    before = data.train_images.copy(), data.train_targets.copy()
    random._on_device(spec, data, opened)
    random._on_device(spec, data, Opened(None, HOST, 0.0))
    assert np.array_equal(data.train_images, before[0])
    assert np.array_equal(data.train_targets, before[1])


def test_runs_on_the_host_are_right() -> None:
    found = list(run_random(Opened(None, HOST, 0.0), SMALL, 0, 5))
    assert [outcome.verdict for outcome in found] == ["right"] * 5


@pytest.mark.parametrize("kind", ["bias_grad", "activate_backward", "softmax_backward", "matmul",
                                  "cross_entropy", "accuracy", "sgd"])
@pytest.mark.parametrize("numbers", ["", "bf16"])
def test_a_wrong_op_is_found(monkeypatch: pytest.MonkeyPatch, kind: str, numbers: str) -> None:
    """One op gives a little more than it should, in the run that stands for the device's."""
    spec, right = plain(numbers), OPS[kind]
    device = random._on_device

    def reference(t: SimpleNamespace, a: Attributes) -> None:
        right.reference(t, a)
        for role in right.writes:
            if hasattr(t, role):
                array = getattr(t, role)
                array[...] = array * 2 if kind == "accuracy" else array * 1.2

    def wrong(*arguments: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setitem(OPS, kind, replace(right, reference=reference))
            return device(*arguments)

    monkeypatch.setattr(random, "_on_device", wrong)
    assert check_run(spec, Opened(None, HOST, 0.0))[0].verdict == "wrong"


def plain(numbers: str) -> Specification:
    """A run of all ordinary ops."""
    spec = replace(draw(1, SMALL, HOST), words=("none",), numbers=numbers, autoencoder=False,
                   batch=16, examples=64, optimizer=Optimizer(lr=0.1), schedule="constant")
    return replace(spec, network=Network((20, 12, 7)))


def test_a_skipped_step_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """float16 with a loss scale that is too high for the device's run alone."""
    spec, scale = plain("fp16"), random._loss_scale
    scales = iter([1e30, None, None])
    monkeypatch.setattr(random, "_loss_scale", lambda work: next(scales) or scale(work))
    outcome, _ = check_run(spec, Opened(None, HOST, 0.0))
    assert outcome.verdict == "wrong"
    assert "skipped" in outcome.reason


def test_failures_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[RawnnError] = [OutOfMemory("no room"), ConfigError("no such thing"),
                                CallFailed("cuGraphInstantiate", 1, "INVALID", "", "epoch"),
                                CallFailed("cuLaunchKernel", 700, "ILLEGAL", "", "fc1")]
    answers = iter([True, False])

    def fails(*arguments: Any) -> Any:
        raise errors.pop(0)

    monkeypatch.setattr(random, "_on_device", fails)
    monkeypatch.setattr(random, "_answers", lambda opened: next(answers))
    found = list(run_random(Opened(None, HOST, 0.0), SMALL, 5, 9))
    assert [(o.seed, o.verdict) for o in found] == [
        (5, "memory"), (6, "failed"), (7, "failed"), (8, "failed")]
    assert "cuLaunchKernel" in str(found[3]).splitlines()[1]


def test_the_command_prints_a_line_a_run_and_keeps_them(tmp_path: Path) -> None:
    kept = tmp_path / "random.json"
    done = CliRunner().invoke(bench, ["random", "--n", "3", "--device", "sim", "--json", str(kept)])
    assert done.exit_code == 0, done.output
    assert len([line for line in done.output.splitlines() if "  right " in line]) == 3
    outcomes = msgspec.json.decode(kept.read_bytes(), type=list[Outcome])
    assert [o.seed for o in outcomes] == [0, 1, 2]


def test_a_wrong_run_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "_compared", lambda *arguments: (2.0, "the loss is off"))
    done = CliRunner().invoke(bench, ["random", "--n", "2", "--seed", "11", "--device", "host"])
    assert isinstance(done.exception, RawnnError)
    assert "2 of 2 runs are not right (seeds 11, 12)" in str(done.exception)
    assert "the loss is off" in done.output
