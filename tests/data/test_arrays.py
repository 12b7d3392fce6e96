"""`from_arrays`: what is shared, what is converted and said, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rawnn.common.errors import ConfigError, DataError
from rawnn.common.listener import Listener
from rawnn.cuda.device import Device
from rawnn.data import Dataset, from_arrays
from rawnn.data.arrays import split_rows
from rawnn.data.dataset_types import listed
from rawnn.data.tables import load_table
from rawnn.engine.config import Config
from rawnn.engine.machine import Opened, machine_of
from rawnn.engine.session import Session
from rawnn.engine.training import train
from rawnn.many.training import train_many
from tests.data.foreign import BFLOAT16, Foreign, Interface

RNG = np.random.default_rng(1)
Y = np.arange(12) % 3


def inputs(dtype: Any = np.float32, count: int = 12, features: int = 5) -> np.ndarray:
    return (RNG.random((count, features)) * 100).astype(dtype)


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
@pytest.mark.parametrize("labels", ["uint8", "int32"])
def test_what_the_engine_reads_is_shared(dtype: str, labels: str) -> None:
    x, xt, y, yt = inputs(dtype), inputs(dtype), Y.astype(labels), Y.astype(labels)
    data = from_arrays((x, y), (xt, yt))
    for ours, theirs in ((data.train_images, x), (data.test_images, xt), (data.train_labels, y),
                         (data.test_labels, yt)):
        assert np.shares_memory(ours, theirs)
        assert ours.dtype == theirs.dtype
    assert (data.features, data.classes, data.outputs) == (5, 3, 3)
    assert len(data.notes) == (dtype == "uint8")  # which says how bytes are scaled
    assert data.normalisation.scale == (1 / 255 if dtype == "uint8" else 1)


@pytest.mark.parametrize("dtype", ["float64", "int64", "int16", "bool", ">f4",
                                   ml_dtypes.bfloat16])
def test_other_numbers_become_float32_and_that_is_said(dtype: Any) -> None:
    x = inputs(dtype)
    data = from_arrays((x, Y), (x, Y))
    assert data.train_images.dtype == np.float32
    np.testing.assert_array_equal(data.train_images, x.astype(np.float32))
    assert len(data.notes) == 2
    assert "the training inputs are co" in data.notes[0]


def test_rows_that_are_not_contiguous_are_copied() -> None:
    x = inputs(features=10)[:, ::2]
    data = from_arrays((x, Y), (x.copy(), Y))
    np.testing.assert_array_equal(data.train_images, x)
    assert data.notes == ("the training inputs are copied, since their rows are not contiguous in "
                          "memory",)


def test_images_are_flattened_and_their_shape_is_kept() -> None:
    x = RNG.integers(0, 256, (12, 4, 3, 2)).astype(np.uint8)
    data = from_arrays((x, Y), (x, Y))
    assert data.train_images.shape == (12, 24)
    assert data.image_shape == (4, 3, 2)
    assert np.shares_memory(data.train_images, x)


def test_types_that_differ_meet_in_float32() -> None:
    data = from_arrays((inputs("float16"), Y), (inputs("float32"), Y))
    assert data.train_images.dtype == data.test_images.dtype == np.float32
    assert data.normalisation.trivial


@pytest.mark.parametrize("other", ["float32", "float64", "int64"])
@pytest.mark.parametrize("swapped", [False, True])
def test_bytes_beside_numbers_of_unknown_scale_are_refused(other: str, swapped: bool) -> None:
    pixels = np.array([[0, 255], [51, 102]] * 6, np.uint8)
    parts = [(pixels, Y), ((pixels / 255).astype(other), Y)]
    first, second = parts[::-1] if swapped else parts
    refused(f"the {'validation' if swapped else 'training'} inputs are bytes.*normalise", first,
            second)
    data = from_arrays(first, second, normalise="none")
    assert data.train_images.max() == (second if swapped else first)[0].max() or swapped


def test_bytes_of_0_and_1_have_no_scale_to_mistake() -> None:
    bits = np.array([[0, 1], [1, 1]] * 6, np.uint8)
    assert from_arrays((bits, Y), (bits.astype("float32"), Y)).normalisation.trivial


def test_labels_may_be_wide() -> None:
    y = np.arange(12) * 30
    data = from_arrays((inputs(), y), (inputs(), y))
    assert data.classes == 331
    assert data.train_labels is not None
    assert data.train_labels.dtype == np.int32
    assert from_arrays((inputs(), Y), (inputs(), Y)).train_labels.dtype == np.uint8
    assert from_arrays((inputs(), Y.reshape(-1, 1)), (inputs(), Y)).train_labels.shape == (12,)
    assert from_arrays((inputs(), Y > 1), (inputs(), Y > 1)).classes == 2
    assert from_arrays((inputs(), Y), (inputs(), Y), classes=9).classes == 9


def test_words_are_classes_by_name() -> None:
    words = np.array(["dog", "cat", "eel"])[Y]
    data = from_arrays((inputs(), words), (inputs(), words[::-1]))
    assert data.label_names == ("cat", "dog", "eel")
    assert data.train_labels.tolist()[:3] == [1, 0, 2]
    assert data.test_labels.tolist()[:3] == [2, 0, 1]
    given = from_arrays((inputs(), words), (inputs(), words), label_names=["eel", "dog", "cat"])
    assert given.train_labels.tolist()[:3] == [1, 2, 0]
    with pytest.raises(DataError, match=r"validation labels: row 0 has the label 'emu', but the "
                                        r"classes are cat, dog, eel"):
        from_arrays((inputs(), words), (inputs(), ["emu"] * 12))


def test_a_class_that_the_split_leaves_to_validation_is_known() -> None:
    words = ["a"] * 11 + ["z"]
    for seed in range(9):
        assert from_arrays((inputs(), words), 0.5, seed=seed).classes == 2
        assert from_arrays((inputs(), [0] * 11 + [4]), 0.5, seed=seed).classes == 5


def test_floats_are_values() -> None:
    y = RNG.random(12)
    data = from_arrays((inputs(), y), (inputs(), y.astype(np.float32)))
    assert data.train_targets is not None
    assert (data.train_labels, data.classes, data.outputs) == (None, 0, 1)
    np.testing.assert_array_equal(data.train_targets, y.astype(np.float32).reshape(-1, 1))
    wide = RNG.integers(0, 2, (12, 4))
    assert from_arrays((inputs(), wide), (inputs(), wide)).outputs == 4
    shared = RNG.random((12, 2)).astype(np.float32)
    assert np.shares_memory(from_arrays((inputs(), shared), (inputs(), shared)).train_targets,
                            shared)


def test_kind_decides_where_the_guess_is_wrong() -> None:
    assert from_arrays((inputs(), Y), (inputs(), Y), kind="values").train_targets is not None
    assert from_arrays((inputs(), Y * 1.0), (inputs(), Y), kind="labels").classes == 3
    with pytest.raises(DataError, match=r"label in row 1 is 0\.5, but labels are whole numbers, "
                                        r"or words: round them, or use a loss of values"):
        from_arrays((inputs(), Y * 0.5), (inputs(), Y), kind="labels")


def test_without_y_it_is_an_autoencoder() -> None:
    data = from_arrays(inputs("uint8"), normalise="learned")
    assert data.autoencoder
    assert (data.outputs, data.classes, data.train_labels, data.train_targets) == (5, 0, None, None)
    both = from_arrays((inputs(), None), (inputs(), None))
    assert both.autoencoder
    labelled = from_arrays((inputs(), Y), (inputs(), Y)).reconstructing()
    assert (labelled.autoencoder, labelled.train_labels, labelled.outputs) == (True, None, 5)
    with pytest.raises(ConfigError, match="or to neither"):
        from_arrays((inputs(), Y), inputs())


def test_one_hot() -> None:
    data = from_arrays((inputs(), Y), (inputs(), Y)).one_hot()
    assert data.outputs == 3
    np.testing.assert_array_equal(data.train_targets, np.eye(3)[Y])
    with pytest.raises(ConfigError, match="has no class labels"):
        data.one_hot()


# -- the split -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "fraction", "size"), [(10, 0.2, 2), (7, 0.5, 4), (2, 0.01, 1),
                                                         (3, 0.99, 2), (1000, 0.1, 100),
                                                         (10, 0.17, 2), (10, 0.14, 1)])
def test_a_split_takes_every_row_once(count: int, fraction: float, size: int) -> None:
    first, second = split_rows(count, fraction, 3)
    assert len(second) == size
    assert sorted([*first, *second]) == list(range(count))
    assert split_rows(count, fraction, 3)[1].tolist() == second.tolist()


def test_another_seed_splits_otherwise() -> None:
    assert split_rows(1000, 0.1, 3)[1].tolist() != split_rows(1000, 0.1, 4)[1].tolist()


def test_rows_and_answers_stay_together() -> None:
    x = np.arange(40, dtype=np.float32).reshape(20, 2)
    data = from_arrays((x, np.arange(20)), 0.25)
    assert (len(data.train_images), len(data.test_images)) == (15, 5)
    np.testing.assert_array_equal(data.train_images[:, 0], data.train_labels * 2.0)
    np.testing.assert_array_equal(data.test_images[:, 0], data.test_labels * 2.0)


# -- refusals ------------------------------------------------------------------------------------


def refused(sentence: str, *data: Any, error: type[Exception] = DataError, **options: Any) -> None:
    with pytest.raises(error, match=sentence):
        from_arrays(*data, **options)


def poisoned(value: float) -> np.ndarray:
    x = inputs()
    x[7, 3] = value
    return x


def test_refusals_of_inputs() -> None:
    good = (inputs(), Y)
    refused(r"the training inputs are of shape \[12\]", (Y, Y), good)
    refused(r"the training inputs are empty", (inputs()[:0], Y[:0]), good)
    refused(r"the validation inputs are empty", good, (inputs()[:, :0], Y))
    refused(r"the training inputs are of type complex64", (inputs("complex64"), Y), good)
    refused(r"the training inputs are of type object", (inputs().astype(object), Y), good)
    refused(r"the training inputs are of type <U", (inputs().astype(str), Y), good)
    for value in (np.nan, np.inf, -np.inf):
        refused(rf"the training inputs hold {value} \(row 7, column 3\)", (poisoned(value), Y),
                good)
        refused(r"the validation inputs hold", good, (poisoned(value), Y))
    refused(r"row 0, column 0 is too large for float32", (inputs("float64") * 1e300, Y), good)
    refused(r"integers beyond 16,777,216", (np.full((12, 5), 2**40), Y), good)
    refused(r"have 5 features, but the validation inputs have 4", good, (inputs()[:, :4], Y))


def test_refusals_of_answers() -> None:
    good = (inputs(), Y)
    refused(r"the training inputs have 12 rows, but the training y has 11", (inputs(), Y[:11]),
            good)
    refused(r"training labels: row 1 has the label -1", (inputs(), -Y), good)
    refused(r"validation labels: row 2 has the label 5, but labels run from 0 to 2; a class that "
            r"the training labels lack needs a name", good, (inputs(), np.where(Y == 2, 5, Y)))
    refused(r"has the label 'c', but the classes are a, b; a class that",
            (inputs(), list("ab" * 6)), (inputs(), list("abc" * 4)))
    refused(r"row 2 has the label 2, but labels run from 0 to 1", good, good, classes=2)
    refused(r"the training values hold nan \(row 0", (inputs(), np.where(Y == 0, np.nan, 1)), good)
    refused(r"must be one for each example", (inputs(), np.zeros((12, 2), int)), good,
            kind="labels")
    refused(r"the training y has 2 columns, but the validation y has 1",
            (inputs(), np.zeros((12, 2))), (inputs(), np.zeros(12)))
    refused(r"values must be", (inputs(), np.zeros((12, 2, 2))), good)
    refused("2 label names, but 3 classes", good, good, error=ConfigError, classes=3,
            label_names=["a", "b"])
    refused("is a single number", (inputs(), np.float32(3)), good)


def test_refusals_of_arguments() -> None:
    refused(r"must be \(X, y\), not 3 arrays", (1, 2, 3), error=ConfigError)
    for fraction in (0.0, 1.0, -1.0, 7):
        refused("between 0 and 1", (inputs(), Y), fraction, error=ConfigError)
    refused("X has 12 rows, but y has 4", (inputs(), Y[:4]))
    refused("a single example", (inputs()[:1], Y[:1]))


# -- on a GPU ------------------------------------------------------------------------------------


def place(device: Device, array: np.ndarray) -> int:
    address = device.memory.allocate(array.nbytes, "X").address
    device.to_device(address, np.ascontiguousarray(array), "X")
    return address


def test_cuda_arrays_are_checked_and_can_be_used_in_place(device: Device) -> None:
    x, y = inputs(features=4), Y.astype(np.int32)
    pair = (Foreign(x, address=place(device, x)), Interface(place(device, y), y.shape, y.dtype))
    data = from_arrays(pair, (x, y), device=device)
    np.testing.assert_array_equal(data.train_images, x)
    np.testing.assert_array_equal(data.train_labels, y)
    assert set(data.resident) == {"train_images", "train_labels"}
    assert data.resident["train_images"].fits("float32", 4, 0)
    assert data.notes == ()
    assert set(data.reconstructing().resident) == {"train_images"}
    device.memory.free_all()


def test_answers_that_change_are_no_longer_those_on_the_gpu() -> None:
    """Inputs are still used in place."""
    data = from_arrays((inputs(), Y), (inputs(), Y))
    values = from_arrays((inputs(), inputs()[:, :2]), (inputs(), inputs()[:, :2]))
    parts = [f"{part}_{kind}" for part in ("train", "test")
             for kind in ("images", "labels", "targets")]
    resident: Any = {name: object() for name in parts}
    data, values = replace(data, resident=resident), replace(values, resident=resident)
    assert data.classes == 3
    moved = data.relabelled(("2", "0", "1"), ("2", "0", "1"))
    np.testing.assert_array_equal(moved.train_labels, (Y + 1) % 3)
    for changed in (moved, data.one_hot(), data.reconstructing(), values.with_targets("learned")):
        assert dict(changed.resident) == {
            name: resident[name] for name in ("train_images", "test_images")}
    for same in (data.relabelled(("0", "1", "2"), ()), data.relabelled(("0", "1", "2", "3"), ())):
        np.testing.assert_array_equal(same.train_labels, Y)
        assert dict(same.resident) == resident


def test_a_cuda_array_of_another_type_is_converted_and_that_is_said(device: Device) -> None:
    x, y = inputs("float64"), Y.astype(np.int64)
    pair = (Foreign(x, address=place(device, x)), Foreign(y, address=place(device, y)))
    data = from_arrays(pair, (x, y), device=device)
    assert data.resident == {}
    assert "converted from float64" in data.notes[0]
    device.memory.free_all()


def test_a_split_of_cuda_arrays_is_a_copy(device: Device) -> None:
    x = inputs()
    data = from_arrays((Foreign(x, address=place(device, x)), Y), 0.5, device=device)
    assert data.resident == {}
    assert "X is copied from the GPU" in data.notes[0]
    device.memory.free_all()


def test_a_nan_on_the_gpu_is_found(device: Device) -> None:
    x = poisoned(np.nan)
    refused(r"row 7, column 3", (Foreign(x, address=place(device, x)), Y), (inputs(), Y),
            device=device)
    device.memory.free_all()


def test_bfloat16_tensors_of_the_host() -> None:
    x = inputs().astype(ml_dtypes.bfloat16)
    data: Dataset = from_arrays((Foreign(x.view(np.uint16), BFLOAT16), Y), (inputs(), Y))
    np.testing.assert_array_equal(data.train_images, x.astype(np.float32))


@pytest.mark.parametrize("opt", ["preload", "preload,arena,nosync", "none"])
@pytest.mark.parametrize(("dtype", "features", "pitch"), [
    ("float32", 12, 12), ("uint8", 16, 16), ("float16", 12, 16), ("float32", 12, 20),
])
def test_training_reads_cuda_arrays_in_place(device: Device, opt: str, dtype: str, features: int,
                                             pitch: int) -> None:
    """Where type and layout are the tensor's own nothing is copied; and nothing else changes."""
    generator = np.random.default_rng(0)
    block = np.zeros((40, pitch), dtype)
    block[:, :features] = (generator.random((40, features)) * 9).astype(dtype)
    x, y = block[:, :features], generator.integers(0, 4, 40).astype(np.int32)
    strides = (pitch * block.itemsize, block.itemsize)
    gpu = (Interface(place(device, block), x.shape, dtype, strides),
           Interface(place(device, y), y.shape, "i4"))
    config = Config(layers=(features, 4), batch=8, epochs=2, opt=opt, device="sim")
    opened = Opened(device, machine_of(device), 0.0)
    found = []
    for data in (from_arrays(gpu, (x, y), device=device), from_arrays((x, y), (x, y))):
        with Session(config, Listener(), data=data, opened=opened) as session:
            addresses = session.runner._addresses
            placed = {gpu[0].__cuda_array_interface__["data"][0]: "images",
                      gpu[1].__cuda_array_interface__["data"][0]: "labels"}
            found.append((session.run().parameters,
                          {placed[a] for a in addresses.values() if a in placed}))
    layout_fits = pitch * block.itemsize % 16 == 0 and pitch - features < 16 // block.itemsize
    assert ("copied on the GPU" in "".join(from_arrays(gpu, (x, y), device=device).notes)) != \
        layout_fits
    assert found[0][1] == (set() if opt == "none" else {"images", "labels"} if layout_fits
                           else {"labels"})
    assert found[1][1] == set()
    for name, array in found[0][0].items():
        np.testing.assert_array_equal(array, found[1][0][name])
    device.memory.free_all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_after_a_random_split_errors_name_the_rows_of_the_file(seed: int, tmp_path: Path) -> None:
    x, labels = np.zeros((20, 3), np.float32), np.arange(20) % 2
    bad = x.copy()
    bad[13, 1] = np.nan
    with pytest.raises(DataError, match=r"\(row 13, column 1\)"):
        from_arrays((bad, labels), seed=seed)
    file = tmp_path / "own.npz"
    np.savez(file, X=bad, y=labels)
    with pytest.raises(DataError, match=r"\(row 13, column 1\)"):
        load_table(file, seed=seed)
    wide = x.astype(np.float64)
    wide[7, 2] = 1e300
    with pytest.raises(DataError, match="row 7, column 2"):
        from_arrays((wide, labels), seed=seed)
    with pytest.raises(DataError, match="row 11 has the label -1"):
        from_arrays((x, np.where(np.arange(20) == 11, -1, labels)), seed=seed)
    with pytest.raises(DataError, match=r"label in row 4 is 0\.5"):
        from_arrays((x, np.where(np.arange(20) == 4, 0.5, labels)), kind="labels", seed=seed)
    with pytest.raises(DataError, match="row 3 has the label 'c'"):
        from_arrays((x, np.array(["a", "b", "a", "c"] + ["b"] * 16)), label_names=("a", "b"),
                    seed=seed)
    with pytest.raises(DataError, match=r"values hold inf \(row 19, column 0\)"):
        from_arrays((x, np.where(np.arange(20) == 19, np.inf, 0.5)), seed=seed)


