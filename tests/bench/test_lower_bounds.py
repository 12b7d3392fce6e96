"""What limits a GPU: how it is measured, kept and found again."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rawnn.bench import gpu_limits
from rawnn.bench.cases import lower_bounds
from rawnn.bench.cases.lower_bounds import SIMULATED, Constant, Effort, rounds_of
from rawnn.bench.gpu_limits import (
    CROSSING,
    GPU,
    SUITE,
    Limits,
    read_limits,
    roofline,
    stored_limits,
)
from rawnn.bench.harness import Harness, Variant
from rawnn.bench.probing import ProbeDevice
from rawnn.bench.record import Entry
from rawnn.cli import run as command
from rawnn.common.errors import ConfigError, RawnnError
from rawnn.cuda.device import Device
from rawnn.engine.machine import Opened, machine_of
from rawnn.ptx.limits import microbenchmarks as probes
from rawnn.sim import Simulation
from tests.bench.measuring import invoke, place, record, results, standing, variant

TIMES = {"launch": 2.0, "node": 1.0, "node_whole": 1.25, "node_whole_early": 0.75,
         "grid_barrier": 1.5, "cluster_barrier_8": 0.25, "exchange_8": 0.5}
RATES = {"host_to_device": 50.0, "read": 4000.0, "write": 4000.0, "copy": 4000.0,
         "l2_read": 8000.0, "fma": 50.0, "tensor_tf32": 300.0, "tensor_bf16": 600.0}


def made(gpu: str = "Some GPU", date: str = "2026-01-01", l2_bytes: int = 50 << 20,
         **more: float) -> Limits:
    """Constants of a GPU that nobody has."""
    where = place(gpu={**(place().gpu or {}), "name": gpu}, date=date)
    rows = {name: ("latency_us", us) for name, us in {**TIMES, **more}.items()}
    rows |= {name: ("throughput_tflops" if name in ("fma", "tensor_tf32", "tensor_bf16") else
                    "bandwidth_gbs", more.get(name, rate)) for name, rate in RATES.items()}
    records = [record(name, [value], SUITE, metric, precision="", environment=where.key)
               for name, (metric, value) in rows.items()]
    records += [record(GPU, [value], SUITE, metric, precision="", environment=where.key)
                for metric, value in (("multiprocessors", 100.0), ("l2_bytes", l2_bytes))]
    return Limits(results(*records, where=where))


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAWNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RAWNN_FLOORS", raising=False)


def opened_of(simulation: Simulation) -> Opened:
    device = Device(simulation.backend())
    return Opened(device, machine_of(device), 0.0)


def measure(opened: Opened, **more: Any) -> tuple[Limits, dict[str, Entry], Harness]:
    with standing(SUITE, where=place(device="sim"), **more) as harness:
        lower_bounds.measure_limits(harness, opened, SIMULATED)
    assert opened.device
    opened.device.close()
    return Limits(harness.results), {e.variant: e for e in harness.results.entries()}, harness


def test_everything_is_run_on_a_simulated_gpu(sim: Simulation) -> None:
    received: list[str] = []
    limits, entries, _ = measure(opened_of(sim), progress=lambda done, total, rounds, what:
                                 received.append(what))
    # A task takes a microsecond there, however much it does.
    for name in ("launch", "node", "node_whole"):
        assert limits.value(name) == pytest.approx(1)
    assert entries["grid_barrier"].reason == "2 rounds took no longer than 1"
    assert {f"exchange_{n}" for n in (2, 4, 8, 16)} <= entries.keys()
    assert received.count("tensor cores, bf16") == 2  # in both ways
    alone = {"launch", "graph_launch"}  # by which nothing gets from one multiprocessor to another
    times = {r.variant for r in limits.records if r.metric == "latency_us"}
    assert times - alone == CROSSING & entries.keys()
    assert limits.multiprocessors == 132
    assert limits.results.is_whole(SUITE)


@pytest.mark.parametrize(("capability", "lacking"), [
    ((7, 5), {"node_early", "cluster_barrier", "exchange", "tensor_tf32", "tensor_fp8"}),
    ((8, 9), {"node_early", "cluster_barrier", "exchange"})])
def test_what_a_gpu_has_not_is_said(capability: tuple[int, int], lacking: set[str]) -> None:
    simulation = Simulation(compute_capability=capability)
    limits, entries, _ = measure(opened_of(simulation))
    simulation.assert_clean()
    for name in lacking:
        assert entries[name].status == "unavailable"
        assert "which" in entries[name].reason, name
        assert entries[name].reason.startswith("needs "), name
    assert limits.value("node") == pytest.approx(1)


def test_a_constant_is_the_difference_of_many_rounds_and_few(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch that takes 50 us, and rounds of 3 us: only the latter count."""
    def run(rounds: int) -> float:
        return 0.05 + 0.003 * rounds

    effort = Effort(samples=3, least_ms=1.0)
    assert rounds_of(run, effort) == (64, 512)
    assert rounds_of(run, Effort(most=100)) == (12, 100)
    assert rounds_of(run, SIMULATED) == (1, 2)
    monkeypatch.setattr(lower_bounds, "WARM_S", 0.0)
    for unit, work, meant in (("us", 1.0, 3.0), ("GB/s", 6000.0, 2.0), ("TFLOP/s", 6e6, 2.0)):
        with standing(SUITE) as harness:
            found = lower_bounds._measured(
                Constant("x", "what", unit, "how", lambda stack: run, work), effort, harness)
        first, = found.records()
        assert first.samples == pytest.approx([meant] * 3)
        assert (first.unit, first.notes) == (unit, ["what", "how, 64 and 512 rounds"])


