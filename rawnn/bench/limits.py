"""Measuring what limits a GPU: launches, barriers, exchanges, memory, arithmetic.

Every constant is a difference: `few` rounds of a piece of work and `many`, timed by events of the
device, divided by what they differ in. What a launch costs and how a kernel begins and ends is in
both, and falls out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from rawnn.bench.conditions import Watch
from rawnn.bench.floors import Floor, FloorsResult, Unit
from rawnn.bench.peers.worker import PATIENCE_S, STEADY, WARM_S
from rawnn.bench.probing import Bed, Timed
from rawnn.bench.records import place_of
from rawnn.bench.statistics import spread
from rawnn.common.dtypes import numpy_dtype
from rawnn.common.errors import ConfigError, RawnnError
from rawnn.engine.machine import Opened
from rawnn.ptx.limits import microbenchmarks as probes
from rawnn.ptx.limits.microbenchmarks import Probe

TIMER = {"floors": "time between two events on the device, of many rounds less that of few, over "
                   "the rounds between; warmed up until three samples in a row lie within 2 %"}
NUMBERS = {"tf32": "float", "bf16": "bfloat16", "fp16": "float16", "fp8": "float8_e4m3"}
"""Number classes by their type in the kernels."""
SCALE = {"GB/s": 1e3, "TFLOP/s": 1e6}
"""Of a rate, what a microsecond's worth of one is."""


@dataclass(frozen=True)
class Effort:
    """How much is run: `samples` of each constant; `nodes` of the shorter and the longer graph;
    rounds until `least_ms` are reached, not more than `most`; `nbytes` of a buffer that no cache
    holds, as a multiple of the L2 cache, and at most."""

    samples: int = 15
    nodes: tuple[int, int] = (64, 1024)
    least_ms: float = 2.0
    most: int = 1 << 20
    times_l2: int = 16
    most_bytes: int = 1 << 30


SIMULATED = Effort(2, (2, 6), 0.0, 2, 0, 1 << 14)
"""Enough to see that everything runs: a simulated GPU takes a microsecond for each task."""


def measure(opened: Opened, effort: Effort | None = None,
            on_floor: Callable[[Floor, int, int], None] = lambda floor, done, total: None
            ) -> FloorsResult:
    """Measure all constants of an open GPU; Ctrl-C ends it early, with those there are.

    A constant that this GPU has not, or that could not be measured, keeps the reason. Raises
    ConfigError without a GPU.
    """
    if opened.device is None:
        raise ConfigError(f"limits can be measured on a GPU only: {opened.machine.gpu}")
    effort = effort or default_effort(opened)
    watch, found, interrupted = Watch.of(opened), list[Floor](), False
    environment = place_of(opened)
    with Bed(opened.device) as bed, watch.during() as seen:
        asked = list(_asked(bed, effort))
        try:
            for number, one in enumerate(asked, 1):
                found.append(_measured(one, effort))
                on_floor(found[-1], number, len(asked))
        except KeyboardInterrupt:
            interrupted = True
        multiprocessors = bed.target.multiprocessors
        cache = bed.device.attribute("L2_CACHE_SIZE")
    return FloorsResult(environment=environment, multiprocessors=multiprocessors,
                        l2_bytes=cache, timer=TIMER,
                        floors=_best(found), conditions=seen.conditions, interrupted=interrupted)


def default_effort(opened: Opened) -> Effort:
    """What is worth the time on a device."""
    return SIMULATED if opened.device and opened.device.backend.name == "sim" else Effort()


@dataclass(frozen=True)
class _Asked:
    """A constant to be measured. `make(stack)` gives what is timed; `work` is what a round does, in
    bytes or operations, where that is a rate. `rounds` are fixed ones."""

    floor: Floor
    make: Callable[[ExitStack], Timed] | None = None
    work: float = 1.0
    rounds: tuple[int, int] | None = None


def _measured(asked: _Asked, effort: Effort) -> Floor:
    if asked.make is None:
        return asked.floor
    try:
        with ExitStack() as stack:
            return _timed(asked, asked.make(stack), effort)
    except RawnnError as error:
        return without(asked.floor, str(error))


def without(floor: Floor, reason: str) -> Floor:
    """A constant that has no value, and why."""
    return Floor(name=floor.name, what=floor.what, unit=floor.unit, how=floor.how, reason=reason)