@pytest.mark.parametrize(("count", "message"), [(0, "no example"), (1, "a single example")])
def test_too_few_rows_to_split(count: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_arrays((np.zeros((count, 3), np.float32), np.zeros(count, np.int64)))


def test_nothing_where_an_array_should_be() -> None:
    x, y = np.zeros((8, 3), np.float32), np.arange(8) % 2
    with pytest.raises(DataError, match="X is None"):
        from_arrays((None, y))
    with pytest.raises(DataError, match="the training inputs are None"):
        from_arrays((None, y), (x, y))
    with pytest.raises(DataError, match="the validation inputs are None"):
        from_arrays((x, y), (None, y))


def test_masks_are_not_ignored() -> None:
    x, y = np.zeros((8, 3), np.float32), np.arange(8) % 2
    whole = from_arrays((np.ma.array(x), np.ma.array(y, mask=False)))
    assert type(whole.train_images) is np.ndarray
    with pytest.raises(DataError, match="X: 3 values are masked: fill them in"):
        from_arrays((np.ma.array(x, mask=np.eye(8, 3)), y))
    with pytest.raises(DataError, match="y: 4 values are masked"):
        from_arrays((x, np.ma.array(y, mask=y > 0)))


# -- data sets that a program built itself --------------------------------------------------------


def built(**changed: Any) -> Dataset:
    """One that fits the network (4, 2) or, with targets, (4, 1)."""
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.uint8)
    arrays = {"train_images": x, "train_labels": y, "test_images": x[:9], "test_labels": y[:9],
              "classes": 2}
    if "train_targets" in changed or "test_targets" in changed:
        arrays |= {"train_labels": None, "test_labels": None, "classes": 0,
                   "train_targets": x[:, :1], "test_targets": x[:9, :1]}
    return Dataset(**{"name": "mine", "image_shape": (4,), "source": "me", "synthetic": False,
                      **arrays, **changed})


