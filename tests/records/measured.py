"""What is measured on a simulated GPU, where every task takes a microsecond: the figures that no
machine changes, and how many there are of the others."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np

from rawnn.bench.case import all_cases
from rawnn.bench.cases import lower_bounds
from rawnn.bench.cases.ladder import run_ladder
from rawnn.bench.cases.lower_bounds import SIMULATED, measure_limits
from rawnn.bench.cases.phases import trace_phases
from rawnn.bench.harness import Harness
from rawnn.bench.peers.system_comparison import TIMER, Task
from rawnn.bench.peers.training_problem import Problem
from rawnn.bench.peers.worker import Timed
from rawnn.bench.probing import ProbeDevice
from rawnn.bench.profiling import profile
from rawnn.bench.record import Record
from rawnn.bench.side_by_side import compare_configurations
from rawnn.bench.specification import SMALL, Limits, sample
from rawnn.bench.suites import read_suites
from rawnn.bench.training import measure_workloads
from rawnn.cli.profile import rows
from rawnn.engine.config import Config
from rawnn.engine.machine import open_device
from rawnn.model.layers import Network
from rawnn.opts.registry import Machine
from rawnn.persistent.layout import Layout
from rawnn.persistent.stamps import stamps
from rawnn.persistent.tracing import Trace
from tests.engine import CAPABLE, dataset_for, random_dataset
from tests.records import Lines, record, short

OF_THE_MACHINE = ("total_ms", "loss", "accuracy", "wall", "evaluation", "peak_memory", "seconds")
"""Metrics, by a part of their names, by the host's clock, by its arithmetic, or by what else has
memory."""
OPTS = ("none", "preload,arena,nosync,fuse", "preload,arena,graphs=epoch,fuse", "best,bf16")


def lines_of(records: Iterable[Record]) -> Lines:
    for each in records:
        is_fixed = not any(part in each.metric for part in OF_THE_MACHINE)
        yield (
            f"{each.case}, {each.variant}, {each.precision}: {each.metric} ({each.unit}) "
            f"{short(each.samples) if is_fixed else f'{len(each.samples)} samples'} {each.status} "
            f"{each.reason} {short(each.conditions)} {short(each.notes)}"
        )


@record
def specifications() -> Lines:
    """The random runs of `bench check` by their seeds: on a host, simulated, on a GPU."""
    for words, limits, machine, count in (("host", SMALL, Machine("none"), 12),
                                          ("simulated", SMALL, CAPABLE, 12),
                                          ("GPU", Limits(), CAPABLE, 16)):
        for seed in range(count):
            found = sample(seed, limits, machine)
            yield f"{words} {seed}: {found}; {found.tests} tests"
            if limits is SMALL:
                data = found.data()
                arrays = {name: array for name in (
                    "train_images", "train_labels", "train_targets", "test_images", "test_labels",
                    "test_targets") if (array := getattr(data, name)) is not None}
                yield ", ".join(f"{name} {array.dtype} {array.shape} {short(float(array.sum()))}"
                                for name, array in arrays.items())


NOTHING: dict[str, Any] = {
    "names": (), "members": (), "count": 3, "seed": None, "seeds": (), "precisions": (),
    "peers": (), "part": None, "steps": None, "dataset": "mnist", "device": "gpu", "opts": (),
    "repeats": None, "epochs": None}  # fmt: skip
ASKED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("sample", {}),
    ("sample", {"seeds": (7, 12001), "part": (2, 3), "device": "host"}),
    ("many", {"names": ("A", "sampled"), "members": (32, 1056)}),
    ("many", {"count": 1, "seed": 5, "members": (16,), "precisions": ("float32",)}),
    ("many", {"names": ("sampled",), "device": "host", "precisions": ("tf32", "bf16")}),
    ("grid", {"part": (1, 2)}),
    ("grid", {"seed": 3, "device": "sim"}),
    ("peers", {"names": ("linear", "wide1024"), "peers": ("numpy",)}),
    ("peers", {"steps": 5, "dataset": "synthetic"}),
    ("sweep", {}),
    ("sweep", {"names": ("batch",), "device": "host"}),
    ("curves", {"names": ("linear", "mlp4")}),
    ("workloads", {}),
    ("workloads", {"names": ("mlp4",), "opts": ("best", "seed"), "repeats": 2, "epochs": 4}),
    ("toggles", {}),
    ("toggles", {"names": ("fuse", "tf32"), "epochs": 2}),
)


@record
def asked_of_suites() -> Lines:
    """Which programs the suites that compare systems ask for on which problems, and which runs
    those that train do."""
    suites = read_suites()
    for name, more in ASKED:
        case, given = all_cases()[name], list[Any]()
        module = importlib.import_module(case.measure.__module__)
        compares = hasattr(module, "compare_systems")
        with (
            Harness(name) as harness,
            patch.object(
                module,
                "compare_systems" if compares else "measure_workloads",
                lambda harness, *arguments, **options: given.append((arguments, options)),
            ),
        ):
            known = inspect.signature(case.measure).parameters
            case.measure(
                harness, suites, **{k: v for k, v in {**NOTHING, **more}.items() if k in known}
            )
        (arguments, options) = given[0]
        yield f"# {name}, {short(more)}"
        if compares:
            yield from _programs(*arguments, **options)
        else:
            pairs, *rest = arguments
            yield f"{short(rest)} {short(options)}"
            yield from map(short, pairs)


def _programs(
    tasks: Sequence[Task],
    peers: Sequence[str],
    usual: Sequence[str],
    device: str,
    forms: Any = lambda problem, system: [],
    part: Any = lambda tasks: tasks,
    timer: Any = TIMER,
    **more: Any,
) -> Lines:
    large = more.pop("is_large", lambda problem: False)
    yield f"{device}: {short(peers)} or {short(usual)}, {short(more)}, {len(part(tasks))} of " \
          f"{len(tasks)}, times of {', '.join(timer)}"
    for task in part(tasks):
        yield f"{task.case}, {task.problem.name}: {short(task.conditions)}" + (
            ", large" if large(task.problem) else "")
        found = {system: forms(task.problem, system) for system in ("rawnn", "torch", "jax")}
        if any(found.values()):
            yield f"    {short(found)}"


def _made_up_trace(layout: Layout, words: Any) -> Trace:
    """Of three blocks that take unlike times."""
    found = tuple(stamps(layout.schedule))
    cycles = np.arange(4 * 3 * len(found)).reshape(4, 3, -1) % 101
    own = np.stack([cycles + 3, cycles + 7], axis=3)
    return Trace(found, cycles, own, np.array([5, 9, 7]), np.array([6, 2, 4]), 1980.0, 1.25)


@record
def measured() -> Lines:
    """The last lines say how variants take turns."""

    def interleave(harness: Harness, variants: Any, rounds: int, **how: Any) -> None:
        turns.append(f"{harness.suite}: {len(variants)} in {rounds} rounds, {short(how)}")
        original(harness, variants, rounds, **how)

    turns, original = list[str](), Harness.interleave
    with patch.object(Harness, "interleave", interleave):
        yield from _measured()
    yield from turns


def _measured() -> Lines:
    data = random_dataset(784, 10, 300, 60)
    with Harness("workloads") as harness:
        pairs = [("linear", opt) for opt in OPTS]
        measure_workloads(harness, pairs, 2, 2, "sim", "mnist", data=data)
    yield from lines_of(harness.results.records)
    small = Config(layers=(29, 7), batch=8, epochs=2, device="sim")
    timed = patch(
        "rawnn.bench.side_by_side.timed",
        lambda program: Timed(milliseconds=[program.block(1), 2.0], steady=False),
    )
    with Harness("compare") as harness, timed:
        opened = harness.open("sim", {})
        compare_configurations(harness, small, ["best,graphs=4", "none"], random_dataset(), opened)
    yield from lines_of(harness.results.records)
    yield from (f"{r.variant}: loss {r.samples[0]:.3g}" for r in harness.results.where(
        metric="loss"))
    with Harness("ladder") as harness:
        rungs = ["nosync", "fuse+graphs", "cublas", "best"]
        run_ladder(harness, small, 2, rungs, ["preload", "arena"], random_dataset())
    yield from lines_of(harness.results.records)
    network = Network((12, 8, 4))
    for opt in OPTS[1:3]:
        opened = open_device("sim", lambda message: None)
        assert opened.device is not None
        config = Config(layers=network.layers, batch=8, opt=opt, device="sim")
        found = profile(config, dataset_for(network, 64, 16), opened, 3, None)
        yield f"# {opt}: {short(found.toggles)} {found.way} {found.steps} {found.ops_us:.3f} " \
              f"{found.step_us.median:.3f} {found.empty_us:.3f}"
        yield from (" | ".join(row) for row in rows(found))
        yield "operations: " + ", ".join(f"{op.name} {op.operations}" for op in found.ops)
        opened.device.close()
    with Harness("phases") as harness:
        opened = harness.open("sim", {})
        problem = Problem(name="phases", seed=0, layers=(24, 16, 4), batch=8, loss="mse",
                          optimizer="adam", lr=0.1, steps=4)  # fmt: skip
        with patch("rawnn.bench.cases.phases.read_trace", _made_up_trace):
            found_phases = trace_phases(harness, opened, problem, "persistent,graphs=epoch")
    yield from lines_of(found_phases)
    with Harness("lower-bounds") as harness:
        opened = harness.open("sim", {})
        measure_limits(harness, opened, SIMULATED)
        with ProbeDevice(opened.device) as probing:
            for one in lower_bounds._asked(probing, lower_bounds.Effort()):
                how = getattr(one.make, "keywords", {})
                words = {
                    k: getattr(v, "name", f"{v.dtype} {v.shape} {v.sum()}" if k == "words" else v)
                    for k, v in how.items()
                }
                yield (
                    f"limit {one.name}: {one.what}, {one.how}, {one.unit}, work {one.work:,.0f}, "
                    f"rounds {one.rounds}, {one.reason or short(words)}"
                )
    yield from lines_of(harness.results.records)
