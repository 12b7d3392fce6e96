"""Tables of what a machine was measured to do, cell by cell: limits, launches, scaling, phases and
random runs, each figure by itself from its samples."""

from __future__ import annotations

from statistics import median
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from rawnn.bench.cases import phases
from rawnn.bench.render import machine
from rawnn.bench.render.grid import Grid
from rawnn.bench.statistics import median_interval
from rawnn.persistent.stamps import Stamp
from rawnn.persistent.tracing import Trace
from tests.bench.built import entry, place, results


def rows_of(grid: Grid) -> list[dict[str, str]]:
    return [dict(zip(grid.headings, row, strict=True)) for row in grid.rows]


def test_a_limit_has_its_median_range_and_count() -> None:
    samples = [3.25, 1.5, 2.0]
    launch, read = (
        entry("lower-bounds", "launch", {"latency_us": samples}, precision="",
              notes=["a launch", "how it is done"]),
        entry("lower-bounds", "read", {"bandwidth_gbs": []}, precision="", status="unavailable",
              reason="needs a GPU", notes=["memory"]))
    [grid] = machine.lower_bounds(results(
        [msgspec.structs.replace(record, unit="us") for record in launch],
        [msgspec.structs.replace(record, unit="GB/s") for record in read],
        entry("lower-bounds", "gpu", {"multiprocessors": [132.0]}, precision="")))
    first, second = rows_of(grid)
    assert first == {"lower bound": "a launch", "median": "2.00", "unit": "us",
                     "min-max": "1.50-3.25", "n": "3", "how": "how it is done"}
    assert second == {"lower bound": "memory", "median": "-", "unit": "GB/s", "min-max": "",
                      "n": "", "how": "needs a GPU"}
    assert machine.lower_bounds(results()) == []


def test_launches_are_compared_with_the_packed_call() -> None:
    packed, other = [2.0, 2.5, 2.25], [4.0, 3.5, 3.75]
    [grid] = machine.launches(results(
        entry("launches", machine.PACKED, {"launch_us": packed}, precision="", launches=64,
              notes=["cuLaunchKernel(...)"]),
        entry("launches", "rawnn", {"launch_us": other}, precision="", launches=64),
        entry("launches", "faster", {"launch_us": [1.0]}, precision="", launches=64),
        entry("launches", "none", {"launch_us": []}, precision="", launches=64,
              status="unavailable", reason="not installed")))
    found = {row["launch"]: row for row in rows_of(grid)}
    assert [row["over packed"] for row in found.values()] == ["", "+1.50", "-1.25", ""]
    assert [row["median us"] for row in found.values()] == ["2.25", "3.75", "1.00", "-"]
    assert found["rawnn"]["min-max"] == "3.50-4.00"
    assert found["rawnn"]["95 % interval"] == "{:.2f}-{:.2f}".format(*median_interval(other))
    assert [row["n"] for row in found.values()] == ["3", "3", "1", ""]
    assert [row["how"] for row in found.values()] == [
        "`cuLaunchKernel(...)`", "", "", "not installed"]
    assert "64 launches a sample" in grid.source


def scaled(ranks: int, us: list[float], kind: str, batch: int, system: str = "rawnn",
           name: str = "mlp4", losses: tuple[float, ...] = (1.0, 0.5), **more: Any) -> Any:
    return entry(f"scaling/{name}", system, {"step_us": us, "loss": list(losses)}, ranks=ranks,
                 scaling=kind, batch=batch, opt="best", epochs=10, **more)


def test_speedups_are_of_examples_a_second_over_one_rank_of_the_same() -> None:
    """Strong scaling keeps the batch; weak scaling has more examples with more ranks."""
    where = place()
    where.ranks.extend([{"device": "NVIDIA X"}] * 4)
    found = results(
        scaled(1, [100.0, 110.0, 90.0], "strong", 4096), scaled(4, [40.0], "strong", 4096),
        scaled(1, [50.0], "weak", 1024), scaled(4, [80.0], "weak", 4096),
        scaled(1, [10.0], "strong", 4096, name="wide"),
        scaled(2, [8.0], "strong", 4096, name="wide"),
        scaled(1, [200.0], "strong", 4096, system="torch"),
        scaled(4, [100.0], "strong", 4096, system="torch", losses=(1.1, 0.5)),
        scaled(8, [], "strong", 4096, status="failed", reason="no such GPU"), places=[where])
    [grid] = machine.scaling(found)
    table = {(r["workload"], r["system"], r["scaling"], r["ranks"]): r for r in rows_of(grid)}
    expected = {("mlp4", "rawnn", "strong", "1"): 1.0, ("mlp4", "rawnn", "strong", "4"): 2.5,
                ("mlp4", "rawnn", "weak", "1"): 1.0, ("mlp4", "rawnn", "weak", "4"): 2.5,
                ("wide", "rawnn", "strong", "1"): 1.0, ("wide", "rawnn", "strong", "2"): 1.25,
                ("mlp4", "PyTorch DDP", "strong", "1"): 1.0,
                ("mlp4", "PyTorch DDP", "strong", "4"): 2.0}
    for key, ratio in expected.items():
        assert table[key]["speedup"] == f"{ratio:.2f}"
        assert table[key]["efficiency"] == f"{100 * ratio / int(key[3]):.0f}%"
    lost = table["mlp4", "rawnn", "strong", "8"]
    assert (lost["us a step"], lost["speedup"], lost["efficiency"], lost["note"]) == (
        "-", "", "", "no such GPU")
    assert table["mlp4", "rawnn", "strong", "1"]["min-max"] == "90.0-110.0"
    assert table["mlp4", "rawnn", "strong", "1"]["batch"] == "4,096"
    # Two losses of each of five runs that the other system has, too; three of the ten differ.
    apart = 1 / 1.1 - 1
    [note] = grid.notes
    assert "70% within 0.01% of each other" in note
    assert f"the furthest {max(0.1, abs(apart)):.2%} apart (mlp4, 4 ranks, batch 4,096)" in note
    assert "4 x NVIDIA X" in grid.source


