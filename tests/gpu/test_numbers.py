"""The number toggles on a GPU: padding that holds NaNs, training beside the host's emulation, and
overflow. tests/gpu/test_ops.py compares every op with its reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rawnn.common.dtypes import numpy_dtype
from rawnn.common.errors import ConfigError
from rawnn.cuda.device import Device
from rawnn.engine.runners.host import HostRunner
from rawnn.engine.runners.lowering import Lowering
from rawnn.lab.ops import fill_operands
from rawnn.model.layers import Network
from rawnn.opts import select
from rawnn.opts.registry import Machine
from rawnn.plan import epoch_plans
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from tests.engine import make_work, random_dataset, run_on, step_plan, trained

pytestmark = pytest.mark.gpu

NUMBERS = ("fp16", "bf16", "fp8", "sr")
PRODUCTS = ("preload", "preload,fuse", "preload,tiled,fuse", "preload,mma,fuse")


def rewritten(opt: str, network: Network, batch: int, machine: Machine) -> Plan:
    """The step's plan, with the casts of its copies behind it."""
    try:
        selection = select(f"none,{opt}", network, 3, machine)
    except ConfigError as error:
        pytest.skip(str(error))
    plan = selection.apply(step_plan(network, batch, 3 * batch))[0]
    return replace(plan, ops=(*plan.ops, *epoch_plans.refresh(plan).ops))


def in_memory(array: np.ndarray, shape: tuple[int, ...], dtype: str, padding: float) -> np.ndarray:
    """`array` in the top left of `padding`."""
    kind = numpy_dtype(dtype)
    out = np.full(shape, padding if kind.kind not in "iu" or padding == 0 else 99, kind)
    out[tuple(slice(n) for n in array.shape)] = array.astype(kind)
    return out


def written_by(device: Device, lowering: Lowering, op: Op, plan: Plan,
               padding: float) -> dict[str, np.ndarray]:
    """What an op writes, in its storage type, where rows end in `padding`."""
    addresses = {}
    for name, value in fill_operands(op, plan, 0).items():
        tensor = plan[name]
        addresses[name] = device.memory.allocate(tensor.nbytes, name).address
        device.to_device(addresses[name], in_memory(value, tensor.padded_shape, tensor.dtype,
                                                    padding), name)
    for command in lowering.commands(op, plan, addresses, {}):
        command.run(op.offset)
    found = {}
    for name in {n for n, _ in op.writes}:
        tensor = plan[name]
        raw = np.zeros(tensor.padded_shape, numpy_dtype(tensor.dtype))
        device.to_host(raw, addresses[name], name)
        found[name] = raw[tuple(slice(n) for n in tensor.shape)].astype(np.float64)
    device.memory.free_all()
    return found


@pytest.mark.parametrize(("layers", "batch"), [
    ((784, 10), 128), ((40, 30, 10), 13), ((64, 48, 10), 16), ((33, 17, 3), 5)])
@pytest.mark.parametrize("products", PRODUCTS)
@pytest.mark.parametrize("numbers", NUMBERS)
def test_padding_adds_nothing(
    device: Device, machine: Machine, numbers: str, products: str, layers: tuple[int, ...],
    batch: int
) -> None:
    """Heads of 10 or 3 outputs lie in rows of 16 bytes: NaNs behind them change no bit."""
    plan = rewritten(f"{products},{numbers}", Network(layers), batch, machine)
    lowering = Lowering(device)
    lowering.compile([plan])
    try:
        for op in plan.ops:
            clean = written_by(device, lowering, op, plan, 0.0)
            for name, array in written_by(device, lowering, op, plan, np.nan).items():
                np.testing.assert_array_equal(array, clean[name], err_msg=f"{op}: {name}")
    finally:
        lowering.close()


@pytest.mark.parametrize("graphs", ["", ",graphs=epoch"])
@pytest.mark.parametrize("products", PRODUCTS)
@pytest.mark.parametrize("numbers", ["fp16", "bf16", "fp8"])
def test_training_follows_the_hosts_emulation(
    device: Device, machine: Machine, numbers: str, products: str, graphs: str
) -> None:
    data, layers = random_dataset(29, 10, 96, 24), (29, 20, 10)
    opt = f"{products},{numbers}"
    try:
        found = run_on(device, make_work(opt + graphs, layers, data, batch=16, machine=machine))
    except ConfigError as error:
        pytest.skip(str(error))
    wanted = trained(HostRunner(make_work(opt, layers, data, batch=16)))
    # A sum in another order may round to the neighbour, which later steps carry on.
    np.testing.assert_allclose(found.loss, wanted.loss, rtol=0.02 if numbers == "fp8" else 2e-3)
    for name, array in wanted.parameters.items():
        np.testing.assert_allclose(found.parameters[name], array, atol=3e-3, err_msg=name)


@pytest.mark.parametrize("products", PRODUCTS)
@pytest.mark.parametrize("numbers", ["fp16", "fp8"])
def test_an_overflow_is_seen_and_the_step_left_out(
    device: Device, machine: Machine, numbers: str, products: str
) -> None:
    """A batch of 1 and images of zeros: the last gradient is 0.9 times the loss scale, 65536, or
    57344 and more in all."""
    data = random_dataset(29, 10, 1, 8)
    data = replace(data, train_images=np.zeros_like(data.train_images))
    opt = f"{products},{numbers}"
    try:
        work = make_work(opt, (29, 20, 10), data, batch=1, machine=machine)
    except ConfigError as error:
        pytest.skip(str(error))
    wanted = HostRunner(make_work(opt, (29, 20, 10), data, batch=1))
    before = wanted.parameters()
    found = run_on(device, work, epochs=1)
    trained(wanted, 1)
    skipped = all((wanted.parameters()[n] == a).all() for n, a in before.items())
    assert skipped == (numbers == "fp8")
    for name, array in before.items():
        assert (found.parameters[name] == array).all() == \
            (wanted.parameters()[name] == array).all(), name
