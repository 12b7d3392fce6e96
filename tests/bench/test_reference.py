"""The accuracy that float64 reaches on the host: computed, kept, found for the same run only."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rawnn.bench.reference import (
    data_digest,
    default_path,
    find_reference,
    host_accuracy,
    read_references,
    store_reference,
)
from rawnn.common.errors import ConfigError, TrainingDiverged
from rawnn.common.listener import Listener
from rawnn.engine.config import Config
from rawnn.engine.session import Session
from tests.engine import random_dataset

DATA = random_dataset(train=140)
CONFIG = Config(layers=(29, 11, 7), batch=8, epochs=3, lr=0.2, device="host")


def test_it_agrees_with_a_float32_run_of_the_same_seed() -> None:
    received: list[tuple[int, float]] = []
    found = host_accuracy(CONFIG, DATA, (0, 1, 2), lambda s, a: received.append((s, a)))
    assert received == list(zip((0, 1, 2), found.samples, strict=True))
    with Session(replace(CONFIG, opt="none", seed=1), Listener(), data=DATA) as session:
        assert session.run().test_accuracy == pytest.approx(found.samples[1], abs=0.05)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_divergence_is_an_error() -> None:
    with pytest.raises(TrainingDiverged, match="seed 0"):
        host_accuracy(replace(CONFIG, lr=1e200), DATA, (0,))


def test_what_is_kept_is_found_for_the_same_run_only(tmp_path: Path) -> None:
    path = tmp_path / "new" / "oracle.json"
    assert find_reference(path, CONFIG, DATA) is None
    for seeds in ((0,), (0, 1)):  # the second replaces the first
        store_reference(path, host_accuracy(CONFIG, DATA, seeds))
    store_reference(path, host_accuracy(replace(CONFIG, epochs=2), DATA, (0,)))
    assert [r.conditions["seeds"] for r in read_references(path).records] == [[0, 1], [0]]
    found = find_reference(path, replace(CONFIG, seed=5, opt="fuse", device="auto"), DATA)
    assert found
    assert found.samples == host_accuracy(CONFIG, DATA, (0, 1)).samples
    for change in ({"epochs": 4}, {"batch": 4}, {"lr": 0.1}, {"layers": (29, 7)},
                   {"dataset": "idx"}):
        assert find_reference(path, replace(CONFIG, **change), DATA) is None
    assert find_reference(path, CONFIG, random_dataset(train=140, seed=1)) is None


def test_a_file_of_the_older_format_is_read(tmp_path: Path) -> None:
    path = tmp_path / "oracle.json"
    path.write_text(json.dumps({"schema_version": 1, "entries": [{
        "layers": [29, 11, 7], "epochs": 3, "batch": 8, "lr": 0.2, "dataset": "mnist",
        "data_digest": data_digest(DATA), "seeds": [0, 1], "accuracies": [0.5, 0.7], "mean": 0.6,
        "std": 0.1}]}))
    found = find_reference(path, CONFIG, DATA)
    assert found
    assert found.samples == [0.5, 0.7]


@pytest.mark.parametrize("content", ["{", '{"entries": 3}', '{"schema_version": 9}'])
def test_other_files_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "oracle.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=rf"{path}.*: delete it, or name another file"):
        read_references(path)


def test_the_kept_reference_for_mnist_is_over_at_least_ten_seeds() -> None:
    found = next(r for r in read_references(default_path()).records
                 if (r.conditions["layers"], r.conditions["dataset"]) == ([784, 10], "mnist"))
    seeds = found.conditions["seeds"]
    assert isinstance(seeds, list)
    assert len(set(seeds)) == len(found.samples) >= 10
    assert [found.conditions[name] for name in ("epochs", "batch", "lr")] == [20, 128, 0.1]
    assert np.mean(found.samples) == pytest.approx(0.9224, abs=1e-4)


def test_the_digest_sees_every_array() -> None:
    for field in ("train_images", "train_labels", "test_images", "test_labels"):
        changed = getattr(DATA, field).copy()
        changed.flat[0] ^= 1
        assert data_digest(replace(DATA, **{field: changed})) != data_digest(DATA)
