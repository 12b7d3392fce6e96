"""The order of work: tasks with their predecessors, run in any order that these allow, and vector
clocks that tell whether two tasks are ordered or only happened to run one after the other.

Clocks count along lanes. A task continues any lane whose last task is among its ancestors. There
are therefore only as many lanes as tasks were ever mutually unordered, and clocks stay short. Task
A happens before B if and only if B's clock has reached A's index on A's lane.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable

from rawnn.sim.errors import Race, ReadBeforeWrite, SimulationError

Clock = tuple[int, ...]


def merge(a: Clock, b: Clock) -> Clock:
    """Element-wise maximum; a missing element is 0."""
    if a is b or not b:
        return a
    if not a:
        return b
    if len(a) < len(b):
        a, b = b, a
    merged = tuple(x if x > y else y for x, y in zip(a, b, strict=False))
    return merged + a[len(b):] if len(a) > len(b) else merged


class Task:
    """One unit of work. `effect` is called with the task itself when it runs. `counted` tasks
    access memory and get a position on a lane; others (markers) only pass their clock on.
    `unwaited` are the tasks at the other end of programmatic edges whose consumer does not wait."""

    __slots__ = ("clock", "counted", "done", "effect", "index", "label", "lane", "remaining",
                 "successors", "unwaited", "where")

    def __init__(self, label: str, where: str, effect: Callable[[Task], None] | None,
                 counted: bool = True) -> None:
        self.label, self.where, self.effect, self.counted = label, where, effect, counted
        self.clock: Clock = ()
        self.lane = self.index = 0
        self.remaining = 0
        self.successors: list[Task] = []
        self.done = False
        self.unwaited: tuple[Task, ...] = ()

    def after(self, lane: int, index: int) -> bool:
        """Whether the task at `index` of `lane` happens before this one, or is this one."""
        return lane < len(self.clock) and self.clock[lane] >= index

    def __str__(self) -> str:
        return f"{self.label} ({self.where})"


class Scheduler:
    """Runs tasks one at a time, selected by `seed` among those whose predecessors are done.

    `host` is the clock of what the host has waited for: whatever it enqueues comes after that.
    After an effect has raised, nothing runs any more and every wait returns at once: the error was
    reported, and only resources remain to be released. `broken` is that error.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._ready: list[Task] = []
        self._lanes: list[int] = []
        self._pending = 0
        self.host: Clock = ()
        self.ran = 0
        self.broken = ""

    def add(self, task: Task, predecessors: Iterable[Task], held: bool = False) -> Task:
        """Let `task` run once all `predecessors` are done and, if `held`, `release` was called."""
        task.clock = merge(self.host, task.clock)
        for predecessor in predecessors:
            self.link(predecessor, task)
        self._pending += 1
        if held:
            task.remaining += 1
        elif not task.remaining:
            self._ready.append(task)
        return task

    def link(self, before: Task, after: Task) -> None:
        """Add a predecessor to a task that cannot run yet."""
        if before.done:
            after.clock = merge(after.clock, before.clock)
        else:
            before.successors.append(after)
            after.remaining += 1

    def release(self, task: Task, by: Task) -> None:
        """Release a task that was added `held`; it comes after the task `by`."""
        task.clock = merge(task.clock, by.clock)
        task.remaining -= 1
        if not task.remaining:
            self._ready.append(task)

    def run_until(self, task: Task) -> None:
        """Run tasks, needed or not, until `task` is done; the host then comes after it."""
        while not task.done and not self.broken:
            self._step()
        self.host = merge(self.host, task.clock)

    def run_all(self) -> None:
        """Run everything; the host then comes after all of it."""
        while self._ready and not self.broken:
            self._step()
        self.host = tuple(self._lanes)

    def run_another(self) -> bool:
        """Run a task while a started one waits for another rank; returns whether there was one."""
        if not self._ready or self.broken:
            return False
        self._step()
        return True

    def run_down(self, most: int) -> None:
        """Run tasks until at most `most` are left: a launch queue is finite."""
        while self._pending > most and self._ready and not self.broken:
            self._step()

    @property
    def pending(self) -> int:
        """How many tasks have not run."""
        return self._pending

    def abandon(self, error: BaseException) -> None:
        """Run nothing any more, because of `error`."""
        self.broken = f"{type(error).__name__}: {error}".splitlines()[0]
        self._ready.clear()

    def _step(self) -> None:
        ready = self._ready
        if len(ready) > 1:
            at = self._random.randrange(len(ready))
            ready[at], ready[-1] = ready[-1], ready[at]
        task = ready.pop()
        if task.counted:
            self._place(task)
        self.ran += 1
        if task.effect is not None:
            try:
                task.effect(task)
            except ReadBeforeWrite as error:
                self._finish(task)
                self._look_for_races(error)
                raise
            except BaseException as error:
                self.abandon(error)
                raise
        self._finish(task)

    def _look_for_races(self, error: ReadBeforeWrite) -> None:
        """A read found uninitialised memory. If an unordered write of it is pending, that is the
        better explanation: run the remaining tasks and raise the first race."""
        try:
            while self._ready:
                task = self._ready.pop()
                if task.counted:
                    self._place(task)
                if task.effect is not None:
                    with contextlib.suppress(ReadBeforeWrite):
                        task.effect(task)
                self._finish(task)
        except Race:
            raise
        except SimulationError:
            pass  # a consequence of the missing values
        finally:
            self.abandon(error)

    def _finish(self, task: Task) -> None:
        task.done = True
        self._pending -= 1
        clock = task.clock
        for successor in task.successors:
            successor.clock = merge(successor.clock, clock)
            successor.remaining -= 1
            if not successor.remaining:
                self._ready.append(successor)
        task.successors.clear()
        task.effect = None

    def _place(self, task: Task) -> None:
        """Continue a lane that ends in an ancestor, or open a new one."""
        clock, lanes = task.clock, self._lanes
        known = len(clock)
        for lane in range(known):
            if clock[lane] == lanes[lane]:
                break
        else:
            lane = len(lanes)
            lanes.append(0)
            clock += (0,) * (lane + 1 - known)
        lanes[lane] += 1
        task.lane, task.index = lane, lanes[lane]
        task.clock = (*clock[:lane], lanes[lane], *clock[lane + 1:])
