"""What runs on the simulated GPU ask of the driver and the libraries, part by part: how often each
function is called, and a checksum of the calls in order with their arguments; and each call of
allocators."""

from __future__ import annotations

import io
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any

from rawnn.common.errors import ConfigError, OutOfMemory
from rawnn.cuda.allocators import AllocationLog, Arena
from rawnn.cuda.backend import Backend
from rawnn.cuda.device import Device
from rawnn.cuda.memory import Allocation
from rawnn.cuda.stream import Stream
from rawnn.engine.runners.gpu import GpuRunner
from rawnn.model.optimizers import Optimizer
from rawnn.sim import Simulation
from rawnn.sim.memory import BASE
from tests.cuda.test_allocators import MAKERS
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


ALLOCATIONS = """
take a 1000; take b 0; take c 2000000 2; take d 700000; on b 1; free d; free d; take e 700000
on a 2; on a 3; on a 1; free a; take f 1000; take g 513 2; free g; free f; take h 600000 3; state
free c; take i 1500000; free b; take j 40000; free h; free e; state; wait; take k 900 2; release
state; take l 5000000; take m 70000000; free l; release; free zz; state; close; close
"""
"""Of each allocator: bytes are taken for a stream, used on another one, given back."""


@record
def allocations() -> Lines:
    made = {**MAKERS, "arena": lambda device: Arena(device.memory, 3 << 20, "all of it")}
    for name, make in made.items():
        yield from _of_allocator(name, make)


def _of_allocator(name: str, make: Callable[[Device], Any]) -> Lines:
    calls: list[str] = []
    simulation = Simulation(memory=1 << 26)
    device = Device(recording(simulation.backend(), calls))
    streams = {1: device.stream, 2: Stream(device.driver), 3: Stream(device.driver)}
    sink = io.StringIO()
    device.memory.log = log = AllocationLog(sink, lambda: 0.0)
    held = {"zz": Allocation(1 << 40, 8, "of nobody")}
    calls.clear()
    yield f"# {name}"
    allocator = make(device)
    log.begin_epoch(1)
    for number, line in enumerate(re.split(r"[;\n]", ALLOCATIONS.strip())):
        word, *rest = line.split()
        if word in ("on", "free") and rest[0] not in held:
            continue  # there was no room for it
        if number:
            calls.clear()
        log.step = number
        said = ""
        try:
            if word == "take":
                held[rest[0]] = allocator.allocate(int(rest[1]), f"take {rest[0]}",
                                                   streams[int(rest[2])] if rest[2:] else None)
                said = f"{held[rest[0]].nbytes} bytes"
            elif word == "on":
                allocator.used_on(held[rest[0]], streams[int(rest[1])])
            elif word == "free":
                allocator.free(held[rest[0]])
            elif word == "release":
                said = f"{allocator.release_cached()} bytes"
            elif word == "wait":
                for stream in streams.values():
                    stream.synchronize()
            elif word == "close":
                allocator.close()
            elif hasattr(allocator, "statistics"):
                found = allocator.statistics()
                said = f"{found}, fragmentation {found.fragmentation:.3f}"
        except OutOfMemory as error:
            said = str(error)
        said += f"; {device.memory.current} of at most {device.memory.peak} held"
        yield f"{' '.join([word, *rest])}: {said}{''.join(f' | {call}' for call in calls)}"
    log.close()
    yield from (re.sub(r" +", " ", re.sub("0x[0-9a-f]+", "", line)).strip()
                for line in sink.getvalue().splitlines())
    device.memory.log = None
    for stream in (streams[2], streams[3]):
        stream.close()
    device.close()
    simulation.assert_clean()
