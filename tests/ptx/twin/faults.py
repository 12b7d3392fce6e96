"""Faults planted in the kernels, one at a time: which there are, and whether the twin finds them.

A fault changes one place of one source by a rule (RULES), or of the text of a kernel that is
written for a network (WRITTEN). It is caught where a launch raises TwinError, a result is not
NumPy's, or a launch does not end. harmless.py says of those that change nothing that anybody could
see why that is so.
"""

from __future__ import annotations

import inspect
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from rawnn.onchip.decompose import L2
from rawnn.ptx import SOURCES
from tests.onchip.test_twin import DECAY, Launch, check_by_chance
from tests.onchip.test_twin import check as check_written
from tests.ptx import test_tiled_host
from tests.ptx.twin import floors
from tests.ptx.twin.cases import CASES, plan_of
from tests.ptx.twin.plans import Memory, check, has_kernel, instances, kernel_for, runs
from tests.ptx.twin.twin import Kernels, Twin

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "emulation"))

import emulated_kernels
import epoch_cases
import kernel_cases

LIMIT = 100
"""Seconds of computing after which a launch counts as one that does not end."""
PATIENCE = 900
"""Seconds by the clock."""

GENERATED = "train_steps"
"""Stands for the kernels that are written for a network."""
WRITTEN: tuple[tuple[Any, ...], ...] = (
    ("softmax, SGD", 2, 2, "SFGF"), ("Adam in an order", 4, 1, "FSFF"),
    ("binary cross-entropy, tanh", 4, 2, "FGFS"), ("a wide middle", 4, 1, "SFGF"),
    ("float16 inputs, normalised", 2, 3, ""), ("long rows", 2, 1, "SF"),
    ("float32 inputs, a schedule", 8, 1, "FSFF"), ("bfloat16", 2, 1, ""),
    ("clusters share sums", 1, 8, ""), ("more outputs than a register file", 2, 3, "FG"),
    ("Adam in an order, state far", 2, 1, "FSFF"), ("Adam in an order, state far", 2, 3, "FSFF"),
    ("float16", 1, 1, "", (64.0, 1998.0)), ("float16", 2, 3, "SFGF", (2.0**20, 5.0)),
    ("float16, Adam, tanh", 2, 2, "FSFF", (2.0**20, 0.0)),
    ("float16, mean squares", 4, 3, "FGFS", (2.0**21, 0.0)),
    (DECAY, 2, 3, "SFGF"), ("rounded by chance, Adam", 4, 1, "FSFF"),
    ("Adam in an order", 4, 2, "FSFF", (1.0, 0.0), 3),
    ("an autoencoder", 2, 1, "SFS", (1.0, 0.0), 2), ("softmax, SGD", 8, 1, "FSFG"),
    ("a wide middle", 2, 2, "FGFG", (1.0, 0.0), 0, 2),
    ("a wide middle", 4, 1, "FGSF", (1.0, 0.0), 0, 1, L2),
    ("clusters share sums", 12, 1, "SF", (1.0, 0.0), 0, 1, L2),
    ("float16", 4, 2, "FGFF", (2.0**20, 5.0), 0, 1, L2),
)
"""Some of them: a problem of tests/onchip, ranks, groups, and types of the boundaries, "" as the
cost model takes them; of float16 the loss scale and its count of good steps; the examples of a
partial batch that ends it, how many micro-batches a batch is, and where blocks exchange. Between
them they take every template of onchip_*.cuh."""

_EXTENT = r"(?:batch|rows|cols|m|n|k|classes|features|left|count|extent|stages|steps|examples)"
_PLACE = r"(?:lane|thread|warp|row|column|col|quad|tile|unit|stage|slot|first)"
_FACTOR = r"(?:scale|factor|share|rate|lr|decay|of_row|copy_scale|inverse|alpha|momentum|slope)"

