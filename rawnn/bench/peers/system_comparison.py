"""The same work in several systems: all programs of a problem made ready, checked against each
other, and timed in turns.

Problems are taken some at a time. All their programs are made ready side by side on all cores
(rawnn.bench.peers.lanes), and nothing is timed meanwhile; then one program at a time has the GPU,
while all others wait.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, takewhile
from math import inf, isfinite, nan
from time import monotonic
from typing import Any

from rawnn.bench.conditions import Watch
from rawnn.bench.harness import CUT_OFF, Harness, Sample, Variant, place_of, sample_of
from rawnn.bench.peers.ensemble import Ensemble
from rawnn.bench.peers.lanes import Lanes, Prepared
from rawnn.bench.peers.loss_check import ShareOf, checker
from rawnn.bench.peers.process import SYSTEMS, missing
from rawnn.bench.peers.training_problem import RUN_STEPS, Problem
from rawnn.bench.peers.worker import TRUTH, Losses, Prepare, ReadyProgram
from rawnn.bench.record import Entry, Record, Results, Value
from rawnn.bench.render.networks import OURS, PRECISIONS, Network, peers_of, system, title
from rawnn.bench.render.tables import compared
from rawnn.common.errors import ConfigError, RawnnError, unknown
from rawnn.common.words import counted
from rawnn.engine.config import check_device
from rawnn.engine.machine import open_device

TIMER = {
    "step_us": (
        "an epoch's time over its steps. rawnn: two events on the device, before the first and "
        "after the last command of an epoch, shuffling, accuracy and the copy of the losses "
        "included; PyTorch's graphs: events around epochs that follow each other; JAX, loops and "
        "NumPy: wall clock around epochs that follow each other, the wait at the end included. The "
        "peers' order of examples lies in memory and costs them nothing"
    ),
    "setup_s": "wall clock of making a program ready, several at a time on all cores",
}
FAR_SLOWER = 1.25
"""A form this much slower than the fastest of its system and precision has no further turn."""
TIMING_S, LARGE_TIMING_S = 3.0, 20.0
"""Of a budget, what is kept to time each network that was begun to be made ready, and each large
one, whose programs are made again."""
PROGRAMS, LARGE_PROGRAMS = 16, 6
"""Programs of a problem that may have to fit the GPU's memory together: all of them; of a large one
each system has one, and JAX keeps the memory that it once took."""
ROOM = 0.75
"""Of the GPU's memory, what the programs that are made ready together may take."""
TURN_S = 60.0
"""What a turn may take at most."""

Forms = Callable[[Problem, str], list[str]]


@dataclass(frozen=True)
class Rules:
    """How systems are compared: which, the device of ours and of the others, the forms that each is
    asked for, turns of each program, seconds for making a problem's programs ready, problems at a
    time, and which problems are too large for their programs to lie on the device side by side: of
    those each program is made again for its time. `memory` is the GPU's, in bytes. With
    `records_losses` losses are what is measured, those of float64 included."""

    systems: tuple[str, ...]
    device: str
    forms: Forms = lambda problem, system: []
    rounds: int = 2
    timeout_s: float = 300.0
    at_once: int = 48
    is_large: Callable[[Problem], bool] = lambda problem: False
    memory: int | None = None
    records_losses: bool = False

    def group(self, problems: Sequence[Problem]) -> Sequence[Problem]:
        """The first of some problems that are made ready together: one, and as many more as the
        memory has room for."""
        taken = [*accumulate(map(self._bytes, problems[:self.at_once]))]
        room = inf if self.memory is None else ROOM * self.memory
        return problems[:max(1, bisect_right(taken, room))]

    def _bytes(self, problem: Problem) -> int:
        return problem.program_bytes * (LARGE_PROGRAMS if self.is_large(problem) else PROGRAMS)

    def timing_s(self, problems: Sequence[Problem]) -> float:
        """About how many seconds it takes to time some problems."""
        return sum(LARGE_TIMING_S if self.is_large(p) else TIMING_S for p in problems)

    def device_of(self, system: str) -> str:
        return self.device if system == OURS or self.device != "sim" else "host"


@dataclass(frozen=True)
class Task:
    """A problem with the case of its records, and what identifies it there besides."""

    problem: Problem
    case: str
    conditions: Mapping[str, Value]

    def marker(self, environment: str) -> Record:
        """What says in a file that it was not reached."""
        return Record(case=self.case, variant=OURS, precision="", metric="step_us", samples=[],
                      conditions=dict(self.conditions), environment=environment,
                      status="not measured")


