"""`python -m rawnn`: the process itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rawnn import __main__
from rawnn.cli import run

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("arguments", "status"), [(["--version"], 0), (["--lr", "nan"], 2)])
def test_the_exit_status_is_that_of_the_command(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], status: int
) -> None:
    monkeypatch.setattr(sys, "argv", ["rawnn", *arguments])
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert ended.value.code == status


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    """As in `rawnn plan --all | head -1`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "rawnn", "plan", "--opt", "best,graphs=epoch", "--all"], cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    assert process.stderr
    process.stdout.readline()
    process.stdout.close()
    message = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) != 0
    assert b"Traceback" not in message
    assert b"Exception" not in message


def test_ctrl_c_before_training_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*arguments: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rawnn.cli.train.Session", interrupt)
    assert run(["--device", "host", "--dataset", "synthetic"]) == 130
    assert "interrupted" in capsys.readouterr().err
