"""`rawnn tune`: what it prints, remembers and shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rawnn.cli import tune as tune_command
from rawnn.cuda.device import DeviceInfo
from rawnn.engine import launch_choices as choices
from rawnn.engine.launch_choices import TunedLaunch
from rawnn.opts import best_table as table
from rawnn.tuning import search
from tests.cli.conftest import Rawnn

SMALL = ("tune", "--device", "sim", "--layers", "20-16-5", "--batch", "8", "--dataset",
         "synthetic")


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(table.ENVIRONMENT, str(tmp_path / "mine.json"))
    monkeypatch.setattr(search, "STEPS", 3)
    monkeypatch.setattr(search, "MEASURED_MS", 0.1)
    return tmp_path / "mine.json"


def test_the_fastest_set_is_remembered_and_then_taken(rawnn: Rawnn, mine: Path) -> None:
    done = rawnn(*SMALL, "--opt", "best,bf16")
    assert done.status == 0, done.err
    assert "20-16-5 at batch 8, bf16" in done.out
    assert f"stored in {mine}" in done.out
    assert "more sets make a plan that was measured already" in done.out
    entry, = table.read(mine)
    assert (entry.layers, entry.batch, entry.precision) == ((20, 16, 5), 8, "bf16")
    assert entry.toggles
    assert entry.others
    assert entry.conditions == {"loss": "cross_entropy", "optimizer": "sgd", "inputs": "uint8"}
    shown = rawnn("tune", "--show")
    assert "20-16-5 at batch 8, bf16" in shown.out
    assert entry.toggles in shown.out
    assert f"{table.PACKAGED}" in shown.out


def test_a_table_can_be_named(rawnn: Rawnn, mine: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    done = rawnn(*SMALL, "--table", str(other))
    assert done.status == 0, done.err
    assert not mine.exists()
    assert table.read(other)[0].precision == ""
    shown = rawnn("tune", "--show", "--table", str(other))
    assert "float32" in shown.out
    assert "nothing is stored" in rawnn("tune", "--show", "--table", str(mine)).out


def test_ctrl_c_keeps_what_was_found(rawnn: Rawnn, mine: Path,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    measured = search.Search.measure

    def measure(self: search.Search, toggles: str) -> None:
        if len(self.found) == 2:
            raise KeyboardInterrupt
        measured(self, toggles)

    def open_device(*given: Any) -> Any:
        opened.append(original(*given))
        return opened[-1]

    opened: list[Any] = []
    original = tune_command.open_device
    monkeypatch.setattr(search.Search, "measure", measure)
    monkeypatch.setattr(tune_command, "open_device", open_device)
    done = rawnn(*SMALL)
    assert done.status == 130
    assert [each.device.open for each in opened] == [False]
    assert len(table.read(mine)) == 1


def test_the_launches_that_the_toggle_found_are_shown(rawnn: Rawnn,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    info = DeviceInfo("NVIDIA H200", 0, (9, 0), 132, 1, "13.0", "580.1", "13.0")
    found = {"matmul/mma nt a": TunedLaunch({"choice": 2}, 40.25, 38.0),
             "tick/naive": TunedLaunch({}, 40, 40)}
    choices.write(choices.file_of(info), info, found, lambda message: None)
    shown = rawnn("tune", "--show").out
    assert "2 launches measured" in shown
    assert "matmul/mma nt a: choice 2, 38.0 us a step, 40.2 before" in shown
    assert "tick" not in shown


def test_there_is_nothing_to_tune_on_the_host(rawnn: Rawnn) -> None:
    done = rawnn("tune", "--device", "host")
    assert done.status == 2
    assert "tune measures on a GPU" in done.err


@pytest.mark.parametrize("width", ["60", "80", "120"])
def test_nothing_that_is_shown_is_cut(rawnn: Rawnn, monkeypatch: pytest.MonkeyPatch,
                                      width: str) -> None:
    monkeypatch.setenv("COLUMNS", width)
    done = rawnn("tune", "--show")
    assert "…" not in done.out
    assert "at batch" in done.out
