"""`rawnn compare`: configurations in turns on one network."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rawnn.bench import side_by_side
from rawnn.bench.record import Entry, read_results
from rawnn.bench.render.training import verdict
from rawnn.cli.bench import bench
from rawnn.cli.compare import compare
from rawnn.common.errors import ConfigError, RawnnError
from tests.bench.measuring import record
from tests.cli.conftest import Rawnn

SMALL = ("--device", "host", "--dataset", "synthetic", "--batch", "2000", "--rounds", "2")


@pytest.fixture(autouse=True)
def as_many_samples_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rawnn.bench.peers.worker.LONG_S", 1e9)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(compare, arguments)


def test_two_are_timed_in_turns_and_judged(tmp_path: Path) -> None:
    kept = tmp_path / "d.json"
    done = invoke(*SMALL, "--opt", "none", "--opt", "preload,fuse", "--json", str(kept))
    assert done.exit_code == 0, done.output
    for words in ("turn 2 of 4: preload,fuse", "95 % interval"):
        assert words in done.output
    first, second = read_results(kept).entries("compare")
    assert [(e.variant, len(e.samples("epoch_ms"))) for e in (first, second)] == [
        ("none", 8), ("preload,fuse", 8)]
    assert first.median("loss") == pytest.approx(second.median("loss"), rel=1e-4)
    assert 0.1 < (first.median("loss") or 0) < 2.4  # of a step: below that of a guess, log(10)
    assert (second.median("step_bytes") or 0) < (first.median("step_bytes") or 0)
    assert first.samples("launches") == second.samples("launches") == [0]  # on the host


@pytest.mark.parametrize("opts", [("--opt", "best"), ("--opt", "best", "--opt", "best")])
def test_one_is_no_comparison(opts: tuple[str, ...]) -> None:
    done = invoke(*SMALL, *opts)
    assert isinstance(done.exception, ConfigError)
    assert "at least two different sets" in str(done.exception)


def test_an_unknown_toggle_is_refused() -> None:
    done = invoke(*SMALL, "--opt", "best", "--opt", "fuze")
    assert isinstance(done.exception, ConfigError)
    assert "did you mean 'fuse'" in str(done.exception)


@pytest.mark.parametrize(("opt", "words"), [
    ("fuze", "did you mean 'fuse'"), ("best,none", "'best' and 'none' are presets")])
def test_no_data_are_read_for_toggles_that_nothing_can_run(
        opt: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rawnn.cli.compare.fitted", None)
    done = invoke("--opt", "best", "--opt", opt)
    assert isinstance(done.exception, ConfigError)
    assert words in str(done.exception)


@pytest.mark.parametrize(("a", "b", "words"), [
    ([2.0, 2.01, 1.99, 2.0] * 2, [1.0, 1.01, 0.99, 1.0] * 2,
     "b is 2.000 times faster than a (95 % interval 1.9"),
    ([1.0, 1.01, 0.99, 1.0], [2.0, 2.01, 1.99, 2.0],
     "b is 2.000 times slower than a (range 0.493-0.508)"),
    ([1.0, 1.2, 0.9, 1.1], [1.05, 1.1, 0.95, 1.2], "b and a differ by no more than the noise")])
def test_verdicts(a: Any, b: Any, words: str) -> None:
    assert verdict(Entry([record("a", a)]), Entry([record("b", b)])).startswith(words)


def test_what_was_timed_outlives_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once each set has had a turn; and `bench show` prints it again."""
    turns = []

    def timed(program: Any) -> Any:
        turns.append(program)
        if len(turns) == 4:
            raise KeyboardInterrupt
        return original(program)

    original = side_by_side.timed
    monkeypatch.setattr("rawnn.bench.side_by_side.timed", timed)
    kept = tmp_path / "d.json"
    done = invoke(*SMALL, "--opt", "none", "--opt", "preload", "--rounds", "5", "--json", str(kept))
    assert done.exit_code == 1  # of click's own, for Abort
    assert "preload" in done.output
    found = read_results(kept)
    assert found.ended == {"compare": "it was interrupted"}
    assert [len(e.samples("epoch_ms")) for e in found.entries()] == [8, 4]
    shown = CliRunner().invoke(bench, ["show", str(kept)])
    assert shown.exit_code == 0, shown.output
    assert shown.output in done.output


def test_what_was_timed_outlives_sigterm(rawnn: Rawnn, tmp_path: Path,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    turns = []

    def timed(program: Any) -> Any:
        turns.append(program)
        if len(turns) == 4:
            signal.raise_signal(signal.SIGTERM)
        return original(program)

    original = side_by_side.timed
    monkeypatch.setattr("rawnn.bench.side_by_side.timed", timed)
    kept = tmp_path / "d.json"
    done = rawnn("compare", *SMALL, "--opt", "none", "--opt", "preload", "--json", str(kept))
    assert done.status == 128 + signal.SIGTERM, done.err
    assert "preload and none" in done.out or "than none" in done.out
    assert "ended by SIGTERM" in done.err
    assert read_results(kept).ended
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_the_table_is_printed_where_the_file_cannot_be_written(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Any, content: bytes) -> None:
        raise RawnnError(f"cannot write {path}: No space left on device")

    monkeypatch.setattr("rawnn.bench.record.write_atomically", full)
    done = invoke(*SMALL, "--opt", "none", "--opt", "preload", "--json", str(tmp_path / "d.json"))
    assert isinstance(done.exception, RawnnError)
    assert "95 % interval" in done.output
