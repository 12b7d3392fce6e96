"""Timing a kernel: what is measured, what the report says, and which times are refused."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rawnn
from rawnn.bench.statistics import median_interval
from rawnn.common.errors import ConfigError, DeviceError, MissingLibrary
from rawnn.cuda.compiling.resources import Usage, occupancy
from rawnn.cuda.device import Device
from rawnn.cuda.stream import Event, Stream
from rawnn.lab import CheckFailed, Refused, Work, timing
from rawnn.lab import advice as advice_module
from rawnn.lab.advice import Measurements, Uses, advice
from rawnn.lab.kernel_problem import Launching
from rawnn.lab.parameter_roles import problem_of
from rawnn.lab.red_zones import Image
from rawnn.sim import Simulation, register
from tests.lab.cheats import CHEATS, SHAPES, WRITE, Cheat, Meaning, caching, doubled, past, plain

HONEST = Cheat("lab_honest", WRITE, plain(doubled), ())
GIVEN: dict[str, Any] = {**HONEST.given, "sizes": {"n": [100, 3000]}, "samples": 5}


def test_what_is_measured(device: Device) -> None:
    found = rawnn.time(HONEST.simulated(device), **GIVEN, flops="n")
    assert found.sizes == {"n": 3000}
    assert found.launching == Launching((12, 1, 1), (256, 1, 1))
    assert (found.moved, found.computed) == (24_000, 3000)
    assert found.cold.spread.n == found.warm.spread.n == 5
    assert found.cold.low <= found.cold.median <= found.cold.high
    assert found.gbps == pytest.approx(24_000 / found.cold.median / 1e3)
    assert found.checked >= 10
    text = str(found)
    for part in ("cold L2 cache", "warm L2 cache", "24,000 bytes", "times say nothing",
                 "have not been measured (rawnn bench lower-bounds)", "timed results compared"):
        assert part in text


@pytest.mark.parametrize("changes", [
    {"at": {"n": 17}}, {"limit": 30.0}, {"bytes": "n * 100"}, {"reference": None},
    {"inputs": {"x": lambda g, shape: g.normal(size=shape)}},
])
def test_ways_to_say_it(device: Device, changes: dict[str, Any]) -> None:
    found = rawnn.time(HONEST.simulated(device), **{**GIVEN, **changes})
    assert found.sizes["n"] == (17 if "at" in changes else 3000)
    each = 12 if "reference" in changes else 8  # y may be read then, for all that is known
    assert found.moved == (300_000 if "bytes" in changes else each * found.sizes["n"])
    assert bool(found.checked) == ("reference" not in changes)


def waking(change: Meaning, launches: int = 8) -> Meaning:
    """Honest for as long as a check lasts, and then no more."""
    seen = [0]

    def meaning(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
        seen[0] += 1
        (doubled if seen[0] <= launches else change)(t, a)

    return meaning


def _nothing(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
    pass


def _half(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
    t.y[::2] = 2 * t.x[::2]


def _poisonous(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
    doubled(t, a)
    t.y[7] = np.nan


def _overrun(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
    doubled(t, a)
    memory, end = past(t.y, t.y.size)
    memory[end] = 1


def _input(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
    doubled(t, a)
    t.x[0] = 5


@pytest.mark.parametrize("change", [
    _nothing, _half, _poisonous, _overrun, _input, caching(),
    lambda t, a: np.copyto(t.y, t.x), lambda t, a: np.copyto(t.y, (2 * t.x).astype(np.float16)),
], ids=["nothing", "half", "nan", "overrun", "input", "cached", "other", "coarse"])
def test_a_kernel_that_cheats_on_the_clock_alone_is_caught(device: Device, change: Meaning) -> None:
    register(HONEST.name, waking(change), SHAPES, reads=("x",), writes=("y",))
    with pytest.raises(CheckFailed, match="lab_honest while it was timed: WRONG"):
        rawnn.time(HONEST.kernel(device), **GIVEN)


def putting_off(batch: int, checked: int = 2) -> Meaning:
    """Honest in the check; then all of a batch is done by its last launch, and the others rest."""
    launches, waiting = [0], []

    def meaning(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
        launches[0] += 1
        waiting.append(t)
        if launches[0] <= checked or (launches[0] - checked) % batch == 0:
            for each in waiting:
                doubled(each, a)
            waiting.clear()

    return meaning


def test_work_that_is_put_off_till_a_later_sample_is_missed(device: Device) -> None:
    register(HONEST.name, putting_off(GIVEN["samples"]), SHAPES, reads=("x",), writes=("y",))
    with pytest.raises(CheckFailed, match="'y' was never written by the end of its sample"):
        rawnn.time(HONEST.kernel(device), **GIVEN)


def test_a_function_that_puts_its_work_off_is_caught(device: Device) -> None:
    kernel, calls, waiting = HONEST.simulated(device), [0], []

    def deferred(x: Any, y: Any, n: int) -> None:
        calls[0] += 1
        waiting.append((x, y))
        if calls[0] <= 2 or (calls[0] - 2) % 5 == 0:
            for each in waiting:
                kernel[-(-n // 256), 256](*each, n)
            waiting.clear()

    with pytest.raises(CheckFailed, match="'y' was never written by the end of its sample"):
        rawnn.time(deferred, lambda x: {"y": 2 * x}, shapes=SHAPES, sizes={"n": 1000},
                   device=device, samples=5)


@pytest.mark.parametrize("name", [
    "rawnn.cuda.stream.Event.milliseconds_since", "rawnn.cuda.stream.Event.record",
    "rawnn.lab.measuring.Stopwatch._alone", "rawnn.lab.timing.judged", "time.perf_counter",
    "rawnn.bench.statistics.spread", "numpy.median"])
def test_a_function_that_replaces_its_clock_is_refused(
        device: Device, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    kernel = HONEST.simulated(device)
    owner, _, last = name.rpartition(".")
    found = pkgutil.resolve_name(owner)
    genuine = getattr(found, last)

    def dishonest(x: Any, y: Any, n: int) -> None:
        kernel[-(-n // 256), 256](x, y, n)
        if getattr(found, last) is genuine:  # from the check on
            monkeypatch.setattr(found, last, lambda *given, **named: genuine(*given, **named))

    given: dict[str, Any] = {"shapes": SHAPES, "sizes": {"n": 1000}, "device": device}
    with pytest.raises(Refused, match=rf"replaced {re.escape(name)}: neither its times nor"):
        rawnn.time(dishonest, lambda x: {"y": 2 * x}, **given, samples=2)


def test_a_clock_that_is_put_back_once_it_was_read_is_found(
        device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, genuine = HONEST.simulated(device), Event.milliseconds_since

    def short(end: Event, start: Event) -> float:
        monkeypatch.setattr(Event, "milliseconds_since", genuine)
        return 1e-9

    def dishonest(x: Any, y: Any, n: int) -> None:
        kernel[-(-n // 256), 256](x, y, n)
        monkeypatch.setattr(Event, "milliseconds_since", short)

    given: dict[str, Any] = {"shapes": SHAPES, "sizes": {"n": 1000}, "device": device}
    with pytest.raises(Refused, match=r"replaced rawnn\.cuda\.stream\.Event\.millisecond"):
        rawnn.time(dishonest, lambda x: {"y": 2 * x}, **given, samples=2)


def test_a_part_of_the_cache_that_is_set_aside(sim: Simulation, device: Device) -> None:
    """What lies there outlives the fill before a cold sample: a function may set none aside, and
    that of its caller is given back."""
    kernel, limit = HONEST.simulated(device), "PERSISTING_L2_CACHE_SIZE"

    def honest(x: Any, y: Any, n: int) -> None:
        seen.append(device.driver.cuCtxGetLimit(limit)[1])
        kernel[-(-n // 256), 256](x, y, n)

    def persisting(x: Any, y: Any, n: int) -> None:
        honest(x, y, n)
        device.driver.cuCtxSetLimit(limit, 1 << 20)

    given: dict[str, Any] = {"shapes": SHAPES, "sizes": {"n": 1000}, "device": device, "samples": 2}
    seen: list[int] = []
    device.driver.cuCtxSetLimit(limit, 1 << 16)
    rawnn.time(honest, lambda x: {"y": 2 * x}, **given)
    assert seen[:2] == [1 << 16] * 2  # of the check
    assert set(seen[2:]) == {0}
    assert sim.calls.count("cuCtxResetPersistingL2Cache") == 4  # a batch each, two warm ones
    assert device.driver.cuCtxGetLimit(limit) == (0, 1 << 16)
    device.driver.cuCtxSetLimit(limit, 0)
    with pytest.raises(Refused, match=r"sets 1,048,576 bytes of the L2 cache aside"):
        rawnn.time(persisting, lambda x: {"y": 2 * x}, **given)


class Scripted:
    """A runner whose samples take the given times; those named in `lazy` do nothing."""

    def __init__(self, times: list[list[float]], lazy: Collection[tuple[int, int]]) -> None:
        self.times, self.lazy, self.batches = times, lazy, 0
        self.warm: list[bool] = []

    def measure(self, launching: Launching | None, samples: Any, warm: bool) -> Any:
        batch, contents = self.batches, []
        for number, (images, _, _) in enumerate(samples):
            found = {name: image.content.copy() for name, image in images.items()}
            if (batch, number) not in self.lazy:
                images["y"].inside(found["y"])[...] = \
                    (2 * images["x"].values(found["x"])).view(np.uint8)
            contents.append(found)
        self.batches += 1
        self.warm.append(warm)
        return self.times[batch], contents

    def free(self) -> int:
        return 1 << 40


def clock(device: Device, runner: Scripted) -> timing._Clock:
    problem = problem_of(HONEST.simulated(device), Work(**HONEST.given))
    made = timing._Clock(problem, {"n": 100}, runner,  # type: ignore[arg-type]
                         np.random.default_rng(0), True)
    made._most = 3
    return made


TIMES = [[5.0, 5.0, 5.0], [4.0, 5.0, 3.0], [9.0, 8.0, 9.0], [9.0, 7.0, 8.0]]
"""A first batch and one that counts, with a cold cache and with a warm one."""


@pytest.mark.parametrize(("lazy", "caught"), [
    ((), False), ([(0, 0)], True), ([(1, 2)], True), ([(2, 1)], True), ([(3, 1)], True),
    ([(1, 1), (2, 0), (3, 0), (3, 2)], False)])
def test_the_fastest_so_far_is_compared_cold_and_warm(
        device: Device, monkeypatch: pytest.MonkeyPatch, lazy: Any, caught: bool) -> None:
    """With no time for others. A warm sample that is faster than all warm ones counts, though cold
    ones were faster."""
    monkeypatch.setattr(timing, "_CHECKING", -1.0)
    runner = Scripted(TIMES, lazy)
    made = clock(device, runner)
    if caught:
        with pytest.raises(CheckFailed, match="'y' was never written by the end of its sample"):
            (made.times(3, False), made.times(3, True))
        return
    cold, warm = made.times(3, False), made.times(3, True)
    assert runner.warm == [False, False, True, True]
    assert (cold.spread.min, cold.median, cold.spread.max) == (3.0, 4.0, 5.0)
    assert (warm.spread.min, warm.median, warm.spread.max) == (7.0, 8.0, 9.0)
    assert made.checked == 4
    slower = clock(device, Scripted([[5.0, 5.0, 5.0], [6.0, 7.0, 6.0], [2.0, 3.0, 3.0],
                                     [3.0, 3.0, 4.0]], ()))
    (slower.times(3, False), slower.times(3, True))
    assert slower.checked == 2  # no second batch has a record


@pytest.mark.parametrize(("free", "host", "size"), [
    (1 << 40, 1 << 29, 16), (8 * 9, 1 << 29, 9), (8 * 9 - 1 / 1024, 1 << 29, 8), (0, 1 << 29, 1),
    (1 << 40, 7, 7), (8 * 3, 5, 3), (1 << 40, 0, 1)])
def test_a_batch_takes_a_quarter_of_memory_for_two_copies(
        device: Device, monkeypatch: pytest.MonkeyPatch, free: float, host: float, size: int
) -> None:
    """`free` and `host` are in arrays of one sample, zones included."""
    runner = Scripted(TIMES, ())
    made = clock(device, runner)
    arrays = sum(image.content.nbytes for image in
                 timing.images_of(made._trial(), np.random.default_rng(1)).values())
    runner.free = lambda: int(free * arrays)  # type: ignore[method-assign]
    monkeypatch.setattr(timing, "_HOST", int(host * arrays) if host < 1 << 29 else 1 << 29)
    made._most = 0
    assert made._size() == size
    runner.free = lambda: 0  # type: ignore[method-assign]
    assert made._size() == size  # it is measured once


def test_all_samples_are_compared_where_there_is_time(device: Device) -> None:
    for place in ((1, 1), (3, 2)):
        made = clock(device, Scripted(TIMES, [place]))
        with pytest.raises(CheckFailed):
            (made.times(3, False), made.times(3, True))
    made = clock(device, Scripted(TIMES, ()))
    made.times(3, False)
    assert made.checked == 6


def test_seconds_of_comparing_are_those_of_a_batch_or_of_all_large_samples(
        device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that moves by 0.3 s whenever it is read."""
    now = [0.0]

    def read() -> float:
        now[0] += 0.3
        return now[0]

    monkeypatch.setattr(timing, "perf_counter", read)
    batches = clock(device, Scripted([[5.0, 5.0, 5.0]] * 4, ()))
    batches.times(9, False)
    assert batches.checked == 12
    large = clock(device, Scripted([[5.0]] * 9, ()))
    large._most = 1
    large.times(8, False)
    assert large.checked == 2  # the first, which is the fastest yet, and one within a second


