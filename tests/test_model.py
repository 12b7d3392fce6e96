"""Models: predictions against the engine and against float64, keeping, and PyTorch's names."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rawnn.common.errors import CheckpointError, ConfigError, DataError, DeviceError
from rawnn.cuda.device import Device
from rawnn.data import from_arrays
from rawnn.data.normalise import Normalisation
from rawnn.engine import machine
from rawnn.engine.model import Model
from rawnn.engine.result import Result
from rawnn.engine.training import train
from rawnn.many.ensemble import Ensemble
from rawnn.model.activations import ACTIVATIONS, activation
from rawnn.model.layers import Network
from rawnn.sim import sim_backend
from tests import requires
from tests.data.foreign import Foreign
from tests.test_training import DATA

RNG = np.random.default_rng(0)


def trained(**changed: Any) -> Result:
    options: dict[str, Any] = {"layers": (12, 9, 4), "epochs": 2, "batch": 8, "device": "host",
                               "opt": "none", "data": DATA}
    return train(**{**options, **changed})


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_scores_are_those_of_training(name: str, bias: bool) -> None:
    result = trained(activation=name, bias=bias)
    score = result.model.score(DATA.test_images, DATA.test_labels, batch=5)
    assert score.loss == pytest.approx(result.test_loss, rel=1e-5)
    assert score.accuracy == result.test_accuracy


def test_predictions_are_the_same_in_any_batch_and_on_a_device() -> None:
    model = trained(activation="gelu").model
    z = model.predict(DATA.test_images, "logits")
    assert (z.shape, z.dtype) == ((13, 4), np.float32)
    for batch in (1, 5, 13, 99):
        np.testing.assert_allclose(model.predict(DATA.test_images, "logits", batch=batch), z,
                                   rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.predict(DATA.test_images, "logits", device="sim"), z,
                               rtol=1e-5, atol=1e-6)
    many = np.tile(DATA.test_images, (500, 1))
    np.testing.assert_array_equal(model.predict(many, device="sim"), model.predict(many))
    assert model.score(DATA.test_images, DATA.test_labels, device="sim").loss == pytest.approx(
        model.score(DATA.test_images, DATA.test_labels).loss, rel=1e-5)


def test_auto_predicts_on_a_gpu_or_else_on_the_host(monkeypatch: pytest.MonkeyPatch,
                                                    caplog: pytest.LogCaptureFixture) -> None:
    model = trained().model
    opened: list[Device] = []

    def simulated(ordinal: int, notify: Any) -> Device:
        opened.append(Device(sim_backend()))
        return opened[-1]

    def missing(ordinal: int, notify: Any) -> Device:
        raise DeviceError("there is no driver")

    host = model.predict(DATA.test_images, "logits")
    for open_gpu in (simulated, missing):
        monkeypatch.setattr(machine, "open_gpu", open_gpu)
        with caplog.at_level("INFO", "rawnn"):
            found = model.predict(DATA.test_images, "logits", device="auto")
        np.testing.assert_allclose(found, host, rtol=1e-5, atol=1e-6)
    assert len(opened) == 1
    assert "on the host, not on a GPU: there is no driver" in caplog.text
    assert model.score(DATA.test_images, DATA.test_labels, device="auto") == \
        model.score(DATA.test_images, DATA.test_labels)
    with pytest.raises(ConfigError, match="use auto, gpu"):
        model.predict(DATA.test_images[:0], device="cpu")


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int32"])
def test_a_device_reads_every_type_of_inputs(dtype: str) -> None:
    x = (RNG.random((37, 12)) * 9).astype(dtype)
    network = Network((12, 9, 4), bias=False)
    normalisation = Normalisation.of("learned", x.astype(np.float32))
    model = Model(network, network.initial(3), normalisation)
    np.testing.assert_allclose(model.predict(x, "logits", device="sim"),
                               model.predict(x, "logits"), rtol=1e-4, atol=1e-5)


def test_outputs_of_a_classifier() -> None:
    model = trained().model
    z = model.predict(DATA.test_images, "logits").astype(np.float64)
    p = model.predict(DATA.test_images, "probabilities")
    np.testing.assert_allclose(p, np.exp(z) / np.exp(z).sum(axis=1, keepdims=True), rtol=1e-5)
    classes = model.predict(DATA.test_images)
    assert (classes.dtype, classes.tolist()) == (np.int32, z.argmax(axis=1).tolist())
    model.label_names = ("a", "b", "c")
    assert model.names == ["a", "b", "c", "3"]
    assert model.predict(DATA.test_images, "labels").tolist() == [
        model.names[i] for i in classes.tolist()]
    confusion = model.confusion(DATA.test_images, DATA.test_labels)
    assert confusion.sum() == 13
    assert confusion.trace() == (classes == DATA.test_labels).sum()
    assert confusion.sum(axis=0).tolist() == np.bincount(classes, minlength=4).tolist()
    names = np.array(model.names)[DATA.test_labels]
    np.testing.assert_array_equal(model.confusion(DATA.test_images, names), confusion)


def test_outputs_of_multi_label_networks() -> None:
    x = RNG.normal(size=(40, 12)).astype(np.float32)
    y = (x[:, :4] > 0).astype(np.float32)
    result = trained(data=from_arrays((x, y), (x, y)), loss="bce", lr=1.0, epochs=20)
    model = result.model
    z = model.predict(x, "logits")
    np.testing.assert_allclose(model.predict(x, "probabilities"), 1 / (1 + np.exp(-z)), rtol=1e-5)
    np.testing.assert_array_equal(model.predict(x), z > 0)
    score = model.score(x, y)
    assert score.loss == pytest.approx(result.test_loss, rel=1e-5)
    assert score.accuracy == pytest.approx(result.test_accuracy)
    with pytest.raises(ConfigError, match="no classes to confuse"):
        model.confusion(x, y)
    with pytest.raises(ConfigError, match="output = 'labels': a network trained with bce gives"):
        model.predict(x, "labels")


@pytest.mark.parametrize("device", ["host", "sim"])
def test_an_answer_between_0_and_1_is_the_nearer_of_the_two(device: str) -> None:
    x = RNG.normal(size=(60, 12)).astype(np.float32)
    y = RNG.random((60, 4)).astype(np.float32)
    result = trained(data=from_arrays((x, y), (x, y)), loss="bce", epochs=2, device=device)
    right = ((result.model.predict(x, "probabilities") > 0.5) == (y > 0.5)).mean()
    assert 0.2 < right < 0.9
    assert result.model.score(x, y).accuracy == pytest.approx(right)
    assert result.test_accuracy == pytest.approx(right)


def test_outputs_of_regression_and_autoencoders() -> None:
    x = RNG.normal(size=(40, 12)).astype(np.float32)
    result = trained(data=from_arrays((x, x[:, :4]), (x, x[:, :4])), loss="mse")
    model = result.model
    assert model.predict(x).shape == (40, 4)
    score = model.score(x, x[:, :4])
    assert score.loss == pytest.approx(result.test_loss, rel=1e-5)
    assert math.isnan(score.accuracy)
    again = trained(data=from_arrays(x, x, normalise="learned"), layers=(12, 3, 12), loss="mse")
    assert again.model.score(x).loss == pytest.approx(again.test_loss, rel=1e-5)


@pytest.mark.parametrize(("dtype", "normalise"), [
    ("float32", "learned"), ("float64", "learned"), ("uint8", None), ("float32", None),
    ("float32", {"scale": 0.5, "mean": 3.0, "std": 2.0}),
])
def test_an_autoencoder_answers_in_the_units_of_its_inputs(dtype: str, normalise: Any,
                                                           tmp_path: Path) -> None:
    """Wide enough to reproduce its inputs, which are far from those of the network."""
    x = (100 + 20 * RNG.normal(size=(200, 3))).clip(0, 250).astype(dtype)
    options = {"data": x, "normalise": normalise} if normalise else {"data": x}
    result = train(**options, layers=(3, 3), loss="mse", epochs=300, batch=20, optimizer="adam",
                   lr=0.02, device="host", save=str(tmp_path), save_every=300)
    for model in (result.model, Model.load(tmp_path)):
        assert model.autoencoder
        found = model.predict(x)
        assert found.dtype == (np.float64 if dtype == "float64" else np.float32)
        np.testing.assert_allclose(found, x, rtol=0.05, atol=1)
        np.testing.assert_allclose(model.predict(x, device="sim"), found, rtol=1e-4)
        assert model.predict(x[:0]).shape == (0, 3)
        if normalise:  # what is compared stays normalised, as in training
            assert model.score(x).loss == pytest.approx(np.square(
                model.normalisation.apply(found) - model.normalisation.apply(x)).mean(), rel=1e-2)


def test_an_autoencoder_of_probabilities_answers_in_units_too() -> None:
    x = (RNG.random((200, 4)) > 0.5).astype(np.uint8) * 200
    model = train(data=x, layers=(4, 8, 4), loss="bce", epochs=100, batch=20, optimizer="adam",
                  lr=0.02, device="host").model
    np.testing.assert_allclose(model.predict(x), x, atol=12)
    np.testing.assert_allclose(model.predict(x, "probabilities") * 255, model.predict(x), rtol=1e-5)
    assert set(np.unique(model.predict(x, "classes"))) == {0, 1}


def test_no_rows_give_an_empty_array() -> None:
    model = trained().model
    none = DATA.test_images[:0]
    for output, shape, dtype in (("classes", (0,), "int32"), ("labels", (0,), model.labels.dtype),
                                 ("probabilities", (0, 4), "float32"),
                                 ("logits", (0, 4), "float32")):
        for device in ("host", "sim"):
            found = model.predict(none, output, device=device)  # type: ignore[arg-type]
            assert (found.shape, found.dtype) == (shape, dtype)
    assert model.predict(np.zeros((0, 3, 4))).shape == (0,)
    with pytest.raises(DataError, match="no examples to score"):
        model.score(none, [])
    with pytest.raises(DataError, match="have 11 features"):
        model.predict(np.zeros((0, 11)))


@pytest.mark.parametrize("loss", ["mse", "bce"])
def test_scores_take_the_values_that_training_takes(loss: str) -> None:
    pandas = requires.module("pandas")
    y = (DATA.train_images[:, :2] > 100).astype(float)
    frame = pandas.DataFrame(y, columns=["u", "v"]).astype({"u": "Int64", "v": bool})
    inputs = pandas.DataFrame(DATA.train_images.astype(float))
    for answers in (y, y.astype(bool), y.tolist(), frame, {"u": y[:, 0], "v": y[:, 1]}):
        model = train(data=(inputs, answers), layers=(12, 2), loss=loss, epochs=1, batch=8,
                      device="host").model
        assert model.score(inputs, answers) == model.score(inputs.to_numpy(), y)
    y[3, 1] = np.nan
    with pytest.raises(DataError, match=r"the answers hold nan \(row 3, column 1\)"):
        model.score(inputs, y)
    with pytest.raises(DataError, match="the answers are of type <U1, but must be numbers"):
        model.score(inputs, np.full((40, 2), "a"))


def test_gelu_is_as_exact_as_float32() -> None:
    z = np.linspace(-12, 12, 100_001).astype(np.float32)
    exact = activation("gelu").function(z.astype(np.float64))
    np.testing.assert_allclose(ACTIVATIONS["gelu"].fast(z), exact, rtol=0, atol=1e-6)
    ends = ACTIVATIONS["gelu"].fast(np.array([0, 100, -100], np.float32))
    np.testing.assert_array_equal(ends, [0, 100, 0])


def test_tensors_of_other_libraries() -> None:
    model = trained().model
    x = DATA.test_images
    np.testing.assert_array_equal(model.predict(Foreign(x)), model.predict(x))
    assert model.score(Foreign(x), Foreign(DATA.test_labels)) == model.score(x, DATA.test_labels)
    np.testing.assert_array_equal(model.predict(x.reshape(13, 3, 4)), model.predict(x))


def test_a_saved_model_is_the_same(tmp_path: Path) -> None:
    words = np.array(["dog", "cat", "eel", "fox"])
    data = from_arrays((DATA.train_images, words[DATA.train_labels]),
                       (DATA.test_images, words[DATA.test_labels]), normalise="learned")
    result = trained(data=data, save=str(tmp_path / "run"), activation="tanh")
    model = result.model
    assert model.label_names == ("cat", "dog", "eel", "fox") == result.label_names
    model.save(tmp_path / "m.safetensors")
    for path in ("m.safetensors", "run", "run/rawnn-000002.safetensors"):
        found = Model.load(tmp_path / path)
        assert (found.network, found.label_names) == (model.network, model.label_names)
        np.testing.assert_array_equal(found.predict(DATA.test_images, "logits"),
                                      model.predict(DATA.test_images, "logits"))
    with pytest.raises(CheckpointError, match="cannot be read"):
        Model.load(tmp_path / "none")
    with pytest.raises(CheckpointError, match="cannot write"):
        model.save(tmp_path / "no" / "m.safetensors")


def test_state_dicts() -> None:
    model = trained().model
    state = model.state_dict()
    assert list(state) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    other = Model(model.network, model.network.initial(9), model.normalisation)
    other.load_state_dict({name: Foreign(array) for name, array in state.items()})
    np.testing.assert_array_equal(other.predict(DATA.test_images, "logits"),
                                  model.predict(DATA.test_images, "logits"))
    made = Model.from_state_dict(state, normalisation=model.normalisation)
    assert made.network.layers == (12, 9, 4)
    np.testing.assert_array_equal(made.predict(DATA.test_images), model.predict(DATA.test_images))
    with pytest.raises(CheckpointError, match="the network 12-9-4 has 2"):
        model.load_state_dict({"0.weight": state["0.weight"]})
    with pytest.raises(CheckpointError, match="do not fit the network 12-4"):
        Model(Network((12, 4)), model.parameters)


@pytest.mark.parametrize(("inputs", "sentence"), [
    (np.zeros((3, 11)), "the inputs have 11 features, but the network takes 12"),
    (np.zeros(12), r"the inputs are of shape \[12\]"),
    (np.zeros((3, 0)), r"the inputs are of shape \[3, 0\]"),
    (np.zeros((3, 12), complex), "only numbers can be predicted from"),
    (np.zeros((3, 12), str), "only numbers can be predicted from"),
])
def test_inputs_that_do_not_fit(inputs: Any, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        trained().model.predict(inputs)


@pytest.mark.parametrize(("answers", "sentence"), [
    (np.zeros(12, int), r"13 inputs, but the answers are of shape \[12\]"),
    (np.zeros((13, 2), int), "one label for each example"),
    (np.full(13, 4), r"row 0 has the label 4, but labels run from 0 to 3"),
    (np.full(13, -1), "row 0 has the label -1"),
    (np.full(13, 0.5), "labels are whole numbers"),
    (["x"] * 13, "row 0 has the label 'x', but the classes are 0, 1, 2, 3"),
])
def test_answers_that_do_not_fit(answers: Any, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        trained().model.score(DATA.test_images, answers)


def test_arguments_that_do_not_fit() -> None:
    model = trained().model
    with pytest.raises(ConfigError, match="output = 'values'"):
        model.predict(DATA.test_images, "values")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="batch = 0"):
        model.predict(DATA.test_images, batch=0)
    values = trained(data=from_arrays((DATA.train_images, RNG.random(40)),
                                      (DATA.test_images, RNG.random(13))),
                     layers=(12, 1), loss="mse").model
    with pytest.raises(DataError, match="the answers have 2 columns, but the network has 1"):
        values.score(DATA.test_images, np.zeros((13, 2)))


def test_what_is_not_finite_is_never_class_0() -> None:
    model = trained(layers=(12, 8, 4)).model
    rows = DATA.test_images.astype(np.float32)
    rows[7, 3] = np.nan
    for ask in (lambda: model.predict(rows), lambda: model.predict(rows.astype(np.float64)),
                lambda: model.score(rows, np.zeros(13, int)),
                lambda: model.confusion(rows, np.zeros(13, int))):
        with pytest.raises(DataError, match=r"the inputs hold nan \(row 7, column 3\)"):
            ask()
    rows[7, 3] = 3e38
    model.parameters["fc1.weight"][:, 3] = 1e4 * np.array((3, -3, 3, -3, 3, -3, 3, -3))
    model.parameters["fc2.weight"][:] = (1, -1, -1, 1, -1, 1, 1, 1)
    with pytest.raises(DataError, match="the outputs of the network for row 7 are NaN"):
        model.predict(rows, batch=4)


@pytest.mark.filterwarnings("error")
def test_infinite_outputs_are_no_probabilities() -> None:
    model = trained(layers=(12, 4)).model
    model.parameters["fc1.weight"][:] = 1e30
    rows = np.full((3, 12), 1e20)
    for output in ("classes", "probabilities", "logits"):
        with pytest.raises(DataError, match="for row 0 are infinite: its inputs, or the parame"):
            model.predict(rows, output)  # type: ignore[arg-type]


def test_parameters_that_are_not_finite_are_refused() -> None:
    model = trained().model
    state = {name: array.astype(np.float64) for name, array in model.state_dict().items()}
    first = next(iter(state))
    for value, shown in ((np.nan, "nan"), (np.inf, "inf"), (1e300, r"1e\+300")):
        state[first][1, 2] = value
        with pytest.raises(CheckpointError, match=rf"'{first}' holds {shown} at \[1, 2\]"):
            model.load_state_dict(state)


def test_answers_of_binary_cross_entropy_lie_between_0_and_1() -> None:
    y = RNG.random((40, 2))
    model = trained(data=from_arrays((DATA.train_images, y)), layers=(12, 2), loss="bce").model
    with pytest.raises(DataError, match="the answers reach from -1 to -1, but the loss bce"):
        model.score(DATA.test_images, np.full((13, 2), -1.0))


def test_columns_are_found_by_the_names_of_training(tmp_path: Path) -> None:
    x = RNG.normal(size=(60, 3)) * [1, 10, 100]
    named = dict(zip("abc", x.T, strict=True))
    y = (x[:, 0] > 0).astype(int)
    model = train(data=(named, y), layers=(3, 2), epochs=3, device="host",
                  normalise="learned").model
    model.save(tmp_path / "m.safetensors")
    inputs = (x - model.normalisation.mean) / model.normalisation.std
    exact = inputs @ model.parameters["fc1.weight"].astype(float).T + model.parameters["fc1.bias"]
    for each in (model, Model.load(tmp_path / "m.safetensors"), Ensemble([model])):
        right = exact.argmax(axis=1)
        moved = {"c": x[:, 2], "other": y, "words": list("ab") * 30, "a": x[:, 0], "b": x[:, 1]}
        structured = np.array([tuple(row) for row in x[:, ::-1]], [(n, "f8") for n in "cba"])
        for given in (x, named, moved, structured):
            np.testing.assert_array_equal(each.predict(given), right)
        with pytest.raises(DataError, match=r"no column 'b', which the network was trained on; "
                                            r"did you mean 'B'\?; an array"):
            each.predict({"a": x[:, 0], "B": x[:, 1], "c": x[:, 2]})
    assert model.score(moved, y).accuracy == np.mean(right == y)


def test_integer_names_are_indices_where_training_had_none() -> None:
    pandas = requires.module("pandas")
    x = RNG.normal(size=(60, 3)) * [1, 10, 100]
    frame, y = pandas.DataFrame(x), (x[:, 0] > 0).astype(int)
    for trained_on, order in ((frame, [0, 1, 2]), (x, [0, 1, 2]), (frame[[2, 0, 1]], [2, 0, 1]),
                              (frame[[2, 1]], [2, 1])):
        model = train(data=(trained_on, y), layers=(len(order), 2), epochs=2, device="host",
                      normalise="learned").model
        inputs = (x[:, order] - model.normalisation.mean) / model.normalisation.std
        right = (inputs @ model.parameters["fc1.weight"].astype(float).T
                 + model.parameters["fc1.bias"]).argmax(axis=1)
        wider = frame.assign(other=1.0).rename(columns={"other": 7})[[1, 7, 2, 0]]
        for given in (x[:, order], frame[order], frame[[2, 1, 0]], wider,
                      pandas.DataFrame(x[:, order], columns=list("abc")[:len(order)])
                      if len(model.feature_names) == 0 else frame):
            np.testing.assert_array_equal(model.predict(given), right)
        with pytest.raises(DataError, match=r"the inputs have no column '[012]'"):
            model.predict(pandas.DataFrame(x, columns=[5, 6, 7]))
    hot = pandas.DataFrame(np.eye(2)[y])
    for answers in (hot, hot[[1, 0]]):
        model = train(data=(x, answers), layers=(3, 2), epochs=2, lr=1e-3, device="host").model
        for each in (hot, hot[[1, 0]]):
            assert model.score(x, each) == model.score(x, y)
    two = train(data=(x, frame[[0, 1]]), layers=(3, 2), loss="mse", epochs=1, lr=1e-6,
                device="host").model
    assert two.score(x, frame[[1, 0]]).loss == two.score(x, x[:, :2]).loss


def test_answers_are_found_by_the_names_of_training() -> None:
    x = RNG.normal(size=(40, 3)).astype(np.float32)
    y = x[:, :2] * np.float32([1, 5])
    model = train(data=(x, {"u": y[:, 0], "v": y[:, 1]}), layers=(3, 2), loss="mse", epochs=2,
                  device="host").model
    exact = np.mean((model.predict(x).astype(float) - y) ** 2)
    for answers in (y, {"u": y[:, 0], "v": y[:, 1]}, {"v": y[:, 1], "u": y[:, 0]}):
        assert model.score(x, answers).loss == pytest.approx(exact, rel=1e-5)
    with pytest.raises(DataError, match="the answers have no column 'u'"):
        model.score(x, {"v": y[:, 1], "w": y[:, 0]})


def test_a_batch_is_a_whole_number() -> None:
    model = trained().model
    for batch in (0, -1, 2.5, True, "8"):
        with pytest.raises(ConfigError, match="must be a whole number of at least 1"):
            model.predict(DATA.test_images, batch=batch)  # type: ignore[arg-type]
    assert len(model.predict(DATA.test_images, batch=np.int64(5))) == 13


def test_a_name_that_occurs_twice_has_no_order() -> None:
    pandas = requires.module("pandas")
    x = RNG.normal(size=(40, 3)).astype(np.float32)
    frame = pandas.DataFrame(x, columns=["a", "a", "b"])
    model = train(data=(frame, x[:, 0] > 0), layers=(3, 2), epochs=1, device="host").model
    np.testing.assert_array_equal(model.predict(frame), model.predict(x))
    with pytest.raises(DataError, match="several columns 'a'"):
        model.predict(frame[["b"]].assign(a=x[:, 0], c=x[:, 1]))


@pytest.mark.parametrize(("loss", "what"), [("cross_entropy", "class labels"),
                                            ("mse", "target values")])
def test_a_score_needs_answers(loss: str, what: str) -> None:
    x = RNG.normal(size=(40, 3)).astype(np.float32)
    y: Any = (x[:, 0] > 0).astype(int) if loss == "cross_entropy" else x[:, :2]
    model = train(data=(x, y), layers=(3, 2), loss=loss, epochs=1, device="host").model
    with pytest.raises(DataError, match=f"trained on {what}: give them as the answers"):
        model.score(x)


@pytest.mark.parametrize("loss", ["mse", "bce"])
def test_answers_of_an_autoencoder_are_normalised_as_its_inputs(loss: str) -> None:
    x = RNG.integers(0, 256, (50, 4)).astype(np.uint8)
    model = train(data={n: x[:, i] for i, n in enumerate("abcd")}, layers=(4, 3, 4), loss=loss,
                  autoencoder=True, epochs=2, device="host", normalise="pixels").model
    alone = model.score(x)
    assert model.score(x, x) == alone
    assert model.score(x, {n: x[:, i] for i, n in reversed(list(enumerate("abcd")))}) == alone
    clean = x[::-1]
    z, t = model.predict(x, "values" if loss == "mse" else "logits").astype(float), clean / 255
    exact = np.mean((z / 255 - t) ** 2) if loss == "mse" else np.mean(np.logaddexp(0, z) - z * t)
    assert model.score(x, clean).loss == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize(("dtype", "names", "wanted"), [
    ("", (), np.arange(3)),
    ("", ("0", "1"), np.array(["0", "1", "2"])), ("uint8", (), np.uint8([0, 1, 2])),
    ("bool", ("0", "1"), np.arange(3)), ("int16", ("-1", "7"), np.int16([-1, 7, 2])),
    ("", ("a", "b"), np.array(["a", "b", "2"])), ("int16", ("a", "b"), np.array(["a", "b", "2"]))])
def test_labels_are_as_in_training(dtype: str, names: tuple[str, ...], wanted: Any) -> None:
    """Outputs without a name have their number, which is no truth value above 1."""
    network = Network((4, 3))
    found = Model(network, network.initial(0), label_names=names, label_dtype=dtype).labels
    assert found.dtype == wanted.dtype
    assert found.tolist() == wanted.tolist()


def test_labels_of_two_outputs_may_be_truth_values() -> None:
    network = Network((4, 2))
    found = Model(network, network.initial(0), label_dtype="bool").labels
    assert (found.dtype, found.tolist()) == (np.dtype(bool), [False, True])


@pytest.mark.parametrize(("device", "is_said"), [("host", False), ("auto", True), ("sim", False)])
def test_predicting_on_the_host_is_said_where_a_gpu_was_asked_for(
        device: str, is_said: bool, caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> None:
        raise DeviceError("no driver")

    monkeypatch.setattr(machine, "open_gpu", missing)
    network = Network((4, 3))
    with caplog.at_level(logging.INFO, "rawnn"):
        Model(network, network.initial(0)).predict(np.zeros((1, 4), np.float32), device=device)
    assert ("predicting on the host" in caplog.text) == is_said


def test_inputs_that_float32_cannot_hold_are_for_a_normalisation_in_float64() -> None:
    network, inputs = Network((1, 2)), np.array([[3e39], [5e39]])
    parameters = network.initial(0)
    wide = Normalisation(1.0, np.array([4e39]), np.array([1e39]))
    assert wide.is_double
    np.testing.assert_allclose(
        Model(network, parameters, wide).predict(inputs, "logits"),
        Model(network, parameters).predict(np.array([[-1.0], [1.0]]), "logits"), rtol=1e-6)
    with pytest.raises(DataError, match="float32"):
        Model(network, parameters).predict(inputs)
