"""Which contests are held: drawn networks, or the built-in workloads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

from rawnn.bench.conditions import Watch
from rawnn.bench.peers.contest import Rules, run_contests
from rawnn.bench.peers.problem import DRAW_VERSION, RUN_STEPS, Problem, draw, draws, smaller
from rawnn.bench.peers.process import SYSTEMS, missing
from rawnn.bench.peers.records import OURS, Contest, ContestsResult, Kind
from rawnn.bench.records import place_of
from rawnn.bench.suites import SweepSuite
from rawnn.common.errors import ConfigError, unknown
from rawnn.data.synthetic import EXAMPLES
from rawnn.engine.config import parse_layers
from rawnn.engine.machine import open_device
from rawnn.engine.result import Environment
from rawnn.model.workloads import WORKLOADS, workload

TIMER = {
    "us": (
        "an epoch's time over its steps. rawnn: two events on the device, before the first and "
        "after the last command of an epoch, shuffling, accuracy and the copy of the losses "
        "included; PyTorch's graphs: events around epochs that follow each other; JAX, loops and "
        "NumPy: wall clock around epochs that follow each other, the wait at the end included. The "
        "peers' order of examples lies in memory and costs them nothing"
    ),
}
THOROUGH = 5
"""Networks of a draw for which PyTorch has inductor's kernels as well, and JAX true float32. Both
are slow to make and neither was ever the fastest: in 32 networks on an H200 JAX's true float32 took
two thirds of the seconds in which JAX compiled, and its tf32 or bf16 was faster in each; inductor's
kernels were behind JAX in all eight that had them."""
CUT_OFF = "it was cut off while it measured"
OUR_SETS = ("float32:best", "tf32:best,tf32", "bf16:best,bf16", "sr:best,sr")


def drawn(seeds: Sequence[int], count: int, device: str) -> list[Problem]:
    """The networks of `count` seeds from each of `seeds` on, each such draw after the other; small
    ones without a GPU. Raises ConfigError for draws that have a network in common or touch, as
    nobody could tell them apart."""
    first, *others = sorted(seeds)
    for before, seed in zip([first, *others], others, strict=False):
        if seed <= before + count:
            raise ConfigError(f"the draws of {count} networks from the seeds {before} and {seed} "
                              f"on are not apart: take seeds {count + 1} or more from each other")
    made = [draw(number) for seed in seeds for number in range(seed, seed + count)]
    return made if device not in ("host", "sim") else [smaller(p) for p in made]


def thorough_of(asked: Sequence[Problem]) -> set[str]:
    """The names of those that have the forms that are slow to make: a few of each draw, evenly
    spread."""
    found = set[str]()
    for several in draws(asked):
        count = min(THOROUGH, len(several))
        found |= {several[i * len(several) // count].name for i in range(count)}
    return found


def drawn_forms(asked: Sequence[Problem]) -> Callable[[Problem, str], list[str]]:
    """The forms of drawn networks: with those that are slow to make for a few of each draw."""
    thorough = thorough_of(asked)

    def forms(problem: Problem, system: str) -> list[str]:
        if system == "torch" and problem.name in thorough:
            return ["graph", "graph, gathered first", "graph, compiled"]
        if system == "jax" and problem.name not in thorough:
            return ["tf32", "bf16"]
        return []

    return forms


def of_workloads(names: Sequence[str], dataset: str, steps: int) -> list[Problem]:
    """The built-in workloads as problems, all of them unless some are named. Raises ConfigError."""
    made = []
    for name in names or tuple(WORKLOADS):
        values = workload(name)
        examples = 60_000 if dataset == "mnist" else EXAMPLES
        made.append(Problem(
            name=name, seed=0, layers=tuple(values["layers"]), batch=values["batch"],
            loss="cross_entropy", optimizer="sgd", lr=values["lr"],
            bias=values.get("bias", True), shuffle=values.get("shuffle", False), data=dataset,
            steps=min(steps, examples // values["batch"])))
    return made


def swept(suite: SweepSuite) -> list[Problem]:
    """The networks of a sweep, with every batch. Raises ConfigError for layers that are none."""
    return [Problem(
        name=f"{suite.name} {'-'.join(map(str, sizes))} batch {batch}", seed=0, layers=sizes,
        batch=batch, loss="cross_entropy", optimizer="sgd", lr=suite.lr, steps=suite.steps)
        for sizes in map(parse_layers, suite.layers) for batch in suite.batches]


def swept_forms(suites: Sequence[SweepSuite]) -> Callable[[Problem, str], list[str]]:
    """Our sets as each sweep names them, and the peers' fastest forms; JAX's true float32, which is
    not (THOROUGH), is left out."""
    sets = {p.name: s.sets for s in suites for p in swept(s)}
    return lambda problem, system: sets[problem.name] if system == OURS else \
        ["tf32", "bf16"] if system == "jax" else []


def workload_forms(problem: Problem, system: str) -> list[str]:
    """Every form that is known, those that people write included."""
    if system == "torch":
        return ["plain loop", "compiled loop", "graph", "graph, gathered first", "graph, compiled"]
    if system == OURS:
        return list(OUR_SETS if problem.layers != (784, 10) else OUR_SETS[:3])
    return []


def chosen(names: Sequence[str], usual: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Ours and the peers that take part, and those that are left out, with the reason. Raises
    ConfigError for unknown ones."""
    for name in names:
        if name not in SYSTEMS or name == OURS:
            raise unknown("peer", name, [s for s in SYSTEMS if s != OURS])
    wanted = list(dict.fromkeys(names or usual))
    absent = {name: reason for name in wanted if (reason := missing(name))}
    return (OURS, *(name for name in wanted if name not in absent)), absent


