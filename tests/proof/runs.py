"""Short training runs on simulated devices, which the proofs repeat with one thing wrong."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from rawnn.common.errors import CompileError, OutOfMemory, RawnnError
from rawnn.cuda.compiling import compile
from rawnn.cuda.device import Device
from rawnn.data import Dataset
from rawnn.engine.runners.gpu import GpuRunner
from rawnn.engine.runners.prepared_run import PreparedRun
from rawnn.model.optimizers import Optimizer
from rawnn.sim import Fault, Faults, Simulation
from rawnn.sim.codes import CODES
from tests.engine import make_work, random_dataset

ONE, TWO, WIDE = (5, 3), (5, 4, 3), (256, 3)
"""A network of one layer, one of two, and one of many features."""
SEED = 11


@contextmanager
def cheap_devices() -> Iterator[None]:
    """Remember what a kernel's source includes, and let products ask for less scratch memory."""
    includes = functools.cache(compile._read_includes)
    with ExitStack() as patches:
        patches.enter_context(mock.patch(
            "rawnn.cuda.compiling.compile._read_includes",
            lambda text, name, paths: includes(text, name, tuple(paths))))
        patches.enter_context(mock.patch("rawnn.opts.cublas.WORKSPACE_BYTES", 64 << 10))
        yield


@functools.cache
def data(features: int) -> Dataset:
    """Three batches of 2 to train on, 3 examples to test on."""
    return random_dataset(features, 3, 6, 3)


@functools.cache
def planted_work(opt: str, layers: tuple[int, ...], option: str = "") -> PreparedRun:
    """Four steps of 4 examples, two batches of the test set; `option` is "momentum", a flag of the
    recipe, or "adam" with one behind a comma. The seed is one with which some answers are right in
    every step: a count of zero is also what an unwritten one holds. Eight features leave no
    padding, in which one column too many would be multiplied by zero."""
    options: dict[str, Any] = {}
    if option == "momentum":
        options = {"optimizer": Optimizer("sgd", 0.1, {"momentum": 0.9})}
    elif option:
        name, _, flag = option.rpartition(",")
        options = {flag: True, **({"optimizer": Optimizer(name, 0.01)} if name else {})}
    return make_work(opt, layers, random_dataset(layers[0], 3, 16, 16, seed=SEED), batch=4,
                     **options)


@functools.cache
def work(opt: str, layers: tuple[int, ...] = ONE) -> PreparedRun:
    """Three steps an epoch; the test set takes one batch."""
    return make_work(opt, layers, data(layers[0]), batch=2)


def train(simulation: Simulation, made: PreparedRun) -> dict[str, Any]:
    """An epoch of each kind with all that a session asks of it, closed as a session closes."""
    with ExitStack() as closing:
        device = Device(simulation.backend())
        closing.callback(device.close)
        runner = GpuRunner(device, made)
        closing.callback(runner.close)
        if made.unreported is not made.train:
            runner.epoch(False)
        runner.epoch(True)
        loss, correct = runner.metrics()
        found = {"loss": loss.copy(), "correct": correct.copy(), "test": runner.evaluate(),
                 "facts": runner.describe(), "ms": runner.epoch_milliseconds()}
        return {**found, "parameters": runner.parameters()}


class Recorder(Faults):
    """Notes from where in rawnn each call was made."""

    def __init__(self) -> None:
        super().__init__()
        self.sites: list[tuple[Any, ...]] = []

    def enter(self, library: str, call: str) -> int:
        frame, lines = sys._getframe(1), []
        while frame is not None:
            name = frame.f_globals.get("__name__", "")
            if name.startswith("rawnn.") and not name.startswith("rawnn.sim"):
                lines.append((name, frame.f_lineno))
            frame = frame.f_back
        self.sites.append((call, *lines))
        return super().enter(library, call)


@functools.cache
def recorded(opt: str, layers: tuple[int, ...] = ONE) -> Recorder:
    """The calls of a run in which nothing fails."""
    faults = Recorder()
    simulation = Simulation(faults=faults)
    train(simulation, work(opt, layers))
    simulation.assert_clean()
    return faults


