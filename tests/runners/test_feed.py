"""What a data set gives to plans: forms of its parts, and where they lie."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rawnn.runners.feed import HostOrder, form_of, resident
from rawnn.runners.host import HostRunner
from rawnn.step.tensor import Role, Tensor
from tests.engine import make_work, random_dataset


def test_a_form_is_of_the_examples_from_the_first_on() -> None:
    data = random_dataset(train=70, test=23)
    assert form_of(data, "train").examples == 70
    assert (form_of(data, "test").examples, form_of(data, "test", 16).examples) == (23, 7)


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
        order = HostOrder(arrays, 7)
        for epoch in (*ahead, 5):
            order.shuffle(epoch)
        np.testing.assert_array_equal(arrays["x"], x[arrays["y"]])
        found[ahead] = arrays["y"].copy()
    np.testing.assert_array_equal(*found.values())
    assert sorted(found[()]) == list(range(20)) != list(found[()])


def test_a_loss_scale_begins_and_grows_as_in_torch() -> None:
    """torch.amp.GradScaler: 2^16, doubled after 2,000 steps in a row without an overflow."""
    work = make_work("fp16", (8, 4), random_dataset(8, 4, 8, 4))
    runner = HostRunner(work)
    assert runner.state()["loss_scale"].tolist() == [2.0**16, 0.0]
    runner.close()
    adjust, = work.train.find(kind="adjust_scale")
    assert adjust.attributes["growth"] == 2000
