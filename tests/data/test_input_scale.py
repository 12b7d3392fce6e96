"""A trained network is given inputs on another scale than that of its training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import rawnn
from rawnn.common.errors import DataError
from rawnn.data import Dataset
from rawnn.data.input_scale import InputScale
from rawnn.data.normalise import Normalisation
from rawnn.engine import checkpoint

RNG = np.random.default_rng(7)
BYTES = RNG.integers(0, 256, (60, 5), np.uint8)
Y = (BYTES[:, 0] > 127).astype(int)
OPTIONS: dict[str, Any] = {"layers": (5, 2), "epochs": 2, "device": "host"}


def logits(model: rawnn.Model, inputs: NDArray[Any]) -> NDArray[Any]:
    """In float64, of inputs as the layer takes them."""
    weight, bias = (model.parameters[f"fc1.{name}"].astype(float) for name in ("weight", "bias"))
    return inputs @ weight.T + bias


def test_fractions_are_refused_where_bytes_were_trained_on(tmp_path: Path) -> None:
    result = rawnn.train(data=(BYTES, Y), save=str(tmp_path / "run"), **OPTIONS)
    result.model.save(tmp_path / "model.safetensors")
    many = rawnn.train_many(data=(BYTES, Y), seed=[0, 1], **OPTIONS)
    member = many[0].model
    for model in (result.model, member, rawnn.Model.load(tmp_path / "run"),
                  rawnn.Model.load(tmp_path / "model.safetensors")):
        exact = logits(model, BYTES / 255)
        for given in (BYTES, BYTES.astype(np.float32), BYTES.astype(int), BYTES[:1] * 0.0):
            np.testing.assert_allclose(model.predict(given, "logits"),
                                       exact if len(given) > 1 else logits(model, given),
                                       rtol=1e-4, atol=1e-5)
        for wrong in (BYTES / 255, (BYTES > 99) * 1.0, BYTES - 128.0, BYTES.astype(int) * 2):
            with pytest.raises(DataError, match=r"the inputs are \w+ from .* but the network was "
                                                r"trained on uint8 from 0 to 255"):
                model.predict(wrong)
            with pytest.raises(DataError, match="give them on that scale"):
                model.score(wrong, Y)


def test_bytes_are_refused_where_fractions_were_trained_on() -> None:
    model = rawnn.train(data=(BYTES / np.float32(255), Y), **OPTIONS).model
    with pytest.raises(DataError, match="the inputs are uint8 from 0 to 255, but the network was "
                                        "trained on float32 from 0 to 1: scale bytes"):
        model.predict(BYTES)
    assert len(model.predict((BYTES > 99).astype(np.uint8))) == 60
    ages = rawnn.train(data=(BYTES.astype(np.float32), Y), normalise="learned", **OPTIONS).model
    np.testing.assert_array_equal(ages.predict(BYTES), ages.predict(BYTES.astype(float)))


def test_bytes_of_0_and_1_keep_their_scale() -> None:
    binary = (BYTES > 127).astype(np.uint8)
    model = rawnn.train(data=(binary, Y), **OPTIONS).model
    for given in (binary * 1.0, BYTES):
        np.testing.assert_allclose(model.predict(given, "logits"), logits(model, given),
                                   rtol=1e-4, atol=1e-5)


def test_a_resumed_run_keeps_the_scale(tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    rawnn.train(data=(BYTES, Y), save=folder, **OPTIONS)
    again: dict[str, Any] = {"resume": folder, "new_data": True, "epochs": 3}
    with pytest.raises(DataError, match="the training inputs of arrays are float32 from 0 to 1"):
        rawnn.train(data=(BYTES / 255, Y), **again)
    model = rawnn.train(data=(BYTES.astype(np.float32), Y), save=folder, **again).model
    for each in (model, rawnn.Model.load(folder)):
        with pytest.raises(DataError, match="trained on uint8 from 0 to 255"):
            each.predict(BYTES / 255)


def test_an_older_checkpoint_is_known_by_its_normalisation(tmp_path: Path) -> None:
    trained = rawnn.train(data=(BYTES, Y), **OPTIONS)
    older = checkpoint.Checkpoint(trained.config.network(), trained.parameters,
                                  normalisation=Normalisation(1 / 255))
    checkpoint.write(tmp_path / "old.safetensors", older)
    model = rawnn.Model.load(tmp_path / "old.safetensors")
    np.testing.assert_array_equal(model.predict(BYTES), trained.model.predict(BYTES))
    with pytest.raises(DataError, match="trained on uint8 from 0 to 255"):
        model.predict(BYTES / 255)


def test_answers_of_an_autoencoder_have_the_scale_of_its_inputs() -> None:
    model = rawnn.train(data=BYTES, loss="mse", autoencoder=True,
                        **{**OPTIONS, "layers": (5, 2, 5)}).model
    assert model.score(BYTES, BYTES.astype(float)) == model.score(BYTES)
    with pytest.raises(DataError, match="the answers are float64 from 0 to 1, but the network was"):
        model.score(BYTES, BYTES / 255)


def test_a_data_set_has_its_scale_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    original = InputScale.of

    def counted(data: Dataset) -> InputScale | None:
        computed.append(len(data.train_images))
        return original(data)

    monkeypatch.setattr(InputScale, "of", counted)
    x = np.random.default_rng(3).normal(size=(40, 5)).astype(np.float32)
    data = rawnn.from_arrays((x, (x[:, 0] > 0).astype(int)), 0.25)
    for seed in range(3):
        found = rawnn.train(data=data, layers=(5, 2), epochs=1, batch=8, seed=seed, device="host")
        assert found.input_scale == InputScale("float32", float(data.train_images.min()),
                                               float(data.train_images.max()))
    assert computed == [len(data.train_images)]
