"""Faults that are planted, one at a time, in runs that are otherwise right.

Each class of fault lists its plants for a plan, and the number of those that would change nothing
and are left out: `Plants(made, skipped)`. A plant runs a training with the fault in it, and
answers by what it was caught: the name of an error, a leak, a result other than the clean run's;
or None where nothing noticed.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import Any
from unittest import mock

import numpy as np

from rawnn.device.compiling.signature import KernelSignature, Parameter, parse_kernels
from rawnn.device.cuda import launch
from rawnn.device.cuda.device import Device
from rawnn.device.cuda.memory import ALIGNMENT
from rawnn.device.cuda.stream import Stream
from rawnn.device.sim import Simulation
from rawnn.errors import RawnnError
from rawnn.network.activations import ACTIVATIONS
from rawnn.ptx import source_path
from rawnn.ptx.kernels import kernel_for
from rawnn.runners import graphplan, lowering, programs
from rawnn.runners.base import Work, initial_state
from rawnn.runners.gpu import GpuRunner
from rawnn.step.dependencies import dependencies
from rawnn.step.op import Op
from rawnn.step.plan import Plan
from rawnn.step.tensor import Role, Tensor
from tests.proof.runs import RELEASES, planted_work, train
from tests.proof.streams import TwoStreamRunner

Plant = Callable[[], str | None]
Found = dict[str, Any]


@dataclass(frozen=True)
class Plants:
    """What can be planted, by a description of each, and how many would change nothing. A plant in
    `harmless` may: where it is not noticed, it counts as one of those."""

    made: dict[str, Plant]
    skipped: int = 0
    harmless: frozenset[str] = frozenset()


def verdict(simulation: Simulation, run: Callable[[], Found], wanted: Found) -> str | None:
    """By what a run is caught, or None."""
    try:
        found = run()
    except RawnnError as error:
        return type(error).__name__
    if simulation.leaks():
        return "leak"
    return None if same(found, wanted) else "wrong result"


def same(found: Found, wanted: Found) -> bool:
    """Whether losses, counts and parameters agree, up to sums in another order."""
    return (
        np.allclose(found["loss"], wanted["loss"], rtol=1e-5, atol=1e-6)
        and np.array_equal(found["correct"], wanted["correct"])
        and bool(np.isclose(found["test"].loss, wanted["test"].loss, rtol=1e-5))
        and found["test"].accuracy == wanted["test"].accuracy
        and all(np.allclose(found["parameters"][n], a, rtol=1e-5, atol=1e-6)
                for n, a in wanted["parameters"].items())
    )


def tampered(work: Work, wanted: Found, patch: Callable[[], Any]) -> Plant:
    """A plant that is in place for the whole of a run."""

    def run() -> str | None:
        simulation = Simulation()
        with patch():
            return verdict(simulation, lambda: train(simulation, work), wanted)

    return run


class Nth:
    """Calls `wrong` in place of `right` the n-th time, and notes the arguments of every call."""

    def __init__(self, right: Callable[..., Any], n: int | None = None,
                 wrong: Callable[..., Any] | None = None) -> None:
        self.right, self.n, self.wrong = right, n, wrong
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.calls.append(arguments)
        if self.wrong is not None and len(self.calls) - 1 == self.n:
            return self.wrong(*arguments, **named)
        return self.right(*arguments, **named)


def observe(work: Work, target: Any, name: str) -> list[tuple[Any, ...]]:
    """Arguments of every call of a function in a clean run (a method's without `self`)."""
    spy = Nth(getattr(target, name))
    with replaced(target, name, spy):
        train(Simulation(), work)
    return [c[1:] for c in spy.calls] if isinstance(target, type) else spy.calls


@contextmanager
def replaced(target: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """`function` in place of a module's function or of a method."""
    def method(*arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    with mock.patch.object(target, name, method):
        yield


def at(target: Any, name: str, n: int, wrong: Callable[..., Any]) -> Callable[[], Any]:
    """A patch: the n-th call of target.name goes wrong."""
    right = getattr(target, name)
    return lambda: replaced(target, name, Nth(right, n, wrong))


# -- order ----------------------------------------------------------------------------------------
def edges(work: Work, wanted: Found) -> Plants:
    """Each edge of each graph left out."""
    made: dict[str, Plant] = {}
    for number, (ops,) in enumerate(observe(work, graphplan, "dependencies")):
        for after, befores in enumerate(dependencies(ops)):
            for before in befores:
                def without(ops: Any, edge: tuple[int, int] = (before, after)) -> Any:
                    return [tuple(i for i in found if (i, index) != edge)
                            for index, found in enumerate(dependencies(ops))]

                made[f"graph {number}: {ops[before].name} -> {ops[after].name}"] = tampered(
                    work, wanted, at(graphplan, "dependencies", number, without))
    return Plants(made)


def waits(work: Work, wanted: Found) -> Plants:
    """Each event wait between two streams left out: those of the engine, or where it has one
    stream, those of the plan on two (tests/proof/streams.py)."""
    if work.policy.streams:
        count = len(observe(work, Stream, "wait_for"))
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
        with mock.patch("tests.proof.runs.GpuRunner", Runner):
            found = verdict(simulation, lambda: train(simulation, work), wanted)
        return found, counted[0]

    clean, count = run(None)
    assert clean is None, clean
    return Plants({f"wait {n}": lambda n=n: run(n)[0] for n in range(count)})  # type: ignore[misc]


# -- memory ---------------------------------------------------------------------------------------
def early_frees(work: Work, wanted: Found) -> Plants:
    """Each buffer freed ahead of the last op that touches it; each that lives longer, ahead of
    the epoch. Scratch memory that one op alone touches has no earlier op to be freed behind."""
    made: dict[str, Plant] = {}
    skipped = 0
    right = programs._lifetimes
    for number, (plan,) in enumerate(observe(work, programs, "_lifetimes")):
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


def _opened(work: Work) -> tuple[Device, GpuRunner]:
    device = Device(Simulation().backend())
    return device, GpuRunner(device, work)


def _freed(work: Work, number: int) -> str | None:
    device, runner = _opened(work)
    device.driver.cuMemFree(list(device.memory._live)[number])
    try:
        if work.quiet is not work.train:
            runner.epoch(False)
        runner.epoch(True)
        runner.evaluate()
        runner.parameters()
    except RawnnError as error:
        return type(error).__name__
    return None


def uninitialised(work: Work, wanted: Found) -> Plants:
    """Each copy and fill that makes memory ready left out. Of what is filled with zeros only the
    optimizer's state, counters and the cursor of a stream are counted on: the rest is written
    before it is read, and its fills are skipped."""
    made: dict[str, Plant] = {}
    skipped = 0
    tensors, started = work.train.tensors, initial_state(work.train)
    for name in ("to_device", "fill"):
        for number, arguments in enumerate(observe(work, Device, name)):
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


def leaks(work: Work, wanted: Found) -> Plants:
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


def _forgotten(work: Work, wanted: Found, index: int) -> str | None:
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


# -- launches -------------------------------------------------------------------------------------
def _launches(work: Work) -> list[tuple[int, Op, Plan, KernelSignature, dict[str, Any]]]:
    """(number, op, plan, signature, values) of every binding of a kernel; of ops that recur in
    later plans with the same values, the first."""
    found, seen = [], set()
    for number, (op, plan, signature, addresses) in enumerate(
            observe(work, lowering, "kernel_arguments")):
        values = lowering.kernel_arguments(op, plan, signature, addresses)
        scalars = tuple(values[p.name] for p in signature.parameters
                        if not (p.pointer or p.tensor_map))
        key = (op.name, op.kind, tuple(op.operands.items()), scalars)
        if key not in seen:
            seen.add(key)
            found.append((number, op, plan, signature, values))
    return found


class _Swapped(launch.Arguments):
    """Two arguments of the same size, each in the other's place."""

    def __init__(self, signature: KernelSignature, values: Any, maps: Any,
                 pair: tuple[str, str]) -> None:
        self._other = {pair[0]: pair[1], pair[1]: pair[0]}
        super().__init__(signature, values, maps)

    def _pack(self, name: str, value: launch.Value) -> None:
        where = self._offsets[self._index[self._other.get(name, name)]]
        struct.pack_into("=" + launch._code(self._parameters[name]), self._buffer, where, value)

    def cell(self, name: str) -> Any:
        return super().cell(self._other.get(name, name) if name in self._index else name)


NOTHING = 1e-6
"""A float below this makes no difference here: Adam's eps is one."""


def _dead(op: Op, plan: Plan, signature: KernelSignature, values: dict[str, Any]) -> set[str]:
    """Arguments that the kernel has no use for in this launch: operands left out with their pitches
    and scales, the pitch of a vector, the step where there is no cursor, what draws random numbers
    where none are drawn."""
    names = {p.name for p in signature.parameters}
    absent = {p.name for p in signature.parameters if p.pointer and p.name not in op.operands}
    dead = absent | {f"ld{name}" for name in absent} | {f"{name}_scale" for name in absent}
    dead |= {f"{name}_map" for name in absent}
    dead.add("overflow")  # nothing overflows in these runs, so that none may be given as well
    dead |= {f"ld{role}" for role, name in op.operands.items() if len(plan[name].shape) == 1}
    if "cursor" in absent:
        dead.add("offset")
    if "stochastic" in names and not values["stochastic"]:
        dead |= {"seed", "stream"}
    return dead


def _bits(parameter: Parameter, values: dict[str, Any]) -> bytes:
    """What tells the argument from others of its size: of a map, where its operand lies."""
    if parameter.tensor_map:
        return struct.pack("=Q", values[parameter.mapped])
    return struct.pack("=" + launch._code(parameter), values[parameter.name])


def swaps(work: Work, wanted: Found) -> Plants:
    """Every two arguments of one kernel that have the same size and different meaning swapped;
    those whose values are equal, or of which the kernel uses neither, are skipped, and offset and
    stride where the cursor stays at 0 (a batch begins at their product), and a float of next to
    nothing with another or with an integer that is not used (as a float, next to nothing)."""
    made: dict[str, Plant] = {}
    skipped, policy = 0, work.policy
    for number, op, plan, signature, values in _launches(work):
        dead = _dead(op, plan, signature, values)
        for a, b in combinations(signature.parameters, 2):
            if a.size != b.size:
                continue
            x, y = (_bits(p, values) for p in (a, b))
            pair = {a.name, b.name}
            varies = not policy.graph and (
                "offset" in pair or (a.pointer and policy.allocator != "arena"))
            product = pair == {"offset", "stride"} and policy.graph in ("", "epoch", "while")
            small = {p.name for p in (a, b) if p.format == "f" and abs(values[p.name]) < NOTHING}
            tiny = bool(small) and pair <= small | dead
            if product or tiny or pair <= dead or (x == y and not varies):
                skipped += 1
                continue
            made[f"{op.name}: {a.name} <-> {b.name}"] = tampered(work, wanted, at(
                lowering, "Arguments", number,
                lambda signature, values, maps, pair=(a.name, b.name):
                    _Swapped(signature, values, maps, pair)))
    return Plants(made, skipped)


def overruns(work: Work, wanted: Found) -> Plants:
    """Each kernel given one row, column, example or element of a product too many, or rows of a
    batch that lie one further apart. In an arena, what is written too many may land in the padding
    between tensors, or in a parameter that is drawn next, where it harms nothing."""
    made: dict[str, Plant] = {}
    harmless: set[str] = set()
    right = lowering.kernel_arguments
    for number, op, plan, signature, values in _launches(work):
        extents = {part for shape in kernel_for(op).shapes.values() for extent in shape
                   for part in extent.lstrip("@").split("*")}
        for name in (p.name for p in signature.parameters):
            if name not in {*extents, "steps", "stride"} or not values[name]:
                continue

            def more(*arguments: Any, name: str = name) -> Any:
                values = right(*arguments)
                return {**values, name: values[name] + 1}

            what = f"{op.name}: {name} + 1"
            made[what] = tampered(work, wanted, at(lowering, "kernel_arguments", number, more))
            if work.policy.allocator == "arena" and (op.kind == "initialise" or all(
                    _padding(plan[n]) >= plan[n].ld * plan[n].itemsize for n, _ in op.writes)):
                harmless.add(what)
    return Plants(made, harmless=frozenset(harmless))


def _padding(tensor: Tensor) -> int:
    """Bytes between the end of a tensor and what lies behind it in an arena."""
    return -tensor.nbytes % ALIGNMENT


FUNCTORS = {a.functor: "Tanh" if a.functor != "Tanh" else "Relu" for a in ACTIVATIONS.values()}
FUNCTORS |= {"None": "Tanh", "SoftmaxCrossEntropy": "SquaredError",
             "SquaredError": "LogitCrossEntropy", "LogitCrossEntropy": "SquaredError"}
"""Another activation or loss in the place of each."""
TYPES = {"float": "float16", "float16": "float", "bfloat16": "float", "int": "unsigned char",
         "unsigned char": "int", "float8_e4m3": "bfloat16", "float8_e5m2": "bfloat16",
         "tf32x3": "float"}
"""Another storage type in the place of each, of another size: signs of 16-bit types look alike."""


def _other(word: str) -> str:
    """Another template argument of the same kind."""
    flags = {"true": "false", "false": "true"}
    return {**flags, **FUNCTORS, **TYPES}.get(word) or str(int(word) + 1)


def instances(work: Work, wanted: Found) -> Plants:
    """Each kernel replaced by another instance of its template: a flag turned round, a number one
    larger, another activation, another type. Types of operands that the op leaves out and those
    that sums are kept in change nothing here: they are skipped, as is what makes an instance more
    general than it has to be (`_general`). A copy that no op of a step reads (narrow_update rounds
    the first layer's weights itself) is written again before it is."""
    made: dict[str, Plant] = {}
    harmless: set[str] = set()
    skipped = 0
    read = {name for op in work.train.ops for name, _ in op.reads}
    right, compiled = lowering.Lowering._kernel, Device.function
    for number, op, _, signature, _ in _launches(work):
        expression = kernel_for(op).name
        declared = parse_kernels(source_path(kernel_for(op).source).read_text())[expression]
        for index, (parameter, word) in enumerate(
                zip(declared.template_parameters, signature.arguments, strict=True)):
            if parameter.kind == "typename" and word in TYPES and not any(
                    p.name in op.operands for p in declared.parameters
                    if p.pointer and p.ctype == parameter.name):
                skipped += 1
                continue
            if _general(parameter.name, word, dict(zip(
                    declared.template, signature.arguments, strict=True))):
                skipped += 1
                continue
            arguments = [*signature.arguments]
            arguments[index] = _other(word)
            changed = f"{expression}<{','.join(arguments)}>"

            def wrong(*bound: Any, changed: str = changed) -> Any:
                def other(device: Any, file: str, _: str, *rest: Any) -> Any:
                    return compiled(device, file, changed, *rest)

                with replaced(Device, "function", other):
                    return right(*bound)

            what = f"{number}: {op.name} as {changed}"
            made[what] = tampered(
                work, wanted, at(lowering.Lowering, "_kernel", number, wrong))
            if op.kind == "cast" and op.operands["copy"] not in read:
                harmless.add(what)
    return Plants(made, skipped, frozenset(harmless))


def _general(name: str, word: str, template: dict[str, str]) -> bool:
    """Whether the next value of a template parameter only makes room for more: rows need not be
    aligned, or may be ragged; layers behind the last (narrow.cu); more classes (head.cu), or as
    many layers' weights at a time as there are between the first and the last. Or there is none:
    a source has one main loop of products, and tiled.cu's asks for no bytes of a stage. What an
    instance reads early decides which edges may be programmatic, so that it is right either way."""
    if (name, word) in (("ALIGNED", "true"), ("RAGGED", "false"), ("BYTES", "0"), ("LOOP", word),
                        ("EARLY", word)):
        return True
    depth = int(template.get("DEPTH", "0"))
    if re.fullmatch(r"SIZE\d", name):
        return 0 < depth < int(name[-1])
    if name == "SLOTS":
        return int(word) >= depth - 2
    return name == "CLASSES" and "WARPS" in template


def grids(work: Work, wanted: Found) -> Plants:
    """Each kernel launched with one block, or one warp a block, too many."""
    made: dict[str, Plant] = {}
    right = lowering.KernelLaunch
    for number, (_, _, _, label, *_) in enumerate(observe(work, lowering, "KernelLaunch")):
        for what, dx, threads in (("a block", 1, 0), ("a warp", 0, 32)):
            def wrong(driver: Any, stream: Any, function: Any, label: str, grid: Any, block: Any,
                      *rest: Any, dx: int = dx, threads: int = threads) -> Any:
                return right(driver, stream, function, label, (grid[0] + dx, *grid[1:]),
                             (block[0] + threads, *block[1:]), *rest)

            made[f"{number}: {label}, {what} more"] = tampered(
                work, wanted, at(lowering, "KernelLaunch", number, wrong))
    return Plants(made)


def sample(plants: Plants, most: int) -> Plants:
    """At most `most` plants, evenly spread; what is left out counts as not planted."""
    names = list(plants.made)
    stride = -(-len(names) // most)
    return Plants({name: plants.made[name] for name in names[::stride]}, plants.skipped,
                  plants.harmless)


def clean_run(work: Work) -> Found:
    """A run without a fault, on whose numbers the comparison can stand."""
    simulation = Simulation()
    found = train(simulation, work)
    simulation.assert_clean()
    assert (found["correct"] > 0).all(), "a count of zero cannot be told from none"
    return found


MOST_SWAPS = 120

CLASSES: dict[str, Callable[[Work, Found], Plants]] = {
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


def applies(name: str, work: Work) -> bool:
    """Waits can be dropped where the engine uses two streams, or the plan can be run on two: one
    without graphs, in an arena."""
    policy = work.policy
    return name != "event wait dropped" or (not policy.graph and (policy.streams or (
        policy.allocator == "arena" and policy.sync != "step" and work.quiet is work.train)))


@dataclass(frozen=True)
class Tally:
    """`skipped` are plants that change nothing; `missed` those that nothing noticed."""

    planted: int
    skipped: int
    missed: tuple[str, ...]


def tally(plan: str, one_in: int = 1) -> dict[str, Tally]:
    """Plant everything in one of PLANS, or one in so many of each class of faults, and count:
    those that are not planted, as caught. Which these are differs from plan to plan."""
    work = planted_work(*PLANS[plan])
    wanted = clean_run(work)
    found = {}
    for name, plants in CLASSES.items():
        if applies(name, work):
            planted = plants(work, wanted)
            turn = zlib.crc32(f"{plan}, {name}".encode()) % one_in
            unseen = {what for n, (what, plant) in enumerate(planted.made.items())
                      if (n % one_in == turn or what in planted.harmless) and plant() is None}
            harmless = unseen & planted.harmless
            found[name] = Tally(len(planted.made) - len(harmless),
                                planted.skipped + len(harmless), tuple(sorted(unseen - harmless)))
    return found
