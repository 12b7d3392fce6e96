"""Random runs: they follow from a seed alone, and are judged by what rounding costs them."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rawnn.bench.cases import check
from rawnn.bench.cases.check import check_run, run_random
from rawnn.bench.record import read_results
from rawnn.bench.specification import SMALL, Limits, Specification, sample
from rawnn.bench.suites import read_suites
from rawnn.common.errors import ConfigError, OutOfMemory, RawnnError
from rawnn.cuda.errors import CallFailed
from rawnn.engine.machine import Opened, open_device
from rawnn.model.activations import ACTIVATIONS
from rawnn.model.layers import Network
from rawnn.model.losses import LOSSES
from rawnn.model.optimizers import OPTIMIZER_SPECS, Optimizer
from rawnn.opts import select
from rawnn.opts.registry import TOGGLES, Machine
from rawnn.plan.op import OPS, Attributes
from tests.bench.measuring import invoke, standing
from tests.engine import CAPABLE

HOST = Machine("there is none")


@pytest.fixture(scope="module")
def opened() -> Opened:
    return open_device("sim", lambda message: None)


@cache
def specification(seed: int) -> Specification:
    return sample(seed, Limits(), CAPABLE)


def test_a_specification_follows_from_its_seed() -> None:
    assert [sample(n, Limits(), CAPABLE) for n in range(9)] == list(map(specification, range(9)))
    assert len({str(specification(n)) for n in range(50)}) == 50
    spec = sample(3, SMALL, CAPABLE)
    assert np.array_equal(spec.data().train_images, spec.data().train_images)


def test_specifications_keep_to_their_limits_and_vary() -> None:
    specs = [specification(n) for n in range(200)]
    for spec in specs:
        layers = spec.network.layers
        weights = sum(a * b for a, b in pairwise(layers))
        assert 1 <= spec.batch <= 4096
        assert 2 <= len(layers) <= 7
        assert max(layers) <= (1024 if spec.batch > 64 else 3072)
        assert 3 * weights * spec.batch <= 2e9
        assert spec.recipe.steps(spec.examples) >= 1
        names = {word.partition("=")[0] for word in spec.words}
        assert "tune" not in names
        assert not any(TOGGLES[name].group == "numbers" for name in names if name in TOGGLES)
        if "graphs" in names:
            values = select(spec.opt(), spec.network, 1, CAPABLE, batch=spec.batch).values
            assert "preload" in values or values["graphs"] not in ("while", 2)
    seen = {name for spec in specs for name in (
        spec.network.loss, spec.network.activation, spec.network.init, spec.optimizer.name,
        spec.inputs, spec.precision, spec.optimizer.kind)}
    assert {"cross_entropy", "mse", "bce", "relu", "tanh", "gelu", "he", "zeros", "sgd", "adam",
            "adamw", "momentum", "uint8", "float32", "float16", "bf16", "tf32", "sr"} <= seen
    toggles = {word.partition("=")[0] for spec in specs for word in spec.words}
    assert {"best", "seed", "none", "preload", "fuse", "graphs", "mma", "tiled", "cublas", "pdl",
            "streams", "pool", "async", "pinned"} <= toggles
    assert any(spec.autoencoder for spec in specs)
    assert any(spec.normalised for spec in specs)

def test_each_choice_has_its_share_of_all_specifications() -> None:
    """Within four standard deviations of what is meant, of those that have the choice."""
    specs = [sample(n, Limits(), HOST) for n in range(600)]
    losses = [spec.network.loss for spec in specs]
    few = [spec.network.outputs <= 32 for spec in specs]
    whole = [all(n % 16 == 0 for n in (*spec.network.layers[:-1], spec.batch)) for spec in specs]
    small = [b for a, b in zip(losses, few, strict=True) if a == "cross_entropy"]
    others = [b for a, b in zip(losses, few, strict=True) if a in ("bce", "huber")]
    for choices, share in [
            ([loss == "cross_entropy" for loss in losses], 2 / (len(LOSSES) + 1)),
            ([spec.autoencoder for spec in specs if spec.network.loss == "mse"], 0.3),
            ([spec.network.bias for spec in specs], 0.7),
            ([spec.shuffle for spec in specs], 0.4), ([spec.partial for spec in specs], 0.5),
            ([spec.inputs == "uint8" for spec in specs], 0.5),
            ([spec.normalised for spec in specs], 0.3),
            ([spec.schedule == "constant" for spec in specs], 0.4),
            ([bool(spec.precision) for spec in specs], 0.5),
            ([spec.network.activation == "relu" for spec in specs], 1 / len(ACTIVATIONS)),
            ([spec.optimizer.name == "sgd" for spec in specs], 2 / (len(OPTIMIZER_SPECS) + 1)),
            ([spec.optimizer.settings.get("momentum") == 0.9 for spec in specs
              if spec.optimizer.name == "sgd"], 0.5),
            ([spec.optimizer.settings["nesterov"] == 1 for spec in specs
              if spec.optimizer.settings.get("momentum") and spec.optimizer.name == "sgd"], 0.5),
            ([spec.optimizer.settings["decay"] == 0.01 for spec in specs
              if spec.optimizer.name == "sgd"], 0.3)]:
        assert abs(np.mean(choices) - share) < 4 * math.sqrt(share * (1 - share) / len(choices))
    assert 0.4 < np.mean(whole) < 0.65  # half of them, and by luck
    assert np.mean(small) > 0.6 > 2 * np.mean(others)  # few classes in three of five
    assert not any(spec.autoencoder for spec in specs if spec.network.loss != "mse")
    assert all(spec.network.init != "zeros" for spec in specs if spec.network.depth > 1)
    assert all(spec.network.layers[0] == spec.network.outputs for spec in specs
               if spec.autoencoder)


def test_only_what_the_machine_can_run_is_asked_for() -> None:
    bare = Machine(None, (7, 5), 12020, lambda package: False)
    for machine in (bare, HOST):
        for seed in range(60):
            spec = sample(seed, SMALL, machine)
            spec.work(spec.opt(), spec.data(), machine)


@pytest.mark.parametrize("seed", range(12))
def test_random_runs_are_right_on_the_simulated_device(opened: Opened, seed: int) -> None:
    spec = sample(seed, SMALL, opened.machine)
    outcome, usable = check_run(spec, opened)
    assert (outcome.verdict, outcome.reason) == ("right", "")
    assert usable


def test_runs_leave_the_data_as_they_are(opened: Opened) -> None:
    """Batches from the host, in a new order each epoch: the order is not the caller's array's."""
    spec = replace(plain(""), network=Network((20, 12, 7), loss="mse"), shuffle=True,
                   inputs="float32")
    data = spec.data()
    before = data.train_images.copy(), data.train_targets.copy()
    check._on_device(spec, data, opened)
    check._on_device(spec, data, Opened(None, HOST, 0.0))
    assert np.array_equal(data.train_images, before[0])
    assert np.array_equal(data.train_targets, before[1])


def test_runs_on_the_host_are_right() -> None:
    found = list(run_random(Opened(None, HOST, 0.0), SMALL, 0, 5))
    assert [outcome.verdict for outcome in found] == ["right"] * 5


@pytest.mark.parametrize("kind", ["bias_grad", "activate_backward", "softmax_backward", "matmul",
                                  "cross_entropy", "accuracy", "sgd"])
@pytest.mark.parametrize("precision", ["", "bf16"])
def test_a_wrong_op_is_found(monkeypatch: pytest.MonkeyPatch, kind: str, precision: str) -> None:
    """One op gives a little more than it should, in the run that stands for the device's."""
    spec, right = plain(precision), OPS[kind]
    device = check._on_device

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

    monkeypatch.setattr(check, "_on_device", wrong)
    assert check_run(spec, Opened(None, HOST, 0.0))[0].verdict == "wrong"


