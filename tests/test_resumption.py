"""What a resumed run inherits from the one before: its data, split, normalisation and classes."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rawnn.common.errors import CheckpointError, ConfigError, DataError
from rawnn.data import from_arrays
from rawnn.data.identity import SAMPLE, _sample, differences, identity_of
from rawnn.data.normalise import Normalisation
from rawnn.engine.checkpoint import Checkpoint, find, unpack, write
from rawnn.engine.config import Config
from rawnn.engine.model import Model
from rawnn.engine.result import Result
from rawnn.engine.resumption import Resumption, at_its_epoch, state_of
from rawnn.engine.training import train
from rawnn.model.layers import Network
from rawnn.model.optimizers import UPDATE_RULES, Optimizer
from rawnn.plan.recipe import Recipe
from tests.cli.conftest import Rawnn
from tests.cli.conftest import rawnn as rawnn
from tests.engine import same_parameters
from tests.test_training import Recorder

RNG = np.random.default_rng(7)
X = (RNG.normal(size=(300, 6)) * [1, 50, 1000, 0.01, 5, 20] + [9, -50, 3000, 1, 0, 7]
     ).astype(np.float32)
Y = ((X - X.mean(0)) / X.std(0) @ RNG.normal(size=(6, 3))).argmax(axis=1)
WORDS = np.array(["ant", "bee", "cat"])[Y]
OPTIONS: dict[str, Any] = {"layers": (6, 24, 3), "device": "host", "optimizer": "adam", "lr": 0.02,
                           "shuffle": True, "batch": 16, "seed": 5}


def first(folder: Path, y: Any = Y, epochs: int = 4, x: Any = X, **changed: Any) -> Result:
    return train(data=(x, y), epochs=epochs, save=folder,
                 **{**OPTIONS, "normalise": "learned", **changed})


def newest(folder: Path) -> Any:
    return find(folder, lambda message: None)[1]


def as_before(folder: Path) -> None:
    """Rewrite a folder's newest checkpoint as it was written when it knew nothing of arrays."""
    path, found = find(folder, lambda message: None)
    config = {k: v for k, v in found.config.items() if k not in ("validation", "normalise")}
    write(path, replace(found, data={}, lineage=(), config={
        **config, "validation": 0.2, "normalise": None}))
    assert not {"data", "lineage"} & set(unpack(path.read_bytes(), "it")[0])


# -- the same data -------------------------------------------------------------------------------


@pytest.mark.parametrize("normalise", [
    "learned", "none", None, {"mean": X.mean(0), "std": X.std(0)}, {"scale": 0.001, "mean": 1.5},
    Normalisation(0.5, np.full(6, 2, np.float32), np.full(6, 9, np.float32))])
def test_arrays_are_split_and_normalised_as_before(tmp_path: Path, normalise: Any) -> None:
    options = {**OPTIONS, "validation": 0.5, "normalise": normalise}
    whole = train(data=(X, Y), epochs=6, **options)
    part = train(data=(X, Y), epochs=3, save=tmp_path, **options)
    rest = train(data=(X, Y), resume=tmp_path, epochs=6)
    same_parameters(rest, whole)
    assert rest.test_accuracy == whole.test_accuracy
    assert rest.resumed_epochs == 3
    for result in (part, rest):
        assert result.config.validation == 0.5
        if isinstance(normalise, str):
            assert result.config.normalise == normalise


def test_the_other_half_is_never_trained_on(tmp_path: Path) -> None:
    """The rows that the continued run tests with are those that the first one left out."""
    first(tmp_path, validation=0.5)
    parts = []
    for seed in (OPTIONS["seed"], 11):  # another seed orders examples anew, but splits as before
        recorder = Recorder()
        train(data=(X, Y), resume=tmp_path, epochs=6 + len(parts), seed=seed, listener=recorder)
        data = recorder.all("started")[0].data
        parts.append((data.train_images, data.test_images))
    wanted = from_arrays((X, Y), 0.5, seed=OPTIONS["seed"])
    for train_part, test_part in parts:
        np.testing.assert_array_equal(train_part, wanted.train_images)
        np.testing.assert_array_equal(test_part, wanted.test_images)


def test_a_file_of_the_same_examples_is_the_same_data(tmp_path: Path, rawnn: Rawnn) -> None:
    first(tmp_path / "saved", validation=0.25)
    np.savez(tmp_path / "same.npz", X=X, y=Y)
    done = rawnn("--resume", str(tmp_path / "saved"), "--epochs", "5", "--data",
                 str(tmp_path / "same.npz"))
    assert done.status == 0, done.err