def task_of(problem: Problem, case: str, **more: Value) -> Task:
    """A problem as records identify it."""
    plain = Problem(name="", seed=0, layers=(1, 1), batch=1, loss=problem.loss,
                    optimizer=problem.optimizer, lr=0)
    conditions: dict[str, Value] = {
        "layers": list(problem.layers), "batch": problem.batch, "loss": problem.loss,
        "optimizer": problem.optimizer, "lr": problem.lr, "steps": problem.steps,
        "run_steps": RUN_STEPS, "seed": problem.seed}
    for name in ("bias", "activation", "shuffle", "data"):
        if getattr(problem, name) != getattr(plain, name):
            conditions[name] = getattr(problem, name)
    return Task(problem, case, {**conditions, **more})


def problem_of(entry: Entry) -> Problem:
    """The problem that an entry was measured on."""
    kind = Ensemble if "members" in entry.conditions else Problem
    values: dict[str, Any] = {name: value for name, value in entry.conditions.items()
                              if name in kind.__struct_fields__}
    name = entry.case.partition("/")[2]
    return kind(**{**values, "name": title(name), "layers": tuple(values["layers"])})


def tasks_in(results: Results, suite: str) -> list[Task]:
    """What a file was asked for."""
    found: dict[str, Task] = {}
    for entry in results.entries(suite):
        if "layers" in entry.conditions and entry.case not in found:
            found[entry.case] = Task(problem_of(entry), entry.case, {
                name: value for name, value in entry.conditions.items()
                if name not in ("system", "form", "clock")})
    return list(found.values())


# -- who takes part --------------------------------------------------------------------------------