def _timed(asked: _Asked, run: Timed, effort: Effort) -> Floor:
    few, many = asked.rounds or rounds_of(run, effort)

    def sample() -> float:
        """Microseconds of a round."""
        return (run(many) - run(few)) * 1e3 / (many - few)

    begun, last = perf_counter(), [sample()]
    while True:
        steady = len(last) >= 3 and max(last[-3:]) <= STEADY * min(last[-3:])
        took = perf_counter() - begun
        if (steady and took >= WARM_S) or took >= PATIENCE_S or (steady and not effort.least_ms):
            break
        last.append(sample())
    times = [sample() for _ in range(effort.samples)]
    if min(times) <= 0:
        return without(asked.floor, f"{many} rounds took no longer than {few}")
    f = asked.floor
    values = times if f.unit == "us" else [asked.work / us / SCALE[f.unit] for us in times]
    return Floor(name=f.name, what=f.what, unit=f.unit, how=f"{f.how}, {few} and {many} rounds",
                 value=spread(values), samples=values, steady=steady)


def rounds_of(run: Timed, effort: Effort) -> tuple[int, int]:
    """Few rounds and many: as many as take `least_ms` and an eighth of them, at least 1 and 2. The
    shorter of two runs counts: a first one may take milliseconds to bring its kernel to the GPU."""
    many = 2
    while many < effort.most and min(run(many), run(many)) < effort.least_ms:
        many = min(2 * many, effort.most)
    return max(many // 8, 1), many


def _best(found: list[Floor]) -> list[Floor]:
    """Of constants that were measured in several ways the best."""
    kept: dict[str, Floor] = {}
    for floor in found:
        before = kept.get(floor.name)
        if before is None or (floor.value and (
                before.value is None or floor.value.median > before.value.median)):
            kept[floor.name] = floor
    return list(kept.values())


# -- what is asked ---------------------------------------------------------------------------------


def _asked(bed: Bed, effort: Effort) -> Iterator[_Asked]:
    yield from _launches(bed, effort)
    yield from _barriers(bed)
    yield from _memory(bed, effort)
    yield from _arithmetic(bed)


def _floor(name: str, what: str, unit: Unit, how: str) -> Floor:
    return Floor(name=name, what=what, unit=unit, how=how)


def _launches(bed: Bed, effort: Effort) -> Iterator[_Asked]:
    whole = bed.target.multiprocessors
    yield _Asked(_floor("launch", "launch on a stream, from Python", "us",
                        "an empty kernel of one block, one launch behind the other"),
                 bed.launches)
    yield _Asked(_floor("graph_launch", "launch of a graph", "us",
                        "a graph of one empty kernel, one launch behind the other"),
                 bed.graph_launches)
    early = bed.target.lacks("programmatic launches")
    for blocks, name, words in ((1, "node", "one block"),
                                (whole, "node_whole", f"{whole} blocks")):
        yield _Asked(_floor(name, f"graph node, {words}", "us", "a chain of empty kernels"),
                     partial(bed.chains, blocks=blocks, nodes=effort.nodes, early=False),
                     rounds=effort.nodes)
        floor = _floor(f"{name}_early", f"graph node, programmatic, {words}", "us",
                       "a chain of empty kernels that wait and trigger")
        yield _Asked(without(floor, early)) if early else _Asked(
            floor, partial(bed.chains, blocks=blocks, nodes=effort.nodes, early=True),
            rounds=effort.nodes)


def _barriers(bed: Bed) -> Iterator[_Asked]:
    whole = bed.target.multiprocessors
    yield _Asked(
        _floor("grid_barrier", f"barrier of {whole} blocks", "us",
               "a counter in the L2 cache, a block a multiprocessor"),
        partial(bed.kernel, probe=probes.GRID_BARRIERS, blocks=whole, values={"blocks": whole},
                counter=True))
    lacking = bed.target.lacks("clusters")
    sizes = [size for size, blocks in sorted(bed.target.at_once.items()) if size > 1 and blocks]
    if lacking or not sizes:
        for name, what in (("cluster_barrier", "barrier of a cluster"),
                           ("exchange", "exchange within a cluster")):
            yield _Asked(without(_floor(name, what, "us", ""),
                                        lacking or "no cluster fits"))
        return
    for size in sizes:
        blocks = bed.target.at_once[size]
        yield _Asked(
            _floor(f"cluster_barrier_{size}", f"barrier of a cluster of {size} blocks", "us",
                   f"{blocks} blocks at once"),
            partial(bed.kernel, probe=probes.CLUSTER_BARRIERS, blocks=blocks,
                    values={"blocks": blocks}, cluster=size, counter=True))
    for size in sizes:
        blocks = bed.target.at_once[size]
        for quads, name, what, unit in (
                (32, "exchange", "exchange of 512 bytes, each with each of", "us"),
                (probes.MOST_QUADS, "exchange_bytes", "bytes that a block gets, in a cluster of",
                 "GB/s")):
            rate = unit == "GB/s"
            yield _Asked(
                _floor(f"{name}_{size}", f"{what} {size} blocks", "GB/s" if rate else "us",
                       f"{quads * 16:,} bytes sent to each block's shared memory, and read there"),
                partial(bed.exchange, blocks=blocks, size=size, quads=quads),
                work=16.0 * quads * size if rate else 1.0)


def _memory(bed: Bed, effort: Effort) -> Iterator[_Asked]:
    cache = bed.device.attribute("L2_CACHE_SIZE")
    large = min(max(effort.times_l2 * cache, 1 << 12), effort.most_bytes,
                bed.device.free_memory() // 4) // 4096 * 4096
    small = min(cache // 4, large) // 4096 * 4096
    blocks = bed.target.multiprocessors * probes.MOST_BLOCKS
    for name, what, probe, nbytes, times in (
            ("read", "device memory, read", probes.READ, large, 1),
            ("write", "device memory, written", probes.WRITE, large, 1),
            ("copy", "device memory, read and written by a copy", probes.COPY, large, 2),
            ("l2_read", "L2 cache, read", probes.READ, small, 1)):
        yield _Asked(
            _floor(name, what, "GB/s", f"{nbytes:,} bytes by {blocks} blocks"),
            partial(bed.memory, probe=probe, blocks=blocks, nbytes=nbytes),
            work=float(nbytes * times))
    nbytes = min(large, 1 << 28)
    for name, what, up in (("host_to_device", "page-locked host memory to the device", True),
                           ("device_to_host", "the device to page-locked host memory", False)):
        yield _Asked(_floor(name, what, "GB/s", f"copies of {nbytes:,} bytes"),
                     partial(bed.copies, nbytes=nbytes, up=up), work=float(nbytes))


def _arithmetic(bed: Bed) -> Iterator[_Asked]:
    whole = bed.target.multiprocessors
    blocks = whole * probes.MOST_BLOCKS
    yield _Asked(
        _floor("fma", "float32, fused multiply-add", "TFLOP/s", f"{blocks} blocks"),
        partial(bed.kernel, probe=probes.FMA, blocks=blocks,
                values={"scale": 0.5, "shift": 1.0}),
        work=float(probes.FMA.operations * blocks))
    for numbers, several in probes.TENSOR_CORE_PROBES.items():
        for probe in several:
            yield _product(bed, numbers, probe, whole if probe.specific else blocks)


def _product(bed: Bed, numbers: str, probe: Probe, blocks: int) -> _Asked:
    way = "wgmma" if probe.specific else "mma.sync"
    floor = _floor(f"tensor_{numbers}", f"tensor cores, {numbers}", "TFLOP/s",
                   f"{way}, {blocks} blocks, normally distributed numbers")
    if lacking := probe.lacks(bed.target):
        return _Asked(without(floor, lacking))
    words = 12288 if probe.specific else 192
    numbers_there = random_words(words, NUMBERS[numbers])
    return _Asked(floor, partial(bed.kernel, probe=probe, blocks=blocks, values={},
                                 words=numbers_there), work=float(probe.operations * blocks))


def random_words(count: int, type_: str) -> NDArray[np.uint32]:
    """`count` 32-bit words of normally distributed numbers: what tensor cores draw, and so their
    clocks, follows from the numbers."""
    stored = np.dtype(np.float32 if type_ == "float" else numpy_dtype(type_))
    values = np.random.default_rng(0).standard_normal(count * 4 // stored.itemsize)
    return np.ascontiguousarray(values.astype(np.float32).astype(stored)).view(np.uint32)


