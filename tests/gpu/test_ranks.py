"""Two ranks on two GPUs: NCCL itself in place of the simulated one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rawnn.cuda.backend import has_package
from rawnn.cuda.device import Device
from rawnn.cuda.errors import CallFailed, check
from rawnn.cuda.libs.collectives import NcclContext
from rawnn.graphs import Graph
from tests.distributed.runs import free_port
from tests.together import Waiting
from tests.tolerances import of_run

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = "import sys; from rawnn.distributed.launcher import run\n" \
         "from rawnn.cli.screen import say\n" \
         "sys.exit(run(sys.argv[2:], int(sys.argv[1]), say))"
FAST = "preload,arena,nosync,fuse,mma,streams,pdl,graphs"
OPTS = ("none,preload,arena,nosync", "none,preload,arena,nosync,fuse", f"none,{FAST}=epoch",
        f"none,{FAST}=3,nccl=1", "none,preload,cublas,fuse,graphs=epoch,streams",
        f"none,{FAST}=epoch,nccl=sharded", f"none,{FAST}=epoch,nccl=1:backward",
        "none,arena,nosync,streams,pinned", "none,preload,graphs=step", "best")
LOW = (f"none,{FAST}=epoch,bf16", f"none,{FAST}=epoch,bf16,nccl=sharded",
       f"none,{FAST}=epoch,bf16,nccl=fp32",
       f"none,{FAST}=epoch,sr", f"none,{FAST}=epoch,fp16")
STREAM, GRAPH = "none,preload,arena,nosync", f"none,{FAST}=epoch,report=500"
SAME = (f"none,{FAST}=epoch,nccl=1", f"none,{FAST}=epoch,nccl=1",
        f"none,{FAST}=epoch,nccl=whole/adam", f"none,{FAST}=epoch/adam",
        f"none,{FAST}=epoch,bf16,nccl=whole/momentum", f"none,{FAST}=epoch,bf16/momentum")
"""In pairs."""
FACTS = {"graph", "reduces", "alone"}


@pytest.fixture(autouse=True)
def nccl(device: Device) -> None:
    if not has_package("nccl.bindings"):
        pytest.skip("nccl4py is not installed")


@pytest.fixture
def two_gpus(device: Device) -> None:
    if check(device.driver, "cuDeviceGetCount", device.driver.cuDeviceGetCount()) < 2:
        pytest.skip("this needs two GPUs")


class Started:
    """Ranks of tests/gpu/ranks.py, which may run beside others: two on two GPUs, one by itself on
    the second of them."""

    def __init__(self, ranks: int, folder: Path, fault: str, *opts: str) -> None:
        gpus = (os.environ.get("CUDA_VISIBLE_DEVICES") or "0,1").split(",")[:2]
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(ranks), sys.executable, "-m", "tests.gpu.ranks",
             str(folder), fault, *opts], stderr=subprocess.PIPE, text=True, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
                 "CUDA_VISIBLE_DEVICES": ",".join(gpus[-ranks:])})

    def ended(self) -> tuple[int, list[str]]:
        """Status, and what was said."""
        try:
            _, messages = self._process.communicate(timeout=220)
        finally:
            self._process.kill()
        print(messages)
        return self._process.returncode, [line for line in messages.splitlines()
                                          if line.startswith("rawnn: ")]


def results(folder: Path, *opts: str, numbers: tuple[int, ...] = (2,)
            ) -> list[list[list[dict[str, Any]]]]:
    """Of so many ranks, which run beside each other, and of each set of toggles what every rank has
    written."""
    begun = []
    for ranks in numbers:
        (folder / str(ranks)).mkdir()
        begun.append(Started(ranks, folder / str(ranks), "none", *opts))
    assert [each.ended() for each in begun] == [(0, [])] * len(begun)
    return [[[dict(np.load(folder / str(ranks) / f"{number}.{rank}.npz")) for rank in range(ranks)]
             for number in range(len(opts))] for ranks in numbers]


def same(found: dict[str, Any], wanted: dict[str, Any], tolerance: float, what: str) -> None:
    for name, array in wanted.items():
        if name not in FACTS:
            np.testing.assert_allclose(found[name], array, rtol=tolerance, atol=tolerance,
                                       err_msg=f"{name} with {what}")


@pytest.mark.parametrize(("opts", "types"), [(OPTS, ()), (LOW, ("bfloat16", "float32"))])
def test_two_ranks_equal_one_and_each_other(two_gpus: None, tmp_path: Path, opts: tuple[str, ...],
                                            types: tuple[str, ...]) -> None:
    together, alone = results(tmp_path, *opts, numbers=(2, 1))
    for opt, (first, second), (one,) in zip(opts, together, alone, strict=True):
        assert first["reduces"].item()
        assert bool(first["graph"].item()) == ("graphs" in opt or opt == "best")
        assert first["alone"].item() == (opt == "best")
        for name in first:
            np.testing.assert_array_equal(first[name], second[name], err_msg=f"{name}, {opt}")
        same(first, one, of_run(types), opt)


def test_runs_of_two_ranks_are_the_same_bits(two_gpus: None, tmp_path: Path) -> None:
    """From run to run, and whether each makes the whole update or that of its rows, which adds what
    the other has sent: with every optimizer."""
    found, = results(tmp_path, *SAME)
    for one, other, (first, _), (again, second) in zip(SAME[::2], SAME[1::2], found[::2],
                                                       found[1::2], strict=True):
        for name in first.keys() - FACTS:
            np.testing.assert_array_equal(first[name], again[name], err_msg=f"{name}, {other}")
            np.testing.assert_array_equal(first[name], second[name], err_msg=f"{name}, {one}")


@pytest.mark.parametrize(("fault", "message", "opt"), [
    ("killed", "ended without a word: it was last heard of training epoch", STREAM),
    ("killed", "ended without a word: it was last heard of training epoch", GRAPH),
    ("raises", "the disk is full", GRAPH), ("nan", "the loss became nan", STREAM),
])
def test_a_fault_of_one_rank_ends_both(two_gpus: None, tmp_path: Path, fault: str,
                                                   message: str, opt: str) -> None:
    status, lines = Started(2, tmp_path, fault, opt).ended()
    assert status
    errors = [line for line in lines if line.startswith("rawnn: error: ")]
    assert len(errors) == 1, lines
    assert message in errors[0]
    assert "rank 1" in errors[0] or fault == "nan"
    assert not any("did not end within" in line for line in lines)


def test_a_rank_that_never_comes_is_named(device: Device) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rawnn", "--device", "gpu", "--dataset", "synthetic"], timeout=200,
        capture_output=True, text=True, cwd=ROOT, env={
            **os.environ, "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
            "RAWNN_JOIN_SECONDS": "3"})
    assert done.returncode
    errors = [line for line in done.stderr.splitlines() if "error: " in line]
    assert len(errors) == 1, done.stderr
    assert "rank 1" in errors[0]


def test_one_gpu_makes_a_communicator_of_itself(device: Device) -> None:
    """The calls of NCCL's bindings, in a stream and in a graph: what one GPU can show."""
    api = device.backend.nccl()
    context = NcclContext(api, Waiting(1).of(0))
    block, placed = device.memory.arena([("g", 16), ("h", 8)], "a test")
    graph = Graph(device.driver, device.context)
    try:
        device.to_device(placed["g"], np.array([1, 2, 3, 4], np.float32), "g")
        device.to_device(placed["h"], np.array([5, 6], np.int32), "h")
        halved = context.all_reduce("halved", [("float32", 4)], 0.5)
        largest = context.all_reduce("largest", [("int32", 2)], 1.0, largest=True)
        stream = int(device.stream.handle)
        halved.run(stream, placed["g"])
        after = graph.capture([], device.stream, lambda: halved.run(stream, placed["g"]), "halved")
        graph.capture(after, device.stream, lambda: largest.run(stream, placed["h"]), "largest")
        executable = graph.instantiate("two reductions")
        executable.launch(device.stream)
        found, other = np.zeros(4, np.float32), np.zeros(2, np.int32)
        device.to_host(found, placed["g"], "g")
        device.to_host(other, placed["h"], "h")
        executable.close()
        assert found.tolist() == [0.25, 0.5, 0.75, 1.0]
        assert other.tolist() == [5, 6]
        result = api.ncclAllReduce(0, 0, 4, 99, 0, context.communicator, stream)
        with pytest.raises(CallFailed, match=r"failed with ncclInvalidArgument \[4\]"):
            check(api, "ncclAllReduce", result)
    finally:
        graph.close()
        context.close()
        device.memory.free(block)
