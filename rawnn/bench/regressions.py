"""Whether one results file is slower than another: `bench compare`.

Variants are paired, and what is at least `effect` slower, and not by the spread of the samples
alone, is flagged. Two runs of one program differ by more than their samples do (another place in
memory, clocks, what the host does besides), so that a flag is a suspicion: what is flagged is
measured again, with fresh runs of this rawnn on this machine, and only what is slower again is
called slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from rawnn.bench.harness import Harness, Sample, Variant, sample_of
from rawnn.bench.peers.ensemble import Ensemble
from rawnn.bench.peers.rawnn_many import Members
from rawnn.bench.peers.rawnn_system import Training
from rawnn.bench.peers.rawnn_system import dataset as dataset_of
from rawnn.bench.peers.system_comparison import problem_of
from rawnn.bench.peers.training_problem import Problem
from rawnn.bench.peers.worker import timed
from rawnn.bench.record import Entry, Results
from rawnn.bench.render.networks import OURS
from rawnn.bench.statistics import ENOUGH, Ratio, geometric_mean, ratio
from rawnn.bench.training import trained
from rawnn.common.errors import ConfigError, RawnnError
from rawnn.data import Dataset, load_dataset
from rawnn.engine.config import Config
from rawnn.engine.machine import Opened
from rawnn.engine.result import Environment
from rawnn.model.workloads import workload

EFFECT = 0.03
"""The smallest difference that counts, as a share of the time."""
TRAINED = ("ladder", "workloads", "toggles", "ablation")
"""Suites whose variants are training runs, timed by the epoch."""
COMPARED = ("sample", "many", "grid", "peers", "sweep")
"""Suites whose variants are programs of several systems, timed by the step."""

Verdict = Literal["slower", "flagged", "not repeated", "faster", "same", "noise", "lost", "new",
                  "not measured"]
MEANING: dict[Verdict, str] = {
    "slower": "slower by at least the smallest difference that counts, and again when it was "
              "measured once more",
    "flagged": "slower by at least that, and not measured again",
    "not repeated": "slower by at least that, but not when it was measured again",
    "faster": "faster by at least the smallest difference that counts",
    "same": "not further apart than that",
    "noise": "further apart than that, but no more than the samples of one side are",
    "lost": "measured in A, and B says why it could not run",
    "new": "only in B",
    "not measured": "in neither, or not reached in B",
}


@dataclass(frozen=True)
class Pair:
    """One variant in both files. Ratios are B over A, above 1 is slower; `again` is that of the
    fresh runs. `is_ours` says whether it is rawnn's, and not a peer's."""

    case: str
    variant: str
    precision: str
    verdict: Verdict
    is_ours: bool = True
    ratio: Ratio | None = None
    again: Ratio | None = None
    reason: str = ""
    entry: Entry | None = field(default=None, repr=False, compare=False)
    """Of A."""

    @property
    def name(self) -> str:
        return f"{self.case}, {self.variant}" + (f" ({self.precision})" if self.precision else "")


def pairs_of(a: Results, b: Results, effect: float = EFFECT) -> list[Pair]:
    """Every variant of two files with a first verdict. Raises ConfigError where they have no
    variant in common."""
    first, second = _timed_entries(a), _timed_entries(b)
    if not first.keys() & second.keys():
        raise ConfigError("the two files have no variant in common: " + (
            _other_conditions(first.values(), second.values())
            or f"A has {_some(first.values())}, B has {_some(second.values())}"))
    found = [_pair(mine, second.get(key), effect) for key, mine in first.items()]
    return found + [Pair(e.case, e.variant, e.precision,
                         "new" if _samples(e) else "not measured", _is_ours(e), reason=e.reason)
                    for key, e in second.items() if key not in first]


def _timed_entries(results: Results) -> dict[tuple[object, ...], Entry]:
    return {e.records[0].program: e for suite in (*TRAINED, *COMPARED)
            for e in results.entries(suite) if _metric(e)}


def _metric(entry: Entry) -> str:
    """What a variant is compared by; "" for one without a time, such as the reference."""
    found = "epoch_ms" if entry.suite in TRAINED else "step_us"
    return found if any(r.metric == found for r in entry.records) else ""


def _samples(entry: Entry) -> list[float]:
    return entry.samples(_metric(entry))


def _is_ours(entry: Entry) -> bool:
    return entry.conditions.get("system", OURS) == OURS


def _pair(mine: Entry, other: Entry | None, effect: float) -> Pair:
    pair = Pair(mine.case, mine.variant, mine.precision, "not measured", _is_ours(mine), entry=mine)
    if other is None:
        return replace(pair, reason="B does not have it")
    if _samples(mine) and _samples(other):
        found = ratio(_samples(other), _samples(mine))
        return replace(pair, ratio=found, reason=other.reason, verdict=judged(found, effect))
    if _samples(mine):
        return replace(pair, verdict="lost" if other.reason else "not measured",
                       reason=other.reason or "B did not come to it")
    return replace(pair, verdict="new" if _samples(other) else "not measured",
                   reason=other.reason)


def judged(found: Ratio, effect: float) -> Verdict:
    """What a ratio says before anything is measured again."""
    if 1 / (1 + effect) < found.value < 1 + effect:
        return "same"
    if found.is_noise:
        return "noise"
    return "flagged" if found.value > 1 else "faster"


def _other_conditions(a: Iterable[Entry], b: Iterable[Entry]) -> str:
    """How the conditions of the same variant differ, of the first that both have."""
    others = {(e.case, e.variant, e.precision): e.conditions for e in b}
    for mine in a:
        other = others.get((mine.case, mine.variant, mine.precision))
        if other is not None:
            said = [f"{name} {mine.conditions.get(name)} in A and {other.get(name)} in B"
                    for name in {**mine.conditions, **other}
                    if mine.conditions.get(name) != other.get(name)]
            return f"{mine.case} {mine.variant} has {', '.join(said)}"
    return ""


def _some(entries: Iterable[Entry]) -> str:
    names = [f"{e.case} {e.variant}" for e in entries]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") \
        or "none"


def notes_of(a: Results, b: Results) -> list[str]:
    """What makes two files hard to compare."""
    said = []
    for what, of in (("machines", lambda e: e.machine),
                     ("drivers", lambda e: (e.gpu or {}).get("driver", "none")),
                     ("clocks", lambda e: ", ".join(f"{k} {v}" for k, v in e.clocks.items())
                      or "not locked")):
        values = [", ".join(dict.fromkeys(of(e) for e in r.environments.values())) for r in (a, b)]
        if values[0] != values[1]:
            said.append(f"the {what} differ: A {values[0]}, B {values[1]}")
    return said


def overall(pairs: Iterable[Pair]) -> tuple[float, float, float] | None:
    """The geometric mean of all ratios, with its interval over the variants; None without any."""
    found = [p.ratio.value for p in pairs if p.ratio]
    return geometric_mean(found) if found else None


# -- measuring again -------------------------------------------------------------------------------


def measure_again(harness: Harness, pairs: list[Pair], b: Results, effect: float,
                  device: str) -> list[Pair]:
    """Measure what is flagged again, in turns, and say of each whether it repeats. Where this is
    not B's machine and commit, pairs stay flagged, and `notify` gets why."""
    flagged = [p for p in pairs if p.verdict == "flagged" and p.is_ours]
    if not flagged:
        return pairs
    try:
        opened = harness.open(device, {})
    except RawnnError as error:
        return _unrepeated(harness, pairs, str(error))
    if reason := elsewhere(harness.environment, b):
        return _unrepeated(harness, pairs, reason)
    variants = {p.name: _variant(p, opened, harness) for p in flagged}
    harness.ask(list(variants.values()))
    harness.interleave(list(variants.values()), ENOUGH, is_budgeted=False)
    harness.end()
    return [_again(p, variants.get(p.name), effect) for p in pairs]


