"""The number toggles: what is stored in which type, scales, overflow, and what they cost in
accuracy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rawnn.common.dtypes import FLOATS, overflows, rounded
from rawnn.common.errors import ConfigError
from rawnn.cuda.device import Device
from rawnn.data import Dataset
from rawnn.engine.runners.gpu import GpuRunner
from rawnn.engine.runners.host import HostRunner
from rawnn.model.layers import INITIALISERS, Network
from rawnn.model.optimizers import OPTIMIZER_SPECS, Optimizer, OptimizerSpec
from rawnn.opts import select
from rawnn.opts.precision import HEADROOM
from rawnn.opts.registry import Machine
from rawnn.plan import epoch_plans
from rawnn.plan.op import OPS, define
from rawnn.plan.ops.common import flag_overflow
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Role
from rawnn.sim import Simulation
from tests.engine import (
    CAPABLE,
    dataset_for,
    make_work,
    measuring_plan,
    random_dataset,
    run_on,
    same_parameters,
    step_plan,
    trained,
)
from tests.plan.execution import arrays_of, epoch

BATCH, STEPS = 3, 4
DEEP = Network((12, 18, 7, 10))
NUMBERS = ("tf32", "fp16", "fp16=acc16", "bf16", "sr", "fp8")
EMULATED = ("fp16", "bf16", "sr", "fp8")
"""Those that the host emulates: it rounds what is stored, not the factors or sums of a product."""


def plan_of(opt: str, network: Network = DEEP, machine: Machine = CAPABLE) -> Plan:
    plan = step_plan(network, BATCH, BATCH * STEPS)
    return select(f"none,{opt}", network, STEPS, machine).apply(plan)[0].check()


def types(plan: Plan) -> dict[str, str]:
    return {name: t.dtype for name, t in plan.tensors.items()
            if t.floating and t.role not in (Role.METRIC, Role.STATE, Role.HOST)}


def expected_types(inputs: str, between: str, gradients: str, masters: str,
                   copies: str) -> dict[str, str]:
    found = {"x": inputs, "z3": "float32", "p": "float32", "dz3": gradients}
    for layer in (1, 2, 3):
        weight = f"fc{layer}.weight"
        found |= {weight: masters, f"fc{layer}.bias": "float32", f"dw{layer}": "float32",
                  f"db{layer}": "float32"} | ({f"{weight}.{copies}": copies} if copies else {})
    for layer in (1, 2):
        found |= {f"z{layer}": between, f"a{layer}": inputs, f"da{layer}": between,
                  f"dz{layer}": gradients}
    return found


@pytest.mark.parametrize(("opt", "wanted"), [
    ("tf32", ("float32",) * 4 + ("",)),
    ("fp16", ("float16",) * 3 + ("float32", "float16")),
    ("bf16", ("bfloat16",) * 3 + ("float32", "bfloat16")),
    ("sr", ("bfloat16",) * 4 + ("",)),
    ("fp8", ("float8_e4m3", "bfloat16", "float8_e5m2", "float32", "float8_e4m3")),
])
def test_what_is_stored_in_which_type(opt: str, wanted: tuple[str, ...]) -> None:
    assert types(plan_of(f"preload,{opt}")) == expected_types(*wanted)
    host = plan_of(opt)
    assert host["host_images"].dtype == wanted[0]


@pytest.mark.parametrize("opt", NUMBERS)
def test_products_read_copies_that_updates_write(opt: str) -> None:
    for text in (f"preload,{opt}", f"preload,{opt},fuse", f"{opt},mma,fuse"):
        plan = plan_of(text)
        copies = {t.name for t in plan.tensors.values() if t.role is Role.COPY}
        read = {n for op in plan.find(kind="matmul") for r, n in op.operands.items() if r in "ab"}
        read |= {n for op in plan.find(kind="softmax_head") for r, n in op.operands.items()
                 if r == "copy"}
        assert copies <= read
        assert copies == {op.operands["copy"] for op in plan.ops if "copy" in op.operands}
        if copies:
            assert not any(plan[n].role is Role.PARAMETER for n in read)


@pytest.fixture
def sign(monkeypatch: pytest.MonkeyPatch) -> Callable[[tuple[str, ...]], Optimizer]:
    """An optimizer from outside the package, whose op writes the operands that one gives."""
    monkeypatch.setattr("rawnn.plan.op.OPS", OPS | {})

    def made(writes: tuple[str, ...]) -> Optimizer:
        def step(t: SimpleNamespace, a: Any) -> None:
            t.w -= a["lr"] * np.sign(t.dw)
            if hasattr(t, "copy"):
                t.copy[...] = t.w

        define("sign", reads=("w", "dw", "loss_scale", "overflow"), writes=writes,
               optional=("copy", "loss_scale", "overflow"))(step)
        monkeypatch.setitem(OPTIMIZER_SPECS, "sign", OptimizerSpec(
            "sign", {"decay": 0.0}, lambda s: "sign", lambda s: (), lambda s: {}))
        return Optimizer("sign", 0.01)

    return made


@pytest.mark.parametrize("opt", ["bf16", "fp16", "fp8", "bf16,fuse"])
def test_an_optimizer_from_outside_writes_the_copies_that_products_read(
        opt: str, sign: Callable[[tuple[str, ...]], Optimizer]) -> None:
    baseline = step_plan(DEEP, BATCH, BATCH * STEPS, optimizer=sign(("w", "copy")))
    plan, _ = select(f"none,{opt}", DEEP, STEPS, CAPABLE).apply(baseline)
    copies = {t.name for t in plan.tensors.values() if t.role is Role.COPY}
    assert copies
    assert copies == {op.operands["copy"] for op in plan.find(kind="sign")
                      if "copy" in op.operands}


@pytest.mark.parametrize("opt", ["bf16", "fp16", "fp8", "bf16,fuse"])
def test_a_plan_with_a_copy_that_is_read_and_never_written_is_refused(
        opt: str, sign: Callable[[tuple[str, ...]], Optimizer]) -> None:
    baseline = step_plan(DEEP, BATCH, BATCH * STEPS, optimizer=sign(("w",)))
    wanted = r"fc1\.forward reads fc1\.weight\.\w+, which nothing writes behind fc1\.weight\.sign"
    with pytest.raises(ValueError, match=wanted):
        select(f"none,{opt}", DEEP, STEPS, CAPABLE).apply(baseline)


def test_acc16_sums_products_in_half_precision_but_for_weight_gradients() -> None:
    found = {(op.attributes["layout"], op.attributes["compute"])
             for op in plan_of("fp16=acc16").find(kind="matmul")}
    assert found == {("nt", "float16"), ("nn", "float16"), ("tn", "float32")}
    assert {op.attributes["compute"] for op in plan_of("tf32").find(kind="matmul")} == {"tf32"}


# -- scales of copies ------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 10, 128, 784, 1000, 4096, 8192])
@pytest.mark.parametrize("init", INITIALISERS)
def test_an_8_bit_copy_leaves_a_weight_room_to_grow(init: str, width: int) -> None:
    network = Network((width, 16, 10), init=init)
    plan = plan_of("preload,fp8", network)
    for layer in (1, 2):
        weight = network.weight(layer)
        copy = plan[f"{weight.name}.float8_e4m3"]
        bound = weight.bound or 1 / np.sqrt(weight.shape[1])  # zeros will grow
        assert HEADROOM <= 448 / (bound * copy.scale) < 2 * HEADROOM + 1e-9
        assert np.log2(copy.scale) % 1 == 0, "a power of two costs no accuracy"


def test_whatever_makes_or_reads_a_copy_knows_its_scale() -> None:
    train = plan_of("preload,fp8,fuse")
    scales = {t.name: t.scale for t in train.tensors.values() if t.role is Role.COPY}
    assert len(scales) == 3
    assert all(scale > 1 for scale in scales.values())
    test = select("none,preload,fp8,fuse", DEEP, STEPS, CAPABLE).apply(
        measuring_plan(DEEP, BATCH, BATCH * STEPS))[0]
    for plan in (train, test):
        for op in plan.find(kind="matmul"):
            read = [scales[n] for r, n in op.operands.items() if r in "ab" and n in scales]
            assert op.attributes["alpha"] * np.prod(read) == 1.0
    for op in train.find(kind="weight_update"):
        assert op.attributes["copy_scale"] == scales[op.operands["copy"]]
    for op in epoch_plans.refresh(train).ops:
        assert op.attributes["copy_scale"] == scales[op.operands["copy"]]
    for op in plan_of("bf16").find(kind="sgd"):
        assert op.attributes["copy_scale"] == 1.0


@pytest.mark.parametrize("opt", ["preload,fp8", "preload,fp8,fuse", "preload,fp16,fuse"])
@pytest.mark.parametrize("optimizer", [Optimizer(lr=0.5), Optimizer("adamw", 0.01),
                                       Optimizer("sgd", 0.1, {"momentum": 0.9})], ids=str)
def test_scales_change_nothing_where_nothing_is_rounded(opt: str, optimizer: Optimizer) -> None:
    """In float64 copies and loss scale cancel but for the last bits."""
    data, initial = random_dataset(12, 10, BATCH * STEPS, 1), DEEP.initial(0)
    plain = step_plan(DEEP, BATCH, BATCH * STEPS, optimizer=optimizer)
    plan = select(f"none,{opt}", DEEP, STEPS, CAPABLE).apply(plain)[0]
    found = []
    for chosen in (plain, plan):
        arrays = arrays_of(chosen, data, initial)
        for tensor in chosen.tensors.values():
            if tensor.role is Role.COPY:
                arrays[tensor.name][...] = arrays[tensor.source] * tensor.scale
        if "loss_scale" in arrays:
            arrays["loss_scale"][...] = 1024, 0
        epoch(chosen, arrays, STEPS)
        found.append(arrays)
    for name in (*initial, "loss"):
        np.testing.assert_allclose(found[1][name], found[0][name], rtol=0, atol=1e-12,
                                   err_msg=name)


# -- overflow --------------------------------------------------------------------------------------

EDGES = [("float16", 65519.0, 65520.0), ("bfloat16", 3.389e38, 3.4e38),
         ("float8_e5m2", 57344.0, 57344.01), ("float8_e4m3", 448.0, 448.01),
         ("float32", 3.4e38, np.inf)]


@pytest.mark.parametrize(("dtype", "held", "beyond"), EDGES)
def test_overflow_is_what_a_type_cannot_hold(dtype: str, held: float, beyond: float) -> None:
    for value, wanted in ((held, 0), (-held, 0), (beyond, 1), (-beyond, 1), (np.nan, 1)):
        values = np.array([1.0, value])
        assert overflows(values, dtype) == bool(wanted)
        state = SimpleNamespace(dz=values, overflow=np.zeros(1, np.int32))
        flag_overflow(state, {"stored": {"dz": dtype}}, "dz")
        assert state.overflow[0] == wanted
    assert not np.isfinite(rounded(np.array([np.nan]), dtype)).all()
    if dtype.startswith("float8"):
        largest = float(ml_dtypes.finfo(
            ml_dtypes.float8_e5m2 if dtype.endswith("5m2") else ml_dtypes.float8_e4m3fn).max)
        np.testing.assert_array_equal(rounded(np.array([np.inf, -1e30, beyond]), dtype),
                                      [largest, -largest, largest])


def test_every_type_rounds_to_its_nearest_even_neighbour() -> None:
    assert rounded(np.array([17.0, 19.0, 18.0, 2.0**-10, 3 * 2.0**-10]), "float8_e4m3").tolist() \
        == [16, 20, 18, 0, 2.0**-8]
    assert rounded(np.array([9.0, 11.0, 2.0**-17, 3 * 2.0**-17]), "float8_e5m2").tolist() \
        == [8, 12, 0, 2.0**-15]
    values = np.random.default_rng(0).normal(size=500)
    for name in FLOATS:
        once = rounded(values, name)
        np.testing.assert_array_equal(rounded(once, name), once)


@pytest.mark.parametrize("opt", ["fp16", "fp8", "fp8,fuse", "fp16,mma,fuse", "fp8,tiled,fuse"])
def test_whatever_stores_a_low_precision_gradient_sees_its_overflow(opt: str) -> None:
    plan = plan_of(opt)
    stored = [op for op in plan.ops for role, name in op.operands.items()
              if name in ("dz1", "dz2", "dz3") and name in {n for n, _ in op.writes}]
    assert len(stored) == 3
    assert all(op.operands["overflow"] == "overflow" for op in stored)
    assert plan.ops[-1].kind == "adjust_scale"
    assert all("overflow" in op.operands and "loss_scale" in op.operands for op in plan.ops
               if op.kind in ("sgd", "bias_sgd", "weight_update"))


@pytest.mark.parametrize("opt", ["preload,fp16", "preload,fp8", "preload,fp8,fuse"])
def test_a_step_that_overflows_changes_nothing_but_the_scale(opt: str) -> None:
    """At a batch of 1 the first loss scale, 65536, is beyond what a gradient's type can hold."""
    def run(first: float) -> tuple[HostRunner, dict[str, np.ndarray], float]:
        data = random_dataset(12, 10, 1, 8)
        images = np.zeros_like(data.train_images)
        runner = HostRunner(make_work(opt, (12, 10), replace(data, train_images=images), batch=1))
        before = runner.parameters()
        runner.load({"loss_scale": np.array([first, 0], np.float32)})
        runner.epoch(True)
        return runner, before, float(runner.state()["loss_scale"][0])

    runner, before, scale = run(2.0**17)  # p - 1 is about -0.9
    assert scale == 2.0**16
    for name, value in runner.parameters().items():
        np.testing.assert_array_equal(value, before[name])
    runner, before, scale = run(2.0**14)
    assert scale == 2.0**14
    assert (runner.parameters()["fc1.bias"] != before["fc1.bias"]).any()


