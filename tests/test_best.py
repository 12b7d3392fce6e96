"""The model of a folder is what training ended with: the best of early stopping, where it is of
the same run."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rawnn.common.errors import CheckpointError
from rawnn.engine.callbacks import EarlyStopping
from rawnn.engine.checkpoint import (
    BEST,
    Checkpoint,
    find,
    find_model,
    is_of_run,
    listed,
    name_of,
    read,
    write,
)
from rawnn.engine.model import Model
from rawnn.engine.result import Result
from rawnn.engine.training import train
from tests import requires
from tests.cli.conftest import Rawnn
from tests.cli.conftest import rawnn as rawnn
from tests.engine import same_parameters
from tests.test_callbacks import Stopper
from tests.test_training import Recorder

RNG = np.random.default_rng(0)
NOISE = (RNG.normal(size=(60, 12)).astype(np.float32), RNG.integers(0, 4, 60))
OPTIONS: dict[str, Any] = {"layers": (12, 24, 4), "device": "host", "optimizer": "adam",
                           "lr": 0.03, "batch": 8}


def go(folder: Path | None, *listeners: Any, data: Any = NOISE, **changed: Any) -> Result:
    return train(data=data, save=folder, listener=listeners,
                 **{**OPTIONS, "epochs": 80, "patience": 3, **changed})


def model_of(folder: Path) -> tuple[str, Checkpoint, list[str]]:
    messages: list[str] = []
    path, found = find_model(folder, messages.append)
    return path.name, found, messages


def test_the_folder_holds_what_training_ended_with(tmp_path: Path,
                                                   caplog: pytest.LogCaptureFixture) -> None:
    result = go(tmp_path)
    last = find(tmp_path, print)[1]
    name, found, messages = model_of(tmp_path)
    assert name == BEST
    assert found.epoch < last.epoch == len(result.history)
    same_parameters(found, result)
    assert messages == [f"{tmp_path / BEST} is used, the best parameters, of epoch {found.epoch}; "
                    f"the newest, of epoch {last.epoch}, is {name_of(last.epoch)}"]
    with caplog.at_level(logging.INFO, "rawnn"):
        same_parameters(Model.load(tmp_path), result)
    assert messages[0] in caplog.text
    assert Model.load(tmp_path).score(*NOISE) == result.model.score(*NOISE)
    newest = tmp_path / name_of(last.epoch)  # a file means itself
    same_parameters(Model.load(newest), last)
    assert model_of(newest)[::2] == (newest.name, [])
    rest = go(tmp_path, resume=tmp_path, patience=30, epochs=last.epoch + 1)
    assert rest.resumed_epochs == last.epoch  # not where the best was


def test_the_command_line_uses_it_and_says_so(tmp_path: Path, rawnn: Rawnn) -> None:
    saved, file = str(tmp_path / "saved"), tmp_path / "t.npz"
    np.savez(file, X=NOISE[0], y=NOISE[1])
    done = rawnn("--data", str(file), "--layers", "12-24-4", "--optimizer", "adam", "--lr", "0.03",
                 "--batch", "8", "--epochs", "80", "--patience", "3", "--device", "host", "--save",
                 saved, "--json", str(tmp_path / "r.json"))
    assert done.status == 0, done.err
    result = json.loads((tmp_path / "r.json").read_bytes())
    assert "restored the parameters of epoch" in done.err
    used = f"rawnn: {Path(saved, BEST)} is used, the best parameters, of epoch "
    done = rawnn("eval", saved, "--json", str(tmp_path / "e.json"))
    assert used in done.err
    found = json.loads((tmp_path / "e.json").read_bytes())
    assert found["accuracy"] == pytest.approx(result["test_accuracy"])
    assert found["loss"] == pytest.approx(result["test_loss"], rel=1e-5)
    assert found["checkpoint"] == str(Path(saved, BEST))
    done = rawnn("predict", saved, "--data", str(file))
    assert used in done.err
    best = read(Path(saved, BEST))
    assert [int(line) for line in done.out.split()[1:]] == \
        Model.of(best).predict(NOISE[0]).tolist()
    newest = str(listed(saved)[-1][1])
    done = rawnn("eval", newest, "--json", str(tmp_path / "e.json"))
    assert used not in done.err
    assert json.loads((tmp_path / "e.json").read_bytes())["epoch"] == len(result["history"])
    done = rawnn("--resume", saved, "--epochs", "90")
    assert f"continuing from {newest}" in done.err


def test_export_uses_it(tmp_path: Path, rawnn: Rawnn) -> None:
    onnx = requires.module("onnx")
    result = go(tmp_path / "saved")
    out = tmp_path / "m.onnx"
    done = rawnn("export", str(tmp_path / "saved"), str(out))
    assert done.status == 0, done.err
    assert f"{BEST} is used" in done.err
    arrays = [onnx.numpy_helper.to_array(t) for t in onnx.load(out).graph.initializer]
    weight = result.parameters["fc1.weight"]
    assert any(np.array_equal(array, weight) or np.array_equal(array.T, weight)
               for array in arrays)


# -- where it is not of the run, or not what training ended with ----------------------------------


def another_run(folder: Path, best: Path) -> None:
    """A run without early stopping in a folder where an earlier one has left its best."""
    go(folder, patience=None, epochs=9)


def another_stopper(folder: Path, best: Path) -> None:
    """The best of another run that was best in the same epoch."""
    go(folder)
    left = read(best)
    write(Path(folder, BEST), replace(left, epoch=read(folder / BEST).epoch))


def goes_on_without(folder: Path, best: Path) -> None:
    """A run that began with early stopping, and ends without."""
    go(folder, Stopper(5), patience=50)
    train(data=NOISE, resume=folder, patience=None, epochs=9)


def another_branch(folder: Path, best: Path) -> None:
    """A run that was resumed from before its best, and got none better since."""
    result = go(folder, patience=30, epochs=30, lr=0.003)
    at = min(result.history, key=lambda r: r.test_loss).epoch
    assert at > 1
    for epoch, path in listed(folder):
        if epoch >= at:
            path.unlink()
    go(folder, resume=folder, patience=50, lr=0, epochs=at + 3)
    assert read(folder / BEST).epoch == at


def without_a_file(folder: Path, best: Path) -> None:
    """Early stopping by a listener that writes no file and goes on from one that did."""
    go(folder, Stopper(4), patience=50)
    go(folder, EarlyStopping(50), resume=folder, patience=None, epochs=6)


@pytest.mark.parametrize("case", [another_run, another_stopper, goes_on_without, another_branch,
                                  without_a_file])
def test_a_best_that_is_not_used(tmp_path: Path, case: Callable[[Path, Path], None]) -> None:
    go(tmp_path / "other", seed=1)
    folder, best = tmp_path / "saved", tmp_path / "other" / BEST
    folder.mkdir()
    shutil.copy(best, folder)
    case(folder, best)
    newest = listed(folder)[-1][1]
    name, _, messages = model_of(folder)
    assert name == newest.name
    assert messages[0].startswith(f"{folder / BEST} is ")
    assert messages[0].endswith(f": {newest.name} is used")
    same_parameters(Model.load(folder), read(newest))


def test_a_best_of_another_run_does_not_come_back(tmp_path: Path) -> None:
    go(tmp_path / "other", seed=1)
    go(tmp_path / "saved", Stopper(5), patience=50)
    at = read(tmp_path / "saved" / BEST).epoch
    write(tmp_path / "saved" / BEST, replace(read(tmp_path / "other" / BEST), epoch=at))
    recorder = Recorder()
    go(tmp_path / "saved", recorder, resume=tmp_path / "saved", patience=50, epochs=6)
    assert any("are lost" in m and "is of another run" in m for m in recorder.all("notify"))


# -- where it is the best there is ---------------------------------------------------------------


def test_a_best_that_is_newer_than_the_newest(tmp_path: Path) -> None:
    """Of a process that was killed between two checkpoints, also where it had been resumed."""
    go(tmp_path, patience=50, epochs=1)
    for parts in (1, 2):
        best = read(tmp_path / BEST)
        write(tmp_path / BEST, replace(best, epoch=best.epoch + 1, lineage=(
            *best.lineage, *[("again", 1)][: parts - 1])))
        assert model_of(tmp_path)[0] == BEST


def test_a_best_alone_and_a_torn_one(tmp_path: Path) -> None:
    go(tmp_path, epochs=4)
    newest = listed(tmp_path)[-1][1].name
    content = (tmp_path / BEST).read_bytes()
    (tmp_path / BEST).write_bytes(content[:-7])
    name, _, messages = model_of(tmp_path)
    assert name == newest
    assert "is truncated" in messages[0]
    (tmp_path / BEST).write_bytes(content)
    for _, path in listed(tmp_path):
        path.unlink()
    name, _, messages = model_of(tmp_path)
    assert name == BEST
    assert messages[0].endswith(f"{tmp_path} holds no other checkpoint")
    with pytest.raises(CheckpointError, match="holds no checkpoint that can be read"):
        go(tmp_path, resume=tmp_path)
    at = read(tmp_path / BEST).epoch
    assert go(None, resume=tmp_path / BEST, patience=50, epochs=at + 2).resumed_epochs == at


def test_folders_of_an_older_rawnn(tmp_path: Path) -> None:
    """They name no runs; what early stopping knows says whose the best is."""
    go(tmp_path)
    for path in tmp_path.iterdir():
        found = read(path)
        facts = {**found.facts, "early_stopping": {
            k: v for k, v in found.facts["early_stopping"].items() if k != "saved"}}
        write(path, replace(found, lineage=(), facts=facts))
    assert model_of(tmp_path)[0] == BEST
    best = read(tmp_path / BEST)
    write(tmp_path / BEST, replace(best, epoch=best.epoch + 50))
    assert model_of(tmp_path)[0] == listed(tmp_path)[-1][1].name


@pytest.mark.parametrize(("saved", "epoch", "lineage", "wanted"), [
    ((("a", 0),), 7, (("a", 0),), True), ((("a", 0),), 3, (("a", 0), ("b", 5)), True),
    ((("a", 0),), 5, (("a", 0), ("b", 5)), True), ((("a", 0),), 6, (("a", 0), ("b", 5)), False),
    ((("a", 0),), 7, (("a", 0), ("b", 5)), False), ((("c", 0),), 3, (("a", 0), ("b", 5)), False),
    ((), 3, (("a", 0),), False), ((), 3, (("a", 4),), True), ((), 3, (), True),
    ((("a", 0), ("b", 5)), 6, (("a", 0),), False)])
def test_runs_and_what_continues_them(saved: Any, epoch: int, lineage: Any, wanted: bool) -> None:
    found = read_nothing(saved, epoch)
    assert is_of_run(found, lineage) == wanted


def read_nothing(lineage: Any, epoch: int) -> Checkpoint:
    from rawnn.model.layers import Network

    network = Network((2, 2))
    return Checkpoint(network, network.initial(0), epoch, lineage=lineage)


def test_other_data_begin_early_stopping_anew(tmp_path: Path) -> None:
    """What was best on another test set cannot be compared."""
    go(tmp_path, Stopper(4), patience=50)
    other = (NOISE[0] + 1, (NOISE[1] + 1) % 4)
    recorder = Recorder()
    rest = go(tmp_path, recorder, data=other, resume=tmp_path, patience=50, new_data=True,
              epochs=8)
    assert any("early stopping starts anew" in m for m in recorder.all("notify"))
    best = min(rest.history, key=lambda r: r.test_loss)
    assert best.epoch > 4
    assert rest.test_loss == best.test_loss
    assert (model_of(tmp_path)[0], read(tmp_path / BEST).epoch) == (BEST, best.epoch)