def test_cold_and_warm_are_what_they_are_called(device: Device, monkeypatch: pytest.MonkeyPatch
                                                ) -> None:
    measure = timing.Stopwatch.measure

    def timed(self: Any, launching: Any, samples: Any, warm: bool) -> Any:
        times, contents = measure(self, launching, samples, warm)
        return [2.0 if warm else 4.0 for _ in times], contents

    monkeypatch.setattr(timing.Stopwatch, "measure", timed)
    found = rawnn.time(HONEST.simulated(device), **GIVEN, flops="n")
    assert (found.cold.median, found.warm.median) == (4.0, 2.0)
    assert found.gbps == pytest.approx(6.0)  # 24,000 bytes in 4 us
    assert found.tflops == pytest.approx(3000 / 4e6)
    assert replace(found, least=1.0).fraction == 0.25


def test_a_warm_sample_is_behind_a_copy_of_its_inputs(sim: Simulation, device: Device) -> None:
    watch = timing.Stopwatch(HONEST.simulated(device), ("x", "y", "n"))
    generator = np.random.default_rng(0)
    arrays = {name: Image.of(np.zeros(100, np.float32), generator) for name in "xy"}
    samples = [(arrays, {"n": 100}, ["x"])] * 2
    for warm, fills, copies in ((False, 2, 2), (True, 2, 4)):  # two copies behind the first sample
        before = [sim.calls.count(f"cuGraphAddMem{kind}Node") for kind in ("set", "cpy")]
        watch.measure(Launching((1, 1, 1), (256, 1, 1)), samples, warm)
        after = [sim.calls.count(f"cuGraphAddMem{kind}Node") for kind in ("set", "cpy")]
        assert [b - a for a, b in zip(before, after, strict=True)] == [fills, copies]
    real = SimpleNamespace(device=SimpleNamespace(
        backend=SimpleNamespace(name="cuda"), attribute={"L2_CACHE_SIZE": 50}.get))
    assert timing.Stopwatch._flush_bytes(real) == 100  # type: ignore[arg-type]


