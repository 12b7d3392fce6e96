"""The accuracy that a correct run reaches: the host runner in float64, over several seeds. Where it
was computed, every rung of a ladder must reach it within two of its standard deviations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from rawnn.bench.record import Record
from rawnn.bench.render.training import REFERENCE
from rawnn.common.errors import TrainingDiverged
from rawnn.data import Dataset
from rawnn.engine.config import Config
from rawnn.engine.data_source import check_fit, settled
from rawnn.engine.runners.host import HostRunner
from rawnn.engine.runners.prepared_run import prepare
from rawnn.opts import select
from rawnn.opts.registry import Machine

SEEDS = tuple(range(10))
HOST = Machine("the float64 reference runs on the host")


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
                  samples=accuracies, conditions={
                      "layers": list(config.layers), "epochs": config.epochs,
                      "batch": recipe.batch, "lr": config.lr, "dataset": config.dataset,
                      "seeds": list(seeds)})
