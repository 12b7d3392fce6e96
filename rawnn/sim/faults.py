"""Fault injection: any call of any simulated library can be made to fail with any of its codes."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from rawnn.common.errors import nearest
from rawnn.sim.codes import CODES, GENERIC
from rawnn.sim.errors import Refused, SimulationError

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Fault:
    """One call that fails, without any effect, with the code named `code` (None: the library's
    generic one). The call is number `index` (from 0) of all calls of all libraries, or number `nth`
    (from 0) of those named `call`; if `nth` is None, all of them fail.

    Raises ValueError unless exactly one of `index` and `call` is given.
    """

    code: str | None = None
    call: str | None = None
    nth: int | None = 0
    index: int | None = None

    def __post_init__(self) -> None:
        if (self.index is None) == (self.call is None):
            raise ValueError("a fault is given by either `index` or `call`")


class Faults:
    """Counts every call and decides which fail. `calls` is the log, as (library, call)."""

    def __init__(self, *planned: Fault) -> None:
        self.calls: list[tuple[str, str]] = []
        self._counts: Counter[str] = Counter()
        self._by_index = {f.index: f for f in planned if f.index is not None}
        self._by_call = [f for f in planned if f.call is not None]
        self.failed: list[tuple[int, str, str]] = []
        """(index, call, code) of every fault that occurred."""

    def add(self, fault: Fault) -> None:
        """Plan one more; `nth` counts from the beginning of the log."""
        if fault.index is not None:
            self._by_index[fault.index] = fault
        else:
            self._by_call.append(fault)

    def count(self, call: str) -> int:
        """How often `call` was called so far."""
        return self._counts[call]

    def enter(self, library: str, call: str) -> int:
        """Log a call; returns the result code of a planned fault, else 0."""
        index = len(self.calls)
        self.calls.append((library, call))
        nth = self._counts[call]
        self._counts[call] = nth + 1
        fault = self._by_index.get(index) if self._by_index else None
        for planned in self._by_call:
            if planned.call == call and planned.nth in (None, nth):
                fault = planned
        if fault is None:
            return 0
        name = fault.code or GENERIC[library]
        if name not in CODES[library]:
            raise ValueError(
                f"{library} has no code '{name}'{nearest(name, CODES[library])}"
            )
        self.failed.append((index, call, name))
        return CODES[library][name][0]


class _Library(Protocol):
    library: str

    @property
    def simulation(self) -> Any: ...


def simulated_call(*failed: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a method one call of a simulated library: it is counted, can fail, and turns `Refused`
    into its code. `failed` are the values that follow the code of a failed call."""

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        name = method.__name__

        @functools.wraps(method)
        def call(*arguments: P.args, **named: P.kwargs) -> R:
            library = cast(_Library, arguments[0])
            code = library.simulation.enter(library.library, name)
            if not code:
                try:
                    return method(*arguments, **named)
                except Refused as refusal:
                    code = CODES[library.library][refusal.code][0]
                except SimulationError as error:
                    library.simulation.errors.append(error)
                    raise
            return cast(R, (code, *failed))

        return call

    return decorate
