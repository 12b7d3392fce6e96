"""`rawnn compare`: sets of toggles in turns on one network."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

import rawnn.bench.duel
from rawnn.bench import duel
from rawnn.bench.duel import Duel, Side
from rawnn.cli.bench import bench
from rawnn.cli.compare import compare
from rawnn.common.errors import ConfigError, RawnnError
from rawnn.engine.config import Config
from rawnn.engine.result import Environment
from tests.cli.conftest import Rawnn

SMALL = ("--device", "host", "--dataset", "synthetic", "--batch", "2000", "--rounds", "2")
PLACE = Environment("0.1", "abc", "3.11", "Linux x86_64", "host", None, {}, {}, "")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(compare, arguments)


def test_two_sets_are_timed_in_turns_and_judged(tmp_path: Path) -> None:
    kept = tmp_path / "d.json"
    done = invoke(*SMALL, "--opt", "none", "--opt", "preload,fuse", "--json", str(kept))
    assert done.exit_code == 0, done.output
    for words in ("turn 2 of 2: preload,fuse", "95 % interval", "x first"):
        assert words in done.output
    found = msgspec.json.decode(kept.read_bytes(), type=Duel)
    assert [(s.opt, len(s.milliseconds)) for s in found.sides] == [("none", 8), ("preload,fuse", 8)]
    assert found.sides[0].loss == pytest.approx(found.sides[1].loss, rel=1e-4)
    seen = [s.footprint for s in found.sides if s.footprint]
    assert seen[1].bytes < seen[0].bytes
    assert [f.launches for f in seen] == [0, 0]  # on the host


@pytest.mark.parametrize("opts", [("--opt", "best"), ("--opt", "best", "--opt", "best")])
def test_one_set_is_no_comparison(opts: tuple[str, ...]) -> None:
    done = invoke(*SMALL, *opts)
    assert isinstance(done.exception, ConfigError)
    assert "at least two different sets" in str(done.exception)


def test_an_unknown_toggle_is_refused() -> None:
    done = invoke(*SMALL, "--opt", "best", "--opt", "fuze")
    assert isinstance(done.exception, ConfigError)
    assert "did you mean 'fuse'" in str(done.exception)


def duel_of(a: list[float], b: list[float]) -> Duel:
    def side(opt: str, milliseconds: list[float]) -> Side:
        return Side(opt=opt, toggles=[], notes=[], milliseconds=milliseconds, steps=10, loss=1.0)

    return Duel(config=Config(), environment=PLACE, dataset="mnist", rounds=2,
                sides=[side("a", a), side("b", b)])


@pytest.mark.parametrize(("a", "b", "words"), [
    ([2.0, 2.01, 1.99, 2.0], [1.0, 1.01, 0.99, 1.0], "b is 2.000 times faster than a"),
    ([1.0, 1.01, 0.99, 1.0], [2.0, 2.01, 1.99, 2.0], "b is 2.000 times slower than a"),
    ([1.0, 1.2, 0.9, 1.1], [1.05, 1.1, 0.95, 1.2], "b and a differ by no more than the noise")])
def test_verdicts(a: Any, b: Any, words: str) -> None:
    found = duel_of(a, b)
    assert found.verdict(found.sides[1]).startswith(words)


def test_what_was_timed_outlives_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once each set has had a turn; and `bench show` prints it again."""
    turns = []

    def timed(program: Any) -> Any:
        turns.append(program)
        if len(turns) == 4:
            raise KeyboardInterrupt
        return original(program)

    original = rawnn.bench.duel.timed
    monkeypatch.setattr("rawnn.bench.duel.timed", timed)
    kept = tmp_path / "d.json"
    done = invoke(*SMALL, "--opt", "none", "--opt", "preload", "--rounds", "5", "--json", str(kept))
    assert done.exit_code == 1  # of click's own, for Abort
    assert "preload" in done.output
    assert "95 % interval" in done.output
    found = msgspec.json.decode(kept.read_bytes(), type=Duel)
    assert found.interrupted
    assert [len(s.milliseconds) for s in found.sides] == [8, 4]
    shown = CliRunner().invoke(bench, ["show", str(kept)])
    assert shown.exit_code == 0, shown.output
    assert "95 % interval" in shown.output


def test_what_was_timed_outlives_sigterm(rawnn: Rawnn, tmp_path: Path,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    turns = []

    def timed(program: Any) -> Any:
        turns.append(program)
        if len(turns) == 4:
            signal.raise_signal(signal.SIGTERM)
        return original(program)

    original = duel.timed
    monkeypatch.setattr("rawnn.bench.duel.timed", timed)
    kept = tmp_path / "d.json"
    done = rawnn("compare", *SMALL, "--opt", "none", "--opt", "preload", "--json", str(kept))
    assert done.status == 128 + signal.SIGTERM, done.err
    assert "95 % interval" in done.out
    assert "ended by SIGTERM" in done.err
    assert msgspec.json.decode(kept.read_bytes(), type=Duel).interrupted
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_the_table_is_printed_where_the_file_cannot_be_written(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Any, content: bytes) -> None:
        raise RawnnError(f"cannot write {path}: No space left on device")

    monkeypatch.setattr("rawnn.bench.measured.write_atomically", full)
    done = invoke(*SMALL, "--opt", "none", "--opt", "preload", "--json", str(tmp_path / "d.json"))
    assert isinstance(done.exception, RawnnError)
    assert "95 % interval" in done.output