@pytest.mark.parametrize("device", ["host", "sim"])
def test_a_data_set_built_by_hand_is_trained_on(device: str) -> None:
    run: dict[str, Any] = {"layers": (4, 2), "epochs": 2, "device": device}
    given = built()
    wanted = train(data=given, **run)
    assert wanted.config.batch == 4  # fewer than 128 examples fill no batch of 128
    wide = {f"{part}_{kind}": getattr(given, f"{part}_{kind}").astype(dtype)
            for part in ("train", "test") for kind, dtype in (("images", "f8"), ("labels", "i8"))}
    found = train(data=built(**wide), **run)
    for name, array in wanted.parameters.items():
        np.testing.assert_array_equal(found.parameters[name], array)
    assert (found.test_loss, found.test_accuracy) == (wanted.test_loss, wanted.test_accuracy)


_X = np.zeros((40, 4), np.float32)


@pytest.mark.parametrize(("changed", "sentence"), [
    ({"train_labels": np.full(40, -1, np.int32)}, "row 0 has the label -1, but labels run from 0"),
    ({"test_labels": np.full(9, 2, np.int32)}, "test labels of mine: row 0 has the label 2"),
    ({"train_labels": np.full(40, 0.5)}, "labels are whole numbers from 0"),
    ({"train_labels": np.zeros(39, np.uint8)}, r"labels of mine are of shape \[39\].*\[40\]"),
    ({"test_images": _X[:9, :3]}, r"test inputs of mine are of shape \[9, 3\].*\[examples, 4\]"),
    ({"test_images": _X[:0]}, r"test inputs of mine are of shape \[0, 4\]"),
    ({"train_images": _X.astype(str)}, "must be numbers"),
    ({"train_images": _X.reshape(40, 2, 2)}, r"of shape \[40, 2, 2\]"),
    ({"label_names": ("a",)}, "mine has 1 label names, but 2 classes"),
    ({"train_targets": _X[:, 0]}, r"training targets of mine are of shape \[40\]"),
    ({"test_targets": _X[:9, :2]}, r"test targets of mine are of shape \[9, 2\]"),
    ({"train_targets": _X[:30, :1]}, "targets of mine have 30 rows, but the inputs 40"),
])
def test_a_data_set_whose_arrays_do_not_fit_is_refused(changed: dict[str, Any], sentence: str
                                                       ) -> None:
    data = built(**changed)
    loss, outputs = ("cross_entropy", 2) if data.train_targets is None else ("mse", 1)
    for device in ("host", "sim"):
        with pytest.raises(DataError, match=sentence):
            train(data=data, layers=(4, outputs), loss=loss, epochs=1, device=device)


