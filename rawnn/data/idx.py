"""IDX files: parse, validate, encode. The format is that of the MNIST page: two zero bytes, a type
code, the number of dimensions, one big-endian uint32 per dimension, then the elements, row-major.

Only unsigned bytes (type 0x08) are supported. Every reader checks the size that the header declares
against what the file can hold before it allocates, so that a corrupt header costs nothing.
"""

from __future__ import annotations

import math
import os
import stat
import struct
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from rawnn.common.errors import DataError

Bytes = NDArray[np.uint8]

GZIP_MAGIC = b"\x1f\x8b"
# Deflate's best case: a match of 258 bytes in two bits. No gzip file can expand more.
DEFLATE_MAX_RATIO = 1032
_CHUNK = 1 << 20
_TYPES = {
    0x08: "unsigned byte",
    0x09: "signed byte",
    0x0B: "int16",
    0x0C: "int32",
    0x0D: "float32",
    0x0E: "float64",
}


def encode(array: Bytes) -> bytes:
    """The IDX content (header and elements) of a uint8 array of any shape."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 0x08, array.ndim, *array.shape)
    return header + array.astype(np.uint8, copy=False).tobytes()


def parse_dims(head: bytes, ndim: int, where: str) -> tuple[int, ...]:
    """The dimensions declared by `head`, the first 4 + 4 * ndim bytes of an IDX file.

    Raises DataError, starting with `where`, unless it is an IDX file of unsigned bytes with `ndim`
    dimensions of at least one element each.
    """
    if len(head) < 4:
        raise DataError(f"{where} is truncated: {len(head)} bytes hold no IDX header")
    if head[:2] != b"\0\0" or head[2] not in _TYPES:
        raise DataError(
            f"{where} is not an IDX file: it starts with the bytes {head[:4].hex(' ')}, "
            f"not 00 00 08 {ndim:02x}"
        )
    if head[2] != 0x08:
        raise DataError(
            f"{where} holds {_TYPES[head[2]]} elements (IDX type 0x{head[2]:02x}), "
            "but only unsigned bytes (0x08) can be read"
        )
    if head[3] != ndim:
        expected = {1: "labels have 1", 3: "images have 3"}.get(ndim, f"expected {ndim}")
        raise DataError(f"{where} has {head[3]} dimensions, but {expected}")
    if len(head) < 4 + 4 * ndim:
        raise DataError(f"{where} is truncated: the file ends inside the IDX header")
    dims: tuple[int, ...] = struct.unpack_from(f">{ndim}I", head, 4)
    if 0 in dims:
        raise DataError(f"{where} is empty: its dimensions are {_shape(dims)}")
    return dims


def read_file(path: Path, ndim: int) -> tuple[Bytes, tuple[int, ...]]:
    """Read a raw or gzipped IDX file (distinguished by content, not by name).

    Returns the complete raw content, header included, as uint8 [bytes], and its dimensions. Raises
    DataError if the file cannot be read or is not exactly what its header declares.
    """
    try:
        with _open_regular(path) as file:
            if file.read(2) == GZIP_MAGIC:
                return _read_gzip(file, path, ndim)
            file.seek(0)
            size = os.fstat(file.fileno()).st_size
            dims = parse_dims(file.read(4 + 4 * ndim), ndim, str(path))
            _check_size(size, dims, path)
            file.seek(0)
            content = np.fromfile(file, np.uint8, size)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except MemoryError as error:
        raise DataError(f"{path} does not fit in memory") from error
    _check_size(content.size, dims, path)
    return content, dims


def map_file(path: Path, ndim: int) -> tuple[Bytes, tuple[int, ...]]:
    """Like `read_file` for a raw file, but mapped read-only instead of copied.

    Only for files that are never rewritten in place (the store's own): if a mapped file shrinks,
    reading it kills the process.
    """
    try:
        with _open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            dims = parse_dims(file.read(4 + 4 * ndim), ndim, str(path))
            _check_size(size, dims, path)
            content = np.memmap(file, np.uint8, mode="r")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    return np.asarray(content).view(np.ndarray), dims


def elements(content: Bytes, dims: tuple[int, ...]) -> Bytes:
    """The elements of raw IDX content as a view: [N] for labels, [N, features] for images."""
    flat = content[4 + 4 * len(dims) :]
    return flat if len(dims) == 1 else flat.reshape(dims[0], math.prod(dims[1:]))


def is_gzip(path: Path) -> bool:
    """Whether `path` begins like a gzip file; False if it cannot be read."""
    try:
        with _open_regular(path) as file:
            return file.read(2) == GZIP_MAGIC
    except OSError:
        return False


def _open_regular(path: Path) -> IO[bytes]:
    # A pipe or a terminal would block for ever: check the kind of file before opening it.
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(0, "it is not a regular file")
    return open(path, "rb")


def _read_gzip(file: IO[bytes], path: Path, ndim: int) -> tuple[Bytes, tuple[int, ...]]:
    import gzip
    import zlib

    compressed = os.fstat(file.fileno()).st_size
    file.seek(0)
    try:
        with gzip.GzipFile(fileobj=file, mode="rb") as stream:
            head = stream.read(4 + 4 * ndim)
            dims = parse_dims(head, ndim, str(path))
            declared = len(head) + math.prod(dims)
            if declared > compressed * DEFLATE_MAX_RATIO:
                raise DataError(
                    f"{path} is truncated or corrupt: its header declares {declared:,} bytes "
                    f"({_shape(dims)}), more than {compressed:,} gzipped bytes can hold"
                )
            raw = bytearray(head)
            while len(raw) < declared:
                chunk = stream.read(min(_CHUNK, declared - len(raw)))
                if not chunk:
                    break
                raw += chunk
            # One more byte detects trailing data, and makes gzip check its checksum.
            trailing = len(stream.read(1))
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is a corrupt gzip file: {error}") from error
    except EOFError as error:
        raise DataError(f"{path} is truncated: the gzip data end too early") from error
    _check_size(len(raw) + trailing, dims, path)
    return np.frombuffer(raw, np.uint8), dims


def _check_size(size: int, dims: tuple[int, ...], path: Path) -> None:
    declared = 4 + 4 * len(dims) + math.prod(dims)
    if size < declared:
        raise DataError(
            f"{path} is truncated: its header declares {declared:,} bytes ({_shape(dims)}), "
            f"but it holds {size:,}"
        )
    if size > declared:
        raise DataError(
            f"{path} has bytes after the {declared:,} that its header declares ({_shape(dims)})"
        )


def _shape(dims: tuple[int, ...]) -> str:
    return " x ".join(str(length) for length in dims)