RULES: tuple[tuple[str, str, str | Callable[[re.Match[str]], str]], ...] = (
    ("barrier", r"__syncthreads\(\);|__syncwarp\(\);|ptx::cluster_barrier\(\);"
                r"|sums\.(?:ready|done)\(\);|mailbox\.(?:opened|open)\([^;]*\);"
                r"|cluster_(?:arrive|wait)<\w+>\(\);|ptx::init_barrier\([^;]*\);", ";"),
    ("barrier", r"__syncthreads_or", ""),
    ("meeting", r"ptx::grid_barrier\([^;]*\);", ";"),
    ("generation", r"(ptx::(?:grid_barrier|wait_for_grid)\(\w+, [^;]*)(, \d\);)", r"\1 - 1u\2"),
    ("exchange", r"mail\.(?:expect|send|sent|send_to_all|send_one_to_all)\([^;]*\);"
                 r"|(?<![\w.:])(?<!void )(?:\w+(?:\.|::))?send\([^;{]*\);"
                 r"|ptx::send4\([^;]*\);|copy_fresh<[^;]*;", ";"),
    ("exchange", r"ptx::store_release\([^;]*\);|(?<!void )await\(\);", ";"),
    ("generation", r"\+\+exchanges;", ";"),
    ("generation", r"exchanges \+ 1u", "exchanges"),
    ("exchange", r"mail\.receive\(\)", "mail.box()"),
    ("exchange", r"i < SHAPE::kRanks\b", "i < SHAPE::kRanks - 1"),
    ("turn", r"\((\w+) & 1\)", "0"),
    ("turn", r">> 1 & 1", "& 1"),
    ("store", r"__stcg\([^;]*\);", ";"),
    ("reset", r"(?:\*ticket|counters\[i\]) = 0u;", ";"),
    ("fence", r"__threadfence\(\);|ptx::fence_\w+\(\);|ptx::publish_barriers\(\);", ";"),
    ("wait", r"(?<!void )pdl_wait\(\);|(?:ptx::)?wait_for_\w+(?:<[^;]*>)?\([^;{]*\);"
             r"|ptx::wait_for\([^;]*\);|mailbox\.receive\(\);|await_copies\([^;{]*\);", ";"),
    ("wait for one too few", r"(wait_for_(?:copies|reads|products))<([^;>]*)>\(\);",
     r"\1<(\2) + 1>();"),
    ("group", r"(?:ptx::)?commit_\w+\(\);", ";"),
    ("arrival", r"ptx::arrive\w*\([^;]*\);", ";"),
    ("bound", rf"(?<![<\w]) < (?={_EXTENT}\b)", " <= "),
    ("bound", rf" >= (?={_EXTENT}\b)", " > "),
    ("bound", rf"\bmin\((\w+), {_EXTENT}[^()]*\)", r"(\1)"),
    ("bounds check", r"if \([^;{}()]*(?:\([^;{}()]*\)[^;{}()]*)*\) return;", ";"),
    ("zero fill", r"(?<!ffffu) : 0(\.0f|u)?(?=[;,)])", lambda m: f" : 1{m[1] or ''}"),
    ("zero fill", r"(?<=ffffu) : 0u(?=[;,)])", " : 0xffffffffu"),  # of a mask
    ("zero fill", r"(?<=\w|\]) = 0(\.0f|u)(?=;)", r" = 1\1"),
    ("index", rf"\b({_PLACE}) ([*/%]) (\d+)\b", lambda m: f"{m[1]} {m[2]} {int(m[3]) + 1}"),
    ("index", rf"\b({_PLACE}) \+ (\d+)\b", lambda m: f"{m[1]} + {int(m[2]) + 1}"),
    ("index", rf"\[({_PLACE})\]", r"[\1 + 1]"),
    ("index", r"\[2 \* (?!k[A-Z])([a-z]\w*)\]", r"[2 * \1 + 1]"),
    ("scale", rf" \* {_FACTOR}\b(?!\()", ""),
    ("scale", rf"\b{_FACTOR} \* (?=[\w(])", ""),
    ("sign", rf"(?<=\w|\)) - (?={_FACTOR}\b|\(|largest|values|before|before\w*|mean)", " + "),
    ("sign", r" -= ", " += "),
    ("moment", r"(?<!double )(?<!double beta1, )\bbeta1\b", "beta2"),
    ("moment", r"(?<!double )(?<!double beta1, )\bbeta2\b(?!;)", "beta1"),
    ("moment", r"1\.0f - (beta\d)", r"\1"),
    ("pair", r"\(low, high\)", "(high, low)"),
)
"""What becomes of what, and what kind of fault that is."""

