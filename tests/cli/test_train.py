"""`rawnn train`: what it prints, what --json and --quiet do, Ctrl-C."""

from __future__ import annotations

import io
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from rawnn.cli.screen import Heartbeat, fitted
from rawnn.common.errors import DataError, DeviceError
from rawnn.engine.runners.host import HostRunner
from rawnn.engine.training import train
from tests.cli.conftest import Rawnn

FAST = ("--device", "host", "--dataset", "synthetic", "--epochs", "2", "--batch", "500")


def test_the_default_command_prints_reports_and_a_summary(rawnn: Rawnn) -> None:
    done = rawnn(*FAST)
    assert done.status == 0
    for word in ("train loss", "test acc", "average epoch", "total training", "initialisation",
                 "test accuracy", "SYNTHETIC", "host (NumPy)", "784-10, batch 500"):
        assert word in done.out
    rows = [line for line in done.out.splitlines() if line.split()[:1] in (["1"], ["2"])]
    assert len(rows) == 2
    assert rawnn("train", *FAST).out.splitlines()[:4] == done.out.splitlines()[:4]


@pytest.fixture
def nothing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU, no data, no network."""
    monkeypatch.delenv("RAWNN_DATA", raising=False)
    monkeypatch.setattr("rawnn.data.dataset._cached", lambda entry, store: None)
    monkeypatch.setattr("rawnn.data.acquire.acquire", lambda *arguments: None)

    def no_gpu(ordinal: int, notify: Any) -> None:
        raise DeviceError("there is none")

    monkeypatch.setattr("rawnn.engine.machine.open_gpu", no_gpu)


@pytest.mark.usefixtures("nothing_here")
def test_the_last_line_says_what_stood_in(rawnn: Rawnn) -> None:
    fast = ("--epochs", "1", "--batch", "500")
    assert rawnn(*fast).out.splitlines()[-1] == \
        "NOTE            trained on GENERATED digits, not on mnist; on the host, not on a GPU"
    assert rawnn(*fast, "--dataset", "synthetic").out.splitlines()[-1] == \
        "NOTE            trained on the host, not on a GPU"
    assert "NOTE" not in rawnn(*FAST).out


@pytest.mark.usefixtures("nothing_here")
@pytest.mark.parametrize(("arguments", "words"), [
    (("--opt", "fusee"), "unknown toggle 'fusee'; did you mean 'fuse'?"),
    (("--opt", "best,none"), "'best' and 'none' are presets"),
    (("--opt", "report=0"), "report=0: give a whole number"),
    (("--opt", "graphs", "--device", "host"), "graphs: only for a GPU"),
    (("--opt", "persistent,fp8", "--device", "sim"), "'persistent' and 'fp8' exclude each other"),
    (("--opt", "persistent", "--layers", "784-9000-9000-10", "--device", "sim"),
     "does not fit the chip"),
    (("--layers", "100-10"), "takes 100 features, but mnist has 784"),
    (("--loss", "mse", "--dataset", "fashion-mnist"), "fashion-mnist has class labels"),
    (("--layers", "784-9", "--normalise", "learned"), "ends in 9 outputs"),
    (("--batch", "60001"), "larger than the training set (60000 examples)"),
])
def test_nothing_is_fetched_for_what_cannot_run(rawnn: Rawnn, monkeypatch: pytest.MonkeyPatch,
                                                arguments: tuple[str, ...], words: str) -> None:
    fetched: list[object] = []
    monkeypatch.setattr("rawnn.data.acquire.acquire", lambda *given: fetched.append(given))
    done = rawnn(*arguments)
    assert done.status == 2
    assert words in done.err.splitlines()[-1]
    assert not fetched


@pytest.mark.usefixtures("nothing_here")
def test_a_table_is_not_read_for_a_misspelt_toggle(rawnn: Rawnn, tmp_path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []
    monkeypatch.setattr("rawnn.data.tables.load_table", lambda *given, **named: read.append(given))
    done = rawnn("--data", str(tmp_path / "large.csv"), "--layers", "3-2", "--opt", "fusee")
    assert done.status == 2
    assert "unknown toggle 'fusee'" in done.err
    assert not read


@pytest.mark.usefixtures("nothing_here")
def test_the_library_trains_on_no_generated_data_and_warns_of_the_host() -> None:
    with pytest.raises(DataError, match=r"no MNIST could be had .*dataset=\"synthetic\""):
        train(epochs=1)
    with pytest.warns(RuntimeWarning, match="on the host, not on a GPU: there is none") as warned:
        result = train(dataset="synthetic", epochs=1, batch=500)
    assert result.synthetic
    assert [w.filename for w in warned] == [__file__]
    with warnings.catch_warnings(action="error"):
        train(dataset="synthetic", epochs=1, batch=500, device="host")


def test_messages_without_a_listener_go_to_the_logger(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "rawnn"):
        train(data=(np.zeros((20, 3)), np.arange(20) % 2), layers=(3, 2), batch=4, device="host",
              epochs=1)
    assert any("converted from float64" in message for message in caplog.messages)


def test_on_the_simulated_gpu(rawnn: Rawnn) -> None:
    done = rawnn(*FAST, "--device", "sim", "--opt", "seed,graphs=while")
    assert done.status == 0, done.err
    for word in ("GPU", "device memory", "nosync", "SIMULATED", "graphs=while"):
        assert word in done.out
    assert "device-timed" not in done.out


def test_the_host_has_one_clock_and_no_kernels(rawnn: Rawnn) -> None:
    done = rawnn(*FAST, "--opt", "report=2")
    summary = done.out[done.out.index("average epoch"):]
    epoch, training, initialisation = summary.splitlines()[:3]
    assert epoch.count(" ms") == 1
    assert training.count("by the wall clock") == 1
    for word in ("kernels", "driver"):
        assert word not in initialisation


def test_a_pipe_hears_that_it_goes_on_while_no_report_is_due(
        rawnn: Rawnn, monkeypatch: pytest.MonkeyPatch) -> None:
    epoch = HostRunner.epoch

    def slow(self: HostRunner, measured: bool) -> None:
        time.sleep(0.15)
        epoch(self, measured)

    monkeypatch.setattr(HostRunner, "epoch", slow)
    monkeypatch.setattr(Heartbeat, "period", 0.1)
    shown = [line for line in rawnn(*FAST, "--opt", "report=2").err.splitlines()
            if line.startswith("rawnn: training: ")]
    assert shown[0].startswith("rawnn: training: in the first epoch for 0 s")
    assert any("1 of 2 epochs done" in line for line in shown)
    assert rawnn(*FAST, "--opt", "report=2", "--quiet").err == ""


@pytest.mark.parametrize(("options", "line"), [
    ((), "784-10, batch 500, lr 0.1, seed 0"),
    (("--layers", "784-10", "--activation", "tanh"), "784-10, batch 500, lr 0.1, seed 0"),
    (("--layers", "784-9-10", "--activation", "tanh", "--no-bias", "--init", "he", "--partial",
      "--shuffle", "--seed", "4"),
     "784-9-10, no biases, tanh, init he, batch 500, partial batches kept, lr 0.1, shuffled, "
     "seed 4"),
    (("--optimizer", "adamw", "--lr", "0.001", "--weight-decay", "0.1", "--beta1", "0.9"),
     "784-10, batch 500, adamw, lr 0.001, weight decay 0.1, seed 0"),
    (("--autoencoder", "--layers", "784-4-784", "--loss", "mse", "--momentum", "0.5", "--schedule",
      "cosine"),
     "784-4-784, loss mse, batch 500, lr 0.1, momentum 0.5, schedule cosine, seed 0"),
])
def test_the_network_line_names_what_is_not_the_default(
        rawnn: Rawnn, options: tuple[str, ...], line: str) -> None:
    found, = (text for text in rawnn(*FAST, *options).out.splitlines()
              if text.startswith("network"))
    assert found == f"network   {line}"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_lines_are_wrapped_on_a_terminal_alone(width: int) -> None:
    text = "network   " + "784-128-10, batch 128, lr 0.1, " * 7
    for terminal in (True, False):
        console = Console(width=width, force_terminal=terminal, file=io.StringIO())
        lines = fitted(console, text.strip(), 10).splitlines()
        assert (max(map(len, lines)) <= width) is terminal
        assert all(line.startswith(" " * 10 + "7") or line[10:].strip() for line in lines[1:])


def test_quiet_prints_nothing(rawnn: Rawnn) -> None:
    done = rawnn(*FAST, "--quiet")
    assert (done.status, done.out) == (0, "")


def test_json_holds_the_whole_result(rawnn: Rawnn, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    done = rawnn(*FAST, "--quiet", "--seed", "3", "--json", str(file))
    assert done.status == 0
    kept = json.loads(file.read_text())
    assert kept["config"]["seed"] == 3
    assert kept["synthetic"] is True
    assert [r["epoch"] for r in kept["history"]] == [1, 2]
    assert kept["test_accuracy"] == kept["history"][-1]["test_accuracy"]
    assert len(kept["epoch_ms"]) == 2
    assert {"times", "environment", "toggles", "peak_memory_bytes", "interrupted"} <= kept.keys()
    same = train(device="host", dataset="synthetic", epochs=2, batch=500, seed=3)
    assert same.test_loss == kept["test_loss"]


def test_a_configuration_file_and_options_that_win_over_it(rawnn: Rawnn, tmp_path: Path) -> None:
    file, kept = tmp_path / "run.toml", tmp_path / "r.json"
    file.write_text('layers = [784, 16, 10]\nepochs = 3\nbatch = 500\ndataset = "synthetic"\n'
                    'device = "host"\nopt = ["fuse", "report=2"]\n')
    done = rawnn("--config", str(file), "--epochs", "2", "--json", str(kept))
    assert done.status == 0, done.err
    config = json.loads(kept.read_text())["config"]
    assert (config["layers"], config["epochs"], config["opt"]) == ([784, 16, 10], 2,
                                                                  "fuse,report=2")


def test_ctrl_c_prints_what_was_reached(
    rawnn: Rawnn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    epoch, file = HostRunner.epoch, tmp_path / "r.json"
    done_epochs = 0

    def interrupted(self: HostRunner, measured: bool) -> None:
        nonlocal done_epochs
        if done_epochs == 2:
            raise KeyboardInterrupt
        done_epochs += 1
        epoch(self, measured)

    saved = str(tmp_path / "saved")
    assert rawnn(*FAST, "--epochs", "3", "--save", saved).status == 0
    monkeypatch.setattr(HostRunner, "epoch", interrupted)
    resumed = rawnn("--resume", saved, "--epochs", "9")
    assert "after 5 of 9 epochs" in resumed.out  # 3 of the run before
    assert f"continue with: python -m rawnn --resume {saved}" in resumed.out
    done_epochs = 0
    done = rawnn(*FAST, "--epochs", "9", "--json", str(file))
    assert "interrupted" in done.out
    assert "after 2 of 9 epochs" in done.out
    assert "Traceback" not in done.err
    kept = json.loads(file.read_text())
    assert kept["interrupted"] is True
    assert [r["epoch"] for r in kept["history"]] == [1, 2]


@pytest.mark.parametrize("command", [(), ("train",), ("toggles",), ("plan",), ("bench",),
                                     ("cache",)])
def test_help(rawnn: Rawnn, command: tuple[str, ...]) -> None:
    done = rawnn(*command, "--help")
    assert done.status == 0
    assert "Usage: rawnn" in done.out


def test_version(rawnn: Rawnn) -> None:
    assert rawnn("--version").out.startswith("rawnn, version ")


@pytest.mark.parametrize(("opt", "shown"), [
    ("none", "in epochs 1-2: "), ("pool", "in epoch 1: 1, epoch 2: none"),
    ("async", "in epoch 1: 1, epoch 2: none"), ("arena", "in epochs 1-2: none"),
])
def test_the_log_of_allocations(opt: str, shown: str, rawnn: Rawnn, tmp_path: Path) -> None:
    file = tmp_path / "log.txt"
    done = rawnn(*FAST, "--batch", "3000", "--quiet", "--device", "sim", "--opt", opt,
                 "--log-allocations", str(file))
    assert done.status == 0, done.err
    head, *lines, last = file.read_text().splitlines()
    assert head.split()[:2] == ["time", "ms"]
    assert lines
    assert shown in last
    assert last.endswith(" each") == (opt == "none")


def test_the_log_of_allocations_on_the_screen_and_on_the_host(rawnn: Rawnn) -> None:
    done = rawnn(*FAST, "--device", "sim", "--opt", "arena", "--log-allocations")
    assert "cuMemAlloc" in done.err
    assert "driver calls: 4 outside the epochs; in epochs 1-2: none" in done.err
    done = rawnn(*FAST, "--quiet", "--log-allocations")
    assert "the host has no device memory" in done.err


def test_a_log_of_allocations_that_cannot_be_written(rawnn: Rawnn, tmp_path: Path) -> None:
    done = rawnn(*FAST, "--log-allocations", str(tmp_path / "no" / "log.txt"))
    assert done.status != 0
    assert "there is no directory" in done.err


def test_a_table_without_answers_is_told_where_they_belong(rawnn: Rawnn, tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", X=np.ones((8, 4), np.float32))
    done = rawnn("--data", str(tmp_path / "t.npz"), "--layers", "4-4", "--device", "host")
    assert (done.status, done.out) == (2, "")
    assert "t has none: they are the array y of an .npz file, or what --target names" in done.err
