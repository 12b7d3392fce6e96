"""`rawnn bench` as a user types it: what is printed, kept, shown again, and refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rawnn.bench import training
from rawnn.bench.case import Case
from rawnn.bench.harness import Harness
from rawnn.bench.record import read_results
from rawnn.cli import bench as bench_module
from rawnn.cli.bench import CASES, bench, today
from rawnn.common.errors import ConfigError, DeviceError, RawnnError
from rawnn.engine import machine
from rawnn.engine.session import Session
from tests import requires
from tests.cli.conftest import Rawnn

FAST = ("--device", "host", "--dataset", "synthetic", "--epochs", "1")
SMALL = ("ladder", *FAST, "--repeats", "2", "--batch", "500")
ONE = (*FAST, "--repeats", "1")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(bench, arguments, terminal_width=200)


def test_a_ladder_is_measured_kept_and_shown_again(tmp_path: Path) -> None:
    kept, table = tmp_path / "l.json", tmp_path / "l.md"
    done = invoke(*SMALL, "--json", str(kept), "--markdown", str(table))
    assert done.exit_code == 0, done.output
    for word in ("baseline", "report=10", "fuse", "best"):
        assert word in done.output
    assert [len(e.samples("epoch_ms")) for e in read_results(kept).entries()] == [2, 2, 2, 2]
    shown = invoke("show", str(kept), "--markdown", str(tmp_path / "again.md"))
    assert shown.exit_code == 0
    assert shown.output in done.output
    assert (tmp_path / "again.md").read_text() == table.read_text()


def test_a_ladder_is_gone_on_with_where_it_ended(tmp_path: Path) -> None:
    kept = tmp_path / "l.json"
    assert invoke(*SMALL, "--rungs", "fuse", "--json", str(kept)).exit_code == 0
    before = read_results(kept).entries()
    more = invoke(*SMALL[:-3], "3", *SMALL[-2:], "--rungs", "fuse", "--resume", str(kept))
    assert more.exit_code == 0, more.output
    after = read_results(kept).entries()
    assert [e.samples("epoch_ms")[:2] for e in after] == [e.samples("epoch_ms") for e in before]
    assert [len(e.samples("epoch_ms")) for e in after] == [3, 3]


def test_accuracies_are_compared_with_float64_or_else_with_the_baseline(tmp_path: Path) -> None:
    kept = tmp_path / "l.json"
    first = invoke(*SMALL, "--oracle", "compute", "--rungs", "fuse", "--json", str(kept))
    assert first.exit_code == 0, first.output
    assert "seed 9: accuracy" in first.output
    assert "reference: float64 on the host" in first.output
    second = invoke(*SMALL, "--rungs", "fuse", "--resume", str(kept))
    assert "seed 9" not in second.output
    assert "reference: float64 on the host" in second.output
    without = invoke(*SMALL, "--rungs", "fuse")
    assert "agrees (" in without.output
    assert "reference: baseline (--oracle compute" in without.output


def fails(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Runs of the rung `fuse` fail."""
    class Broken(Session):
        def run(self):  # type: ignore[no-untyped-def]
            if "fuse" in self.selection.values and self.config.opt != "best":
                raise error
            return super().run()

    monkeypatch.setattr(training, "Session", Broken)


