"""What a ladder found out, as one versioned schema: what --json writes and `show` reads.

docs/measuring.md explains every key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

import msgspec

from rawnn.bench.accuracy import Oracle
from rawnn.bench.clocks import ClockSample, summarize
from rawnn.bench.conditions import Conditions, merged
from rawnn.bench.footprint import Footprint
from rawnn.bench.measured import Measured, read_measured
from rawnn.bench.statistics import Spread, mean_std, spread
from rawnn.engine.config import Config
from rawnn.engine.machine import Opened
from rawnn.engine.result import Environment, Result, environment

SCHEMA_VERSION = 1

GPU_TIMER = {
    "average_epoch_ms": (
        "time between two events on the device, recorded before the first and after the last "
        "command of an epoch, averaged over the later half of the run's epochs; it covers "
        "gathering the batches, forward pass, loss, accuracy, backward pass, update and, where an "
        "epoch is measured, the copies of loss and accuracy to the host"
    ),
    "total_ms": (
        "wall clock over all epochs, the wait for the last metrics included; imports, data, "
        "driver, compilation, graph construction and test evaluation excluded"
    ),
}
HOST_TIMER = {
    "average_epoch_ms": "wall clock around the NumPy operations of an epoch, averaged over the "
                        "later half of the run's epochs",
    "total_ms": "wall clock over all epochs; imports, data, setup and test evaluation excluded",
}

SIMULATED_TIMER = {
    "average_epoch_ms": "wall clock of the simulation, which computes with NumPy, averaged over "
                        "the later half of the run's epochs: it says nothing about a GPU",
    "total_ms": "wall clock of the simulation over all epochs: it says nothing about a GPU",
}

Status = Literal["measured", "unavailable", "failed"]


def timer_of(opened: Opened) -> dict[str, str]:
    """What the times of a measurement are, in sentences, by the name of the figure."""
    if opened.device is None:
        return HOST_TIMER
    return SIMULATED_TIMER if opened.device.backend.name == "sim" else GPU_TIMER


def place_of(opened: Opened) -> Environment:
    """Where it is measured; libraries are added as runs use them."""
    device = opened.device
    return environment(device.backend.name if device else "host",
                       asdict(device.info) if device else None, {})


def toggle_words(result: Result) -> list[str]:
    """The toggles that were on in a run, as one types them."""
    return toggle_words_of(result.toggles)


def toggle_words_of(values: Mapping[str, str | int | None]) -> list[str]:
    """Toggles with their values, as one types them."""
    return [name if value is None else f"{name}={value}" for name, value in values.items()]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One complete training run of one rung. Times are milliseconds, accuracies fractions."""

    repeat: int
    seed: int
    epoch_ms: list[float]
    average_epoch_ms: float
    average_epoch_wall_ms: float
    total_ms: float
    total_device_ms: float
    evaluation_ms: float
    test_accuracy: float
    test_loss: float
    peak_memory_bytes: int
    graph_nodes: int | None
    clocks: ClockSample | None
    conditions: Conditions | None = None

    @classmethod
    def of(cls, repeat: int, result: Result, clocks: ClockSample | None,
           conditions: Conditions | None = None) -> Run:
        return cls(
            repeat=repeat, seed=result.config.seed, epoch_ms=result.epoch_ms,
            average_epoch_ms=result.average_epoch_ms,
            average_epoch_wall_ms=result.average_epoch_wall_ms, total_ms=result.times.training,
            total_device_ms=result.times.training_device, evaluation_ms=result.times.evaluation,
            test_accuracy=result.test_accuracy, test_loss=result.test_loss,
            peak_memory_bytes=result.peak_memory_bytes,
            graph_nodes=result.facts.get("graph_nodes"), clocks=clocks,
            conditions=conditions,
        )


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the ladder: its repetitions, and their medians and spreads.

    `status` is "measured", or "unavailable" where the machine cannot run it, or "failed" where it
    broke off; `reason` then says why in a sentence. The spreads are None where no run finished.
    """

    name: str
    opt: str
    status: Status = "measured"
    reason: str = ""
    toggles: list[str] = []
    notes: list[str] = []
    runs: list[Run] = []
    average_epoch_ms: Spread | None = None
    total_ms: Spread | None = None
    accuracy_mean: float | None = None
    accuracy_std: float | None = None
    accuracy_agrees: bool | None = None
    oracle_difference: float | None = None
    peak_memory_bytes: int | None = None
    graph_nodes: int | None = None
    clocks: dict[str, Spread] = {}
    conditions: Conditions | None = None
    footprint: Footprint | None = None

    def with_runs(self, runs: Sequence[Run], oracle: Oracle | None) -> Rung:
        """This rung with these repetitions and the figures that follow from them."""
        if not runs:
            return self
        mean, std = mean_std([r.test_accuracy for r in runs])
        return msgspec.structs.replace(
            self, runs=list(runs),
            average_epoch_ms=spread([r.average_epoch_ms for r in runs]),
            total_ms=spread([r.total_ms for r in runs]),
            accuracy_mean=mean, accuracy_std=std,
            accuracy_agrees=oracle.agrees(mean) if oracle else None,
            oracle_difference=_difference(runs, oracle),
            peak_memory_bytes=max(r.peak_memory_bytes for r in runs),
            graph_nodes=runs[-1].graph_nodes,
            clocks=summarize([r.clocks for r in runs]),
            conditions=merged([r.conditions for r in runs if r.conditions]),
        )


def _difference(runs: Sequence[Run], oracle: Oracle | None) -> float | None:
    """The largest |accuracy - oracle's| over runs whose seed the oracle has. They start from the
    same weights, so this is far sharper than the comparison of means."""
    known = dict(zip(oracle.seeds, oracle.accuracies, strict=True)) if oracle else {}
    return max((abs(r.test_accuracy - known[r.seed]) for r in runs if r.seed in known),
               default=None)


class LadderResult(Measured, frozen=True, kw_only=True):
    """A ladder. `config.opt` is what the baseline was run with, `config.seed` the first repeat's
    seed; `repeats` is how often each rung was to run."""

    kind: Literal["ladder"] = "ladder"
    schema_version: int = SCHEMA_VERSION
    config: Config
    repeats: int
    environment: Environment
    dataset: str
    data_source: str
    synthetic: bool
    timer: dict[str, str]
    notes: list[str]
    oracle: Oracle | None
    rungs: list[Rung]
    interrupted: bool = False


LADDERS: Mapping[str, tuple[type[LadderResult], int]] = {"ladder": (LadderResult, SCHEMA_VERSION)}


def read_ladder(path: str | os.PathLike[str]) -> LadderResult:
    """Read what `write_json` wrote. Raises ConfigError for anything else."""
    ladder: LadderResult = read_measured(path, LADDERS)
    return ladder


def schema() -> dict[str, Any]:
    """The JSON Schema of what `write_json` writes."""
    return msgspec.json.schema(LadderResult)
