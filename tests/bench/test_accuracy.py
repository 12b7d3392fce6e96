from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rawnn.bench.accuracy import (
    Oracle,
    data_digest,
    default_path,
    find_oracle,
    host_accuracy,
    keep_oracle,
    read_oracles,
)
from rawnn.common.errors import ConfigError, TrainingDiverged
from rawnn.engine.config import Config
from rawnn.engine.training import Listener, Session
from tests.engine import random_dataset

DATA = random_dataset(train=140)
CONFIG = Config(layers=(29, 11, 7), batch=8, epochs=3, lr=0.2, device="host")


def test_it_agrees_with_a_float32_run_of_the_same_seed() -> None:
    heard: list[tuple[int, float]] = []
    oracle = host_accuracy(CONFIG, (0, 1, 2), data=DATA, on_seed=lambda s, a: heard.append((s, a)))
    assert heard == list(zip((0, 1, 2), oracle.accuracies, strict=True))
    assert oracle.mean == pytest.approx(np.mean(oracle.accuracies))
    assert oracle.std == pytest.approx(np.std(oracle.accuracies, ddof=1))
    with Session(replace(CONFIG, opt="none", seed=1), Listener(), data=DATA) as session:
        assert session.run().test_accuracy == pytest.approx(oracle.accuracies[1], abs=0.05)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_divergence_is_an_error() -> None:
    with pytest.raises(TrainingDiverged, match="seed 0"):
        host_accuracy(replace(CONFIG, lr=1e200), (0,), data=DATA)


def test_what_is_kept_is_found_for_the_same_run_only(tmp_path: Path) -> None:
    path = tmp_path / "new" / "oracle.json"
    assert find_oracle(path, CONFIG, DATA) is None
    oracle = host_accuracy(CONFIG, (0, 1), data=DATA)
    keep_oracle(path, oracle)
    assert find_oracle(path, replace(CONFIG, seed=5, opt="fuse", device="auto"), DATA) == oracle
    for change in ({"epochs": 4}, {"batch": 4}, {"lr": 0.1}, {"layers": (29, 7)},
                   {"dataset": "idx"}):
        assert find_oracle(path, replace(CONFIG, **change), DATA) is None
    assert find_oracle(path, CONFIG, random_dataset(train=140, seed=1)) is None


def test_an_oracle_replaces_its_predecessor_and_no_other(tmp_path: Path, oracle: Oracle) -> None:
    path = tmp_path / "oracle.json"
    mine = host_accuracy(CONFIG, (0,), data=DATA)
    for entry in (oracle, mine, host_accuracy(CONFIG, (0, 1), data=DATA)):
        keep_oracle(path, entry)
    assert [o.seeds for o in read_oracles(path)] == [oracle.seeds, (0, 1)]


@pytest.mark.parametrize("content", ["{", '{"entries": 3}', '{"schema_version": 9}'])
def test_other_files_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "oracle.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=str(path)):
        read_oracles(path)


def test_the_kept_reference_for_mnist_is_over_at_least_ten_seeds() -> None:
    entry = next(o for o in read_oracles(default_path())
                 if (o.layers, o.dataset) == ((784, 10), "mnist"))
    assert len(set(entry.seeds)) == len(entry.accuracies) >= 10
    assert (entry.epochs, entry.batch, entry.lr) == (20, 128, 0.1)
    assert entry.mean == pytest.approx(np.mean(entry.accuracies))
    assert entry.std == pytest.approx(np.std(entry.accuracies, ddof=1))


def test_the_digest_sees_every_array() -> None:
    for field in ("train_images", "train_labels", "test_images", "test_labels"):
        changed = getattr(DATA, field).copy()
        changed.flat[0] ^= 1
        assert data_digest(replace(DATA, **{field: changed})) != data_digest(DATA)


@pytest.mark.parametrize(("accuracy", "agrees"), [
    (0.93, True), (0.89, True), (0.9301, False), (0.8899, False), (0.91, True)])
def test_an_accuracy_agrees_within_two_deviations(oracle: Oracle, accuracy: float, agrees: bool
                                                  ) -> None:
    assert oracle.agrees(accuracy) is agrees
