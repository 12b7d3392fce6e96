"""`rawnn plan`."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Rawnn


def test_the_baseline(rawnn: Rawnn) -> None:
    done = rawnn("plan", "--opt", "none")
    assert done.status == 0, done.err
    for word in ("upload", "softmax", "cross_entropy", "stream (no graph)", "toggles: none"):
        assert word in done.out


def test_a_graph_of_an_epoch_is_cut_short_unless_all_is_asked_for(rawnn: Rawnn) -> None:
    arguments = ("plan", "--opt", "best,graphs=epoch", "--examples", "12800")
    short, whole = rawnn(*arguments).out, rawnn(*arguments, "--all").out
    assert "more (--all shows them)" in short
    assert "more (--all" not in whole
    assert whole.count("linear_update") > short.count("linear_update") > 1


@pytest.mark.parametrize("opt", ["none", "best", "preload,graphs=while", "graphs=step"])
def test_dot_has_a_node_for_every_op_and_edges_between_them(rawnn: Rawnn, opt: str) -> None:
    dot = rawnn("plan", "--opt", opt, "--dot", "--examples", "256").out
    assert dot.startswith("digraph step {")
    assert dot.count("{") == dot.count("}")
    nodes = {line.split()[0] for line in dot.splitlines() if "[label=" in line}
    edges = [line.strip(" ;").split(" -> ") for line in dot.splitlines() if "->" in line]
    assert nodes
    assert edges
    assert {end for edge in edges for end in edge} <= nodes


def test_a_loop_is_called_one(rawnn: Rawnn) -> None:
    assert "WHILE node" in rawnn("plan", "--opt", "preload,graphs=while").out


def test_an_unknown_toggle(rawnn: Rawnn) -> None:
    done = rawnn("plan", "--opt", "fuze")
    assert done.status == 2
    assert "did you mean 'fuse'" in done.err


@pytest.mark.parametrize(("opt", "said"), [
    ("none", "launch by launch, the host waits after every step, a report every epoch, memory "
             "from the driver at each use"),
    ("preload,pool,pinned,streams,nosync,report=5",
     "launch by launch, the host waits for reports only, a report every 5 epochs, memory from a "
     "pool of our own, page-locked batches, what is independent side by side"),
    ("graphs=1", "a graph of 1 step, "), ("preload,graphs=while", "a graph with a loop, "),
    ("preload,pdl", "kernels begin early"), ("preload,async,tune", "launches as measured")])
def test_the_policy_is_said_in_words(rawnn: Rawnn, opt: str, said: str) -> None:
    done = rawnn("plan", "--opt", opt)
    line = next(line for line in done.out.splitlines() if line.startswith("policy:"))
    assert said in line
    assert "(" not in line