@pytest.mark.parametrize("opt", [
    "fp16", "preload,fp16", "preload,fp16,fuse", "fp16,mma,fuse", "preload,fp8",
    "preload,fp8,fuse", "preload,fp16,cublas"])
@pytest.mark.parametrize("value", [1.0, 3.0, -3.0])
def test_an_overflow_in_a_hidden_layer_is_noticed(opt: str, value: float) -> None:
    """An image of zeros and biases of 1 make both hidden units 1. The rows of the last weights
    cancel, so that all ten logits are 0 and the gradient of the label's is 2^15 (0.1 - 1) = -29491,
    which both types hold. Times a weight of 3 it is more than they hold, 65504 and 57344."""
    data = random_dataset(12, 10, 1, 8)
    data = replace(data, train_images=np.zeros_like(data.train_images),
                   train_labels=np.zeros_like(data.train_labels))
    weight = np.zeros((10, 2), np.float32)
    weight[0] = value, -value
    given = {"fc1.bias": np.ones(2, np.float32), "fc2.weight": weight,
             "fc2.bias": np.zeros(10, np.float32)}
    runner = HostRunner(make_work(opt, (12, 2, 10), data, batch=1))
    try:
        runner.load({**runner.state(), **given, "loss_scale": np.array([2**15, 0], np.float32)})
        runner.epoch(True)
        found = runner.state()
    finally:
        runner.close()
    step = 0.1 * 0.9 * value  # the learning rate times the gradient, without the scale
    has_overflow = abs(value) > 1
    assert found["loss_scale"].tolist() == ([2**14, 0] if has_overflow else [2**15, 1])
    wanted = np.ones(2) + (0 if has_overflow else step) * np.array([1, -1])
    np.testing.assert_allclose(found["fc1.bias"], wanted, rtol=0.02)  # fp8 has 2 bits of fraction
    if has_overflow:
        np.testing.assert_array_equal(found["fc2.weight"], weight)