@dataclass
class Arrangement:
    """Contests to be held, those that were held before included, and the result so far. Of all
    that are asked for, the `part` (2, 3) is every third, from the second on, those that are slow to
    make first: so several GPUs share them."""

    kind: Kind
    asked: list[Problem]
    rules: Rules
    left_out: dict[str, str]
    earlier: ContestsResult | None = None
    contests: list[Contest] = field(default_factory=list)
    ended: str = ""
    interrupted: bool = False
    part: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        with open_device(self.rules.device, lambda message: None) as opened:
            self._environment: Environment = place_of(opened)
            self._watch = Watch.of(opened)
        if opened.device is None and self.rules.device not in ("host", "sim"):
            raise ConfigError(f"there is no GPU to compare on: {opened.machine.gpu}; --device host "
                              f"compares small networks on the host")
        if self.earlier:
            self._take_over(self.earlier)

    def _take_over(self, earlier: ContestsResult) -> None:
        """Keep the contests of a file. Raises ConfigError where they cannot stand beside new
        ones."""
        before, now = earlier.environment.gpu, self._environment.gpu
        same = (before or {}).get("name") == (now or {}).get("name")
        if earlier.run_steps != RUN_STEPS:
            raise ConfigError(f"the file to be resumed is of runs of {earlier.run_steps:,} steps, "
                              f"by which `best` decides, and these are of {RUN_STEPS:,}")
        if (earlier.kind, earlier.draw_version) != (self.kind, DRAW_VERSION) or not same or \
                earlier.systems != list(self.rules.systems):
            raise ConfigError(
                f"the file to be resumed is of {earlier.kind} (draw {earlier.draw_version}) with "
                f"{', '.join(earlier.systems)} on {(before or {'name': 'the host'})['name']}, and "
                f"this is {self.kind} (draw {DRAW_VERSION}) with {', '.join(self.rules.systems)} "
                f"on {(now or {'name': 'the host'})['name']}")
        known = {p.name: p for p in self.asked}
        for contest in earlier.contests:
            if known.get(contest.problem.name) != contest.problem:
                raise ConfigError(f"the file to be resumed has {contest.problem.name} "
                                  f"({contest.problem}), which is not asked for now")
        self.contests = list(earlier.contests)
        self._environment.libraries.update(earlier.environment.libraries)

    def result(self) -> ContestsResult:
        """What was found so far."""
        return ContestsResult(
            kind=self.kind, draw_version=DRAW_VERSION, run_steps=RUN_STEPS, asked=self.asked,
            rounds=self.rules.rounds,
            systems=list(self.rules.systems), left_out=self.left_out,
            environment=self._environment, timer=TIMER, contests=list(self.contests),
            ended=self.ended, interrupted=self.interrupted)

    def mine(self) -> list[Problem]:
        """Those of this part that are left. Those of a draw that take longest to be made ready are
        dealt to the parts first and begun first: one part had them all, and waited for the last."""
        number, count = self.part
        slow = thorough_of(self.asked) if self.kind == "random-peers" else set[str]()
        order = sorted(self.asked, key=lambda p: p.name not in slow)
        left = {p.name for p in self.result().left}
        return [p for p in order[number - 1::count] if p.name in left]

    def hold(self, budget: float, on_contest: Callable[[Contest], None],
             notify: Callable[[str], None]) -> ContestsResult:
        """Hold all contests that are left. Ctrl-C and the budget end them; `on_contest` hears each
        as soon as it is over."""
        begun, left = monotonic(), self.mine()
        self.ended = CUT_OFF  # which is what a file says whose process was killed
        try:
            for contest in run_contests(left, self.rules, self._watch, budget=budget, notify=notify,
                                        versions=self._environment.libraries.update):
                self.contests.append(contest)
                on_contest(contest)
            self.ended = f"the budget of {budget:.0f} s was spent" if self.mine() else ""
        except KeyboardInterrupt:
            self.ended = f"interrupted after {monotonic() - begun:.0f} s"
            self.interrupted = True
        return self.result()

