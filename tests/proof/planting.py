"""How a fault is planted in a run that is otherwise right, and by what it is caught."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

from rawnn.common.errors import RawnnError
from rawnn.cuda.compiling.compile import Compiled, compile_source
from rawnn.engine.runners.prepared_run import PreparedRun
from rawnn.sim import Simulation
from tests.proof.runs import train

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


_compiled: dict[tuple[Any, ...], Compiled] = {}


def _compile_once(nvrtc: Any, text: str, **options: Any) -> Compiled:
    key = (text, *options.values())
    if key not in _compiled:
        _compiled[key] = compile_source(nvrtc, text, **options)
    return _compiled[key]


@contextmanager
def shared_kernels() -> Iterator[None]:
    """Kernels are compiled once for all runs whose faults have nothing to do with the compiler."""
    with mock.patch("rawnn.cuda.device.compile_source", _compile_once):
        yield


def tampered(work: PreparedRun, wanted: Found, patch: Callable[[], Any]) -> Plant:
    """A plant that is in place for the whole of a run."""

    def run() -> str | None:
        simulation = Simulation()
        with patch(), shared_kernels():
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


def clean_run(work: PreparedRun, observed: Sequence[tuple[Any, str]]) -> Found:
    """A run without a fault, on whose numbers the comparison can stand, with the arguments of every
    call of some functions (`observe`)."""
    simulation, spies = Simulation(), {}
    with shared_kernels(), ExitStack() as patches:
        for target, name in observed:
            spies[target, name] = Nth(getattr(target, name))
            patches.enter_context(replaced(target, name, spies[target, name]))
        found = train(simulation, work)
    simulation.assert_clean()
    assert (found["correct"] > 0).all(), "a count of zero cannot be told from none"
    return {**found, "observed": {
        (target, name): [c[1:] for c in spy.calls] if isinstance(target, type) else spy.calls
        for (target, name), spy in spies.items()}}


def observe(clean: Found, target: Any, name: str) -> list[tuple[Any, ...]]:
    """Arguments of every call of a function in a clean run (a method's without `self`)."""
    calls: list[tuple[Any, ...]] = clean["observed"][target, name]
    return calls


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
