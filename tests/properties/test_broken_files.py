"""IDX files and results, ten thousand times broken: read, or refused in a sentence; no hang, no
huge allocation. (Configurations: tests/test_config.py.)"""

from __future__ import annotations

import gzip
import random
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from rawnn.bench.record import read_results
from rawnn.common.errors import ConfigError, DataError
from rawnn.data import idx
from tests.bench.built import results, rung
from tests.properties.mutation import Rewritten, mutants

IMAGES = idx.encode(np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5))
LABELS = idx.encode(np.arange(60, dtype=np.uint8))
HEADERS = [struct.pack(">I", n) for n in (0, 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1)]
HEADERS += [bytes([0, 0, kind, dims]) for kind in (8, 9, 13) for dims in (0, 1, 3, 255)]


@pytest.mark.parametrize("packed", [False, True], ids=["raw", "gzip"])
@pytest.mark.parametrize(("content", "ndim"), [(IMAGES, 3), (LABELS, 1)], ids=["images", "labels"])
def test_idx_files(tmp_path: Path, content: bytes, ndim: int, packed: bool) -> None:
    """2,500 each; half of the gzipped ones are broken inside, half outside."""
    generator = random.Random(ndim)
    stream = mutants(content, HEADERS, 1250 if packed else 2500, generator)
    broken = [gzip.compress(c, 1, mtime=0) if packed else c for c in stream]
    if packed:
        broken += mutants(gzip.compress(content, mtime=0), HEADERS, 1250, generator)
    read = 0
    tracemalloc.start()
    try:
        with Rewritten(tmp_path / "file") as file:
            for mutant in broken:
                file.write(mutant)
                try:
                    raw, dims = idx.read_file(file.path, ndim)
                except DataError as error:
                    assert str(error).startswith(str(file.path))  # noqa: PT017
                    assert "\n" not in str(error)  # noqa: PT017
                else:
                    read += 1
                    assert idx.elements(raw, dims).size == np.prod(dims, dtype=object)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert 100 < read < 2400


def test_results_of_a_ladder(tmp_path: Path) -> None:
    results(rung("baseline", 20.0, 22.0), rung("fuse", 10.0)).write(tmp_path / "good.json")
    good = (tmp_path / "good.json").read_bytes()
    pieces = [b"null", b"true", b"-1", b"1e999", b"9" * 5000, b"[" * 3000, b'{"a":' * 3000, b'"',
              b"{}", b"[]", b"\\ud800", b"\xff", b",", b":", b'"format":1,', b"NaN"]
    read = 0
    with Rewritten(tmp_path / "ladder.json") as file:
        for mutant in mutants(good, pieces, 10_000, random.Random(2)):
            file.write(mutant)
            try:
                found = read_results(file.path)
            except ConfigError as error:
                assert str(error)  # noqa: PT017 (either outcome is right)
            else:
                read += 1
                assert found.format == 2
    assert 500 < read < 9500