def test_autoencoders_and_values_go_on_too(tmp_path: Path) -> None:
    for name, data, loss in (("a", X, "mse"), ("v", (X, X[:, :2] / 1000), "mse"),
                             ("b", (X, (X[:, 1:3] > 0).astype(np.float32)), "bce")):
        outputs = 6 if name == "a" else 2
        options = {**OPTIONS, "layers": (6, 8, outputs), "loss": loss, "normalise": "learned",
                   "lr": 1e-3}
        whole = train(data=data, epochs=4, **options)
        train(data=data, epochs=2, save=tmp_path / name, **options)
        same_parameters(train(data=data, resume=tmp_path / name, epochs=4), whole)


SECONDS = 1.7e9 + np.arange(300) * 37.0  # float32 resolves 128 of them
WIDE = np.column_stack([SECONDS, X.astype(np.float64)[:, :5]])


@pytest.mark.parametrize("x", [WIDE, WIDE.astype(np.int64), WIDE.astype(np.float32)])
def test_what_is_normalised_in_float64_stays_so(tmp_path: Path, x: Any) -> None:
    options = {**OPTIONS, "normalise": "learned", "validation": 0.25}
    whole = train(data=(x, Y), epochs=6, **options)
    assert whole.normalisation.is_double
    train(data=(x, Y), epochs=3, save=tmp_path, **options)
    rest = train(data=(x, Y), resume=tmp_path, epochs=6)
    assert rest.normalisation.is_double
    same_parameters(rest, whole)
    assert (rest.test_accuracy, rest.test_loss) == (whole.test_accuracy, whole.test_loss)
    other = x.copy()
    other[:, 0] += 64 if x.dtype == np.float64 else 256
    with pytest.raises(ConfigError, match="their values are others"):
        train(data=(other, Y), resume=tmp_path, epochs=7)


def test_so_does_what_a_table_holds(tmp_path: Path, rawnn: Rawnn) -> None:
    file = tmp_path / "t.csv"
    lines = ["time,a,b,c,d,e,kind"]
    lines += [",".join([*map(repr, map(float, x)), word])
              for x, word in zip(WIDE, WORDS, strict=True)]
    file.write_text("\n".join(lines) + "\n")
    options = ("--data", str(file), "--target", "kind", "--layers", "6-24-3", "--device", "host",
               "--optimizer", "adam", "--lr", "0.02", "--normalise", "learned", "--shuffle")
    for folder, epochs in (("whole", "6"), ("part", "3")):
        done = rawnn(*options, "--epochs", epochs, "--save", str(tmp_path / folder))
        assert done.status == 0, done.err
    done = rawnn("--resume", str(tmp_path / "part"), "--epochs", "6")
    assert done.status == 0, done.err
    whole, rest = newest(tmp_path / "whole"), newest(tmp_path / "part")
    assert rest.normalisation.is_double
    assert (whole.epoch, rest.epoch) == (6, 6)
    for name, array in whole.parameters.items():
        np.testing.assert_array_equal(rest.parameters[name], array)
    model = Model.of(rest)
    np.testing.assert_array_equal(model.predict(WIDE), Model.of(whole).predict(WIDE))
    done = rawnn("eval", str(tmp_path / "part"))
    assert done.status == 0, done.err


@pytest.mark.parametrize("validation", [0.25, "arrays"])
def test_bytes_of_0_and_1_stay_unscaled(tmp_path: Path, validation: Any) -> None:
    x = np.greater(X, np.median(X, axis=0)).astype(np.uint8)
    options: dict[str, Any] = {**OPTIONS, "validation": validation}
    if validation == "arrays":
        options["validation"] = (x[:50], Y[:50])
    again = {} if validation == 0.25 else {"validation": options["validation"]}
    whole = train(data=(x, Y), epochs=4, **options)
    train(data=(x, Y), epochs=2, save=tmp_path, **options)
    rest = train(data=(x, Y), resume=tmp_path, epochs=4, **again)
    same_parameters(rest, whole)
    assert rest.normalisation.scale == 1
    wider = x * 200  # new data are scaled as those of the network were
    more = train(data=(wider, Y), resume=tmp_path, epochs=5, new_data=True, validation=0.25)
    assert more.normalisation.scale == 1


# -- other data ----------------------------------------------------------------------------------


def changed_value(x: Any) -> Any:
    other = x.copy()
    other[17, 4] += 1
    return other


