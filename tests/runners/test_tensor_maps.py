"""Kernels that take tensor maps of their operands, in every way of running: whatever gives an
operand another address, its map is one of that address. The plain products stand for such kernels;
the simulated device compares every map with its operand at every launch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rawnn.common.cuda_text import CudaText
from rawnn.common.errors import ConfigError
from rawnn.cuda.compiling.signature import KernelSignature, parse_kernels
from rawnn.cuda.device import Device
from rawnn.cuda.tensormap import NO_MAP
from rawnn.engine.runners.arguments import kernel_arguments, kernel_maps
from rawnn.model.layers import Network
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from rawnn.ptx import source_path
from rawnn.ptx.kernel_registry import Key
from rawnn.ptx.kernels import KERNELS
from rawnn.sim import Simulation, SimulationError
from tests.engine import make_work, random_dataset, run_on, step_plan

LAYERS = (29, 16, 7)
DATA = random_dataset(29, 7, 32, 8)
PRODUCTS = {"nt": ("a", "b", "saved", "c"), "nn": ("a", "b", "saved", "c"), "tn": ("a", "b", "c")}
BOXES = {"a": 8, "b": 16, "c": 256, "saved": 1}


def mapped_source() -> str:
    """matmul.cu, whose kernels take maps besides."""
    text = source_path("gemm/matmul.cu").read_text()
    for layout, operands in PRODUCTS.items():
        head, name, rest = text.partition(f"matmul_{layout}(")
        parameters, _, body = rest.partition(")")
        maps = "".join(f", const __grid_constant__ TensorMap {o}_map" for o in operands)
        text = f"{head}{name}{parameters}{maps}){body}"
    return text


SOURCE = mapped_source()
SIGNATURES = parse_kernels(SOURCE)


@pytest.fixture
def boxes(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Boxes of the products' operands, which the table gives until the test is over."""
    given = dict(BOXES)
    for layout in PRODUCTS:
        key = Key("matmul", "naive", layout)
        entry = replace(KERNELS[key], boxes=lambda s: {o: min(int(s["m"]), n)
                                                       for o, n in given.items()})
        monkeypatch.setitem(KERNELS, key, entry)
    return given


def opened(seed: int = 0) -> Device:
    device = Device(Simulation(seed).backend())
    device._sources["gemm/matmul.cu"] = CudaText(SOURCE), SIGNATURES
    return device


@pytest.mark.parametrize("opt", [
    "none", "pool", "async", "arena", "streams", "arena,streams", "preload,streams,pool",
    "preload,nosync,arena", "preload,fuse,arena", "graphs=step", "preload,graphs=epoch",
    "preload,graphs=3", "preload,graphs=while", "preload,bf16,graphs=epoch,streams", "preload,fp16",
    "preload,arena,nosync,pdl",
])
def test_maps_follow_their_operands(opt: str, boxes: dict[str, int]) -> None:
    device = opened()
    work = make_work(opt, LAYERS, DATA)
    assert any(op.kind == "matmul" and op.impl == "naive" for op in work.train.ops)
    run_on(device, work)
    assert device.driver.simulation.faults.count("cuTensorMapEncodeTiled") > 10
    device.close()
    device.driver.simulation.assert_clean()


def test_steps_that_get_the_same_memory_again_encode_nothing(boxes: dict[str, int]) -> None:
    """Nothing is made per launch: only a tensor that lies elsewhere has another map."""
    counts = []
    for epochs in (2, 5):
        device = opened()
        run_on(device, make_work("pool", LAYERS, DATA), epochs)
        counts.append(device.driver.simulation.faults.count("cuTensorMapEncodeTiled"))
        device.close()
    assert counts[0] == counts[1]


def test_a_map_that_stays_behind_is_found(boxes: dict[str, int],
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    from rawnn.cuda import launch

    def set_alone(self: launch.Arguments, name: str, value: Any) -> None:
        self._pack(name, value)

    monkeypatch.setattr(launch.KernelLaunch, "rebind",
                        lambda self, name, value: set_alone(self.arguments, name, value))
    with pytest.raises(SimulationError, match=r"the map 'a_map' .*cuTensorMapEncodeTiled"):
        run_on(opened(), make_work("pool", LAYERS, DATA))


# -- what the table says --------------------------------------------------------------------------
def product() -> tuple[Op, Plan]:
    """The first layer's."""
    plan = step_plan(Network(LAYERS), 8, 32)
    return plan.find(kind="matmul")[0], plan


def signature(op: Op) -> KernelSignature:
    return SIGNATURES[f"matmul_{op.attributes['layout']}"]


def test_maps_are_of_what_the_plan_says(boxes: dict[str, int]) -> None:
    op, plan = product()
    addresses = {name: 256 * (i + 1) for i, name in enumerate(plan.tensors)}
    values = kernel_arguments(op, plan, signature(op), addresses)
    assert {n for n, v in values.items() if isinstance(v, bytes)} == {"saved_map"}
    assert values["saved_map"] == NO_MAP
    maps = kernel_maps(op, plan, signature(op), object())
    assert set(maps) == {"a", "b", "c"}
    for operand, found in maps.items():
        tensor = plan[op.operands[operand]]
        assert (found.rows, found.cols) == tensor.shape
        assert (found.ld, found.dtype) == (tensor.ld, tensor.dtype)
        assert found.box_rows == min(8, BOXES[operand])
        assert found.label == f"'{operand}' ({tensor.name}) of the op '{op.name}'"


def test_a_kernel_without_maps_has_none() -> None:
    op, plan = product()
    plain = parse_kernels(source_path("gemm/matmul.cu").read_text())["matmul_nt"]
    assert kernel_maps(op, plan, plain, object()) == {}


def test_operands_that_have_no_map(boxes: dict[str, int]) -> None:
    op, plan = product()
    label = r"'b' \(fc1\.weight\) of the op 'fc1\.forward'"
    del boxes["b"]
    with pytest.raises(ConfigError, match=f"{label}: the table of kernels gives matmul_nt no box"):
        kernel_maps(op, plan, signature(op), object())
    boxes["b"] = 0
    with pytest.raises(ConfigError, match=f"{label} has .*boxes have 1 to 256 rows, not 0"):
        kernel_maps(op, plan, signature(op), object())
    boxes["b"] = 8
    weights = plan[op.operands["b"]]
    for sentence, tensor in {
        "it is a vector": replace(weights, shape=(29,)),
        "rows are 116 bytes apart": replace(weights, packed=True),
        "its elements are float8_e4m3": replace(weights, dtype="float8_e4m3"),
    }.items():
        with pytest.raises(ConfigError, match=f"{label} has no tensor map: .*{sentence}"):
            kernel_maps(op, plan.with_tensors(tensor), signature(op), object())
