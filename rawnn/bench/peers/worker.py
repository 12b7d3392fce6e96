"""The process in which one system works, as rawnn.bench.peers.process starts it.

It is asked for methods of Worker through a pipe: `prepare` makes all programs of a problem and
trains each for two epochs; `time` times one of them; `forget` drops a problem's.
"""

from __future__ import annotations

import gc
import importlib
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from rawnn.bench.peers.ensemble import Ensemble
from rawnn.bench.peers.training_problem import Problem

TRUTH = "float64"
"""The precision of a program that is only there to say what the losses ought to be."""
CHECKED_EPOCHS = 2
"""Epochs whose losses are compared."""
WINDOW = 16
"""Steps whose mean loss is compared (loss_check.py)."""
BLOCK_MS = 10.0
"""A sample is the mean of as many consecutive epochs as take this long."""
MOST_EPOCHS = 200
SAMPLES = 4
"""Samples a turn."""
FEW, LONG_S = 2, 0.25
"""Of samples that take longer than LONG_S there are so many: the mean of a long one has little
noise left."""
WARM_S, PATIENCE_S = 0.05, 0.4
STEADY = 1.02
"""Warm-up ends once it has taken WARM_S and the last three samples lie within 2 %, or after
PATIENCE_S."""


Losses = Sequence[float | None]
"""Of steps; None is not finite."""


class Program(Protocol):
    """An epoch of a problem, ready to run again and again; every run trains on."""

    def block(self, epochs: int) -> float:
        """Run consecutive epochs, wait, and return the mean milliseconds of one."""

    def reorder(self, order: NDArray[np.int32]) -> None:
        """The order of the examples from now on."""

    def losses(self) -> NDArray[np.floating[Any]]:
        """The loss of each step of the last epoch, or of as many as were run."""


class Offer(msgspec.Struct, frozen=True):
    """A program that can be made: its precision, its form in words, and how its time is taken
    ("events" on the device, or "wall")."""

    precision: str
    form: str
    clock: str
    make: Callable[[], Program]


class System(Protocol):
    """What a module of a peer provides."""

    def offers(self, problem: Problem, device: str, forms: list[str]) -> Iterator[Offer]:
        """The programs of a problem; without `forms` the ones that may be the fastest."""

    def versions(self) -> dict[str, str]:
        """Versions of what it runs on."""


class Prepare(msgspec.Struct, frozen=True):
    """Make the programs of a problem ready, in at most `seconds`. Of a large problem no program
    stays on the device between commands: each is made again for its time."""

    problem: Problem
    device: str
    forms: list[str]
    seconds: float
    is_large: bool = False


class ReadyProgram(msgspec.Struct, frozen=True, kw_only=True):
    """A program that is ready, with the losses of its first steps (None: not finite) and its
    footprint where that is known; or why it is not."""

    precision: str
    form: str
    clock: str
    losses: list[float | None] = []
    seconds: float = 0.0
    reason: str = ""
    footprint: dict[str, float] = {}


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds of an epoch, one a sample; or why there are none."""

    milliseconds: list[float] = []
    epochs: int = 0
    steady: bool = True
    reason: str = ""


def timed(program: Program) -> Timed:
    """Warm a program up until it is steady, and time it."""
    begun = perf_counter()
    first = program.block(1)
    count = _epochs(max(first, (perf_counter() - begun) * 1e3))
    warmed_up = [first]
    while True:
        took, last = perf_counter() - begun, warmed_up[-3:]
        steady = len(last) == 3 and max(last) <= STEADY * min(last)
        if (steady and took >= WARM_S) or took >= PATIENCE_S:
            break
        started = perf_counter()
        warmed_up.append(program.block(count))
        count = _epochs(max(warmed_up[-1], (perf_counter() - started) * 1e3 / count))
    started = perf_counter()
    samples = [program.block(count)]
    several = FEW if perf_counter() - started > LONG_S else SAMPLES
    samples += [program.block(count) for _ in range(several - 1)]
    return Timed(milliseconds=samples, epochs=count * several, steady=steady)


def _epochs(milliseconds: float) -> int:
    """Epochs of a sample, by what one takes on the device or on the wall, whichever is more."""
    return max(1, min(MOST_EPOCHS, round(BLOCK_MS / milliseconds)))


@dataclass
class _Prepared:
    """An offer that was made ready. Without `program` it is made again for its time."""

    offer: Offer
    program: Program | None
    is_ready: bool


def system_of(name: str, problem: Problem) -> System:
    """The module that makes a system's programs of a problem."""
    kind = "many" if isinstance(problem, Ensemble) else "system"
    module: Any = importlib.import_module(f"rawnn.bench.peers.{name}_{kind}")
    found: System = module
    return found