# -- where they run --------------------------------------------------------------------------------


@pytest.mark.parametrize(("opt", "capability", "reason"), [
    ("fp8,cublas", (9, 0), "'fp8' cannot run so: on Ada and Hopper cuBLASLt .* use mma"),
    ("fp8,mma", (8, 0), r"'fp8' cannot run so: .* from compute capability 8.9 on, .* has 8.0; use"),
    ("fp8,bf16", (9, 0), "exclude each other"), ("fp8,sr", (9, 0), "exclude each other"),
    ("fp16,tf32", (9, 0), "exclude each other"),
    ("tf32", (7, 5), "tensor cores for tf32, from compute capability 8.0 on; this GPU has 7.5"),
])
def test_refusals_say_what_to_do(opt: str, capability: tuple[int, int], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        plan_of(opt, machine=replace(CAPABLE, compute_capability=capability))


@pytest.mark.parametrize(("opt", "capability"), [
    ("fp8", (7, 5)), ("fp8,tiled,fuse", (7, 5)), ("fp8,mma", (8, 9)), ("bf16", (7, 5)),
    ("fp16=acc16", (7, 5)), ("fp8,tiled", (8, 0))])
def test_old_gpus_convert_what_their_tensor_cores_lack(opt: str,
                                                       capability: tuple[int, int]) -> None:
    plan_of(opt, machine=replace(CAPABLE, compute_capability=capability))


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 9), (9, 0), (12, 0)])
@pytest.mark.parametrize("opt", ["best,fp8", "best,bf16"])
def test_best_beside_a_number_format_can_run(opt: str, capability: tuple[int, int]) -> None:
    machine = replace(CAPABLE, compute_capability=capability, name="a GPU")
    selection = select(f"none,{opt}", DEEP, STEPS, machine)
    assert ("mma" in selection.values) == (capability >= ((8, 9) if "fp8" in opt else (8, 0)))


