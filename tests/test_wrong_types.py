"""None, or a value of another type, where a public function takes a model, a kernel, a device, a
path or a list: one sentence that says what to give."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rawnn
from rawnn.common.errors import CheckpointError, ConfigError, DataError
from rawnn.cuda.device import Device

X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)
OPTIONS: dict[str, Any] = {"data": (X, Y), "layers": (3, 2), "epochs": 1, "device": "host"}
SOURCE = "__global__ void wrong_types(float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = 1; }"


@cache
def trained() -> rawnn.Result:
    return rawnn.train(**OPTIONS)


@cache
def device() -> Device:
    return rawnn.lab.simulated()


def kernel(**given: Any) -> rawnn.Kernel:
    return rawnn.Kernel(SOURCE, "wrong_types", **{"device": device(), **given})


WORK: dict[str, Any] = {"reference": lambda y: y * 0 + 1, "grid": 1, "block": 32}
CALLS: list[tuple[Callable[[Any], Any], list[Any], str]] = [
    (lambda v: rawnn.check(v, **WORK), [None, SOURCE], "neither a rawnn.Kernel nor a function"),
    (lambda v: rawnn.time(v, **WORK), [None, SOURCE], "neither a rawnn.Kernel nor a function"),
    (lambda v: rawnn.sweep(v, {"TILE": [1]}), [None, 3, SOURCE], "kernel is .*: give a rawnn.Kern"),
    (lambda v: rawnn.sweep(kernel(), v), [None, 3], "parameters is .*: give a mapping"),
    (lambda v: kernel(device=v), ["sim", 0], "device is a .*: give a device, such as rawnn"),
    (lambda v: rawnn.array([1.0], device=v), ["sim", 0], "device is a .*: give a device"),
    (lambda v: rawnn.empty(3, device=v), ["sim"], "device is a str: give a device"),
    (lambda v: rawnn.empty(3, v, device=device()), ["banana"], "dtype = 'banana'"),
    (lambda v: kernel(options=v), [None, 3], "options is .*: give a list"),
    (lambda v: kernel(arch=v), [90], "arch = 90: give one such as"),
    (lambda v: kernel(symbols=v), [3, [1]], "symbols is a .*: give a mapping"),
    (lambda v: rawnn.impl(v, SOURCE), [None, 3], "there is no op"),
    (lambda v: rawnn.export.export_onnx(v, "none.onnx"), [None, "runs/a"], "give a rawnn.Model"),
    (lambda v: rawnn.export.export_onnx(trained(), v), ["a.onnx"], "model is a Result: give a raw"),
    (lambda v: trained().model.save(v), [None, 3], "is .*: give a path"),
    (lambda v: trained().write_json(v), [None, 3], "is .*: give a path"),
    (rawnn.Model.load, [None, 3, b"/tmp"], "path is .*: give a path, as text or a pathlib.Path"),
    (rawnn.Many.load, [None, 3], "path is .*: give a path"),
    (rawnn.Checkpoints, [None, 3], "directory is .*: give a path"),
    (rawnn.Checkpoints, [""], "names no directory"),
    (lambda v: rawnn.EarlyStopping(min_delta=v), ["a", None], "min_delta = .*a finite number >= 0"),
    (lambda v: rawnn.train(**{**OPTIONS, "data": (v, Y)}), [iter(X)], "X is a .*, not an array"),
    (rawnn.CsvLog, [None, 3], "CsvLog is .*: give a path"),
    (rawnn.Model.from_state_dict, [None, 3], "state is .*: give a state dict"),
    (lambda v: trained().model.load_state_dict(v), [None], "state is None: give a state dict"),
    (lambda v: rawnn.Model.from_state_dict({"0.weight": v}), [None], "'0.weight' is a NoneType"),
    (lambda v: rawnn.Model(v, {}), [None, (3, 2)], "network is .*: give a rawnn.Network"),
    (lambda v: rawnn.Model(rawnn.Network((3, 2)), v), [None], "parameters is None: give a mapping"),
    (lambda v: rawnn.Model.from_state_dict({"0.weight": X[:2]}, normalisation=v),
     ["learned", {"scale": 2}], "normalisation is a .*: give a rawnn.data.Normalisation"),
    (rawnn.Ensemble, [3], "models is a int: give a list of rawnn.Model"),
    (rawnn.Ensemble, [None, []], "an ensemble needs one model or more"),
    (rawnn.Ensemble, [[None], ["runs/a"]], r"models\[0\] is .*: give a rawnn.Model"),
    (lambda v: trained().model.predict(X, device=v), [None, 0], "device is .*: give auto, gpu"),
]


@pytest.mark.parametrize(("call", "values", "sentence"), CALLS)
def test_what_to_give_is_said(call: Callable[[Any], Any], values: list[Any],
                              sentence: str, tmp_path: Path,
                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for value in values:
        with pytest.raises((ConfigError, CheckpointError, DataError), match=sentence):
            call(value)


def test_members_are_whole_numbers() -> None:
    many = rawnn.train_many(**OPTIONS, seed=[0, 1])
    for members in ([1.5], "1", [True], 2.0):
        with pytest.raises(ConfigError, match=r"members = .*: give a list of whole numbers"):
            many.ensemble(members)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"members = .*: give a list of whole numbers"):
            many.resume(2, members)  # type: ignore[arg-type]
    assert len(many.ensemble(np.array([1]))) == 1


def test_an_ensemble_of_other_inputs_is_refused() -> None:
    other = rawnn.train(**{**OPTIONS, "data": (X[:, :2], Y), "layers": (2, 2)}).model
    with pytest.raises(ConfigError, match="differ in loss, inputs, outputs or classes"):
        rawnn.Ensemble([trained().model, other])


def test_resume_names_a_path() -> None:
    for call in (rawnn.train, rawnn.train_many):
        with pytest.raises(ConfigError, match="resume is a int: give a path"):
            call(resume=3, data=(X, Y))


def test_resume_of_many_networks_expands_a_tilde(tmp_path: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    rawnn.train_many(**OPTIONS, save="~/many")
    assert rawnn.train_many(resume="~/many", data=(X, Y), epochs=2)[0].epochs == 2
