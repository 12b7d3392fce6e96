"""What measurements leave behind where their file cannot be written, or they are broken off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rawnn.bench.random import Outcome, Outcomes, read_outcomes
from rawnn.cli.kept import Kept
from rawnn.common.errors import RawnnError
from tests.cli.conftest import Rawnn

SMALL = ("--device", "host", "--dataset", "synthetic", "--repeats", "1")


def disk(monkeypatch: pytest.MonkeyPatch, *full: bool) -> list[bytes]:
    """A disk that is full at each write in turn, and then as at the last; what was written."""
    written: list[bytes] = []
    state = list(full)

    def write(path: Any, content: bytes) -> None:
        if state.pop(0) if len(state) > 1 else state[0]:
            raise RawnnError(f"cannot write {path}: No space left on device")
        written.append(content)

    monkeypatch.setattr("rawnn.bench.measured.write_atomically", write)
    monkeypatch.setattr("rawnn.bench.random.write_atomically", write)
    return written


def test_a_full_disk_is_said_once_and_the_last_try_counts(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    written = disk(monkeypatch, True, True, False, True)
    kept, found = Kept("r.json"), Outcomes()
    kept.write(found)
    kept.write(found)
    with pytest.raises(RawnnError, match=r"cannot write r\.json: No space"):
        kept.check()
    kept.write(found)
    kept.check()
    assert len(written) == 1
    kept.write(found)
    with pytest.raises(RawnnError):
        kept.check()
    assert capsys.readouterr().err.count("going on, to be tried again") == 2
    nothing = Kept(None)
    nothing.write(found)
    nothing.check()


@pytest.mark.parametrize(("command", "row"), [
    (("ladder", "--epochs", "1", "--oracle", "off"), "baseline"),
    (("workloads", "--workload", "linear", "--opt", "none", "--epochs", "1"), "linear")])
def test_a_full_disk_costs_no_table(command: tuple[str, ...], row: str, rawnn: Rawnn,
                                    tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk(monkeypatch, True)
    done = rawnn("bench", *command, *SMALL, "--json", str(tmp_path / "r.json"))
    assert done.status == 1
    assert row in done.out
    assert "error: cannot write" in done.err


def test_a_full_disk_costs_no_ablation(rawnn: Rawnn, tmp_path: Path,
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    disk(monkeypatch, True)
    suite = tmp_path / "bench.toml"
    suite.write_text("[[ablation]]\nworkload='linear'\nfull='preload,fuse'\nbase='preload'\n"
                     "epochs=1\n")
    done = rawnn("bench", "ablation", "--bench", str(suite), "--device", "sim", "--dataset",
                 "synthetic", "--repeats", "1", "--json", str(tmp_path / "r.json"))
    assert done.status == 1
    assert done.err.count("going on, to be tried again") == 1
    assert "in the fastest set" in done.out
    assert "error: cannot write" in done.err


def test_a_full_disk_costs_no_contests(rawnn: Rawnn, tmp_path: Path,
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    """Under `bench all` the next suite then has its turn."""
    disk(monkeypatch, True)
    suite = tmp_path / "bench.toml"
    suite.write_text("[peers]\nnames=['linear']\nsteps=4\nsystems=['numpy']\n"
                     "[all]\nsuites=['peers']\n")
    done = rawnn("bench", "all", "--bench", str(suite), "--device", "host", "--dataset",
                 "synthetic", "--out", str(tmp_path / "all"))
    assert done.status == 1
    assert done.err.count("going on, to be tried again") == 1
    assert "linear" in done.out
    assert "peers: cannot write" in done.err
    assert "1 of 1 suites failed (peers)" in done.err


def test_rows_of_sets_that_have_some_of_their_runs(
        rawnn: Rawnn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the second of three repeats: what the first found is printed."""
    runs = []

    def once_more(self: Any, series: Any, repeat: int) -> None:
        runs.append(repeat)
        if repeat:
            self._interrupted = True
        else:
            original(self, series, repeat)

    from rawnn.bench.sets import _Sets

    original = _Sets._once_more
    monkeypatch.setattr(_Sets, "_once_more", once_more)
    done = rawnn("bench", "workloads", "--workload", "linear", "--opt", "none", "--epochs", "1",
                 *SMALL, "--repeats", "3")
    assert done.status == 130
    assert runs == [0, 1]
    assert any(line.startswith("linear ") for line in done.out.splitlines())


def test_random_runs_are_kept_one_by_one_and_shown(
        rawnn: Rawnn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "r.json"
    seen = []

    def run_random(opened: Any, limits: Any, seed: int, count: int) -> Any:
        for number in range(2):
            yield Outcome(seed=number, specification="3-2", verdict="right", us=1.0, used=0.5)
            seen.append(len(json.loads(kept.read_text())))
        yield Outcome(seed=2, specification="3-2", verdict="failed", reason="it broke")
        raise KeyboardInterrupt

    monkeypatch.setattr("rawnn.bench.random.run_random", run_random)
    assert rawnn("bench", "random", "--device", "host", "--json", str(kept)).status == 130
    assert seen == [1, 2]
    assert [o.verdict for o in read_outcomes(kept) or ()] == ["right", "right", "failed"]
    done = rawnn("bench", "show", str(kept))
    assert done.status == 0
    assert "0.50  3-2" in done.out
    assert "it broke" in done.out
    done = rawnn("bench", "show", str(kept), "--markdown", str(tmp_path / "r.md"))
    assert "shown as text alone" in done.err
