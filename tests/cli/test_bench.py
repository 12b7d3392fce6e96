import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from rawnn.bench import ladder as ladder_module
from rawnn.bench.records import read_ladder
from rawnn.bench.sets import SetsResult
from rawnn.cli import bench as bench_module
from rawnn.cli.bench import bench
from rawnn.common.errors import ConfigError, DeviceError, RawnnError
from rawnn.engine import machine
from rawnn.engine.training import Session
from tests.cli.conftest import Rawnn

SMALL = ("ladder", "--device", "host", "--dataset", "synthetic", "--epochs", "1", "--repeats", "2",
         "--batch", "500")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(bench, arguments, terminal_width=200)


def test_a_ladder_is_measured_kept_and_shown_again(tmp_path: Path) -> None:
    kept, table = tmp_path / "l.json", tmp_path / "l.md"
    done = invoke(*SMALL, "--json", str(kept), "--markdown", str(table))
    assert done.exit_code == 0, done.output
    for word in ("baseline", "report=10", "fuse", "best", "SYNTHETIC", "clocks: not observed"):
        assert word in done.output
    assert [len(r.runs) for r in read_ladder(kept).rungs] == [2, 2, 2, 2]
    shown = invoke("show", str(kept), "--markdown", str(tmp_path / "again.md"))
    assert shown.exit_code == 0
    assert shown.output[shown.output.index("ladder\n"):] in done.output
    assert (tmp_path / "again.md").read_text() == table.read_text()


def test_the_reference_is_computed_once_and_then_used(tmp_path: Path) -> None:
    where = ("--oracle-file", str(tmp_path / "oracle.json"), "--rungs", "fuse")
    first = invoke(*SMALL, "--oracle", "compute", *where)
    assert first.exit_code == 0, first.output
    assert "seed 9: accuracy" in first.output
    assert "agrees" in first.output
    second = invoke(*SMALL, *where)
    assert "seed 9" not in second.output
    assert "agrees" in second.output
    without = invoke(*SMALL, *where, "--oracle", "off")
    assert "agrees" not in without.output


def test_a_failed_rung_makes_the_exit_status_1_after_all_is_kept(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Session):
        def run(self):  # type: ignore[no-untyped-def]
            if "fuse" in self.selection.values and self.config.opt != "best":
                raise RawnnError("cuLaunchKernel failed")
            return super().run()

    monkeypatch.setattr(ladder_module, "Session", Broken)
    kept = tmp_path / "l.json"
    done = invoke(*SMALL, "--json", str(kept))
    assert isinstance(done.exception, RawnnError)
    assert "1 of 4 rungs failed (fuse)" in str(done.exception)
    assert "fuse failed: cuLaunchKernel failed" in done.output
    assert [r.status for r in read_ladder(kept).rungs] == \
        ["measured", "measured", "failed", "measured"]


def test_ctrl_c_shows_and_keeps_what_was_reached(tmp_path: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Session):
        def run(self):  # type: ignore[no-untyped-def]
            if "fuse" in self.selection.values:
                raise KeyboardInterrupt
            return super().run()

    monkeypatch.setattr(ladder_module, "Session", Interrupted)
    kept, table = tmp_path / "l.json", tmp_path / "l.md"
    done = invoke(*SMALL, "--json", str(kept), "--markdown", str(table))
    assert done.exit_code == 1  # the entry turns click's Abort into 130
    assert read_ladder(kept).interrupted
    assert "interrupted: the figures" in table.read_text()


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


def test_the_reference_accuracy_has_a_home_outside_the_run(tmp_path: Path) -> None:
    done = invoke(*SMALL, "--oracle-file", str(tmp_path / "none.json"), "--rungs", "fuse")
    assert done.exit_code == 0
    assert "--oracle compute makes one" in done.output
    assert not (tmp_path / "none.json").exists()


SETS = ("--device", "host", "--dataset", "synthetic", "--epochs", "1", "--repeats", "1")


def test_toggles_are_compared_and_kept(tmp_path: Path) -> None:
    kept, table = tmp_path / "t.json", tmp_path / "t.md"
    done = invoke("toggles", "batch", *SETS, "--json", str(kept), "--markdown", str(table))
    assert done.exit_code == 0, done.output
    assert "with batch=4096" in done.output
    lines = done.output.splitlines()
    assert lines[0].split("  ")[0] == "workload"
    assert "µs/step" in lines[0]
    assert "±" not in done.output  # of one run
    assert "one run each" in done.output
    assert "host (" in done.output
    assert "by the wall clock" in done.output
    assert "| linear" not in done.output  # Markdown is for the file
    assert "with `batch=4096`" in table.read_text()
    result = msgspec.json.decode(kept.read_bytes(), type=SetsResult)
    assert [m.opt for m in result.measurements][:2] == ["best", "best,batch=32"]
    assert all(m.accuracies for m in result.measurements)
    shown = invoke("show", str(kept), "--markdown", str(tmp_path / "again.md"))
    assert shown.exit_code == 0, shown.output
    head, then = (each.output.partition("Milliseconds an epoch") for each in (shown, done))
    assert head[1:] == then[1:]
    assert "launches" in then[0]  # of which nothing is known on the host
    assert "launches" not in head[0]
    assert (tmp_path / "again.md").read_text() == table.read_text()
    drawn = invoke("show", str(kept), "--plot", str(tmp_path / "t.svg"))
    assert "--plot draws a ladder" in str(drawn.exception)


