"""What limits a GPU, as `rawnn bench lower-bounds` measured it, and where that is stored.

docs/floors.md says what each constant is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median

from rawnn.bench.record import Record, Results, read_results
from rawnn.common.errors import ConfigError
from rawnn.common.files import cache_directory
from rawnn.engine.result import Environment
from rawnn.ptx.limits.microbenchmarks import LARGEST_CLUSTER

SUITE = "lower-bounds"
ENVIRONMENT = "RAWNN_FLOORS"
GPU = "gpu"
"""The variant whose metrics are facts of the GPU, and no measurements."""

CROSSING = frozenset(("node", "node_early", "node_whole", "node_whole_early", "grid_barrier",
                      *(f"{how}_{size}" for how in ("cluster_barrier", "exchange")
                        for size in range(2, LARGEST_CLUSTER + 1))))
"""Constants that are the time of a way by which values get from one multiprocessor to another."""

METRICS = {"us": "latency_us", "GB/s": "bandwidth_gbs", "TFLOP/s": "throughput_tflops"}
"""The metric of a constant, by its unit."""


@dataclass(frozen=True)
class Limits:
    """All constants of one GPU, in the units of METRICS. `path` is the file that they stand in."""

    results: Results
    path: Path | None = None

    def __str__(self) -> str:
        place = self.environment
        return f"{self.path}, measured {place.date} on {self.gpu} with driver {self.driver}"

    @cached_property
    def _values(self) -> dict[str, float]:
        return {r.variant: median(r.samples) for r in self.records if r.samples}

    @property
    def records(self) -> list[Record]:
        """One of each constant, in the order measured."""
        return [r for r in self.results.where(SUITE) if r.metric in METRICS.values()]

    @cached_property
    def environment(self) -> Environment:
        return self.results.place(self.results.where(SUITE)[0])

    @property
    def gpu(self) -> str:
        """What the GPU is called."""
        return str((self.environment.gpu or {}).get("name", "no GPU"))

    @property
    def driver(self) -> str:
        return str((self.environment.gpu or {}).get("driver", "unknown"))

    @property
    def multiprocessors(self) -> int:
        return int(self._fact("multiprocessors"))

    @property
    def l2_bytes(self) -> int:
        """Of the L2 cache."""
        return int(self._fact("l2_bytes"))

    def _fact(self, metric: str) -> float:
        found = self.results.where(SUITE, variant=GPU, metric=metric)
        return found[0].samples[0] if found and found[0].samples else 0.0

    def value(self, name: str) -> float | None:
        """The median of a constant; None where it was not measured."""
        return self._values.get(name)

    def crossings(self) -> list[float]:
        """What each way to cross multiprocessors takes, in microseconds."""
        return [value for name, value in self._values.items() if name in CROSSING]


def read_limits(path: str | os.PathLike[str]) -> Limits:
    """Read a file of constants. Raises ConfigError for anything else."""
    results = read_results(path)
    if not results.where(SUITE):
        raise ConfigError(f"{os.fspath(path)} has no limits of a GPU, but "
                          f"{', '.join(results.suites) or 'nothing'}")
    return Limits(results, Path(path))


# -- where they are stored -------------------------------------------------------------------------


def folder() -> Path:
    """Where the constants of this machine's GPUs are stored: next to the kernels' cache."""
    return cache_directory() / "floors"


def store_limits(results: Results) -> Path:
    """Store the constants of a GPU in place of those measured with the same driver. Raises
    RawnnError where the file cannot be written."""
    limits = Limits(results)
    path = folder() / f"{_slug(limits.gpu)}-{_slug(limits.driver)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    results.write(path)
    return path


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def _all() -> Iterator[Limits]:
    """All that is stored; the file that RAWNN_FLOORS names, alone, where it is set."""
    named = os.environ.get(ENVIRONMENT)
    if named:
        yield read_limits(Path(named).expanduser())
        return
    for path in sorted(folder().glob("*.json")):
        try:
            yield read_limits(path)
        except ConfigError:  # of a newer version of rawnn, or not limits
            continue


def stored_limits(gpu: str, driver: str = "") -> Limits | None:
    """The constants of a GPU by its whole name ("NVIDIA H200"), or by one word of it ("H200"), with
    any driver unless one is given; the newest of several. Never those of another GPU: None where
    there are none. Raises ConfigError where RAWNN_FLOORS names no such file."""
    found = [k for k in _all() if _is(k.gpu, gpu) and driver in ("", k.driver)]
    return max(found, key=lambda k: k.environment.date, default=None)


def _is(whole: str, asked: str) -> bool:
    words = whole.lower().replace("-", " ").split()
    asked = asked.lower()
    return whole.lower() == asked or asked in words or f" {asked} " in f" {' '.join(words)} "


def missing(gpu: str) -> str:
    """A sentence on constants that are not there."""
    return (f"no limits of {gpu} have been measured on this machine: `python -m rawnn bench "
            f"lower-bounds` measures them there, and {ENVIRONMENT} names a file of them")


# -- for a kernel by itself ------------------------------------------------------------------------


@dataclass(frozen=True)
class Roofline:
    """What a kernel's bytes and operations are compared with: GB/s of a copy within device memory
    (bytes read and written) and of reads from the L2 cache, operations a second by precision,
    and where they were measured."""

    memory_gbps: float
    flops: Mapping[str, float]
    where: str
    l2_gbps: float | None = None


CLASSES = {"float32": "fma", "tf32": "tensor_tf32", "bfloat16": "tensor_bf16",
           "float16": "tensor_fp16", "float8": "tensor_fp8"}
"""Precisions by the constant that limits them."""


def roofline(gpu: str) -> Roofline | None:
    """The limits of a GPU by its name; None where its memory was not measured."""
    found = stored_limits(gpu)
    copy = found.value("copy") if found else None
    if found is None or copy is None:
        return None
    rates = {name: found.value(key) for name, key in CLASSES.items()}
    return Roofline(copy, {n: rate * 1e12 for n, rate in rates.items() if rate},
                    f"{found}, commit {found.environment.commit or 'unknown'}",
                    found.value("l2_read"))
