"""Faults that are planted, one at a time, in runs that are otherwise right.

Each class of fault lists its plants for a plan, and the number of those that would change nothing
and are left out: `Plants(made, skipped)`. A plant runs a training with the fault in it, and
answers by what it was caught: the name of an error, a leak, a result other than the clean run's;
or None where nothing noticed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

from rawnn.common.errors import RawnnError
from rawnn.cuda.device import Device
from rawnn.cuda.stream import Stream
from rawnn.engine.runners import lowering, programs
from rawnn.engine.runners.gpu import GpuRunner
from rawnn.engine.runners.prepared_run import PreparedRun, initial_state
from rawnn.graphs import unrolling as graphplan
from rawnn.plan.dependencies import dependencies
from rawnn.plan.tensor import Role
from rawnn.sim import Simulation
from tests.proof.launch_plants import grids, instances, overruns, swaps
from tests.proof.planting import (
    Found,
    Plant,
    Plants,
    at,
    clean_run,
    observe,
    shared_kernels,
    tampered,
    verdict,
)
from tests.proof.runs import RELEASES, planted_work, train
from tests.proof.streams import TwoStreamRunner
from tests.slices import SLICE


# -- order ----------------------------------------------------------------------------------------
def edges(work: PreparedRun, wanted: Found) -> Plants:
    """Each edge of each graph left out."""
    made: dict[str, Plant] = {}
    for number, (ops,) in enumerate(observe(wanted, graphplan, "dependencies")):
        for after, befores in enumerate(dependencies(ops)):
            for before in befores:
                def without(ops: Any, edge: tuple[int, int] = (before, after)) -> Any:
                    return [tuple(i for i in found if (i, index) != edge)
                            for index, found in enumerate(dependencies(ops))]

                made[f"graph {number}: {ops[before].name} -> {ops[after].name}"] = tampered(
                    work, wanted, at(graphplan, "dependencies", number, without))
    return Plants(made)


def waits(work: PreparedRun, wanted: Found) -> Plants:
    """Each event wait between two streams left out: those of the engine, or where it has one
    stream, those of the plan on two (tests/proof/streams.py)."""
    if work.policy.streams:
        count = len(observe(wanted, Stream, "wait_for"))
        # An epoch's second fetch waits for what the first has waited for; the first copy from the
        # host has nothing to wait for.
        harmless = {f"wait {n}" for n in range(2, count, 2 * work.steps)}
        if work.train.find(kind="upload"):
            harmless.add("wait 0")
        return Plants({f"wait {n}": tampered(work, wanted, at(
            Stream, "wait_for", n, lambda *arguments: None)) for n in range(count)},
            harmless=frozenset(harmless))

    def run(dropped: int | None) -> tuple[str | None, int]:
        simulation, counted = Simulation(), []

        class Runner(TwoStreamRunner):
            def close(self) -> None:
                counted.append(self.waits)
                super().close()

        Runner.dropped = dropped
        with mock.patch("tests.proof.runs.GpuRunner", Runner), shared_kernels():
            found = verdict(simulation, lambda: train(simulation, work), wanted)
        return found, counted[0]

    clean, count = run(None)
    assert clean is None, clean
    return Plants({f"wait {n}": lambda n=n: run(n)[0] for n in range(count)})  # type: ignore[misc]


# -- memory ---------------------------------------------------------------------------------------
def early_frees(work: PreparedRun, wanted: Found) -> Plants:
    """Each buffer freed ahead of the last op that touches it; each that lives longer, ahead of
    the epoch. Scratch memory that one op alone touches has no earlier op to be freed behind."""
    made: dict[str, Plant] = {}
    skipped = 0
    right = programs._lifetimes
    for number, (plan,) in enumerate(observe(wanted, programs, "_lifetimes")):
        first, last = right(plan)
        for tensor in (n for n, t in plan.tensors.items() if t.role.temporary and n in last):
            if last[tensor] == first[tensor]:
                skipped += 1
                continue

            def early(plan: Any, tensor: str = tensor) -> Any:
                first, last = right(plan)
                return first, {**last, tensor: last[tensor] - 1}

            made[f"{plan.name}: {tensor}"] = tampered(
                work, wanted, at(programs, "_lifetimes", number, early))
    count = len(_opened(work)[0].memory._live)
    made.update({f"allocation {n}": lambda n=n: _freed(work, n)  # type: ignore[misc]
                 for n in range(count)})
    return Plants(made, skipped)


def _opened(work: PreparedRun) -> tuple[Device, GpuRunner]:
    device = Device(Simulation().backend())
    return device, GpuRunner(device, work)


def _freed(work: PreparedRun, number: int) -> str | None:
    device, runner = _opened(work)
    device.driver.cuMemFree(list(device.memory._live)[number])
    try:
        if work.unreported is not work.train:
            runner.epoch(False)
        runner.epoch(True)
        runner.evaluate()
        runner.parameters()
    except RawnnError as error:
        return type(error).__name__
    return None


def uninitialised(work: PreparedRun, wanted: Found) -> Plants:
    """Each copy and fill that makes memory ready left out. Of what is filled with zeros only the
    optimizer's state, counters and the cursor of a stream are counted on: the rest is written
    before it is read, and its fills are skipped."""
    made: dict[str, Plant] = {}
    skipped = 0
    tensors, started = work.train.tensors, initial_state(work.train)
    for name in ("to_device", "fill"):
        for number, arguments in enumerate(observe(wanted, Device, name)):
            purpose = arguments[-1]
            role = tensors[purpose].role if purpose in tensors else None
            counted = (role in (Role.STATE, Role.SCRATCH) and purpose not in started) or (
                role is Role.CURSOR and not work.policy.graph)  # a graph's launch fills it again
            if name == "fill" and not counted:
                skipped += 1
                continue
            made[f"{name} {number} of {purpose}"] = tampered(
                work, wanted, at(Device, name, number, lambda *arguments, **named: None))
    return Plants(made, skipped)


def leaks(work: PreparedRun, wanted: Found) -> Plants:
    """Each release forgotten."""
    simulation = Simulation()
    train(simulation, work)
    return Plants({
        f"{call} {index}": (lambda index=index: _forgotten(work, wanted, index))  # type: ignore[misc]
        for index, call in enumerate(simulation.calls) if call in RELEASES
    })


class _Forgetful:
    """A library of which the call with one index (over all libraries) does nothing."""

    def __init__(self, library: Any, count: list[int], index: int) -> None:
        self._library, self._count, self._index = library, count, index

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._library, name)
        if not name.startswith(("cu", "nvrtc")) or not callable(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            number, self._count[0] = self._count[0], self._count[0] + 1
            return (0,) if number == self._index else found(*arguments, **named)

        return call


def _forgotten(work: PreparedRun, wanted: Found, index: int) -> str | None:
    simulation, count = Simulation(), [0]
    right = simulation.backend()
    libraries = {name: _Forgetful(getattr(right, name)(), count, index)
                 for name in ("driver", "nvrtc", "cublaslt", "cudnn")}
    backend = type(right)(**{
        **{f: getattr(right, f) for f in right.__dataclass_fields__},
        **{name: (lambda library=library: library) for name, library in libraries.items()},
    })
    with mock.patch.object(simulation, "backend", return_value=backend):
        return verdict(simulation, lambda: train(simulation, work), wanted)


def sample(plants: Plants, most: int) -> Plants:
    """At most `most` plants, evenly spread; what is left out counts as not planted."""
    names = list(plants.made)
    stride = -(-len(names) // most)
    return Plants({name: plants.made[name] for name in names[::stride]}, plants.skipped,
                  plants.harmless)


MOST_SWAPS = 120

CLASSES: dict[str, Callable[[PreparedRun, Found], Plants]] = {
    "edge removed": edges,
    "event wait dropped": waits,
    "freed early": early_frees,
    "not initialised": uninitialised,
    "not released": leaks,
    "arguments swapped": lambda work, wanted: sample(swaps(work, wanted), MOST_SWAPS),
    "one too many": overruns,
    "wrong instance": instances,
    "wrong grid or block": grids,
}

PLANS: dict[str, tuple[Any, ...]] = {
    "baseline": ("none", (8, 4, 3)),
    "arena,nosync": ("arena,nosync", (8, 4, 3)),
    "preload": ("preload", (8, 3)),
    "fuse": ("fuse", (8, 4, 3)),
    "cublas": ("cublas", (8, 4, 3)),
    "cublas, in slices": ("preload,cublas,fuse", (256, 3)),
    "cudnn": ("cudnn", (8, 4, 3)),
    "preload,arena,nosync,fuse": ("preload,arena,nosync,fuse", (8, 3)),
    "preload,arena,nosync,cublas,cudnn,fuse": (
        "preload,arena,nosync,cublas,cudnn,fuse", (8, 4, 3)),
    "report": ("preload,report", (8, 3)),
    "fp16, momentum": ("preload,arena,nosync,fp16", (8, 4, 3), "momentum"),
    "bf16,fuse": ("preload,arena,nosync,bf16,fuse", (8, 4, 3)),
    "seed": ("seed", (8, 4, 3)),
    "best": ("best", (8, 3)),
    "best, two layers": ("best", (8, 4, 3)),
    "streams": ("arena,nosync,report,streams", (8, 3)),
    "streams,preload,shuffled": ("preload,arena,nosync,report,streams", (8, 3), "shuffle"),
    "graphs=step": ("streams,graphs=step", (8, 3)),
    "graphs=2": ("preload,streams,graphs=2", (8, 3)),
    "graphs=epoch": ("preload,streams,graphs=epoch", (8, 3)),
    "graphs=epoch,shuffled": (
        "preload,report,streams,graphs=epoch", (8, 3), "adam,shuffle"),
    "pdl,shuffled": ("preload,arena,nosync,fuse,pdl,report", (8, 3), "adam,shuffle"),
    "graphs=while": ("preload,fuse,streams,graphs=while", (8, 4, 3)),
    "sr": ("preload,arena,nosync,sr", (8, 3)),
    "tiled,fuse": ("preload,arena,nosync,tiled,fuse", (8, 4, 3)),
    "tf32,mma,fuse": ("preload,arena,nosync,tf32,mma,fuse", (8, 4, 3)),
    "fp8,mma,fuse": ("preload,fp8,mma,fuse,streams,graphs=step", (8, 4, 3)),
    "pdl": ("preload,fuse,pdl,streams,graphs=2", (8, 4, 3)),
    "narrow: bf16,mma,fuse,pdl": ("preload,bf16,mma,fuse,pdl,streams,graphs=2", (8, 4, 3)),
    "head: sr,mma,fuse": ("preload,sr,mma,fuse,streams,graphs=step", (8, 4, 3)),
}


OBSERVED = [(graphplan, "dependencies"), (Stream, "wait_for"), (programs, "_lifetimes"),
            (Device, "to_device"), (Device, "fill"), (lowering, "kernel_arguments"),
            (lowering, "KernelLaunch")]
"""The functions of whose calls the classes of faults make a list."""


def applies(name: str, work: PreparedRun) -> bool:
    """Waits can be dropped where the engine uses two streams, or the plan can be run on two: one
    without graphs, in an arena."""
    policy = work.policy
    return name != "event wait dropped" or (not policy.graph and (policy.streams or (
        policy.allocator == "arena" and policy.sync != "step" and work.unreported is work.train)))


@dataclass(frozen=True)
class Tally:
    """`skipped` are plants that change nothing; `missed` those that nothing noticed."""

    planted: int
    skipped: int
    missed: tuple[str, ...]


def tally(plan: str, one_in: int = 1) -> dict[str, Tally]:
    """Plant everything in one of PLANS, or one in so many of each class of faults, and count:
    those that are not planted, as caught. Which these are differs from plan to
    plan and from slice to slice."""
    work = planted_work(*PLANS[plan])
    wanted = clean_run(work, OBSERVED)
    found = {}
    for name, plants in CLASSES.items():
        if applies(name, work):
            planted = plants(work, wanted)
            turn = (zlib.crc32(f"{plan}, {name}".encode()) + SLICE) % one_in
            unseen = {what for n, (what, plant) in enumerate(planted.made.items())
                      if (n % one_in == turn or what in planted.harmless) and plant() is None}
            harmless = unseen & planted.harmless
            found[name] = Tally(len(planted.made) - len(harmless),
                                planted.skipped + len(harmless), tuple(sorted(unseen - harmless)))
    return found
