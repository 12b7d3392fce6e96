"""Contests: a problem, several systems, and all their programs timed in turns.

Problems are taken some at a time. All their programs are made ready side by side on all cores, and
nothing is timed meanwhile; then one program at a time has the GPU, while all others wait. Every
program has its turn, then every one again, so that what changes with time touches all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic

import msgspec

from rawnn.bench.conditions import Conditions, Watch, merged
from rawnn.bench.peers.check import reference, share
from rawnn.bench.peers.problem import Problem
from rawnn.bench.peers.process import SystemProcess
from rawnn.bench.peers.records import OURS, Contest, Entry
from rawnn.bench.peers.worker import Made, Prepare, Timed

HOPELESS = 1.25
"""A form this much slower than the fastest of its system and number class has no further turn."""
TURN_S = 60.0
"""What a turn may take at most."""

Forms = Callable[[Problem, str], list[str]]


@dataclass(frozen=True)
class Rules:
    """How contests are held: the systems, the device of ours and of the others, the forms that each
    is asked for, turns of each program, seconds for making a problem's programs ready, problems at
    a time and cores."""

    systems: tuple[str, ...]
    device: str
    forms: Forms = lambda problem, system: []
    rounds: int = 2
    patience: float = 120.0
    at_once: int = max(1, (os.cpu_count() or 2) // 2)

    def device_of(self, system: str) -> str:
        return self.device if system == OURS or self.device != "sim" else "host"


@dataclass
class _Turn:
    """A program, and what its turns found."""

    process: SystemProcess
    index: int
    made: Made
    error: float | None
    samples: list[float] = field(default_factory=list)
    epochs: int = 0
    steady: bool = True
    failed: str = ""
    conditions: list[Conditions] = field(default_factory=list)
    throttled: set[str] = field(default_factory=set)

    @property
    def usable(self) -> bool:
        return not (self.made.reason or self.failed)

    def take(self, watch: Watch) -> None:
        """Time it once more; again where the GPU slowed down meanwhile, and if it does so again,
        keep that and say so."""
        for attempt in (0, 1):
            with watch.during() as seen:
                found: Timed = self.process.time(self.index, TURN_S)
            slow = seen.conditions.throttled if seen.conditions else []
            if not slow or attempt:
                break
        self.failed = found.reason
        self.samples += found.milliseconds
        self.epochs += found.epochs
        self.steady &= found.steady
        self.throttled |= set(slow)
        if seen.conditions:
            self.conditions.append(seen.conditions)

    def entry(self, problem: Problem) -> Entry:
        made = self.made
        wrong = self.error is not None and not self.error <= 1
        reason = made.reason or self.failed
        if wrong and not reason:
            reason = (f"its losses are off by {self.error:.3g} times the tolerance" if
                      self.error != float("inf") else "its losses are not finite")
        return Entry(
            system=self.process.system, numbers=made.numbers, form=made.form,
            status="failed" if made.reason or self.failed else "wrong" if wrong else "measured",
            reason=reason, us=[ms * 1e3 / problem.steps for ms in self.samples], clock=made.clock,
            epochs=self.epochs, steady=self.steady, setup_s=made.seconds,
            error=None if self.error in (None, float("inf")) else self.error,
            conditions=merged(self.conditions), throttled=sorted(self.throttled))


def run_contests(problems: Sequence[Problem], rules: Rules, watch: Watch, *,
                 budget: float = float("inf"),
                 versions: Callable[[dict[str, str]], None] = lambda found: None,
                 notify: Callable[[str], None] = lambda message: None) -> Iterator[Contest]:
    """Hold the contest of each problem, in order. Ends early, between contests, where what is left
    of `budget` seconds would not suffice for another. `versions` hears what the systems run on,
    `notify` what goes on."""
    begun, left, costs = monotonic(), list(problems), list[float]()
    while left:
        spare = budget - (monotonic() - begun)
        count = min(rules.at_once, len(left))
        if costs:
            usual = sum(costs) / len(costs)
            count = min(count, int(min(spare / usual, count)))
        if count < 1 or spare <= 0:
            notify(f"the budget of {budget:.0f} s is spent: {len(left)} of {len(problems)} "
                   f"contests are left")
            return
        group, left = left[:count], left[count:]
        started = monotonic()
        yield from _together(group, rules, watch, min(rules.patience, spare), versions, notify)
        costs += [(monotonic() - started) / len(group)] * len(group)


def _together(group: Sequence[Problem], rules: Rules, watch: Watch, patience: float,
              versions: Callable[[dict[str, str]], None],
              notify: Callable[[str], None]) -> Iterator[Contest]:
    """Make the programs of some problems ready side by side, then time one problem after the
    other."""
    begun = monotonic()
    cores = max(1, (os.cpu_count() or 2) // len(group))
    running: list[list[SystemProcess]] = []
    try:
        for problem in group:
            mine: list[SystemProcess] = []
            running.append(mine)
            for system in rules.systems:
                process = SystemProcess(system, cores)
                mine.append(process)
                process.prepare(Prepare(problem, rules.device_of(system),
                                        rules.forms(problem, system), patience))
        notify(f"making {', '.join(p.name for p in group)} ready on {os.cpu_count()} cores")
        deadline = begun + patience * 1.25 + 20  # a program that was begun may be finished
        for process in (p for mine in running for p in mine):
            process.settle(deadline)
        setup = monotonic() - begun
        notify(f"{len(group)} problems made ready in {setup:.0f} s")
        for problem, mine in zip(group, running, strict=True):
            for process in mine:
                versions(process.versions)
            started = monotonic()
            contest = timed_in_turns(problem, mine, rules, watch)
            seconds = monotonic() - started + setup / len(group)
            for process in mine:
                process.close()
            yield msgspec.structs.replace(contest, seconds=seconds)
    finally:
        for process in (p for mine in running for p in mine):
            process.close()


def timed_in_turns(problem: Problem, processes: Sequence[SystemProcess], rules: Rules,
                   watch: Watch) -> Contest:
    """Check the losses of all programs, and time them, each once a round."""
    made = [(p.system, m) for p in processes for m in p.made]
    right = reference(made)
    turns = [_Turn(process, index, m, None if right is None or m.reason else
                   share(m.losses, right, m.numbers))
             for process in processes for index, m in enumerate(process.made)]
    for number in range(rules.rounds):
        for turn in turns:
            if turn.usable and not (number and _hopeless(turn, turns)):
                turn.take(watch)
    entries = [turn.entry(problem) for turn in turns]
    entries += [Entry(system=p.system, numbers="", form="", status="failed",
                      reason=p.lost or "it made nothing ready") for p in processes
                if not p.made]
    return Contest(problem=problem, entries=entries)


def _hopeless(turn: _Turn, turns: Sequence[_Turn]) -> bool:
    """Whether another form of the same system and numbers is far ahead."""
    rivals = [min(t.samples) for t in turns if t.samples and t.process is turn.process
              and t.made.numbers == turn.made.numbers]
    return bool(turn.samples) and min(turn.samples) > HOPELESS * min(rivals)
