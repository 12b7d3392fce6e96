"""train_many: the members that options make, and what each of them is."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import rawnn
from rawnn.common.errors import CheckpointError, ConfigError, MissingLibrary
from rawnn.data.input_scale import InputScale
from rawnn.engine.checkpoint import find
from rawnn.engine.checkpoint_store import Store
from rawnn.many.folds import Folds
from rawnn.many.grouping import members_of
from rawnn.many.halving import rungs_of
from rawnn.many.progress import ManyReport, Progress, Status
from rawnn.many.training import _reactivate
from rawnn.many.variation import variation_of
from tests import requires
from tests.calls import count_lines

RNG = np.random.default_rng(5)
X = RNG.normal(size=(120, 6)).astype(np.float32)
Y = ((X[:, 0] * X[:, 1] > 0).astype(np.int64) + (X[:, 2] > 1)).astype(np.int64)
OPTIONS: dict[str, Any] = {"data": (X, Y), "layers": (6, 12, 3), "epochs": 4, "batch": 16,
                           "optimizer": "adam", "shuffle": True, "device": "host"}


def is_same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[n], b[n], equal_nan=True) for n in a)


class Recorder(rawnn.Listener):
    """Keeps the reports; calls `at(epoch)` behind each."""

    def __init__(self, at: Any = None) -> None:
        self.reports: list[ManyReport] = []
        self.messages: list[str] = []
        self.run: Any = None
        self._at = at

    def started(self, session: Any) -> None:
        self.run = session

    def notify(self, message: str) -> None:
        self.messages.append(message)

    def reported(self, report: Any) -> None:
        self.reports.append(report)
        if self._at:
            self._at(self, report)


def test_members_are_the_product_in_the_order_of_the_options() -> None:
    many = rawnn.train_many(**{**OPTIONS, "epochs": 1}, lr=np.array([0.1, 0.01]), seed=range(3),
                            folds=2)
    assert len(many) == 12
    table = many.table()
    assert table["lr"].tolist() == [0.1] * 6 + [0.01] * 6
    assert table["seed"].tolist() == [0, 0, 1, 1, 2, 2] * 2
    assert table["fold"].tolist() == [0, 1] * 6
    assert table.dtype.names == ("member", "lr", "seed", "fold", "status", "epochs", "best_epoch",
                                 "train_loss", "test_loss", "test_accuracy", "best_test_loss")


def test_every_member_is_a_run_of_its_own_bit_for_bit() -> None:
    many = rawnn.train_many(**{**OPTIONS, "layers": [(6, 12, 3), "6-8-3"]}, lr=[0.02, 0.005],
                            seed=[1, 4])
    assert len(many.stored.groups) == 2
    for member in many:
        single = rawnn.train(member.config, data=member.dataset)
        assert is_same(single.parameters, member.model.parameters)
        assert [r.train_loss for r in single.history] == [r.train_loss for r in member.history]
        assert [r.test_loss for r in single.history] == [r.test_loss for r in member.history]
        assert member.history[-1].test_accuracy == single.test_accuracy
    plain = rawnn.train(**{**OPTIONS, "lr": 0.02, "seed": 1})
    assert is_same(plain.parameters, many[0].model.parameters)


def test_a_list_of_configs_may_hold_any() -> None:
    configs = [rawnn.Config(layers=(6, 3), device="host", epochs=2, lr=0.1),
               rawnn.Config(layers=(6, 8, 3), device="host", epochs=3, optimizer="adam", lr=0.01),
               rawnn.Config(layers=(6, 3), device="host", epochs=1, lr=0.2, momentum=0.9)]
    many = rawnn.train_many(configs, data=(X, Y))
    assert [member.epochs for member in many] == [2, 3, 1]
    assert len(many.stored.groups) == 3
    for config, member in zip(configs, many, strict=True):
        assert is_same(rawnn.train(config, data=(X, Y)).parameters, member.model.parameters)


def test_early_stopping_is_that_of_a_single_run() -> None:
    options = {**OPTIONS, "epochs": 25, "patience": 2, "min_delta": 0.002}
    many = rawnn.train_many(**options, lr=[0.3, 0.02], seed=[0, 1])
    stopped = 0
    for member in many:
        config = {**member.checkpoint.config, "patience": 2, "min_delta": 0.002}
        single = rawnn.train(rawnn.Config(**config), data=member.dataset)
        assert member.epochs == len(single.history)
        assert is_same(single.parameters, member.model.parameters)
        assert (member.status == "stopped early") == bool(single.stopped)
        stopped += bool(single.stopped)
        best = many.stored.member(member.index, best=True)
        assert best.epoch == many.progress.best_epoch[member.index]
    assert stopped
    assert many.table()["best_epoch"].max() < 25


def test_halving_leaves_the_best_and_changes_no_bits() -> None:
    recorder = Recorder()
    many = rawnn.train_many(**{**OPTIONS, "epochs": 9}, lr=np.geomspace(1e-3, 0.1, 9), halving=3,
                            listener=recorder)
    full = rawnn.train_many(**{**OPTIONS, "epochs": 9}, lr=np.geomspace(1e-3, 0.1, 9))
    first = np.argsort(full.scores()[:, 0], kind="stable")[:3]  # rungs at epochs 1 and 3
    second = first[np.argsort(full.scores()[first, 2], kind="stable")[:1]]
    assert sorted(np.flatnonzero(many.progress.rung >= 1)) == sorted(first)
    assert np.flatnonzero(many.progress.rung == 2).tolist() == second.tolist()
    winner = int(second[0])
    assert many[winner].epochs == 9
    assert is_same(many[winner].model.parameters, full[winner].model.parameters)
    assert [report.members for report in recorder.reports] == [9, 3, 3, 1, 1, 1, 1, 1, 1]
    assert {member.epochs for member in many if member.status == "halved"} == {1, 3}


def test_folds_of_a_candidate_stay_together() -> None:
    many = rawnn.train_many(**{**OPTIONS, "epochs": 4}, lr=np.geomspace(1e-3, 0.1, 4), folds=3,
                            halving=2, min_epochs=1)
    assert many.progress.epoch.reshape(4, 3).std(axis=1).max() == 0
    means = many.scores()[:, 0].reshape(4, 3).mean(axis=1)
    kept = many.progress.epoch.reshape(4, 3)[:, 0] > 1
    assert sorted(np.flatnonzero(kept)) == sorted(np.argsort(means)[:2])


def test_folds_hold_out_each_row_once_and_their_part_of_each_class() -> None:
    many = rawnn.train_many(**{**OPTIONS, "epochs": 1}, folds=4, repeats=2)
    held = many.stored.held_out
    for repeat in (held[:4], held[4:]):
        assert np.array_equal(np.sort(np.concatenate(repeat)), np.arange(len(X)))
        for rows in repeat:
            counts = np.bincount(Y[rows], minlength=3)
            assert np.abs(counts - np.bincount(Y) / 4).max() <= 1
    assert not np.array_equal(held[0], held[4])
    for rows, out in zip(many.stored.rows, held, strict=True):
        assert np.array_equal(np.sort(np.concatenate([rows, out])), np.arange(len(X)))


def test_lists_of_different_lengths_are_one_group() -> None:
    folds = [(range(60), range(60, 70)), (range(10, 70), range(5)), (range(60), range(90, 100)),
             (range(59), range(60, 70))]
    many = rawnn.train_many(**OPTIONS, folds=folds)
    assert many.stored.group.tolist() == [0, 0, 0, 0]
    for member, (rows, held) in zip(many, folds, strict=True):
        single = rawnn.train(**{**OPTIONS, "data": (X[list(rows)], Y[list(rows)])},
                             validation=(X[list(held)], Y[list(held)]))
        assert is_same(single.parameters, member.model.parameters)
        assert member.history[-1].test_loss == single.test_loss


def test_a_table_file_is_split_into_folds_as_its_rows_stand(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    lines = [",".join([*map(str, row), str(label)]) for row, label in zip(X, Y, strict=True)]
    path.write_text("\n".join(["a,b,c,d,e,f,y", *lines]) + "\n")
    options = {**OPTIONS, "data": str(path), "target": "y", "normalise": "learned"}
    many = rawnn.train_many(**options, folds=3)
    with pytest.raises(ConfigError, match="leave validation out"):
        rawnn.train_many(**options, folds=3, validation=0.1)
    with pytest.raises(ConfigError, match="part of them is split off"):
        rawnn.train_many(**options, rows=[range(9)])
    typed = np.array([[float(str(value)) for value in row] for row in X])
    arrays = rawnn.train_many(**{**OPTIONS, "normalise": "learned", "data": (typed, Y)}, folds=3)
    for one, other in zip(many, arrays, strict=True):
        assert is_same(one.model.parameters, other.model.parameters)


def test_members_are_counted_from_either_end() -> None:
    many = rawnn.train_many(**{**OPTIONS, "epochs": 1}, lr=[0.02, 0.01, 0.3])
    for number, wanted in ((0, 0), (2, 2), (-1, 2), (-3, 0), (np.int64(-2), 1)):
        assert many[number].index == wanted
        assert many[number].config.lr == [0.02, 0.01, 0.3][wanted]
    assert [member.index for member in many] == [0, 1, 2]
    for number in (3, -4):
        assert [each.index for each in many[-2:]] == [1, 2]
        with pytest.raises(IndexError, match="there are 3 members"):
            many[number]


def test_a_resumed_training_counts_all_of_its_time_and_steps(
        monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count()  # of which an epoch takes one
    monkeypatch.setattr("rawnn.many.loop.perf_counter", lambda: float(next(seconds)))
    part = rawnn.train_many(**{**OPTIONS, "lr": [0.02, 0.01], "epochs": 2})
    whole = part.resume(epochs=5)
    steps = 96 // 16  # a fifth of the rows is split off
    assert part.stored.settings["steps"] == 2 * 2 * steps
    assert whole.stored.settings["steps"] == 2 * 5 * steps
    assert (part.stored.settings["seconds"], whole.stored.settings["seconds"]) == (2, 5)
    assert whole.network_steps_per_second == part.network_steps_per_second == 2 * steps


@pytest.mark.parametrize("epochs", [[2, 9], [9, 2]])
def test_rungs_lie_below_the_longest_training(epochs: list[int]) -> None:
    many = rawnn.train_many(**{**OPTIONS, "epochs": epochs, "lr": [0.02, 0.01, 0.005]}, halving=2)
    assert many.stored.settings["rungs"] == list(rungs_of(6, 9, 2, None)) == [2, 4]
    assert many.progress.epoch.max() <= 9


def test_a_listener_stops_the_run_and_a_resumed_one_ends_alike() -> None:
    whole = rawnn.train_many(**OPTIONS, lr=[0.02, 0.01, 0.3])
    part = rawnn.train_many(**OPTIONS, lr=[0.02, 0.01, 0.3], listener=Recorder(
        lambda recorder, report: recorder.run.stop("enough") if report.epoch == 1 else None))
    assert {member.epochs for member in part} == {1}
    assert [note for note in part.notes if note.startswith("stopped")] == ["stopped: enough"]
    assert not any(note.startswith("stopped") for note in whole.notes)
    resumed = part.resume()
    assert np.array_equal(resumed.scores(), whole.scores())
    for one, other in zip(resumed, whole, strict=True):
        assert is_same(one.checkpoint.state, other.checkpoint.state)
        assert is_same(one.model.parameters, other.model.parameters)


def test_resume_goes_on_with_more_epochs_or_other_members() -> None:
    many = rawnn.train_many(**{**OPTIONS, "epochs": 3}, lr=np.geomspace(1e-3, 0.1, 3), halving=3,
                            min_epochs=1)
    full = rawnn.train_many(**{**OPTIONS, "epochs": 5}, lr=np.geomspace(1e-3, 0.1, 3))
    lost = int(np.flatnonzero(many.progress.epoch == 1)[0])
    more = many.resume(epochs=5, members=[lost])
    assert more[lost].epochs == 5
    assert is_same(more[lost].model.parameters, full[lost].model.parameters)
    winner = int(np.argmax(many.progress.epoch))
    assert many.resume(epochs=5)[winner].epochs == 5
    with pytest.raises(ConfigError, match="no member has epochs left"):
        many.resume(epochs=3)


def test_members_resume_that_train_and_that_do_not() -> None:
    """Plain SGD has no clock in its state, unless it was loaded."""
    options = {"data": (X, Y), "layers": (6, 16, 3), "device": "host", "lr": [1e-4, 0.05, 0.1]}
    many = rawnn.train_many(**options, epochs=4, halving=3, min_epochs=1)
    assert sorted(member.epochs for member in many) == [1, 1, 4]
    resumed = many.resume(epochs=6)
    winner = int(np.argmax(many.progress.epoch))
    whole = rawnn.train_many(**options, epochs=6)
    assert [m.epochs for m in resumed] == [6 if i == winner else 1 for i in range(3)]
    assert is_same(resumed[winner].model.parameters, whole[winner].model.parameters)


def test_one_of_them_goes_on_with_the_fraction_that_all_were_scored_on(tmp_path: Path) -> None:
    """And with the seed of the first member, by which it was split off."""
    many = rawnn.train_many(data=(X, Y), validation=0.3, layers=OPTIONS["layers"], batch=8,
                            epochs=2, device="host", lr=[0.1, 0.2], seed=[3, 4], shuffle=True,
                            save=str(tmp_path))
    longer = many.resume(epochs=4)
    for number in (0, 3):
        one = rawnn.train(resume=f"{tmp_path}#{number}", data=(X, Y), epochs=4)
        assert is_same(one.parameters, longer[number].model.parameters)
        assert one.test_loss == longer[number].history[-1].test_loss
        assert one.config.validation == 0.3
    with pytest.raises(ConfigError, match=r"fraction of 0\.3 split off by the seed 3, and is"):
        rawnn.train(resume=f"{tmp_path}#0", data=(X, Y), epochs=5, validation=0.4)


def test_members_that_wait_for_others_resume_later() -> None:
    part = rawnn.train_many(**OPTIONS, lr=[0.02, 0.01, 0.3], listener=Recorder(
        lambda recorder, report: recorder.run.stop("enough") if report.epoch == 1 else None))
    first = part.resume(members=[0])
    assert [member.status for member in first] == ["finished", "paused", "paused"]
    assert [member.epochs for member in first] == [4, 1, 1]
    rest = first.resume()
    assert {member.status for member in rest} == {"finished"}
    whole = rawnn.train_many(**OPTIONS, lr=[0.02, 0.01, 0.3])
    assert np.array_equal(rest.scores(), whole.scores())


def test_early_stopping_judges_members_only_behind_epochs_that_they_trained() -> None:
    many = rawnn.train_many(**{**OPTIONS, "epochs": 30, "patience": 3}, lr=np.geomspace(3e-3, 1, 8))
    epochs = many.progress.epoch
    first, last = int(epochs.argmin()), int(np.where(epochs < 30, epochs, 0).argmax())
    assert epochs[first] < epochs[last] - 2 < 28
    both = many.resume(epochs=40, members=[first, last])
    for member in (first, last):
        one = many.resume(epochs=40, members=[member])
        assert both[member].epochs == one[member].epochs
        assert both.progress.waited[member] == one.progress.waited[member]
        assert is_same(both[member].model.parameters, one[member].model.parameters)


@pytest.mark.parametrize("more", [{}, {"patience": 2}, {"folds": 2}])
def test_what_is_killed_goes_on_bit_for_bit(tmp_path: Path, more: dict[str, Any]) -> None:
    np.savez(tmp_path / "d.npz", x=X, y=Y)
    options = {**{k: v for k, v in OPTIONS.items() if k != "data"}, "epochs": 8,
               "lr": [0.05, 0.01], "seed": [0, 1], **more}
    code = f"""
