"""What a step costs by the limits of a GPU: by hand, in tables, and on the command line."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rawnn.bench import gpu_limits
from rawnn.bench.costing import OWN, footprint, least, least_time, op_costs, total, touched
from rawnn.bench.gpu_limits import Limits
from rawnn.bench.harness import Harness
from rawnn.bench.record import Entry, Results
from rawnn.bench.training import measure_workloads
from rawnn.cli import run as command
from rawnn.model.layers import Network
from rawnn.opts import select
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy
from tests.bench.test_lower_bounds import made
from tests.engine import CAPABLE, step_plan

LIMITS = made()
"""Microseconds: launch 2, node_whole 1.25 and early 0.75, exchanges 0.25 at least. GB/s: memory
4000, L2 8000 (of 50 MiB), host 50. TFLOP/s: fma 50, tf32 300, bf16 600. 100 multiprocessors."""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAWNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RAWNN_FLOORS", raising=False)


def planned(layers: tuple[int, ...], batch: int, opt: str) -> tuple[Plan, Policy]:
    network = Network(layers)
    return select(opt, network, 60, CAPABLE).apply(step_plan(network, batch, 60 * batch))


@pytest.mark.parametrize("opt", ["preload", "preload,tiled,fuse"])
def test_a_step_moves_its_batch_and_what_it_trains_there_and_back(opt: str) -> None:
    """Bytes of images and labels of 32 examples; weights and biases are read and written."""
    plan, _ = planned((64, 128, 10), 32, opt)
    trained = 4 * (128 * 64 + 128 + 10 * 128 + 10)
    assert least(plan) == 32 * (64 + 1) + 2 * trained
    gather, = plan.find(kind="gather")
    assert dict(touched(gather, plan)) == {
        "images": 32 * 64, "labels": 32, "cursor": 4, "x": 4 * 32 * 64, "y": 4 * 32}


def test_weights_whose_update_is_deferred_need_not_be_written() -> None:
    """4096 x 4096 weights and their biases are read; what is small is read and written."""
    plan, _ = planned((4096, 4096, 10), 1, "preload,mma,fuse,graphs=epoch")
    deferred, other = 4 * 4096 * 4097, 4 * (10 * 4096 + 10)
    assert least(plan) == pytest.approx(4096 + 1 + deferred + 2 * other, abs=64)


def test_plan_says_what_merged_updates_move(capsys: pytest.CaptureFixture[str]) -> None:
    """SGD on 4096 x 4096 weights in 16 steps: the first forward GEMM, 16 reads and 4 writes."""
    asked = ["plan", "--cost", "--layers", "4096-4096-10", "--batch", "1"]
    assert command([*asked, "--opt", "preload,mma,fuse,graphs=epoch"]) == 0
    found = re.search(r"in a graph of 16 steps .*: a step moves ([\d,]+) bytes on average",
                      " ".join(capsys.readouterr().out.split()))
    assert found
    assert int(found[1].replace(",", "")) == pytest.approx(21 / 16 * 4 * 4096**2, rel=0.02)
    assert command([*asked, "--opt", "preload,mma,fuse=-deferred,graphs=epoch"]) == 0
    assert "on average" not in capsys.readouterr().out


def test_an_op_is_expected_to_take_a_launch_and_what_takes_longer() -> None:
    plan, policy = planned((784, 4096, 10), 128, "preload,tiled,graphs")
    rows = {cost.op.name: cost for cost in op_costs(plan, policy, LIMITS)}
    forward = rows["fc1.forward"]
    assert forward.operations == 2 * 128 * 784 * 4096
    assert forward.arithmetic_us == pytest.approx(forward.operations / 50e6)
    # Long rows begin with cache lines: those of 784 numbers take 800.
    assert forward.nbytes == 4 * (128 * 800 + 800 * 4096 + 128 * 4096)
    assert forward.memory_us == pytest.approx(forward.nbytes / 8000e3)  # all of it fits the L2
    assert forward.launch_us == 1.25
    assert forward.us == pytest.approx(1.25 + forward.arithmetic_us)
    assert (forward.bound, forward.precision) == ("FMA", "float32")
    assert rows["fc1.weight.sgd"].bound == "memory"
    assert rows["fc2.bias.sgd"].bound == "launch"
    assert rows["fc2.bias.sgd"].precision == ""
    assert total(list(rows.values())) == pytest.approx(sum(c.us or 0 for c in rows.values()))


@pytest.mark.parametrize("fma", [50, 150])
@pytest.mark.parametrize(("opt", "launch", "bound", "rate"), [
    ("preload,mma", 2.0, "tensor", 100e6), ("preload,bf16,mma,graphs", 1.25, "tensor", 600e6),
    ("preload,tf32,mma,graphs,pdl", 0.75, "tensor", 300e6),
    ("preload,cublas,graphs", 1.25, "FMA", None)])
def test_launches_and_units_follow_the_toggles(opt: str, launch: float, bound: str,
                                               rate: float | None, fma: float) -> None:
    """float32 on tensor cores is three products of tf32, even where fused multiply-adds are
    faster."""
    plan, policy = planned((784, 4096, 10), 512, opt)
    rate = rate or fma * 1e6
    (cost,) = [c for c in op_costs(plan, policy, made(fma=fma)) if c.op.name == "fc1.forward"]
    assert cost.launch_us == launch
    assert cost.arithmetic_us == pytest.approx(cost.operations / rate)
    assert cost.bound == bound


def test_what_does_not_fit_the_l2_cache_comes_from_memory() -> None:
    plan, policy = planned((784, 4096, 10), 128, "preload,tiled,graphs")
    small = made(l2_bytes=1 << 20)
    near, far = (next(c for c in op_costs(plan, policy, limits) if c.op.name == "fc1.forward")
                 for limits in (LIMITS, small))
    assert far.memory_us == pytest.approx(2 * (near.memory_us or 0))


@pytest.mark.parametrize(("lacking", "opt", "kind"), [
    ("node_whole", "graphs=step,pdl", ""), ("l2_read", "graphs=step,pdl", ""),
    ("read", "graphs=step,pdl", "gather"), ("host_to_device", "none", "upload"),
    ("launch", "none", "")])
def test_an_op_of_which_a_constant_is_not_known_has_bytes_and_operations_alone(
        lacking: str, opt: str, kind: str) -> None:
    """An early node without a constant of its own takes that of the others, as every launch does;
    the data set's rows are the first op's alone, and come from the host without `preload`."""
    plan, policy = planned((784, 64, 10), 128, opt)
    limits, gone = made(), {lacking, "node_whole_early"}
    if lacking == "launch":
        gone.add("node_whole")
    limits.results.records = [r for r in limits.results.records if r.variant not in gone]
    costs = op_costs(plan, policy, limits)
    whole = op_costs(plan, policy, made())
    for cost, full in zip(costs, whole, strict=True):
        assert (cost.nbytes, cost.operations) == (full.nbytes, full.operations)
        if kind in ("", full.op.kind):
            assert (cost.us, cost.memory_us, cost.launch_us, cost.bound) == (None, None, None, "")
        else:
            assert cost.launch_us == (1.25 if policy.graph else 2.0)
            assert cost.memory_us == full.memory_us
    assert total(costs) is None


@pytest.mark.parametrize("room", [-1, 0])
def test_what_stays_in_the_l2_cache_is_all_but_the_data_set(room: int) -> None:
    """Of the data set the batch's rows alone pass through."""
    plan, policy = planned((64, 128, 10), 32, "preload,tiled,graphs")
    used = {name for op in plan.ops for name, _ in (*op.reads, *op.writes)}
    kept = sum(plan[name].nbytes for name in used if name not in ("images", "labels"))
    assert plan["images"].nbytes > 1
    rate = 8000e3 if room >= 0 else 4000e3  # of the L2 cache, and of device memory
    cost, = (c for c in op_costs(plan, policy, made(l2_bytes=kept + room))
             if c.op.name == "fc1.forward")
    assert cost.memory_us == pytest.approx(cost.nbytes / rate)


