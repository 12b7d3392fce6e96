"""The kernels that limits are measured with, on the CPU emulator, beside what they mean in
NumPy."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from rawnn.ptx import SOURCES
from rawnn.ptx.limits import microbenchmarks
from rawnn.ptx.limits.microbenchmarks import PROBES, Probe
from tests.ptx.emulator.emulator import EmulatedLibrary, Kernels

FILES = ("limits/microbenchmarks.cu", "limits/microbenchmarks_wgmma.cu")
STORED: dict[str, Any] = {
    "float": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16,
    "float8_e4m3": ml_dtypes.float8_e4m3fn}
PIECES = 1100
"""Of 16 bytes: several times what a grid takes at once, and no multiple of it."""


def kernels(source: str, sources: Path = SOURCES) -> Kernels:
    """All instances of one source."""
    return Kernels((source,), tuple(p.expression for p in PROBES if p.source == source), 900,
                   ("RAWNN_PDL",), sources)


def words_of(probe: Probe, count: int, random: np.random.Generator) -> np.ndarray:
    """Small whole numbers in the type of an instance, so that every order of a sum is exact."""
    name = probe.expression.partition("<")[2].rstrip(">") or "float"
    stored = np.dtype(STORED[name])
    numbers = random.integers(-3, 4, count * 4 // stored.itemsize).astype(np.float32)
    return numbers.astype(stored).view(np.uint32)


def launches(probe: Probe, random: np.random.Generator) -> list[tuple[dict[str, Any],
                                                                       dict[str, Any]]]:
    """(how it is launched, arguments) of each small launch of a probe."""
    x = random.integers(-8, 9, 4 * PIECES).astype(np.float32)
    blocks = 3
    how: dict[str, Any] = {"grid": (blocks,)}
    sums = np.full(blocks * microbenchmarks.THREADS, 7, np.float32)
    summing = {"sums": sums, "threads": sums.size, "rounds": 2}
    if probe is microbenchmarks.NOTHING:
        return [(how, {}), ({**how, "early": ()}, {})]
    if probe is microbenchmarks.READ:
        return [(how, {"x": x, "count": PIECES, **summing, "rounds": 5})]
    if probe is microbenchmarks.WRITE:
        return [(how, {"y": np.zeros_like(x), "value": 3.5, "count": PIECES, "rounds": 2})]
    if probe is microbenchmarks.COPY:
        return [(how, {"x": x, "y": np.zeros_like(x), "count": PIECES, "rounds": 2})]
    if probe is microbenchmarks.FMA:
        return [(how, {**summing, "scale": 0.5, "shift": 1.0})]
    if probe is microbenchmarks.GRID_BARRIERS:
        return [({**how, "cooperative": True},
                 {"counter": np.zeros(1, np.uint32), "blocks": blocks, "rounds": 4})]
    if probe is microbenchmarks.CLUSTER_BARRIERS:
        return [({"grid": (4,), "cluster": size},
                 {"counter": np.zeros(1, np.uint32), "blocks": 4, "rounds": 3}) for size in (2, 4)]
    if probe is microbenchmarks.EXCHANGES:
        made = []
        for size, quads in ((2, 32), (4, 3), (2, 300)):
            sums = np.full(4 * microbenchmarks.THREADS, 7, np.float32)
            made.append(({"grid": (4,), "cluster": size,
                          "shared": microbenchmarks.exchange_bytes(size, quads)},
                         {"sums": sums, "size": size, "quads": quads, "threads": sums.size,
                          "rounds": 5}))
        return made
    if probe.shared:
        sums = np.full(2 * microbenchmarks.THREADS, 7, np.float32)
        return [({"grid": (2,), "shared": probe.shared},
                 {**summing, "sums": sums, "threads": sums.size,
                  "words": words_of(probe, 12288, random), "rounds": 2})]
    return [(how, {**summing, "words": words_of(probe, 192, random)})]


def check(library: EmulatedLibrary, probe: Probe, run: int, seed: int = 3) -> int:
    """Run a probe's small launches and compare each with its meaning; returns how many."""
    done = launches(probe, np.random.default_rng(seed))
    for how, arguments in done:
        meant = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in arguments.items()}
        scalars = {k: v for k, v in meant.items() if not isinstance(v, np.ndarray)}
        dtype = probe.expression.partition("<")[2].rstrip(">")
        if dtype not in ("", "float"):
            scalars["dtype"] = dtype
        probe.meaning.reference(SimpleNamespace(**meant), scalars)
        options = dict(how)
        library.call(probe.expression, options.pop("grid"), (microbenchmarks.THREADS,), run=run,
                  **options, **arguments)
        for name in probe.meaning.writes:
            np.testing.assert_allclose(arguments[name], meant[name], rtol=1e-6,
                                       err_msg=f"{probe.expression}: {name}")
    return len(done)


def check_source(source: str, sources: Path, runs: tuple[int, ...] = (0, 3)) -> None:
    """All probes of a source, of which `sources` may hold a changed copy."""
    library = kernels(source, sources).build()
    try:
        for probe in PROBES:
            if probe.source == source:
                for run in runs:
                    check(library, probe, run)
    finally:
        if sources != SOURCES:
            library.path.unlink(missing_ok=True)