import os, signal, numpy as np, rawnn
d = np.load({str(tmp_path / "d.npz")!r})
class Kill:
    def reported(self, report):
        if report.epoch == 5:
            os.kill(os.getpid(), signal.SIGKILL)
rawnn.train_many(data=(d["x"], d["y"]), save={str(tmp_path / "runs")!r}, listener=Kill(),
                 **{options!r})
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=Path(rawnn.__file__).parents[1])
    assert ended.returncode == -signal.SIGKILL
    names = sorted(path.name for path in (tmp_path / "runs").glob("rawnn-*"))
    assert names[-1] == "rawnn-000004.safetensors"
    resumed = rawnn.train_many(resume=str(tmp_path / "runs"), data=(X, Y))
    whole = rawnn.train_many(data=(X, Y), **options)
    assert np.array_equal(resumed.scores(), whole.scores(), equal_nan=True)
    assert np.array_equal(resumed.scores("train_loss"), whole.scores("train_loss"), equal_nan=True)
    for one, other in zip(resumed, whole, strict=True):
        assert one.status == other.status
        assert is_same(one.model.parameters, other.model.parameters)
        assert is_same(one.checkpoint.state, other.checkpoint.state)
    assert (tmp_path / "runs" / "rawnn-000008.safetensors").exists()


