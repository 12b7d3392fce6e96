"""What tests of measuring share: places, variants made up, and a harness that stands somewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from rawnn.bench.conditions import Watch
from rawnn.bench.harness import Harness, Sample, Variant
from rawnn.bench.peers.training_problem import Problem
from rawnn.bench.peers.worker import ReadyProgram
from rawnn.bench.record import Environment, Record, Results
from rawnn.cli.bench import bench

GPU: dict[str, Any] = {"name": "Some GPU", "driver": "580.1", "cuda": "13.0", "ordinal": 0}


def place(**more: Any) -> Environment:
    values: dict[str, Any] = {
        "rawnn": "0.1", "commit": "abcdef0123", "python": "3.11", "platform": "Linux x86_64",
        "device": "cuda", "gpu": GPU, "libraries": {"numpy": "2"}, "clocks": {},
        "date": "2026-01-01T00:00:00+00:00", **more}
    return Environment(**values)


@contextmanager
def standing(suite: str = "made-up", path: Path | None = None, earlier: Results | None = None,
             where: Environment | None = None, **more: Any) -> Iterator[Harness]:
    """A harness that measures at a place made up."""
    with Harness(suite, str(path) if path else None, earlier, **more) as harness:
        harness.watch = Watch(None)
        harness.stand(where or place())
        yield harness


def variant(name: str, take: Callable[[int], Sample | float], suite: str = "made-up",
            **conditions: Any) -> Variant:
    """A variant of which `take` gives milliseconds of an epoch, or a whole sample."""
    def sample(number: int) -> Sample:
        found = take(number)
        return found if isinstance(found, Sample) else Sample({"epoch_ms": found})

    return Variant(suite, name, "float32", "epoch_ms", conditions, sample)


def record(variant: str, samples: Sequence[float] = (), case: str = "toggles/linear",
           metric: str = "epoch_ms", **more: Any) -> Record:
    values: dict[str, Any] = {"precision": "float32", "environment": place().key, **more}
    return Record(case=case, variant=variant, metric=metric, samples=list(samples), **values)


def results(*records: Record, where: Environment | None = None, **more: Any) -> Results:
    there = where or place()
    return Results(environments={there.key: there}, records=list(records), **more)


def tiny(**more: Any) -> Problem:
    values: dict[str, Any] = {
        "name": "tiny", "seed": 3, "layers": (12, 17, 5), "batch": 6, "loss": "cross_entropy",
        "optimizer": "sgd", "lr": 0.05, "steps": 32, **more}
    return Problem(**values)


def made_of(losses: Sequence[float], precision: str = "float32", **more: Any) -> ReadyProgram:
    return ReadyProgram(precision=precision, form="f", clock="wall", losses=list(losses), **more)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(bench, arguments)