_LEFT_OUT = re.compile(
    r"//[^\n]*|/\*.*?\*/|^[ \t]*#[^\n]*(?:\\\n[^\n]*)*|static_assert\([^;]*;|template <[^;{]*?>"
    r"|^struct [^\n]*|^[^\n]*constexpr[^\n]*;|asm[^;]*;", re.DOTALL | re.MULTILINE)


_QUIET = " ".join(f'_Pragma("GCC diagnostic ignored \\"-W{warning}\\"")' for warning in (
    "empty-body", "unused-variable", "unused-but-set-variable", "unused-but-set-parameter",
    "maybe-uninitialized", "uninitialized", "unused-value"))


@dataclass(frozen=True)
class Fault:
    """`old` at `start` of a file becomes `new`."""

    file: str
    start: int
    old: str
    new: str
    kind: str

    @property
    def line(self) -> int:
        return text_of(self.file).count("\n", 0, self.start) + 1

    @property
    def name(self) -> str:
        """Stays the same while lines ahead of it come and go."""
        text = text_of(self.file)
        before = text.rfind("\n", 0, self.start) + 1
        line = text[before : text.find("\n", self.start)].strip()
        column = self.start - before
        same = [m.start() for m in re.finditer(re.escape(line), text)]
        turn = sum(place < self.start - column for place in same) + 1 if len(same) > 1 else 1
        return f"{self.file}: {self.kind}: {line} [{column}]" + (f" #{turn}" if turn > 1 else "")

    def planted(self, text: str) -> str:
        """The text with the fault, of which no compiler warns."""
        assert text[self.start : self.start + len(self.old)] == self.old
        return _QUIET + text[: self.start] + self.new + text[self.start + len(self.old):]


@cache
def written_files() -> dict[str, tuple[Any, ...]]:
    """The kernels of WRITTEN by the names that their faults give as the file."""
    return {f"{GENERATED} {how[0]}, {how[1]}x{how[2]} {how[3]}".rstrip()
            + "".join(f", {number} {what}" for number, what in zip(
                how[5:], ("left", "turns"), strict=False) if number > (what == "turns"))
            + "".join(f", {exchange}" for exchange in how[7:]): how for how in WRITTEN}


@cache
def text_of(file: str) -> str:
    """The text of a source, or of a kernel of WRITTEN."""
    if file in written_files():
        return Launch(*written_files()[file]).impl.text
    return (SOURCES / file).read_text()


def faults_of(file: str) -> Iterator[Fault]:
    """All that the rules make of a file, code only."""
    text = text_of(file)
    hidden = [m.span() for m in _LEFT_OUT.finditer(text)]
    for kind, pattern, new in RULES:
        for match in re.finditer(pattern, text):
            if any(a <= match.start() < b for a, b in hidden):
                continue
            yield Fault(file, match.start(), match[0], match.expand(new)
                        if isinstance(new, str) else new(match), kind)


@cache
def files() -> tuple[str, ...]:
    """Every source and header but the primitives, which test_primitives.py holds to their PTX."""
    return tuple(sorted(str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.cu*")
                        if path.parent.name != "device"))


@cache
def every() -> tuple[Fault, ...]:
    """All faults; of those at a place that is ARGUED, which every kernel that is written has, one
    for each argument."""
    found = [fault for file in files() for fault in faults_of(file)]
    argued: set[str] = set()
    for file in written_files():
        for fault in faults_of(file):
            why = argument(fault)
            if why not in argued:
                found.append(fault)
            argued |= {why} - {""}
    return tuple(found)