def test_a_launch_by_itself_is_timed_when_its_arrays_lie_as_they_should(
        monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[Any, ...]] = []

    def noted(name: str) -> Any:
        return lambda *given: done.append((name, *given))

    driver = SimpleNamespace(cuMemcpyDtoDAsync=noted("copy"))
    stream: Any = SimpleNamespace(handle=7)
    watch: Any = SimpleNamespace(finish=noted("finish"), device=SimpleNamespace(
        driver=driver, stream=stream, fill=noted("fill")))
    begin, end = (SimpleNamespace(record=noted(name)) for name in ("begin", "end"))
    monkeypatch.setattr("rawnn.lab.measuring.check", lambda *given: None)
    timing.Stopwatch._alone(watch, noted("run"), begin, end,  # type: ignore[arg-type]
                            [(100, 13, None), (200, 24, 900)])
    assert done == [("fill", 100, 0xFF, 13, "poison"), ("copy", 200, 900, 24, 7), ("finish",),
                    ("begin", stream), ("run",), ("finish",), ("end", stream)]


def test_limits_of_memory_and_arithmetic(device: Device) -> None:
    assert timing.limits(roof(20.0, 1.0), 24_000, 10**6, "float32") == (
        pytest.approx(1.2), "memory")
    assert timing.limits(roof(20.0, 1.0), 24_000, 3 * 10**6, "float32") == (
        pytest.approx(3.0), "arithmetic")
    assert timing.limits(roof(20.0, 1.0), 24_000, 3 * 10**6, "tf32") == (
        pytest.approx(1.2), "memory")
    assert timing.limits(roof(1.0, 1.0), 10**6, 10**9, "float32") == (1000.0, "memory")
    assert timing.limits(None, 1, 1, "float32") == (None, "")