def test_options_of_files_are_refused_with_arrays_alone(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int)
    run: dict[str, Any] = {"layers": (2, 2), "epochs": 1, "device": "host"}
    for option in ({"target": "y"}, {"dataset": "synthetic"}, {"decimal": ","}, {"skip": "a"}):
        with pytest.raises(ConfigError, match="has no effect with arrays"):
            train(data=(x, y), **run, **option)
    file = tmp_path / "t.csv"
    file.write_text("a;b;y\n" + "".join(f"{a:.3f};{b:.3f};{c}\n".replace(".", ",")
                                        for (a, b), c in zip(x, y, strict=True)))
    members = train_many(data=str(file), target="y", decimal=",", lr=[0.1, 0.2], **run)
    again = train(members[1].config, data=members[1].dataset)  # as documented
    for name, array in members[1].model.parameters.items():
        np.testing.assert_array_equal(again.parameters[name], array)


@pytest.mark.parametrize("options", [
    {"validation": 0.2}, {"normalise": "none"}, {"normalise": "learned"}, {"validation": (_X, _X)},
    {"validation": 0.2, "normalise": "learned"}])
def test_a_data_set_is_divided_and_normalised_already(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="a Dataset has its own validation data and normal"):
        train(data=built(), layers=(4, 2), epochs=1, device="host", **options)