def test_a_member_of_a_file_is_taken_wherever_a_checkpoint_is(tmp_path: Path) -> None:
    many = rawnn.train_many(**OPTIONS, lr=[0.02, 0.01], seed=[3, 4], save=tmp_path / "a")
    file = tmp_path / "many.safetensors"
    many.save(file)
    for path in (f"{tmp_path / 'a'}#3", f"{file}#3"):
        model = rawnn.Model.load(path)
        assert np.array_equal(model.predict(X), many[3].model.predict(X))
        resumed = rawnn.train(resume=path, data=(X, Y), epochs=6)
        longer = many.resume(epochs=6)[3]
        assert is_same(resumed.parameters, longer.model.parameters)
        assert resumed.resumed_epochs == 4
    with pytest.raises(CheckpointError, match="has the networks 0 to 3, but no network 4"):
        rawnn.Model.load(f"{file}#4")
    for load in (rawnn.Many.load, lambda path: rawnn.train_many(resume=path, data=(X, Y))):
        with pytest.raises(CheckpointError, match=r"#3 names one network, which rawnn\.train\("):
            load(f"{file}#3")
    with pytest.raises(ConfigError, match="members is empty: name one or more"):
        many.resume(epochs=6, members=[])
    with pytest.raises(CheckpointError, match="holds 4 networks: name one of them"):
        rawnn.Model.load(file)
    messages: list[str] = []
    with pytest.raises(CheckpointError, match=r"rawnn-000004.safetensors holds 4 networks: name"):
        find(tmp_path / "a", messages.append)
    assert messages == []  # older ones hold as many
    single = tmp_path / "one.safetensors"
    many[0].model.save(single)
    with pytest.raises(CheckpointError, match="no checkpoint of many networks"):
        rawnn.Model.load(f"{single}#0")
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="SHA-256"):
        rawnn.Many.load(file)


