"""Training on the host and on the simulated GPU: reports, interruption, divergence, refusals."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import rawnn
from rawnn.common.errors import ConfigError, DataError, TrainingDiverged
from rawnn.common.listener import Listener
from rawnn.data import Dataset
from rawnn.engine.config import Config
from rawnn.engine.result import Report, Result
from rawnn.engine.session import Session
from rawnn.engine.training import train
from rawnn.model.layers import Network
from tests.engine import random_dataset, same_parameters

DATA = random_dataset(features=12, classes=4, train=40, test=13)


class Recorder(Listener):
    """Notes everything it hears; raises KeyboardInterrupt at the event `stop`."""

    def __init__(self, stop: tuple[str, int] = ("", 0)) -> None:
        self.received: list[tuple[str, Any]] = []
        self._stop = stop

    def _hear(self, event: str, value: Any, number: int) -> None:
        self.received.append((event, value))
        if (event, number) == self._stop:
            raise KeyboardInterrupt

    def notify(self, message: str) -> None:
        self._hear("notify", message, 0)

    def started(self, session: Session) -> None:
        self._hear("started", session, 0)

    def reported(self, report: Report) -> None:
        self._hear("reported", report, report.epoch)

    def epoch_done(self, epoch: int) -> None:
        self._hear("epoch_done", epoch, epoch)

    def all(self, event: str) -> list[Any]:
        return [value for name, value in self.received if name == event]


def config(**changed: Any) -> Config:
    return Config(**{"layers": (12, 5, 4), "epochs": 4, "batch": 8, "device": "host",
                     "opt": "best", **changed})


@pytest.mark.parametrize(("layers", "activation", "count"), [
    ((12, 4), "tanh", 1), ((12, 4), "relu", 0), ((12, 9, 4), "tanh", 0)])
def test_an_activation_without_a_hidden_layer_is_said_to_play_no_part(
        layers: tuple[int, ...], activation: str, count: int) -> None:
    listener = Recorder()
    run(listener, layers=layers, activation=activation)
    said = [text for text in listener.all("notify") if text.startswith("activation")]
    assert said == count * ["activation = tanh plays no part: 12-4 has no hidden layer; give one, "
                            "as in --layers 12,128,4"]


def run(listener: Listener | None = None, data: Dataset = DATA, **changed: Any) -> Result:
    with Session(config(**changed), listener or Listener(), data=data) as session:
        return session.run()


def test_a_run_reports_every_epoch() -> None:
    listener = Recorder()
    result = run(listener)
    assert [r.epoch for r in result.history] == [1, 2, 3, 4]
    assert listener.all("reported") == result.history
    assert [name for name, _ in listener.received] == ["started"] + ["epoch_done", "reported"] * 4
    assert result.history[-1].train_loss < result.history[0].train_loss
    assert (result.test_loss, result.test_accuracy) == (
        result.history[-1].test_loss, result.history[-1].test_accuracy)
    assert not result.interrupted
    assert len(result.epoch_ms) == 4
    assert result.average_epoch_ms == pytest.approx(np.mean(result.epoch_ms[2:]))
    assert result.average_epoch_wall_ms == pytest.approx(
        np.mean([r.epoch_ms for r in result.history[2:]]))
    assert result.times.training >= result.times.training_device > 0
    assert result.toggles == {"preload": None, "fuse": None}
    assert result.dataset == "random"
    assert result.synthetic is True


@pytest.mark.parametrize(("interval", "epochs", "reported"), [
    (2, 4, [2, 4]), (3, 7, [3, 6, 7]), (10, 4, [4]), (1, 1, [1]),
])
def test_reports_fall_due_at_the_interval_and_at_the_end(interval: int, epochs: int,
                                                         reported: list[int]) -> None:
    result = run(opt=f"report={interval}", epochs=epochs)
    assert [r.epoch for r in result.history] == reported
    assert len(result.epoch_ms) == epochs
    every = run(opt="none", epochs=epochs)
    for name, array in every.parameters.items():  # not measuring changes nothing
        np.testing.assert_array_equal(result.parameters[name], array)
    assert result.history[-1].train_loss == every.history[-1].train_loss


@pytest.mark.parametrize(("batch", "partial", "trained_on"), [
    (8, False, 40), (16, True, 40), (16, False, 32), (39, True, 40)])
def test_training_figures_are_means_over_the_examples_trained_on(
        batch: int, partial: bool, trained_on: int) -> None:
    result = run(epochs=1, lr=0.0, batch=batch, partial=partial)
    parameters = Network((12, 5, 4)).initial(0)
    x, y = DATA.train_images[:trained_on] / 255.0, DATA.train_labels[:trained_on]
    hidden = np.maximum(x @ parameters["fc1.weight"].T + parameters["fc1.bias"], 0)
    z = hidden @ parameters["fc2.weight"].T + parameters["fc2.bias"]
    log_p = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    report = result.history[0]
    assert report.train_loss == pytest.approx(-log_p[np.arange(trained_on), y].mean())
    assert report.train_accuracy == pytest.approx((z.argmax(1) == y).mean())


@pytest.mark.parametrize("device", ["host", "sim"])
def test_the_same_seed_gives_the_same_run(device: str) -> None:
    first, again, other = (run(device=device, seed=s) for s in (5, 5, 6))
    for name in first.parameters:
        np.testing.assert_array_equal(first.parameters[name], again.parameters[name])
        assert (first.parameters[name] != other.parameters[name]).any()
    assert [replace(r, epoch_ms=0) for r in first.history] == \
        [replace(r, epoch_ms=0) for r in again.history]


def test_a_learning_rate_of_zero_keeps_the_parameters() -> None:
    for opt in ("none", "best"):
        result = run(lr=0.0, seed=3, opt=opt)
        for name, array in Network((12, 5, 4)).initial(3).items():
            np.testing.assert_array_equal(result.parameters[name], array)


def test_the_simulated_gpu_agrees_with_the_host() -> None:
    host, sim = run(opt="none"), run(device="sim", opt="best")
    for name, array in host.parameters.items():
        np.testing.assert_allclose(sim.parameters[name], array, rtol=0, atol=1e-5)
    assert sim.environment.device == "sim"
    assert sim.environment.gpu is not None
    assert sim.facts["graph_nodes"] > 0


# -- interruption --------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["host", "sim"])
@pytest.mark.parametrize(("stop", "reports", "epochs"), [
    (("epoch_done", 1), 0, 1), (("epoch_done", 3), 2, 3), (("reported", 1), 1, 1),
    (("reported", 4), 4, 4),
])
def test_ctrl_c_returns_what_was_reached(stop: tuple[str, int], reports: int, epochs: int,
                                         device: str) -> None:
    result = run(Recorder(stop), device=device)
    assert result.interrupted
    assert [r.epoch for r in result.history] == list(range(1, reports + 1))
    assert len(result.epoch_ms) == epochs
    trained = run(epochs=epochs, device=device)
    same_parameters(result, trained)
    assert result.test_accuracy == trained.test_accuracy  # measured at the end, report or none
    assert result.times.training > 0


def test_time_is_counted_once_in_an_interrupted_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = 0.0

    class Slow(Recorder):
        def epoch_done(self, epoch: int) -> None:
            nonlocal seconds
            seconds += 100  # an epoch takes 100 s
            super().epoch_done(epoch)

    monkeypatch.setattr("rawnn.engine.loop.perf_counter", lambda: seconds)
    for stop, epochs in ((("reported", 2), 2), (("epoch_done", 2), 2), (("", 0), 4)):
        result = run(Slow(stop))
        assert result.times.training == epochs * 100e3
        assert {r.epoch_ms for r in result.history} == {100e3}
    result = run(Slow(), opt="report=3")  # of three epochs, and of the one that is left
    assert [(r.epoch, r.epoch_ms) for r in result.history] == [(3, 100e3), (4, 100e3)]


# -- divergence ----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("scale", "normalise", "advice"), [
    (1e30, None, "the inputs reach from -1e+30 to 2e+30, which normalise = learned (--normalise "
                 "learned) standardises; else use a smaller learning rate than 1e+38"),
    (1e30, "learned", ": use a smaller learning rate than 1e+38"),
    (50.0, None, ": use a smaller learning rate than 1e+38"),  # up to 100
    (50.5, None, "the inputs reach from -50.5 to 101, which"),
    (-50.5, None, "the inputs reach from -101 to 50.5, which")])
def test_a_run_that_diverges_on_large_inputs_has_their_fix(
        scale: float, normalise: str | None, advice: str) -> None:
    x = np.resize(np.array([-1.0, 0.0, 2.0]), (40, 2)) * scale
    with pytest.raises(TrainingDiverged, match=re.escape(advice)):
        train(data=(x, np.arange(40) % 2), layers=(2, 8, 2), lr=1e38, epochs=3, batch=8,
              normalise=normalise, device="host")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("largest", "advice"), [
    (10.0, ": use a smaller"), (-10.0, ": use a smaller"),
    (10.5, "the targets reach from 0 to 10.5"), (-10.5, "the targets reach from -10.5 to 0")])
def test_a_run_that_diverges_on_large_targets_has_their_fix(largest: float, advice: str) -> None:
    x = np.resize(np.array([-1.0, 0.0, 2.0]), (40, 2))
    with pytest.raises(TrainingDiverged, match=re.escape(advice)):
        train(data=(x, largest * (np.arange(40) % 2) + 0.0), layers=(2, 8, 1), loss="mse", lr=1e38,
              epochs=3, batch=8, device="host")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("device", ["host", "sim"])
def test_a_diverged_run_names_the_step_and_keeps_the_history(device: str) -> None:
    with pytest.raises(TrainingDiverged) as caught:
        run(lr=1e38, epochs=3, device=device)
    message = str(caught.value)
    assert "the loss became nan at step" in message
    assert "of epoch 1: use a smaller learning rate than 1e+38" in message
    assert message.endswith("no report was reached before")
    assert caught.value.history == []  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_divergence_after_good_reports_keeps_them() -> None:
    class Poison(Recorder):
        def started(self, session: Session) -> None:
            self.session = session

        def reported(self, report: Report) -> None:
            if report.epoch == 2:
                self.session.runner._arrays["fc2.bias"][:] = np.nan

    with pytest.raises(TrainingDiverged, match=r"nan at step 0 of epoch 3: .*the last good report "
                                               r"is of epoch 2 \(test accuracy 0\.\d{4}\)") as bad:
        run(Poison())
    assert [r.epoch for r in bad.value.history] == [1, 2]  # type: ignore[attr-defined]
    with pytest.raises(TrainingDiverged, match="step 0 of epoch 4 or in an epoch before it that "
                                               "was not measured"):
        run(Poison(), opt="report=2")


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("changed", "sentence"), [
    ({"layers": (13, 4)}, "takes 13 features, but random has 12: use --layers 12-...-4"),
    ({"layers": (12, 3)}, "ends in 3 outputs, but random has 4: use --layers 12-...-4"),
    ({"batch": 41}, "batch = 41 is larger than the training set (40 examples)"),
    ({"opt": "cublas"}, "cublas: only for a GPU, and this run is on the host"),
    ({"opt": "nonsense"}, "unknown toggle 'nonsense'"),
])
def test_what_does_not_fit_is_refused(changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run(**changed)
    assert sentence in str(caught.value)


def test_more_classes_than_the_data_and_a_batch_of_all_examples_are_allowed() -> None:
    assert len(run(layers=(12, 6), batch=40, epochs=1).history) == 1


def test_auto_runs_on_the_host_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from rawnn.common.errors import DeviceError

    def refuse(ordinal: int, notify: object) -> None:
        raise DeviceError("no usable GPU")

    monkeypatch.setattr("rawnn.engine.machine.open_gpu", refuse)
    listener = Recorder()
    result = run(listener, device="auto", opt="best,cublas")
    assert "running on the host: no usable GPU" in listener.all("notify")
    assert "cublas does not apply on the host and is left out" in result.notes
    with pytest.raises(DeviceError, match="no usable GPU"):
        run(device="gpu")


def test_train_takes_a_config_or_its_options() -> None:
    with pytest.raises(ConfigError, match="either a Config or its options, not both"):
        train(Config(), epochs=3)
    with pytest.raises(ConfigError, match="batch = 0"):
        train(batch=0)
    result = train(dataset="synthetic", epochs=1, batch=500, device="host")
    assert result.dataset == "synthetic"
    assert result.test_accuracy > 0.3


# -- what the data decide ------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["host", "sim"])
def test_own_data_are_trained_on_to_the_last_example(device: str) -> None:
    x = np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32)
    y = np.where(np.arange(300) < 128, 0, 1)  # class 1 is in the partial batch alone
    own = {"data": (x[:240], y[:240]), "validation": (x[240:], y[240:]), "layers": (6, 2),
           "epochs": 20, "lr": 1.0, "device": device}
    kept = train(batch=128, **own)
    dropped = train(batch=128, partial=False, **own)
    assert (kept.config.partial, dropped.config.partial) == (True, False)
    assert (kept.facts.get("examples_left_out"), dropped.facts["examples_left_out"]) == (None, 112)
    assert kept.test_accuracy > dropped.test_accuracy + 0.3
    assert kept.history[0].train_loss != dropped.history[0].train_loss


@pytest.mark.parametrize(("examples", "batch"), [
    (1, 1), (7, 1), (16, 2), (120, 8), (240, 16), (1000, 64), (1023, 64), (1024, 128), (5000, 128)])
def test_the_batch_of_small_data_fits_and_is_said(examples: int, batch: int) -> None:
    data = random_dataset(features=12, classes=4, train=examples, test=5)
    listener = Recorder()
    result = run(listener, replace(data, own=True), batch=None, epochs=1)
    assert result.config.batch == batch
    shown = [m for m in listener.all("notify") if m.startswith(f"batch {batch}, since")]
    assert len(shown) == (examples < 1024)


def test_built_in_data_keep_the_batch_and_what_is_left_out_is_said(
    caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "rawnn"):
        result = run(batch=None, data=random_dataset(12, 4, 300, 5), epochs=1)
    assert (result.config.batch, result.config.partial) == (128, False)
    assert result.facts["examples_left_out"] == 44
    assert "of random's examples the last 44 fill no batch and are left out; --partial keeps " \
           "them" in caplog.messages
    assert "examples_left_out" not in run(batch=None, data=random_dataset(12, 4, 256, 5),
                                          epochs=1).facts


def test_a_batch_larger_than_the_data_names_the_fix() -> None:
    with pytest.raises(ConfigError, match=r"batch = 64 is larger .* use --batch 40 or less"):
        run(batch=64)


def test_binary_cross_entropy_compares_with_numbers_from_0_to_1() -> None:
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    signs = np.where(x[:, :1] > 0, 1.0, -1.0)
    options = {"loss": "bce", "batch": 4, "epochs": 1, "device": "host"}
    with pytest.raises(DataError, match="the training targets reach from -1 to 1, but the loss "
                                        "bce compares with numbers from 0 to 1: scale them"):
        train(data=(x, signs), layers=(3, 1), **options)
    with pytest.raises(DataError, match="the test targets reach from -1 to 1"):
        train(data=(x, (signs + 1) / 2), validation=(x, signs), layers=(3, 1), **options)
    with pytest.raises(DataError, match="the normalised training inputs reach from -"):
        train(data=x, layers=(3, 3), normalise="learned", **options)
    assert train(data=(x, (signs + 1) / 2), layers=(3, 1), **options).test_loss > 0
    pixels = (x > 0).astype(np.uint8) * 255
    assert train(data=pixels, layers=(3, 3), **options).test_loss > 0


def test_outputs_that_no_class_needs_are_said() -> None:
    x = np.random.default_rng(0).random((40, 3), dtype=np.float32)
    with pytest.warns(RuntimeWarning, match="the network has 3 more outputs than arrays has"):
        train(data=(x, (x[:, 0] > 0.5).astype(int)), layers=(3, 5), device="host", epochs=1)


@pytest.mark.parametrize(("wanted", "ordinal", "opened"), [
    ("gpu", 0, 0), ("gpu", 3, 3), ("auto", 2, 2), ("gpu:0", 2, 0), ("gpu:1", 0, 1),
    ("gpu:1", 2, 1)])
def test_the_gpu_that_is_named_is_opened_else_the_processs_own(
        monkeypatch: pytest.MonkeyPatch, wanted: str, ordinal: int, opened: int) -> None:
    from rawnn.cuda.device import Device
    from rawnn.engine import machine
    from rawnn.sim import sim_backend

    asked = list[int]()
    monkeypatch.setattr(machine, "open_gpu", lambda number, notify: (
        asked.append(number), Device(sim_backend(), 0, notify))[1])
    with machine.open_device(wanted, lambda message: None, ordinal):
        assert asked == [opened]


@pytest.mark.parametrize("device", ["host", "sim"])
def test_each_time_of_a_result_is_in_milliseconds_of_its_own_part(
        monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """Every part is held up by a time of its own, in which the others have no share."""
    from rawnn.engine.run_planner import RunPlanner
    from rawnn.engine.runners.gpu import GpuRunner
    from rawnn.engine.runners.host import HostRunner

    runner = HostRunner if device == "host" else GpuRunner
    parts = {"data": (Session, "_read_data", 0.05), "setup": (RunPlanner, "plan", 0.07),
             "training": (runner, "epoch", 0.03), "evaluation": (runner, "evaluate", 0.02)}

    def slowed(own: Any, seconds: float) -> Any:
        def run_later(*given: Any, **named: Any) -> Any:
            time.sleep(seconds)
            return own(*given, **named)

        return run_later

    for owner, name, seconds in parts.values():
        monkeypatch.setattr(owner, name, slowed(getattr(owner, name), seconds))
    begun = time.perf_counter()
    found = run(device=device, epochs=2).times
    elapsed = (time.perf_counter() - begun) * 1e3
    each = {"data": 50.0, "setup": 70.0, "training": 2 * 30.0, "evaluation": 2 * 20.0}
    for name, least in each.items():
        assert getattr(found, name) >= least, name
        assert getattr(found, name) <= elapsed - sum(each.values()) + least, name
    assert sum((found.data, found.driver, found.compile, found.setup, found.training,
                found.evaluation)) <= elapsed
    assert found.process >= elapsed


def test_a_warmup_longer_than_the_run_is_said() -> None:
    x = np.random.default_rng(0).random((40, 3), dtype=np.float32)
    with pytest.warns(RuntimeWarning, match="the warm-up of 5 epochs is longer than the run of 2"):
        train(data=(x, (x[:, 0] > 0.5).astype(int)), layers=(3, 2), device="host", epochs=2,
              schedule="warmup:5")


def test_an_autoencoder_of_arrays_takes_no_answers() -> None:
    """They had no effect: clean images beside noisy ones were not learned."""
    x = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    options: dict[str, Any] = {"layers": (6, 3, 6), "loss": "mse", "autoencoder": True,
                               "epochs": 1, "batch": 8, "device": "host"}
    for y in (x + 1, np.arange(40)):
        for call in (rawnn.train, rawnn.train_many):
            with pytest.raises(ConfigError, match="reproduces its inputs, so that y would have no"):
                call(data=(x, y), **options)
    alone = rawnn.train(data=x, **options)
    same = rawnn.train(data=(x, x), **options)
    assert all((alone.parameters[n] == same.parameters[n]).all() for n in alone.parameters)
