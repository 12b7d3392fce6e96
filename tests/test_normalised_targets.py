"""Runs on normalised targets: losses in the values' units, predictions, checkpoints, resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rawnn import Model
from rawnn.common.errors import CheckpointError, ConfigError, TrainingDiverged
from rawnn.common.listener import Listener
from rawnn.data import Dataset, from_arrays
from rawnn.engine.callbacks import CsvLog
from rawnn.engine.checkpoint import Checkpoint, decode, encode
from rawnn.engine.config import Config
from rawnn.engine.result import Report, Result
from rawnn.engine.training import train
from rawnn.model.layers import Network
from tests import requires
from tests.engine import same_parameters

RNG = np.random.default_rng(8)
X = RNG.normal(size=(300, 5)).astype(np.float32)
PRICE = np.clip(5e5 + 1.2e5 * (X @ np.array([1.0, 0.5, -0.4, 0.2, 0.1])) + 3e4 * X[:, 0] * X[:, 1],
                1e5, 9e5)
ROOMS = 3 + X[:, 1] * 0.5
BOTH = np.stack([PRICE, ROOMS], axis=1)
ALIKE = np.stack([PRICE, 2e6 - PRICE], axis=1)



def go(y: Any = PRICE, **changed: Any) -> Result:
    outputs = 1 if y.ndim == 1 else y.shape[1]
    return train(**{"layers": (5, 8, outputs), "loss": "mse", "batch": 32, "epochs": 4, "lr": 0.05,
                    "device": "host", "opt": "none", "data": (X[:210], y[:210]),
                    "validation": (X[210:], y[210:]), "normalise_targets": "learned", **changed})


def predicted(result: Result, y: Any, rows: slice) -> Any:
    """By hand, in float64: a ReLU network of two layers, and its outputs in the values' units."""
    p = {name: array.astype(np.float64) for name, array in result.parameters.items()}
    hidden = np.maximum(X[rows] @ p["fc1.weight"].T + p["fc1.bias"], 0)
    z = hidden @ p["fc2.weight"].T + p["fc2.bias"]
    train_rows = y[:210].reshape(210, -1)
    return z * train_rows.std(axis=0) + train_rows.mean(axis=0)


def squared_error(result: Result, y: Any, rows: slice) -> float:
    wanted = y[rows].reshape(len(y[rows]), -1)
    return float(np.mean((predicted(result, y, rows) - wanted) ** 2))


@pytest.mark.parametrize("lr", [0.1, 0.01, 0.001])
def test_raw_prices_diverge_and_the_message_names_the_fix(lr: float) -> None:
    with pytest.raises(TrainingDiverged, match=r"the targets reach from 1\d\d,\d+.* to .*, which "
                                               r"normalise_targets = learned \(--normalise-targets "
                                               r"learned\) standardises; else use a smaller"):
        go(normalise_targets=None, lr=lr, epochs=30)
    found = go(lr=lr, epochs=30)
    spread = float(np.var(PRICE[210:]))
    assert found.test_loss < (0.2 if lr > 0.001 else 0.9) * spread


def test_targets_far_below_zero_are_as_far_away() -> None:
    with pytest.raises(TrainingDiverged, match=r"the targets reach from -.* to -1\d\d,\d+.*"
                                               r"standardises"):
        go(-PRICE, normalise_targets=None, lr=0.1, epochs=30)


def test_small_targets_that_diverge_are_no_matter_of_normalisation() -> None:
    with pytest.raises(TrainingDiverged, match=r"of epoch \d: use a smaller"):
        go(ROOMS, normalise_targets=None, lr=1e4)


@pytest.mark.parametrize("y", [PRICE, BOTH], ids=["one", "unlike"])
def test_so_they_are_of_inputs_that_are_normalised_in_float64(tmp_path: Path, y: Any) -> None:
    wide = X + np.float64(1.7e9) * np.arange(5)  # float32 resolves 128 there
    inputs = {"data": (wide[:210], y[:210]), "validation": (wide[210:], y[210:])}
    whole = go(y, **inputs, normalise="learned", epochs=20)
    assert whole.normalisation.is_double
    assert whole.test_loss < 0.15 * float(np.var(y[210:], axis=0).mean())
    found = whole.model.predict(wide[210:])
    error = float(np.mean((found - y[210:].reshape(found.shape)) ** 2))
    assert whole.test_loss == pytest.approx(error, rel=1e-5)
    go(y, **inputs, normalise="learned", epochs=10, save=tmp_path)
    rest = train(resume=tmp_path, epochs=20, **inputs)
    same_parameters(rest, whole)
    assert rest.test_loss == whole.test_loss
    again = Model.load(tmp_path).predict(wide[210:])
    np.testing.assert_array_equal(again, found)