@pytest.mark.parametrize(("dtype", "is_text", "noted"), [
    ("float64", False, True), ("int32", False, True), ("float32", False, False),
    ("float64", True, False)])
def test_values_that_were_given_in_another_type_are_noted(dtype: str, is_text: bool,
                                                          noted: bool) -> None:
    """Those of a text have no type of their own."""
    x, y = np.zeros((6, 2), np.float32), np.arange(6).astype(dtype)
    data = from_arrays((x, y), (x, y), kind="values", is_text=is_text)
    assert any(f"values are converted from {dtype} to float32" in note
               for note in data.notes) is noted


@pytest.mark.parametrize("pair", [tuple, list])
def test_a_pair_may_be_a_list(pair: Any) -> None:
    x, y = np.arange(24, dtype=np.float32).reshape(12, 2), np.arange(12) % 3
    data = from_arrays(pair([x, y]), pair([x[:5], y[:5]]))
    assert (data.classes, len(data.train_images), len(data.test_images)) == (3, 12, 5)
    for given in ([x], [x, y, y]):
        with pytest.raises(ConfigError, match=f"must be \\(X, y\\), not {len(given)} arrays"):
            from_arrays(pair(given))


@pytest.mark.parametrize("seed", [-1, 1.5, True, "0", 2**63])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    with pytest.raises(ConfigError, match=r"seed = .* must be a whole number"):
        from_arrays((np.zeros((9, 2), np.float32), np.arange(9) % 2), seed=seed)