def test_a_member_of_a_fold_resumes_with_its_own_rows(tmp_path: Path) -> None:
    many = rawnn.train_many(**{**OPTIONS, "normalise": "learned"}, folds=3, lr=0.02)
    many.save(tmp_path / "m")
    rows, held = many.stored.rows[1], many.stored.held_out[1]
    resumed = rawnn.train(resume=f"{tmp_path / 'm'}#1", data=(X[rows], Y[rows]),
                          validation=(X[held], Y[held]), epochs=6)
    whole = rawnn.train(**{**OPTIONS, "epochs": 6, "normalise": "learned", "lr": 0.02,
                           "data": (X[rows], Y[rows])}, validation=(X[held], Y[held]))
    assert is_same(resumed.parameters, whole.parameters)
    with pytest.raises(ConfigError, match="the data are not those"):
        rawnn.train(resume=f"{tmp_path / 'm'}#1", data=(X, Y), validation=(X, Y), epochs=6)


@pytest.mark.parametrize("opt", ["graphs,cublas", "persistent", "bf16,graphs"])
def test_what_toggles_of_a_gpu_trained_goes_on_on_the_host(opt: str, tmp_path: Path) -> None:
    """As `rawnn.train` continues: those toggles are left out, which is said. Numbers in bf16 stay
    so."""
    options = {"layers": (6, 8, 2), "batch": 16, "opt": opt, "seed": 3}
    x = np.random.default_rng(0).normal(size=(64, 6)).astype(np.float32)
    data = (x, (x[:, 0] > 0).astype(int))
    begun = rawnn.train_many(data=data, lr=[0.1, 0.2], epochs=2, device="sim", save=str(tmp_path),
                             **options)
    recorder = Recorder()
    found = rawnn.train_many(data=data, resume=tmp_path, epochs=4, device="host", listener=recorder,
                             save=str(tmp_path / "host"))
    (sentence,) = [each for each in recorder.messages if "left out" in each]
    assert sentence.startswith("persistent does not apply" if opt == "persistent" else
                               "graphs, cublas do not apply" if "cublas" in opt else
                               "graphs does not apply")
    for number, member in enumerate(found):
        recorder = Recorder()
        alone = rawnn.train(data=data, resume=f"{tmp_path}#{number}", epochs=4, device="host",
                            listener=recorder)
        assert [each for each in recorder.messages if "left out" in each] == [sentence]
        for name, array in alone.parameters.items():
            np.testing.assert_array_equal(member.model.parameters[name], array)
    at_once = begun.resume(epochs=4, device="host", save=None)
    for member, other in zip(at_once, found, strict=True):
        for name, array in other.model.parameters.items():
            np.testing.assert_array_equal(member.model.parameters[name], array)
    again = rawnn.train_many(data=data, resume=tmp_path / "host", epochs=5)  # its device is stored
    assert again[0].epochs == 5
    with pytest.raises(ConfigError, match="only for a GPU, and this run is on the host"):
        rawnn.train_many(data=data, lr=[0.1, 0.2], epochs=2, device="host", **options)