ARGUED: tuple[tuple[str, str], ...] = (
    (r"__syncwarp\(\);\s*fetch_rows", "it brings lanes together for their copies: a phase whose "
     "bytes nobody has announced yet does not end, as the announcement is its one arrival"),
    (r"__syncthreads\(\);\s*cluster_arrive<Shape>\(\);\s*cluster_wait<Shape>\(\);",
     "the barrier of the whole cluster is right behind it"),
    (r"__syncthreads\(\);(?:(?!__sync|barriers)[\s\S])*fetch_order"
     r"(?:(?!__sync|barriers|fetched \+ \(\()[\s\S])*__syncthreads\(\);",
     "there is another one ahead of whoever uses the barriers"),
    (r"cluster_wait<Shape>\(\);\s*report_steps", "a block that comes here has got all that others "
     "send to it, and sends nothing more"),
    (r"ptx::publish_barriers\(\);(?![\s\S]*Mailboxes<)",
     "blocks exchange nothing, and rows are too short for the copy engine"),
    (r"slot \* 0;", "there is no state"),
    (r" = 0\.0f;(?:(?!rate)[\s\S])*if \(thread == \d+\) rate =",
     "it is written ahead of its use"),
)
"""Of the kernels that are written for a network: what a place in their text begins with at which a
fault changes nothing that anybody could see, and why."""


def argument(fault: Fault) -> str:
    """Why a fault in a kernel that is written changes nothing; "" of one that should be caught."""
    if fault.file not in written_files():
        return ""
    text = text_of(fault.file)
    return next((why for pattern, why in ARGUED if re.compile(pattern).match(text, fault.start)),
                "")


@cache
def _includes(file: str) -> frozenset[str]:
    """A file and all headers that it includes."""
    found = {file}
    for name in re.findall(r'^#include "([^"]+)"', (SOURCES / file).read_text(), re.MULTILINE):
        if (SOURCES / name).is_file():
            found |= _includes(name)
    return frozenset(found)


def dependents(file: str) -> list[str]:
    """The sources that a fault in a file may show in; those with the fewest headers first, which
    are the quickest to build, and GENERATED last. What rounding.cuh draws and rounds has kernels of
    its own."""
    found = [name for name in files() if name.endswith(".cu") and file in _includes(name)]
    found.sort(key=lambda name: (len(_includes(name)), name))
    found[:0] = [_PROBE] if file in _includes("rounding.cuh") else []
    return [*found, *([GENERATED] if file in _includes("onchip.cuh") else [])]


class _Dispatcher:
    """An Emulator over several libraries."""

    quick = True

    def __init__(self, twins: dict[str, Twin], seed: int) -> None:
        self.twins = twins
        self.seed = seed

    def _emulator(self, expression: str) -> emulated_kernels.Emulator:
        twin = self.twins[source_of(expression)]
        return emulated_kernels.Emulator(twin, seed=self.seed, quick=True)

    def call(self, expression: str, *arguments: Any, **more: Any) -> None:
        self._emulator(expression).call(expression, *arguments, **more)

    def launch(self, expression: str, *arguments: Any) -> None:
        self._emulator(expression).launch(expression, *arguments)


@cache
def _portable() -> dict[str, tuple[str, ...]]:
    """The portable instances by source."""
    found = {f"{name}.cu": list(e) for name, e in
             emulated_kernels.SOURCES_AND_EXPRESSIONS.items()}
    for expression in epoch_cases.EXPRESSIONS:
        name = expression.partition("<")[0]
        for file in epoch_cases.FILES:
            path = next(p for p in (SOURCES / f"{file}.cu", _EMULATION / f"{file}.cu")
                        if p.is_file())
            if re.search(rf"\b{name}\(", path.read_text()):
                found.setdefault(f"{file}.cu", []).append(expression)
                break
    return {source: tuple(expressions) for source, expressions in found.items()}


_EMULATION = Path(emulated_kernels.__file__).resolve().parent
_PROBE = "epoch_probe.cu"


@cache
def source_of(expression: str) -> str:
    return next(source for source, known in _portable().items() if expression in known)


def _build(source: str, expressions: tuple[str, ...], sources: Path = SOURCES,
           arch: int = 900) -> Twin:
    return Kernels((source,), expressions, arch, ("RAWNN_PDL",), sources, (_EMULATION,)).build()