# -- what they compute -----------------------------------------------------------------------------


@pytest.mark.parametrize("options", [
    {}, {"activation": "gelu"}, {"activation": "tanh", "bias": False}, {"loss": "mse"}], ids=str)
@pytest.mark.parametrize("opt", ["preload,fp8", "fp8,fuse", "preload,fp8,fuse,mma,graphs=epoch",
                                 "preload,fp16,tiled", "preload,sr,fuse"])
def test_the_simulated_gpu_stores_what_the_host_stores(opt: str, options: dict[str, Any]) -> None:
    """Bit for bit, rows of 29, 18 and 10 elements being padded to 16 bytes."""
    layers = (29, 18, 10)
    data = dataset_for(Network(layers, **options), 32, 8)
    for optimizer in (Optimizer(lr=0.1), Optimizer("adam", 0.01)):
        work: dict[str, Any] = {"batch": 8, "optimizer": optimizer, "network_options": options}
        simulation = Simulation(0)
        device = Device(simulation.backend())
        found = run_on(device, make_work(opt, layers, data, **work))
        device.close()
        simulation.assert_clean()
        wanted = trained(HostRunner(make_work(opt, layers, data, **work)))
        np.testing.assert_array_equal(found.loss, wanted.loss)
        same_parameters(found, wanted)