def test_a_diverged_member_is_marked_and_others_go_on() -> None:
    many = rawnn.train_many(**{**OPTIONS, "optimizer": "sgd"}, lr=[0.05, 1e30])
    assert [member.status for member in many] == ["finished", "diverged"]
    assert np.isnan(many.table()["test_loss"][1])
    assert many.best(2)[0].index == 0
    assert len(many.ensemble()) == 1


def test_a_splitter_that_cannot_split_is_one_sentence() -> None:
    class Grouped:
        def split(self, x: object, y: object) -> object:
            raise ValueError("The 'groups' parameter should not be None.")
            yield

    with pytest.raises(ConfigError, match=r"folds: Grouped cannot split these data: The 'groups' "
                                          r"parameter.*such as list\(splitter.split"):
        rawnn.train_many(**OPTIONS, folds=Grouped())


def test_what_diverges_behind_its_best_epoch_keeps_that() -> None:
    options = {**OPTIONS, "optimizer": "sgd", "epochs": 12}
    many = rawnn.train_many(**options, lr=[1e5], schedule="warmup:5000", patience=12)
    assert many[0].status == "diverged"
    assert (many.progress.best_epoch[0], many[0].epochs) == (1, 4)
    shorter = rawnn.train(**{**options, "epochs": 1}, lr=1e5, schedule="warmup:5000")
    assert is_same(many[0].model.parameters, shorter.parameters)
    assert many.table()["test_loss"][0] == shorter.test_loss


def test_members_that_stopped_early_and_go_on_have_all_of_their_patience() -> None:
    options = {**OPTIONS, "lr": [0.3, 0.1], "seed": [0, 1]}
    many = rawnn.train_many(**{**options, "epochs": 30, "patience": 2})
    stopped = [member.index for member in many if member.status == "stopped early"]
    assert len(stopped) > 2
    more = many.resume(epochs=40, members=stopped)
    whole = rawnn.train_many(**{**options, "epochs": 40})  # a stop changes no bits
    none_better = 0
    for member in stopped:
        before = epoch = many[member].epochs
        best, waited = float(many.progress.best[member]), 0
        for loss in whole.scores()[member, before:]:
            epoch, waited = epoch + 1, 0 if loss < best else waited + 1
            best = min(best, float(loss))
            if waited == 2:
                break
        assert more[member].epochs == epoch
        none_better += epoch == before + 2
    assert none_better


def test_best_and_ensemble() -> None:
    many = rawnn.train_many(**{**OPTIONS, "epochs": 6}, lr=[0.02, 0.002, 0.05], seed=range(3))
    last = many.scores("test_accuracy")[:, -1]
    assert [m.index for m in many.best(3, by="test_accuracy")] == \
        np.argsort(-last, kind="stable")[:3].tolist()
    assert [m.index for m in many.best(cast(Any, np.int32(1)))] == [many.best(3)[0].index]
    for k in (0, -1, True, 1.5, "1", None):
        with pytest.raises(ConfigError, match="it must be a whole number of at least 1"):
            many.best(cast(Any, k))
    ensemble = many.ensemble(3)
    models = [member.model for member in many.best(3)]
    mean = np.mean([m.predict(X, "probabilities").astype(np.float64) for m in models], axis=0)
    assert np.allclose(ensemble.predict(X, "probabilities"), mean, atol=1e-7)
    assert np.array_equal(ensemble.predict(X), mean.argmax(axis=1))
    score = ensemble.evaluate(X, Y)
    assert score.accuracy == pytest.approx((mean.argmax(axis=1) == Y).mean())
    assert score.loss == pytest.approx(-np.log(mean[np.arange(len(Y)), Y]).mean(), rel=1e-5)
    with pytest.raises(ConfigError, match="gives classes, labels, probabilities"):
        ensemble.predict(X, "logits")


def test_an_ensemble_of_values_is_in_their_units() -> None:
    t = np.stack([X[:, 0] * 100 + 5, X[:, 1]], axis=1).astype(np.float64)
    many = rawnn.train_many(**{**OPTIONS, "data": (X, t), "layers": (6, 8, 2), "loss": "mse",
                               "normalise_targets": "learned", "epochs": 2}, folds=2, seed=[0, 1])
    values = np.mean([member.model.predict(X) for member in many], axis=0)
    ensemble = many.ensemble()
    assert np.allclose(ensemble.predict(X), values)
    assert ensemble.evaluate(X, t).loss == pytest.approx(((values - t) ** 2).mean(), rel=1e-5)
    for member in many:
        assert member.history[-1].test_loss == pytest.approx(member.model.score(
            X[many.stored.held_out[member.fold]], t[many.stored.held_out[member.fold]]).loss)


