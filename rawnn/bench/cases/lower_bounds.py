"""What limits a GPU: launches, barriers, exchanges, memory, arithmetic.

Every constant is a difference: `few` rounds of a piece of work and `many`, timed by events of the
device, divided by what they differ in. What a launch costs and how a kernel begins and ends is in
both, and falls out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from time import perf_counter

import click
import numpy as np
from numpy.typing import NDArray

from rawnn.bench.case import GPU_DEVICE, Case
from rawnn.bench.gpu_limits import GPU, METRICS, SUITE, Limits, store_limits
from rawnn.bench.harness import Harness, Sample, Variant, require_gpu
from rawnn.bench.peers.worker import PATIENCE_S, STEADY, WARM_S
from rawnn.bench.probing import ProbeDevice, Timed
from rawnn.bench.record import Results
from rawnn.bench.render import machine
from rawnn.bench.render.view import View
from rawnn.bench.suites import Count, Settings, Suites
from rawnn.common.dtypes import numpy_dtype
from rawnn.common.errors import RawnnError
from rawnn.engine.machine import Opened
from rawnn.ptx.limits import microbenchmarks as probes
from rawnn.ptx.limits.microbenchmarks import Probe

TIMER = dict.fromkeys(METRICS.values(), (
    "time between two events on the device, of many rounds less that of few, over the rounds "
    "between; warmed up until three samples in a row lie within 2 %"))
DTYPES = {"tf32": "float", "bf16": "bfloat16", "fp16": "float16", "fp8": "float8_e4m3"}
"""Precisions by their type in the kernels."""
SCALE = {"GB/s": 1e3, "TFLOP/s": 1e6}
"""Operations or bytes a microsecond in one unit of a rate."""


@dataclass(frozen=True)
class Effort:
    """How much is run: `samples` of each constant; `nodes` of the shorter and the longer graph;
    rounds until `least_ms` are reached, not more than `most`; a buffer that no cache holds, as a
    multiple of the L2 cache, and at most so many bytes."""

    samples: int = 15
    nodes: tuple[int, int] = (64, 1024)
    least_ms: float = 2.0
    most: int = 1 << 20
    times_l2: int = 16
    most_bytes: int = 1 << 30


SIMULATED = Effort(2, (2, 6), 0.0, 2, 0, 1 << 14)
"""Enough to see that everything runs: a simulated GPU takes a microsecond for each task."""


class LowerBoundsSuite(Settings, frozen=True, kw_only=True):
    """`bench lower-bounds`: samples of each constant."""

    samples: Count


def measure(harness: Harness, suites: Suites, *, samples: int | None, device: str) -> None:
    """Measure what limits this GPU: what launches, barriers and exchanges cost, and what its memory
    and its arithmetic reach.

    The constants are stored for this GPU and driver. The column "x lower bound" of the other tables
    and `rawnn plan --cost` go by them.
    """
    opened = harness.open(device, TIMER)
    gpu = require_gpu(opened, "limits can be measured")
    effort = SIMULATED if gpu.backend.name == "sim" else Effort()
    suite: LowerBoundsSuite = suites.lower_bounds
    if samples or effort.least_ms:
        effort = replace(effort, samples=samples or suite.samples)
    measure_limits(harness, opened, effort)
    if any(r.samples for r in harness.results.where(SUITE) if r.variant != GPU) \
            and gpu.backend.name != "sim":
        harness.notify(f"kept in {store_limits(harness.results)}")


def measure_limits(harness: Harness, opened: Opened, effort: Effort) -> None:
    """Measure all constants of an open GPU; Ctrl-C ends it early, with those there are. A constant
    that this GPU has not, or that could not be measured, keeps the reason."""
    device = require_gpu(opened, "limits can be measured")
    with ProbeDevice(device) as probing, harness.watch.during() as observed:
        gpu = _variant(harness, GPU, "multiprocessors")
        gpu.add(Sample({"multiprocessors": probing.target.multiprocessors,
                        "l2_bytes": probing.device.attribute("L2_CACHE_SIZE")}))
        harness.store(gpu.records())
        asked = list(_asked(probing, effort))
        best: dict[str, Variant] = {}
        try:
            for number, one in enumerate(asked, 1):
                found = _measured(one, effort, harness)
                best[found.name] = _better(best.get(found.name), found)
                harness.store(best[found.name].records())
                harness.progress(number, len(asked), 1, one.what)
        except KeyboardInterrupt:
            harness.interrupted = True
    if observed.readings:
        gpu.add(Sample({}, conditions=observed))
    harness.store(gpu.records())
    harness.end()


@dataclass(frozen=True)
class Constant:
    """A constant to be measured: its name, that in words, its unit, and what is run. `make(stack)`
    gives what is timed; `work` is what a round does, in bytes or operations, where the constant is
    a rate. `rounds` are fixed ones. `reason` says why it cannot be measured here."""

    name: str
    what: str
    unit: str
    how: str
    make: Callable[[ExitStack], Timed] | None = None
    work: float = 1.0
    rounds: tuple[int, int] | None = None
    reason: str = ""


def _variant(harness: Harness, name: str, metric: str) -> Variant:
    return Variant(SUITE, name, "", metric, {}, lambda number: Sample({}),
                   environment=harness.environment.key)


def _measured(constant: Constant, effort: Effort, harness: Harness) -> Variant:
    variant = _variant(harness, constant.name, METRICS[constant.unit])
    variant.notes = [constant.what, constant.how]
    if constant.make is None:
        variant.refuse("unavailable", constant.reason)
        return variant
    try:
        with ExitStack() as stack:
            _time(variant, constant, constant.make(stack), effort)
    except RawnnError as error:
        variant.refuse("failed", str(error))
    return variant


def _time(variant: Variant, constant: Constant, run: Timed, effort: Effort) -> None:
    few, many = constant.rounds or rounds_of(run, effort)

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
        variant.refuse("failed", f"{many} rounds took no longer than {few}")
        return
    unit = constant.unit
    variant.notes[1] += f", {few} and {many} rounds" + ("" if steady else "; not steady")
    variant.add(Sample({variant.metric: times if unit == "us" else
                        [constant.work / us / SCALE[unit] for us in times]}))


def rounds_of(run: Timed, effort: Effort) -> tuple[int, int]:
    """Few rounds and many: as many as take `least_ms` and an eighth of them, at least 1 and 2. The
    shorter of two runs counts: a first one may take milliseconds to bring its kernel to the GPU."""
    many = 2
    while many < effort.most and min(run(many), run(many)) < effort.least_ms:
        many = min(2 * many, effort.most)
    return max(many // 8, 1), many


def _better(before: Variant | None, found: Variant) -> Variant:
    """Of two ways to measure one rate the faster."""
    if before is None or not before.samples:
        return found
    faster = found.samples and median(found.samples[found.metric]) \
        > median(before.samples[before.metric])
    return found if faster else before


# -- what is asked ---------------------------------------------------------------------------------


def _asked(probing: ProbeDevice, effort: Effort) -> Iterator[Constant]:
    yield from _launches(probing, effort)
    yield from _barriers(probing)
    yield from _memory(probing, effort)
    yield from _arithmetic(probing)


def _launches(probing: ProbeDevice, effort: Effort) -> Iterator[Constant]:
    whole = probing.target.multiprocessors
    yield Constant("launch", "launch on a stream, from Python", "us",
                   "an empty kernel of one block, one launch behind the other", probing.launches)
    yield Constant("graph_launch", "launch of a graph", "us",
                   "a graph of one empty kernel, one launch behind the other",
                   probing.graph_launches)
    early = probing.target.lacks("programmatic launches")
    for blocks, name, words in ((1, "node", "one block"),
                                (whole, "node_whole", f"{whole} blocks")):
        yield Constant(name, f"graph node, {words}", "us", "a chain of empty kernels",
                       partial(probing.chains, blocks=blocks, nodes=effort.nodes, early=False),
                       rounds=effort.nodes)
        yield Constant(f"{name}_early", f"graph node, programmatic, {words}", "us",
                       "a chain of empty kernels that wait and trigger",
                       None if early else partial(probing.chains, blocks=blocks,
                                                  nodes=effort.nodes, early=True),
                       rounds=effort.nodes, reason=early)


def _barriers(probing: ProbeDevice) -> Iterator[Constant]:
    whole = probing.target.multiprocessors
    yield Constant("grid_barrier", f"barrier of {whole} blocks", "us",
                   "a counter in the L2 cache, a block a multiprocessor",
                   partial(probing.kernel, probe=probes.GRID_BARRIERS, blocks=whole,
                           values={"blocks": whole}, counter=True))
    lacking = probing.target.lacks("clusters")
    sizes = [size for size, blocks in sorted(probing.target.at_once.items()) if size > 1 and blocks]
    if lacking or not sizes:
        for name, what in (("cluster_barrier", "barrier of a cluster"),
                           ("exchange", "exchange within a cluster")):
            yield Constant(name, what, "us", "", reason=lacking or "no cluster fits")
        return
    for size in sizes:
        blocks = probing.target.at_once[size]
        yield Constant(f"cluster_barrier_{size}", f"barrier of a cluster of {size} blocks", "us",
                       f"{blocks} blocks at once",
                       partial(probing.kernel, probe=probes.CLUSTER_BARRIERS, blocks=blocks,
                               values={"blocks": blocks}, cluster=size, counter=True))
    for size in sizes:
        blocks = probing.target.at_once[size]
        for quads, name, what, unit in (
                (32, "exchange", "exchange of 512 bytes, each with each of", "us"),
                (probes.MOST_QUADS, "exchange_bytes", "bytes that a block gets, in a cluster of",
                 "GB/s")):
            yield Constant(f"{name}_{size}", f"{what} {size} blocks", unit,
                           f"{quads * 16:,} bytes sent to each block's shared memory, and read "
                           f"there", partial(probing.exchange, blocks=blocks, size=size,
                                             quads=quads),
                           work=16.0 * quads * size if unit == "GB/s" else 1.0)


def _memory(probing: ProbeDevice, effort: Effort) -> Iterator[Constant]:
    cache = probing.device.attribute("L2_CACHE_SIZE")
    large = min(max(effort.times_l2 * cache, 1 << 12), effort.most_bytes,
                probing.device.free_memory() // 4) // 4096 * 4096
    small = min(cache // 4, large) // 4096 * 4096
    blocks = probing.target.multiprocessors * probes.MOST_BLOCKS
    for name, what, probe, nbytes, times in (
            ("read", "device memory, read", probes.READ, large, 1),
            ("write", "device memory, written", probes.WRITE, large, 1),
            ("copy", "device memory, read and written by a copy", probes.COPY, large, 2),
            ("l2_read", "L2 cache, read", probes.READ, small, 1)):
        yield Constant(name, what, "GB/s", f"{nbytes:,} bytes by {blocks} blocks",
                       partial(probing.memory, probe=probe, blocks=blocks, nbytes=nbytes),
                       work=float(nbytes * times))
    nbytes = min(large, 1 << 28)
    for name, what, up in (("host_to_device", "page-locked host memory to the device", True),
                           ("device_to_host", "the device to page-locked host memory", False)):
        yield Constant(name, what, "GB/s", f"copies of {nbytes:,} bytes",
                       partial(probing.copies, nbytes=nbytes, up=up), work=float(nbytes))


def _arithmetic(probing: ProbeDevice) -> Iterator[Constant]:
    whole = probing.target.multiprocessors
    blocks = whole * probes.MOST_BLOCKS
    yield Constant("fma", "float32, fused multiply-add", "TFLOP/s", f"{blocks} blocks",
                   partial(probing.kernel, probe=probes.FMA, blocks=blocks,
                           values={"scale": 0.5, "shift": 1.0}),
                   work=float(probes.FMA.operations * blocks))
    for precision, several in probes.TENSOR_CORE_PROBES.items():
        for probe in several:
            yield _product(probing, precision, probe, whole if probe.specific else blocks)


def _product(probing: ProbeDevice, precision: str, probe: Probe, blocks: int) -> Constant:
    way, lacking = "wgmma" if probe.specific else "mma.sync", probe.lacks(probing.target)
    words = random_words(12288 if probe.specific else 192, DTYPES[precision])
    return Constant(f"tensor_{precision}", f"tensor cores, {precision}", "TFLOP/s",
                    f"{way}, {blocks} blocks, normally distributed numbers",
                    None if lacking else partial(probing.kernel, probe=probe, blocks=blocks,
                                                 values={}, words=words),
                    work=float(probe.operations * blocks), reason=lacking)


def random_words(count: int, type_: str) -> NDArray[np.uint32]:
    """`count` 32-bit words of normally distributed numbers: what tensor cores draw, and so their
    clocks, follows from the numbers."""
    stored = np.dtype(np.float32 if type_ == "float" else numpy_dtype(type_))
    values = np.random.default_rng(0).standard_normal(count * 4 // stored.itemsize)
    return np.ascontiguousarray(values.astype(np.float32).astype(stored)).view(np.uint32)


NODE_US = (0.1, 20.0)
"""Microseconds that a node of a graph can take on any GPU there is."""
ORDERED = (("node", 1.2, "node_whole"), ("copy", 1.0, "l2_read"), ("host_to_device", 1.0, "copy"),
           ("fma", 1.0, "tensor_tf32"), ("tensor_tf32", 1.0, "tensor_bf16"),
           ("cluster_barrier_2", 1.0, "grid_barrier"), ("exchange_2", 2.0, "grid_barrier"))
"""The first is less than the factor times the second on any GPU that has both."""


def implausible(results: Results) -> str:
    """Constants that no GPU can have, or that were not measured although the GPU has what they
    need: something else was at work on it, or the measurement is wrong. "" where there are none."""
    limits = Limits(results)
    found = [f"{r.variant} was not measured: {r.reason or 'the measurement was ended early'}"
             for r in limits.records if not r.samples and not r.reason.startswith("needs ")]
    node = limits.value("node")
    if node is not None and not NODE_US[0] < node < NODE_US[1]:
        found.append(f"node = {node:.3g} us is not between {NODE_US[0]:g} and {NODE_US[1]:g}")
    for less, factor, more in ORDERED:
        a, b = limits.value(less), limits.value(more)
        if a is not None and b is not None and a >= factor * b:
            times = "" if factor == 1 else f"{factor:g} times "
            found.append(f"{less} = {a:.3g} is not below {times}{more} = {b:.3g}")
    return f"not such as a GPU can have: {'; '.join(found)}" if found else ""


CASE = Case("lower-bounds", measure, (
    click.option("--samples", type=click.IntRange(1), help="Samples of each constant (15)."),
    GPU_DEVICE), lambda results: "" if any(
        r.samples for r in results.where(SUITE) if r.variant != GPU) else
    "none of it could be measured; the reasons stand above",
    implausible, resumes=False, aliases=("floors",), settings=LowerBoundsSuite, view=View(
        "What limits this GPU", "Launches, barriers, memory and arithmetic by themselves: what 'x "
        "lower bound' is counted from.", machine.lower_bounds))