def test_what_no_cache_can_beat(device: Device) -> None:
    """Reads, and writes that the L2 cache has no room for, 15 % faster than a copy; operations 5 %
    faster than was measured, with either cache."""
    problem = problem_of(HONEST.simulated(device), Work(**{**HONEST.given, "flops": "n"}))
    trial = problem.trial({"n": 3000}, np.random.default_rng(0))
    cold, warm = object(), object()

    def least(cache: int) -> list[tuple[float, bool]]:
        gpu = SimpleNamespace(attribute={"L2_CACHE_SIZE": cache}.get)
        return [(us, times is cold) for us, times, _ in timing._least(
            problem, trial, cold, warm, roof(20.0, 1e-3), gpu)]  # type: ignore[arg-type]

    assert least(0) == [(pytest.approx(24_000 / (20 * 1.15) * 1e-3), True),
                        (pytest.approx(3000 / (1e9 * 1.05) * 1e6), True),
                        (pytest.approx(3000 / (1e9 * 1.05) * 1e6), False)]
    assert least(10_000)[0][0] == pytest.approx(14_000 / (20 * 1.15) * 1e-3)
    assert least(1 << 20)[0][0] == pytest.approx(12_000 / (20 * 1.15) * 1e-3)
    us = least(0)[0][0]  # what takes just that long is believed
    gpu: Any = SimpleNamespace(attribute=lambda name: 0)
    for took in (us, np.nextafter(us, 0)):
        times: Any = SimpleNamespace(median=took)
        with nullcontext() if took == us else pytest.raises(Refused, match="moving 24,000 bytes"):
            timing._refuse_too_fast(problem, trial, times, times, roof(20.0, 1.0), gpu)


