"""Kernels of the kind that users bring, and the numbered ones of the examples, on a GPU; and a
user's kernel inside the training step and in a graph."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rawnn
from rawnn.bench.attempt import check_ops, time_ops, training_plan
from rawnn.cuda.device import Device
from rawnn.engine.config import Config
from rawnn.engine.machine import machine_of
from rawnn.lab.kernel_files import kernel_of
from rawnn.lab.plug import load
from rawnn.opts import TOGGLES
from rawnn.ptx.user_kernels import USER_KERNELS, unregister
from tests.engine import make_work, random_dataset, run_on
from tests.lab.test_examples import LAB, SERIES
from tests.lab.test_third_party import BROUGHT

pytestmark = pytest.mark.gpu

LAYERS = (29, 18, 12, 7)


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    for word in list(USER_KERNELS):
        unregister(word)


NEEDS = {"4_tensor_cores": (8, 0), "5_copy_engine": (9, 0), "6_pipeline": (9, 0),
         "7_persistent": (9, 0), "8_clusters": (9, 0)}
"""The compute capability that a step's instructions begin with; those of 9.0 are of 9.0 alone."""


@pytest.mark.parametrize("path", [*BROUGHT, *SERIES], ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_it_is_right(device: Device, path: Path) -> None:
    least = NEEDS.get(path.stem, (0, 0))
    if device.capability < least or (least == (9, 0) and device.capability != least):
        pytest.skip(f"needs compute capability {least[0]}.{least[1]}")
    kernel, work = kernel_of(path, device=device)
    rawnn.check(kernel, work).require()


@pytest.mark.parametrize("opt", [
    "none", "preload,streams", "preload,graphs=epoch,streams,pdl", "preload,graphs=while,pdl",
    "preload,graphs=3,bf16,mma,fuse,pdl", "preload,fp16,fuse"])
def test_a_kernel_in_the_training_step_trains_the_same(device: Device, opt: str) -> None:
    machine = machine_of(device)
    for word in opt.split(","):
        if word != "none" and (reason := TOGGLES[word.partition("=")[0]].needs(machine)):
            pytest.skip(f"{word} {reason}")
    data = random_dataset()
    mine = run_on(device, make_work(f"{opt},bias_relu={LAB / 'bias_relu.cu'}", LAYERS, data,
                                    machine=machine))
    ours = run_on(device, make_work(opt, LAYERS, data, machine=machine))
    low = "bf16" in opt or "fp16" in opt
    np.testing.assert_allclose(mine.loss, ours.loss, rtol=2e-2 if low else 1e-5)


def test_each_op_is_checked_and_timed(device: Device) -> None:
    own = load(LAB / "bias_relu.cu")
    plan = training_plan(Config(layers=LAYERS, batch=8), f"preload,arena,{own.word}",
                         random_dataset(), machine_of(device))
    found = check_ops(device, own, plan)
    assert len(found) == 2
    assert all(each.right for each in found), found
    assert all(each.user_us > 0 and each.rawnn_us > 0 for each in time_ops(device, own, plan))


SOURCE = """
#include <cuda_device_runtime_api.h>
__global__ void add_to(float* y, const float* x, float a, int n) {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
  if (threadIdx.x < n) y[threadIdx.x] += a * x[threadIdx.x];
}
__global__ void count_down(int* flag) { flag[0] -= 1; }
"""
N = 40


def kernels(device: Device) -> tuple[Any, Any, Any, Any]:
    add, count = (rawnn.Kernel(SOURCE, name, device=device) for name in ("add_to", "count_down"))
    x, y = (rawnn.array(np.full(N, value), np.float32, device=device) for value in (1, 0))
    return add[1, 64], count[1, 1], x, y


def test_a_graph_runs_what_was_recorded_and_can_be_updated(device: Device) -> None:
    add, _, x, y = kernels(device)
    out = np.zeros(N, np.float32)
    with rawnn.Graph() as g:
        g.fill(y, 0)
        node = add(y, x, 2.0, N)
        overlapped = add.using(programmatic=True) if device.capability >= (9, 0) else add
        overlapped(y, x, 1.0, N)
        g.copy(out, y)
    g.check().launch()
    device.stream.synchronize()
    assert (out == 3).all()
    g.update(node, y, x, 10.0, N)
    g.launch()
    device.stream.synchronize()
    assert (out == 11).all()
    g.close()


@pytest.mark.parametrize("rounds", [0, 1, 5])
def test_loops_and_branches_of_a_graph(device: Device, rounds: int) -> None:
    add, count, x, y = kernels(device)
    times, once = (rawnn.array([n], np.int32, device=device) for n in (rounds, 1))
    with rawnn.Graph() as g, g.while_(times):
        with g.if_(once):
            add(y, x, 1.0, N)
        count(times)
    g.check().launch()
    assert (y.numpy() == rounds).all()