def test_a_failed_rung_makes_the_exit_status_1_after_all_is_kept(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails(monkeypatch, RawnnError("cuLaunchKernel failed"))
    kept = tmp_path / "l.json"
    done = invoke(*SMALL, "--json", str(kept))
    assert isinstance(done.exception, RawnnError)
    assert "1 of 4 rungs failed (fuse)" in str(done.exception)
    assert "cuLaunchKernel failed" in done.output
    assert [e.status for e in read_results(kept).entries()] == \
        ["measured", "measured", "failed", "measured"]


def test_ctrl_c_shows_and_keeps_what_was_reached(tmp_path: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    fails(monkeypatch, KeyboardInterrupt())
    kept, table = tmp_path / "l.json", tmp_path / "l.md"
    done = invoke(*SMALL, "--json", str(kept), "--markdown", str(table))
    assert done.exit_code == 1  # the entry turns click's Abort into 130
    assert read_results(kept).ended == {"ladder": "it was interrupted"}
    assert "baseline" in done.output
    assert "interrupted" in table.read_text()


@pytest.mark.parametrize(("arguments", "sentence"), [
    (("--json", "/nowhere/at/all.json"), "there is no directory"),
    (("--markdown", "/"), "that is a directory"),
    (("--rungs", "fues"), "did you mean 'fuse'"),
    (("--epochs", "0"), "epochs = 0"),
])
def test_mistakes_are_found_before_anything_runs(arguments: tuple[str, ...],
                                                 sentence: str) -> None:
    done = invoke(*SMALL, *arguments)
    assert isinstance(done.exception, ConfigError)
    assert sentence in str(done.exception)


def test_toggles_are_compared_and_kept(tmp_path: Path) -> None:
    kept, table = tmp_path / "t.json", tmp_path / "t.md"
    done = invoke("toggles", "batch", *ONE, "--json", str(kept), "--markdown", str(table))
    assert done.exit_code == 0, done.output
    assert "batch=4096" in done.output
    assert "batch=4096" in table.read_text()
    entries = read_results(kept).entries("toggles")
    assert [e.variant for e in entries][:2] == ["best", "best,batch=32"]
    shown = invoke("show", str(kept), "--markdown", str(tmp_path / "again.md"))
    assert shown.exit_code == 0, shown.output
    assert shown.output in done.output
    assert (tmp_path / "again.md").read_text() == table.read_text()
    drawn = invoke("show", str(kept), "--plot", str(tmp_path / "t.svg"))
    assert "--plot draws a ladder" in str(drawn.exception)


def test_a_ladder_is_plotted(tmp_path: Path) -> None:
    requires.module("matplotlib")
    picture = tmp_path / "l.svg"
    done = invoke("ladder", *ONE, "--rungs", "fuse", "--oracle", "off", "--plot", str(picture))
    assert done.exit_code == 0, done.output
    assert "baseline" in picture.read_text()


@pytest.mark.parametrize("device", ["auto", "host"])
def test_what_does_not_apply_on_the_host_is_a_row_that_says_so(
        device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "open_gpu", no_gpu)
    kept = tmp_path / "t.json"
    done = invoke("toggles", "arena", *ONE, "--device", device, "--json", str(kept))
    assert done.exit_code == 0  # `preload`, which it is compared with, can run
    assert "only for a GPU: arena" in {e.reason for e in read_results(kept).entries()}
    assert "only for a GPU: arena" in done.output


def no_gpu(*arguments: Any) -> Any:
    raise DeviceError("no GPU")


def test_times_of_a_simulated_gpu_are_not_called_device_timed(tmp_path: Path) -> None:
    kept = tmp_path / "w.json"
    done = invoke("workloads", "--workload", "linear", *ONE, "--device", "sim", "--opt",
                  "preload,arena,report=100", "--json", str(kept))
    assert done.exit_code == 0, done.output
    assert "SIMULATED" in done.output
    place, = read_results(kept).environments.values()
    assert "device" not in " ".join(place.timer.values())


def test_options_alone_are_the_ladders() -> None:
    done = invoke(*SMALL[1:], "--rungs", "fues")
    assert "did you mean 'fuse'" in str(done.exception)
    assert "no such measurement 'laddr'; did you mean 'ladder'" in invoke("laddr").output


def test_without_a_name_the_ladder_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def received(case: Any, options: dict[str, Any], *more: Any) -> None:
        asked.append((case.name, options["repeats"], options["rungs"]))
        raise RawnnError("asked")

    monkeypatch.setattr(bench_module, "run_case", received)
    assert isinstance(invoke().exception, RawnnError)
    assert asked == [("ladder", None, None)]


def test_where_nothing_can_run_the_exit_status_is_1_and_the_reason_said() -> None:
    done = invoke("toggles", "pinned", *ONE)
    assert isinstance(done.exception, RawnnError)
    assert "only for a GPU" in done.output


def test_an_unknown_toggle_is_refused_before_anything_is_measured() -> None:
    done = invoke("toggles", "bf61", *ONE)
    assert isinstance(done.exception, ConfigError)
    assert "did you mean 'bf16'" in str(done.exception)
    done = invoke("workloads", *ONE, "--opt", "best,nosuch", "--dataset", "nowhere")
    assert "--opt best,nosuch: no toggle is called 'nosuch'" in str(done.exception)
    done = invoke("workloads", *ONE, "--opt", "best,none", "--dataset", "nowhere")
    assert "'best' and 'none' are presets" in str(done.exception)


def test_every_case_is_a_command_with_its_own_help() -> None:
    listed = invoke("--help").output
    for name, case in CASES.items():
        assert f"  {name} " in listed
        shown = invoke(name, "--help").output
        assert (case.measure.__doc__ or "").split(".")[0].split()[0] in shown
        for option in ("--json", "--markdown", "--bench"):
            assert option in shown
        assert ("--resume" in shown) == case.resumes


def test_old_spellings_are_hidden_and_work() -> None:
    listed = invoke("--help").output
    assert "floors" not in listed
    assert "  random " not in listed
    assert today(["floors", "--samples", "3"]) == ["lower-bounds", "--samples", "3"]
    assert today(["random", "--n", "3"]) == ["check", "--n", "3"]
    assert today(["random", "--n", "3", "--peers"]) == ["sample", "--n", "3"]
    assert "Usage: bench lower-bounds" in invoke("floors", "--help").output


def test_show_says_what_another_file_is(rawnn: Rawnn, tmp_path: Path) -> None:
    run, found, other = (tmp_path / name for name in ("run.json", "eval.json", "other.json"))
    assert rawnn("--device", "host", "--dataset", "synthetic", "--epochs", "1", "--save",
                 str(tmp_path / "a"), "--json", str(run)).status == 0
    assert rawnn("eval", str(tmp_path / "a"), "--json", str(found)).status == 0
    other.write_text('{"a": 1}')
    for file, message in (
            (run, "is the result of one training run, as `rawnn train --json` writes"),
            (found, "is what `rawnn eval --json` found of a checkpoint"),
            (other, "is")):
        done = rawnn("bench", "show", str(file))
        assert done.status == 2
        assert f"rawnn: error: {file} {message}" in done.err
        assert len(done.err.splitlines()) == 1


# -- a full disk -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("command", "row"), [
    (("ladder", "--oracle", "off", "--rungs", "fuse"), "baseline"),
    (("workloads", "--workload", "linear", "--opt", "none"), "linear"),
    (("toggles", "report"), "report=10")])
