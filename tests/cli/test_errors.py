"""What a user can get wrong, and what can go wrong on a machine: one clear sentence on stderr, a
non-zero exit, no traceback. Needs no GPU: the driver's own failures come from the simulation."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import rawnn.sim
from rawnn.common.errors import DeviceError
from rawnn.data import catalog, idx
from rawnn.engine.config import read_toml
from rawnn.engine.machine import open_gpu
from rawnn.sim import Fault, Faults
from tests.cli.conftest import Done, Rawnn

FAST = ("--dataset", "synthetic", "--epochs", "1", "--batch", "500")


def one_sentence(done: Done, *words: str, status: int | None = None) -> str:
    assert done.status != 0, done
    if status is not None:
        assert done.status == status, done
    lines = [line for line in done.err.splitlines() if line.startswith("rawnn: error: ")]
    assert len(lines) == 1, done.err
    assert done.err.rstrip().endswith(lines[0])
    assert "Traceback" not in done.err
    for word in words:
        assert word in lines[0]
    return lines[0]


@pytest.mark.parametrize(("arguments", "words"), [
    (("--opt", "grphs"), ("unknown toggle 'grphs'", "did you mean 'graphs'")),
    (("--opt", "best,-cudn"), ("unknown toggle 'cudn'", "did you mean 'cudnn'")),
    (("--opt", "-cudnn"), ("removes a toggle that is not on", "best,-cudnn")),
    (("--opt", "arena=3"), ("'arena' takes no value",)),
    (("--opt", "report=0"), ("report=0", "at least 1")),
    (("--opt", "graphs=sometimes"), ("graphs=sometimes", "step, epoch, while")),
    (("--opt", "best=2"), ("'best' is a preset",)),
    (("--layers", "784"), ("layers",)),
    (("--layers", "784-ten"), ("layers = '784-ten'", "784-128-10")),
    (("--layers", "784-0-10"), ("layers",)),
    (("--layers", "100-10"), ("takes 100 features", "784")),
    (("--layers", "784-5"), ("ends in 5 outputs", "10")),
    (("--lr", "nan"), ("lr = nan", "finite")),
    (("--lr", "inf"), ("lr = inf", "finite")),
    (("--lr", "-0.1"), ("lr = -0.1", ">= 0")),
    (("--batch", "0"), ("batch = 0",)),
    (("--batch", "-3"), ("batch = -3",)),
    (("--batch", "1000000"), ("larger than the training set",)),
    (("--epochs", "0"), ("epochs = 0",)),
    (("--seed", "-1"), ("seed = -1",)),
    (("--device", "gpx"), ("device = 'gpx'", "did you mean 'gpu'")),
    (("--dataset", "mnits"), ("mnits", "did you mean 'mnist'")),
    (("--weight-decay", "-1"), ("weight_decay = -1",)),
    (("--beta1", "0.5"), ("has no beta1; it has momentum, nesterov, weight_decay",)),
    (("--monitor", "foo"), ("monitor = 'foo'", "test_loss, test_accuracy or train_loss")),
])
def test_a_bad_option(rawnn: Rawnn, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    one_sentence(rawnn("--device", "host", *FAST, *arguments), *words)


@pytest.mark.parametrize(("arguments", "word"), [
    (("--batch", "many"), "'many' is not a valid integer"),
    (("--lr", "fast"), "'fast' is not a valid float"),
    (("--epoch", "3"), "--epochs"),
    (("--learning-rate", "3"), "no such option '--learning-rate'; did you mean '--lr'?"),
    (("train", "--hidden_layer_sizes", "3"), "did you mean '--layers'?"),
    (("--dropout", "3"), "no such option '--dropout'; rawnn has no dropout: weight_decay"),
    (("--no-bais",), "did you mean '--no-bias'?"),
    (("bench", "show", "--file"), "no such option '--file'\n"),  # but an argument of that name
    (("bench", "ladder", "--batch-size", "3"), "did you mean '--batch'?"),
    (("trian",), "did you mean 'train'"),
    (("run.toml",), "no such command 'run.toml'; that file is taken by rawnn --config run.toml"),
    (("a/k.cu", "-v"), "no such command 'a/k.cu'; that file is taken by rawnn kernel check a/k.cu"),
    (("train", "extra"), "extra"),
])
def test_bad_usage(rawnn: Rawnn, arguments: tuple[str, ...], word: str) -> None:
    done = rawnn(*arguments)
    assert done.status == 2
    assert word in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(("text", "words"), [
    ("epoch = 3", ("unknown key 'epoch'", "did you mean 'epochs'")),
    ("epochs = 'three'", ("epochs", "whole number")),
    ("epochs = [", ("is not valid TOML",)),
    ("opt = [1]", ("opt must be a string",)),
    ("epochs = 3\nresume = 1", ("resume is a int: give a path",)),
    ("epochs = 3\nresume = ['runs', 'a']", ("resume is a list: give a path",)),
])
def test_a_bad_configuration_file(
    rawnn: Rawnn, tmp_path: Path, text: str, words: tuple[str, ...]
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    one_sentence(rawnn("--config", str(file)), str(file) if "epochs" not in text else "", *words)


def test_paths_in_a_configuration_file_are_relative_to_it(
        rawnn: Rawnn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, elsewhere = tmp_path / "experiment", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (folder / "a.csv").write_text("x,y\n" + "0,a\n9,b\n" * 20)
    (folder / "run.toml").write_text(
        'data = "a.csv"\ntarget = "y"\nlayers = [1, 2]\nsave = "runs"\nepochs = 2\n'
        'device = "host"\n')
    (folder / "more.toml").write_text('resume = "runs"\nepochs = 3\n')
    monkeypatch.chdir(elsewhere)
    for file in ("run.toml", "more.toml"):
        done = rawnn("--config", os.path.join("..", "experiment", file))
        assert done.status == 0, done.err
    assert sorted(p.name for p in (folder / "runs").iterdir()) == [
        f"rawnn-00000{n}.safetensors" for n in (1, 2, 3)]
    assert list(elsewhere.iterdir()) == []
    # Those of the command line are relative to where it is given.
    assert rawnn("--config", "../experiment/run.toml", "--save", "own").status == 0
    assert (elsewhere / "own").is_dir()
    values = read_toml(folder / "run.toml")
    assert values["data"] == str(folder / "a.csv")
    (folder / "opt.toml").write_text('opt = ["best", "bias_relu=mine.cu", "graphs=epoch"]')
    assert read_toml(folder / "opt.toml")["opt"] == \
        f"best,bias_relu={folder / 'mine.cu'},graphs=epoch"


def test_a_configuration_file_that_is_not_there(rawnn: Rawnn, tmp_path: Path) -> None:
    one_sentence(rawnn("--config", str(tmp_path / "no.toml")), "cannot read", "no.toml")


@pytest.mark.parametrize("wrong", [("--device", "gpu:99"), ("--save", "KEPT")])
def test_what_has_nothing_to_do_with_the_data_is_found_before_they_are_fetched(
        rawnn: Rawnn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
        wrong: tuple[str, str]) -> None:
    kept = tmp_path / "kept"
    assert rawnn("--device", "host", *FAST, "--save", str(kept)).status == 0

    def fetched(*arguments: object, **options: object) -> None:
        raise AssertionError("data were asked for")

    def none(ordinal: int, notify: Callable[[str], None]) -> None:
        raise DeviceError("no GPU here")

    monkeypatch.setattr("rawnn.engine.session.named", fetched)
    monkeypatch.setattr("rawnn.engine.machine.open_gpu", none)
    option, value = wrong
    done = rawnn(option, value.replace("KEPT", str(kept)), *FAST)
    one_sentence(done, "no GPU here" if option == "--device" else "continue from it with --resume")


@pytest.mark.parametrize(("arguments", "same"), [
    (("help",), ("--help",)), (("help", "eval"), ("eval", "--help"))])
def test_help_is_a_command_too(rawnn: Rawnn, arguments: tuple[str, ...],
                               same: tuple[str, ...]) -> None:
    asked, usual = rawnn(*arguments), rawnn(*same)
    assert (asked.status, asked.out) == (0, usual.out)


def test_toggles_without_a_default_name_none(rawnn: Rawnn) -> None:
    assert "None" not in rawnn("toggles", "--device", "host").out


# -- devices ----------------------------------------------------------------------------------


def test_a_gpu_asked_for_that_is_not_there(rawnn: Rawnn) -> None:
    try:
        open_gpu(99, print)
    except DeviceError:
        one_sentence(rawnn("--device", "gpu:99", *FAST), status=1)
    else:
        pytest.skip("this machine has a hundred GPUs")


@pytest.mark.parametrize("toggle", ["cudnn", "graphs", "cublas", "arena"])
def test_a_toggle_for_gpus_on_the_host(rawnn: Rawnn, toggle: str) -> None:
    one_sentence(rawnn("--device", "host", "--opt", toggle, *FAST),
                 f"{toggle}: only for a GPU", "--device auto", status=2)


def test_auto_without_a_gpu_runs_on_the_host_and_names_what_does_not_apply(
    rawnn: Rawnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(ordinal: int, notify: Callable[[str], None]) -> None:
        raise DeviceError("no GPU here")

    monkeypatch.setattr("rawnn.engine.machine.open_gpu", none)
    done = rawnn("--opt", "graphs,cublas,cudnn", *FAST)
    assert done.status == 0
    assert "running on the host: no GPU here" in done.err
    assert "graphs, cublas, cudnn do not apply on the host and are left out" in done.out


@pytest.fixture
def simulated(rawnn: Rawnn, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Rawnn]:
    """`simulated(faults=..., memory=...)` gives a command line whose --device sim is such a GPU."""

    def make(**options: object) -> Rawnn:
        backend = functools.partial(rawnn_sim_backend, **options)
        monkeypatch.setattr(rawnn_sim, "sim_backend", backend)
        return functools.partial(rawnn, "--device", "sim", *FAST)

    return make


rawnn_sim = rawnn.sim
rawnn_sim_backend = rawnn.sim.sim_backend


def test_a_driver_too_old_for_the_bindings(
    simulated: Callable[..., Rawnn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rawnn.sim.driver.SimDriver.cuDriverGetVersion",
                        lambda self: (0, 11080))
    one_sentence(simulated()(), "the NVIDIA driver supports CUDA 11.8", "update the driver",
                 status=1)


def test_no_device(simulated: Callable[..., Rawnn]) -> None:
    faults = Faults(Fault("CUDA_ERROR_NO_DEVICE", call="cuInit"))
    one_sentence(simulated(faults=faults)(), "no usable GPU", "cuInit", "CUDA_ERROR_NO_DEVICE",
                 "--device host", status=1)


@pytest.mark.parametrize("opt", ["none", "arena", "best", "preload"])
def test_out_of_device_memory_says_what_was_asked_and_what_was_free(
    simulated: Callable[..., Rawnn], opt: str
) -> None:
    one_sentence(simulated(memory=1 << 18)("--opt", opt), "CUDA_ERROR_OUT_OF_MEMORY",
                 "has no room for", "of 262,144 bytes are free", status=1)


def test_a_call_that_fails_is_named(simulated: Callable[..., Rawnn]) -> None:
    faults = Faults(Fault("CUDA_ERROR_LAUNCH_FAILED", call="cuLaunchKernel", nth=3))
    one_sentence(simulated(faults=faults)("--opt", "none"), "cuLaunchKernel",
                 "CUDA_ERROR_LAUNCH_FAILED", status=1)


def test_conflicting_toggles(simulated: Callable[..., Rawnn]) -> None:
    one_sentence(simulated()("--opt", "-preload,graphs=while"), "graphs=while", "add preload",
                 status=2)
    one_sentence(simulated()("--opt", "graphs,best,-arena"), "implies 'arena'", status=2)


def test_a_missing_library_is_named_with_its_extra(
    rawnn: Rawnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)  # as if it were not installed
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    one_sentence(rawnn("--device", "gpu", *FAST), "cuda-bindings", "rawnn[cu12]", status=1)


# -- training ---------------------------------------------------------------------------------


def test_a_loss_that_becomes_nan_says_where_and_keeps_the_last_good_report(
    rawnn: Rawnn
) -> None:
    with np.errstate(all="ignore"):
        done = rawnn("--device", "host", "--dataset", "synthetic", "--batch", "100", "--epochs",
                     "60", "--layers", "784-32-10", "--lr", "1e30", "--opt", "report=1")
    one_sentence(done, "the loss became", "at step", "of epoch", "smaller learning rate", status=1)


# -- data -------------------------------------------------------------------------------------


def small_idx(directory: Path) -> Path:
    """Four raw IDX files: 60 + 20 images of 5 x 4, ten classes."""
    directory.mkdir()
    rng = np.random.default_rng(3)
    arrays: list[np.ndarray] = []
    for count in (60, 20):
        arrays.append(rng.integers(0, 256, (count, 5, 4), dtype=np.uint8))
        arrays.append((np.arange(count) % 10).astype(np.uint8))
    for stem, array in zip(catalog.STEMS, arrays, strict=True):
        (directory / stem).write_bytes(idx.encode(array))
    return directory


def damage(directory: Path, kind: str) -> None:
    images, labels = (directory / stem for stem in catalog.STEMS[:2])
    content = images.read_bytes()
    if kind == "truncated":
        images.write_bytes(content[:-7])
    elif kind == "header only":
        images.write_bytes(content[:3])
    elif kind == "not idx":
        images.write_bytes(b"PNG!" + content)
    elif kind == "too long":
        images.write_bytes(content + b"x")
    elif kind == "mismatched":
        labels.write_bytes(idx.encode(np.zeros(59, np.uint8)))
    elif kind == "label":
        labels.write_bytes(idx.encode(np.full(60, 10, np.uint8)))
    elif kind == "missing":
        labels.unlink()


@pytest.mark.parametrize(("kind", "word"), [
    ("truncated", "truncated"), ("header only", "truncated"), ("not idx", "is not an IDX file"),
    ("too long", "has bytes after"), ("mismatched", "59 labels"),
    ("missing", "has no train-labels"),
])
def test_a_bad_idx_file(rawnn: Rawnn, tmp_path: Path, kind: str, word: str) -> None:
    directory = small_idx(tmp_path / "idx")
    arguments = ("--device", "host", "--dataset", "idx", "--data", str(directory), "--layers",
                 "20-10", "--batch", "10", "--epochs", "1")
    assert rawnn(*arguments).status == 0
    damage(directory, kind)
    one_sentence(rawnn(*arguments), word, status=1)


def test_a_label_outside_0_to_9(rawnn: Rawnn, tmp_path: Path) -> None:
    directory = small_idx(tmp_path / "idx")
    damage(directory, "label")
    arguments = ("--device", "host", "--data", str(directory), "--layers", "20-10", "--batch", "10")
    one_sentence(rawnn(*arguments, "--dataset", "idx"), "ends in 10 outputs", "11", status=2)
    # What calls itself MNIST is held to MNIST's own checksums.
    one_sentence(rawnn(*arguments), "train-images", "--dataset idx", status=1)


def test_a_directory_that_is_not_there(rawnn: Rawnn, tmp_path: Path) -> None:
    one_sentence(rawnn("--device", "host", "--data", str(tmp_path / "no")), "no", status=1)


# -- output -----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["no/such/folder/r.json", "."])
def test_a_result_that_cannot_be_written_is_refused_before_training(
    rawnn: Rawnn, tmp_path: Path, where: str
) -> None:
    done = rawnn("--device", "host", *FAST, "--json", str(tmp_path / where))
    one_sentence(done, str(tmp_path), status=2)
    assert "train loss" not in done.out


def test_an_unwritable_cache_is_done_without(
    rawnn: Rawnn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RAWNN_CACHE", str(tmp_path / "file" / "below"))
    assert rawnn("--device", "sim", *FAST).status == 0


def test_a_run_is_continued_from_another_folder(rawnn: Rawnn, tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    np.savez("d.npz", x=draw.random((64, 12), dtype=np.float32), y=draw.integers(0, 4, 64))
    first = rawnn("--device", "host", "--data", "d.npz", "--layers", "12-4", "--epochs", "1",
                  "--save", "kept", "--quiet")
    assert first.status == 0, first.err
    monkeypatch.chdir(tmp_path / "there")
    more = ("--resume", "../here/kept", "--epochs", "2", "--quiet")
    lost = rawnn(*more)
    assert lost.status == 1
    assert "read --data d.npz, from the folder in which it was started; there is none in " \
           f"{tmp_path / 'there'}: continue it in that folder, or give its present place " \
           "with --data" in lost.err
    found = rawnn(*more, "--data", "../here/d.npz")
    assert found.status == 0, found.err
