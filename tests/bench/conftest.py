from typing import Any

import msgspec
import pytest

from rawnn.bench.accuracy import Oracle
from rawnn.bench.clocks import ClockSample
from rawnn.bench.records import GPU_TIMER, LadderResult, Run, Rung
from rawnn.engine.config import Config
from rawnn.engine.result import Environment

GPU: dict[str, Any] = {"name": "Some GPU", "driver": "580.1", "cuda": "13.0", "ordinal": 0}


def make_run(milliseconds: float, repeat: int = 0, accuracy: float = 0.9) -> Run:
    return Run(
        repeat=repeat, seed=repeat, epoch_ms=[milliseconds] * 2, average_epoch_ms=milliseconds,
        average_epoch_wall_ms=milliseconds, total_ms=2 * milliseconds,
        total_device_ms=2 * milliseconds, evaluation_ms=1.0, test_accuracy=accuracy,
        test_loss=0.3, peak_memory_bytes=1000 + repeat, graph_nodes=None,
        clocks=ClockSample(sm_mhz=1900.0 + repeat),
    )


def make_rung(name: str, *milliseconds: float, oracle: Oracle | None = None,
              accuracy: float = 0.9, **more: Any) -> Rung:
    runs = [make_run(ms, repeat, accuracy) for repeat, ms in enumerate(milliseconds)]
    return msgspec.structs.replace(Rung(name=name, opt=name).with_runs(runs, oracle), **more)


def make_ladder(*rungs: Rung, **more: Any) -> LadderResult:
    place = Environment("0.1", "abc", "3.11", "Linux x86_64", "cuda", GPU, {"numpy": "2"}, {},
                        "2026-01-01T00:00:00+00:00")
    return msgspec.structs.replace(LadderResult(
        config=Config(opt="preload,arena"), repeats=2, environment=place, dataset="mnist",
        data_source="a directory", synthetic=False, timer=GPU_TIMER, notes=[], oracle=None,
        rungs=list(rungs)), **more)


@pytest.fixture
def oracle() -> Oracle:
    return Oracle(layers=(784, 10), epochs=20, batch=128, lr=0.1, dataset="mnist",
                  data_digest="d", seeds=(0, 1), accuracies=(0.9, 0.92), mean=0.91, std=0.01)


@pytest.fixture
def ladder(oracle: Oracle) -> LadderResult:
    return make_ladder(
        make_rung("baseline", 20.0, 22.0, oracle=oracle),
        make_rung("cublas", status="unavailable", reason="cublas cannot run here: no package"),
        make_rung("fuse", 10.0, 10.5, oracle=oracle, notes=["cudnn left out"]),
        make_rung("cudnn", 11.0, 12.0, oracle=oracle),
        oracle=oracle,
    )