@pytest.mark.parametrize("early", [False, True])
def test_nodes_of_a_chain_wait_for_the_one_before(device: Device, early: bool,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """Or begin early behind it."""
    asked: list[Any] = []

    def add_to(graph: Any, *given: Any) -> list[int]:
        asked.append(given)
        return [len(asked)]

    with ProbeDevice(device) as probing, ExitStack() as stack:
        monkeypatch.setattr(probing, "_nothing", lambda blocks, is_early: {
            (7, early): SimpleNamespace(add_to=add_to)}[blocks, is_early])
        probing._chain(stack, 7, 3, early)
    before: list[Any] = [[], [1], [2]]
    assert asked == [([], 0, last) if early else (last, 0) for last in before]


def test_a_constant_that_fails_leaves_the_others(sim: Simulation,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: ProbeDevice, *given: Any, **more: Any) -> Any:
        raise RawnnError("no page-locked memory")

    monkeypatch.setattr(ProbeDevice, "copies", fails)
    limits, entries, _ = measure(opened_of(sim))
    assert (entries["host_to_device"].status, entries["host_to_device"].reason) == (
        "failed", "no page-locked memory")
    assert limits.value("node") == pytest.approx(1)


def test_ctrl_c_keeps_what_there_is(sim: Simulation) -> None:
    def stop(done: int, *more: Any) -> None:
        if done == 3:
            raise KeyboardInterrupt

    limits, _, harness = measure(opened_of(sim), progress=stop)
    assert harness.interrupted
    assert len(limits.records) == 3
    assert limits.results.ended == {SUITE: "it was interrupted"}


def test_kernels_of_a_simulated_gpu_do_what_they_mean(device: Device) -> None:
    """The simulated GPU computes the meanings: 8 chains of 2 rounds of x / 2 + 1 end near 2."""
    sums = np.zeros(2 * probes.THREADS, np.float32)
    with ProbeDevice(device) as probing, ExitStack() as stack:
        run = probing.kernel(stack, probes.FMA, 2, {"scale": 0.5, "shift": 1.0})
        run(2)
        device.to_host(sums, int(run.values["sums"]), "sums")
    assert sums == pytest.approx(16, abs=1e-2)


def test_what_probes_are_given_is_as_they_need_it(device: Device) -> None:
    """A counter of 0 ahead of each launch, memory that is not zeros, and words."""
    words = np.arange(192, dtype=np.uint32)
    tiles = probes.TENSOR_CORE_PROBES["tf32"][0]
    with ProbeDevice(device) as probing, ExitStack() as stack:
        def seen(address: Any, dtype: str, count: int = 1) -> list[int]:
            found = np.zeros(count, dtype)
            device.to_host(found, int(address), "what a probe has")
            return [int(v) for v in found]

        for probe, cluster in ((probes.GRID_BARRIERS, 1), (probes.CLUSTER_BARRIERS, 2)):
            given: dict[str, Any] = {"blocks": 4}
            barriers = probing.kernel(stack, probe, 4, given, cluster=cluster, counter=True)
            assert given == {"blocks": 4}
            assert seen(barriers.values["counter"], "u4") == [0]
            for rounds in (3, 3, 2):
                barriers(rounds)
                assert seen(barriers.values["counter"], "u4") == [4 * rounds]
        copy = probing.memory(stack, probes.COPY, 2, 4096)
        assert seen(copy.values["x"], "u1", 4096) == [0x3C] * 4096
        device.fill(int(copy.values["y"]), 0, 4096, "y")
        copy(1)
        assert seen(copy.values["y"], "u1", 4096) == [0x3C] * 4096
        products = probing.kernel(stack, tiles, 3, {}, words=words)
        assert seen(products.values["words"], "u4", 192) == words.tolist()
        assert products.values["threads"] == 3 * probes.THREADS


def test_the_work_of_a_rate_is_that_of_the_blocks_that_run(device: Device) -> None:
    """Of each launch: operations of a block times blocks, and bytes read, or read and written."""
    with ProbeDevice(device) as probing:
        whole = probing.target.multiprocessors
        for each in lower_bounds._arithmetic(probing):
            assert each.unit == "TFLOP/s"
            assert isinstance(each.make, partial)
            given = each.make.keywords
            assert each.work == given["probe"].operations * given["blocks"], each.name
            assert given["blocks"] in (whole, whole * probes.MOST_BLOCKS)
        for each in lower_bounds._memory(probing, SIMULATED):
            assert each.unit == "GB/s"
            assert isinstance(each.make, partial)
            times = 2 if each.name == "copy" else 1
            assert each.work == times * each.make.keywords["nbytes"], each.name


def test_constants_are_kept_by_gpu_and_driver_and_never_taken_for_another() -> None:
    assert stored_limits("Some GPU") is None
    path = gpu_limits.store_limits(made().results)
    gpu_limits.store_limits(made("NVIDIA H200", "2026-02-01", node=2.0).results)
    assert path.name == "some-gpu-580.1.json"
    for asked in ("Some GPU", "some gpu", "some"):
        found = stored_limits(asked)
        assert found
        assert found.value("node") == 1.0
    assert stored_limits("Some GPU", "580.1")
    assert stored_limits("Some GPU", "590.2") is None
    assert stored_limits("H20") is None
    hopper = stored_limits("H200")
    assert hopper
    assert hopper.value("node") == 2.0
    assert "NVIDIA H200" in str(hopper)
    gpu_limits.store_limits(made("NVIDIA H100-80GB HBM3").results)
    for asked, is_there in (("h100 80gb", True), ("80GB HBM3", True), ("NVIDIA HBM3", False),
                            ("100 80GB", False), ("H100-80GB", False)):
        assert bool(stored_limits(asked)) is is_there


def test_a_file_can_be_named_in_place_of_what_is_kept(tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_limits.store_limits(made().results)
    made("Other GPU").results.write(tmp_path / "mine.json")
    monkeypatch.setenv("RAWNN_FLOORS", str(tmp_path / "mine.json"))
    assert stored_limits("Some GPU") is None
    assert stored_limits("Other GPU")
    monkeypatch.setenv("RAWNN_FLOORS", str(tmp_path / "none.json"))
    with pytest.raises(ConfigError, match="cannot read"):
        stored_limits("Other GPU")


def test_a_file_without_limits_is_none(tmp_path: Path) -> None:
    for found, what in ((results(), "nothing"), (results(record("a"), record("b", case="grid")),
                                                 "toggles, grid")):
        found.write(tmp_path / "r.json")
        with pytest.raises(ConfigError, match=f"r.json has no limits of a GPU, but {what}"):
            read_limits(tmp_path / "r.json")


def test_a_broken_file_in_the_cache_is_passed_over() -> None:
    gpu_limits.store_limits(made().results).write_text("{")
    assert stored_limits("Some GPU") is None


def test_a_roofline_is_of_what_was_measured() -> None:
    assert roofline("Some GPU") is None
    gpu_limits.store_limits(made().results)
    found = roofline("Some GPU")
    assert found
    assert (found.memory_gbps, found.l2_gbps) == (4000.0, 8000.0)
    assert found.flops == {"float32": 50e12, "tf32": 300e12, "bfloat16": 600e12}
    assert "580.1" in found.where


def test_the_command_measures_shows_and_keeps(tmp_path: Path) -> None:
    file, markdown = tmp_path / "f.json", tmp_path / "f.md"
    done = invoke("floors", "--device", "sim", "--json", str(file), "--markdown", str(markdown))
    assert done.exit_code == 0, done.output
    assert "graph node, one block" in done.output
    shown = invoke("show", str(file))
    assert shown.output in done.output
    assert "graph node, one block" in markdown.read_text()
    assert read_limits(file).value("node") == pytest.approx(1)
    assert stored_limits(read_limits(file).gpu) is None  # a simulated GPU's times are no limits
    results(record("a", [1.0])).write(file)
    with pytest.raises(ConfigError, match="has no limits of a GPU, but toggles"):
        read_limits(file)


def test_what_was_measured_outlives_sigterm(capsys: pytest.CaptureFixture[str], tmp_path: Path,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(*arguments: Any) -> Any:
        seen.append(arguments)
        if len(seen) == 3:
            signal.raise_signal(signal.SIGTERM)
        return original(*arguments)

    seen: list[Any] = []
    original = lower_bounds._measured
    monkeypatch.setattr(lower_bounds, "_measured", measured)
    file = tmp_path / "f.json"
    assert command(["bench", "lower-bounds", "--device", "sim", "--json", str(file)]) \
        == 128 + signal.SIGTERM
    said = capsys.readouterr()
    assert "launch of a graph" in said.out
    assert "ended by SIGTERM" in said.err
    assert read_limits(file).results.ended == {SUITE: "it was interrupted"}
    assert len(read_limits(file).records) == 2


def test_without_a_gpu_one_sentence_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["bench", "lower-bounds", "--device", "host"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == "rawnn: error: limits can be measured on a GPU only: --device host was " \
                       "asked for"


@pytest.mark.parametrize("times", [[3.0, 3.0, 3.0], [3.0, 0.0, 3.0], [3.0, 3.0, -1.0], [-1.0] * 3])
def test_rounds_that_take_no_time_say_nothing(monkeypatch: pytest.MonkeyPatch,
                                              times: list[float]) -> None:
    """Not one sample of a constant may be: a rate of it is infinite, or negative."""
    monkeypatch.setattr(lower_bounds, "WARM_S", 0.0)
    taken = iter([3.0, 3.0, 3.0, *times])
    samples = {1: 0.0, 2: 0.0}

    def run(rounds: int) -> float:
        if rounds == 2:
            samples[2] = next(taken) / 1e3
        return samples[rounds]

    with standing(SUITE) as harness:
        found = lower_bounds._measured(
            Constant("x", "what", "us", "how", lambda stack: run, rounds=(1, 2)),
            Effort(samples=3), harness)
    if min(times) > 0:
        assert found.samples[found.metric] == pytest.approx(times)
    else:
        assert not found.samples
        assert (found.status, found.reason) == ("failed", "2 rounds took no longer than 1")


@pytest.mark.parametrize(("before", "found", "better"), [
    (None, [2.0], [2.0]), (None, [], []), ([], [2.0], [2.0]), ([3.0], [], [3.0]),
    ([3.0, 1.0, 3.5], [2.0, 9.0, 2.5], [3.0, 1.0, 3.5]),
    ([1.0, 9.0, 1.5], [2.0, 2.0, 2.5], [2.0, 2.0, 2.5])])
def test_of_two_ways_the_faster_counts_by_its_median(
        before: list[float] | None, found: list[float], better: list[float]) -> None:
    def of(samples: list[float]) -> Variant:
        made = variant("x", lambda number: 0.0)
        made.samples = {made.metric: samples} if samples else {}
        return made

    taken = lower_bounds._better(None if before is None else of(before), of(found))
    assert taken.samples.get(taken.metric, []) == better


def test_of_all_ways_to_measure_a_rate_the_fastest_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = [("a", 3.0), ("b", 7.0), ("a", 5.0), ("b", 6.0), ("a", 4.0)]
    turns: list[tuple[int, int, str]] = []

    def measured(one: Constant, effort: Effort, harness: Harness) -> Variant:
        made = lower_bounds._variant(harness, one.name, "throughput_tflops")
        made.samples = {made.metric: [float(one.how)]}
        return made

    monkeypatch.setattr(lower_bounds, "_measured", measured)
    monkeypatch.setattr(lower_bounds, "_asked", lambda probing, effort: [
        Constant(name, f"what {name}", "TFLOP/s", str(value)) for name, value in ways])
    opened = opened_of(Simulation())
    with standing(SUITE, progress=lambda done, total, rounds, last: turns.append(
            (done, total, last))) as harness:
        lower_bounds.measure_limits(harness, opened, SIMULATED)
    assert opened.device is not None
    opened.device.close()
    assert {e.variant: e.samples("throughput_tflops") for e in harness.results.entries()
            if e.variant in "ab"} == {"a": [5.0], "b": [7.0]}
    assert turns == [(n, 5, f"what {name}") for n, (name, _) in enumerate(ways, 1)]


@pytest.mark.parametrize(("changed", "said"), [
    ({}, ""), ({"node": 0.1}, "node = 0.1 us is not between 0.1 and 20"),
    ({"node": 0.11, "node_whole": 0.1}, ""), ({"node": 19.9, "node_whole": 19.0}, ""),
    ({"node": 21.0, "node_whole": 20.0}, "node = 21 us is not between 0.1 and 20"),
    ({"node": 1.49}, ""), ({"node": 1.5}, "node = 1.5 is not below 1.2 times node_whole = 1.25"),
    ({"cluster_barrier_2": 1.4}, ""),
    ({"cluster_barrier_2": 1.5}, "cluster_barrier_2 = 1.5 is not below grid_barrier = 1.5"),
    ({"exchange_2": 2.9}, ""),
    ({"exchange_2": 3.1}, "exchange_2 = 3.1 is not below 2 times grid_barrier = 1.5")])
def test_constants_that_no_gpu_can_have_are_named(changed: dict[str, float], said: str) -> None:
    found = lower_bounds.implausible(made(**changed).results)
    assert found == (f"not such as a GPU can have: {said}" if said else "")


@pytest.mark.parametrize(("rates", "said"), [
    ({"copy": 8000.0}, "copy = 8e+03 is not below l2_read = 8e+03"),
    ({"host_to_device": 4000.0}, "host_to_device = 4e+03 is not below copy = 4e+03"),
    ({"fma": 301.0}, "fma = 301 is not below tensor_tf32 = 300"),
    ({"tensor_tf32": 601.0}, "tensor_tf32 = 601 is not below tensor_bf16 = 600")])
def test_rates_that_no_gpu_can_have_are_named(rates: dict[str, float], said: str,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    for name, rate in rates.items():
        monkeypatch.setitem(RATES, name, rate)
    assert lower_bounds.implausible(made().results) == f"not such as a GPU can have: {said}"


@pytest.mark.parametrize(("reason", "said"), [
    ("needs thread block clusters", ""), ("", "the measurement was ended early"),
    ("cuLaunchKernel failed", "cuLaunchKernel failed")])
def test_a_constant_that_was_not_measured_is_named_unless_the_gpu_lacks_what_it_needs(
        reason: str, said: str) -> None:
    found = made().results
    found.records.append(record("write", [], SUITE, "bandwidth_gbs", precision="", reason=reason,
                                environment=place().key))
    assert lower_bounds.implausible(found) == (
        f"not such as a GPU can have: write was not measured: {said}" if said else "")