@pytest.mark.parametrize(("clock", "width", "gbps"), [
    (2_619_000, 5120, 3352.32), (9_501_000, 384, 912.096), (0, 5120, None), (None, None, None)])
def test_without_measured_limits_memory_moves_two_words_a_clock_at_most(
        device: Device, clock: int | None, width: int | None, gbps: float | None) -> None:
    """An H100's and an RTX 3090's memory; drivers that report no clock allow any time, and so does
    a simulated GPU."""
    problem = problem_of(HONEST.simulated(device), Work(**HONEST.given))
    trial = problem.trial({"n": 3000}, np.random.default_rng(0))
    known = {"L2_CACHE_SIZE": 0, "MEMORY_CLOCK_RATE": clock, "GLOBAL_MEMORY_BUS_WIDTH": width}
    cold = object()

    def attribute(name: str) -> int:
        if known[name] is None:
            raise DeviceError("not reported")
        return known[name]  # type: ignore[return-value]

    for name in ("cuda", "sim"):
        gpu = SimpleNamespace(attribute=attribute, backend=SimpleNamespace(name=name))
        found = list(timing._least(problem, trial, cold, object(), None, gpu))  # type: ignore[arg-type]
        if gbps is None or name == "sim":
            assert found == []
        else:
            (us, times, words), = found
            assert us == pytest.approx(24_000 / gbps * 1e-3)
            assert times is cold
            assert f"moving 24,000 bytes at {gbps:,.0f} GB/s, the most its memory" in words


@pytest.mark.parametrize("arch", ["sm_90", "sm_90a", "sm_85"])
@pytest.mark.parametrize("failure", [None, MissingLibrary("no NVRTC\nat all"), RuntimeError("x")])
def test_what_a_kernel_uses_is_known_as_far_as_the_compiler_and_the_gpu_are(
        monkeypatch: pytest.MonkeyPatch, arch: str, failure: Exception | None) -> None:
    """The block's threads, and static and dynamic shared memory together, limit occupancy."""
    used = advice_module.Resources("k", Usage(64, 1000, 0, 0), (8, 16), None)

    def resources(source: Any, expressions: Any, asked: str) -> list[Any]:
        assert (expressions, asked) == (("k",), arch)
        if failure is not None:
            raise failure
        return [used]

    monkeypatch.setattr(advice_module, "resources", resources)
    kernel: Any = SimpleNamespace(
        device=SimpleNamespace(attribute={"MULTIPROCESSOR_COUNT": 132}.get, arch=arch),
        source=SimpleNamespace(arch=""), expression="k")
    found = advice_module.uses_of(kernel, Launching((1, 1, 1), (8, 4, 8), 30_000))
    assert found.multiprocessors == 132
    if failure is not None:
        assert (found.resources, found.occupancy) == (None, None)
        assert found.missing == str(failure).partition("\n")[0]
    else:
        assert found.resources is used
        assert found.occupancy == (occupancy("sm_90", threads=256, registers=64, shared=31_000)
                                   if arch != "sm_85" else None)


@pytest.mark.parametrize("cache", [0, 10_000, 1 << 20])
@pytest.mark.parametrize(("declared", "least"), [
    ("n", 3000), ("4 * n", 12_000), ("5 * n", 15_000), ("100 * n", 300_000)])
