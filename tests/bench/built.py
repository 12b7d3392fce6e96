"""Records that tests of tables, charts and the report are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rawnn.bench.record import Environment, Record, Results

GPU = {"name": "NVIDIA Test GPU", "driver": "580.1", "cuda": "13.0"}


def place(commit: str = "abc1234def", gpu: str = "NVIDIA Test GPU",
          date: str = "2026-01-01T00:00:00+00:00", device: str = "cuda") -> Environment:
    return Environment(rawnn="0.1", commit=commit, python="3.12", platform="Linux x86_64",
                       device=device, gpu={**GPU, "name": gpu}, libraries={"numpy": "2"}, clocks={},
                       date=date)


def entry(case: str, variant: str, metrics: Mapping[str, Sequence[float]], *,
          precision: str = "float32", where: Environment | None = None, status: Any = "measured",
          reason: str = "", notes: Sequence[str] = (), **conditions: Any) -> list[Record]:
    """The records of one entry; the first metric has its status and notes."""
    key = (where or place()).key
    return [Record(case=case, variant=variant, precision=precision, metric=metric,
                   samples=list(samples), conditions=conditions, environment=key,
                   status=status if not number else "measured",
                   reason="" if number else reason, notes=[] if number else list(notes))
            for number, (metric, samples) in enumerate(metrics.items())]


def results(*entries: list[Record], places: Sequence[Environment] = (),
            ended: Mapping[str, str] | None = None) -> Results:
    return Results(environments={p.key: p for p in places or [place()]}, ended=dict(ended or {}),
                   records=[record for records in entries for record in records])


def rung(name: str, *epochs: float, **more: Any) -> list[Record]:
    """A rung of a ladder, of 100 steps an epoch."""
    metrics: dict[str, Sequence[float]] = {"epoch_ms": epochs}
    if epochs:
        metrics |= {"step_us": [ms * 10 for ms in epochs], "total_ms": [ms * 20 for ms in epochs],
                    "accuracy": [0.92] * len(epochs), "lower_bound_us": [10.0], "launches": [2.0]}
    shared = {"layers": [784, 10], "batch": 128, "lr": 0.1, "epochs": 20, "dataset": "mnist",
              "seed": 0}
    return entry("ladder", name, metrics, **{**shared, **more})


def reference(*accuracies: float) -> list[Record]:
    return entry("ladder", "reference", {"accuracy": accuracies}, precision="float64",
                 layers=[784, 10], batch=128, lr=0.1, epochs=20, dataset="mnist", seed=0,
                 seeds=list(range(len(accuracies))))


def programs(case: str, times: Mapping[tuple[str, str], float], *,
             layers: Sequence[int] = (16, 64, 8), batch: int = 32, seed: int = 0,
             where: Environment | None = None, wrong: Sequence[tuple[str, str]] = ()
             ) -> list[Record]:
    """A network with a program for each system and precision, of these microseconds a step."""
    return [record for (system, precision), us in times.items() for record in entry(
        case, f"{system} <form>", {"step_us": [us, us * 1.01, us * 0.99], "setup_s": [1.0],
                                   "loss_error": [0.1]},
        precision=precision, where=where, system=system, form="<form>", layers=list(layers),
        batch=batch, loss="mse", optimizer="sgd", lr=0.1, steps=64, seed=seed, clock="events",
        **({"status": "wrong", "reason": "off"} if (system, precision) in wrong else {}))]