@pytest.mark.parametrize(("change", "words"), [
    (lambda x: {"data": (x[:200], Y[:200])}, r"training inputs were \[240, 6\].*are \[160, 6\]"),
    (lambda x: {"data": (x.astype(np.float64), Y)}, "of type float32, and are .* of type float64"),
    (lambda x: {"data": (changed_value(x), Y)}, "their values are others"),
    (lambda x: {"data": (x, (Y + 1) % 3)}, "their values are others"),
    (lambda x: {"data": (x, Y), "validation": 0.4},
     "a fraction of 0.2 split off by the seed 5, and is a fraction of 0.4"),
    (lambda x: {"data": (x, Y), "validation": (x[:9], Y[:9])}, "and is given by itself"),
])
def test_other_data_are_refused_unless_they_are_wanted(
        tmp_path: Path, change: Callable[[Any], dict[str, Any]], words: str) -> None:
    first(tmp_path)
    before = newest(tmp_path).normalisation
    with pytest.raises(ConfigError, match=words) as caught:
        train(resume=tmp_path, epochs=6, **change(X))
    assert "give the same, or new_data=True (--new-data) to go on with these" in str(caught.value)
    rest = train(resume=tmp_path, epochs=6, new_data=True, **change(X))
    assert rest.resumed_epochs == 4
    np.testing.assert_array_equal(rest.normalisation.mean, before.mean)  # what it was trained with
    again = train(resume=tmp_path, epochs=7, **change(X))  # these are its data now
    assert again.resumed_epochs == 6


