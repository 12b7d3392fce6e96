"""Faults of one rank on real GPUs, at moments that nobody chose."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest

from rawnn.cuda.backend import has_package
from rawnn.cuda.device import Device
from rawnn.cuda.errors import check
from rawnn.engine.checkpoint import listed, read
from tests.distributed.runs import free_port
from tests.tolerances import of_run

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]

ROOT = Path(__file__).resolve().parents[2]
TRAIN = ("--device", "gpu", "--dataset", "synthetic", "--layers", "784-512-10", "--batch", "256")
MOMENTS = 6


@pytest.fixture
def gpus(device: Device) -> int:
    if not has_package("nccl.bindings"):
        pytest.skip("nccl4py is not installed")
    return int(check(device.driver, "cuDeviceGetCount", device.driver.cuDeviceGetCount()))


@contextmanager
def started(ranks: int, words: Sequence[str], port: int = 0,
            of: dict[int, dict[str, str]] | None = None) -> Iterator[list[subprocess.Popen[str]]]:
    """So many ranks, each with its own variables beside what a launcher sets."""
    port = port or free_port()
    with ExitStack() as closing:
        found = []
        for rank in range(ranks):
            found.append(subprocess.Popen(
                [sys.executable, "-m", "rawnn", *TRAIN, *words], cwd=ROOT, text=True,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={
                    **os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
                    "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank),
                    "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
                    **(of or {}).get(rank, {})}))
            closing.callback(found[-1].kill)
        yield found


def ended(processes: Sequence[subprocess.Popen[str]],
          seconds: float = 120.0) -> tuple[list[int], list[str]]:
    """Statuses, and the errors that were printed. All that was printed stands in the report of a
    test that fails."""
    until = monotonic() + seconds
    errors = [each.communicate(timeout=max(until - monotonic(), 0.1))[1] for each in processes]
    print(*(f"status {each.returncode}: {text}" for each, text in
            zip(processes, errors, strict=True)), sep="\n")
    return [each.returncode for each in processes], [
        line for text in errors for line in text.splitlines() if line.startswith("rawnn: error: ")]


def trained(ranks: int, *words: str) -> list[float]:
    """The training losses of a run that ends by itself."""
    path = Path(words[-1]).with_suffix(f".{ranks}.json")
    with started(ranks, (*words[:-1], "--json", str(path))) as processes:
        assert ended(processes) == ([0] * ranks, [])
    report: dict[str, Any] = json.loads(path.read_text())
    return [each["train_loss"] for each in report["history"]]


@pytest.mark.parametrize("moment", range(MOMENTS))
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_is_killed_ends_all_and_leaves_a_whole_checkpoint(
        gpus: int, ranks: int, moment: int, tmp_path: Path) -> None:
    if gpus < ranks:
        pytest.skip(f"this needs {ranks} GPUs")
    folder, chance = tmp_path / "run", random.Random(100 * ranks + moment)
    with started(ranks, ("--epochs", "100000", "--save", str(folder))) as processes:
        until = monotonic() + 90
        while not (folder.is_dir() and listed(folder)) and monotonic() < until:
            sleep(0.02)
        assert listed(folder), "no epoch ended"
        sleep(chance.uniform(0, 3))
        victim = chance.randrange(ranks)
        processes[victim].send_signal(signal.SIGKILL)
        statuses, errors = ended(processes, 60.0)
    assert statuses[victim] == -signal.SIGKILL
    assert all(status > 0 for rank, status in enumerate(statuses) if rank != victim)
    assert len(errors) == 1, errors
    assert f"rank {victim} (" in errors[0]
    assert all(read(path).epoch == epoch for epoch, path in listed(folder))
    if moment:
        return
    last = max(epoch for epoch, _ in listed(folder))
    losses = []
    for n in (1, 2, 4):
        if n <= gpus:  # a resumed run goes on saving in its folder
            copy = shutil.copytree(folder, tmp_path / str(n))
            losses.append(trained(n, "--epochs", str(last + 2), "--resume", str(copy),
                                  str(tmp_path / "resumed")))
    for each in losses[1:]:
        np.testing.assert_allclose(each[-2:], losses[0][-2:], rtol=of_run(()))


def test_a_gpu_that_one_rank_does_not_see(gpus: int) -> None:
    if gpus < 2:
        pytest.skip("this needs two GPUs")
    with started(2, ("--epochs", "2"), of={1: {"CUDA_VISIBLE_DEVICES": ""}}) as processes:
        statuses, errors = ended(processes)
    assert all(statuses)
    assert len(errors) == 1, errors
    assert "rank 1" in errors[0] or "GPU" in errors[0]


def test_a_rank_with_another_nccl(gpus: int, tmp_path: Path) -> None:
    """Its metadata are what a wheel of that version brings."""
    if gpus < 2:
        pytest.skip("this needs two GPUs")
    for name in ("nvidia_nccl_cu12", "nvidia_nccl_cu13"):
        other = tmp_path / f"{name}-9.9.9.dist-info"
        other.mkdir()
        (other / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 9.9.9\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT), *sys.path])
    with started(2, ("--epochs", "2"), of={1: {"PYTHONPATH": path}}) as processes:
        statuses, errors = ended(processes)
    assert all(statuses)
    error, = errors
    assert "rank 1 (" in error
    assert "nvidia-nccl-cu" in error
    assert "9.9.9" in error


def test_a_port_that_is_taken(gpus: int) -> None:
    if gpus < 2:
        pytest.skip("this needs two GPUs")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with started(2, ("--epochs", "2"), port,
                     {rank: {"RAWNN_JOIN_SECONDS": "3"} for rank in range(2)}) as processes:
            statuses, errors = ended(processes, 30.0)
    assert all(statuses)
    assert any(f"rank 0 cannot listen at 127.0.0.1:{port}" in line for line in errors)