def test_without_limits_there_are_bytes_and_operations_alone() -> None:
    plan, policy = planned((784, 10), 128, "preload")
    costs = op_costs(plan, policy, None)
    assert all(c.nbytes and c.us is None and not c.bound for c in costs)
    assert total(costs) is None


def test_a_whole_step_kernel_has_a_model_of_its_own() -> None:
    plan, policy = planned((784, 128, 10), 64, "persistent")
    (cost,) = op_costs(plan, policy, LIMITS)
    assert (cost.bound, cost.us) == (OWN, plan.ops[0].attributes["choice"].us)
    assert cost.operations == 2 * 64 * (2 * 784 * 128 + 3 * 128 * 10)


def test_the_least_time_of_a_small_step_is_waiting() -> None:
    plan, _ = planned((784, 128, 10), 64, "preload,fuse")
    least = least_time(plan, LIMITS)
    assert least
    work = 2 * 64 * (2 * 784 * 128 + 3 * 128 * 10)
    assert least.arithmetic_us == pytest.approx(work / 100e6)
    # The data set, 3 MB of it, fits the L2 cache; parameters stay on the chip.
    assert least.memory_us == pytest.approx(64 * 785 / 8000e3)
    assert (least.exchanges, least.waiting_us) == (4, pytest.approx(4 * 0.25))
    assert least.us == pytest.approx(least.arithmetic_us + 1.0)
    assert least.by == "waiting"