def test_a_kernel_is_held_to_the_bytes_that_it_declares(device: Device, declared: str, least: int,
                                                        cache: int) -> None:
    """It may read a part of its inputs of 12,000 bytes; what is more than these is written."""
    problem = problem_of(HONEST.simulated(device), Work(**{**HONEST.given, "bytes": declared}))
    trial = problem.trial({"n": 3000}, np.random.default_rng(0))
    gpu = SimpleNamespace(attribute={"L2_CACHE_SIZE": cache}.get)
    (us, _, words), = timing._least(
        problem, trial, object(), object(), roof(20.0, 1e-3), gpu)  # type: ignore[arg-type]
    wanted = least if least <= 12_000 else max(12_000, least - cache)
    assert us == pytest.approx(wanted / (20 * 1.15) * 1e-3)
    assert f"moving {wanted:,} bytes" in words


@pytest.mark.parametrize(("types", "compute", "kind"), [
    (("float", "float"), "float32", "float32"), (("half", "float"), "float32", "float16"),
    (("float", "half"), "float32", "float16"), (("float", "float"), "tf32", "tf32"),
    (("double", "double"), "float32", "float64"), (("int", "float"), "float32", "float32")])
def test_arithmetic_goes_by_the_smallest_float(device: Device, types: tuple[str, str], compute: str,
                                               kind: str) -> None:
    first, second = (name.replace("half", "__half") for name in types)
    text = ("struct __half { unsigned short bits; };\n"  # by its name: its header takes a second
            f"__global__ void lab_kinds(const {first}* a, const {second}* b, float* y, int n) {{}}")
    kernel = rawnn.Kernel(text, "lab_kinds", device=device)
    problem = problem_of(kernel, Work(reference=lambda a, b: a, grid=1, block=32, compute=compute))
    assert timing.number_class(problem) == kind


