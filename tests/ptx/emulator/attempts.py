"""Whether the CPU emulator finds a fault that is planted in a kernel (faults.py): where a launch
raises EmulatorError, a result is not NumPy's, or a launch does not end."""

from __future__ import annotations

import inspect
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rawnn.common.cuda_text import CudaText
from rawnn.persistent.phases.gradient_all_reduce import SHARE
from rawnn.ptx import SOURCES
from tests.persistent import test_by_examples, test_streamed
from tests.persistent.test_emulator import DECAY, Launch, check_alike, check_stochastic_rounding
from tests.persistent.test_emulator import check as check_written
from tests.ptx import test_tiled_host
from tests.ptx.emulator import floors
from tests.ptx.emulator.cases import CASES, plan_of
from tests.ptx.emulator.emulator import EmulatedLibrary, Kernels
from tests.ptx.emulator.faults import GENERATED, WRITTEN, Fault, files, text_of, written_files
from tests.ptx.emulator.plans import Memory, check, has_kernel, instances, kernel_for, runs
from tests.ptx.test_losses import check_losses
from tests.ptx.test_marks import check_marks

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "emulation"))

import emulated_kernels
import epoch_cases
import kernel_cases

LIMIT = 150
"""Seconds of computing after which a launch counts as one that does not end."""
PATIENCE = 900
"""Seconds by the clock."""


@cache
def _includes(file: str) -> frozenset[str]:
    """A file and all headers that it includes."""
    found = {file}
    for name in re.findall(r'^#include "([^"]+)"', (SOURCES / file).read_text(), re.MULTILINE):
        if (SOURCES / name).is_file():
            found |= _includes(name)
    return frozenset(found)


STREAMED, BY_EXAMPLES = "steps that stream", "steps by examples"
HEADERS = {STREAMED: ("persistent/streamed.cuh", "persistent/streamed_clusters.cuh"),
           BY_EXAMPLES: ("persistent/by_examples.cuh",)}
"""Stand for the kernels of tests/persistent/test_streamed.py and test_by_examples.py; with what
they include that no other generated kernel does."""


def dependents(file: str) -> list[str]:
    """The sources that a fault in a file may show in; those with the fewest headers first, which
    are the quickest to build, and GENERATED last. What rounding.cuh draws and rounds has kernels of
    its own."""
    found = [name for name in files() if name.endswith(".cu") and file in _includes(name)]
    found.sort(key=lambda name: (len(_includes(name)), name))
    found[:0] = [_PROBE] if file in _includes("primitives/rounding.cuh") else []
    if file in _includes("persistent/kernel.cuh"):
        return [*found, GENERATED]
    return [*found, *(name for name, headers in HEADERS.items()
                      if any(file in _includes(header) for header in headers))]


class _Dispatcher:
    """An Emulator over several libraries."""

    quick = True

    def __init__(self, libraries: dict[str, EmulatedLibrary], seed: int) -> None:
        self.libraries = libraries
        self.seed = seed

    def _emulator(self, expression: str) -> emulated_kernels.Emulator:
        library = self.libraries[source_of(expression)]
        return emulated_kernels.Emulator(library, seed=self.seed, quick=True)

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
           arch: int = 900) -> EmulatedLibrary:
    return Kernels((source,), expressions, arch, ("RAWNN_PDL",), sources, (_EMULATION,)).build()


@cache
def _sound(source: str) -> EmulatedLibrary:
    return _build(source, _portable()[source])