@pytest.mark.parametrize("loss", ["mse", "bce"])
def test_an_ensemble_of_autoencoders_is_scored_as_one_network_is(loss: str) -> None:
    x = (X * 40 + 120).clip(0, 255).astype(np.uint8)
    many = rawnn.train_many(**{**OPTIONS, "data": x, "layers": (6, 4, 6), "epochs": 2,
                               "autoencoder": True, "loss": loss}, seed=[0, 1])
    models = [member.model for member in many]
    assert models[0].normalisation.scale != 1
    mean = np.mean([m.predict(x, "values").astype(np.float64) for m in models], axis=0)
    ensemble = many.ensemble()
    assert np.allclose(ensemble.predict(x, "values"), mean, rtol=1e-5)
    assert np.array_equal(ensemble.predict(x), ensemble.predict(x, "values"))
    names = "values" if loss == "mse" else "values, classes, probabilities"
    with pytest.raises(ConfigError, match=f"output = 'logits': .* with {loss} gives {names}$"):
        ensemble.predict(x, "logits")
    t, y = x / 255.0, mean / 255.0  # the units of training
    wanted = ((y - t) ** 2).mean() if loss == "mse" else \
        -(t * np.log(y) + (1 - t) * np.log(1 - y)).mean()
    assert ensemble.evaluate(x).loss == pytest.approx(wanted, rel=1e-4)
    for model in models:  # an ensemble of one is that one
        assert rawnn.Ensemble([model]).evaluate(x).loss == pytest.approx(model.score(x).loss,
                                                                         rel=1e-5)


@pytest.mark.parametrize("loss", ["cross_entropy", "bce"])
def test_an_ensemble_counts_what_a_vanishing_probability_loses(loss: str) -> None:
    """As one network does: float32 has no probability there, but its logarithm."""
    y = Y if loss == "cross_entropy" else (Y[:, None] == np.arange(3)).astype(np.float32)
    many = rawnn.train_many(**{**OPTIONS, "data": (X, y), "layers": (6, 8, 3), "loss": loss,
                               "epochs": 2}, seed=[0, 1])
    models, far = [member.model for member in many], X * 1e4
    scores = [model.score(far, y).loss for model in models]
    assert min(scores) > 100
    for model, score in zip(models, scores, strict=True):
        assert rawnn.Ensemble([model]).evaluate(far, y).loss == pytest.approx(score, rel=1e-5)
    assert 100 < many.ensemble().evaluate(far, y).loss < min(scores)  # the surer one counts


def test_json_and_pandas_hold_the_table(tmp_path: Path) -> None:
    pandas = requires.module("pandas")
    many = rawnn.train_many(**OPTIONS, lr=[0.02, 0.01])
    frame = many.table(pandas=True)
    assert isinstance(frame, pandas.DataFrame)
    assert frame.loc[1, "lr"] == 0.01
    many.to_json(tmp_path / "m.json")
    found = json.loads((tmp_path / "m.json").read_text())
    assert found["table"]["test_loss"] == many.table()["test_loss"].tolist()
    assert found["history"]["train_loss"] == many.scores("train_loss").tolist()


def test_a_data_frame_needs_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    many = rawnn.train_many(**{**OPTIONS, "epochs": 1})
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingLibrary, match="pip install pandas"):
        many.to_pandas()