def first_of_each_site(opt: str, layers: tuple[int, ...] = ONE) -> list[int]:
    """Index of the first call from each place in rawnn: later ones are the same call again."""
    first: dict[tuple[Any, ...], int] = {}
    for index, site in enumerate(recorded(opt, layers).sites):
        first.setdefault(site, index)
    return list(first.values())


RELEASES = {
    "cuMemFree": "allocation", "cuMemFreeAsync": "allocation",
    "cuMemFreeHost": "page-locked memory", "cuEventDestroy": "event", "cuStreamDestroy": "stream",
    "cuModuleUnload": "module", "cuGraphDestroy": "graph", "cuLinkDestroy": "linker",
    "cuGraphExecDestroy": "executable graph", "nvrtcDestroyProgram": "NVRTC program",
    "cuDevicePrimaryCtxRelease": "primary context",
    "cublasLtDestroy": "cuBLASLt handle", "cublasLtMatmulDescDestroy": "cuBLASLt matmul descriptor",
    "cublasLtMatrixLayoutDestroy": "cuBLASLt matrix layout",
    "cublasLtMatmulPreferenceDestroy": "cuBLASLt preference", "cudnnDestroy": "cuDNN handle",
    "cudnnDestroyTensorDescriptor": "cuDNN tensor descriptor",
}
"""Calls that release something: what stays behind where such a call fails."""

DRIVER_NAMES = {"cuGraphAddConditionalNode": "cuGraphAddNode"}
"""Seam methods whose call has another name in the driver."""


@dataclass(frozen=True)
class Struck:
    """What became of a run in which one call failed."""

    call: str
    library: str
    code: str
    error: BaseException | None
    simulation: Simulation

    @property
    def faulty(self) -> str | None:
        """What is wrong with the outcome, or None if it is as promised."""
        if not isinstance(self.error, RawnnError):
            return f"ended with {self.error!r}"
        message = str(self.error)
        value, text = CODES[self.library][self.code]
        name = DRIVER_NAMES.get(self.call, self.call)
        if f"{name} failed with {self.code} [{value}]" not in message:
            return f"does not name call and code: {message}"
        if text not in message and not isinstance(self.error, OutOfMemory):
            return f"does not say '{text}': {message}"
        if isinstance(self.error, CompileError):  # a sentence, then the source lines and the log
            if "cannot compile" not in message or "\nlog:" not in message:
                return f"has no log: {message}"
            return self._more_errors() or self._left()
        behind = message.partition(f"[{value}]")[2].replace(text, "")
        if "(" not in behind and "no algorithm for" not in message:
            return f"has no context: {message}"
        if "\n" in message:
            return f"is not one sentence: {message}"
        return self._more_errors() or self._left()

    def _more_errors(self) -> str | None:
        """Errors beside the one: other than a wrapper and what it wraps."""
        error = self.error
        while error is not None and error.__cause__ is not None:
            error = error.__cause__
        if error is not None and error.__context__ is not None and not error.__suppress_context__:
            return f"raised {self.error!r} on top of {error.__context__!r}"
        return None

    def _left(self) -> str | None:
        kinds = [leak.kind for leak in self.simulation.leaks()]
        allowed = [RELEASES[self.call]] if self.call in RELEASES else []
        if kinds not in ([], allowed):
            return f"left behind: {', '.join(map(str, self.simulation.leaks()))}"
        if self.call in RELEASES and not kinds:
            return "a failed release that left nothing"
        return None


def strike(made: PreparedRun, fault: Fault, train: Any = train) -> Struck:
    """Run with one planned fault, which must be struck exactly once."""
    simulation = Simulation(faults=Faults(fault))
    error: BaseException | None = None
    try:
        train(simulation, made)
    except Exception as raised:
        error = raised
    (index, call, code), = simulation.faults.failed
    return Struck(call, simulation.faults.calls[index][0], code, error, simulation)