def test_a_tiny_step_stays_on_one_multiprocessor() -> None:
    plan, _ = planned((8, 4), 4, "preload,fuse")
    least = least_time(plan, LIMITS)
    assert least
    assert (least.exchanges, least.waiting_us) == (0, 0.0)
    assert least.arithmetic_us == pytest.approx(100 * 2 * 4 * 2 * 8 * 4 / 100e6)


def test_the_least_time_of_a_large_step_is_memory_or_arithmetic() -> None:
    plan, _ = planned((784, 8192, 8192, 10), 32, "preload,bf16,mma,fuse")
    least = least_time(plan, LIMITS)
    assert least
    weights = 784 * 8192 + 8192 * 8192 + 8192 * 10 + 8192 + 8192 + 10
    assert least.by == "memory"
    assert least.memory_us == pytest.approx(2 * 4 * weights / 4000e3, rel=0.02)
    wide, _ = planned((784, 8192, 8192, 10), 4096, "preload,bf16,mma,fuse")
    large = least_time(wide, LIMITS)
    assert large
    assert large.by == "arithmetic"


SMALL, LARGE = (784, 128, 10), (784, 8192, 8192, 10)  # long rows of 784 take 800
STATE = 2 * 4 * (801 * 8192 + 8193 * 8192 + 8193 * 10)