@pytest.mark.parametrize("opt", EMULATED)
@pytest.mark.parametrize("where", ["host", "simulated GPU"])
def test_copies_are_made_anew_from_what_was_kept(opt: str, where: str) -> None:
    """A run that goes on from parameters and state alone has the same bits."""
    def runner() -> HostRunner | GpuRunner:
        work = make_work(f"preload,{opt}", (29, 20, 10), random_dataset(29, 10, 64, 8))
        return HostRunner(work) if where == "host" \
            else GpuRunner(Device(Simulation().backend()), work)

    whole, first, second = runner(), runner(), runner()
    whole.epoch(True)
    whole.epoch(True)
    first.epoch(True)
    second.load(first.state())
    second.epoch(True)
    for name, array in whole.parameters().items():
        np.testing.assert_array_equal(second.parameters()[name], array, err_msg=name)


@pytest.mark.parametrize("opt", ["fp8", "preload,fp8,fuse"])
def test_inputs_beyond_8_bits_saturate(opt: str) -> None:
    data = random_dataset(29, 10, 32, 8)
    large = [a.astype(np.float32) * 2000 - 200_000 for a in (data.train_images, data.test_images)]
    data = replace(data, train_images=large[0], test_images=large[1])
    assert np.abs(data.normalisation.apply(large[0])).max() > 448
    device = Device(Simulation(0).backend())
    found = run_on(device, make_work(opt, (29, 10), data, lr=1e-9))
    device.close()
    wanted = trained(HostRunner(make_work(opt, (29, 10), data, lr=1e-9)))
    assert np.isfinite(wanted.loss).all()
    np.testing.assert_array_equal(found.loss, wanted.loss)


def digits(examples: int, seed: int) -> Dataset:
    """Ten patterns of 64 pixels under as much noise: a hundred or so updates tell them apart."""
    return random_dataset(64, 10, examples, 400, seed)


@pytest.mark.parametrize("opt", EMULATED)
@pytest.mark.parametrize("layers", [(64, 10), (64, 48, 48, 10)])
def test_fewer_bits_learn_as_much(opt: str, layers: tuple[int, ...]) -> None:
    """Loss and accuracy on examples never seen stay as near to float32's as another seed does."""
    data, found = digits(1200, 3), {}
    for text in ("preload", f"preload,{opt}"):
        runs = [trained(HostRunner(make_work(text, layers, data, batch=16, lr=0.1, seed=seed)), 2)
                for seed in range(3)]
        found[text] = np.array([[r.evaluation.accuracy, r.evaluation.loss] for r in runs])
    plain, low = found["preload"], found[f"preload,{opt}"]
    spread = np.ptp(plain, axis=0) + np.array([0.01, 0.02])
    assert (np.abs(low.mean(axis=0) - plain.mean(axis=0)) < spread).all(), found
    assert low[:, 0].min() > 0.5
