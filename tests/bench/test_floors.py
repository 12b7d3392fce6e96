"""What limits a GPU: how it is measured, kept and found again."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from rawnn.bench import floors, limits
from rawnn.bench.floors import Floor, FloorsResult, kept, read_floors, roofline
from rawnn.bench.limits import SIMULATED, Effort, measure, rounds_of
from rawnn.bench.probing import Bed
from rawnn.bench.statistics import spread
from rawnn.cli import run as command
from rawnn.cli.bench import bench
from rawnn.common.errors import ConfigError, RawnnError
from rawnn.cuda.device import Device
from rawnn.engine.machine import Opened, machine_of
from rawnn.engine.result import Environment
from rawnn.ptx.limits import microbenchmarks as probes
from rawnn.sim import Simulation
from tests import requires
from tests.bench.conftest import GPU

TIMES = {"launch": 2.0, "node": 1.0, "node_whole": 1.25, "node_whole_early": 0.75,
         "grid_barrier": 1.5, "cluster_barrier_8": 0.25, "exchange_8": 0.5}
RATES = {"host_to_device": 50.0, "read": 4000.0, "write": 4000.0, "copy": 4000.0,
         "l2_read": 8000.0, "fma": 50.0, "tensor_tf32": 300.0, "tensor_bf16": 600.0}


def made(gpu: str = "Some GPU", date: str = "2026-01-01", **more: float) -> FloorsResult:
    """Constants of a GPU that nobody has."""
    place = Environment("0.1", "abc", "3.11", "Linux", "cuda", {**GPU, "name": gpu}, {}, {}, date)
    rows = [Floor(name=name, what=name, unit="us", value=spread([us]))
            for name, us in {**TIMES, **more}.items()]
    rows += [Floor(name=name, what=name,
                   unit="TFLOP/s" if name in ("fma", "tensor_tf32", "tensor_bf16") else "GB/s",
                   value=spread([rate])) for name, rate in RATES.items()]
    return FloorsResult(environment=place, multiprocessors=100, l2_bytes=50 << 20, timer={},
                        floors=rows)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAWNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RAWNN_FLOORS", raising=False)


def opened_of(simulation: Simulation) -> Opened:
    device = Device(simulation.backend())
    return Opened(device, machine_of(device), 0.0)


def test_everything_is_run_on_a_simulated_gpu(sim: Simulation) -> None:
    opened = opened_of(sim)
    assert opened.device
    heard: list[str] = []
    result = measure(opened, on_floor=lambda floor, done, total: heard.append(floor.name))
    opened.device.close()
    names = {f.name: f for f in result.floors}
    assert len(names) == len(result.floors)
    # A task takes a microsecond there, however much it does.
    for name in ("launch", "node", "node_whole"):
        assert result.value(name) == pytest.approx(1)
    assert names["grid_barrier"].reason == "2 rounds took no longer than 1"
    assert {f"exchange_{n}" for n in (2, 4, 8, 16)} <= names.keys()
    assert heard.count("tensor_bf16") == 2  # in both ways
    assert "SIMULATED" in result.provenance()
    alone = {"launch", "graph_launch"}  # by which nothing gets from one multiprocessor to another
    assert {f.name for f in result.floors if f.unit == "us"} - alone == floors.CROSSING & {*names}


@pytest.mark.parametrize(("capability", "lacking"), [
    ((7, 5), {"node_early", "cluster_barrier", "exchange", "tensor_tf32", "tensor_fp8"}),
    ((8, 9), {"node_early", "cluster_barrier", "exchange"})])
def test_what_a_gpu_has_not_is_said(capability: tuple[int, int], lacking: set[str]) -> None:
    simulation = Simulation(compute_capability=capability)
    opened = opened_of(simulation)
    assert opened.device
    result = measure(opened)
    opened.device.close()
    simulation.assert_clean()
    rows = {f.name: f for f in result.floors}
    for name in lacking:
        assert "which" in rows[name].reason, name
        assert rows[name].reason.startswith("needs "), name
    assert result.value("node") == pytest.approx(1)


def test_a_constant_is_the_difference_of_many_rounds_and_few(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch that takes 50 us, and rounds of 3 us: only the latter count."""
    def run(rounds: int) -> float:
        return 0.05 + 0.003 * rounds

    effort = Effort(samples=3, least_ms=1.0)
    assert rounds_of(run, effort) == (64, 512)
    assert rounds_of(run, Effort(most=100)) == (12, 100)
    assert rounds_of(run, SIMULATED) == (1, 2)
    monkeypatch.setattr(limits, "WARM_S", 0.0)
    for unit, work, meant in (("us", 1.0, 3.0), ("GB/s", 6000.0, 2.0), ("TFLOP/s", 6e6, 2.0)):
        found = limits._timed(limits._Asked(
            Floor(name="x", what="x", unit=unit, how="it"), None, work),  # type: ignore[arg-type]
            run, effort)
        assert found.value
        assert found.value.median == pytest.approx(meant)
        assert (found.value.n, found.steady, found.how) == (3, True, "it, 64 and 512 rounds")


