"""Steps of narrow networks on a GPU: each kernel against its reference, every way of running them,
and the plain path that they replace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rawnn.cuda.device import Device
from rawnn.engine.runners.host import HostRunner
from rawnn.opts.registry import Machine
from tests.engine import make_work, random_dataset, run_on, same_run, trained

pytestmark = pytest.mark.gpu

SHAPES = [((29, 24, 16, 7), 8), ((784, 128, 128, 128, 10), 32), ((99, 150, 131, 160, 20), 45),
          ((300, 64, 33), 67), ((64, 32, 32, 32, 32, 32, 10), 16)]
OPT = "preload,arena,nosync,bf16,mma,fuse"


@pytest.fixture(autouse=True)
def _bfloat16(device: Device) -> None:
    if device.capability < (8, 0):
        pytest.skip("bfloat16 products need compute capability 8.0")


def work(opt: str, layers: tuple[int, ...], batch: int, machine: Machine, **options: Any) -> Any:
    data = random_dataset(layers[0], layers[-1], 6 * batch + 5, 16)
    return make_work(opt, layers, data, batch, machine=machine, shuffle=True, **options)


@pytest.mark.parametrize(("layers", "batch"), SHAPES)
def test_a_run_stays_beside_the_hosts(
    device: Device, machine: Machine, layers: tuple[int, ...], batch: int
) -> None:
    """Sums differ in their order, so single values round to the neighbouring 16-bit number: 2**-8
    of what is computed from them, in a step; updates are some thousand times smaller than
    weights."""
    made = work(OPT, layers, batch, machine)
    assert made.train.ops[0].kind == "narrow_input"
    found = run_on(device, made)
    wanted = trained(HostRunner(work(OPT, layers, batch, machine)))
    np.testing.assert_allclose(found.loss, wanted.loss, rtol=2e-3)
    initial = HostRunner(work(OPT, layers, batch, machine)).parameters()
    for name, value in wanted.parameters.items():
        change = np.linalg.norm(value - initial[name])
        error = np.linalg.norm(found.parameters[name] - value)
        assert error <= 0.02 * change, (name, error / change)


@pytest.mark.parametrize("options", [
    {"network_options": {"bias": False}}, {"network_options": {"activation": "tanh"}},
    {"schedule": "cosine"}, {"partial": True}], ids=["no bias", "tanh", "cosine", "partial"])
def test_options_stay_beside_the_hosts(
    device: Device, machine: Machine, options: dict[str, Any]
) -> None:
    layers, batch = SHAPES[0]
    found = run_on(device, work(OPT, layers, batch, machine, **options))
    wanted = trained(HostRunner(work(OPT, layers, batch, machine, **options)))
    np.testing.assert_allclose(found.loss, wanted.loss, rtol=2e-3)


@pytest.mark.parametrize("how", ["graphs=step", "graphs=3", "graphs=epoch", "graphs=while",
                                 "streams,graphs=epoch", "pdl", "pdl,graphs=epoch"])
@pytest.mark.parametrize(("layers", "batch"), SHAPES)
def test_every_way_of_running_gives_the_same_bits(
    device: Device, machine: Machine, layers: tuple[int, ...], batch: int, how: str
) -> None:
    if "pdl" in how and device.capability < (9, 0):
        pytest.skip("pdl needs compute capability 9.0")
    stream = run_on(device, work(OPT, layers, batch, machine))
    found = run_on(device, work(f"{OPT},{how}", layers, batch, machine))
    same_run(found, stream)


def test_a_network_that_no_kernel_is_for_runs_beside_it(device: Device, machine: Machine) -> None:
    layers = (784, 300, 10)
    made = work(OPT, layers, 16, machine)
    assert "narrow_input" not in [op.kind for op in made.train.ops]
    assert np.isfinite(run_on(device, made).loss).all()
