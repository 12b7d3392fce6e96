from __future__ import annotations

import gzip
import os
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rawnn.common.errors import DataError
from rawnn.data import idx

IMAGES = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
RAW = idx.encode(IMAGES)


def header(*dims: int, kind: int = 8, zero: bytes = b"\0\0") -> bytes:
    return zero + bytes([kind, len(dims)]) + struct.pack(f">{len(dims)}I", *dims)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["raw", "gzip"])
@pytest.mark.parametrize("name", ["images", "images.gz"])
def test_round_trip_by_content_not_by_name(tmp_path: Path, pack, name) -> None:
    path = tmp_path / name
    path.write_bytes(pack(RAW))
    content, dims = idx.read_file(path, 3)
    assert dims == (3, 4, 5)
    assert content.tobytes() == RAW
    assert (idx.elements(content, dims) == IMAGES.reshape(3, 20)).all()


def test_map_file_is_read_only_and_equal(tmp_path: Path) -> None:
    path = tmp_path / "images"
    path.write_bytes(RAW)
    content, dims = idx.map_file(path, 3)
    assert type(content) is np.ndarray
    assert not content.flags.writeable
    assert content.tobytes() == RAW
    assert dims == (3, 4, 5)


def test_labels_are_one_dimensional(tmp_path: Path) -> None:
    path = tmp_path / "labels"
    path.write_bytes(idx.encode(np.array([7, 2, 1], np.uint8)))
    content, dims = idx.read_file(path, 1)
    assert idx.elements(content, dims).tolist() == [7, 2, 1]


BAD = {
    "nothing": (b"", "hold no IDX header"),
    "text": (b"<html>not found</html>", "is not an IDX file: it starts with the bytes 3c 68"),
    "type unknown": (header(3, 4, 5, kind=0x0A), "is not an IDX file"),
    "floats": (header(3, 4, 5, kind=0x0D), "holds float32 elements"),
    "labels for images": (idx.encode(np.zeros(3, np.uint8)), "has 1 dimensions, but images have 3"),
    "cut in the header": (RAW[:9], "ends inside the IDX header"),
    "truncated": (RAW[:-1], "declares 76 bytes (3 x 4 x 5), but it holds 75"),
    "trailing": (RAW + b"\0", "has bytes after the 76"),
    "empty": (header(0, 4, 5), "is empty"),
    "huge": (header(2**32 - 1, 2**32 - 1, 2**32 - 1) + b"1234", "is truncated"),
}


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["raw", "gzip"])
@pytest.mark.parametrize("case", BAD)
def test_bad_content_is_one_sentence(tmp_path: Path, pack, case: str) -> None:
    content, message = BAD[case]
    path = tmp_path / "file"
    path.write_bytes(pack(content))
    with pytest.raises(DataError) as caught:
        idx.read_file(path, 3)
    if pack is bytes or case not in ("truncated", "huge"):
        assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["raw", "gzip"])
@pytest.mark.parametrize("array", [IMAGES[:2, :2, :1], IMAGES[0, 0, :3]], ids=["images", "labels"])
def test_a_file_that_ends_anywhere_is_refused(tmp_path: Path, pack, array: np.ndarray) -> None:
    """Cut behind any number of bytes, as it is or before it was packed."""
    whole, path = idx.encode(array), tmp_path / "cut"
    for length in range(len(whole)):
        path.write_bytes(pack(whole[:length]))
        for read in (idx.read_file, *([idx.map_file] if pack is bytes else [])):
            with pytest.raises(DataError, match=r"cut (is truncated|declares|is not)"):
                read(path, array.ndim)
    path.write_bytes(pack(whole))
    assert idx.read_file(path, array.ndim)[1] == array.shape


def test_bad_gzip(tmp_path: Path) -> None:
    path = tmp_path / "file.gz"
    packed = gzip.compress(RAW)
    path.write_bytes(packed[:-12])
    with pytest.raises(DataError, match="truncated: the gzip data end too early"):
        idx.read_file(path, 3)
    path.write_bytes(packed[:-8] + bytes(8))  # a wrong CRC, behind all of the data
    with pytest.raises(DataError, match="corrupt gzip file"):
        idx.read_file(path, 3)
    path.write_bytes(packed[:10] + b"\xff" * 20)
    with pytest.raises(DataError, match="corrupt gzip file"):
        idx.read_file(path, 3)


def test_a_gzip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(RAW + bytes(200 << 20), compresslevel=1))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="has bytes after the 76"):
            idx.read_file(path, 3)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_gzip_header_that_declares_the_impossible(tmp_path: Path) -> None:
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(header(2**31, 28, 28) + bytes(1000)))
    with pytest.raises(DataError, match=r"more than \d+ gzipped bytes can hold"):
        idx.read_file(path, 3)


def test_no_regular_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: No such file"):
        idx.read_file(tmp_path / "none", 3)
    with pytest.raises(DataError, match="not a regular file"):
        idx.read_file(tmp_path, 3)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")  # opening it would wait for a writer for ever
        with pytest.raises(DataError, match="not a regular file"):
            idx.read_file(tmp_path / "pipe", 3)
        assert not idx.is_gzip(tmp_path / "pipe")


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A good file, raw or gzipped, with bytes changed, cut out or put in; mostly at its start."""
    content = bytearray(draw(st.sampled_from([RAW, gzip.compress(RAW, mtime=0)])))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, draw(st.sampled_from([16, len(content)]))))
        how = draw(st.sampled_from(["change", "cut", "insert"]))
        if how == "change":
            content[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
        elif how == "cut":
            del content[at : at + draw(st.integers(1, 8))]
        else:
            content[at:at] = draw(st.binary(min_size=1, max_size=8))
    if draw(st.booleans()):
        return gzip.compress(bytes(content), mtime=0)
    return bytes(content)


@settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(content=mutated(), ndim=st.sampled_from([1, 3]))
@example(content=gzip.compress(RAW)[:10], ndim=3)
@example(content=b"\x1f\x8b", ndim=3)
def test_fuzzed_files_are_read_or_refused(tmp_path: Path, content: bytes, ndim: int) -> None:
    """Whatever the bytes: a valid result or a DataError, and little memory."""
    path = tmp_path / "fuzzed"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        raw, dims = idx.read_file(path, ndim)
        assert idx.elements(raw, dims).size == int(np.prod(dims)) == raw.size - 4 - 4 * ndim
    except DataError as error:
        assert "\n" not in str(error)  # noqa: PT017 (either outcome is right)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 4 << 20