def plain(precision: str) -> Specification:
    """A run of all ordinary ops."""
    spec = replace(sample(1, SMALL, HOST), words=("none",), precision=precision, autoencoder=False,
                   batch=16, examples=64, optimizer=Optimizer(lr=0.1), schedule="constant")
    return replace(spec, network=Network((20, 12, 7)))


def test_a_skipped_step_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """float16 with a loss scale that is too high for the device's run alone."""
    spec, scale = plain("fp16"), check._loss_scale
    scales = iter([1e30, None, None])
    monkeypatch.setattr(check, "_loss_scale", lambda work: next(scales) or scale(work))
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

    monkeypatch.setattr(check, "_on_device", fails)
    monkeypatch.setattr(check, "_is_usable", lambda opened: next(answers))
    found = list(run_random(Opened(None, HOST, 0.0), SMALL, 5, 9))
    assert [(o.seed, o.verdict) for o in found] == [
        (5, "memory"), (6, "failed"), (7, "failed"), (8, "failed")]
    assert "cuLaunchKernel" in str(found[3]).splitlines()[1]


@pytest.mark.parametrize(("error", "waits", "usable"), [
    (CallFailed("cuLaunchKernel", 700, "ILLEGAL", "", "fc1"), True, True),
    (CallFailed("cuLaunchKernel", 700, "ILLEGAL", "", "fc1"), False, False),
    (ConfigError("no such thing"), False, True), (OutOfMemory("no room"), False, True)])