class Worker:
    """What one system has made ready."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._programs: dict[str, list[_Prepared]] = {}

    def serve(self, pipe: Connection) -> None:
        """Send what the methods return that are asked for, until nobody asks any more."""
        with suppress(EOFError):
            while True:
                method, *arguments = pipe.recv()
                pipe.send(getattr(self, method)(*arguments))

    def prepare(self, command: Prepare) -> tuple[list[ReadyProgram], dict[str, str]]:
        """The programs of a problem, and versions of what they run on."""
        problem, found = command.problem, list[ReadyProgram]()
        programs = self._programs[problem.name] = []
        system, begun = system_of(self._name, problem), perf_counter()
        for offer in system.offers(problem, command.device, command.forms):
            started = perf_counter()
            program: Program | None = None
            losses: list[float | None] = []
            reason = ""
            if started - begun > command.seconds:
                reason = f"not made ready within {command.seconds:.0f} s"
            else:
                try:
                    program = offer.make()
                    losses = [float(v) if np.isfinite(v) else None
                              for v in first_losses(program, problem)]
                except Exception as error:  # whatever it is, the other programs go on
                    traceback.print_exc()
                    program, reason = None, _sentence(error)
            footprint = getattr(program, "footprint", {})
            programs.append(_Prepared(offer, None if command.is_large else program, not reason))
            if command.is_large:
                program = None
                free_memory()
            found.append(ReadyProgram(
                precision=offer.precision, form=offer.form, clock=offer.clock, losses=losses,
                reason=reason, seconds=perf_counter() - started, footprint=footprint))
        return found, system.versions()

    def time(self, problem: str, index: int) -> Timed:
        """A program of a problem, by its place among those that were prepared."""
        prepared = self._programs[problem][index]
        if not prepared.is_ready:
            return Timed(reason="the program was never ready")
        try:
            return timed(prepared.program or prepared.offer.make())
        except Exception as error:
            traceback.print_exc()
            prepared.program, prepared.is_ready = None, False
            return Timed(reason=_sentence(error))
        finally:
            if prepared.program is None:
                free_memory()

    def forget(self, problem: str) -> None:
        """Give the memory of a problem's programs back."""
        del self._programs[problem]
        free_memory()


def free_memory() -> None:
    """Give back what dropped programs held on the device, as far as their system can."""
    gc.collect()
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def first_losses(program: Program, problem: Problem) -> NDArray[np.floating[Any]]:
    """The losses of the first epochs, each in its own order."""
    found = []
    for epoch in range(CHECKED_EPOCHS):
        program.reorder(problem.order(epoch))
        program.block(1)
        losses = np.asarray(program.losses(), np.float64)
        found.append(problem.compared(losses))
        if not problem.is_complete(losses):
            break
    return np.concatenate(found)


def _sentence(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else 'no message'}"


def main(name: str, pipe: str) -> None:
    """Serve the system of a module of this package, on the pipe of a file descriptor."""
    importlib.import_module(f"rawnn.bench.peers.{name}_system")  # while nobody waits for it
    Worker(name).serve(Connection(int(pipe)))


if __name__ == "__main__":  # under its own name, by which the answers' classes are found
    importlib.import_module("rawnn.bench.peers.worker").main(*sys.argv[1:])