@pytest.mark.parametrize(("layers", "opt", "limits", "memory_us", "arithmetic"), [
    (SMALL, "preload,fuse", {}, 64 * 785 / 8000e3, 100e6),
    (SMALL, "preload,fuse", {"fma": 150.0, "read": 3000.0, "l2_bytes": 3840 * 784 - 1},
     64 * (784 / 3000e3 + 1 / 8000e3), 150e6),
    (SMALL, "none", {}, 64 * 4 * 785 / 50e3, 100e6),
    (LARGE, "preload,fuse", {"copy": 2000.0}, STATE / 2000e3 + 64 * 785 / 8000e3, 100e6),
    (LARGE, "preload,fuse", {"copy": 2000.0, "l2_bytes": STATE // 2},
     STATE / 8000e3 + 64 * 785 / 8000e3, 100e6)])
def test_the_least_time_of_bytes_is_that_of_where_they_fit(
        layers: tuple[int, ...], opt: str, limits: dict[str, Any], memory_us: float,
        arithmetic: float) -> None:
    """Examples come from the host (as floats), or the L2 cache where the data set fits it; the
    parameters from there, or from device memory, where they do not stay on the chip."""
    found = least_time(planned(layers, 64, opt)[0], made(**limits))
    assert found
    products = sum(m * n * (3 if place else 2) for place, (m, n) in
                   enumerate(pairwise(layers)))
    assert found.arithmetic_us == pytest.approx(2 * 64 * products / arithmetic)
    assert found.memory_us == pytest.approx(memory_us, rel=1e-4)


def test_no_toggle_is_expected_to_beat_the_lower_bound() -> None:
    for layers, batch in (((784, 10), 128), ((784, 512, 512, 10), 64), ((784, 4096, 10), 32)):
        for opt in ("none", "best,-persistent", "best,bf16,-persistent"):
            plan, policy = planned(layers, batch, opt)
            least, expected = least_time(plan, LIMITS), total(op_costs(plan, policy, LIMITS))
            assert least
            assert expected
            assert least.us < expected, (layers, opt)


def test_limits_that_lack_something_give_no_least_time() -> None:
    plan, _ = planned((784, 10), 128, "preload")
    for name in ("l2_read", "fma"):
        some = [r for r in LIMITS.results.records if r.variant not in (name, "tensor_tf32")]
        there = LIMITS.results.environments
        assert least_time(plan, Limits(Results(environments=there, records=some))) is None
    with_step = replace(plan, tensors={n: t for n, t in plan.tensors.items()
                                       if "weight" not in n}, ops=plan.ops[:1])
    assert least_time(with_step, LIMITS) is None


# -- the metrics of a run --------------------------------------------------------------------------


def test_a_measurement_goes_by_the_limits_of_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured() -> Entry:
        with Harness("workloads") as harness:
            measure_workloads(harness, [("linear", "preload,fuse")], 1, 1, "sim", "synthetic")
        return harness.results.entries()[0]

    assert "lower_bound_us" not in measured()
    own = made("Simulated GPU")
    monkeypatch.setattr("rawnn.bench.costing.stored_limits", lambda gpu, driver="": own)
    known = measured()
    parts = {name: known.median(f"lower_bound_{name}") or 0.0
             for name in ("us", "memory_us", "arithmetic_us", "waiting_us", "exchanges")}
    assert parts["us"] == max(parts["memory_us"], parts["arithmetic_us"]) + parts["waiting_us"] > 0
    assert parts["exchanges"] in (0, 2)
    assert (known.median("steps") or 0) > 0


@pytest.mark.parametrize(("opt", "on_gpu"), [
    ("preload", True), ("preload,tiled,fuse", True), ("preload", False)])
def test_a_run_has_the_launches_and_bytes_of_a_step(opt: str, on_gpu: bool) -> None:
    plan, _ = planned((64, 128, 10), 32, opt)
    work: Any = SimpleNamespace(train=plan, updates=60)
    info = SimpleNamespace(name="Some GPU", driver="580.1")
    opened: Any = SimpleNamespace(device=SimpleNamespace(info=info) if on_gpu else None)
    assert footprint(work, {"graph_nodes": 240} if on_gpu else {}, opened) == {
        "launches": len(plan.ops) if on_gpu else 0,
        "step_bytes": sum(nbytes for op in plan.ops for _, nbytes in touched(op, plan)),
        "least_bytes": 32 * (64 + 1) + 2 * 4 * (128 * 64 + 128 + 10 * 128 + 10),
        "steps": 60, **({"graph_nodes": 240} if on_gpu else {})}


# -- the command -----------------------------------------------------------------------------------


def test_plan_prints_costs_by_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    made("NVIDIA H200").results.write(tmp_path / "h200.json")
    asked = ["plan", "--cost", "--opt", "best,bf16,-persistent", "--layers", "784-512-10"]
    assert command([*asked, "--floors", str(tmp_path / "h200.json")]) == 0
    said = capsys.readouterr().out
    assert "the step" in said
    assert "expected (us)" in said
    assert "no program does the step in less than" in said
    gpu_limits.store_limits(made("NVIDIA H200").results)
    assert command(asked) == 0
    assert "no program does the step in less than" in capsys.readouterr().out
    # Those of another GPU are not taken.
    assert command([*asked, "--gpu", "A100"]) == 0
    other = capsys.readouterr().out
    assert "expected (us)" not in other
    assert "no limits of A100 have been measured on this machine" in other


def test_options_that_mean_nothing_together_are_refused(capsys: pytest.CaptureFixture[str]
                                                        ) -> None:
    for words, said in ((["--floors", "x.json"], "--floors goes with --cost only"),
                        (["--cost", "--dot"], "give one"),
                        (["--cost", "--floors", "/nowhere.json"], "cannot read /nowhere.json")):
        assert command(["plan", *words]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(("times", "wanted"), [
    ([], 0), ([1.5], 1.5), ([1.5, 2.0], 3.5), ([None], None), ([1.5, None], None),
    ([None, 2.0], None)])
def test_a_step_is_known_where_all_of_its_ops_are(times: list[float | None],
                                                  wanted: float | None) -> None:
    costs: list[Any] = [SimpleNamespace(us=us) for us in times]
    assert total(costs) == wanted
