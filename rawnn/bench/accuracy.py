"""The accuracy that a correct run reaches: the host runner in float64, over several seeds.

Every rung of a ladder must reach it within two of its standard deviations. It costs a minute or
so of CPU time and depends on nothing but the configuration and the data, so it is kept in a file.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

import rawnn
from rawnn.bench.statistics import mean_std
from rawnn.common.errors import ConfigError, TrainingDiverged
from rawnn.common.files import cache_directory, write_atomically
from rawnn.data import Dataset, load_dataset
from rawnn.engine.config import Config
from rawnn.engine.data_source import check_fit, settled
from rawnn.engine.runners.host import HostRunner
from rawnn.engine.runners.prepared_run import prepare
from rawnn.opts import select
from rawnn.opts.registry import Machine

FORMAT = 1
SEEDS = tuple(range(10))
TOLERATED_DEVIATIONS = 2.0
HOST = Machine("the float64 reference runs on the host")


class Oracle(msgspec.Struct, frozen=True, kw_only=True):
    """Test accuracies (0-1) of float64 host runs, one for each seed, after `epochs` epochs.

    `data_digest` identifies the examples themselves. `std` is the sample standard deviation.
    """

    layers: tuple[int, ...]
    epochs: int
    batch: int
    lr: float
    dataset: str
    data_digest: str
    seeds: tuple[int, ...]
    accuracies: tuple[float, ...]
    mean: float
    std: float

    def agrees(self, accuracy: float) -> bool:
        """Whether an accuracy lies within two standard deviations of the mean."""
        return abs(accuracy - self.mean) <= TOLERATED_DEVIATIONS * self.std + 1e-12

    def matches(self, config: Config, digest: str) -> bool:
        """Whether this is the oracle of a configuration (whatever its seed and toggles)."""
        return (
            (self.layers, self.epochs, self.batch, self.lr, self.dataset, self.data_digest)
            == (config.layers, config.epochs, config.recipe().batch, config.lr, config.dataset,
                digest)
        )


class OracleFile(msgspec.Struct, kw_only=True):
    """What the file holds."""

    schema_version: int = FORMAT
    entries: list[Oracle] = []


def data_digest(data: Dataset) -> str:
    """BLAKE2 of all examples and labels."""
    digest = hashlib.blake2b(digest_size=16)
    for array in (data.train_images, data.train_labels, data.test_images, data.test_labels):
        if array is None:
            continue
        digest.update(str(array.shape).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def host_accuracy(config: Config, seeds: Sequence[int] = SEEDS, *, data: Dataset | None = None,
                  on_seed: Callable[[int, float], None] = lambda seed, accuracy: None) -> Oracle:
    """Train `config` in float64 on the host once for each seed; `config.opt` plays no part.

    `on_seed` hears each seed and its accuracy. Raises ConfigError, DataError, TrainingDiverged.
    """
    data = data or load_dataset(config.dataset, config.data)
    check_fit(config, data)
    config, _ = settled(config, data)
    network, recipe = config.network(), config.recipe()
    # Gathering from uint8 rather than keeping the whole set as float64 saves 376 MB for MNIST.
    selection = select("none,preload", network, recipe.steps(len(data.train_images)), HOST)
    accuracies = []
    for seed in seeds:
        work = prepare(network, data, selection, replace(recipe, seed=seed))
        runner = HostRunner(work, "float64")
        try:
            for _ in range(config.epochs):
                runner.epoch(measured=False)
            evaluation = runner.evaluate()
        finally:
            runner.close()
        if not math.isfinite(evaluation.loss):
            raise TrainingDiverged(
                f"the float64 reference diverges with seed {seed}: use a smaller learning rate "
                f"than {config.lr:g}"
            )
        accuracies.append(evaluation.accuracy)
        on_seed(seed, evaluation.accuracy)
    mean, std = mean_std(accuracies)
    return Oracle(
        layers=config.layers, epochs=config.epochs, batch=recipe.batch, lr=config.lr,
        dataset=config.dataset, data_digest=data_digest(data), seeds=tuple(seeds),
        accuracies=tuple(accuracies), mean=mean, std=std,
    )


def default_path() -> Path:
    """results/oracle.json of the source tree that rawnn runs from, else of rawnn's cache, which
    RAWNN_CACHE moves."""
    root = Path(rawnn.__file__).resolve().parent.parent
    if (root / "pyproject.toml").exists():
        return root / "results" / "oracle.json"
    return cache_directory() / "oracle.json"


def read_oracles(path: Path) -> list[Oracle]:
    """The oracles kept in a file; none where it does not exist.

    Raises ConfigError for a file that is not one of oracles.
    """
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=OracleFile)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(
            f"cannot read the reference accuracies {path}: {error.strerror}"
        ) from None
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"{path} does not hold reference accuracies ({error}): delete it, or compute them anew "
            f"into another file"
        ) from None
    if kept.schema_version != FORMAT:
        raise ConfigError(f"{path} has schema version {kept.schema_version}, and this rawnn reads "
                          f"{FORMAT}: compute the reference accuracies anew into another file")
    return kept.entries


def find_oracle(path: Path, config: Config, data: Dataset) -> Oracle | None:
    """The oracle of a configuration, if the file has it."""
    entries = read_oracles(path)
    if not entries:
        return None
    digest = data_digest(data)
    return next((o for o in entries if o.matches(config, digest)), None)


def keep_oracle(path: Path, oracle: Oracle) -> None:
    """Add an oracle to the file, in place of one for the same configuration and data."""
    def key(o: Oracle) -> tuple[object, ...]:
        return o.layers, o.epochs, o.batch, o.lr, o.dataset, o.data_digest

    entries = [o for o in read_oracles(path) if key(o) != key(oracle)] + [oracle]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the directory {path.parent}: {error.strerror}") from None
    content = msgspec.json.encode(OracleFile(entries=entries))
    write_atomically(path, msgspec.json.format(content, indent=2) + b"\n")
