"""Kernels of whole steps on a GPU, against the host and against themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rawnn.common import random
from rawnn.cuda.device import Device
from rawnn.data import Dataset
from rawnn.engine.runners.gpu import GpuRunner
from rawnn.engine.runners.host import HostRunner
from rawnn.model.layers import Network
from rawnn.model.optimizers import Optimizer
from rawnn.opts.registry import TOGGLES, Machine
from rawnn.plan.ops.epoch import MAX_STEPS, count_after
from tests.engine import dataset_for, make_work, run_on, same_parameters, trained
from tests.persistent import errors
from tests.tolerances import of_run

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def capable(machine: Machine) -> None:
    if reason := TOGGLES["persistent"].needs(machine):
        pytest.skip(f"persistent {reason}")


SMOOTH: dict[str, Any] = {"network_options": {"activation": "tanh"}}
"""Without a kink. An example that rounding brings to the other side of one moves weights by more
than the tolerance: in NumPy, too, once its weights are changed by a millionth."""

RECIPES: tuple[dict[str, Any], ...] = (
    {}, {"optimizer": Optimizer("adam", 1e-3), "shuffle": True, "partial": True, **SMOOTH},
    {"network_options": {"loss": "mse", "activation": "gelu"}, "schedule": "cosine"},
    {"network_options": {"loss": "bce", "bias": False, "activation": "tanh"}},
)


def trains_as_the_host(device: Device, machine: Machine, blocks: str, layers: tuple[int, ...],
                       data: Dataset, options: dict[str, Any]) -> None:
    """In float32, and to the same bits a second time."""
    wanted = trained(HostRunner(make_work("preload", layers, data, **options), "float64"))
    work = make_work(f"persistent={blocks},graphs=epoch", layers, data, machine=machine, **options)
    found = [run_on(device, work) for _ in range(2)]
    for name, array in wanted.parameters.items():
        np.testing.assert_allclose(found[0].parameters[name], array, rtol=0,
                                   atol=4 * of_run({"float32"}))
        np.testing.assert_array_equal(found[0].parameters[name], found[1].parameters[name])
    np.testing.assert_allclose(found[0].loss, wanted.loss, rtol=1e-4)


@pytest.mark.parametrize("options", RECIPES)
@pytest.mark.parametrize("layers", [(29, 7), (29, 24, 7), (40, 18, 64, 33, 9)])
@pytest.mark.parametrize("blocks", ["auto", "1x1", "2x1", "4x2", "8x1"])
def test_it_trains_as_the_host(device: Device, machine: Machine, blocks: str,
                               layers: tuple[int, ...], options: dict[str, Any]) -> None:
    if blocks not in ("auto", "1x1") and machine.target.largest_cluster < 8:
        pytest.skip("this GPU has no clusters")
    data = dataset_for(Network(layers, **options.get("network_options", {})), 300, 23)
    trains_as_the_host(device, machine, blocks, layers, data, options)


@pytest.mark.parametrize(("layers", "batch", "numbers", "unit"), [
    ((61, 93, 391), 1888, "preload", of_run({"float32"})),
    ((61, 93, 391), 1888, "preload,tf32", 3 * 2.0**-10),
    ((93, 61, 46, 511), 2400, "preload", of_run({"float32"})),
    ((93, 61, 46, 511), 2400, "preload,bf16", of_run({"bfloat16"}))])
def test_groups_whose_buffers_share_memory_train_as_the_host(
        device: Device, machine: Machine, layers: tuple[int, ...], batch: int,
        numbers: str, unit: float) -> None:
    """Widths that need padding: rows of it must stay zero in memory that others write."""
    if machine.target.multiprocessors != 132:
        pytest.skip("another number of multiprocessors leaves other memory free")
    options: dict[str, Any] = {
        "optimizer": Optimizer("adam", 1e-3), "batch": batch, "shuffle": True,
        "network_options": {"loss": "bce", "activation": "tanh"}}
    data = dataset_for(Network(layers, loss="bce"), 3 * batch, 23)
    work = make_work(f"{numbers},persistent,graphs=epoch", layers, data, machine=machine,
                     **options)
    choices = [op.attributes["choice"] for op in work.train.ops if "choice" in op.attributes]
    assert [each.layout.schedule.is_compact for each in choices] == [True]
    assert choices[0].sharding.dp_size > 1
    of_host = numbers.removesuffix(",tf32")
    wanted = trained(HostRunner(make_work(of_host, layers, data, **options)))
    found = [run_on(device, work) for _ in range(2)]
    for name, array in wanted.parameters.items():
        np.testing.assert_allclose(found[0].parameters[name], array, rtol=0, atol=4 * unit)
        np.testing.assert_array_equal(found[0].parameters[name], found[1].parameters[name])
    np.testing.assert_allclose(found[0].loss, wanted.loss, rtol=4 * unit)


@pytest.mark.parametrize("optimizer", [Optimizer(lr=0.1), Optimizer("adam", 1e-3)],
                         ids=["SGD", "Adam"])
@pytest.mark.parametrize("blocks", ["1x1", "1x3", "2x1", "4x2", "8x1"])
@pytest.mark.parametrize(("numbers", "stored"), [("bf16", "bfloat16"), ("fp16", "float16"),
                                                 ("sr", "bfloat16")])
def test_16_bit_formats_train_as_the_host(device: Device, machine: Machine, numbers: str,
                                          stored: str, blocks: str, optimizer: Optimizer) -> None:
    if blocks not in ("1x1", "1x3") and machine.target.largest_cluster < 8:
        pytest.skip("this GPU has no clusters")
    layers = (40, 18, 64, 33, 9)
    options: dict[str, Any] = {"optimizer": optimizer, "shuffle": True, "partial": True, **SMOOTH}
    data = dataset_for(Network(layers), 300, 23)
    wanted = trained(HostRunner(make_work(f"preload,{numbers}", layers, data, **options)))
    work = make_work(f"persistent={blocks},{numbers},graphs=epoch", layers, data, machine=machine,
                     **options)
    found = [run_on(device, work) for _ in range(2)]
    for name, array in wanted.parameters.items():
        np.testing.assert_allclose(found[0].parameters[name], array, rtol=0,
                                   atol=4 * of_run({stored}))
        np.testing.assert_array_equal(found[0].parameters[name], found[1].parameters[name])
    np.testing.assert_allclose(found[0].loss, wanted.loss, rtol=4 * of_run({stored}))


@pytest.mark.parametrize(("layers", "batch", "blocks", "numbers"), [
    ((200, 256, 256, 10), 32, "32x1@stream:512:FGGF", "bf16"),
    ((200, 256, 256, 256, 10), 64, "32x1@stream4:512:FGGGF", "bf16"),
    ((784, 784, 784, 10), 32, "98x1@stream7:512:FGGF", "bf16"),
    ((784, 10), 128, "16x1:512:SE", "preload"), ((201, 7), 72, "8x1:512:SE", "preload"),
    ((784, 10), 64, "16x1:512:SE", "preload,tf32")])
def test_special_forms_of_whole_steps_train_as_the_host(
        device: Device, machine: Machine, layers: tuple[int, ...], batch: int, blocks: str,
        numbers: str) -> None:
    """Operands that stream, in clusters and not, and examples that blocks split."""
    if machine.target.multiprocessors < 128 or machine.target.largest_cluster < 8:
        pytest.skip("this GPU has too few multiprocessors, or no clusters")
    options: dict[str, Any] = {"shuffle": True, "batch": batch, **SMOOTH}
    data = dataset_for(Network(layers), 4 * batch, 23)
    of_host = numbers.removesuffix(",tf32")
    wanted = trained(HostRunner(make_work(of_host, layers, data, **options)))
    work = make_work(f"{numbers},persistent={blocks},graphs=epoch", layers, data, machine=machine,
                     **options)
    found = [run_on(device, work) for _ in range(2)]
    unit = {"bf16": of_run({"bfloat16"}), "preload": of_run({"float32"}),
            "preload,tf32": 3 * 2.0**-10}[numbers]
    for name, array in wanted.parameters.items():
        np.testing.assert_allclose(found[0].parameters[name], array, rtol=0, atol=4 * unit)
        np.testing.assert_array_equal(found[0].parameters[name], found[1].parameters[name])
    np.testing.assert_allclose(found[0].loss, wanted.loss, rtol=4 * unit)


@pytest.mark.parametrize("blocks", ["1x1", "1x3", "2x1", "4x2", "8x1"])
def test_the_loss_scale_goes_as_on_the_host(device: Device, machine: Machine, blocks: str) -> None:
    if blocks not in ("1x1", "1x3") and machine.target.largest_cluster < 8:
        pytest.skip("this GPU has no clusters")
    layers = (40, 18, 64, 33, 9)
    data = dataset_for(Network(layers), 300, 23)

    def run(runner: HostRunner | GpuRunner) -> dict[str, np.ndarray]:
        try:
            runner.load({"loss_scale": np.array([2.0**24, 0], np.float32)})
            trained(runner)
            return runner.state()
        finally:
            runner.close()

    wanted = run(HostRunner(make_work("preload,fp16", layers, data)))
    found = run(GpuRunner(device, make_work(f"persistent={blocks},fp16,graphs=epoch", layers, data,
                                            machine=machine)))
    assert 1 < wanted["loss_scale"][0] < 2.0**24
    np.testing.assert_array_equal(found["loss_scale"], wanted["loss_scale"])
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=4 * of_run({"float16"}))


FAR = ["4x2@l2:256:FSFGF", "4x2@l2:256:FGGSF", "33x1:256:SFSFF", "12x5:512:FGGGG",
       "64x2:256:SFGSF", "8x3@l2:256:SFGSF:2"]
"""Blocks that exchange through the L2 cache, clusters or not."""


@pytest.mark.parametrize("options", RECIPES[:3])
@pytest.mark.parametrize("blocks", FAR)
def test_blocks_that_exchange_through_l2_train_as_the_host(
        device: Device, machine: Machine, blocks: str, options: dict[str, Any]) -> None:
    if machine.target.multiprocessors < 128:
        pytest.skip("this GPU has too few multiprocessors")
    if blocks.endswith("G") and "loss" in options.get("network_options", {}):
        blocks = blocks[:-1] + "S"  # a loss of each output alone has no row to gather
    layers = (40, 18, 150, 33, 9)
    data = dataset_for(Network(layers, **options.get("network_options", {})), 300, 23)
    trains_as_the_host(device, machine, blocks, layers, data, options)


@pytest.mark.parametrize("numbers", ["bf16", "fp16", "sr"])
def test_16_bit_formats_through_l2_train_as_the_host(device: Device, machine: Machine,
                                                     numbers: str) -> None:
    if machine.target.multiprocessors < 128:
        pytest.skip("this GPU has too few multiprocessors")
    layers = (40, 18, 150, 33, 9)
    options: dict[str, Any] = {"optimizer": Optimizer("adam", 1e-3), "shuffle": True,
                               "partial": True, **SMOOTH}
    data = dataset_for(Network(layers), 300, 23)
    wanted = trained(HostRunner(make_work(f"preload,{numbers}", layers, data, **options)))
    found = run_on(device, make_work(f"persistent=32x4:256:FSFGF,{numbers},graphs=epoch", layers,
                                     data, machine=machine, **options))
    stored = "float16" if numbers == "fp16" else "bfloat16"
    for name, array in wanted.parameters.items():
        np.testing.assert_allclose(found.parameters[name], array, rtol=0,
                                   atol=4 * of_run({stored}))


@pytest.mark.parametrize("blocks", ["1x2:256:FFFFF:2", "2x3:256:FSFGF:2", "4x2:256:FGGSF:3"])
def test_micro_batches_train_as_the_host(device: Device, machine: Machine, blocks: str) -> None:
    if blocks[0] != "1" and machine.target.largest_cluster < 8:
        pytest.skip("this GPU has no clusters")
    layers = (40, 18, 64, 33, 9)
    options: dict[str, Any] = {"optimizer": Optimizer("adam", 1e-3), "shuffle": True,
                               "partial": True, "batch": 23, **SMOOTH}
    data = dataset_for(Network(layers), 300, 23)
    trains_as_the_host(device, machine, blocks, layers, data, options)


@pytest.mark.parametrize("graphs", ["", ",graphs=7", ",graphs=while"])
def test_launches_of_any_length_give_the_same_bits(device: Device, machine: Machine,
                                                   graphs: str) -> None:
    layers = (29, 24, 7)
    data = dataset_for(Network(layers), 300, 23)
    whole, parts = (run_on(device, make_work(f"persistent{way}", layers, data, machine=machine,
                                             optimizer=Optimizer("adam", 1e-3), shuffle=True,
                                             partial=True))
                    for way in (",graphs=epoch", graphs))
    same_parameters(parts, whole)
    np.testing.assert_array_equal(parts.loss, whole.loss)


@pytest.mark.parametrize("blocks", ["auto", "1x1", "4x2", "8x1", "12x5:512:FGG", "33x1:256:SFS"])
def test_an_epoch_of_one_launch_makes_the_next_ones_order(device: Device, machine: Machine,
                                                          blocks: str) -> None:
    """As ops of their own do, and in another run that goes on where it stopped."""
    ranks = blocks.partition("x")[0]
    if ranks not in ("auto", "1") and machine.target.largest_cluster < 8:
        pytest.skip("this GPU has no clusters")
    if ranks in ("12", "33") and machine.target.multiprocessors < 128:
        pytest.skip("this GPU has too few multiprocessors")
    data = dataset_for(Network(layers := (29, 24, 7)), 300, 23)
    options: dict[str, Any] = {"optimizer": Optimizer("adam", 1e-3), "shuffle": True,
                               "partial": True, "seed": 5}

    def run(way: str, epochs: int, state: Any = None) -> dict[str, Any]:
        work = make_work(f"persistent={blocks}{way}", layers, data, machine=machine, **options)
        assert bool(work.merged_boundary) == (way != ",graphs=7")
        runner = GpuRunner(device, work)
        try:
            if state is not None:
                runner.load(state)
            for _ in range(epochs):
                runner.epoch(True)
            losses = runner.metrics()[0].copy()
            return {**runner.state(), "losses": losses, "order": runner.workspace("order")}
        finally:
            runner.close()

    wanted, way = run(",graphs=7", 3), ",graphs=epoch"
    if not TOGGLES["pdl"].needs(machine):
        way += ",pdl"
    begun = run(way, 2)
    state = {name: array for name, array in begun.items() if name not in ("losses", "order")}
    for found in (run(way, 3), run(way, 1, state)):
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name], array, err_msg=name)
    np.testing.assert_array_equal(wanted["order"], random.permutation(5, 3, 300))


@pytest.mark.parametrize("seed", range(errors.DRAWS))
def test_a_step_is_no_more_than_twice_as_far_from_float64_as_in_numpy(
    device: Device, machine: Machine, seed: int
) -> None:
    """What it changes of the weights; and its gradients where momentum starts from nothing, as
    that is then the gradient."""
    drawn = errors.draw(seed)
    network, batch = drawn.network, drawn.batch
    data = dataset_for(network, batch, 2, seed)

    def work(opt: str) -> Any:
        return make_work(opt, network.layers, data, batch, machine=machine,
                         optimizer=drawn.optimizer,
                         network_options={"loss": network.loss, "activation": network.activation})

    exact, plain = HostRunner(work("preload"), "float64"), HostRunner(work("preload"))
    for _ in range(errors.AHEAD):  # an epoch is one step
        exact.epoch(True)
    start = exact.state()
    momentum = [name for name in start if name.endswith(".v") and f"{name[:-1]}m" not in start]
    start |= {name: np.zeros_like(start[name]) for name in momentum}
    ours = GpuRunner(device, work("persistent,graphs=epoch"))
    try:
        for runner in (exact, plain, ours):
            runner.load(start)
            runner.epoch(True)
        found = ours.state()
    finally:
        ours.close()
    weights = [tensor.name for tensor in network.parameters()]
    for names in filter(None, (weights, momentum)):
        wanted, by_numpy, on_chip = (
            np.concatenate([arrays[name].astype(np.float64).ravel() - (
                start[name].ravel() if names is weights else 0.0) for name in names])
            for arrays in (exact._arrays, plain.state(), found))
        ratio = errors.relative(on_chip, wanted) / errors.relative(by_numpy, wanted)
        assert ratio <= errors.BOUND, (str(drawn), names[0], ratio)


@pytest.mark.parametrize("blocks", ["1x1", "4x1", "1x4", "2x2", "8x1@l2:256:FGF",
                                    "8x2@l2:256:FSF"])
def test_a_million_steps_end(device: Device, machine: Machine, blocks: str) -> None:
    """A thousand launches of a thousand steps, with the count of steps going back on the way."""
    if blocks != "1x1" and machine.target.largest_cluster < 8:
        pytest.skip("this GPU has no clusters")
    steps, batch = 1000, 8
    data = dataset_for(Network((16, 24, 8)), steps * batch, 23)
    work = make_work(f"persistent={blocks},graphs=epoch", (16, 24, 8), data, batch, 1e-3,
                     machine=machine, optimizer=Optimizer("adam", 1e-3), shuffle=True)
    runner = GpuRunner(device, work)
    try:
        begin = MAX_STEPS - 500_000
        runner.load({**runner.state(), "clock": np.array([0, begin], np.int32)})
        for _ in range(1000):
            runner.epoch(False)
        milliseconds = sum(runner.epoch_milliseconds())
        state = runner.state()
    finally:
        runner.close()
    assert list(state["clock"]) == [1000, count_after(begin + 1_000_000)]
    assert all(np.isfinite(array).all() for array in state.values())
    assert milliseconds < 60_000