@pytest.mark.parametrize("device", ["host", "sim"])
@pytest.mark.parametrize("y", [PRICE, BOTH, ALIKE], ids=["one", "unlike", "alike"])
def test_losses_are_those_of_the_values(y: Any, device: str) -> None:
    """At a learning rate of 0 the mean over batches is that of the network as it stands."""
    still = go(y, lr=0.0, epochs=2, device=device)
    for report in still.history:
        assert report.train_loss == pytest.approx(squared_error(still, y, slice(210)), rel=1e-5)
        assert report.test_loss == pytest.approx(squared_error(still, y, slice(210, None)),
                                                 rel=1e-5)
    found = go(y, device=device)
    assert found.test_loss == found.history[-1].test_loss == \
        pytest.approx(squared_error(found, y, slice(210, None)), rel=1e-5)
    score = found.model.score(X[210:], y[210:])
    assert score.loss == pytest.approx(found.test_loss, rel=1e-5)


@pytest.mark.parametrize("opt", ["none", "best", "graphs", "bf16"])
def test_with_toggles_on_the_simulated_gpu(opt: str) -> None:
    found = go(opt=opt, device="sim", epochs=2)
    near = 0.05 if opt == "bf16" else 1e-4
    assert found.test_loss == pytest.approx(squared_error(found, PRICE, slice(210, None)), rel=near)


def test_the_host_says_that_it_measures_columns_that_differ() -> None:
    class Notes(Listener):
        def __init__(self) -> None:
            self.messages: list[str] = []

        def notify(self, message: str) -> None:
            self.messages.append(message)

    for y, expected in ((BOTH, True), (ALIKE, False), (PRICE, False)):
        notes = Notes()
        go(y, epochs=1, listener=notes)
        assert any("measured on the host" in message for message in notes.messages) is expected


def test_everybody_is_shown_the_same_losses(tmp_path: Path) -> None:
    class Recorder(Listener):
        def __init__(self) -> None:
            self.reports: list[Report] = []

        def reported(self, report: Report) -> None:
            self.reports.append(report)

    received = Recorder()
    found = go(BOTH, listener=[received, CsvLog(tmp_path / "log.csv")])
    assert received.reports is not found.history
    assert [r.test_loss for r in received.reports] == [r.test_loss for r in found.history]
    rows = (tmp_path / "log.csv").read_text().splitlines()
    assert float(rows[-1].split(",")[3]) == found.history[-1].test_loss
    assert found.to_dict()["history"][-1]["test_loss"] == found.test_loss


def test_early_stopping_goes_by_the_values(tmp_path: Path) -> None:
    """Its best is the least squared error in the values' units, and its message has it."""
    found = go(lr=0.5, epochs=60, patience=2, save=str(tmp_path), min_delta=1.0)
    best = min(found.history, key=lambda report: report.test_loss)
    assert f"{best.test_loss:.4g} of epoch {best.epoch}" in found.stopped
    assert found.test_loss == pytest.approx(squared_error(found, PRICE, slice(210, None)), rel=1e-5)
    assert found.test_loss == pytest.approx(best.test_loss, rel=1e-6)


@pytest.mark.parametrize("device", ["host", "sim"])
def test_predictions_are_values(device: str, tmp_path: Path) -> None:
    found = go(BOTH, save=str(tmp_path))
    wanted = predicted(found, BOTH, slice(None))
    for model in (found.model, Model.load(tmp_path)):
        predictions = model.predict(X, device=device)
        assert predictions.dtype == np.float64
        np.testing.assert_allclose(predictions, wanted, rtol=1e-5)
    found.model.save(tmp_path / "model.safetensors")
    again = Model.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict(X), found.model.predict(X))


def test_values_that_float32_cannot_tell_apart_are_predicted() -> None:
    y = 1e9 + (X[:, 0] > 0)
    found = go(y, epochs=60, lr=0.2)
    assert found.test_loss < 0.15
    predictions = found.model.predict(X[210:])
    assert float(np.mean((predictions > 1e9 + 0.5).ravel() == (X[210:, 0] > 0))) > 0.9


@pytest.mark.parametrize("y", [PRICE, BOTH], ids=["one", "two"])
def test_a_resumed_run_ends_as_one_that_never_stopped(y: Any, tmp_path: Path) -> None:
    whole = go(y, epochs=4, optimizer="adam", lr=0.01)
    go(y, epochs=2, optimizer="adam", lr=0.01, save=str(tmp_path))
    resumed = go(y, epochs=4, optimizer="adam", lr=0.01, resume=str(tmp_path))
    for name, array in whole.parameters.items():
        np.testing.assert_array_equal(array, resumed.parameters[name])
    assert [(r.epoch, r.train_loss, r.test_loss) for r in resumed.history] == \
        [(r.epoch, r.train_loss, r.test_loss) for r in whole.history[2:]]


