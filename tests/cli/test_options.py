"""Options: groups and defaults of --help, the page of docs, completion, and what is never ignored
in silence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest

from rawnn.cli import cli, run
from rawnn.cli.option_groups import Option
from rawnn.common.errors import ConfigError
from rawnn.engine.config import Config
from rawnn.engine.training import train
from tests.cli.conftest import Rawnn
from tools.options_page import PAGE, commands, page

ROOT = Path(__file__).resolve().parents[2]
FAST = ("--device", "host", "--dataset", "synthetic", "--epochs", "1", "--batch", "500")
ALL = {name: command for name, command, _ in
       commands(cli, click.Context(cli, info_name="rawnn"), "rawnn")}


def options(name: str) -> dict[str, Option]:
    return {p.name: p for p in ALL[f"rawnn {name}"].params
            if isinstance(p, Option) and p.name is not None}


def test_every_field_of_a_run_is_an_option_with_the_default_that_is_shown() -> None:
    known, config = options("train"), Config()
    assert set(Config.known()) <= known.keys() | {"name"}
    defaults = {name: known[name].default_text for name in Config.known()}
    words = {True: "yes", False: "no"}
    for name, value in defaults.items():
        default = getattr(config, name)
        assert value, name
        if name == "layers":
            assert value == "-".join(map(str, default))
        elif isinstance(default, bool):
            assert value == words[default]
        elif default is not None:
            assert value == f"{default}".removesuffix(".0"), name
    assert defaults["batch"].startswith(f"{config.recipe().batch},")
    assert (defaults["momentum"], defaults["nesterov"], defaults["eps"]) == ("0", "no", "1e-08")


@pytest.mark.parametrize("columns", ["60", "80", "120"])
def test_help_groups_options_and_says_defaults(
    rawnn: Rawnn, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    text = rawnn("train", "--help").out
    places = [text.index(f"\n{group}:\n") for group in (
        "Toggles", "Network", "Training", "Data", "Keeping and continuing", "Device", "Output")]
    assert places[:5] == sorted(places[:5])
    assert max(map(len, text.splitlines())) <= int(columns)
    assert " ".join(text.split()).count("[default: ") == len(options("train"))


@pytest.mark.parametrize(("command", "absent"), [
    ("tune", ("--save", "--resume", "--patience", "--epochs", "--keep", "--seed", "--init")),
    ("plan", ("--save", "--resume", "--patience", "--data", "--device", "--seed", "--target")),
])
def test_commands_list_only_what_they_use(rawnn: Rawnn, command: str, absent: tuple[str, ...]
                                          ) -> None:
    text = rawnn(command, "--help").out
    for option in absent:
        assert f"{option} " not in text
        assert rawnn(command, option, "3").status == 2
    for option in ("--layers", "--batch", "--opt", "--optimizer"):
        assert option in text


def test_the_page_of_options_is_current() -> None:
    text = page()
    assert PAGE.read_text(encoding="utf-8") == text
    for name, command in ALL.items():
        assert f"\n## `{name}`\n" in text
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert any(f"`{word}" in text or f" {word}" in text for word in option.opts)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(("words", "found"), [
    ("rawnn ", {"train", "eval", "predict", "plan", "bench", "tune", "cache"}),
    ("rawnn --opt best,-cud", {"best,-cudnn"}), ("rawnn --opt gra", {"graphs"}),
    ("rawnn train --dataset f", {"fashion-mnist"}), ("rawnn --workload li", {"linear"}),
    ("rawnn plan --workl", {"--workload"}), ("rawnn --patie", {"--patience"}),
    ("rawnn tune --loss b", {"bce"}), ("rawnn predict x --device si", {"sim"}),
    ("rawnn --monitor test_", {"test_loss", "test_accuracy"}),
])
def test_completion(shell: str, words: str, found: set[str],
                    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in completing(shell, words).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        run([])
    assert found <= completed(capsys.readouterr().out)


def completing(shell: str, words: str) -> dict[str, str]:
    """The environment in which a shell asks for completions."""
    parts = words.split(" ")
    # bash and zsh say which word it is; fish gives the word itself.
    place = parts[-1] if shell == "fish" else str(len(parts) - 1)
    return {"COMP_WORDS": words, "COMP_CWORD": place, "_RAWNN_COMPLETE": f"{shell}_complete"}


def completed(printed: str) -> set[str]:
    return {line.split("\t")[0] for line in printed.replace("plain,", "").splitlines()}


def test_completion_by_a_process_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from rawnn.__main__ import main; main()"], text=True,
        capture_output=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), **completing("bash", "rawnn --opt gra")})
    assert "graphs" in completed(done.stdout), done.stderr


@pytest.mark.parametrize(("arguments", "sentence"), [
    (("--keep", "3"), "keep = 3 has no effect without save (--save)"),
    (("--save-every", "2"), "save_every = 2 has no effect without save (--save)"),
    (("--min-delta", "0.1"), "min_delta = 0.1 has no effect without patience (--patience)"),
    (("--monitor", "train_loss"), "monitor = train_loss has no effect without patience"),
    (("--validation", "0.3"), "validation = 0.3 is for a table (--data FILE.csv): synthetic"),
    (("--target", "kind"), "a target column needs a table"),
    (("--opt", "fuse,report=2,fuse"), "'fuse' is given twice"),
    (("--data", "x.csv"), "--dataset synthetic is a set of its own, but --data x.csv is a table"),
])
def test_what_would_be_ignored_is_refused(rawnn: Rawnn, arguments: tuple[str, ...], sentence: str
                                          ) -> None:
    done = rawnn(*FAST, *arguments)
    assert done.status == 2
    assert done.err.startswith(f"rawnn: error: {sentence}")


def test_a_data_set_named_beside_a_table_is_refused_by_all_that_take_both(
    rawnn: Rawnn, tmp_path: Path
) -> None:
    table = tmp_path / "x.csv"
    table.write_text("a,b\n1,0\n2,1\n")
    for command in (("train",), ("eval", "none"), ("predict", "none")):
        done = rawnn(*command, "--dataset", "mnist", "--data", str(table))
        assert done.status == 2
        assert "--dataset mnist is a set of its own, but --data" in done.err


def test_an_output_too_many_is_said(rawnn: Rawnn) -> None:
    done = rawnn(*FAST, "--layers", "784-12")
    assert done.status == 0
    assert "the network has 2 more outputs than synthetic has classes (10)" in done.err
    assert "more output" not in rawnn(*FAST).err


def test_a_configuration_refuses_what_plays_no_part() -> None:
    with pytest.raises(ConfigError, match="keep = 2 has no effect without save"):
        Config(keep=2)
    with pytest.raises(ConfigError, match="monitor = test_accuracy has no effect without patience"):
        train(data=(np.zeros((8, 2)), np.arange(8) % 2), layers=(2, 2), monitor="test_accuracy")
    assert Config(save="runs", keep=2, save_every=3, patience=2, min_delta=0.1).keep == 2


@pytest.mark.parametrize(("option", "sentence"), [
    ("--config", "cannot read the configuration"), ("--save", "save = '' names no directory"),
    ("--workload", "unknown workload ''"), ("--resume", ""), ("--target", "names no column"),
])
def test_an_empty_name_is_not_left_out(option: str, sentence: str,
                                       capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--dataset", "synthetic", "--device", "host", "--epochs", "1", "--quiet"]
    assert run([*given, option, ""]) in (1, 2)
    assert sentence in capsys.readouterr().err


def test_a_tilde_behind_an_equals_sign_is_the_home_directory(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()
    assert run([*FAST, "--quiet", "--save=~/runs", "--json=~/r.json"]) == 0
    assert sorted(path.name for path in (tmp_path / "home").iterdir()) == ["r.json", "runs"]
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    assert run(["--resume=~/runs", "--epochs", "2", "--quiet"]) == 0
    train(resume="~/runs", epochs=3)
    assert len(list((tmp_path / "home" / "runs").glob("rawnn-*"))) == 3