@pytest.mark.parametrize("count", [2, 255, 256, 257])
@pytest.mark.parametrize("way", ["numbers", "constructor"])
def test_labels_are_bytes_where_all_classes_fit(way: str, count: int) -> None:
    x, y = np.zeros((count, 4), np.float32), np.arange(count, dtype=np.int64)
    x[:, 0] = y
    if way == "constructor":
        data = built(train_images=x, test_images=x, train_labels=y, test_labels=y,
                     classes=count).checked()
    else:
        data = from_arrays((x, y), (x, y))
    reverse = data.relabelled(tuple(map(str, y[::-1])), ())
    for labels, wanted in ((data.train_labels, y), (data.test_labels, y),
                           (reverse.train_labels, y[::-1]), (reverse.test_labels, y[::-1])):
        assert labels is not None
        assert labels.dtype == (np.uint8 if count <= 256 else np.int32)
        assert labels.tolist() == wanted.tolist()


@pytest.mark.parametrize(("count", "text"), [
    (0, "none"), (1, "0"), (8, "0, 1, 2, 3, 4, 5, 6, 7"), (9, "0, 1, 2, 3, 4, 5, 6, 7, ...")])
def test_many_classes_are_named_by_the_first_eight(count: int, text: str) -> None:
    assert listed([*map(str, range(count))]) == text