def chosen(names: Sequence[str], usual: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Ours and the peers that take part, and those that are left out, with the reason. Raises
    ConfigError for unknown ones."""
    for name in names:
        if name not in SYSTEMS or name == OURS:
            raise unknown("peer", name, [s for s in SYSTEMS if s != OURS])
    wanted = list(dict.fromkeys(names or usual))
    absent = {name: reason for name in wanted if (reason := missing(name))}
    return (OURS, *(name for name in wanted if name not in absent)), absent


def device_of(device: str) -> str:
    """The device of ours, which other systems have as their first."""
    check_device(device)
    name, _, ordinal = device.partition(":")
    if ordinal and ordinal != "0":
        raise RawnnError(f"--device {device}: other systems run on the first GPU; choose it with "
                         f"CUDA_VISIBLE_DEVICES={ordinal}")
    return name


def open_compared(harness: Harness, rules: Rules, absent: Mapping[str, str],
                  timer: Mapping[str, str]) -> int | None:
    """Find out where it is measured, and say who is left out. Returns the bytes of the GPU's
    memory, None on the host. Raises ConfigError without a GPU, unless the host was asked for."""
    with open_device(rules.device, harness.notify) as opened:  # systems have their own processes
        harness.watch = Watch.of(opened)
        harness.stand(place_of(opened, timer))
        memory = opened.device.info.memory if opened.device else None
    if opened.device is None and rules.device not in ("host", "sim"):
        raise ConfigError(f"there is no GPU to compare on: {opened.machine.no_gpu}; --device host "
                          f"compares small networks on the host")
    for reason in absent.values():
        harness.notify(f"{reason}; it is left out")
    harness.store(Record(case=harness.suite, variant=system, precision="", metric="step_us",
                        samples=[], environment=harness.environment.key, status="unavailable",
                        reason=reason) for system, reason in absent.items())
    return memory


def compare_systems(harness: Harness, tasks: Sequence[Task], peers: Sequence[str],
                    usual: Sequence[str], device: str,
                    forms: Forms = lambda problem, system: [],
                    part: Callable[[Sequence[Task]], Sequence[Task]] = lambda tasks: tasks,
                    timer: Mapping[str, str] = TIMER, **more: Any) -> None:
    """Compare ours with the peers that are named, or with the usual ones, on every task; `timer`
    says what times cover, `more` are Rules. Raises as `chosen`, `device_of` and `open_compared`
    do."""
    systems, absent = chosen(peers, usual)
    rules = Rules(systems, device_of(device), forms, **more)
    memory = open_compared(harness, rules, absent, timer)
    compare(harness, tasks, replace(rules, memory=memory), part)


def asked_part(harness: Harness, part: tuple[int, int] | None) -> tuple[int, int]:
    """The part of the tasks that is asked for, else that of the file which is resumed; the file
    keeps it. 1/1 is all."""
    before = harness.results.parts.pop(harness.suite, (1, 1))
    part = part or before
    if part != (1, 1):
        harness.results.parts[harness.suite] = part
    return part


def part_of(part: tuple[int, int], tasks: Sequence[Task]) -> list[Task]:
    """The Kth of every N tasks, so that several GPUs share them."""
    number, count = part
    return list(tasks)[number - 1::count]


# -- comparing -------------------------------------------------------------------------------------


def compare(harness: Harness, tasks: Sequence[Task], rules: Rules,
            part: Callable[[Sequence[Task]], Sequence[Task]] = lambda tasks: tasks) -> None:
    """Compare the systems on every task that the results do not have yet; of a `part` of them.

    No problem is begun that is not expected to be ready and timed within the budget. Ctrl-C ends it
    with the problems that are done.
    """
    key = harness.environment.key
    done = {r.program for r in harness.results.where(harness.suite)}
    names = {task.problem.name: task for task in tasks}
    found = {name for name, task in names.items() if any(
        map(task.marker(key).is_reached_by, harness.results.where(harness.suite)))}
    harness.store(marker for name, task in names.items() if name not in found
                 and (marker := task.marker(key)).program not in done)
    left = [task for task in part(tasks) if task.problem.name not in found]
    harness.results.ended[harness.suite] = CUT_OFF
    try:
        for problem, variants in _compared([t.problem for t in left], rules, harness, names):
            task = names[problem.name]
            harness.results.replace(task.marker(key).program, [
                record for variant in variants for record in variant.records()])
            harness.store(())
            harness.echo(network_line(problem, variants))
            found.add(problem.name)
    except KeyboardInterrupt:
        harness.interrupted = True
    is_spent = isfinite(harness.budget) and any(t.problem.name not in found for t in left)
    harness.end(f"the budget of {harness.budget:.0f} s was spent"
                if is_spent and not harness.interrupted else "")


def _compared(problems: Sequence[Problem], rules: Rules, harness: Harness,
              tasks: Mapping[str, Task]) -> Generator[tuple[Problem, list[Variant]]]:
    """Each problem with its programs timed."""
    left = list(problems)
    if not left:
        return
    with Lanes(rules.systems, min(len(left), rules.at_once), memory=rules.memory) as lanes:
        while left:
            done = set[str]()
            group = rules.group(left)
            for problem, variants in _compared_group(group, rules, lanes, harness, tasks):
                done.add(problem.name)
                yield problem, variants
            left = [p for p in left if p.name not in done]
            if harness.interrupted:
                return
            if left and not (done and _has_time_for(harness, rules, left[:1], lanes.usual())):
                harness.notify(f"the budget is spent: {len(left)} of {len(problems)} networks are "
                               f"left")
                return


def _has_time_for(harness: Harness, rules: Rules, waiting: Sequence[Problem],
                  seconds: float) -> bool:
    """Whether what is left of the budget suffices to make the last of the problems that then wait
    ready, which takes `seconds`, and to time all of them."""
    return harness.left > seconds + rules.timing_s(waiting)


def _compared_group(group: Sequence[Problem], rules: Rules, lanes: Lanes, harness: Harness,
              tasks: Mapping[str, Task]) -> Generator[tuple[Problem, list[Variant]]]:
    """Make the programs of some problems ready side by side, then time one problem after the
    other; as many as the time suffices for."""
    begun, is_first = monotonic(), True
    ready, total = list[Prepared](), len(group) * len(rules.systems)
    timeout_s = min(rules.timeout_s, harness.left)

    def command(problem: Problem, system: str) -> Prepare:
        return Prepare(problem, rules.device_of(system), rules.forms(problem, system), timeout_s,
                       rules.is_large(problem))

    def done(prepared: Prepared) -> None:
        ready.append(prepared)
        harness.notify(f"{prepared.problem.name} is ready in {prepared.system} ({len(ready)} of "
                       f"{total}, {monotonic() - begun:.0f} s)")

    try:
        everything = lanes.prepare(group, command, done, lambda ready, seconds: _has_time_for(
            harness, rules, group[:ready + 1], seconds))
    except KeyboardInterrupt:
        if not rules.records_losses:
            raise
        harness.interrupted = True
        everything = {problem.name: [p for s in rules.systems for p in ready
                                     if (p.problem.name, p.system) == (problem.name, s)]
                      for problem in group}
        everything = {name: p for name, p in everything.items() if len(p) == len(rules.systems)}
    harness.environment.libraries.update(lanes.versions)  # a renewed lane no longer has them
    for problem in group:
        prepared = everything.get(problem.name, [])
        if not prepared or (not is_first and harness.left < 0):
            continue
        variants = timed_in_turns(tasks[problem.name], prepared, rules, harness)
        for each in prepared:
            each.forget()
        if harness.interrupted and not rules.records_losses:
            return
        is_first = False
        yield problem, variants


def timed_in_turns(task: Task, prepared: Sequence[Prepared], rules: Rules,
                   harness: Harness) -> list[Variant]:
    """Check the losses of all programs, and time them, each once a round."""
    share_of = checker(task.problem, [(p.system, m) for p in prepared for m in p.programs])
    variants: list[Variant] = []
    wrong: dict[int, str] = {}
    for p in prepared:
        if not p.programs:
            variants.append(program(task, p.system, None, harness))
            variants[-1].refuse("failed", p.reason or "it made nothing ready")
        for index, made in enumerate(p.programs):
            if made.precision == TRUTH and not rules.records_losses:
                continue
            variant = program(task, p.system, made, harness, partial(_turn, p, index, harness))
            if rules.records_losses:
                variant.metric, variant.status = "loss", "measured"
                variant.samples["loss"] = finite_losses(made.losses)
            if made.reason:
                variant.refuse("failed", made.reason)
            elif reason := check(variant, made, share_of):
                wrong[len(variants)] = reason
            variants.append(variant)
    timed = [variant for variant in variants if variant.precision != TRUTH]
    harness.interleave(timed, 0 if harness.interrupted else rules.rounds, is_budgeted=False,
                       on_sample=lambda *turn: None,
                       is_skipped=lambda variant: _is_far_slower(variant, timed))
    for place, reason in wrong.items():
        if variants[place].is_usable:
            variants[place].refuse("wrong", reason)
    return variants


def program(task: Task, system: str, made: ReadyProgram | None, harness: Harness,
            take: Callable[[int], Sample] = lambda number: Sample({})) -> Variant:
    """A system's program of a problem as a variant."""
    form, precision = (made.form, made.precision) if made else ("", "")
    variant = Variant(
        task.case, f"{system} {form}".strip(), precision, "step_us",
        {**task.conditions, "system": system, **({"form": form, "clock": made.clock} if made
                                                 else {})}, take)
    variant.environment = harness.environment.key
    if made:
        variant.facts = {"setup_s": made.seconds, **made.footprint}
    return variant


def check(variant: Variant, made: ReadyProgram, share_of: ShareOf | None) -> str:
    """Keep the share of the tolerance that a program's losses used up; why it is wrong, if it
    is."""
    steps = len(finite_losses(made.losses))
    if steps < len(made.losses):
        return f"its loss is not finite at step {steps + 1}"
    if share_of is None:
        return ""
    error = share_of(made)
    if not isfinite(error):
        return "its losses cannot be compared"
    variant.facts["loss_error"] = error
    return "" if error <= 1 else f"its losses are off by {error:.3g} times the tolerance"


def finite_losses(losses: Losses) -> list[float]:
    """Losses ahead of the first that is not finite."""
    return list(takewhile(isfinite, (nan if v is None else v for v in losses)))


def _turn(prepared: Prepared, index: int, harness: Harness, number: int) -> Sample:
    """Time a program once more."""
    with harness.watch.during() as observed:
        found = prepared.time(index, TURN_S)
    if found.reason:
        raise RawnnError(found.reason)
    return sample_of(found, prepared.problem.steps, observed)


def _is_far_slower(variant: Variant, variants: Sequence[Variant]) -> bool:
    """Whether another form of the same system and precision is far ahead."""
    rivals = [min(v.samples["step_us"]) for v in variants if v.samples.get("step_us")
              and (v.conditions["system"], v.precision)
              == (variant.conditions["system"], variant.precision)]
    mine = variant.samples.get("step_us")
    return bool(mine) and min(mine or [inf]) > FAR_SLOWER * min(rivals)


# -- what came of it -------------------------------------------------------------------------------


def network_line(problem: Problem, variants: Sequence[Variant]) -> str:
    """A problem in one line: our time in each precision and the best peer's; and a line for
    each program that failed."""
    network = Network(problem.name, [Entry(v.records()) for v in variants])
    peers, parts = peers_of([network]), []
    for precision in PRECISIONS:
        mine, peer = network.best((OURS,), (precision,)), network.best(peers, (precision,))
        if mine is None and peer is None:
            continue
        times = [f"{e.median('step_us'):.2f} us" if e else "-" for e in (mine, peer)]
        found = compared(peer, mine)
        factor = "" if found is None or peer is None else \
            f" {system(peer)} ({found.value:.2f} x{', in the noise' if found.is_noise else ''})"
        parts.append(f"{precision} {times[0]} | {times[1]}{factor}")
    bad = [f"           {v.name} {v.precision} {v.status}: {v.reason}" for v in variants
           if v.status != "measured"]
    return "\n".join([f"{problem.name:>9}  {problem}: {'; '.join(parts)}", *bad])


def failures(suite: str, results: Results) -> str:
    """In which problems ours failed or was wrong."""
    reached = [e for e in results.entries(suite)
               if "layers" in e.conditions and e.status != "not measured"]
    every = list(dict.fromkeys(e.case.partition("/")[2] for e in reached))
    worse = {e.case.partition("/")[2] for e in reached
             if e.conditions.get("system") == OURS and e.status != "measured"}
    return f"rawnn was refused, failed or was wrong in {len(worse)} of " \
           f"{counted(len(every), 'network')} ({', '.join(n for n in every if n in worse)})" \
        if worse else ""
