"""Processes that prepare problems in parallel: lanes.

Starting a framework and its context on the GPU costs seconds, and compiling takes most of the time
of a comparison. So each system has some lanes, each a process that takes one problem after the
other, as many as there are cores for; all stay until the last problem is timed. A process that
breaks takes nothing with it: the problem that it broke at has failed, and what the lane had made
ready before is made ready again in a new process.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

from rawnn.bench.peers.process import SystemProcess
from rawnn.bench.peers.training_problem import Problem
from rawnn.bench.peers.worker import Prepare, ReadyProgram, Timed
from rawnn.many.host import core_count

SHARES = {"jax": 9, "torch": 3, "rawnn": 4}
"""How the cores are divided among systems, so that all end at about the same time: the share of
the seconds that each took to prepare 30 random networks (commit c4bfd71). JAX gets less than its
share: it compiles with several threads, which use what the others leave."""
LANE_BYTES = 3 << 30
"""Memory of the GPU that a lane may take. Most processes took 0.5 to 2.4 GiB, programs included;
64 of them filled the 80 GB of an H100, so that peers' programs failed (commit 66246ff)."""
GRACE_S = 30.0
"""A program that was begun in time may be finished: seconds beyond a problem's timeout."""


@dataclass
class Prepared:
    """A problem's programs in one system's lane. `reason` says why there are none."""

    problem: Problem
    lane: Lane
    programs: list[ReadyProgram] = field(default_factory=list)
    reason: str = ""

    @property
    def system(self) -> str:
        return self.lane.system

    def time(self, program: int, timeout_s: float) -> Timed:
        """Time a program once more. Never raises."""
        if self.reason:
            return Timed(reason=self.reason)
        found = self.lane.process.time(self.problem.name, program, timeout_s)
        if self.lane.process.lost:
            self.reason = self.lane.process.lost
            self.lane.renew()
        return found

    def forget(self) -> None:
        """Give the programs' memory back."""
        self.lane.forget(self)


class Lane:
    """One system's process, and what it has made ready. A process that has made a large problem
    ready ends with the last that is forgotten: a system's allocator may keep what it once had."""

    def __init__(self, system: str, cores: int) -> None:
        self.system, self._cores = system, cores
        self.process = SystemProcess(system, cores)
        self._prepared: list[tuple[Prepare, Prepared]] = []
        self._had_large = self._closed = False

    def prepare(self, command: Prepare) -> Prepared:
        """Make a problem's programs ready. Never raises."""
        prepared = Prepared(command.problem, self)
        self._had_large |= command.is_large
        prepared.programs = self.process.prepare(command, command.seconds + GRACE_S)
        if self.process.lost:
            prepared.reason = self.process.lost
            self.renew()
        else:
            self._prepared.append((command, prepared))
        return prepared

    def renew(self) -> None:
        """Go on in a new process with all that was ready and is still right."""
        if self._closed:
            return
        self.process.close()
        self.process = SystemProcess(self.system, self._cores)
        still_right, self._prepared = [k for k in self._prepared if not k[1].reason], []
        self._had_large = any(command.is_large for command, _ in still_right)
        for command, prepared in still_right:
            again = self.process.prepare(command, command.seconds + GRACE_S)
            if self.process.lost or len(again) != len(prepared.programs):
                prepared.reason = self.process.lost or "it was not made ready again"
            else:
                self._prepared.append((command, prepared))

    def forget(self, prepared: Prepared) -> None:
        """Drop a problem's programs."""
        if any(p is prepared for _, p in self._prepared):
            self._prepared = [k for k in self._prepared if k[1] is not prepared]
            if self._had_large and not self._prepared:
                self.renew()
            else:
                self.process.forget(prepared.problem.name)

    def close(self) -> None:
        """End the process, and start no other."""
        self._closed = True
        self.process.close()


class Lanes:
    """All lanes of some systems. Use as a context manager."""

    def __init__(self, systems: Sequence[str], problems: int, cores: int | None = None,
                 memory: int | None = None) -> None:
        """For so many problems at most; `cores` are the machine's unless given, `memory` is the
        GPU's in bytes, which all lanes have to fit."""
        cores = cores or core_count()
        count = cores if memory is None else min(cores, memory // LANE_BYTES)
        total = sum(SHARES.get(s, 1) for s in systems)
        counts = {s: min(problems, max(1, round(count * SHARES.get(s, 1) / total)))
                  for s in systems}
        each = max(1, cores // max(1, sum(counts.values())))
        self._lanes: dict[str, list[Lane]] = {s: [] for s in systems}
        self._took: dict[tuple[str, tuple[str, ...]], list[float]] = defaultdict(list)
        try:
            for system, count in counts.items():
                for _ in range(count):
                    self._lanes[system].append(Lane(system, each))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Lanes:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes."""
        for lanes in self._lanes.values():
            for lane in lanes:
                lane.close()

    @property
    def versions(self) -> dict[str, str]:
        """What all systems run on."""
        return {name: text for lanes in self._lanes.values() for lane in lanes
                for name, text in lane.process.versions.items()}

    def usual(self) -> float:
        """Within how many seconds the slowest system got most of its networks ready so far, of
        those that are through with one."""
        every = defaultdict[str, list[float]](list)
        for (system, _), seconds in self._took.items():
            every[system] += seconds
        return max(map(most, every.values()), default=0.0)

    def prepare(self, problems: Sequence[Problem], command: Callable[[Problem, str], Prepare],
                done: Callable[[Prepared], None] = lambda prepared: None,
                has_time_for: Callable[[int, float], bool] = lambda ready, seconds: True
                ) -> dict[str, list[Prepared]]:
        """Prepare problems in all systems; by the problem's name, in the systems' order. They are
        begun in the order given, the same in all systems, so that an end of the time does not leave
        out one kind of network. One more is begun if `has_time_for` says so of how many were and of
        the seconds that the system took for most with the same forms: the few with inductor's
        kernels take a minute each, for which the others would not be begun. What is not ready in
        all systems is given back. `done` gets each, from the lane's thread."""
        found: dict[tuple[str, str], Prepared] = {}

        def work(lane: Lane, waiting: list[Problem]) -> None:
            while not stopped.is_set():
                with choosing:
                    if not waiting:
                        return
                    problem, count = waiting[-1], len(problems) - len(waiting)
                    asked = command(problem, lane.system)
                    took = self._took[lane.system, tuple(asked.forms)]
                    if count and not has_time_for(count, most(took)):
                        return
                    waiting.pop()
                begun = monotonic()
                found[problem.name, lane.system] = lane.prepare(asked)
                took.append(monotonic() - begun)
                done(found[problem.name, lane.system])

        stopped, choosing = threading.Event(), threading.Lock()
        threads = []
        for lanes in self._lanes.values():
            waiting = list(reversed(problems))
            threads += [threading.Thread(target=work, args=(lane, waiting), daemon=True)
                        for lane in lanes]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():  # so that Ctrl-C arrives
                    thread.join(0.2)
        finally:
            stopped.set()
        ready = {p.name for p in problems if all((p.name, s) in found for s in self._lanes)}
        for (name, _), prepared in found.items():
            if name not in ready:
                prepared.forget()
        return {p.name: [found[p.name, s] for s in self._lanes] for p in problems
                if p.name in ready}


def most(seconds: Sequence[float]) -> float:
    """Within which four in five were, 0 for none. The longest would count one slow network for all
    that come: 3 of 30 were not begun with half of the time left."""
    return sorted(seconds)[(4 * len(seconds) - 1) // 5] if seconds else 0.0