def test_runs_end_where_the_device_cannot_be_used_any_more(
        monkeypatch: pytest.MonkeyPatch, error: RawnnError, waits: bool, usable: bool) -> None:
    """Where a call has failed and waiting for the device fails as well."""
    def fails(*arguments: Any) -> Any:
        raise error

    def synchronize(what: str) -> None:
        if not waits:
            raise error

    stream = SimpleNamespace(synchronize=synchronize)
    opened: Any = SimpleNamespace(device=SimpleNamespace(stream=stream), machine=HOST)
    monkeypatch.setattr(check, "_on_device", fails)
    monkeypatch.setattr(check, "HEADER", "head")
    with standing("check") as harness:
        lines: list[str] = []
        monkeypatch.setattr(harness, "open", lambda device, timer: opened)
        monkeypatch.setattr(harness, "echo", lines.append)
        check.measure(harness, read_suites(), count=3, seed=5, work=1e5, device="host")
    left = "the device cannot be used any more: 2 runs are left"
    assert len([line for line in lines if str(error) in line]) == (3 if usable else 1)
    assert (left in lines) != usable
    assert harness.results.ended.get("check", "") == ("" if usable else left)


@pytest.mark.parametrize("verdict", ["right", "wrong", "failed", "memory"])
@pytest.mark.parametrize("used", [0.25, 1.5, math.inf])
def test_a_line_and_the_records_have_what_the_verdict_knows(verdict: str, used: float) -> None:
    """A run that was compared has a time and a share of the tolerance; others have a reason."""
    was_compared = verdict in ("right", "wrong")
    outcome = check.Outcome(
        seed=7, opt="none,bf16", specification="3-2, batch 5", verdict=verdict,
        **({"us": 12.34, "used": used} if was_compared else {"reason": "it broke"}))
    cells = str(outcome).splitlines()[0].split()
    share = f"{used:.2f}"
    assert cells == ["7", verdict, *(["12.3", "us", "a", "step", share] if was_compared else []),
                     "3-2,", "batch", "5"]
    assert str(outcome).splitlines()[1:] == ([] if was_compared else ["        it broke"])
    found = {record.metric: record for record in outcome.records("here")}
    samples = {metric: record.samples for metric, record in found.items() if record.samples}
    assert samples == ({"step_us": [12.34], **({"tolerance_used": [used]} if used < math.inf
                                               else {})} if was_compared else {})
    first = next(iter(found.values()))
    assert (first.case, first.variant, first.precision) == ("check/7", "none,bf16", "bf16")
    assert first.conditions == {"seed": 7}
    assert first.status == {"right": "measured", "memory": "unavailable"}.get(verdict, verdict)
    assert first.reason == ("" if was_compared else "it broke")


def test_the_command_prints_a_line_a_run_and_keeps_them(tmp_path: Path) -> None:
    kept = tmp_path / "random.json"
    done = invoke("check", "--n", "3", "--device", "sim", "--json", str(kept))
    assert done.exit_code == 0, done.output
    assert len([line for line in done.output.splitlines() if "  right " in line]) == 3
    found = read_results(kept).entries("check")
    assert [e.conditions["seed"] for e in found] == [0, 1, 2]
    assert all((e.median("tolerance_used") or 0) < 1 for e in found)
    assert all(e.notes[0] in done.output for e in found)


def test_a_wrong_run_is_an_error_by_the_old_spelling_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_compared", lambda *arguments: (2.0, "the loss is off"))
    done = invoke("random", "--n", "2", "--seed", "11", "--device", "host")
    assert isinstance(done.exception, RawnnError)
    assert "2 of 2 runs are not right (seeds 11, 12)" in str(done.exception)
    assert "the loss is off" in done.output


def test_runs_are_kept_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, seen = tmp_path / "r.json", list[int]()

    def runs(opened: Any, limits: Any, seed: int, count: int) -> Any:
        for number in range(2):
            yield check.Outcome(seed=number, opt="none", specification="3-2", verdict="right",
                                us=1.0, used=0.5)
            seen.append(len(read_results(kept).entries()))
        yield check.Outcome(seed=2, opt="none", specification="3-2", verdict="failed",
                            reason="it broke")
        raise KeyboardInterrupt

    monkeypatch.setattr(check, "run_random", runs)
    done = invoke("check", "--device", "host", "--json", str(kept))
    assert done.exit_code == 1  # of click's own, for Abort
    assert seen == [1, 2]
    assert [(e.status, e.reason) for e in read_results(kept).entries()] == [
        ("measured", ""), ("measured", ""), ("failed", "it broke")]
    shown = invoke("show", str(kept))
    assert shown.exit_code == 0
    assert "it broke" in shown.output


def test_a_run_has_one_to_four_whole_steps_and_perhaps_a_partial_one() -> None:
    found = [sample(seed, SMALL, HOST) for seed in range(300)]
    assert {spec.examples // spec.batch for spec in found} == {1, 2, 3, 4}
    assert {spec.examples % spec.batch == 0 for spec in found} == {True, False}
