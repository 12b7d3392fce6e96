"""Sentences and figures that functions make of numbers: errors of libraries, advice, statistics,
durations, summaries of runs."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import numpy as np

from rawnn.bench import costing
from rawnn.bench.gpu_limits import Roofline, missing
from rawnn.bench.record import unit_of
from rawnn.bench.render import texts
from rawnn.bench.statistics import (
    geometric_mean,
    interquartile_range,
    mean_std,
    median_interval,
    ratio,
    runs_text,
    spread,
    with_deviation,
)
from rawnn.cli import run_summary
from rawnn.cli.figures import class_figures
from rawnn.cli.plan import assumed
from rawnn.cli.screen import Pace, duration
from rawnn.common.tolerances import of_op, table
from rawnn.common.words import counted, named_by, python_name
from rawnn.cuda.compiling import headers, resources
from rawnn.cuda.compiling.fixes import suggest_fixes
from rawnn.cuda.compiling.translation import Omission
from rawnn.cuda.errors import check, check_memory
from rawnn.engine import parallel
from rawnn.engine.config import Config
from rawnn.engine.launch_choices import TunedLaunch
from rawnn.engine.result import Times as RunTimes
from rawnn.lab import comparison, timing
from rawnn.lab.advice import Measurements, Uses, advice
from rawnn.lab.inspection import Resources
from rawnn.lab.kernel_problem import Launching
from rawnn.lab.sanitizer import parsed
from rawnn.opts import select
from rawnn.plan.build import training_step
from rawnn.plan.recipe import DataSpec
from rawnn.sim.codes import CODES
from rawnn.tuning.launch_tuning import described
from tests.bench.test_lower_bounds import made
from tests.records import Lines, outcome, record, short

SERIES = (
    [3.0, 1.0, 2.0],
    [5.0],
    [10.0 + i / 7 for i in range(9)],
    [2.0, 2.0, 2.5, 9.0],
    [0.5 - i / 90 for i in range(12)],
)


@record
def error_codes() -> Lines:
    """How a failed call is told, for codes of every library."""
    for library, codes in CODES.items():
        for name, (value, text) in list(codes.items())[:3]:
            known = SimpleNamespace(
                error_text=lambda code: (name, text), cuMemGetInfo=lambda: (0, 1 << 20, 1 << 30)
            )
            yield f"{library}: " + outcome(
                lambda: check(known, "call", (value, 3), "kernel k, grid 2")
            )
            if "MEMORY" in name:
                yield "memory: " + outcome(
                    lambda: check_memory(known, "cuMemAlloc", (value,), 5_000_000, "activations")
                )
    for result in ((0,), (0, 1), (0, 1, 2)):
        yield f"{result}: {check(cast(Any, None), 'c', result)}"
    for log, arch in (
        ('error: identifier "INFINITY" is undefined', "sm_90"),
        ('error: identifier "uint32_t" is undefined', "sm_90"),
        ('error: identifier "__half" is undefined', "sm_90"),
        ('error: name "FLT_MAX" is undefined, name "FLT_MAX" is undefined', "sm_90"),
        ('error: "FLT_MAX" is undefined', "sm_90"),
        ('could not open source file "cub/cub.cuh"', "sm_90"),
        ("/include/thrust/sort.h(3): error", "sm_90"),
        ("error: texture is not a template", "sm_90"),
        ("error: surface is not a template", "sm_90"),
        ("error: calling host functions are not allowed in JIT mode", "sm_90"),
        ("Entry function 'k' uses too much shared data (0x20000 bytes, 0xc000 max)", "sm_90"),
        ('cannot open source file "cuda/std/span"', "sm_80"),
        ('cannot open source file "mine.h"', "sm_80"),
        ("nothing", "sm_80"),
    ):
        with patch.object(headers, "cuda_major", lambda: 12):
            yield f"{log}: {outcome(lambda: suggest_fixes(log, arch, ['k']))}"
    for arch in ("sm_75", "sm_90a", "sm_100f", "compute_90"):
        for entry, names in (("_Z5scalePfi", ["scale<float>"]), ("_ZN2ns5scaleEPfi", ["ns::scale"]),
                             ("_Z5scalePfi", ["scale<float>", "scale<int>"]),
                             ("scale", ["rescale", "scale"]), ("_Z5shiftPfi", ["scale"])):
            log = f"Entry function '{entry}' uses too much shared data (0xf000 bytes, 0xc000 max)"
            if arch == "sm_75" or entry == "scale":
                yield from (f"{arch}: {each}" for each in suggest_fixes(log, arch, names))
    host, lost = (Omission("header", name) for name in ("<vector>", '"mine.h"'))
    known = (Omission("function", "helper", "k.cu", 7, 9),
             Omission("function", "launch", "", 4, 4, "it launches"))
    for omitted in ((), known, (host,), (lost,), (host, lost, *known)):
        log = "; ".join(f'identifier "{name}" is undefined' for name in (
            "helper", "ns::launch", "cudaMalloc", "other", "cudaError", "INT_MAX"))
        yield f"left out {[each.name for each in omitted]}:"
        yield from (f"  {each}" for each in suggest_fixes(log, "sm_90", ["k"], omitted))


@record
def statistics() -> Lines:
    for one in SERIES:
        yield (
            f"{short(one)}: {short(spread_of(one))}, {short(interquartile_range(one))}, "
            f"{short(mean_std(one))}, {short(median_interval(one))}, "
            f"{texts.mean_and_deviation(one)}"
        )
        for other in SERIES:
            found = ratio(one, other)
            yield (
                f"  over {short(other)}: {short([found.value, found.low, found.high])} "
                f"{found.is_interval} {found.is_noise}"
            )
    yield (
        short(geometric_mean([0.5, 2.0, 3.0, 1.1]))
        + f" {runs_text([3])} {runs_text([1])} "
        + runs_text([3, 5])
        + f" {runs_text([])} {runs_text([0])}"
    )
    for value in (0.0, 0.01234, 0.995, 9.994, 9.996, 10.0, 12.345, 99.94, 99.96, 1234.5, 1e5, 1e6,
                  -3.456):
        yield (
            f"{value}: {texts.three_digits(value)}, {texts.milliseconds(value)}, "
            f"{texts.factor(value)}, {texts.bound_multiple(value, 2.0)}, "
            f"{run_summary.loss_text(value)}, {with_deviation(value, value / 7, 3)}, "
            f"{with_deviation(value, 0.0, 1, 2)}, {duration(abs(value))}"
        )
    for seconds in (59.4, 59.6, 61, 119.7, 599, 600, 3599, 3600, 3661, 7325, 90_000):
        yield f"{seconds} s: {duration(seconds)}"
    now = iter(range(0, 400, 7))
    pace = Pace(2, "epoch", lambda: float(next(now)))
    yield f"{pace}"
    for done in range(1, 5):
        pace.advance(done, 6)
        yield f"{pace}"
    for number in (0, 1, 2, 12_345):
        yield f"{counted(number, 'box', 'boxes')} {counted(number, 'step')}"
    yield f"{python_name('a-b')} {python_name('in')} {named_by('in_', ['in', 'x'])}"
    yield ", ".join(
        f"{m}: {unit_of(m)!r}"
        for m in (
            "step_us",
            "epoch_ms",
            "setup_s",
            "accuracy",
            "bandwidth_gbs",
            "peak_bytes",
            "sm_mhz",
        )
    )
    yield f"{class_figures(np.array([[5, 1, 0], [2, 3, 0], [0, 0, 0]]))}"


def spread_of(values: list[float]) -> dict[str, Any]:
    found = spread(values)
    return {name: getattr(found, name) for name in found.__struct_fields__}


def _uses(registers: int, shared: int, threads: int, spilled: tuple[int, int] = (0, 0)) -> Uses:
    usage = resources.Usage(registers, shared, 0, 400)
    return Uses(
        cast(Resources, SimpleNamespace(usage=usage, spilled=spilled)),
        resources.occupancy("sm_90", threads=threads, registers=registers, shared=shared),
        132,
    )


@record
def kernels_of_users() -> Lines:
    """Advice, times, comparisons, occupancy: what `rawnn.check` and `rawnn.time` say."""
    seen = Measurements(20.0, 15.0, 2.0, 10.0, "memory", 1 << 20, 50 << 20)
    for grid in (1, 131, 132, 140, 700):
        for threads, registers, shared in ((256, 32, 0), (100, 255, 1000), (512, 64, 100_000)):
            for measured in (
                seen,
                replace(seen, cold=5.0),
                replace(seen, least=None),
                replace(seen, least=19.0),
                replace(seen, bound="arithmetic"),
                replace(seen, warm=13.0),
                replace(seen, empty=None, least=18.0, bound="arithmetic"),
            ):
                if grid == 140 or measured is seen:
                    launching = Launching((grid, 1, 1), (threads, 1, 1), 0)
                    for text in advice(_uses(registers, shared, threads), launching, measured):
                        yield f"{grid} {threads} {registers} {shared}: {text}"
    for uses in (
        _uses(32, 0, 256),
        _uses(90, 5000, 128, (8, 16)),
        Uses(None, None, 132, "no NVRTC"),
        _uses(255, 0, 1024),
    ):
        yield f"{uses}: " + "; ".join(advice(uses, Launching((500, 1, 1), (64, 1, 1), 0), seen))
    for arch in ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120", "sm_12"):
        yield f"{arch}: " + "; ".join(
            outcome(
                lambda: resources.occupancy(
                    arch, threads=threads, registers=registers, shared=shared
                )
            )
            for threads, registers, shared in (
                (32, 16, 0),
                (128, 33, 4000),
                (256, 64, 40_000),
                (1024, 64, 0),
                (1024, 65, 0),
                (512, 128, 99_000),
                (96, 255, 50_000),
                (1025, 8, 0),
            )
        )
    yield str(
        resources.spills(
            "Function properties for k\n 8 bytes stack frame, 16 bytes spill "
            "stores, 24 bytes spill loads"
        )
    )
    times = timing.Times(spread([10.0, 11.0, 12.5]), 10.0, 12.5)
    roof = cast(Roofline, SimpleNamespace(where="results/x.json"))
    base = timing.Timed(
        "k",
        "a GPU",
        {"n": 12_345, "m": 7},
        Launching((3, 1, 1), (64, 1, 1), 0),
        times,
        timing.Times(spread([7.0, 8.0]), 7.5, 8.0),
        1.5,
        44_000_000,
        9_000_000,
        roof,
        5.5,
        "memory",
        _uses(32, 0, 256),
        ("do less",),
        3,
        ("a note",),
    )
    for timed in (
        base,
        replace(
            base,
            sizes={},
            launching=None,
            empty=None,
            computed=None,
            least=None,
            roofline=None,
            uses=None,
            advice=(),
            checked=0,
            notes=(),
        ),
    ):
        yield from str(timed).splitlines()
    exact = np.linspace(-2, 2, 12).reshape(3, 4)
    for dtype in (np.float32, np.float16, np.int32):
        for change in (0.0, 1e-7, 1e-3, 2.5, *((math.nan, math.inf) if dtype != np.int32 else ())):
            got = exact.copy()
            got[1, 2] += change
            with np.errstate(all="ignore"):
                yield f"{np.dtype(dtype)} {change}: " + outcome(
                    lambda: comparison.compare("y", exact, got.astype(dtype), 1e-3, 2.0)
                )
    for dtype in (np.float32, np.float16, np.float64, np.int32):
        yield f"{np.dtype(dtype)} allows " + short(
            [
                float(comparison.allowed(np.dtype(dtype), n, c, s))
                for n, c, s in (
                    (1, "float32", "float32"),
                    (4096, "float32", "float32"),
                    (512, "tf32", "tensor cores"),
                )
            ]
        )
    for stored in ("float32", "float16", "bfloat16", "float8_e4m3"):
        yield f"{stored}: " + short(
            [
                of_op(stored, *args)
                for args in ((), (100,), (4096, "tf32"), (64, "float32", "float16"))
            ]
        )
    yield from table().splitlines()
    for tool, text, status in (
        (
            "memcheck",
            "========= Invalid __global__ write of size 4 bytes\n=========     at k+0x10\n"
            "=========     by thread (1,0,0) in block (2,0,0)\n========= ERROR SUMMARY: 1 error",
            1,
        ),
        ("racecheck", "========= RACECHECK SUMMARY: 0 hazards displayed", 0),
        ("memcheck", "", 9),
    ):
        yield from outcome(lambda: str(parsed(tool, ["p"], text, status))).splitlines()


@record
def summaries() -> Lines:
    """Lines of a run, costs of a step, the outlook on several GPUs, units of losses."""
    for options in (
        {},
        {"layers": (3, 4, 2), "bias": False, "activation": "gelu", "loss": "mse"},
        {
            "optimizer": "adam",
            "lr": 1e-3,
            "beta1": 0.8,
            "schedule": "cosine",
            "shuffle": True,
            "seed": 3,
            "init": "he",
            "partial": True,
            "batch": 7,
        },
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    ):
        config = Config(**options)
        prepared = cast(Any, SimpleNamespace(network=config.network(), recipe=config.recipe()))
        yield run_summary.network_text(prepared, config)
    for inside, together in ((100.0, 30.0), (100.0, 70.0), (100.0, 130.0), (12_345.0, 1.0)):
        team = cast(
            Any,
            SimpleNamespace(
                world_size=4, gather=lambda what, values: [values, [v * 1.5 for v in values]]
            ),
        )
        yield short(parallel.predict_scaling(team, inside, together))
    for device, wall in (("host", 2.5), ("sim", 2.5), ("cuda", 2.5), ("cuda", math.nan)):
        result = cast(
            Any,
            SimpleNamespace(
                environment=SimpleNamespace(device=device, gpu=None if device == "host" else {}),
                average_epoch_ms=1.25,
                average_epoch_wall_ms=wall,
                facts={"kernels_compiled": 3, "kernels_cached": 4},
                times=RunTimes(
                    imports=11.0,
                    data=12.0,
                    driver=13.0,
                    compile=14.0,
                    setup=15.0,
                    training=16.25,
                    training_device=17.25,
                    evaluation=18.25,
                    process=19.0,
                ),
            ),
        )
        yield "; ".join(
            (
                run_summary.epoch_text(result),
                run_summary.training_text(result),
                run_summary.initialisation_text(result),
            )
        )
    yield described("matmul/mma a:float32", TunedLaunch({"choice": 3}, 9.5, 8.25))
    yield described("matmul/mma", TunedLaunch({}, 9.5, 9.5))
    yield f"{missing('H200')} / {missing('')}"
    limits = made()
    for opt in ("none", "best", "best,-persistent,bf16", "mma,fuse,graphs=epoch", "cublas,fuse"):
        for layers, batch in (((784, 128, 10), 64), ((784, 2048, 10), 512)):
            config = Config(layers=layers, batch=batch, opt=opt)
            recipe, spec = config.recipe(), DataSpec(6400, scale=1 / 255)
            selection = select(
                opt,
                config.network(),
                6400 // batch,
                assumed("H200"),
                batch=batch,
                recipe=recipe,
                data_spec=spec,
            )
            plan, policy = selection.apply(training_step(config.network(), recipe, spec))
            costs = costing.op_costs(plan, policy, limits)
            yield (
                f"# {opt} {layers} {batch}: {costing.moved(plan)} bytes, least "
                f"{costing.least(plan)}, total {short(costing.total(costs))}, "
                f"{costing.least_time(plan, limits)}"
            )
            yield from (
                f"{c.op.name} {c.nbytes} {c.operations} {c.precision} {short(c.memory_us)} "
                f"{short(c.arithmetic_us)} {short(c.launch_us)} {short(c.us)} {c.bound}"
                for c in costs
            )