def test_a_resumed_run_goes_on_with_the_statistics_of_its_checkpoint(tmp_path: Path) -> None:
    """Prices that have risen: the network's outputs go on meaning what they meant."""
    before = go(epochs=2, save=str(tmp_path))
    risen = 1.5 * PRICE + 1e5
    after = go(epochs=3, lr=0.0, resume=str(tmp_path), new_data=True, data=(X[:210], risen[:210]),
               validation=(X[210:], risen[210:]))
    assert after.target_normalisation is not None
    assert before.target_normalisation is not None
    assert after.target_normalisation.same(before.target_normalisation)
    wanted = np.mean((predicted(before, PRICE, slice(210, None))[:, 0] - risen[210:]) ** 2)
    assert after.test_loss == pytest.approx(float(wanted), rel=1e-5)


def test_resuming_with_and_without_is_refused(tmp_path: Path) -> None:
    go(epochs=1, save=str(tmp_path / "with"))
    with pytest.raises(ConfigError, match="has normalised targets: continue it with"):
        go(epochs=2, resume=str(tmp_path / "with"), normalise_targets=None)
    go(ROOMS, epochs=1, normalise_targets=None, save=str(tmp_path / "without"))
    with pytest.raises(ConfigError, match="leave normalise_targets out"):
        go(ROOMS, epochs=2, resume=str(tmp_path / "without"))


@pytest.mark.parametrize(("options", "sentence"), [
    ({"loss": "bce"}, "for target values .--loss mse.: the loss bce compares with targets from 0"),
    ({"loss": "cross_entropy"}, "the loss cross_entropy compares with class labels"),
    ({"loss": "mse", "autoencoder": True}, "has no effect with autoencoder"),
    ({"loss": "mse", "normalise_targets": "always"}, "'always': use learned or none"),
])
def test_refusals(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Config(**{"normalise_targets": "learned", **options})


def test_none_is_the_default() -> None:
    assert Config(normalise_targets="none", loss="bce").normalise_targets == "none"
    plain = go(ROOMS, normalise_targets=None)
    none = go(ROOMS, normalise_targets="none")
    assert plain.target_normalisation is none.target_normalisation is None
    assert plain.model.predict(X).dtype == np.float32
    assert plain.test_loss == none.test_loss


def test_a_data_set_of_the_callers_own() -> None:
    plain = from_arrays((X[:210], PRICE[:210].astype(np.float32)), (X[210:], PRICE[210:]))
    whole = train(data=plain, layers=(5, 1), loss="mse", epochs=2, device="host", batch=32,
                  normalise_targets="learned")
    assert whole.target_normalisation is not None
    brought = train(data=plain.with_targets("learned"), layers=(5, 1), loss="mse", epochs=2,
                    device="host", batch=32)
    assert brought.test_loss == whole.test_loss
    ready: Dataset = plain.with_targets("learned")
    with pytest.raises(ConfigError, match="the targets of arrays are normalised, but the loss bce"):
        train(data=ready, layers=(5, 1), loss="bce", epochs=1, device="host")


def test_a_checkpoint_holds_it() -> None:
    found = go(BOTH, epochs=1)
    kept = Checkpoint(found.config.network(), found.parameters,
                      target_normalisation=found.target_normalisation)
    again = decode(encode(kept), "x").target_normalisation
    assert again is not None
    assert found.target_normalisation is not None
    assert again.same(found.target_normalisation)
    network = Network((5, 8, 3), loss="mse")
    with pytest.raises(CheckpointError, match="normalisation of 2 targets does not fit"):
        Model(network, network.initial(0), target_normalisation=again)


@pytest.mark.parametrize("input_type", ["float32", "uint8"])
def test_an_exported_model_gives_values(input_type: Any) -> None:
    requires.module("onnx")
    runtime = requires.module("onnxruntime")
    from rawnn.engine.export import onnx_model

    model = go(BOTH).model
    model.target_names = ("price", "rooms")
    inputs = RNG.integers(0, 3, (20, 5)).astype(input_type)
    made = onnx_model(model, input_type)
    session = runtime.InferenceSession(made.SerializeToString(),
                                       providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == ["values"]
    predictions = session.run(None, {"inputs": inputs})[0]
    assert predictions.dtype == np.float32
    np.testing.assert_allclose(predictions, model.predict(inputs), rtol=1e-5)
    assert {p.key: p.value for p in made.metadata_props}["target_names"] == '["price", "rooms"]'
