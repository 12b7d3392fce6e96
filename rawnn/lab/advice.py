"""The resources that a kernel uses, and advice on what to try next: rules with their reasons, the
most promising first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from rawnn.common.errors import ConfigError, RawnnError
from rawnn.common.words import counted
from rawnn.cuda.compiling.resources import SM_LIMITS, Occupancy, occupancy
from rawnn.lab.inspection import Resources, resources
from rawnn.lab.kernel import Kernel
from rawnn.lab.kernel_problem import Launching

_WARP = 32


@dataclass(frozen=True)
class Uses:
    """The resources of a kernel on a GPU: `resources` as compiled, `occupancy` with the dynamic
    shared memory of the launch, `multiprocessors` of the GPU; `missing` says why the first is
    unknown."""

    resources: Resources | None
    occupancy: Occupancy | None
    multiprocessors: int
    missing: str = ""

    def __str__(self) -> str:
        if self.resources is None:
            return f"registers and shared memory are not known: {self.missing}"
        used, (stores, loads) = self.resources.usage, self.resources.spilled
        spilled = f", {stores:,} bytes of spill stores and {loads:,} of spill loads" \
            if stores or loads else ", no spills"
        fits = self.occupancy
        return (f"{used.registers} registers, {used.shared:,} bytes of static shared memory"
                f"{spilled}") + (
            f"; {counted(fits.blocks, 'block')} to a multiprocessor, {fits.fraction:.0%} of its "
            f"warps, limited by {fits.limit}" if fits else "")


def uses_of(kernel: Kernel, launching: Launching) -> Uses:
    """The resources of a launched kernel; compiles it again for the compiler's report on spills."""
    device = kernel.device
    multiprocessors = device.attribute("MULTIPROCESSOR_COUNT")
    arch = kernel.source.arch or device.arch
    try:
        found = resources(kernel.source, (kernel.expression,), arch)[0]
    except (RawnnError, RuntimeError) as error:  # RuntimeError: bindings without the library
        return Uses(None, None, multiprocessors, str(error).partition("\n")[0])
    fits = None
    if arch.rstrip("af") in SM_LIMITS:
        try:
            fits = occupancy(arch, threads=prod(launching.block),
                             registers=found.usage.registers,
                             shared=found.usage.shared + launching.shared)
        except ConfigError:
            fits = None
    return Uses(found, fits, multiprocessors)


@dataclass(frozen=True)
class Measurements:
    """The input of the rules. `cold` and `warm` are median microseconds with a cold and a warm
    cache, `empty` those of an empty kernel, `least` the lower bound of the GPU's limits, which
    `bound` ("memory" or "arithmetic") sets; `moved` are bytes to move, `cache` those of L2. None if
    unknown."""

    cold: float
    warm: float | None
    empty: float | None
    least: float | None
    bound: str
    moved: int
    cache: int | None


def advice(uses: Uses, launching: Launching, seen: Measurements) -> Iterator[str]:
    """What to try, the most promising first."""
    threads, blocks = prod(launching.block), prod(launching.grid)
    share = seen.least / seen.cold if seen.least else None
    if uses.resources is not None and max(uses.resources.spilled):
        yield ("registers spill to memory: keep fewer values alive, unroll less, or allow more "
               "registers by __launch_bounds__ with the block's true size")
    if seen.empty is not None and seen.cold < 3 * seen.empty:
        yield (f"an empty kernel takes {seen.empty:.1f} us here, so that most of this is its "
               f"launch: do more in one launch, or fuse it with its neighbours")
        return
    if blocks < uses.multiprocessors:
        yield (f"{counted(blocks, 'block')} for {uses.multiprocessors} multiprocessors: make more "
               f"of them, by smaller tiles or by splitting sums")
    elif uses.occupancy and uses.occupancy.blocks:
        waves = blocks / (uses.multiprocessors * uses.occupancy.blocks)
        if 1 < waves < 4 and 0 < waves % 1 < 0.5:
            yield (f"the grid is {waves:.2f} waves of what runs at once, the last mostly idle: "
                   f"size the grid to whole waves and loop in the kernel")
    if threads % _WARP:
        yield f"blocks of {threads} threads waste part of a warp of {_WARP}: take a multiple"
    if share is not None and share >= 0.9:
        yield (f"it is at {share:.0%} of what {seen.bound} allows: only "
               + ("moving fewer bytes helps now: fuse it with what reads its result, or store "
                  "smaller types" if seen.bound == "memory" else
                  "fewer or cheaper operations help now: a smaller number format, another "
                  "algorithm"))
        return
    few = uses.occupancy is not None and uses.occupancy.fraction < 0.25
    if few and uses.occupancy is not None and uses.occupancy.limit in ("registers", "shared"):
        what = {"registers": "fewer registers a thread (less unrolling, __launch_bounds__)",
                "shared": "less shared memory a block (smaller tiles, fewer stages)"}
        yield (f"{uses.occupancy.limit} leave room for {uses.occupancy.fraction:.0%} of the warps, "
               f"which hides little latency: try {what[uses.occupancy.limit]}, or more independent "
               f"work in each thread")
    if share is None:
        yield "run `rawnn bench lower-bounds` on this GPU, to see how far from its limits this is"
    elif seen.bound == "memory":
        yield ("it is memory that limits it, and less than nine tenths are reached: let "
               "consecutive threads read consecutive addresses, 16 bytes each (float4), and have "
               "several loads under way in each thread")
        if seen.warm and seen.cold > 1.5 * seen.warm and seen.cache and seen.moved <= seen.cache:
            yield (f"it takes {seen.cold / seen.warm:.1f} times as long with a cold cache: run it "
                   f"right behind what writes its inputs")
    else:
        yield ("it is arithmetic that limits it, and less than nine tenths are reached: tensor "
               "cores (mma, wgmma) where they apply, tiles in registers, loads ahead of their use")
