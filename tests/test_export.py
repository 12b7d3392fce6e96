"""ONNX models say what the network says: compared with onnxruntime."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rawnn.common.errors import ConfigError, MissingLibrary
from rawnn.data.normalise import Normalisation
from rawnn.engine.export import export_onnx, lost_in_float32, onnx_model
from rawnn.engine.model import Model
from rawnn.engine.training import train
from rawnn.model.activations import ACTIVATIONS
from rawnn.model.layers import Network
from tests import requires

onnx = requires.module("onnx")
runtime = requires.module("onnxruntime")

ROOT = Path(__file__).resolve().parents[1]
MEANS = Normalisation(1 / 255, np.linspace(0.1, 0.5, 13, dtype=np.float32),
                      np.linspace(0.2, 2.0, 13, dtype=np.float32))


def model_of(normalisation: Normalisation = MEANS, names: tuple[str, ...] = (),
             **network: Any) -> Model:
    made = Network((13, 7, 5), **network)
    return Model(made, made.initial(3), normalisation, names)


def run(model: Any, inputs: Any) -> dict[str, Any]:
    session = runtime.InferenceSession(model.SerializeToString(),
                                       providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"inputs": inputs}), strict=True))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("loss", ["cross_entropy", "bce", "mse"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("input_type", ["float32", "uint8"])
def test_outputs_are_those_of_the_model(activation: str, loss: str, bias: bool,
                                        input_type: Any) -> None:
    model = model_of(activation=activation, loss=loss, bias=bias)
    inputs = np.random.default_rng(0).integers(0, 256, (17, 13)).astype(input_type)
    found = run(onnx_model(model, input_type), inputs)
    wanted = {"cross_entropy": ("logits", "probabilities", "classes"),
              "bce": ("logits", "probabilities", "classes"), "mse": ("values",)}[loss]
    assert tuple(found) == wanted
    for name in wanted:
        expected = model.predict(inputs, name)
        assert found[name].shape == expected.shape
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("loss", ["cross_entropy", "bce"])
def test_classes_of_outputs_that_are_alike_are_those_of_the_model(loss: str) -> None:
    model = model_of(loss=loss)
    model.parameters = {name: 0 * array for name, array in model.parameters.items()}
    inputs = np.ones((3, 13), np.float32)
    np.testing.assert_array_equal(run(onnx_model(model), inputs)["classes"],
                                  model.predict(inputs))


@pytest.mark.parametrize("normalisation", [
    Normalisation(), Normalisation(1 / 255),
    Normalisation(1.0, np.zeros(13, np.float32), np.full(13, 2.0, np.float32))])
def test_every_kind_of_normalisation(normalisation: Normalisation) -> None:
    model = model_of(normalisation)
    inputs = np.random.default_rng(1).normal(size=(3, 13)).astype(np.float32)
    np.testing.assert_allclose(run(onnx_model(model), inputs)["logits"],
                               model.predict(inputs, "logits"), rtol=0, atol=1e-5)


@pytest.mark.parametrize("normalisation", [
    MEANS, Normalisation(1.0, 1e8 + np.arange(13.0), np.full(13, 2.0))], ids=["float32", "float64"])
@pytest.mark.parametrize("loss", ["mse", "bce"])
def test_autoencoders_give_values_in_units(normalisation: Normalisation, loss: str) -> None:
    network = Network((13, 7, 13), loss=loss)
    model = Model(network, network.initial(3), normalisation, autoencoder=True)
    inputs = 1e8 * normalisation.is_double + np.random.default_rng(2).integers(0, 9, (17, 13))
    found = run(onnx_model(model, "float64"), inputs.astype(np.float64))
    assert tuple(found) == (("values",) if loss == "mse" else
                            ("logits", "probabilities", "classes", "values"))
    for name, values in found.items():
        expected = model.predict(inputs, name)
        assert values.dtype == expected.dtype
        np.testing.assert_allclose(values, expected, rtol=0, atol=2e-4)


def test_a_normalisation_in_float64_is_computed_in_float64() -> None:
    model = model_of(Normalisation(1.0, 1e8 + np.arange(13.0), np.full(13, 2.0)))
    inputs = 1e8 + np.random.default_rng(2).integers(0, 9, (17, 13)).astype(np.float64)
    expected = model.predict(inputs, "logits")
    assert np.ptp(expected, axis=0).min() > 0.01
    np.testing.assert_allclose(run(onnx_model(model, "float64"), inputs)["logits"], expected,
                               rtol=0, atol=1e-5)
    known = inputs.astype(np.float32)
    np.testing.assert_allclose(run(onnx_model(model), known)["logits"],
                               model.predict(known, "logits"), rtol=0, atol=1e-5)


def test_it_is_reached_as_the_documentation_says(tmp_path: Path) -> None:
    code = "import rawnn; rawnn.export.export_onnx(rawnn.Model.load('m.safetensors'), 'm.onnx')"
    model_of().save(tmp_path / "m.safetensors")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True,
                          text=True, timeout=120, check=False,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    assert run(onnx.load(tmp_path / "m.onnx"), np.zeros((1, 13), np.float32))["logits"].shape \
        == (1, 5)


def test_every_activation_can_be_exported() -> None:
    assert all(activation.onnx for activation in ACTIVATIONS.values())


def test_names_of_classes_are_kept() -> None:
    model = model_of(names=("a", "b", "c", "d", "e"))
    found = onnx_model(model)
    kept = {p.key: p.value for p in found.metadata_props}
    assert json.loads(kept.pop("label_names")) == ["a", "b", "c", "d", "e"]
    assert kept == {"network": str(model.network), "normalisation": str(model.normalisation)}
    assert kept["network"] == found.doc_string != kept["normalisation"]


def test_what_cannot_be_exported_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="float32 or uint8"):
        onnx_model(model_of(), "int8")  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingLibrary, match=r"rawnn\[export\]"):
        export_onnx(model_of(), tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


@pytest.mark.parametrize("first", [0.0, 1e9])
def test_inputs_that_float32_cannot_tell_apart_are_said(first: float) -> None:
    inputs = first + np.random.default_rng(2).integers(0, 9, (60, 2)).astype(np.float64)
    model = train(data=({"a": inputs[:, 0] - first, "time": inputs[:, 1]}, np.arange(60) % 2),
                  layers=(2, 2), epochs=1, device="host", normalise="learned").model
    expected = model.predict(inputs - [first, 0], "logits")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exact = run(onnx_model(model, "float64"), inputs - [first, 0])["logits"]
    np.testing.assert_allclose(exact, expected, atol=1e-6)
    if not first:
        assert lost_in_float32(model) == ""
        return
    with pytest.warns(RuntimeWarning, match=r"values of column 'time', which are around 1e\+09"):
        rounded = onnx_model(model)
    off = run(rounded, (inputs - [first, 0]).astype(np.float32))["logits"]
    assert np.abs(off - expected).max() > 0.1


def test_the_module_is_imported_by_its_public_name() -> None:
    from rawnn.export import export_onnx as public

    assert public is export_onnx


def test_public_modules_have_the_public_names_and_no_others() -> None:
    import rawnn.common.errors
    import rawnn.errors
    import rawnn.export

    raised = {name for name, each in vars(rawnn.common.errors).items()
              if isinstance(each, type) and issubclass(each, rawnn.common.errors.RawnnError)}
    assert set(rawnn.errors.__all__) == raised
    for module in (rawnn.errors, rawnn.export):
        assert {n for n in vars(module) if not n.startswith("_")} == set(module.__all__)
