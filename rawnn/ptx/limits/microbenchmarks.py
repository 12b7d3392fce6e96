"""Kernels that do one thing as fast as a GPU can: what `rawnn bench floors` times.

No op of a step runs them. A probe says of an instance all that launches, tests and the record of
kernels ask for.
"""

from __future__ import annotations

from dataclasses import dataclass

from rawnn.common.target import Target
from rawnn.ptx.limits import microbenchmark_references as meanings

THREADS = 256
"""Of every block (microbenchmarks.cu)."""
MOST_BLOCKS = 4
"""Blocks of a multiprocessor that the kernels' registers leave room for."""
CHAINS, STEPS = 8, 8
"""Independent sums of a thread or warp, and steps of each in a round of fma_chains."""
ROWS, COLUMNS, ROW_BYTES = 128, 256, 128
"""The panels of multiply_panels."""
PANEL_BYTES = (ROWS + COLUMNS) * ROW_BYTES + 1024
"""Dynamic shared memory of multiply_panels: both, and what aligns them."""
LARGEST_CLUSTER, MOST_QUADS = 16, 256
"""Of exchanges: blocks, and pieces of 16 bytes that a block sends to each other."""


def exchange_bytes(size: int, quads: int) -> int:
    """Dynamic shared memory of exchanges: two barriers, and two mailboxes for every block."""
    return 32 * (1 + size * quads)


@dataclass(frozen=True)
class Probe:
    """A kernel instance. `needs` are features of a target; `shared` the most bytes of dynamic
    shared memory that it is launched with. `operations` are those of a block of THREADS threads in
    a round. `meaning` is what it computes."""

    source: str
    expression: str
    needs: tuple[str, ...] = ()
    threads: int = THREADS
    shared: int = 0
    cooperative: bool = False
    specific: bool = False
    operations: int = 0
    meaning: meanings.Meaning = meanings.NOTHING

    @property
    def name(self) -> str:
        """Of the kernel, without its template arguments."""
        return self.expression.partition("<")[0]

    def lacks(self, target: Target) -> str:
        """Why a GPU cannot run it, in words; "" where it can."""
        return target.lacks(*self.needs)


def _sync(name: str, numbers: str, depth: int, *needs: str) -> Probe:
    return Probe("limits/microbenchmarks.cu", f"multiply_tiles<{name}>", ("tf32", *needs),
                 operations=THREADS // 32 * CHAINS * 2 * 16 * 8 * depth,
                 meaning=meanings.TILES)


def _async(expression: str, depth: int, columns: int) -> Probe:
    return Probe("limits/microbenchmarks_wgmma.cu", expression, ("wgmma",), shared=PANEL_BYTES,
                 specific=True,
                 operations=2 * ROWS * columns * depth, meaning=meanings.PANELS)


NOTHING = Probe("limits/microbenchmarks.cu", "nothing")
READ = Probe("limits/microbenchmarks.cu", "read_memory", meaning=meanings.READ)
WRITE = Probe("limits/microbenchmarks.cu", "write_memory", meaning=meanings.WRITE)
COPY = Probe("limits/microbenchmarks.cu", "copy_memory", meaning=meanings.COPY)
FMA = Probe("limits/microbenchmarks.cu", "fma_chains", operations=2 * THREADS * CHAINS * STEPS,
            meaning=meanings.CHAINS)
GRID_BARRIERS = Probe("limits/microbenchmarks.cu", "grid_barriers", cooperative=True,
                      meaning=meanings.BARRIERS)
CLUSTER_BARRIERS = Probe("limits/microbenchmarks.cu", "cluster_barriers", ("clusters",),
                         meaning=meanings.BARRIERS)
EXCHANGES = Probe("limits/microbenchmarks.cu", "exchanges", ("clusters",),
                  shared=exchange_bytes(LARGEST_CLUSTER, MOST_QUADS), meaning=meanings.EXCHANGES)
TENSOR_CORE_PROBES: dict[str, tuple[Probe, ...]] = {
    "tf32": (_sync("float", "tf32", 8), _async("multiply_panels_tf32", 32, 128)),
    "bf16": (_sync("bfloat16", "bf16", 16, "bfloat16"),
             _async("multiply_panels<bfloat16>", 64, COLUMNS)),
    "fp16": (_sync("float16", "fp16", 16), _async("multiply_panels<float16>", 64, COLUMNS)),
    "fp8": (_sync("float8_e4m3", "fp8", 32, "8-bit products"),
            _async("multiply_panels<float8_e4m3>", 128, COLUMNS)),
}
"""By number class, the ways to multiply on tensor cores; the fastest counts."""

PROBES: tuple[Probe, ...] = (
    NOTHING, READ, WRITE, COPY, FMA, GRID_BARRIERS, CLUSTER_BARRIERS, EXCHANGES,
    *(probe for several in TENSOR_CORE_PROBES.values() for probe in several))
"""All of them."""