class EmulatedLibraries(dict[str, EmulatedLibrary]):
    """EmulatedLibraries by source: those with a fault in them, and others as they are needed."""

    def __missing__(self, source: str) -> EmulatedLibrary:
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
    instances, on rows without padding, too: those first that bring the most kernels, types and
    flags."""
    have = {name: {kernel_for(op).expression(op, _plan(name))
                   + ",packed" * any(map(CASES[name].packs, op.operands.values()))
                   for op in _plan(name).ops
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
        library = _build(source, expressions, sources)
        try:
            for run, overflow, spoil in runs(CASES[name], plan):
                check({source: library}, Memory(plan, 5, overflow, spoil), run, kernels)
        finally:
            library.path.unlink(missing_ok=True)
    if source == GENERATED:
        _probe_written(sources, changed)
        return
    if source in HEADERS:
        for launch in _special_launches(source):
            _check_launch(launch, 1, sources)
        return
    if source == "gemm/tiled.cu":
        _probe_tiled(sources)
    if source in floors.FILES:
        floors.check_source(source, sources)
    checks = kernel_cases.CHECKS | epoch_cases.CHECKS
    if source in _portable():
        for arch, seed in ((900, 3), (750, 0)):
            library = _build(source, _portable()[source], sources, arch)
            try:
                libraries = EmulatedLibraries({source: library})
                for name in _checks_of(source):
                    emulator: Any = _Dispatcher(libraries, seed)
                    checks[name](emulator, np.random.default_rng(7))
            finally:
                library.path.unlink(missing_ok=True)


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
        library = _build("gemm/tiled.cu", expressions, sources, arch)
        try:
            emulator = emulated_kernels.Emulator(library, seed=3)
            for expression in test_tiled_host.PRODUCTS:
                test_tiled_host.test_products(emulator, expression)
            for expression in test_tiled_host.UPDATES:
                test_tiled_host.test_updates(emulator, expression, True)
        finally:
            library.path.unlink(missing_ok=True)


def _probe_written(sources: Path, changed: str) -> None:
    """Those first that name what the changed header has."""
    text = (SOURCES / changed).read_text()
    named = re.compile("|".join(rf"\b{name}\b" for pair in re.findall(
        r"^struct (\w+)|^__device__[^(]*?(\w+)\(", text, re.MULTILINE) for name in pair if name)
        or "$^")
    if changed == "persistent/flag_bits.cuh":
        check_marks(sources)
    if changed == "persistent/loss.cuh":
        check_losses(sources)
    launches = [(how, Launch(*how)) for how in WRITTEN]
    launches.sort(key=lambda pair: named.search(pair[1].impl.code.text) is None)
    for number, (how, launch) in enumerate(launches):
        _check_written(how, launch, number, sources)


def _special_launches(source: str) -> Iterator[Launch]:
    """Of kernels that stream their operands, or whose blocks split the examples."""
    with pytest.MonkeyPatch.context() as patch:
        if source == BY_EXAMPLES:
            test_by_examples.let_launches_know(patch)
            for name, blocks, options in test_by_examples.BLOCKS:
                yield Launch(name, blocks, 1, "SE", **options)
            return
        test_streamed.let_launches_stream(patch)
        for case in test_streamed.SHARING:
            yield test_streamed.with_room(partial(test_streamed.in_clusters, patch), *case)
        test_streamed.let_launches_stream(patch)
        for case in test_streamed.STREAMING:
            yield test_streamed.with_room(test_streamed.launched, *case)


def _check_written(how: tuple[Any, ...], launch: Launch, run: int,
                   sources: Path = SOURCES) -> None:
    _check_launch(launch, run, sources,
                  check_stochastic_rounding if how[0] == DECAY else check_written)


def _check_launch(launch: Launch, run: int, sources: Path,
                  checked: Callable[..., None] = check_written) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            checked(launch, Path(folder), run, sources)
            if launch.op.attributes["choice"].layout.sync == SHARE:
                check_alike(launch, Path(folder), run, sources)
        finally:
            if launch.library is not None:
                launch.library.path.unlink(missing_ok=True)


def _attempt_written(fault: Fault) -> None:
    """Raises where a fault in the text of a kernel shows."""
    for run in (0, 1):
        how = written_files()[fault.file]
        launch = Launch(*how)
        launch.impl = replace(launch.impl, code=CudaText(fault.planted(launch.impl.code.text)))
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
        message = (str(error).splitlines() or ["a result"])[0]
        return "caught", f"{source}: {message[:300]}"
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
