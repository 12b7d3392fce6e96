"""Variants of launches: what they are, what they change, and the file where they are remembered."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rawnn.cuda.device import Device, DeviceInfo
from rawnn.cuda.launch import KernelLaunch
from rawnn.engine import launch_choices as choices
from rawnn.engine.launch_choices import (
    FEWER_SLICES,
    TunedLaunch,
    chosen,
    key_of,
    variants,
    with_choices,
)
from rawnn.model.layers import Network
from rawnn.opts import select
from rawnn.plan.plan import Plan
from rawnn.ptx.kernel_registry import GeometryVariants, Key, elements
from rawnn.ptx.kernels import KERNELS, kernel_for
from rawnn.sim import SimulationError
from tests.engine import CAPABLE, dataset_for, make_work, run_on, step_plan

INFO = DeviceInfo("NVIDIA H200", 0, (9, 0), 132, 1, "13.0", "580.1", "13.0")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAWNN_CACHE", str(tmp_path))
    return tmp_path


def plan_of(opt: str, layers: tuple[int, ...] = (784, 320, 320, 10), batch: int = 64) -> Plan:
    plan, _ = select(f"none,{opt}", Network(layers), 4, CAPABLE).apply(
        step_plan(Network(layers), batch, 4 * batch))
    return plan


def test_ops_that_launch_alike_share_a_key() -> None:
    plan = plan_of("preload,fuse,mma,bf16", (784, 320, 320, 320, 10))
    keys = {op.name: key_of(op, plan) for op in plan.ops}
    assert keys["fc2.forward"] == keys["fc3.forward"] != keys["fc1.forward"]
    assert "matmul/mma nt" in keys["fc2.forward"]
    assert "a:bfloat16[64x320]" in keys["fc2.forward"]
    float32 = plan_of("preload,fuse,mma,tf32", (784, 320, 320, 320, 10))
    assert not set(keys.values()) & {key_of(op, float32) for op in float32.ops
                                     if op.kind == "matmul"}


@pytest.mark.parametrize("opt", ["preload", "preload,fuse", "preload,tiled,fuse",
                                 "preload,mma,bf16,fuse", "preload,mma=sync,tf32", "preload,cudnn",
                                 "preload,mma,fp16", "preload,mma,fp8,fuse"])
def test_variants_differ_from_the_rule_and_from_each_other(opt: str) -> None:
    plan = plan_of(opt)
    some = 0
    for op in plan.ops:
        if op.impl in ("cudnn",):
            assert variants(op, plan) == []
            continue
        launches = {choices._launch(op, plan)}
        for changes in variants(op, plan):
            launch = choices._launch(choices._changed(op, changes), plan)
            assert launch not in launches
            launches.add(launch)
            some += 1
    assert some > 10


def test_every_family_of_products_has_variants() -> None:
    for key, entry in KERNELS.items():
        if key.kind in ("matmul", "weight_update") \
                and key.impl in ("naive", "tiled", "mma", "wgmma"):
            assert entry.variants({"m": 64, "n": 64, "rows": 64, "cols": 64}) > 3, key
    assert isinstance(elements(), GeometryVariants)
    assert KERNELS[Key("tick", "naive")].variants({}) == 1


def test_the_library_has_further_answers_and_fewer_slices() -> None:
    plan = plan_of("preload,cublas,fuse", (784, 10))
    product = plan.find(kind="matmul_slices")[0]
    found = variants(product, plan)
    assert {"choice": 1} in found
    assert {"choice": 0, "slices": 7} in found
    assert all(784 % (4 * c["slices"]) == 0 for c in found if "slices" in c)


@pytest.mark.parametrize("features", [784, 512, 640])
def test_numbers_of_slices_that_are_tried_are_fewer_than_the_rule_has(features: int) -> None:
    plan = plan_of("preload,cublas,fuse", (features, 10))
    for product in plan.find(kind="matmul_slices"):
        now, length = product.attributes["slices"], product.attributes["k"]
        tried = [c["slices"] for c in variants(product, plan) if "slices" in c]
        assert tried == [n for n in FEWER_SLICES if n < now and length % (4 * n) == 0]
        assert now in FEWER_SLICES or features != 512


def test_the_op_that_adds_slices_up_is_changed_too() -> None:
    plan = plan_of("preload,cublas,fuse", (784, 10))
    product = plan.find(kind="matmul_slices")[0]
    total = next(op for op in plan.ops if op.kind == "sum_slices")
    wanted = {key_of(product, plan): {"choice": 0, "slices": 7}, key_of(total, plan): {"choice": 1}}
    changed = with_choices(plan, wanted)
    assert changed.find(kind="matmul_slices")[0].attributes["slices"] == 7
    summing = next(op for op in changed.ops if op.kind == "sum_slices")
    assert (summing.attributes["slices"], summing.attributes["choice"]) == (7, 1)
    assert set(chosen(changed)) == {product.name, total.name}
    assert chosen(plan) == {}
    assert with_choices(plan, {}) == plan


@pytest.mark.parametrize("opt", ["arena", "preload,fuse,graphs=epoch", "preload,tiled,fuse",
                                 "preload,mma,bf16,fuse,graphs=2", "preload,cublas,fuse",
                                 "preload,mma=sync,tf32,streams,pdl,graphs=epoch"])
@pytest.mark.parametrize("number", [0, 1, -1])
def test_the_simulated_device_takes_every_variant(device: Device, opt: str, number: int) -> None:
    network = Network((48, 288, 7))  # too wide to be one of `fuse`'s narrow networks
    work = make_work(opt, network.layers, dataset_for(network, 32, 8))
    plan = work.train
    wanted = {key_of(op, plan): found[min(number, len(found) - 1)] for op in plan.ops
              if (found := [v for v in variants(op, plan) if v.get("choice", 0) < 1
                            or op.impl != "cublas"])}
    assert wanted
    usual = run_on(device, work)
    other = run_on(device, choices.applied(work, wanted))
    np.testing.assert_allclose(usual.loss, other.loss, rtol=1e-5)  # in other slices, other sums


def test_the_simulated_device_takes_nothing_else(device: Device,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network((48, 7))
    work = make_work("preload,arena", network.layers, dataset_for(network, 32, 8))
    impl = kernel_for(work.train.find(kind="matmul")[0])
    assert isinstance(impl.geometry, GeometryVariants)
    undeclared = GeometryVariants(((lambda s: ((1, 2, 1), (48, 4, 1))),))
    made = KernelLaunch.__init__

    def launch(self: KernelLaunch, driver: Any, stream: Any, function: Any, label: str, grid: Any,
               block: Any, *more: Any, **named: Any) -> None:
        if label.startswith("fc1.forward"):
            grid, block = undeclared({})
        made(self, driver, stream, function, label, grid, block, *more, **named)

    monkeypatch.setattr(KernelLaunch, "__init__", launch)
    with pytest.raises(SimulationError, match="its work asks for grid"):
        run_on(device, work)


def test_choices_are_kept_by_gpu_driver_and_sources(cache: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    path = choices.file_of(INFO)
    assert path.parent == cache / "choices"
    assert path.name.startswith("nvidia-h200-580-1-")
    kept = {"a": TunedLaunch({"choice": 2}, 3.0, 2.5), "b": TunedLaunch({}, 3.0, 3.0)}
    choices.write(path, INFO, kept, messages.append)
    assert choices.read(path, messages.append) == kept
    assert choices.remembered() == {path: kept}
    nothing = path.with_name("none.json")
    choices.write(nothing, INFO, {}, messages.append)
    path.with_name("a-broken-one.json").write_text("{")
    assert choices.remembered() == {path: kept, nothing: {}}
    assert choices.file_of(dataclasses.replace(INFO, driver="590")) != path
    monkeypatch.setattr(choices, "sources", lambda: "other")
    assert choices.file_of(INFO) != path
    assert not messages


def test_a_broken_file_is_one_sentence_and_a_new_beginning() -> None:
    messages: list[str] = []
    path = choices.file_of(INFO)
    path.parent.mkdir()
    for content in ("", "{", '{"gpu": 3}'):
        path.write_text(content)
        assert choices.read(path, messages.append) == {}
    assert len(messages) == 3
    assert all("measured again" in sentence and "\n" not in sentence for sentence in messages)
    assert choices.remembered() == {}


def test_a_place_that_cannot_be_written_is_said(cache: Path) -> None:
    messages: list[str] = []
    (cache / "choices").write_text("a file, where a directory should be")
    choices.write(choices.file_of(INFO), INFO, {}, messages.append)
    assert "cannot be stored" in messages[0]
    (cache / "choices").unlink()
    choices.file_of(INFO).mkdir(parents=True)  # a directory, where a file should be
    choices.write(choices.file_of(INFO), INFO, {}, messages.append)
    assert "cannot be stored" in messages[1]
