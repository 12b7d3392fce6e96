"""What a data set gives to plans: forms of its parts, and where they lie."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rawnn.cuda.device import Device
from rawnn.data import Dataset, Normalisation
from rawnn.engine.runners.host import HostRunner
from rawnn.engine.runners.plan_data import HostBatches, contents, data_spec_of, resident
from rawnn.plan.tensor import Role, Tensor
from rawnn.sim import Simulation
from tests.engine import make_work, random_dataset, run_on, trained


def as_kernels_read(data: Dataset) -> Dataset:
    """The data in types that need no conversion: a copy is made only where one is asked for."""
    assert data.train_labels is not None
    assert data.test_labels is not None
    return replace(data, normalisation=Normalisation(),
                   **{f"{part}_images": getattr(data, f"{part}_images").astype(np.float32)
                      for part in ("train", "test")},
                   **{f"{part}_labels": getattr(data, f"{part}_labels").astype(np.int32)
                      for part in ("train", "test")})


def test_a_form_is_of_the_examples_from_the_first_on() -> None:
    data = random_dataset(train=70, test=23)
    assert data_spec_of(data, "train").examples == 70
    assert (data_spec_of(data, "test").examples, data_spec_of(data, "test", 16).examples) == (23, 7)


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
def test_a_part_of_data_on_the_gpu_begins_behind_the_rows_ahead_of_it(dtype: str) -> None:
    tensor = Tensor("images", (8, 16), dtype, Role.DATA)
    asked: list[tuple[Any, ...]] = []

    def fits(*layout: Any) -> bool:
        asked.append(layout)
        return True

    array = SimpleNamespace(address=4096, pitch=16, fits=fits)
    data: Any = SimpleNamespace(resident={"test_images": array})
    row = 16 * np.dtype(dtype).itemsize
    for first in (0, 1, 5):
        found = resident(data, {"images": tensor}, "test", first, 3)
        assert found == {"images": 4096 + first * row}
    assert set(asked) == {(dtype, tensor.ld, 3)}
    assert resident(data, {"images": tensor}, "train", 0, 3) == {}
    array.address += 4  # kernels read rows from multiples of 16 bytes on
    assert resident(data, {"images": tensor}, "test", 0, 3) == {}


def test_an_order_is_of_the_examples_as_they_were_given() -> None:
    """Not of the order before: the fifth epoch's is the same whatever came ahead of it."""
    x = np.arange(40, dtype=np.float32).reshape(20, 2)
    found = {}
    for ahead in ((), (0, 1, 2)):
        arrays = {"x": x.copy(), "y": np.arange(20)}
        order = HostBatches(arrays, 7)
        for epoch in (*ahead, 5):
            order.shuffle(epoch)
        np.testing.assert_array_equal(arrays["x"], x[arrays["y"]])
        found[ahead] = arrays["y"].copy()
    np.testing.assert_array_equal(*found.values())
    assert sorted(found[()]) == list(range(20)) != list(found[()])


@pytest.mark.parametrize("first", [0, 3])
def test_what_will_be_shuffled_is_a_copy(first: int) -> None:
    data = as_kernels_read(random_dataset())
    for name, wanted in (("images", data.train_images), ("labels", data.train_labels)):
        assert wanted is not None
        tensor = Tensor(name, wanted[first:].shape, wanted.dtype.name, Role.HOST)
        for writable in (True, False):
            found = contents(data, tensor, "train", first, writable)
            np.testing.assert_array_equal(found, wanted[first:])
            assert found.dtype == wanted.dtype
            assert not (writable and np.shares_memory(found, wanted))
    assert np.shares_memory(found, wanted)  # labels that are only read are not copied


@pytest.mark.parametrize("opt", ["none", "preload", "pinned", "arena,nosync"])
@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_shuffled_run_leaves_the_callers_arrays_alone(opt: str, on_gpu: bool) -> None:
    data = as_kernels_read(random_dataset())
    names = ("train_images", "train_labels", "test_images", "test_labels")
    before = {name: getattr(data, name).copy() for name in names}
    work = make_work(opt, (29, 7), data, shuffle=True, partial=True)
    if on_gpu:
        simulation = Simulation()
        device = Device(simulation.backend())
        run_on(device, work)
        device.close()
    else:
        trained(HostRunner(work))
    for name, array in before.items():
        np.testing.assert_array_equal(getattr(data, name), array, err_msg=name)


def test_a_loss_scale_begins_and_grows_as_in_torch() -> None:
    """torch.amp.GradScaler: 2^16, doubled after 2,000 steps in a row without an overflow."""
    work = make_work("fp16", (8, 4), random_dataset(8, 4, 8, 4))
    runner = HostRunner(work)
    assert runner.state()["loss_scale"].tolist() == [2.0**16, 0.0]
    runner.close()
    adjust, = work.train.find(kind="adjust_scale")
    assert adjust.attributes["growth"] == 2000