def test_each_phase_has_its_cycles_and_its_parts_where_there_are_several() -> None:
    def of(name: str, expected: float, measured: float) -> Any:
        return entry("phases", name, {
            "cycles": [measured], "expected_cycles": [expected], "slowest_cycles": [measured + 5],
            "warp_cycles": [measured - 5]}, precision="")

    step = entry("phases", "step", {
        "cycles": [9000.0], "load_cycles": [1111.0], "store_cycles": [2222.0], "step_us": [5.25],
        "traced_us": [5.5], "expected_us": [5.0], "kernel_us": [70.0], "epoch_us": [80.0],
        "clock_mhz": [1980.0]}, precision="", layers=[20, 64, 3], batch=32, loss="mse",
        optimizer="adam", opt="1x1:128:FFF", steps=64)
    [grid] = machine.phases(results(of("forward 1", 4000, 4100), of("forward 1/load", 0, 1000),
                                    of("forward 1/work", 0, 3000), of("loss", 500, 600),
                                    of("loss/work", 0, 600), step))
    assert grid.rows == [
        ["forward 1", "", "4,000", "4,100", "4,105", "4,095"],
        ["", "load", "0", "1,000", "1,005", "995"], ["", "work", "0", "3,000", "3,005", "2,995"],
        ["loss", "", "500", "600", "605", "595"], ["step", "", "4,500", "9,000", "", ""],
        ["load, once a launch", "", "", "1,111", "", ""],
        ["store, once a launch", "", "", "2,222", "", ""]]
    assert grid.title == (
        "20-64-3, batch 32, mse, adam: 1x1:128:FFF\n5.25 us a step (5.50 traced, 5.00 expected) of "
        "64 a launch; the traced kernel took 70.0 us, its epoch 80.0; 1,980 cycles a us")
    assert machine.phases(results(of("loss", 1, 2))) == []


@pytest.mark.parametrize(("status", "verdict"), [
    ("measured", "right"), ("wrong", "wrong"), ("failed", "failed"),
    ("unavailable", "unavailable")])
def test_a_random_run_has_its_verdict_and_its_share_of_the_tolerance(status: str, verdict: str
                                                                     ) -> None:
    us, used = [12.0, 14.0, 13.0], [0.25]
    is_run = status in ("measured", "wrong")
    [grid] = machine.checks(results(entry(
        "check/7", "none,bf16", {"step_us": us if is_run else [],
                                 "tolerance_used": used if is_run else []},
        status=status, reason="" if status == "measured" else "why", notes=["3-2, batch 5"])))
    [row] = rows_of(grid)
    assert row == {"seed": "7", "verdict": verdict, "us a step": f"{median(us)}" if is_run else "",
                   "tolerance used": "0.25" if is_run else "", "what": "3-2, batch 5"}
    assert "1 random run" in grid.source


@pytest.mark.parametrize("ranks", [(1,), (1, 2), (1, 2, 4)])
def test_scaling_is_drawn_from_two_numbers_of_ranks_on(ranks: tuple[int, ...]) -> None:
    found = machine.scaling_charts(results(*(scaled(n, [100.0 / n], "strong", 4096)
                                             for n in ranks)))
    assert bool(found) == (len(ranks) > 1)


def test_a_phase_takes_the_median_of_blocks_and_a_warp_the_mean(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """Summed over its stamps, in the median of the steps. What follows once a launch is no phase of
    a step, and one that nothing stamps takes no cycles."""
    generator = np.random.default_rng(3)
    listed = (Stamp("a", "x"), Stamp("a", "y"), Stamp("b"), Stamp("a", "x"))
    shape = (3, 5, len(listed))
    trace = Trace(listed, generator.integers(1, 99, shape), generator.integers(1, 99, (*shape, 2)),
                  np.arange(5), np.arange(5), 2.0, 9.0)
    costs = (("a", 10.0), (phases.cost.LAUNCH, 99.0), ("c", 7.0), ("a", 5.0))
    monkeypatch.setattr(phases.cost, "phases", lambda sharding, of: [
        SimpleNamespace(name=name, cycles=cycles) for name, cycles in costs])
    chosen: Any = SimpleNamespace(sharding=None, costs=None)
    found = phases.of_phases(chosen, trace)
    assert list(found) == ["a", "a/x", "a/y", "b", "c"]
    for name, places, expected in (("a", (0, 1, 3), 15.0), ("a/x", (0, 3), None),
                                   ("a/y", (1,), None), ("b", (2,), None), ("c", (), 7.0)):
        blocks = [median(sum(int(trace.cycles[s, b, p]) for p in places) for s in range(3))
                  for b in range(5)]
        warps = [median(sum(int(trace.own[s, b, p, w]) for p in places) for s in range(3))
                 for b in range(5) for w in range(2)]
        assert found[name] == {
            "cycles": median(blocks), "expected_cycles": expected, "slowest_cycles": max(blocks),
            "warp_cycles": pytest.approx(sum(warps) / 10)}