@cache
def _sound(source: str) -> Twin:
    return _build(source, _portable()[source])


class _Twins(dict[str, Twin]):
    """Twins by source: those with a fault in them, and others as they are needed."""

    def __missing__(self, source: str) -> Twin:
        return _sound(source)


@cache
def _checks_of(source: str) -> tuple[str, ...]:
    """The portable checks that name a source's kernels; those of whole modules where none does."""
    path = next(p for p in (SOURCES / source, _EMULATION / source) if p.is_file())
    text = re.sub(r"__launch_bounds__\(.*\)", "", path.read_text())
    kernels = re.findall(r"__global__ void\s+(\w+)\(", text)
    # By their first word: checks put names together.
    named = re.compile(rf"\b(?:{'|'.join(k.partition('_')[0] for k in kernels)})(?:_|\b)")
    checks = kernel_cases.CHECKS | epoch_cases.CHECKS
    found = tuple(n for n, f in checks.items() if named.search(inspect.getsource(f)))
    return found or tuple(
        n for n, f in checks.items() if named.search(inspect.getsource(sys.modules[f.__module__])))


@cache
def _plans_with(source: str) -> tuple[str, ...]:
    """Of the cases whose plans launch a source's kernels, some that between them have all
    instances: those first that bring the most kernels, types and flags."""
    have = {name: {kernel_for(op).expression(op, _plan(name)) for op in _plan(name).ops
                   if has_kernel(op) and kernel_for(op).source == source} for name in CASES}
    chosen: list[str] = []
    seen: set[str] = set()
    while left := [name for name in CASES if have[name] - seen]:
        words = _words(seen)
        chosen.append(max(left, key=lambda name: len(_words(have[name]) - words)))
        seen |= have[chosen[-1]]
    return tuple(chosen)


def _words(expressions: Iterable[str]) -> set[str]:
    return {word for expression in expressions for word in re.split("[<>,]", expression)}


@cache
def _plan(name: str) -> Any:
    return plan_of(name)


def _probe(source: str, sources: Path, changed: str) -> None:
    """Everything that is known to show a fault of the file `changed` in a source; raises what it
    raises."""
    for name in _plans_with(source):
        plan = _plan(name)
        kernels = tuple({kernel_for(op).name for op in plan.ops
                         if has_kernel(op) and kernel_for(op).source == source})
        expressions = instances([plan], kernels)[source]
        twin = _build(source, expressions, sources)
        try:
            for run, overflow, spoil in runs(CASES[name], plan):
                check({source: twin}, Memory(plan, 5, overflow, spoil), run, kernels)
        finally:
            twin.path.unlink(missing_ok=True)
    if source == GENERATED:
        _probe_written(sources, changed)
        return
    if source == "tiled.cu":
        _probe_tiled(sources)
    if source in floors.FILES:
        floors.check_source(source, sources)
    checks = kernel_cases.CHECKS | epoch_cases.CHECKS
    if source in _portable():
        for arch, seed in ((900, 3), (750, 0)):
            twin = _build(source, _portable()[source], sources, arch)
            try:
                twins = _Twins({source: twin})
                for name in _checks_of(source):
                    emulator: Any = _Dispatcher(twins, seed)
                    checks[name](emulator, np.random.default_rng(7))
            finally:
                twin.path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Outcome:
    """What became of a fault: "caught", "survived", or "invalid" where it does not compile."""

    fault: Fault
    what: str
    how: str
    seconds: float


def _probe_tiled(sources: Path) -> None:
    """Rows that are not aligned, which plans do not have, and copies without the background."""
    for arch in (750, 900):
        expressions = (*test_tiled_host.PRODUCTS, *test_tiled_host.UPDATES)
        twin = _build("tiled.cu", expressions, sources, arch)
        try:
            emulator = emulated_kernels.Emulator(twin, seed=3)
            for expression in test_tiled_host.PRODUCTS:
                test_tiled_host.test_products(emulator, expression)
            for expression in test_tiled_host.UPDATES:
                test_tiled_host.test_updates(emulator, expression, True)
        finally:
            twin.path.unlink(missing_ok=True)