def test_a_full_disk_costs_no_table(command: tuple[str, ...], row: str, rawnn: Rawnn,
                                    tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(path: Any, content: bytes) -> None:
        raise RawnnError(f"cannot write {path}: No space left on device")

    monkeypatch.setattr("rawnn.bench.record.write_atomically", write)
    done = rawnn("bench", *command, *ONE, "--json", str(tmp_path / "r.json"))
    assert done.status == 1
    assert row in done.out
    assert done.err.count("going on, to be tried again") == 1
    assert "error: cannot write" in done.err


@pytest.mark.parametrize("has_bar", [False, True])
def test_lines_are_printed_beside_the_bar_where_there_is_one(
        has_bar: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    drawn: list[str] = []

    class Bar:
        def __init__(self, what: str, runs: int) -> None:
            pass

        def __enter__(self) -> None:
            drawn.append("begun")

        def __exit__(self, *exception: object) -> None:
            drawn.append("ended")

        @contextmanager
        def aside(self) -> Iterator[None]:
            drawn.append("aside")
            yield

        def rounds(self, count: int) -> None:
            drawn.append(f"{count} rounds")

        def advance(self, done: int, total: int, last: str) -> None:
            drawn.append(f"{done} of {total}: {last}")

    def measure(harness: Harness, suites: Any) -> None:
        harness.echo("a line")
        harness.progress(1, 4, 2, "ladder fuse")

    monkeypatch.setattr(bench_module, "Screen", Bar)
    monkeypatch.setattr(bench_module.tables, "show", lambda results, suite: None)
    bench_module.run_case(Case("ladder", measure, (), has_bar=has_bar), {})
    progress = ["2 rounds", "1 of 4: ladder fuse"]
    assert drawn == (["begun", "aside", *progress, "ended"] if has_bar else progress)
    assert capsys.readouterr().out.startswith("a line\n")