def test_new_data_are_normalised_by_the_statistics_of_the_old(tmp_path: Path) -> None:
    first(tmp_path)
    rest = train(data=(X * 3 + 1, Y), resume=tmp_path, epochs=5, new_data=True)
    rows = from_arrays((X, Y), 0.2, seed=5).train_images.astype(np.float64)
    np.testing.assert_allclose(rest.normalisation.mean, rows.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(rest.normalisation.std, rows.std(axis=0), rtol=1e-5)


@pytest.mark.parametrize("given", ["none", "pixels", {"scale": 3.0}])
def test_another_normalisation_is_refused(tmp_path: Path, given: Any) -> None:
    first(tmp_path)
    with pytest.raises(ConfigError, match="is normalised in another way than the network of"):
        train(data=(X, Y), normalise=given, resume=tmp_path, epochs=6)
    with pytest.raises(ConfigError, match="is normalised in another way"):
        train(data=from_arrays((X, Y), seed=5), resume=tmp_path, epochs=6)
    whole = first(tmp_path / "whole", epochs=6)
    saved = Model.load(tmp_path).normalisation  # as the sentence says
    rest = train(data=from_arrays((X, Y), seed=5, normalise=saved), resume=tmp_path, epochs=6)
    same_parameters(rest, whole)


def test_arrays_have_to_be_given_again(tmp_path: Path, rawnn: Rawnn) -> None:
    """A network of MNIST's shape does not go on with MNIST."""
    images = RNG.integers(0, 256, (40, 784)).astype(np.uint8)
    train(data=(images, RNG.integers(0, 10, 40)), device="host", epochs=1, save=tmp_path)
    with pytest.raises(ConfigError, match=r"was trained on arrays of a Python program.*data=") as e:
        train(resume=tmp_path, epochs=2)
    done = rawnn("--resume", str(tmp_path), "--epochs", "2")
    assert done.status == 2
    assert done.err == f"rawnn: error: {e.value}\n"
    with pytest.raises(ConfigError, match="the data are not those that"):
        train(resume=tmp_path, epochs=2, dataset="synthetic")
    with pytest.raises(ConfigError, match="the data are not those that"):
        train(Config(resume=str(tmp_path), epochs=2, device="host", dataset="synthetic"))


def test_validation_data_have_to_be_given_again(tmp_path: Path) -> None:
    first(tmp_path, validation=(X[:50], Y[:50]))
    with pytest.raises(ConfigError, match="tested on separate validation data: give"):
        train(data=(X, Y), resume=tmp_path, epochs=5)
    assert train(data=(X, Y), validation=(X[:50], Y[:50]), resume=tmp_path,
                 epochs=5).resumed_epochs == 4


def test_new_data_belong_to_a_run_that_goes_on(rawnn: Rawnn) -> None:
    with pytest.raises(ConfigError, match=r"new_data .--new-data. has no effect without resume"):
        train(data=(X, Y), new_data=True, epochs=1, **OPTIONS)
    assert rawnn("--device", "host", "--dataset", "synthetic", "--new-data").status == 2


@pytest.mark.parametrize("names", ["the directory", "a checkpoint of it"])
@pytest.mark.parametrize("how", [shutil.move, shutil.copytree])
def test_a_directory_that_was_moved_is_where_the_run_goes_on_saving(
        tmp_path: Path, how: Callable[[Path, Path], Any], names: str) -> None:
    before, now = tmp_path / "before", tmp_path / "now"
    first(before, epochs=2)
    how(before, now)
    left = sorted(before.glob("*"))
    resume = now if names == "the directory" else max(now.glob("rawnn-*"))
    done = train(data=(X, Y), resume=resume, epochs=3)
    assert done.config.save == str(now)
    assert newest(now).epoch == 3
    assert sorted(before.glob("*")) == left
    assert train(data=(X, Y), resume=now, epochs=4).resumed_epochs == 3


# -- files ---------------------------------------------------------------------------------------


def table(path: Path, columns: str = "abcdef", rows: slice = slice(None)) -> str:
    lines = [",".join([*columns, "kind"])]
    for x, word in zip(X[rows], WORDS[rows], strict=True):
        lines.append(",".join([*(f"{x['abcdef'.index(c)]:.5g}" for c in columns), word]))
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_a_file_that_has_changed_is_other_data(tmp_path: Path, rawnn: Rawnn) -> None:
    file, saved = table(tmp_path / "t.csv"), str(tmp_path / "saved")
    done = rawnn("--data", file, "--target", "kind", "--layers", "6-8-3", "--device", "host",
                 "--normalise", "learned", "--epochs", "2", "--save", saved)
    assert done.status == 0, done.err
    before = newest(tmp_path / "saved").normalisation
    table(tmp_path / "t.csv", rows=slice(0, 150))
    done = rawnn("--resume", saved, "--epochs", "3")
    assert (done.status, "Traceback" in done.err) == (2, False)
    assert "the training inputs were [240, 6] of type float32, and are [120, 6]" in done.err
    table(tmp_path / "t.csv", columns="bacdef")
    done = rawnn("--resume", saved, "--epochs", "3", "--new-data")
    assert done.status == 2
    assert "in another order: bring them into the order a, b, c, d, e, f" in done.err
    table(tmp_path / "t.csv", rows=slice(0, 150))
    done = rawnn("--resume", saved, "--epochs", "3", "--new-data")
    assert done.status == 0, done.err
    np.testing.assert_array_equal(newest(tmp_path / "saved").normalisation.std, before.std)
    assert rawnn("--resume", saved, "--epochs", "4").status == 0  # that file is its data now


@pytest.mark.parametrize(("record", "asked", "is_refused"), [
    ({"arrays": True, "split": None}, None, True), ({"arrays": True, "split": None}, 0.2, False),
    ({"arrays": True, "split": [0.2, 1]}, None, False),
    ({"arrays": False, "split": None}, None, False), ({}, None, False)])
def test_only_arrays_that_were_tested_on_others_need_them_again(
        record: dict[str, Any], asked: Any, is_refused: bool) -> None:
    """The test part of a file or a data set that has one comes with it."""
    network = Network((6, 3))
    before = Resumption(Path("it"), Checkpoint(network, network.initial(0), 1, data=record), ())
    if is_refused:
        with pytest.raises(ConfigError, match="tested on separate validation data"):
            before.validation(asked)
    else:
        assert before.validation(asked) == asked


@pytest.mark.parametrize(("epoch", "updates", "steps"), [
    (0, 7, 0), (3, 7, 21), (1000, 469, 469_000)])
def test_a_clock_that_a_checkpoint_lacks_shows_the_steps_behind_it(
        epoch: int, updates: int, steps: int) -> None:
    """Steps are counted, not epochs: schedules and Adam's bias go by them."""
    network = Network((6, 3))
    parameters = network.initial(0)
    now = {**parameters, "clock": np.zeros(2, np.int32)}
    stored = Checkpoint(network, parameters, epoch)
    found = state_of(stored, network, now, updates, "sgd", "it")["clock"]
    assert (found.tolist(), found.dtype) == ([epoch, steps], np.int32)
    timed = replace(stored, state={"clock": np.array([epoch, 5], np.int32)})
    assert state_of(timed, network, now, updates, "sgd", "it")["clock"].tolist() == [epoch, 5]
    scaled = {**now, "loss_scale": np.zeros(2), "overflow": np.zeros(1)}  # start anew
    assert state_of(stored, network, scaled, updates, "sgd", "it").keys() == now.keys()
    with pytest.raises(CheckpointError, match=r"it holds no 'fc1.weight.m': .*optimizer than adam"):
        state_of(stored, network, {**now, "fc1.weight.m": np.zeros((3, 6))}, updates, "adam", "it")


# -- checkpoints that know less ------------------------------------------------------------------


def test_an_older_checkpoint_loads_and_says_what_is_not_known(tmp_path: Path) -> None:
    whole = first(tmp_path / "whole", epochs=6)
    first(tmp_path / "a")
    as_before(tmp_path / "a")
    recorder = Recorder()
    with pytest.warns(RuntimeWarning, match="does not say what its data were.*nor how they were "
                                            "split and normalised: give validation and normalise"):
        rest = train(data=(X, Y), normalise="learned", resume=tmp_path / "a", epochs=6,
                     listener=recorder)
    same_parameters(rest, whole)
    assert any("does not say what its data were" in m for m in recorder.all("notify"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what goes on from there knows
        train(data=(X, Y), resume=tmp_path / "a", epochs=7)


def test_statistics_of_an_older_checkpoint_are_used(tmp_path: Path) -> None:
    whole = first(tmp_path / "whole", epochs=6)
    first(tmp_path / "a")
    as_before(tmp_path / "a")
    with pytest.warns(RuntimeWarning, match="does not say"):
        same_parameters(train(data=(X, Y), resume=tmp_path / "a", epochs=6), whole)
    first(tmp_path / "b")
    as_before(tmp_path / "b")
    with pytest.raises(ConfigError, match="was trained on arrays of a Python program"):
        train(resume=tmp_path / "b", epochs=6)


def test_the_scale_of_an_older_checkpoint_is_used(tmp_path: Path) -> None:
    """It scaled bytes of 0 and 1 by 1/255."""
    x = np.greater(X, np.median(X, axis=0)).astype(np.uint8)
    first(tmp_path, x=x, normalise="pixels")
    as_before(tmp_path)
    with pytest.warns(RuntimeWarning, match="does not say"):
        rest = train(data=(x, Y), resume=tmp_path, epochs=6)
    assert rest.normalisation.scale == 1 / 255


def test_an_older_checkpoint_of_a_file_knows_how_it_was_read(tmp_path: Path, rawnn: Rawnn) -> None:
    saved = tmp_path / "saved"
    assert rawnn("--data", table(tmp_path / "t.csv"), "--target", "kind", "--layers", "6-8-3",
                 "--device", "host", "--normalise", "learned", "--validation", "0.4", "--epochs",
                 "2", "--save", str(saved)).status == 0
    path, found = find(saved, print)
    write(path, replace(found, data={}, lineage=()))
    done = rawnn("--resume", str(saved), "--epochs", "3")
    assert done.status == 0, done.err
    assert "whether they are the same now is not known\n" in done.err
    assert "180 + 120 examples" in done.out


def test_a_model_alone_may_be_trained_on_anything(tmp_path: Path) -> None:
    model = tmp_path / "model.safetensors"
    result = first(tmp_path / "a", optimizer="sgd", y=WORDS)
    result.model.save(model)
    with pytest.raises(ConfigError, match="is a model alone, which names no data"):
        train(resume=model, epochs=6, layers=(6, 24, 3))
    with pytest.warns(RuntimeWarning, match="is a model alone, does not say what its data were"):
        rest = train(data=(X, WORDS), resume=model, epochs=1, layers=(6, 24, 3), device="host")
    np.testing.assert_array_equal(rest.normalisation.mean, result.normalisation.mean)
    state = result.model.state_dict()
    Model.from_state_dict(state).save(model)  # its classes have no names yet
    with pytest.warns(RuntimeWarning, match="does not say"):
        named = train(data=(X, WORDS), resume=model, epochs=1, layers=(6, 24, 3), device="host",
                      normalise="learned")
    assert named.label_names == ("ant", "bee", "cat")


def test_a_model_alone_says_what_network_it_is(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    for options in ({"layers": (6, 5, 2), "loss": "mse", "activation": "tanh", "bias": False},
                    {"layers": (6, 3, 6), "loss": "mse", "autoencoder": True}):
        data = x if "autoencoder" in options else (x, x[:, :2])
        before = train(data=data, epochs=1, batch=8, device="host", **options)
        before.model.save(tmp_path / "model.safetensors")
        with pytest.warns(RuntimeWarning, match="is a model alone"):
            found = train(data=data, resume=tmp_path / "model.safetensors", epochs=1, batch=8,
                          lr=1e-30, device="host")
        assert found.model.network == before.model.network
        same_parameters(found, before)


def test_a_config_of_another_network_is_refused_with_the_way_to_continue(tmp_path: Path) -> None:
    first(tmp_path)
    with pytest.raises(CheckpointError, match=r"layers are 6-24-3, but those of the Config 784-10; "
                                              r"a Config gives every option: .*by name"):
        train(Config(resume=str(tmp_path), epochs=9), data=(X, Y))


@pytest.mark.parametrize("wrong", [{"digest": 3}, {"parts": []}, {"split": [1]}, {"classes": "x"}])
def test_a_record_that_makes_no_sense(tmp_path: Path, wrong: dict[str, Any]) -> None:
    first(tmp_path)
    path, found = find(tmp_path, print)
    write(path, replace(found, data={**found.data, **wrong}))
    with pytest.raises(CheckpointError, match="its record of the data is malformed"):
        train(data=(X, Y), resume=tmp_path, epochs=6)


# -- classes -------------------------------------------------------------------------------------


def right(result: Result, word: str) -> float:
    """How many of a kind are named right: seen by the words alone."""
    return float((result.model.predict(X[word == WORDS], "labels") == word).mean())


def test_classes_keep_their_places(tmp_path: Path) -> None:
    """Rows of two kinds of three train the outputs of these two."""
    before = first(tmp_path, y=WORDS, epochs=20)
    assert min(right(before, word) for word in ("ant", "bee", "cat")) > 0.9
    some = WORDS != "ant"
    rest = train(data=(X[some], WORDS[some]), resume=tmp_path, epochs=21, new_data=True)
    assert rest.label_names == ("ant", "bee", "cat")
    assert min(right(rest, word) for word in ("bee", "cat")) > 0.9
    assert rest.test_accuracy > 0.9


@pytest.mark.parametrize(("y", "shown"), [
    (np.array(["q", "bee", "w"])[Y], "the classes q, w"), (Y, "the classes 0, 1, 2"),
    (np.array(["ant", "bee", "x"])[Y], "the class x")])
def test_a_class_that_the_model_does_not_know(tmp_path: Path, y: Any, shown: str) -> None:
    first(tmp_path, y=WORDS)
    with pytest.raises(DataError, match=f"{shown}, but the model knows ant, bee, cat, as .*: give "
                                        "those labels the names of the model, leave their rows"):
        train(data=(X, y), resume=tmp_path, epochs=5, new_data=True)


def test_classes_without_names_are_known_by_their_numbers(tmp_path: Path, rawnn: Rawnn) -> None:
    """A table of the numbers 1 and 2 names them; they are the second and third of three."""
    saved, file = str(tmp_path / "saved"), tmp_path / "t.csv"
    text = table(file)
    named = file.read_text()
    for number, word in enumerate(("ant", "bee", "cat")):
        named = named.replace(word, str(number))
    file.write_text(named)
    assert rawnn("--data", text, "--target", "kind", "--layers", "6-24-3", "--device", "host",
                 "--normalise", "learned", "--optimizer", "adam", "--lr", "0.02", "--epochs", "20",
                 "--save", saved).status == 0
    assert newest(tmp_path / "saved").label_names == ()
    file.write_text("\n".join(line for line in named.splitlines() if not line.endswith(",0")))
    done = rawnn("--resume", saved, "--epochs", "21", "--new-data")
    assert done.status == 0, done.err
    found = newest(tmp_path / "saved")
    assert found.label_names == ()
    model = Model.of(found)
    some = Y > 0
    assert (model.predict(X[some]) == Y[some]).mean() > 0.9
    file.write_text(named.replace(",2\n", ",many\n"))
    done = rawnn("--resume", saved, "--epochs", "22", "--new-data")
    assert done.status == 1
    assert "has the class many, but the model knows 0, 1, 2" in done.err


@pytest.mark.parametrize("shift", [0, 1, -1])
def test_numbers_are_classes_by_their_names(tmp_path: Path, shift: int) -> None:
    """Labels 1, 2 of 0, 1, 2 and 1, 2 of 1, 2, 3 are other outputs, also beside indices of 3."""
    y = (Y + shift).astype(np.int16)
    before = first(tmp_path, y=y, epochs=20)
    assert before.label_names == (() if shift == 0 else tuple(map(str, sorted(set(y.tolist())))))
    for epochs, some, dtype in ((21, y != y.min(), np.int64), (22, y != y.max(), np.int8)):
        rest = train(data=(X[some], y[some].astype(dtype)), resume=tmp_path, epochs=epochs,
                     new_data=True)
        assert rest.label_names == before.label_names
        assert rest.test_accuracy > 0.9
        expected = rest.model.predict(X[some], "labels")
        assert expected.dtype == np.int16  # as the labels of the first run were
        assert (expected == y[some]).mean() > 0.9
        assert rest.model.score(X[some], y[some]).accuracy == (expected == y[some]).mean()
    with pytest.raises(DataError, match=f"the class {y.max() + 1}, but the model knows"):
        train(data=(X, y + 1), resume=tmp_path, epochs=23, new_data=True)


def test_numbers_of_a_table_are_classes_by_their_names(tmp_path: Path, rawnn: Rawnn) -> None:
    file, saved = tmp_path / "t.csv", str(tmp_path / "saved")
    table(file)
    text = file.read_text()
    for number, word in enumerate(("ant", "bee", "cat"), 1):
        text = text.replace(word, str(number))
    file.write_text(text)
    done = rawnn("--data", str(file), "--target", "kind", "--layers", "6-24-3", "--device", "host",
                 "--normalise", "learned", "--optimizer", "adam", "--lr", "0.02", "--epochs", "20",
                 "--save", saved)
    assert done.status == 0, done.err
    assert newest(tmp_path / "saved").label_names == ("1", "2", "3")
    file.write_text("\n".join(line for line in text.splitlines() if not line.endswith(",1")))
    done = rawnn("--resume", saved, "--epochs", "21", "--new-data")
    assert done.status == 0, done.err
    model = Model.load(saved)
    expected = model.predict(X[Y > 0], "labels")
    assert expected.dtype == np.int64
    assert (expected == Y[Y > 0] + 1).mean() > 0.9
    done = rawnn("eval", saved, "--json", str(tmp_path / "e.json"))
    assert done.status == 0, done.err
    assert json.loads((tmp_path / "e.json").read_bytes())["accuracy"] > 0.9


@pytest.mark.parametrize("names", [None, np.array(["ant", "bee", "cat"]), np.array([3, 5, 9])])
def test_validation_may_have_a_class_that_the_new_rows_lack(tmp_path: Path, names: Any) -> None:
    y = Y if names is None else names[Y]
    first(tmp_path, y=y, epochs=20)
    some = Y < 2
    rest = train(data=(X[some], y[some]), validation=(X, y), resume=tmp_path, epochs=21,
                 new_data=True)
    assert rest.model.score(X, y).accuracy == pytest.approx(rest.test_accuracy, abs=1e-6)
    assert rest.test_accuracy > 0.6
    with pytest.raises(DataError):  # without a network that knows it
        from_arrays((X[some], y[some]), (X, y), kind="labels", outputs=2)
    with pytest.raises(DataError, match=r"but (the model knows|the classes are|labels are whole)"):
        train(data=(X[some], y[some]), resume=tmp_path, epochs=22, new_data=True,
              validation=(X, np.array(["dog", "eel", "fox"])[Y]))


def test_so_may_the_test_part_of_a_file(tmp_path: Path, rawnn: Rawnn) -> None:
    first(tmp_path / "saved", y=WORDS, epochs=20)
    some = WORDS != "cat"
    file = str(tmp_path / "t.npz")
    np.savez(file, x_train=X[some], y_train=WORDS[some], x_test=X, y_test=WORDS)
    done = rawnn("--resume", str(tmp_path / "saved"), "--epochs", "21", "--new-data", "--data",
                 file, "--save", str(tmp_path / "more"))
    assert done.status == 0, done.err
    done = rawnn("eval", str(tmp_path / "more"), "--json", str(tmp_path / "e.json"))
    assert done.status == 0, done.err
    found = json.loads((tmp_path / "e.json").read_bytes())
    wanted = Model.load(tmp_path / "more").score(X, WORDS)
    assert found["accuracy"] == pytest.approx(wanted.accuracy, abs=1e-6)


def test_eval_knows_the_classes_of_a_part_of_them(tmp_path: Path, rawnn: Rawnn) -> None:
    saved, file = str(tmp_path / "saved"), tmp_path / "t.csv"
    assert rawnn("--data", table(file), "--target", "kind", "--layers", "6-24-3", "--device",
                 "host", "--normalise", "learned", "--optimizer", "adam", "--lr", "0.02",
                 "--epochs", "20", "--save", saved).status == 0
    lines = file.read_text().splitlines()
    file.write_text("\n".join(line for line in lines if not line.endswith("ant")))
    done = rawnn("--resume", saved, "--epochs", "21", "--new-data", "--seed", "9")
    assert done.status == 0, done.err
    shown = float(next(line for line in done.out.splitlines()
                       if line.startswith("test accuracy")).split()[-1])
    done = rawnn("eval", saved, "--json", str(tmp_path / "e.json"))
    assert done.status == 0, done.err
    found = json.loads((tmp_path / "e.json").read_bytes())
    assert found["accuracy"] == pytest.approx(shown, abs=1e-4)  # of the same rows and classes
    assert found["accuracy"] > 0.9


# -- what identifies data ------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(10, 3), (5000, 100), (3, 400_000), (1, 2_000_000), (900_000,)])
def test_a_sample_is_no_larger_than_asked(shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    found = np.frombuffer(_sample(array, 200_000), np.float32)
    assert found.nbytes == array.nbytes if array.nbytes <= 200_000 else \
        100_000 < found.nbytes <= 200_000
    assert (found[0], found[-1]) == (array.flat[0], array.flat[-1])
    assert len(set(found.tolist())) == len(found)


def test_data_are_known_by_all_their_parts() -> None:
    wide = from_arrays((X, WORDS), 0.3, seed=1)
    assert identity_of(wide) == identity_of(from_arrays((X.copy(), WORDS.tolist()), 0.3, seed=1))
    assert identity_of(wide) == json.loads(json.dumps(identity_of(wide)))
    others = (from_arrays((X, WORDS), 0.3, seed=2), from_arrays((X, Y), 0.3, seed=1),
              from_arrays((X[::-1], WORDS), 0.3, seed=1), wide.reconstructing(), wide.one_hot())
    for other in others:
        assert differences(identity_of(wide), identity_of(other))
    assert not differences(identity_of(wide), identity_of(wide))
    assert SAMPLE <= 2**20


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("batch", [5, 20, 75])
def test_a_schedule_goes_on_at_its_epoch_with_another_batch(tmp_path: Path, optimizer: str,
                                                            batch: int) -> None:
    x, y = X / np.float32(1000), Y
    options: dict[str, Any] = {"layers": OPTIONS["layers"], "optimizer": optimizer, "lr": 0.01,
                               "device": "host", "schedule": "step:3:1e-7", "batch": 10}
    first = train(data=(x, y), epochs=3, save=tmp_path, **options)
    more = train(data=(x, y), resume=tmp_path, epochs=5, batch=batch, save=tmp_path)
    for name, array in first.parameters.items():  # a rate of 1e-9 from epoch 3 on
        np.testing.assert_allclose(more.parameters[name], array, rtol=0, atol=1e-6)
    stored = find(tmp_path, lambda message: None)[1]
    assert stored.state["clock"].tolist() == [5, 5 * -(-len(x) * 4 // 5 // batch)]


def test_moments_keep_their_corrected_values() -> None:
    rule = UPDATE_RULES["adam"]
    rng = np.random.default_rng(3)
    state = {"m": rng.normal(size=(4, 3)), "v": rng.random((4, 3))}
    a = {"beta1": 0.9, "beta2": 0.999}
    assert rule.recount is not None
    found = rule.recount(state, a, 15, 30)
    for name, beta in (("m", 0.9), ("v", 0.999)):
        np.testing.assert_allclose(found[name] / (1 - beta**30), state[name] / (1 - beta**15))


@pytest.mark.parametrize("missing", [(), ("m",), ("m", "v")])
def test_only_complete_moments_are_corrected(missing: tuple[str, ...]) -> None:
    """A file of another optimizer lacks some, which is refused where its state is loaded."""
    network = Network((3, 2), bias=False)
    state = {f"fc1.weight.{part}": np.full((2, 3), 0.5) for part in ("m", "v")
             if part not in missing}
    stored = Checkpoint(network, network.initial(1), 3,
                        state={**state, "clock": np.array([3, 15], np.int32)})
    recipe = Recipe(5, Optimizer("adam", 0.1), schedule="cosine", epochs=9)
    found = at_its_epoch(stored, recipe, 10).state
    assert found.pop("clock").tolist() == [3, 30]
    for name, array in state.items():
        beta = {"m": 0.9, "v": 0.999}[name[-1]]
        factor = 1.0 if missing else (1 - beta**30) / (1 - beta**15)
        np.testing.assert_allclose(found[name], array * factor, rtol=1e-6)


@pytest.mark.parametrize(("steps", "schedule", "stays"), [
    (15, "cosine", False), (15, "constant", True), (30, "cosine", True), (0, "cosine", True)])
def test_a_clock_stays_where_it_is_right_or_counted_nothing(steps: int, schedule: str,
                                                            stays: bool) -> None:
    """Moments that no step has changed have nothing to be corrected by."""
    network = Network((3, 2), bias=False)
    state = {f"fc1.weight.{part}": np.ones((2, 3)) for part in ("m", "v")}
    stored = Checkpoint(network, network.initial(1), 3,
                        state={**state, "clock": np.array([3, steps], np.int32)})
    recipe = Recipe(5, Optimizer("adam", 0.1), schedule=schedule, epochs=9)
    assert (at_its_epoch(stored, recipe, 10) is stored) == stays
