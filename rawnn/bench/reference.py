"""The accuracy that a correct run reaches: the host runner in float64, over several seeds.

Every rung of a ladder must reach it within two of its standard deviations. It costs a minute or
so of CPU time and depends on nothing but the configuration and the data, so it is stored in a file.
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
from rawnn.bench.harness import place_of
from rawnn.bench.record import Record, Results, Value, read_results
from rawnn.common.errors import ConfigError, TrainingDiverged
from rawnn.common.files import cache_directory
from rawnn.data import Dataset
from rawnn.engine.config import Config
from rawnn.engine.data_source import check_fit, settled
from rawnn.engine.machine import Opened
from rawnn.engine.runners.host import HostRunner
from rawnn.engine.runners.prepared_run import prepare
from rawnn.opts import select
from rawnn.opts.registry import Machine

REFERENCE = "reference"
SEEDS = tuple(range(10))
HOST = Machine("the float64 reference runs on the host")


def data_digest(data: Dataset) -> str:
    """BLAKE2 of all examples and labels."""
    digest = hashlib.blake2b(digest_size=16)
    for array in (data.train_images, data.train_labels, data.test_images, data.test_labels):
        if array is None:
            continue
        digest.update(str(array.shape).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def conditions_of(config: Config, data: Dataset) -> dict[str, Value]:
    """What the reference of a configuration depends on; its seed and toggles play no part."""
    return {"layers": list(config.layers), "epochs": config.epochs, "batch": config.recipe().batch,
            "lr": config.lr, "dataset": config.dataset, "data_digest": data_digest(data)}


def host_accuracy(config: Config, data: Dataset, seeds: Sequence[int] = SEEDS,
                  on_seed: Callable[[int, float], None] = lambda seed, accuracy: None) -> Record:
    """Train `config` in float64 on the host once for each seed: the test accuracies (0-1), one
    sample a seed.

    `on_seed` gets each seed and its accuracy. Raises ConfigError, DataError, TrainingDiverged.
    """
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
                runner.epoch(reported=False)
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
    return Record(case="ladder", variant=REFERENCE, precision="float64", metric="accuracy",
                  samples=accuracies,
                  conditions={**conditions_of(config, data), "seeds": list(seeds)})


# -- where it is stored ----------------------------------------------------------------------------


def default_path() -> Path:
    """results/oracle.json of the source tree that rawnn runs from, else of rawnn's cache, which
    RAWNN_CACHE moves."""
    root = Path(rawnn.__file__).resolve().parent.parent
    if (root / "pyproject.toml").exists():
        return root / "results" / "oracle.json"
    return cache_directory() / "oracle.json"


def read_references(path: Path) -> Results:
    """What a file has; nothing where it does not exist. Raises ConfigError for a file that is
    none of references."""
    if not path.exists():
        return Results()
    try:
        return read_results(path)
    except ConfigError as error:
        raise ConfigError(f"{error}: delete it, or name another file by --oracle-file") from None


def find_reference(path: Path, config: Config, data: Dataset) -> Record | None:
    """The reference of a configuration, if the file has it."""
    stored = read_references(path).where("ladder", variant=REFERENCE)
    if not stored:
        return None
    wanted = conditions_of(config, data)
    return next((r for r in stored if wanted.items() <= r.conditions.items()), None)


def store_reference(path: Path, reference: Record) -> None:
    """Add a reference to the file, in place of one for the same configuration and data."""
    results, place = read_references(path), place_of(Opened(None, HOST, 0.0), {})
    alike = {**reference.conditions, "seeds": None}
    results.records = [r for r in results.records if {**r.conditions, "seeds": None} != alike]
    results.environments[place.key] = place
    results.update([msgspec.structs.replace(reference, environment=place.key)])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the directory {path.parent}: {error.strerror}") from None
    results.write(path)
