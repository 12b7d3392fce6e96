"""What runs on the simulated GPU ask of the driver and the libraries, part by part: how often each
function is called, and a checksum of the calls in order with their arguments."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any

from rawnn.common.errors import ConfigError
from rawnn.cuda.backend import Backend
from rawnn.cuda.device import Device
from rawnn.engine.runners.gpu import GpuRunner
from rawnn.model.optimizers import Optimizer
from rawnn.sim import Simulation
from rawnn.sim.memory import BASE
from tests.engine import make_work, random_dataset
from tests.records import Lines, record

DATA = random_dataset(29, 7, 44, 23)
RUNS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("preload", {}),
    ("pinned", {"shuffle": True}),
    ("pinned,nosync,report=2", {"partial": True}),
    ("preload,arena,nosync", {"partial": True, "shuffle": True}),
    ("preload,pool,streams,fuse", {"optimizer": Optimizer("adam", 0.01)}),
    ("preload,async,nosync,fuse", {}),
    ("preload,graphs=step,nosync", {"shuffle": True}),
    ("preload,arena,graphs=2,nosync,fuse", {"partial": True}),
    ("preload,graphs=epoch,nosync,streams,fuse", {"schedule": "cosine"}),
    ("preload,graphs=while,nosync,report=2", {"partial": True}),
    ("preload,bf16,mma,fuse,pdl,nosync", {"optimizer": Optimizer("adam", 0.01)}),
    ("preload,fp16,mma,fuse,streams,graphs=epoch,pdl,nosync", {}),
    ("preload,cublas,cudnn,fuse,streams,graphs=epoch,nosync", {}),
    ("preload,persistent,nosync,report=2", {"shuffle": True, "partial": True}),
)
LIBRARIES = ("driver", "cublaslt", "cudnn")


class Recorder:
    """A simulated library that writes down its calls. Addresses are given as the number of their
    allocation and an offset; those of the host differ from run to run and are left out."""

    def __init__(self, library: Any, calls: list[str], bases: list[int]) -> None:
        self._library, self._calls, self._bases = library, calls, bases

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._library, name)
        if not name.startswith(("cu", "cudnn")):
            return found

        @wraps(found)
        def call(*arguments: Any, **named: Any) -> Any:
            given = ", ".join(map(self._plain, (*arguments, *named.values())))
            self._calls.append(f"{name}({given})")
            result = found(*arguments, **named)
            if name.startswith("cuMemAlloc") and "Host" not in name and not result[0]:
                self._bases.append(result[1])
            return result

        return call

    def _plain(self, value: Any) -> str:
        if isinstance(value, tuple | list):
            return f"({', '.join(map(self._plain, value))})"
        if isinstance(value, int) and value >= BASE:
            base = max((each for each in self._bases if each <= value), default=BASE)
            number = self._bases.index(base) if base in self._bases else -1
            return f"{number}+{value - base}"
        if isinstance(value, int) and value >= 1 << 32:
            return "host"
        return repr(value) if isinstance(value, int | float | str | None) else type(value).__name__


def recording(backend: Backend, calls: list[str]) -> Backend:
    """The backend with recorders in place of its libraries."""
    bases: list[int] = []

    def recorder(name: str) -> Callable[[], Any]:
        library = Recorder(getattr(backend, name)(), calls, bases)
        return lambda: library

    return replace(backend, **{name: recorder(name) for name in LIBRARIES})


@record
def driver_calls() -> Lines:
    for opt, options in RUNS:
        yield ""
        yield f"# {opt} {', '.join(f'{k} {v}' for k, v in options.items())}"
        calls: list[str] = []

        @contextmanager
        def part(name: str, calls: list[str] = calls) -> Iterator[None]:
            calls.clear()
            yield
            lines.append(summary(name, calls))

        lines: list[str] = []
        simulation = Simulation(1)
        try:
            work = make_work(opt, (29, 40, 7), DATA, **options)
        except ConfigError as error:
            yield str(error)
            continue
        with part("device"):
            device = Device(recording(simulation.backend(), calls))
        with part("runner"):
            runner = GpuRunner(device, work)
        for reported in (True, False, True):
            with part(f"epoch, {'reported' if reported else 'unreported'}"):
                runner.epoch(reported)
        with part("metrics"):
            runner.metrics()
        with part("evaluation"):
            runner.evaluate()
        with part("parameters"):
            runner.parameters()
        with part("state"):
            runner.load(runner.state())
        with part("close"):
            runner.close()
            device.close()
        yield from lines if opt == RUNS[0][0] else lines[1:]  # a device is opened alike


def summary(name: str, calls: list[str]) -> str:
    counts = Counter(call.partition("(")[0] for call in calls)
    return (f"{name}: {', '.join(f'{n} {call}' for call, n in sorted(counts.items()))} "
            f"{zlib.crc32(chr(10).join(calls).encode()):08x}")