def elsewhere(here: Environment, b: Results) -> str:
    """Why fresh runs here say nothing of B; "" where they do."""
    for place in b.environments.values():
        if (place.machine, place.commit) != (here.machine, here.commit):
            return (f"B was measured on {place.machine} at commit {place.commit[:7] or 'unknown'}, "
                    f"and this is {here.machine} at commit {here.commit[:7] or 'unknown'}")
    return ""


def _unrepeated(harness: Harness, pairs: list[Pair], reason: str) -> list[Pair]:
    harness.notify(f"what is flagged is not measured again: {reason}")
    return pairs


def _again(pair: Pair, variant: Variant | None, effect: float) -> Pair:
    if variant is None or pair.entry is None:
        return pair
    fresh = variant.samples.get(variant.metric, [])
    if not fresh:
        return replace(pair, reason=variant.reason or "it was not reached again")
    found = ratio(fresh, _samples(pair.entry))
    return replace(pair, again=found, verdict="slower" if judged(found, effect) == "flagged"
                   else "not repeated")


def _variant(pair: Pair, opened: Opened, harness: Harness) -> Variant:
    entry = pair.entry
    assert entry is not None
    take = _training(entry, opened, harness) if entry.suite in TRAINED else \
        _program(entry, opened, harness)
    return Variant(f"again/{entry.case}", entry.variant, entry.precision, _metric(entry),
                   entry.conditions, take)


def _training(entry: Entry, opened: Opened, harness: Harness) -> Callable[[int], Sample]:
    conditions: dict[str, Any] = dict(entry.conditions)
    name = str(conditions.pop("dataset", "mnist"))
    opt = entry.variant
    if entry.suite == "ladder":
        words = next((n.removeprefix("toggles: ") for n in entry.notes
                      if n.startswith("toggles: ")), "")
        opt = opt if opt == "best" else f"none,{words}"
        values = {k: v for k, v in conditions.items() if k in Config.known()}
    else:
        values = {**workload(entry.case.partition("/")[2]), "epochs": conditions["epochs"]}
    first = int(values.pop("seed", 0))
    config = Config(**{**values, "opt": opt, "dataset": name,
                       "device": "host" if opened.device is None else "auto"})
    data: list[Dataset] = []

    def take(number: int) -> Sample:
        if not data:
            data.append(load_dataset(name, notify=harness.notify, stand_in=True))
        return trained(replace(config, seed=first + number), data[0], opened, harness.watch)

    return take


def _program(entry: Entry, opened: Opened, harness: Harness) -> Callable[[int], Sample]:
    problem = problem_of(entry)
    form, device = str(entry.conditions["form"]), "gpu" if opened.device else "host"
    return partial(_timed, problem, form, device, opened, harness)


def _timed(problem: Problem, form: str, device: str, opened: Opened, harness: Harness,
           number: int) -> Sample:
    with ExitStack() as closing:
        program: Training | Members
        if isinstance(problem, Ensemble):
            program = Members(problem, form, device, opened)
            closing.callback(program.close)
        else:
            program = Training(problem.config(form, device), dataset_of(problem), opened)
            closing.enter_context(program.session)
        with harness.watch.during() as observed:
            found = timed(program)
    return sample_of(found, problem.steps, observed)
