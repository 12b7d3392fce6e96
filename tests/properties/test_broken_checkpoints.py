"""Checkpoints and tables, thousands of times broken: read, or refused in a sentence; no hang, no
huge allocation, and never numbers that differ from those written."""

from __future__ import annotations

import random
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from rawnn.common.errors import CheckpointError, ConfigError, DataError
from rawnn.data.tables import load_table
from rawnn.engine import checkpoint
from rawnn.model.layers import Network
from tests.engine import same_parameters
from tests.properties.mutation import Rewritten, mutants

NETWORK = Network((5, 4, 3))


def test_checkpoints(tmp_path: Path) -> None:
    """10,000 mutants: what is still read holds the very numbers that were written."""
    made = checkpoint.Checkpoint(NETWORK, NETWORK.initial(0), 7, {"clock": np.array([7, 49])},
                                 {"lr": 0.1}, label_names=("a", "b", "c"))
    good = checkpoint.encode(made)
    pieces = [struct.pack("<Q", n) for n in (0, 1, 8, 2**31, 2**40, 2**63, 2**64 - 1)]
    pieces += [b"null", b"[" * 3000, b'{"a":' * 3000, b'"', b"{}", b"[]", b"\\ud800", b"\xff", b",",
               b'"__metadata__":{},', b'"F32"', b"9" * 5000, b"\0" * 64]
    read = 0
    tracemalloc.start()
    try:
        with Rewritten(tmp_path / "c.safetensors") as file:
            for mutant in mutants(good, pieces, 10_000, random.Random(1)):
                file.write(mutant)
                try:
                    found = checkpoint.read(file.path)
                except CheckpointError as error:
                    assert str(error).startswith(str(file.path))  # noqa: PT017
                    assert "\n" not in str(error)  # noqa: PT017
                else:
                    read += 1
                    assert found.epoch == 7
                    same_parameters(found, made)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert read < 3000


@pytest.mark.parametrize("suffix", ["csv", "npz"])
def test_tables(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t.{suffix}"
    if suffix == "csv":
        path.write_text("a,b,kind\n" + "".join(f"{i}.5,{i * i},{'xyz'[i % 3]}\n"
                                               for i in range(20)))
    else:
        np.savez(path, X=np.arange(40, dtype=np.float32).reshape(20, 2), y=np.arange(20) % 3)
    good = path.read_bytes()
    pieces = [b"nan", b"1e999", b'"', b"\n", b",", b"\0", b"\xff", b"9" * 400, b"(9,)", b"<f4",
              b"|O", b",,,", b"-1", b"PK\x03\x04"]
    read = 0
    with Rewritten(path) as file:
        for mutant in mutants(good, pieces, 2500, random.Random(3)):
            file.write(mutant)
            try:
                data = load_table(path, "kind" if suffix == "csv" else None)
            except (DataError, ConfigError) as error:
                assert "\n" not in str(error)  # noqa: PT017 (either outcome is right)
                assert str(error)  # noqa: PT017
            else:
                read += 1
                assert np.isfinite(data.train_images).all()
    assert 20 < read < 2490
