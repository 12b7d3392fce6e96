"""What `rawnn bench random --peers` and `rawnn bench peers` found out, as one versioned schema.

docs/peers.md explains every key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Literal, get_args

import msgspec

from rawnn.bench.conditions import Conditions
from rawnn.bench.footprint import Footprint
from rawnn.bench.measured import Measured
from rawnn.bench.peers.problem import Problem
from rawnn.common.errors import ConfigError
from rawnn.engine.result import Environment

SCHEMA_VERSION = 1
OURS = "rawnn"
NUMBERS = ("float32", "tf32", "bf16")

Status = Literal["measured", "wrong", "failed"]
Kind = Literal["random-peers", "peers", "sweep"]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One system's program for a problem: its number class and its form.

    `us` are microseconds of a step, one a sample, by the `clock` "events" (on the device) or
    "wall". `error` is the share of the tolerance that its losses used up, None where there was
    nothing to compare with. `steady` says that it had warmed up by the stated rule, `setup_s` is
    what making it ready took, `epochs` how many were timed. `reason` says why it is wrong or
    failed, `throttled` why its GPU was slower than it can be, even when it was timed again.
    """

    system: str
    numbers: str
    form: str
    status: Status
    reason: str = ""
    us: list[float] = []
    clock: str = "events"
    epochs: int = 0
    steady: bool = True
    error: float | None = None
    setup_s: float = 0.0
    conditions: Conditions | None = None
    throttled: list[str] = []
    footprint: Footprint | None = None

    @property
    def time(self) -> float:
        """Median microseconds of a step."""
        return median(self.us)


class Contest(msgspec.Struct, frozen=True, kw_only=True):
    """A problem with all its entries, and the seconds that it took."""

    problem: Problem
    entries: list[Entry]
    seconds: float = 0.0

    def best(self, systems: tuple[str, ...], numbers: tuple[str, ...]) -> Entry | None:
        """The fastest right entry of some systems in some number classes."""
        there = [e for e in self.entries if e.system in systems and e.numbers in numbers
                 and e.status == "measured" and e.us]
        return min(there, key=lambda e: e.time, default=None)

    def compared(self, systems: tuple[str, ...], numbers: tuple[str, ...]) -> bool:
        """Whether every one of some systems was asked for one of some number classes. A system that
        knows one class only, as NumPy does, or that broke before it could answer, counts as asked:
        it has nothing to show."""
        for system in systems:
            has = {e.numbers for e in self.entries if e.system == system}
            if len(has) > 1 and not has.intersection(numbers):
                return False
        return True

    def footprint(self, numbers: str) -> Footprint | None:
        """Of ours in a number class: what the same work takes in any system."""
        return next((e.footprint for e in self.entries
                     if e.system == OURS and e.numbers == numbers and e.footprint), None)


class ContestsResult(Measured, frozen=True, kw_only=True):
    """All contests so far. `asked` are the problems that were asked for, `left_out` the systems
    that are not there and why; `run_steps` are the steps of the run that ours was asked for,
    128,000 in files that do not say; `ended` says what ended it early, if anything did,
    `interrupted` whether that was Ctrl-C."""

    INDENT = 1
    kind: Kind
    schema_version: int = SCHEMA_VERSION
    draw_version: int
    run_steps: int = 128_000
    asked: list[Problem]
    rounds: int
    systems: list[str]
    left_out: dict[str, str]
    environment: Environment
    timer: dict[str, str]
    contests: list[Contest]
    ended: str = ""
    interrupted: bool = False

    @property
    def left(self) -> list[Problem]:
        """The problems that have no contest yet."""
        done = {c.problem.name for c in self.contests}
        return [p for p in self.asked if p.name not in done]


CONTESTS: Mapping[str, tuple[type[ContestsResult], int]] = dict.fromkeys(
    get_args(Kind), (ContestsResult, SCHEMA_VERSION))


def read_contests(path: str | os.PathLike[str]) -> ContestsResult:
    """Read what `write_json` wrote. Raises ConfigError for anything else."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=ContestsResult)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} holds no contests with peers: {error}") from None
