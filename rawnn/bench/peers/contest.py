"""Contests: a problem, several systems, and all their programs timed in turns.

Problems are taken some at a time. All their programs are made ready side by side on all cores
(rawnn.bench.peers.lanes), and nothing is timed meanwhile; then one program at a time has the GPU,
while all others wait. Every program has its turn, then every one again, so that what changes with
time touches all.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic

import msgspec

from rawnn.bench.conditions import Conditions, Watch, merged
from rawnn.bench.peers.check import reference
from rawnn.bench.peers.lanes import Lanes, Prepared
from rawnn.bench.peers.problem import Problem
from rawnn.bench.peers.records import OURS, Contest, Entry
from rawnn.bench.peers.rounding import share
from rawnn.bench.peers.worker import TRUTH, Made, Prepare, Timed

HOPELESS = 1.25
"""A form this much slower than the fastest of its system and number class has no further turn."""
TIMING_S = 3.0
"""Of a budget, what is kept to time each network that was begun to be made ready."""
TURN_S = 60.0
"""What a turn may take at most."""

Forms = Callable[[Problem, str], list[str]]


@dataclass(frozen=True)
class Rules:
    """How contests are held: the systems, the device of ours and of the others, the forms that each
    is asked for, turns of each program, seconds for making a problem's programs ready, and problems
    at a time."""

    systems: tuple[str, ...]
    device: str
    forms: Forms = lambda problem, system: []
    rounds: int = 2
    patience: float = 300.0
    at_once: int = 48

    def device_of(self, system: str) -> str:
        return self.device if system == OURS or self.device != "sim" else "host"


@dataclass
class _Turn:
    """A program, and what its turns found."""

    prepared: Prepared
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
                found: Timed = self.prepared.time(self.index, TURN_S)
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
            system=self.prepared.system, numbers=made.numbers, form=made.form,
            status="failed" if made.reason or self.failed else "wrong" if wrong else "measured",
            reason=reason, us=[ms * 1e3 / problem.steps for ms in self.samples], clock=made.clock,
            epochs=self.epochs, steady=self.steady, setup_s=made.seconds,
            error=None if self.error in (None, float("inf")) else self.error,
            conditions=merged(self.conditions), throttled=sorted(self.throttled),
            footprint=made.footprint)


class _Budget:
    """Seconds that contests may take, and whether they suffice for one more."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._begun = seconds, monotonic()

    @property
    def left(self) -> float:
        return self._seconds - (monotonic() - self._begun)

    def suffices(self, ready: int, seconds: float) -> bool:
        """To make one more network ready where that takes `seconds`, and to time it behind `ready`
        others."""
        return self.left > seconds + TIMING_S * (ready + 1)


def run_contests(problems: Sequence[Problem], rules: Rules, watch: Watch, *,
                 budget: float = float("inf"),
                 versions: Callable[[dict[str, str]], None] = lambda found: None,
                 notify: Callable[[str], None] = lambda message: None) -> Iterator[Contest]:
    """Hold the contest of each problem, in order. Ends early, between contests, where what is left
    of `budget` seconds would not suffice for another. `versions` hears what the systems run on,
    `notify` what goes on."""
    time, left = _Budget(budget), list(problems)
    if not left:
        return
    with Lanes(rules.systems, min(len(left), rules.at_once)) as lanes:
        while left:
            done = {c.problem.name for c in (yield from _together(
                left[:rules.at_once], rules, lanes, watch, time, notify))}
            versions(lanes.versions)
            left = [p for p in left if p.name not in done]
            if left and not (done and time.suffices(0, lanes.usual())):
                notify(f"the budget of {budget:.0f} s is spent: {len(left)} of {len(problems)} "
                       f"contests are left")
                return


def _together(group: Sequence[Problem], rules: Rules, lanes: Lanes, watch: Watch, time: _Budget,
              notify: Callable[[str], None]) -> Generator[Contest, None, list[Contest]]:
    """Make the programs of some problems ready side by side, then time one problem after the
    other; as many as the time suffices for."""
    begun = monotonic()
    ready, total, held = [0], len(group) * len(rules.systems), list[Contest]()
    patience = min(rules.patience, time.left)

    def command(problem: Problem, system: str) -> Prepare:
        return Prepare(problem, rules.device_of(system), rules.forms(problem, system), patience)

    def done(prepared: Prepared) -> None:
        ready[0] += 1
        notify(f"{prepared.problem.name} is ready in {prepared.system} ({ready[0]} of {total}, "
               f"{monotonic() - begun:.0f} s)")

    everything = lanes.prepare(group, command, done, time.suffices)
    setup = monotonic() - begun
    for problem in group:
        prepared = everything.get(problem.name, [])
        if not prepared or (held and time.left < 0):
            continue
        started = monotonic()
        contest = timed_in_turns(problem, prepared, rules, watch)
        for each in prepared:
            each.forget()
        held.append(msgspec.structs.replace(
            contest, seconds=monotonic() - started + setup / max(1, len(everything))))
        yield held[-1]
    return held


def timed_in_turns(problem: Problem, prepared: Sequence[Prepared], rules: Rules,
                   watch: Watch) -> Contest:
    """Check the losses of all programs, and time them, each once a round."""
    made = [(p.system, m) for p in prepared for m in p.made]
    right = reference(made)
    turns = [_Turn(p, index, m, None if right is None or m.reason else
                   share(right, problem, m))
             for p in prepared for index, m in enumerate(p.made) if m.numbers != TRUTH]
    for number in range(rules.rounds):
        for turn in turns:
            if turn.usable and not (number and _hopeless(turn, turns)):
                turn.take(watch)
    entries = [turn.entry(problem) for turn in turns]
    entries += [Entry(system=p.system, numbers="", form="", status="failed",
                      reason=p.reason or "it made nothing ready") for p in prepared
                if not p.made]
    return Contest(problem=problem, entries=entries)


def _hopeless(turn: _Turn, turns: Sequence[_Turn]) -> bool:
    """Whether another form of the same system and numbers is far ahead."""
    rivals = [min(t.samples) for t in turns if t.samples and t.prepared is turn.prepared
              and t.made.numbers == turn.made.numbers]
    return bool(turn.samples) and min(turn.samples) > HOPELESS * min(rivals)