@pytest.mark.parametrize("device", ["auto", "host"])
def test_what_does_not_apply_on_the_host_is_a_row_that_says_so(
        device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "open_gpu", no_gpu)
    done = invoke("toggles", "arena", *SETS, "--device", device)
    assert re.search("linear +none,preload,arena +only for a GPU: arena", done.output)
    assert done.exit_code == 0  # `preload`, which it is compared with, can run


def no_gpu(*arguments: Any) -> Any:
    raise DeviceError("no GPU")


def test_times_of_a_simulated_gpu_are_not_called_device_timed(tmp_path: Path) -> None:
    kept = tmp_path / "w.json"
    done = invoke("workloads", "--workload", "linear", *SETS, "--device", "sim", "--opt",
                  "preload,arena,report=100", "--json", str(kept))
    assert done.exit_code == 0, done.output
    assert "SIMULATED" in done.output
    assert "device" not in " ".join(msgspec.json.decode(kept.read_bytes())["timer"].values())


def test_options_alone_are_the_ladders() -> None:
    done = invoke(*SMALL[1:], "--rungs", "fues")
    assert "did you mean 'fuse'" in str(done.exception)
    assert "no such measurement 'laddr'; did you mean 'ladder'" in invoke("laddr").output


@pytest.mark.parametrize("width", [60, 80, 120])
def test_rows_fit_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    done = invoke("toggles", "arena", "report", *SETS)
    sentences = done.output[done.output.index("Milliseconds an epoch"):]
    rows = [line for line in done.output[:done.output.index("Milliseconds an")].splitlines()
            if not line.startswith("rawnn:")]
    tables = [line for line in sentences.splitlines() if line.startswith(("linear", "workload"))]
    assert max(map(len, [*rows, *tables])) <= width
    assert "…" not in done.output


def test_workloads_are_measured_and_kept(tmp_path: Path) -> None:
    kept, table = tmp_path / "w.json", tmp_path / "w.md"
    done = invoke("workloads", "--workload", "linear", *SETS, "--json", str(kept),
                  "--markdown", str(table))
    assert done.exit_code == 0, done.output
    assert msgspec.json.decode(kept.read_bytes(), type=SetsResult).markdown() == table.read_text()


def test_where_nothing_can_run_the_exit_status_is_1_and_the_reason_said() -> None:
    done = invoke("toggles", "pinned", *SETS)
    assert isinstance(done.exception, RawnnError)
    assert "only for a GPU" in done.output


def test_an_unknown_toggle_is_refused_before_anything_is_measured() -> None:
    done = invoke("toggles", "bf61", *SETS)
    assert isinstance(done.exception, ConfigError)
    assert "did you mean 'bf16'" in str(done.exception)
    done = invoke("workloads", *SETS, "--opt", "best,nosuch", "--dataset", "nowhere")
    assert "--opt best,nosuch: no toggle is called 'nosuch'" in str(done.exception)


def test_without_a_name_the_ladder_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def heard(config: Any, repeats: int, names: list[str], *others: Any, **more: Any) -> None:
        asked.append((repeats, tuple(names)))
        raise RawnnError("asked")

    monkeypatch.setattr(bench_module, "run_ladder", heard)
    assert isinstance(invoke().exception, RawnnError)
    assert asked == [(5, ladder_module.DEFAULT_RUNGS)]


def test_show_says_what_another_file_is(rawnn: Rawnn, tmp_path: Path) -> None:
    run, found, other = (tmp_path / name for name in ("run.json", "eval.json", "other.json"))
    assert rawnn("--device", "host", "--dataset", "synthetic", "--epochs", "1", "--save",
                 str(tmp_path / "a"), "--json", str(run)).status == 0
    assert rawnn("eval", str(tmp_path / "a"), "--json", str(found)).status == 0
    other.write_text('{"a": 1}')
    for file, said in ((run, "is the result of one training run, as `rawnn train --json` writes"),
                       (found, "is what `rawnn eval --json` found of a checkpoint, and no "),
                       (other, "is not a measurement that rawnn wrote")):
        done = rawnn("bench", "show", str(file))
        assert done.status == 2
        assert f"rawnn: error: {file} {said}" in done.err
