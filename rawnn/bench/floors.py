"""What limits a GPU, as `rawnn bench floors` measured it: the records, and where they are kept.

docs/floors.md says what each row is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from rawnn.bench.columns import markdown_table
from rawnn.bench.conditions import Conditions
from rawnn.bench.measured import Measured, read_measured
from rawnn.bench.statistics import Spread
from rawnn.common.errors import ConfigError
from rawnn.common.files import cache_directory
from rawnn.engine.result import Environment
from rawnn.ptx.limits.microbenchmarks import LARGEST_CLUSTER

SCHEMA_VERSION = 1
ENVIRONMENT = "RAWNN_FLOORS"
HEADINGS = ("floor", "median", "unit", "min-max", "n", "how")

Unit = Literal["us", "GB/s", "TFLOP/s"]

CROSSING = frozenset(("node", "node_early", "node_whole", "node_whole_early", "grid_barrier",
                      *(f"{how}_{size}" for how in ("cluster_barrier", "exchange")
                        for size in range(2, LARGEST_CLUSTER + 1))))
"""Constants that are the time of a way by which values get from one multiprocessor to another."""


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """One constant. `name` is what programs call it, `what` what people do; `value` is the spread
    of `samples` in `unit`. `how` says what was run, `steady` that it had warmed up by the stated
    rule, `reason` why there is no value."""

    name: str
    what: str
    unit: Unit
    how: str = ""
    value: Spread | None = None
    samples: list[float] = []
    steady: bool = True
    reason: str = ""

    def cells(self) -> list[str]:
        """Its row of the table."""
        if self.value is None:
            return [self.what, "-", self.unit, "", "", self.reason or "not measured"]
        v = self.value
        return [self.what, number(v.median), self.unit, f"{number(v.min)}-{number(v.max)}",
                str(v.n), self.how + ("" if self.steady else "; not steady")]


class FloorsResult(Measured, frozen=True, kw_only=True):
    """All constants of one GPU, and where and how they were measured. `multiprocessors` and
    `l2_bytes`, of its L2 cache, are those of the GPU; `interrupted` says that Ctrl-C ended it
    early."""

    kind: Literal["floors"] = "floors"
    schema_version: int = SCHEMA_VERSION
    environment: Environment
    multiprocessors: int
    l2_bytes: int = 0
    timer: dict[str, str]
    floors: list[Floor]
    conditions: Conditions | None = None
    interrupted: bool = False

    @property
    def gpu(self) -> str:
        """What the GPU is called."""
        return str((self.environment.gpu or {}).get("name", "no GPU"))

    @property
    def driver(self) -> str:
        return str((self.environment.gpu or {}).get("driver", "unknown"))

    def value(self, name: str) -> float | None:
        """The median of a constant; None where it was not measured."""
        return next((f.value.median for f in self.floors if f.name == name and f.value), None)

    def provenance(self) -> str:
        """Where, when and how it was measured."""
        gpu = self.environment.gpu or {}
        where = "a SIMULATED GPU, whose times say nothing about a real one" \
            if self.environment.device == "sim" else \
            f"{self.gpu}, driver {self.driver}, CUDA {gpu.get('cuda', 'unknown')}"
        seen = self.conditions
        clocks = f"; SM {seen.sm_mhz.min:.0f}-{seen.sm_mhz.max:.0f} MHz" \
            if seen and seen.sm_mhz else ""
        slow = f"; SLOWED DOWN: {', '.join(seen.throttled)}" if seen and seen.throttled else ""
        return (f"{where}{clocks}{slow}; {self.environment.date}, commit "
                f"{self.environment.commit or 'unknown'}")

    def markdown(self) -> str:
        """The table in Markdown, with its provenance below."""
        lines = markdown_table(HEADINGS, [f.cells() for f in self.floors],
                               ("floor", "unit", "how"))
        return "\n".join([*lines, "", f"{self.provenance()}.", ""])


FLOORS: Mapping[str, tuple[type[FloorsResult], int]] = {"floors": (FloorsResult, SCHEMA_VERSION)}


NODE_US = (0.1, 20.0)
"""Microseconds that a node of a graph can take on any GPU there is."""
ORDERED = (("node", 1.2, "node_whole"), ("copy", 1.0, "l2_read"), ("host_to_device", 1.0, "copy"),
           ("fma", 1.0, "tensor_tf32"), ("tensor_tf32", 1.0, "tensor_bf16"),
           ("cluster_barrier_2", 1.0, "grid_barrier"), ("exchange_2", 2.0, "grid_barrier"))
"""The first is less than the factor times the second on any GPU that has both."""


def implausible(result: FloorsResult) -> list[str]:
    """Sentences on constants that no GPU can have, or that were not measured although the GPU has
    what they need: something else was at work on it, or the measurement is wrong."""
    found = [f"{f.name} was not measured: {f.reason or 'the measurement was ended early'}"
             for f in result.floors if f.value is None and not f.reason.startswith("needs ")]
    node = result.value("node")
    if node is not None and not NODE_US[0] < node < NODE_US[1]:
        found.append(f"node = {number(node)} us is not between {NODE_US[0]:g} and {NODE_US[1]:g}")
    for less, factor, more in ORDERED:
        a, b = result.value(less), result.value(more)
        if a is not None and b is not None and a >= factor * b:
            times = "" if factor == 1 else f"{factor:g} times "
            found.append(f"{less} = {number(a)} is not below {times}{more} = {number(b)}")
    return found


def number(value: float) -> str:
    """Three significant digits, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"


