"""`rawnn plan`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rawnn.cli.costs import _us
from tests.cli.conftest import Rawnn


def test_the_baseline(rawnn: Rawnn) -> None:
    done = rawnn("plan", "--opt", "none")
    assert done.status == 0, done.err
    for word in ("upload", "softmax", "cross_entropy", "stream (no graph)", "toggles: none"):
        assert word in done.out


def test_a_graph_of_an_epoch_is_cut_short_unless_all_is_asked_for(rawnn: Rawnn) -> None:
    arguments = ("plan", "--opt", "best,-persistent,graphs=epoch", "--examples", "12800")
    short, whole = rawnn(*arguments).out, rawnn(*arguments, "--all").out
    assert "more (--all shows them)" in short
    assert "\n\ngraph: " in short
    assert "more (--all" not in whole
    assert whole.count("linear_update") > short.count("linear_update") > 1


@pytest.mark.parametrize("opt", ["none", "best", "preload,graphs=while", "graphs=step"])
def test_dot_has_a_node_for_every_op_and_edges_between_them(rawnn: Rawnn, opt: str) -> None:
    dot = rawnn("plan", "--opt", opt, "--dot", "--examples", "256").out
    assert dot.startswith("digraph step {")
    assert dot.count("{") == dot.count("}")
    nodes = {line.split()[0] for line in dot.splitlines() if "[label=" in line}
    edges = [line.partition("[")[0].strip(" ;").split(" -> ") for line in dot.splitlines()
             if "->" in line]
    assert nodes
    assert edges
    assert {end for edge in edges for end in edge} <= nodes


def test_costs_need_no_graph(rawnn: Rawnn, monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch of batch 1 would be one of 60,000 steps."""
    monkeypatch.setattr("rawnn.cli.plan.epoch_graphs", None)
    done = rawnn("plan", "--cost", "--opt", "preload,graphs=epoch", "--batch", "1")
    assert done.status == 0, done.err
    assert "the step" in done.out


def test_no_time_is_not_an_unknown_one() -> None:
    assert [_us(us) for us in (None, 0.0, 1.234)] == ["", "0.00", "1.23"]


def test_a_loop_is_called_one(rawnn: Rawnn) -> None:
    assert "WHILE node" in rawnn("plan", "--opt", "preload,graphs=while").out


def test_an_unknown_toggle(rawnn: Rawnn) -> None:
    done = rawnn("plan", "--opt", "fuze")
    assert done.status == 2
    assert "did you mean 'fuse'" in done.err


@pytest.mark.parametrize(("opt", "message"), [
    ("none", "launch by launch, the host waits after every step, a report every epoch, memory "
             "from the driver at each use"),
    ("preload,pool,pinned,streams,nosync,report=5",
     "launch by launch, the host waits for reports only, a report every 5 epochs, memory from a "
     "pool of our own, page-locked batches, what is independent side by side"),
    ("graphs=1", "a graph of 1 step, "), ("preload,graphs=while", "a graph with a loop, "),
    ("preload,pdl", "kernels begin early"), ("preload,async,tune", "launches as measured")])
def test_the_policy_is_said_in_words(rawnn: Rawnn, opt: str, message: str) -> None:
    done = rawnn("plan", "--opt", opt)
    line = next(line for line in done.out.splitlines() if line.startswith("policy:"))
    assert message in line
    assert "(" not in line


def edges_of(text: str) -> list[str]:
    """The reasons of all edges that are shown."""
    lines = text[text.index(" launched "):].splitlines()[1:]
    return [edge for line in lines if line.startswith("   ") for edge in line.split("  ")[-1]
            .split("; ") if not edge.endswith("at once")]


def test_every_edge_has_its_reason(rawnn: Rawnn) -> None:
    text = rawnn("plan", "--opt", "preload,streams,graphs=step", "--layers", "784,16,10").out
    assert re.search(r"relu1@0 +activate/naive +after 2, which wrote z1\n", text)
    assert any("which read fc2.weight" in edge for edge in edges_of(text))
    assert all("which wrote " in edge or "which read " in edge for edge in edges_of(text))


def test_without_streams_some_edges_are_the_chain(rawnn: Rawnn) -> None:
    text = rawnn("plan", "--opt", "preload,graphs=step").out
    assert re.search(r"accuracy@0 +accuracy/naive +after 4, chain\n", text)
    assert "after 3, which wrote p" in text
    assert "early" not in text


def test_programmatic_edges_are_marked(rawnn: Rawnn) -> None:
    arguments = ("plan", "--opt", "preload,fuse,pdl,streams,graphs=2", "--layers")
    text = rawnn(*arguments, "784,16,10").out
    assert "early behind 0, which wrote x" in text
    assert "early: it begins before the other has ended" in text
    assert "early" not in rawnn("plan", "--opt", "preload,fuse,streams,graphs=2").out


