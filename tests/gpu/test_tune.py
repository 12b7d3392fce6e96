"""The toggle `tune` on a GPU: launches are measured once, remembered, and train as the rule's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rawnn.cuda.device import Device
from rawnn.engine import launch_choices as choices
from rawnn.engine.machine import machine_of
from tests.engine import make_work, random_dataset, run_on
from tests.tolerances import of_run

pytestmark = pytest.mark.gpu

LAYERS = (29, 72, 40, 7)


@pytest.mark.parametrize(("opt", "dtypes"), [
    ("arena", ()), ("preload,arena,nosync,tiled,fuse,graphs=epoch", ()),
    ("preload,arena,nosync,cublas,fuse,graphs=epoch", ()),
    ("preload,arena,nosync,bf16,mma,fuse,streams,graphs=epoch", ("bfloat16",)),
])
def test_what_is_measured_is_remembered_and_trains_the_same(
        device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opt: str,
        dtypes: tuple[str, ...]) -> None:
    machine, data = machine_of(device), random_dataset()
    if any(word in opt for word in ("bf16", "mma")) and machine.compute_capability < (8, 0):
        pytest.skip("tensor cores with asynchronous copies: compute capability 8.0")
    by_rule = run_on(device, make_work(opt, LAYERS, data, machine=machine))
    monkeypatch.setenv("RAWNN_CACHE", str(tmp_path))
    messages: list[str] = []
    monkeypatch.setattr(device, "_notify", messages.append)
    work = make_work(f"{opt},tune", LAYERS, data, machine=machine)
    measured = run_on(device, work)
    assert any(text.startswith("tune measured") for text in messages)
    kept = choices.read(choices.file_of(device.info), messages.append)
    assert {choices.key_of(op, work.train) for op in work.train.ops} <= set(kept)
    messages.clear()
    again = run_on(device, make_work(f"{opt},tune", LAYERS, data, machine=machine))
    assert not any(text.startswith("tune measured") for text in messages)
    for name, array in measured.parameters.items():
        np.testing.assert_array_equal(again.parameters[name], array)
        np.testing.assert_allclose(array, by_rule.parameters[name], rtol=0, atol=of_run(dtypes))
