"""What launches know of a GPU: from the simulated driver, by name, and what plans make of it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from rawnn.common.errors import ConfigError
from rawnn.common.target import (
    HOST,
    KNOWN,
    NAMED,
    Target,
    features_of,
    gpu_named,
    is_called,
    known,
)
from rawnn.cuda.device import Device
from rawnn.engine.machine import machine_of
from rawnn.model.layers import Network
from rawnn.opts import select
from rawnn.opts.registry import Machine
from rawnn.ptx.gemm.skinny import choose_nt
from rawnn.ptx.gemm.tiled import choose
from rawnn.ptx.gemm.tiles import GemmShape
from rawnn.ptx.kernels import kernel_for
from rawnn.sim import Simulation
from tests.engine import CAPABLE, make_work, random_dataset, step_plan


@pytest.mark.parametrize("capability", KNOWN)
def test_a_simulated_gpu_is_the_known_one_of_its_architecture(capability: tuple[int, int]) -> None:
    device = Device(Simulation(compute_capability=capability).backend())
    found, named = device.target(), KNOWN[capability]
    assert found is device.target()
    assert found == machine_of(device).target
    same = replace(found, name=named.name, at_once=named.at_once, clock=named.clock)
    assert same == named
    assert device.attribute("CLUSTER_LAUNCH") == named.has("clusters")
    sizes = {1, 2, 4, 8, 16} if capability >= (9, 0) else {1}
    assert set(found.at_once) == sizes
    assert found.at_once[1] == found.multiprocessors
    assert all(blocks % size == 0 for size, blocks in found.at_once.items())
    assert found.largest_cluster == max(sizes)
    device.close()
    device.driver.simulation.assert_clean()


def test_features() -> None:
    assert not features_of((7, 5))
    assert features_of((8, 0)) == {"asynchronous copies", "bfloat16", "tf32"}
    assert "wgmma" in features_of((9, 0))
    assert features_of((10, 0)) == features_of((9, 0)) - {"wgmma"}
    hopper = known((9, 0))
    assert hopper.has("clusters", "wgmma")
    assert hopper.lacks("wgmma") == ""
    assert known((8, 9)).lacks("tf32", "clusters", "wgmma") == \
        "needs clusters and wgmma, which L40 has not"
    with pytest.raises(KeyError, match="no GPU has a feature 'warp drive'"):
        hopper.has("clusters", "warp drive")
    without = hopper.without("clusters")
    assert (without.largest_cluster, without.has("wgmma")) == (1, True)
    assert not without.has("clusters")


def test_the_nearest_known_gpu_and_the_host() -> None:
    assert known((8, 7)).name == "A40"
    assert known((8, 7)).capability == (8, 7)
    assert known((12, 1)).name == "RTX PRO 6000"
    assert known((7, 0)) is HOST
    assert not HOST.gpu
    assert HOST.largest_cluster == 1
    assert Machine("there is none").target is HOST


def test_plans_carry_the_target_of_their_machine() -> None:
    network = Network((784, 256, 10))
    for capability, wanted in (((9, 0), "H200"), ((8, 0), "A100")):
        machine = replace(CAPABLE, compute_capability=capability)
        plan, _ = select("none,preload,bf16,mma,fuse", network, 4, machine).apply(
            step_plan(network, 32, 128))
        assert plan.target.name == wanted
        assert plan.target.has("clusters") == (capability == (9, 0))
        assert bool(plan.find(kind="softmax_head")) == (capability == (9, 0)) or \
            plan.find(kind="narrow_inner")
    work = make_work("preload", (29, 7), random_dataset())
    assert {p.target.name for p in (work.train, work.start, work.epoch_begin,
                                    work.epoch_end)} == {"H200"}
    host = select("none,preload", network, 4, Machine("none"), lenient=True)
    assert host.apply(step_plan(network, 32, 128))[0].target is HOST


def test_mma_sync_leaves_unused_what_only_hopper_has() -> None:
    network = Network((784, 4096, 4096, 10))
    plans = {value: select(f"none,preload,bf16,mma={value},fuse", network, 4, CAPABLE).apply(
        step_plan(network, 32, 128))[0] for value in ("auto", "sync")}
    assert {op.impl for op in plans["sync"].ops} & {"skinny", "wgmma"} == set()
    assert plans["auto"].find(impl="skinny")
    assert plans["auto"].find(kind="softmax_head")
    assert not plans["sync"].find(kind="softmax_head")


def test_launches_follow_the_gpus_size() -> None:
    product = GemmShape("nt", 512, 512, 512, 4)
    assert choose(product, known((7, 5))).bm == 64  # 64 tiles fill the 40 of a T4
    assert choose(product, known((9, 0))).bm == 32
    small = replace(known((9, 0)), multiprocessors=32, at_once={1: 32, 2: 32, 4: 24, 8: 16})
    assert choose_nt(small, 32, 1024, 4096).splits < choose_nt(known((9, 0)), 32, 1024, 4096).splits
    tight = replace(known((9, 0)), shared_per_block=99 << 10)
    assert choose_nt(tight, 32, 1024, 4096).shared <= 99 << 10


def test_a_plan_of_no_gpu_is_not_launched() -> None:
    plan, _ = select("none,preload,tiled", Network((784, 10)), 4, CAPABLE).apply(
        step_plan(Network((784, 10)), 32, 128))
    (product,) = plan.find(kind="matmul", name="fc1.forward")
    assert kernel_for(product).expression(product, plan).startswith("gemm_nt<Tiled,")
    with pytest.raises(ConfigError, match="this one is for the host"):
        kernel_for(product).expression(product, replace(plan, target=HOST))


def test_targets_know_of_no_driver() -> None:
    code = ("import sys, rawnn.common.target;"
            "print([m for m in sys.modules if m.startswith('rawnn.')])")
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                            check=True).stdout
    assert not {"rawnn.cuda", "rawnn.ptx", "rawnn.plan"} & set(eval(loaded))


@pytest.mark.parametrize("target", NAMED, ids=lambda target: target.name)
def test_a_gpu_is_found_by_its_name_however_it_is_written(target: Target) -> None:
    """Names differ in digits alone, so that these count."""
    name = target.name
    for written in (name, name.lower(), name.upper(), name.replace(" ", "-"),
                    name.replace(" ", ""), f"NVIDIA {name}"):
        assert gpu_named(written) is target
        assert is_called(written, name)
    assert [other.name for other in NAMED if is_called(name, other.name)] == [name]