def test_the_parts_of_a_toggle_say_what_became_of_them(rawnn: Rawnn) -> None:
    text = rawnn("plan", "--opt", "best,bf16,fuse=-narrow", "--layers", "784,256,10").out
    assert "parts of fuse" in text
    for part, message in (("loss", "taken"), ("head", "taken"),
                       ("narrow", "not taken: narrow is left out by fuse=-narrow"),
                       ("linear", "not taken: the step is not that of one layer")):
        assert f"  {part:<12} {message}" in text  # as wide as loss_product


@pytest.mark.parametrize(("name", "message"), [
    ("h100", "H100"), ("H100", "H100"), ("NVIDIA H200", "H200"), ("rtx-4090", "RTX 4090"),
    ("4090", "RTX 4090"), ("RTX_PRO_6000", "RTX PRO 6000"), ("pro 6000", "RTX PRO 6000"),
    ("Tesla T4", "T4"), ("NVIDIA H100 80GB HBM3", "H100"), ("NVIDIA A100-SXM4-80GB", "A100"),
    ("NVIDIA GeForce RTX 4090", "RTX 4090"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000")])
def test_gpus_have_short_names(rawnn: Rawnn, name: str, message: str) -> None:
    out = rawnn("plan", "--opt", "none", "--gpu", name)
    assert out.status == 0, out.err
    assert f"for:     {message} (" in out.out or f"for:     {message}," in out.out


@pytest.mark.parametrize(("name", "message"), [
    ("NVIDIA H100 PCIe", "unknown GPU 'NVIDIA H100 PCIe'"),  # it has 114 multiprocessors
    ("h300", "unknown GPU 'h300'; did you mean 'H200'"), ("tpu", "unknown GPU 'tpu'; there are T4"),
    ("", "unknown GPU ''; there are T4, A100")])
def test_what_is_no_gpu(rawnn: Rawnn, name: str, message: str) -> None:
    done = rawnn("plan", "--opt", "none", "--gpu", name)
    assert done.status == 2
    assert message in done.err


def test_a_plan_is_for_a_gpu_that_can_be_named(rawnn: Rawnn) -> None:
    arguments = ("plan", "--opt", "best,bf16,fuse=-narrow", "--layers", "784,256,10")
    assert "for:     H200, compute capability 9.0, 132 multiprocessors" in rawnn(*arguments).out
    older = rawnn(*arguments, "--gpu", "a100").out
    assert "for:     A100, compute capability 8.0, 108 multiprocessors" in older
    assert "head         not taken: needs clusters, which A100 has not" in older
    refused = rawnn("plan", "--gpu", "T4", "--opt", "bf16,mma")
    assert refused.status == 2
    assert "from compute capability 8.0 on" in refused.err


@pytest.mark.parametrize("gpu", ["h100", "NVIDIA H100 80GB HBM3"])
def test_best_takes_what_a_run_on_that_gpu_would_take_from_the_table(
        rawnn: Rawnn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: str) -> None:
    table = tmp_path / "best.json"
    monkeypatch.setenv("RAWNN_BEST", str(table))
    arguments = ("plan", "--opt", "best,-persistent", "--layers", "77-33-5", "--batch", "32")
    assert "measured on" not in rawnn(*arguments, "--gpu", gpu).out
    table.write_text(json.dumps([{
        "gpu": "NVIDIA H100 80GB HBM3", "layers": [77, 33, 5], "batch": 32, "numbers": "",
        "toggles": "tiled,fuse", "us": 12.5, "others": {"mma,fuse": 13.5}, "driver": "d",
        "commit": "c", "date": "t"}]))
    found = rawnn(*arguments, "--gpu", gpu).out
    assert "best takes tiled, fuse: measured on NVIDIA H100 80GB HBM3 for 77-33-5 at batch 32: " \
        "12.5 us a step, mma + fuse 13.5" in found
    assert "tiled" in found.splitlines()[0]
    assert "measured on" not in rawnn(*arguments, "--gpu", "h200").out
    assert "measured on" not in rawnn(*arguments, "--gpu", gpu, "--opt", "best,bf16").out


@pytest.mark.parametrize("more", [(), ("--cost",), ("--dot",), ("--batch", "10")])
def test_a_batch_larger_than_the_training_set(rawnn: Rawnn, more: tuple[str, ...]) -> None:
    done = rawnn("plan", "--examples", "5", *more)
    assert done.status == 2
    batch = 10 if "--batch" in more else 128
    assert done.err == f"rawnn: error: batch = {batch} is larger than the training set (5 " \
                       f"examples): use --batch 5 or less\n"
    assert rawnn("plan", "--examples", "5", *more, "--batch", "5").status == 0