def read_floors(path: str | os.PathLike[str]) -> FloorsResult:
    """Read what `write_json` wrote. Raises ConfigError for anything else."""
    found: FloorsResult = read_measured(path, FLOORS)
    return found


# -- where they are kept ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Kept:
    """Constants with the file that they stand in."""

    path: Path
    result: FloorsResult

    def __str__(self) -> str:
        return f"{self.path}, measured {self.result.environment.date} on {self.result.gpu} with " \
               f"driver {self.result.driver}"


def folder() -> Path:
    """Where the constants of this machine's GPUs are kept: beside the kernels' cache."""
    return cache_directory() / "floors"


def keep(result: FloorsResult) -> Path:
    """Keep the constants of a GPU in place of those measured with the same driver. Raises
    RawnnError where the file cannot be written."""
    path = folder() / f"{_slug(result.gpu)}-{_slug(result.driver)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    result.write_json(path)
    return path


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def _all() -> Iterator[Kept]:
    """All that is kept; the file that RAWNN_FLOORS names, alone, where it is set."""
    named = os.environ.get(ENVIRONMENT)
    if named:
        yield Kept(Path(named), read_floors(Path(named).expanduser()))
        return
    for path in sorted(folder().glob("*.json")):
        try:
            yield Kept(path, read_floors(path))
        except ConfigError:  # of another version of rawnn: to be measured anew
            continue


def kept(gpu: str, driver: str = "") -> Kept | None:
    """The constants of a GPU by its whole name ("NVIDIA H200"), or by one word of it ("H200"), with
    any driver unless one is given; the newest of several. Never those of another GPU: None where
    there are none. Raises ConfigError where RAWNN_FLOORS names no such file."""
    found = [k for k in _all() if _is(k.result.gpu, gpu) and driver in ("", k.result.driver)]
    return max(found, key=lambda k: k.result.environment.date, default=None)


def _is(whole: str, asked: str) -> bool:
    words = whole.lower().replace("-", " ").split()
    asked = asked.lower()
    return whole.lower() == asked or asked in words or f" {asked} " in f" {' '.join(words)} "


def missing(gpu: str) -> str:
    """A sentence on constants that are not there."""
    return (f"no limits of {gpu} have been measured on this machine: `python -m rawnn bench "
            f"floors` measures them there, and {ENVIRONMENT} names a file of them")


# -- for a kernel by itself ------------------------------------------------------------------------


@dataclass(frozen=True)
class Roofline:
    """What a kernel's bytes and operations are compared with: GB/s of a copy within device memory
    (bytes read and written) and of reads from the L2 cache, operations a second by number class,
    and where they were measured."""

    memory_gbps: float
    flops: Mapping[str, float]
    where: str
    l2_gbps: float | None = None


CLASSES = {"float32": "fma", "tf32": "tensor_tf32", "bfloat16": "tensor_bf16",
           "float16": "tensor_fp16", "float8": "tensor_fp8"}
"""Number classes by the constant that limits them."""


def roofline(gpu: str) -> Roofline | None:
    """The limits of a GPU by its name; None where its memory was not measured."""
    found = kept(gpu)
    copy = found.result.value("copy") if found else None
    if found is None or copy is None:
        return None
    rates = {name: found.result.value(key) for name, key in CLASSES.items()}
    return Roofline(copy, {n: rate * 1e12 for n, rate in rates.items() if rate},
                    f"{found}, commit {found.result.environment.commit or 'unknown'}",
                    found.result.value("l2_read"))