def _probe_written(sources: Path, changed: str) -> None:
    """Those first that name what the changed header has."""
    text = (SOURCES / changed).read_text()
    named = re.compile("|".join(rf"\b{name}\b" for pair in re.findall(
        r"^struct (\w+)|^__device__[^(]*?(\w+)\(", text, re.MULTILINE) for name in pair if name)
        or "$^")
    launches = [(how, Launch(*how)) for how in WRITTEN]
    launches.sort(key=lambda pair: named.search(pair[1].impl.text) is None)
    for number, (how, launch) in enumerate(launches):
        _check_written(how, launch, number, sources)


def _check_written(how: tuple[Any, ...], launch: Launch, run: int,
                   sources: Path = SOURCES) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            checked = check_by_chance if how[0] == DECAY else check_written
            checked(launch, Path(folder), run, sources)
        finally:
            if launch.twin is not None:
                launch.twin.path.unlink(missing_ok=True)


def _attempt_written(fault: Fault) -> None:
    """Raises where a fault in the text of a kernel shows."""
    for run in (0, 1):
        how = written_files()[fault.file]
        launch = Launch(*how)
        launch.impl = replace(launch.impl, text=fault.planted(launch.impl.text))
        _check_written(how, launch, run)


def _attempt(fault: Fault, first: str) -> tuple[str, str]:
    if fault.file in written_files():
        return _judged(fault.file, lambda: _attempt_written(fault)) or ("survived", fault.file)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "ptx"
        shutil.copytree(SOURCES, tree, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
        (tree / fault.file).write_text(fault.planted(text_of(fault.file)))
        sources = dependents(fault.file)
        sources.sort(key=lambda source: source != first)
        for source in sources:
            if found := _judged(source, partial(_probe, source, tree, fault.file)):
                return found
        return "survived", ", ".join(sources)


def _judged(source: str, probe: Callable[[], None]) -> tuple[str, str] | None:
    """What became of a fault by what a probe raises; None where it raises nothing."""
    try:
        probe()
    except AssertionError as error:
        said = (str(error).splitlines() or ["a result"])[0]
        return "caught", f"{source}: {said[:300]}"
    except RuntimeError as error:
        text = str(error)
        wrong = re.search(r"error: [^\n]*", text)
        return "invalid", wrong[0] if wrong else text[:200]
    return None


def attempt(fault: Fault, first: str = "") -> Outcome:
    """Plants a fault and looks whether it is caught, in a process of its own: it may hang or crash.
    Of the sources that it may show in, `first` is tried first. What a machine is too busy to find
    out in PATIENCE is "unknown"."""
    begin = time.monotonic()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        os.setpgid(0, 0)
        used = int(time.process_time())
        resource.setrlimit(resource.RLIMIT_CPU, (used + LIMIT, used + LIMIT))
        try:
            what, how = _attempt(fault, first)
        except BaseException as error:
            what, how = "caught", f"{type(error).__name__}: {str(error)[:200]}"
        os.write(write, f"{what}\0{how}"[:3000].encode())
        os._exit(0)
    os.close(write)
    late = threading.Timer(PATIENCE, os.killpg, (child, signal.SIGTERM))
    late.start()
    with os.fdopen(read, "rb") as pipe:
        found = pipe.read()
    late.cancel()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    what, _, how = found.decode(errors="replace").partition("\0")
    if not what and status == -signal.SIGTERM:
        what, how = "unknown", f"nothing after {PATIENCE} s"
    elif not what:
        ends = status in (-signal.SIGXCPU, -signal.SIGKILL)
        what, how = "caught", "a launch does not end" if ends else f"ends with {status}"
    return Outcome(fault, what, how, time.monotonic() - begin)


def sample(count: int, seed: int, among: Sequence[Fault] | None = None) -> list[Fault]:
    """Some of all faults, every kind and file as likely as it is frequent."""
    return random.Random(seed).sample(every() if among is None else among, count)


__all__ = ["Fault", "Outcome", "attempt", "every", "sample"]
