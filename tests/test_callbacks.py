"""Listeners that come with rawnn, alone and together with resuming."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rawnn.common.errors import CheckpointError, ConfigError, RawnnError
from rawnn.common.listener import Listener, listeners_of
from rawnn.data import from_arrays
from rawnn.engine.callbacks import (
    BEST,
    Checkpoints,
    CsvLog,
    EarlyStopping,
    requested_listeners,
    without_file_writers,
)
from rawnn.engine.checkpoint import find, listed, read
from rawnn.engine.checkpoint_store import Store
from rawnn.engine.config import Config
from rawnn.engine.result import Report, Result
from rawnn.engine.session import Session
from rawnn.engine.training import train
from tests.engine import same_parameters
from tests.test_training import DATA, Recorder, run

OPTIONS: dict[str, Any] = {"layers": (12, 5, 4), "epochs": 6, "batch": 8, "device": "host",
                           "opt": "best", "shuffle": True, "optimizer": "adam", "lr": 0.01}


def go(*listeners: Listener, data: Any = DATA, **changed: Any) -> Result:
    return train(data=data, listener=listeners, **{**OPTIONS, **changed})


def epochs(directory: Path) -> list[int]:
    return [epoch for epoch, _ in listed(directory)]


# -- checkpoints and resuming --------------------------------------------------------------------


@pytest.mark.parametrize("device", ["host", "sim"])
@pytest.mark.parametrize("optimizer", [
    {"optimizer": "sgd"}, {"optimizer": "sgd", "momentum": 0.9}, {"optimizer": "adamw"},
    {"optimizer": "sgd", "schedule": "cosine"}, {"partial": True, "opt": "none"},
    {"opt": "preload,bf16"}, {"opt": "preload,fp16"}, {"opt": "preload,bf16,sr"},
])
def test_a_resumed_run_ends_as_one_that_never_stopped(
    tmp_path: Path, device: str, optimizer: dict[str, Any]
) -> None:
    changed = {"device": device, **optimizer}
    whole = go(**changed)
    stopper = Stopper(3)
    part = go(stopper, save=str(tmp_path), **changed)
    assert (part.stopped, len(part.epoch_ms)) == ("enough", 3)
    rest = go(resume=str(tmp_path), **changed)
    same_parameters(rest, whole)
    assert rest.resumed_epochs == 3
    assert [r.epoch for r in rest.history] == [4, 5, 6]
    assert [r.test_loss for r in rest.history] == [r.test_loss for r in whole.history[3:]]
    later = [report.epoch_ms for report in rest.history if report.epoch > 4]  # of its own half
    assert rest.average_epoch_wall_ms == pytest.approx(np.mean(later))


def test_a_run_as_graphs_resumes_too(tmp_path: Path) -> None:
    changed = {"device": "sim", "opt": "preload,bf16,graphs=epoch"}
    go(Stopper(3), save=str(tmp_path), **changed)
    same_parameters(go(resume=str(tmp_path), **changed), go(**changed))


class Stopper(Listener):
    def __init__(self, epoch: int) -> None:
        self._epoch = epoch

    def started(self, session: Session) -> None:
        self._session = session

    def settled(self, epoch: int) -> None:
        if epoch == self._epoch:
            self._session.stop("enough")


def test_checkpoints_fall_due_and_at_the_end(tmp_path: Path) -> None:
    go(save=str(tmp_path / "a"), save_every=4)
    assert epochs(tmp_path / "a") == [4, 6]
    go(save=str(tmp_path / "b"), keep=2)
    assert epochs(tmp_path / "b") == [5, 6]
    go(Checkpoints(tmp_path / "c", every=5))
    assert epochs(tmp_path / "c") == [5, 6]
    go(Stopper(3), save=str(tmp_path / "d"), save_every=2, opt="report=6")
    assert epochs(tmp_path / "d") == [2, 3]


def test_resuming_takes_the_options_of_the_run_before(tmp_path: Path) -> None:
    whole = train(**OPTIONS | {"dataset": "synthetic", "layers": (784, 10), "batch": 500,
                               "epochs": 3})
    train(**OPTIONS | {"dataset": "synthetic", "layers": (784, 10), "batch": 500, "epochs": 2},
          save=str(tmp_path / "ck"))
    moved = (tmp_path / "ck").rename(tmp_path / "moved")
    rest = train(resume=str(moved), epochs=3)
    same_parameters(rest, whole)
    assert rest.config.save == str(moved)  # it goes on saving where the checkpoints are
    assert epochs(moved) == [1, 2, 3]
    assert find(moved, lambda message: None)[1].config["resume"] is None


def test_data_that_the_caller_brings_are_not_looked_for_by_name(tmp_path: Path) -> None:
    go(save=str(tmp_path), epochs=3)
    kept = find(tmp_path, lambda message: None)[1]
    assert not {"dataset", "data", "target"} & set(kept.config)
    assert kept.facts == {"dataset": "random", "features": []}
    recorder = Recorder()
    other = from_arrays((DATA.train_images, DATA.train_labels))
    go(recorder, data=other, resume=str(tmp_path), new_data=True)
    assert any("was trained on the data set 'random', and goes on with 'arrays'" in message
               for message in recorder.all("notify"))


def test_an_interrupted_run_is_kept_unless_an_epoch_was_broken_off(tmp_path: Path) -> None:
    go(Recorder(("epoch_done", 3)), save=str(tmp_path), save_every=10)
    assert epochs(tmp_path) == [3]
    same_parameters(go(resume=str(tmp_path)), go())


def test_a_broken_off_epoch_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rawnn.engine.runners.host import HostRunner

    epoch, done = HostRunner.epoch, []

    def interrupted(self: HostRunner, measured: bool) -> None:
        epoch(self, measured)
        done.append(1)
        if len(done) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(HostRunner, "epoch", interrupted)
    assert go(save=str(tmp_path), save_every=10).interrupted
    assert epochs(tmp_path) == []


def test_what_cannot_be_resumed(tmp_path: Path) -> None:
    go(save=str(tmp_path), optimizer="sgd")
    for changed, sentence, error in (
        ({}, r"has 6 epochs behind it: to go on, ask for more than --epochs 6", ConfigError),
        ({"layers": (12, 6, 4), "epochs": 9}, "its layers are 12-5-4, but 12-6-4", CheckpointError),
        ({"optimizer": "adam", "epochs": 9}, r"holds no 'fc\d\.(weight|bias)\.[mv]': it is of "
                                             r"another optimizer than adam", CheckpointError),
    ):
        with pytest.raises(error, match=sentence):
            go(resume=str(tmp_path), **{"optimizer": "sgd", **changed})
    (tmp_path / "none").mkdir()
    with pytest.raises(CheckpointError, match="no checkpoint that can be read"):
        go(resume=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="later epoch than this run begins with: continue from"):
        go(save=str(tmp_path))
    with pytest.raises(ConfigError, match="save_every = 0"):
        Checkpoints(tmp_path, every=0)
    for options in ({"every": 1.5}, {"keep": 2.5}):
        with pytest.raises(ConfigError, match="it must be a whole number"):
            Checkpoints(tmp_path, **options)  # type: ignore[arg-type]


def test_a_clock_that_the_run_before_had_no_use_for(tmp_path: Path) -> None:
    """The plain run counts nothing; the resumed one shuffles as its fourth epoch does."""
    go(save=str(tmp_path), optimizer="sgd", shuffle=False, epochs=3)
    assert "clock" not in find(tmp_path, lambda message: None)[1].state
    assert go(resume=str(tmp_path), optimizer="sgd").resumed_epochs == 3
    state = find(tmp_path, lambda message: None)[1].state
    np.testing.assert_array_equal(state["clock"], [6, 30])


# -- early stopping ------------------------------------------------------------------------------


class Script(Listener):
    """Puts the figures of a script into the reports that early stopping hears."""

    def __init__(self, inner: EarlyStopping, losses: list[float]) -> None:
        self.inner, self._losses = inner, losses
        self.states: list[dict[str, Any]] = []

    def started(self, session: Session) -> None:
        self._session = session
        self.inner.started(session)

    def reported(self, report: Any) -> None:
        self.states.append(self._session.runner.parameters())
        self.inner.reported(replace(report, test_loss=self._losses[report.epoch - 1],
                                    test_accuracy=-self._losses[report.epoch - 1]))

    def ended(self, epoch: int) -> None:
        self.inner.ended(epoch)


@pytest.mark.parametrize(("losses", "patience", "delta", "stops", "best"), [
    ([5, 4, 3, 2, 1, 0], 1, 0, 6, 6),
    ([5, 4, 4, 4, 4, 4], 2, 0, 4, 2),
    ([5, 4, 4.5, 3.9, 5, 6], 2, 0, 6, 4),
    ([5, 4, 3.95, 3.9, 3.85, 3.8], 2, 0.5, 4, 2),
    ([1, 2, 3, 4, 5, 6], 10, 0, 6, 1),
])
@pytest.mark.parametrize("monitor", ["test_loss", "test_accuracy"])
def test_early_stopping(losses: list[float], patience: int, delta: float, stops: int, best: int,
                        monitor: str) -> None:
    script = Script(EarlyStopping(patience, delta, monitor), losses)
    recorder = Recorder()
    result = go(script, recorder)
    assert len(result.history) == stops
    assert bool(result.stopped) == (stops - best >= patience)
    assert script.inner.best_epoch == best
    for name, array in script.states[best - 1].items():
        np.testing.assert_array_equal(result.parameters[name], array)
    trained = go(epochs=best)
    assert result.test_loss == trained.test_loss  # measured anew with what was brought back
    assert any("the best by" in m for m in recorder.all("notify")) == (best != stops)
    if result.stopped:
        assert f"for {patience} reports" in result.stopped


def test_without_bringing_the_best_back() -> None:
    script = Script(EarlyStopping(1, restore_best=False), [1, 2, 3, 4, 5, 6])
    result = go(script)
    same_parameters(result, go(epochs=2))


@pytest.mark.parametrize("restore", [True, False])
@pytest.mark.parametrize("keeps", [True, False])
def test_checkpoints_say_whether_the_best_parameters_are_kept(tmp_path: Path, restore: bool,
                                                              keeps: bool) -> None:
    stopping = EarlyStopping(3, restore_best=restore, directory=tmp_path if keeps else None)
    go(Checkpoints(tmp_path), stopping, epochs=2)
    facts = find(tmp_path, print)[1].facts["early_stopping"]
    assert facts["saved"] == (tmp_path / BEST).exists() == (restore and keeps)


class Begun(Listener):
    """Asks the run to end before its first epoch."""

    def started(self, session: Session) -> None:
        session.stop("enough")


@pytest.mark.parametrize(("every", "written"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (5, [5]),
                                                (9, [5])])
def test_each_checkpoint_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                         every: int, written: list[int]) -> None:
    found = []
    monkeypatch.setattr(Store, "save", lambda self, checkpoint: found.append(checkpoint.epoch))
    go(save=str(tmp_path), save_every=every, epochs=5)
    assert found == written


def test_a_run_without_an_epoch_writes_no_checkpoint(tmp_path: Path) -> None:
    assert not go(Begun(), save=str(tmp_path)).history
    assert epochs(tmp_path) == []
    go(save=str(tmp_path), epochs=2)
    before = {path: path.stat().st_mtime_ns for _, path in listed(tmp_path)}
    go(Begun(), save=str(tmp_path), resume=str(tmp_path))
    assert {path: path.stat().st_mtime_ns for _, path in listed(tmp_path)} == before


def test_early_stopping_from_the_options(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    noise = (generator.normal(size=(60, 12)), generator.integers(0, 4, 60))
    changed = {"patience": 2, "epochs": 200, "lr": 0.05, "save": str(tmp_path)}
    result = go(data=noise, **changed)
    assert result.stopped.startswith("test_loss has not been better")
    best = min(result.history, key=lambda r: r.test_loss)
    assert result.test_loss == best.test_loss
    kept = read(tmp_path / BEST)
    assert kept.epoch == best.epoch
    same_parameters(result, kept)
    last = find(tmp_path, lambda message: None)[1]
    assert last.epoch == len(result.history)  # what training reached, not what was best
    assert last.facts["early_stopping"]["epoch"] == best.epoch


def test_early_stopping_goes_on_where_it_was(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    noise = (generator.normal(size=(60, 12)), generator.integers(0, 4, 60))
    changed: dict[str, Any] = {"data": noise, "patience": 4, "epochs": 200, "lr": 0.05}
    whole = go(**changed, save=str(tmp_path / "whole"))
    for after in (1, len(whole.history) - 1):
        directory = str(tmp_path / f"part{after}")
        go(Stopper(after), **changed, save=directory)
        rest = go(**changed, resume=directory, save=directory)
        assert rest.stopped == whole.stopped
        same_parameters(rest, whole)


def test_patience_counts_the_reports_of_the_run_before(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = EarlyStopping._judge
    monkeypatch.setattr(EarlyStopping, "_judge", lambda self, report: judge(
        self, replace(report, test_loss=float(report.epoch))))  # the first is the best
    options = {"patience": 4, "epochs": 9, "save": str(tmp_path)}
    go(Stopper(3), **options)
    assert go(resume=str(tmp_path), **options).history[-1].epoch == 5


def test_another_monitor_begins_anew_where_a_run_is_resumed(tmp_path: Path) -> None:
    go(EarlyStopping(9, monitor="test_loss"), Stopper(2), save=str(tmp_path))
    other = EarlyStopping(9, monitor="test_accuracy")
    result = go(other, resume=str(tmp_path))
    accuracies = {report.epoch: report.test_accuracy for report in result.history}
    assert min(accuracies) == 3
    best = max(accuracies.values())
    assert other.best == best
    assert other.best_epoch == min(epoch for epoch, each in accuracies.items() if each == best)


def test_best_parameters_that_are_lost_are_said_to_be(tmp_path: Path) -> None:
    changed: dict[str, Any] = {"patience": 3, "save": str(tmp_path)}
    go(Stopper(2), **changed)
    (tmp_path / BEST).write_bytes(b"torn")
    recorder = Recorder()
    go(recorder, resume=str(tmp_path), **changed)
    assert any("are lost" in message for message in recorder.all("notify"))


@pytest.mark.parametrize(("options", "sentence"), [
    ({"monitor": "loss"}, "use one of train_loss"), ({"patience": 0}, "patience = 0"),
    ({"patience": 1.5}, "patience = 1.5: it must be a whole number"),
    ({"min_delta": -1}, "min_delta = -1"), ({"min_delta": float("nan")}, "min_delta = nan"),
])
def test_early_stopping_refuses(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        EarlyStopping(**options)


def test_a_figure_that_the_loss_does_not_give() -> None:
    values = (DATA.train_images.astype(np.float32), DATA.train_images[:, :4].astype(np.float32))
    with pytest.raises(ConfigError, match="the loss mse gives no such figure"):
        go(data=from_arrays(values, normalise="learned"), loss="mse", patience=1, lr=1e-5,
           monitor="test_accuracy")


# -- the log, and several at once ----------------------------------------------------------------


def test_a_log_has_a_row_for_every_report(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    result = go(CsvLog(file))
    rows = list(csv.DictReader(file.open()))
    assert [int(row["epoch"]) for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [float(row["test_loss"]) for row in rows] == [r.test_loss for r in result.history]


def test_a_log_can_be_followed(tmp_path: Path) -> None:
    """Its header is in the file when training starts, and each row before the next listener is
    called."""
    file = tmp_path / "log.csv"
    lengths: list[int] = []

    class Reader(Listener):
        def started(self, session: Session) -> None:
            lengths.append(len(file.read_text().splitlines()))

        def reported(self, report: Report) -> None:
            rows = list(csv.DictReader(file.open()))
            lengths.append(1 + len(rows))
            assert float(rows[-1]["train_loss"]) == report.train_loss

    go(CsvLog(file), Reader(), epochs=3)
    assert lengths == [1, 2, 3, 4]


def test_a_log_keeps_the_rows_of_a_run_that_fails(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"

    class Fails(Listener):
        def epoch_done(self, epoch: int) -> None:
            if epoch == 3:
                raise LookupError

    log = CsvLog(file)  # outlives the run, so that no finaliser closes its file
    with pytest.raises(LookupError):
        go(log, Fails())
    assert [row["epoch"] for row in csv.DictReader(file.open())] == ["1", "2"]


def test_a_log_is_continued(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    go(CsvLog(file), Checkpoints(tmp_path), epochs=4)
    (tmp_path / "rawnn-000004.safetensors").unlink()
    go(CsvLog(file), resume=str(tmp_path))
    rows = list(csv.DictReader(file.open()))
    assert [int(row["epoch"]) for row in rows] == [1, 2, 3, 4, 5, 6]
    file.unlink()
    go(CsvLog(file), resume=str(tmp_path))
    assert len(file.read_text().splitlines()) == 4


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(RawnnError, match="there is no directory"):
        go(CsvLog(tmp_path / "no" / "log.csv"))


def test_every_listener_hears_everything() -> None:
    first, second = Recorder(), Recorder()
    go(first, second, epochs=2)
    assert [name for name, _ in first.received] == [name for name, _ in second.received]
    assert first.all("reported") == second.all("reported")


def test_config_and_arrays_go_together() -> None:
    config = Config(**OPTIONS)
    x, y = DATA.train_images, DATA.train_labels
    a = train(config, data=(x, y), validation=0.25)
    b = train(config, data=from_arrays((x, y), 0.25))
    same_parameters(a, b)
    with pytest.raises(ConfigError, match="either a Config or its options"):
        train(config, epochs=3)
    with pytest.raises(ConfigError, match="either a Config or its options"):
        train(config, data="mnist.csv")
    with pytest.raises(ConfigError, match="has its own validation data"):
        train(config, data=DATA, validation=0.5)

@pytest.mark.parametrize(("given", "sentence"), [
    ({"epoch": 3}, "unknown option 'epoch'; did you mean 'epochs'?"),
    ({"listener": 3}, "listener = 3: give a rawnn.Listener or several"),
    ({"listener": [print]}, "give a rawnn.Listener or several"),
    ({"listener": object()}, "has one or more of its methods: notify, started, reported"),
    ({"listener": "reported"}, "give a rawnn.Listener or several"),
    ({"listener": Listener}, "listener = Listener: that is the class; give an object of it"),
    ({"config": {"epochs": 3}}, "config is a rawnn.Config, not a dict"),
])
def test_what_train_cannot_take_is_said_with_its_fix(given: dict[str, Any],
                                                      sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        train(device="host", **given) if "config" not in given else train(**given)


def test_no_listener_is_none() -> None:
    assert listeners_of(None) == listeners_of(()) == listeners_of([]) == []


def test_a_sequence_with_a_listeners_methods_is_one_listener() -> None:
    class Kept(list[int]):
        def reported(self, *given: Any) -> None: ...

    assert len(listeners_of(Kept([1, 2]))) == 1
    assert len(listeners_of([Kept(), Listener()])) == len(listeners_of((Kept(),) * 2)) == 2


def test_what_has_some_of_the_methods_is_a_listener() -> None:
    class Own:
        reads = False

        def __init__(self) -> None:
            self.received: list[object] = []

        def started(self, session: Session) -> None:
            self.received.append(session.config.epochs)

        def reported(self, report: Report) -> None:
            self.received.append(report.epoch)

    one, other = Own(), Own()
    whole, recorder = go(epochs=2), Recorder()
    same_parameters(train(data=DATA, listener=one, **{**OPTIONS, "epochs": 2}), whole)
    train(data=DATA, listener=[recorder, other], **{**OPTIONS, "epochs": 2})
    assert one.received == other.received == [2, 1, 2]
    assert [each.reads for each in listeners_of([one, Recorder()])] == [False, True]


@pytest.mark.parametrize("device", ["host", "sim"])
@pytest.mark.parametrize("method", ["started", "reported", "settled", "ended"])
def test_what_a_listener_raises_is_passed_on_and_the_next_run_is_as_ever(
        device: str, method: str) -> None:
    def fails(self: Listener, notice: Any) -> None:
        raise LookupError("the listener's own")

    listener: Listener = type("Fails", (Listener,), {method: fails})()
    with pytest.raises(LookupError, match="the listener's own"):
        go(listener, device=device, epochs=2)
    same_parameters(go(device=device, epochs=2), go(device=device, epochs=2))


@pytest.mark.parametrize("patience", [None, 3])
def test_ranks_but_the_first_write_no_file(tmp_path: Path, patience: int | None) -> None:
    """Not even the best parameters, which they only take from the first rank's."""
    config = Config(save=str(tmp_path), patience=patience,
                    **({} if patience is None else {"monitor": "test_accuracy",
                                                    "min_delta": 0.25}))
    own, given = Recorder(), [Checkpoints(tmp_path), CsvLog(tmp_path / "log.csv")]
    found = without_file_writers([given[0], own, given[1]], config)
    assert found[0] is own
    if patience is None:
        assert found == [own]
        return
    [_, stopping] = found
    first = requested_listeners(config, lambda directory: True)
    assert [type(each) for each in first] == [Checkpoints, EarlyStopping]
    assert {**vars(stopping), "_writes": True} == vars(first[1])
    assert not vars(stopping)["_writes"]
    assert vars(first[1]) == {"_patience": 3, "_min_delta": 0.25, "_monitor": "test_accuracy",
                              "_restore": True, "_file": tmp_path / BEST, "_writes": True}


@pytest.mark.parametrize("is_resumed", [False, True])
@pytest.mark.parametrize("is_locked", [False, True])
def test_a_folder_with_checkpoints_of_another_run_is_refused_before_anything_is_read(
        tmp_path: Path, is_resumed: bool, is_locked: bool) -> None:
    run(save=str(tmp_path), epochs=2)
    config = Config(save=str(tmp_path), resume=str(tmp_path) if is_resumed else None)
    asked = list[Path]()

    def lock(directory: Path) -> bool:
        asked.append(directory)
        return is_locked

    if is_resumed:
        assert len(requested_listeners(config, lock)) == 1
    else:
        with pytest.raises(ConfigError):
            requested_listeners(config, lock)
    assert asked == [tmp_path]