@pytest.mark.parametrize(("options", "said"), [
    ({"lr": []}, "lr is an empty list"),
    ({"lr": {0.1}}, "lr is a set: give several values as a list, whose order is that of the mem"),
    ({"lr": iter([0.1])}, "lr is a list_iterator: give several values as a list"),
    ({"learning_rate": [0.1]}, "unknown option 'learning_rate'"),
    ({"device": ["host", "sim"]}, "device is shared by all members"),
    ({"opt": "best", "lr": [[0.1, 0.2]]}, "lr = [0.1, 0.2]"),
    ({"lr": np.ones((2, 2))}, "give one dimension"),
    ({"folds": 1}, "folds = 1"), ({"folds": 121}, "folds = 121"), ({"folds": "five"}, "folds ="),
    ({"folds": 3, "validation": 0.1}, "leave validation out"),
    ({"folds": 3, "rows": [[0]]}, "either folds or rows"),
    ({"repeats": 2}, "plays no part without"),
    ({"rows": [[0, 500]], "validation": (X, Y)}, "the row 500"),
    ({"rows": [[0, 120]], "validation": (X, Y)}, "the row 120"),
    ({"rows": [[-1, 1]], "validation": (X, Y)}, "the row -1"),
    ({"rows": [[0, 1]]}, "give validation=(X, y)"),
    ({"folds": [[[0, 1]]]}, "must be a pair"),
    ({"halving": 1}, "halving = 1"), ({"min_epochs": 2}, "plays no part without halving"),
    ({"halving": 2, "min_epochs": 9}, "min_epochs = 9"),
    ({"monitor": "loss"}, "monitor = 'loss'"),
    ({"layers": [(6, 12, 3), (7, 3)]}, "takes 7 features"),
    ({"seed": range(1001), "lr": np.geomspace(1, 2, 1001)}, "1,002,001 members"),
    ({"resume": "x", "repeats": 7}, "repeats is stored in the checkpoint"),
    ({"resume": "x", "folds": 3}, "folds is stored in the checkpoint"),
    ({"resume": "x", "lr": 3}, "lr is stored in the checkpoint: with resume give only epochs"),
    ({"resume": "x", "members": [3]}, "members plays no part here: with resume give only epochs"),
])
def test_bad_input_is_one_clear_sentence(options: dict[str, Any], said: str) -> None:
    given = {"data": (X, Y)} if "resume" in options else OPTIONS
    with pytest.raises(ConfigError) as error:
        rawnn.train_many(**{**given, **options})
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("configs", "options", "said"), [
    ([], {}, "list of one rawnn.Config or more"), ([3], {}, "configs[0] is a int"),
    ([rawnn.Config(layers=(6, 3))], {"lr": 0.1}, "not both"),
    ([rawnn.Config(device="host"), rawnn.Config()], {}, "has device ="),
])
def test_bad_lists_of_configs(configs: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        rawnn.train_many(configs, data=(X, Y), **options)
    assert said in str(error.value)


@pytest.mark.parametrize(("listener", "words"), [
    (rawnn.EarlyStopping(patience=1), "EarlyStopping is for one network: .*patience"),
    (rawnn.Checkpoints("runs"), "Checkpoints is for one network: .*save=DIRECTORY"),
    (rawnn.CsvLog("log.csv"), r"CsvLog is for one network: .*table\(\)")])
def test_a_listener_of_one_network_is_refused_with_what_takes_its_place(
        listener: rawnn.Listener, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
        ) -> None:
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    with pytest.raises(ConfigError, match=words):
        rawnn.train_many(data=(x, x[:, 0] > 0), layers=(3, 2), epochs=1, batch=4, lr=[0.1, 0.2],
                         device="host", listener=[listener])


def test_the_host_in_place_of_a_gpu_is_a_warning() -> None:
    with pytest.warns(RuntimeWarning, match="training on the host") as caught:
        many = rawnn.train_many(**{**OPTIONS, "device": "auto", "epochs": 1})
    assert caught[0].filename == __file__
    for again in (lambda: many.resume(epochs=2),
                  lambda: rawnn.search(data=(X, Y), space={"lr": [0.1]}, budget=1, epochs=1,
                                       layers=(6, 3))):
        with pytest.warns(RuntimeWarning, match="training on the host") as caught:
            again()
        assert caught[0].filename == __file__
    assert many.environment is not None
    assert many.environment.device == "host"


def test_values_that_become_equal_are_a_warning() -> None:
    x = 1e9 + np.arange(len(X) * 6.0).reshape(-1, 6)
    with pytest.warns(RuntimeWarning, match="become equal in float") as caught:
        rawnn.train_many(**{**OPTIONS, "data": (x, Y), "epochs": 1})
    assert caught[0].filename == __file__


@pytest.mark.parametrize(("options", "said"), [
    ({}, "the targets reach from 100,000 to 100,002, which normalise_targets = learned "),
    ({"normalise_targets": "learned", "lr": 1e30}, "infinite: use smaller learning rates"),
    ({"normalise_targets": "learned", "lr": 10, "data": (X * 1e9, Y * 1.0)},
     ", which normalise = learned (--normalise learned) standardises; else use smaller learning"),
])
def test_a_warning_says_that_all_members_diverged(options: dict[str, Any], said: str) -> None:
    given = {**OPTIONS, "data": (X, Y + 1e5), "layers": (6, 12, 1), "loss": "mse", "epochs": 3,
             "lr": 0.2, "optimizer": "sgd", **options}
    with pytest.warns(RuntimeWarning, match="every network's loss became NaN") as caught:
        many = rawnn.train_many(**given, seed=[0, 1])
    assert caught[-1].filename == __file__
    assert said in str(caught[-1].message)
    assert [member.status for member in many] == ["diverged", "diverged"]


def test_a_warmup_longer_than_the_run_is_a_warning_and_a_note() -> None:
    with pytest.warns(RuntimeWarning, match="warm-up of 5 epochs is longer") as caught:
        many = rawnn.train_many(**{**OPTIONS, "epochs": 2, "schedule": ["cosine", "warmup:5"],
                                   "lr": [0.1, 0.2]})
    assert [each.filename for each in caught] == [__file__]
    assert [note for note in many.notes if "warm-up" in note] == [
        "schedule = warmup:5: the warm-up of 5 epochs is longer than the run of 2, so that the "
        "learning rate reaches 0.4 of lr at most"]


def test_ctrl_c_keeps_what_was_reached() -> None:
    many = rawnn.train_many(**{**OPTIONS, "epochs": 400}, lr=[0.02, 0.01], listener=Recorder(
        lambda recorder, report: signal.raise_signal(signal.SIGINT) if report.epoch == 2 else None))
    assert many.interrupted
    assert 2 <= many[0].epochs < 400
    assert many[0].status == "active"
    single = rawnn.train(**{**OPTIONS, "epochs": many[0].epochs, "lr": 0.02})
    assert is_same(single.parameters, many[0].model.parameters)


def test_the_scale_of_inputs_is_computed_for_a_model_that_asks(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It passes over all inputs."""
    computed: list[int] = []
    original = InputScale.of

    def counted(data: Any) -> Any:
        computed.append(len(data.train_images))
        return original(data)

    monkeypatch.setattr(InputScale, "of", counted)
    options = {**OPTIONS, "epochs": 1, "lr": [0.1, 0.01]}
    many, folded = rawnn.train_many(**options), rawnn.train_many(**options, folds=3)
    many.table()
    assert computed == []
    inputs = many[1].dataset.train_images
    wanted = InputScale("float32", float(inputs.min()), float(inputs.max()))
    for _ in range(2):
        assert many[0].model.input_scale == many[1].model.input_scale == wanted
        assert folded[4].model.input_scale is not None
    assert computed == [len(inputs), 80]
    rows = folded.stored.rows[1]
    found = folded[1].model.input_scale
    assert found is not None
    assert (found.low, found.high) == (float(X[rows].min()), float(X[rows].max()))
    folded.save(tmp_path / "all.safetensors")
    assert computed[2:] == [80, 80]  # the two other folds
    loaded = rawnn.Many.load(tmp_path / "all.safetensors")
    assert [loaded[i].model.input_scale for i in range(6)] \
        == [folded[i].model.input_scale for i in range(6)]


def test_what_members_have_in_common_is_checked_once() -> None:
    """Settling a thousand configurations was a third of a short run."""
    def lines(count: int) -> int:
        return count_lines(lambda: members_of(
            variation_of(None, {**options, "seed": range(count)}).configs, Folds(), data, None,
            None))

    data = rawnn.from_arrays((X, Y), 0.2)
    options = {name: value for name, value in OPTIONS.items() if name != "data"}
    assert lines(300) - lines(100) < 200 * 500


@pytest.mark.parametrize("named", [None, [0], [2, 4], [1, 3, 5], [0, 1, 2, 3, 4, 5, 6]])
def test_those_go_on_that_are_named_or_were_not_ended_by_a_rule(named: list[int] | None) -> None:
    """A member of each status that has epochs left, and one that has none; nobody whose loss
    is no number. Who is named has all the patience again; who was cut off and is not, waits."""
    statuses = [*Status, Status.FINISHED]
    progress = Progress.new(7, 10)
    progress.status[:] = statuses
    progress.epoch[:] = [4, 4, 4, 4, 4, 4, 10]
    progress.waited[:] = 3
    expected = []
    for member, status in enumerate(statuses):
        asked = status in (Status.ACTIVE, Status.FINISHED, Status.PAUSED) if named is None \
            else member in named
        goes_on = asked and status is not Status.DIVERGED and member < 6
        waits = named is not None and not asked and status is Status.ACTIVE
        expected.append(Status.ACTIVE if goes_on else Status.PAUSED if waits else status)
    _reactivate(progress, np.full(7, 10), named)
    assert progress.status.tolist() == expected
    assert progress.waited.tolist() == [0 if named and m in named else 3 for m in range(7)]


@pytest.mark.parametrize(("named", "said"), [
    ([], "members is empty"), ([7], "members has 7, but there are the members 0 to 6"),
    ([0, -1], "members has -1"), ([6], "ask for more than the 10 epochs that they have"),
    ([4], "no member has epochs left")])
def test_who_cannot_go_on_is_said(named: list[int], said: str) -> None:
    progress = Progress.new(7, 10)
    progress.status[:] = [*Status, Status.FINISHED]
    progress.epoch[:] = 10
    with pytest.raises(ConfigError, match=said):
        _reactivate(progress, np.full(7, 10), named)


def test_a_file_is_gone_on_with_for_as_many_epochs_as_are_asked_for(tmp_path: Path) -> None:
    """As many as before where none are, and what is trained is what a whole run trains."""
    options = {**OPTIONS, "lr": [0.1, 0.02], "epochs": 4}
    rawnn.train_many(**options, save=tmp_path)
    file = tmp_path / "rawnn-000002.safetensors"
    for epochs, more in ((4, {}), (6, {"epochs": 6}), (3, {"epochs": 3})):
        found = rawnn.train_many(resume=file, data=(X, Y), **more)
        whole = rawnn.train_many(**{**options, "epochs": epochs})
        assert found.progress.epoch.tolist() == [epochs] * 2
        for mine, other in zip(found, whole, strict=True):
            np.testing.assert_array_equal(mine.model.predict(X, "logits"),
                                          other.model.predict(X, "logits"))


@pytest.mark.parametrize("first", [1, 2])
def test_the_best_epoch_is_kept_where_a_run_goes_on_from_it(first: int) -> None:
    """Also where it was the last one, whose parameters are stored once."""
    options = {**OPTIONS, "lr": [0.1, 0.2], "patience": 2, "min_delta": 5.0, "device": "host"}
    whole = rawnn.train_many(**{**options, "epochs": 6})
    part = rawnn.train_many(**{**options, "epochs": first}).resume(epochs=6)
    assert part.progress.epoch.tolist() == whole.progress.epoch.tolist() == [3, 3]
    assert part.progress.best_epoch.tolist() == [1, 1]
    for one, other in zip(whole, part, strict=True):
        assert np.array_equal(one.model.predict(X, "logits"), other.model.predict(X, "logits"))


def test_a_checkpoint_that_cannot_be_written_ends_the_run_with_its_result(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_by = Store.save_by

    def failing(self: Store, epoch: int, *more: Any) -> Any:
        if epoch == 2:
            raise CheckpointError("no space is left")
        return save_by(self, epoch, *more)

    monkeypatch.setattr(Store, "save_by", failing)
    with pytest.raises(CheckpointError, match="no space is left; ") as caught:
        rawnn.train_many(data=(X, Y), layers=(6, 8, 3), batch=20, epochs=4, seed=range(2),
                         device="host", save=tmp_path / "runs", save_every=1)
    assert caught.value.result.progress.epoch.tolist() == [2, 2]  # type: ignore[attr-defined]