def test_a_constant_that_fails_leaves_the_others(sim: Simulation,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Bed, *given: Any, **more: Any) -> Any:
        raise RawnnError("no page-locked memory")

    monkeypatch.setattr(Bed, "copies", fails)
    opened = opened_of(sim)
    assert opened.device
    result = measure(opened)
    opened.device.close()
    reasons = {f.name: f.reason for f in result.floors}
    assert reasons["host_to_device"] == "no page-locked memory"
    assert result.value("node") == pytest.approx(1)


def test_ctrl_c_keeps_what_there_is(sim: Simulation) -> None:
    def stop(floor: Floor, done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    opened = opened_of(sim)
    assert opened.device
    result = measure(opened, on_floor=stop)
    opened.device.close()
    assert result.interrupted
    assert len(result.floors) == 3


def test_kernels_of_a_simulated_gpu_do_what_they_mean(device: Device) -> None:
    """The simulated GPU computes the meanings: 8 chains of 2 rounds of x / 2 + 1 end near 2."""
    sums = np.zeros(2 * probes.THREADS, np.float32)
    with Bed(device) as bed, ExitStack() as stack:
        run = bed.kernel(stack, probes.FMA, 2, {"scale": 0.5, "shift": 1.0})
        run(2)
        device.to_host(sums, int(run.values["sums"]), "sums")
    assert sums == pytest.approx(16, abs=1e-2)


def test_constants_are_kept_by_gpu_and_driver_and_never_taken_for_another() -> None:
    assert kept("Some GPU") is None
    path = floors.keep(made())
    floors.keep(made("NVIDIA H200", "2026-02-01", node=2.0))
    assert path.name == "some-gpu-580.1.json"
    for asked in ("Some GPU", "some gpu", "some"):
        found = kept(asked)
        assert found
        assert found.result.value("node") == 1.0
    assert kept("Some GPU", "580.1")
    assert kept("Some GPU", "590.2") is None
    assert kept("H20") is None
    hopper = kept("H200")
    assert hopper
    assert hopper.result.value("node") == 2.0
    assert "NVIDIA H200" in str(hopper)


def test_a_file_can_be_named_in_place_of_what_is_kept(tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    floors.keep(made())
    made("Other GPU").write_json(tmp_path / "mine.json")
    monkeypatch.setenv("RAWNN_FLOORS", str(tmp_path / "mine.json"))
    assert kept("Some GPU") is None
    assert kept("Other GPU")
    monkeypatch.setenv("RAWNN_FLOORS", str(tmp_path / "none.json"))
    with pytest.raises(ConfigError, match="cannot read"):
        kept("Other GPU")


def test_a_broken_file_in_the_cache_is_passed_over() -> None:
    floors.keep(made()).write_text("{")
    assert kept("Some GPU") is None


def test_a_roofline_is_of_what_was_measured() -> None:
    assert roofline("Some GPU") is None
    floors.keep(made())
    found = roofline("Some GPU")
    assert found
    assert (found.memory_gbps, found.l2_gbps) == (4000.0, 8000.0)
    assert found.flops == {"float32": 50e12, "tf32": 300e12, "bfloat16": 600e12}
    assert "580.1" in found.where


def test_the_command_measures_shows_and_keeps(tmp_path: Path) -> None:
    file, markdown = tmp_path / "f.json", tmp_path / "f.md"
    done = CliRunner().invoke(bench, ["floors", "--device", "sim", "--json", str(file),
                                      "--markdown", str(markdown)])
    assert done.exit_code == 0, done.output
    assert "graph node, one block" in done.output
    shown = CliRunner().invoke(bench, ["show", str(file)])
    assert shown.output in done.output
    assert "| graph node, one block | 1.00 | us |" in markdown.read_text()
    assert msgspec.json.decode(file.read_bytes())["kind"] == "floors"
    assert read_floors(file).value("node") == pytest.approx(1)
    assert kept(read_floors(file).gpu) is None  # a simulated GPU's times are no limits


def test_constants_that_no_gpu_can_have_are_named() -> None:
    assert floors.implausible(made()) == []
    assert floors.implausible(made(cluster_barrier_2=0.5, exchange_2=2.9)) == []
    assert floors.implausible(made(node=1.5)) == [
        "node = 1.50 is not below 1.2 times node_whole = 1.25"]
    assert floors.implausible(made(node=25.0, node_whole=25.0)) == [
        "node = 25.0 us is not between 0.1 and 20"]
    assert floors.implausible(made(cluster_barrier_2=1.5, exchange_2=3.0)) == [
        "cluster_barrier_2 = 1.50 is not below grid_barrier = 1.50",
        "exchange_2 = 3.00 is not below 2 times grid_barrier = 1.50"]
    for name, rate, words in (("copy", 8000.0, "copy = 8,000 is not below l2_read = 8,000"),
                              ("host_to_device", 4100.0,
                               "host_to_device = 4,100 is not below copy = 4,000"),
                              ("fma", 300.0, "fma = 300 is not below tensor_tf32 = 300"),
                              ("tensor_tf32", 601.0,
                               "tensor_tf32 = 601 is not below tensor_bf16 = 600")):
        rows = [msgspec.structs.replace(f, value=spread([rate])) if f.name == name else f
                for f in made().floors]
        assert floors.implausible(msgspec.structs.replace(made(), floors=rows)) == [words]
    lost = [Floor(name="a", what="a", unit="us", reason="needs clusters, which 8.9 has not"),
            Floor(name="b", what="b", unit="us", reason="2 rounds took no longer than 1")]
    assert floors.implausible(msgspec.structs.replace(made(), floors=lost)) == [
        "b was not measured: 2 rounds took no longer than 1"]


@pytest.mark.parametrize(("check", "node", "code"), [
    ([], 25.0, 0), (["--check"], 25.0, 1), (["--check"], 1.0, 0)])
def test_a_check_of_what_was_measured_ends_with_1_and_keeps_nothing(
        check: list[str], node: float, code: int, capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rawnn.cli.floors.measure", lambda *_: made(node=node))
    monkeypatch.setattr("rawnn.cli.floors.open_device", lambda *_: opened_of(Simulation()))
    assert command(["bench", "floors", *check]) == code
    said = capsys.readouterr()
    assert "Some GPU" in said.out
    assert ("not such as a GPU can have: node = 25.0 us is not between" in said.err) == bool(code)
    assert bool(kept("Some GPU")) == (not code)


def test_a_simulated_gpu_is_not_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["bench", "floors", "--device", "sim", "--check"]) == 2
    assert "--check judges the constants of a GPU" in capsys.readouterr().err


def test_what_was_measured_outlives_sigterm(capsys: pytest.CaptureFixture[str], tmp_path: Path,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(asked: Any, effort: Effort) -> Floor:
        seen.append(asked)
        if len(seen) == 3:
            signal.raise_signal(signal.SIGTERM)
        return original(asked, effort)

    seen: list[Any] = []
    original = limits._measured
    monkeypatch.setattr(limits, "_measured", measured)
    file = tmp_path / "f.json"
    assert command(["bench", "floors", "--device", "sim", "--json", str(file)]) \
        == 128 + signal.SIGTERM
    said = capsys.readouterr()
    assert "launch of a graph" in said.out
    assert "ended by SIGTERM" in said.err
    assert read_floors(file).interrupted
    assert len(read_floors(file).floors) == 2


def test_a_full_disk_costs_no_table(capsys: pytest.CaptureFixture[str], tmp_path: Path,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Any, content: bytes) -> None:
        raise RawnnError(f"cannot write {path}: No space left on device")

    monkeypatch.setattr("rawnn.bench.measured.write_atomically", full)
    assert command(["bench", "floors", "--device", "sim", "--json", str(tmp_path / "f.json")]) == 1
    said = capsys.readouterr()
    assert "launch of a graph" in said.out
    assert said.err.count("cannot write") == 1


def test_without_a_gpu_one_sentence_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["bench", "floors", "--device", "host"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said == ["rawnn: error: limits can be measured on a GPU only: --device host was asked "
                    "for"]


def test_a_report_shows_them(tmp_path: Path) -> None:
    requires.module("jinja2")
    from rawnn.bench.report import write_report

    made().write_json(tmp_path / "floors.json")
    (section,) = write_report([str(tmp_path / "floors.json")], tmp_path / "page.html")
    assert section.title == "What limits this GPU"
    assert "8,000" in (tmp_path / "page.html").read_text()