def test_fresh_inputs_for_every_sample(device: Device) -> None:
    seen: list[bytes] = []

    def watching(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
        seen.append(t.x.tobytes())
        doubled(t, a)

    register(HONEST.name, watching, SHAPES, reads=("x",), writes=("y",))
    rawnn.time(HONEST.kernel(device), **GIVEN)
    assert len(seen) == 2 + 4 * 5
    assert seen[0] == seen[1]  # the check's two launches
    assert len(set(seen)) == len(seen) - 1


@pytest.mark.parametrize("name", ["caches_its_output", "skips_repeated_inputs", "writes_nothing",
                                  "works_only_at_first", "races"])
def test_a_kernel_that_is_wrong_is_not_timed(device: Device, name: str) -> None:
    cheat = next(c for c in CHEATS if c.name == name)
    with pytest.raises(CheckFailed, match=rf"{name}.*WRONG"):
        rawnn.time(cheat.simulated(device), **cheat.given, samples=5)


def roof(gbps: float, tflops: float) -> Any:
    return SimpleNamespace(memory_gbps=gbps, flops={"float32": tflops * 1e12}, where="a test",
                           l2_gbps=None)


def test_what_is_faster_than_the_gpu_is_refused(device: Device, monkeypatch: pytest.MonkeyPatch
                                                ) -> None:
    kernel = HONEST.simulated(device)
    monkeypatch.setattr(timing, "roofline_of", lambda gpu: roof(1.0, 1000.0))
    with pytest.raises(Refused, match=r"moving 12,000 bytes at 1 GB/s \(measured\) allows no less"):
        rawnn.time(kernel, **GIVEN)
    monkeypatch.setattr(timing, "roofline_of", lambda gpu: roof(1e6, 1.0))
    with pytest.raises(Refused, match=r"operations at 1\.0 TFLOP/s"):
        rawnn.time(kernel, **GIVEN, flops="n * 100000")
    monkeypatch.setattr(timing, "roofline_of", lambda gpu: roof(20.0, 1.0))
    found = rawnn.time(kernel, **GIVEN, flops="n")
    assert (found.bound, found.least) == ("memory", pytest.approx(1.2))
    assert found.fraction == pytest.approx(1.2 / found.cold.median)
    assert "60% of this GPU's limit: memory allows 1.20 us (a test)" in str(found)
    monkeypatch.setattr(timing, "roofline_of", lambda gpu: SimpleNamespace(
        memory_gbps=20.0, flops={}, where="a test", l2_gbps=None))
    found = rawnn.time(kernel, **GIVEN, flops="n")
    assert "nothing was measured of how fast this GPU computes in float32" in str(found)


def test_work_on_another_stream_is_waited_for(sim: Simulation, device: Device) -> None:
    kernel, side = HONEST.simulated(device), Stream(device.driver)
    register("lab_slow", lambda t, a: None, {}, reads=(), writes=())
    slow = rawnn.Kernel("__global__ void lab_slow(int n) {}", "lab_slow", device=device)

    def elsewhere(x: Any, y: Any, n: int) -> None:
        for _ in range(20):
            slow[1, 32].using(stream=side)(n)
        kernel[-(-n // 256), 256].using(stream=side)(x, y, n)

    given: dict[str, Any] = {"shapes": SHAPES, "sizes": {"n": 1000}, "device": device}
    found = rawnn.time(elsewhere, lambda x: 2 * x, **given, samples=3)
    assert found.cold.spread.min > 20  # the simulated GPU's microsecond a task
    assert found.launching is None
    side.close()


def test_the_largest_sizes_that_fit_are_timed(device: Device) -> None:
    given = {**GIVEN, "sizes": {"n": "1..3001"}, "require": ["n % 64 == 0"]}
    found = rawnn.time(HONEST.simulated(device), **given)
    assert found.sizes["n"] % 64 == 0
    with pytest.raises(ConfigError, match="n = 7 does not meet require"):
        rawnn.time(HONEST.simulated(device), **given, at={"n": 7})


def test_what_does_not_fit(device: Device) -> None:
    kernel = HONEST.simulated(device)
    with pytest.raises(ConfigError, match="at: 'm' is no size of lab_honest"):
        rawnn.time(kernel, **GIVEN, at={"m": 3})
    with pytest.raises(ConfigError, match="a spread needs at least 2"):
        rawnn.time(kernel, **{**GIVEN, "samples": 1})
    for changes, sentence in (({"at": 3}, "at is a int: give a mapping"),
                              ({"at": {"n": 1.5}}, "at: n = 1.5: give a whole number"),
                              ({"samples": 2.5}, "samples = 2.5: give a whole number"),
                              ({"seed": -1}, "seed = -1: give a whole number")):
        with pytest.raises(ConfigError, match=sentence):
            rawnn.time(kernel, **{**GIVEN, **changes})


def test_intervals() -> None:
    values = [10.0, 10.1, 10.2, 10.3, 50.0]
    low, high = median_interval(values)
    assert 10.0 <= low <= 10.2 <= high <= 50


LAUNCH = Launching((1320, 1, 1), (256, 1, 1))
SEEN = Measurements(cold=100.0, warm=90.0, empty=2.0, least=50.0, bound="memory", moved=10,
                    cache=100)


def uses(blocks: int = 8, fraction: float = 1.0, limit: str = "threads", spilled: int = 0) -> Uses:
    return Uses(SimpleNamespace(spilled=(spilled, 0), usage=None),  # type: ignore[arg-type]
                SimpleNamespace(blocks=blocks, fraction=fraction,  # type: ignore[arg-type]
                                limit=limit), 132)


@pytest.mark.parametrize(("changes", "launch", "used", "first"), [
    ({}, {}, {"spilled": 8}, "registers spill to memory"),
    ({"cold": 4.0}, {}, {}, "an empty kernel takes 2.0 us here"),
    ({}, {"grid": (100, 1, 1)}, {}, "100 blocks for 132 multiprocessors"),
    ({}, {}, {}, "the grid is 1.25 waves"),
    ({}, {"block": (100, 1, 1), "grid": (5280, 1, 1)}, {}, "blocks of 100 threads waste"),
    ({"least": 95.0}, {"grid": (5280, 1, 1)}, {}, "95% of what memory allows: only moving fewer"),
    ({"least": 95.0, "bound": "arithmetic"}, {"grid": (5280, 1, 1)}, {}, "fewer or cheaper"),
    ({}, {"grid": (5280, 1, 1)}, {"fraction": 0.1, "limit": "shared"}, "shared leave room for 10%"),
    ({}, {"grid": (5280, 1, 1)}, {}, "it is memory that limits it"),
    ({"bound": "arithmetic"}, {"grid": (5280, 1, 1)}, {}, "it is arithmetic that limits it"),
    ({"least": None}, {"grid": (5280, 1, 1)}, {}, "rawnn bench lower-bounds"),
])
def test_what_to_try_next(changes: Any, launch: Any, used: Any, first: str) -> None:
    hints = list(advice(uses(**used), replace(LAUNCH, **launch), replace(SEEN, **changes)))
    assert first in hints[0]


def test_a_warm_cache_is_pointed_out() -> None:
    hints = list(advice(uses(), replace(LAUNCH, grid=(5280, 1, 1)), replace(SEEN, warm=20.0)))
    assert "5.0 times as long with a cold cache" in hints[1]

def test_each_hint_is_given_where_its_reason_holds_and_nowhere_else() -> None:
    """Of a launch that is no shorter than an empty kernel's thrice."""
    generator, given = np.random.default_rng(0), 0
    for _ in range(2000):
        blocks, of_one = int(generator.integers(1, 6000)), int(generator.choice([0, 1, 4, 8]))
        threads, spilled = int(generator.choice([32, 100, 256])), int(generator.integers(0, 2))
        fraction, limit = generator.choice([0.1, 0.25, 0.5]), generator.choice(
            ["registers", "shared", "threads"])
        warm, least = generator.choice([20.0, 60.0, 70.0, 95.0]), generator.choice([50.0, 90.0])
        bound, moved = generator.choice(["memory", "arithmetic"]), int(generator.integers(99, 103))
        hints = list(advice(
            uses(of_one, fraction, limit, spilled),
            replace(LAUNCH, grid=(blocks, 1, 1), block=(threads, 1, 1)),
            replace(SEEN, warm=warm, least=least, bound=bound, moved=moved, cache=101)))
        at_once = 132 * of_one
        whole, rest = divmod(blocks, at_once) if at_once else (0, 0)
        near = least >= 90
        expected = {
            "spill": spilled > 0, "multiprocessors: make more": blocks < 132,
            "mostly idle": blocks >= 132 and 1 <= whole < 4 and 0 < 2 * rest < at_once,
            "waste part of a warp": threads == 100,
            "helps now: fuse": near and bound == "memory",
            "help now: a smaller": near and bound == "arithmetic",
            "leave room for": not near and fraction < 0.25 and limit != "threads",
            "it is memory that": not near and bound == "memory",
            "with a cold cache": not near and bound == "memory" and warm < 66 and moved <= 101,
            "it is arithmetic that": not near and bound == "arithmetic"}
        for words, is_expected in expected.items():
            assert sum(words in hint for hint in hints) == is_expected, (words, hints)
        assert len(hints) == sum(expected.values())
        given += len(hints)
    assert given > 3000


@pytest.mark.parametrize("static", [0, 10_000])
@pytest.mark.parametrize("dynamic", [0, 60_000, 100_000])
@pytest.mark.parametrize("block", [(128, 1, 1), (16, 16, 1), (8, 4, 4)])
def test_the_occupancy_is_of_all_shared_memory_and_threads_of_a_block(
        device: Device, monkeypatch: pytest.MonkeyPatch, static: int, dynamic: int,
        block: tuple[int, int, int]) -> None:
    """A multiprocessor of compute capability 9.0 has 228 KiB, of which a block takes 1 KiB more
    than it asks for, 2,048 threads and 32 blocks."""
    usage = SimpleNamespace(registers=16, shared=static)
    monkeypatch.setattr(advice_module, "resources", lambda source, names, arch: [
        SimpleNamespace(usage=usage, spilled=(0, 0))])
    found = advice_module.uses_of(HONEST.simulated(device), Launching((7, 1, 1), block, dynamic))
    threads = block[0] * block[1] * block[2]
    fits = min(228 * 1024 // (static + dynamic + 1024), 2048 // threads, 32)
    assert found.occupancy is not None
    assert found.occupancy.blocks == fits
    assert found.occupancy.fraction == fits * threads / 2048
    assert found.multiprocessors == 132


@pytest.mark.parametrize(("at", "wanted"), [
    ({}, 3000), ({"n": 1}, 1), ({"n": 100_000}, 100_000), ({"n": 0}, None), ({"n": -1}, None),
    ({"n": 1.5}, None), ({"n": True}, None), ({"m": 5}, None)])
def test_any_size_from_one_on_may_be_timed(device: Device, at: dict[str, Any], wanted: int | None
                                           ) -> None:
    """The largest of the work unless it is said, which may lie beyond."""
    problem = problem_of(HONEST.simulated(device), Work(**{**HONEST.given,
                                                           "sizes": {"n": "1..3000"}}))
    if wanted is None:
        with pytest.raises(ConfigError, match="at"):
            problem.largest(at)
    else:
        assert problem.largest(at) == {"n": wanted}


def test_a_result_that_the_reference_leaves_open_is_not_compared(device: Device) -> None:
    """None stands for whatever the kernel writes."""
    work = Work(**{**HONEST.given, "reference": lambda x: {"y": None}})
    found = rawnn.time(HONEST.simulated(device), work, at={"n": 100}, samples=2)
    assert found.cold.median > 0
