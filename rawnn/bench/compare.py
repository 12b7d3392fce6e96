"""Whether one results file is slower than another, set by set.

Series are paired by suite and set. What a pair says is the ratio of its medians, B over A, so above
1 is slower; what noise alone could do, rawnn.bench.noise says. A difference counts if it is
significant and at least as large as the smallest effect that counts. The peers' series are judged
by themselves: they are not ours, and cannot be a regression of ours, but tell two machines, or two
states of one, apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from rawnn.bench.noise import Apart, judged, kinds_of, overall
from rawnn.bench.series import Series, SeriesFile
from rawnn.common.errors import ConfigError

EFFECT = 0.03
"""The smallest effect that counts, as a share of the time."""
LEVEL = 0.05
"""The chance of one false alarm in a whole comparison."""

Verdict = Literal["slower", "faster", "same", "noise", "lost", "new", "not measured"]
MEANING: dict[str, str] = {
    "slower": "significantly slower, by at least the smallest effect that counts",
    "faster": "significantly faster, by at least the smallest effect that counts",
    "same": "not further apart than the smallest effect that counts",
    "noise": "further apart than that, but not significantly: measure more often",
    "lost": "measured in A, but not any more in B",
    "new": "only in B",
    "not measured": "in neither, or not reached in B",
}


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """One set in both files: `ratio` is the median of B over that of A, `low` and `high` its 95 %
    interval, `p` the chance of such a difference without a cause, adjusted for all pairs. `ours`
    says whether it is rawnn's, and not a peer's."""

    suite: str
    set: str
    verdict: Verdict
    ours: bool = True
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    runs: tuple[int, int] = (0, 0)
    reason: str = ""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All pairs of two files. `overall` is the geometric mean of our ratios, with its interval
    over the pairs, None without any, `overall_peers` that of the peers'. `between` is by how much
    (a standard deviation, as a share of the time) sets differ between the files beyond what their
    repetitions explain, by a name for the sets."""

    a: str
    b: str
    effect: float
    level: float
    notes: list[str]
    pairs: list[Pair]
    overall: tuple[float, float, float] | None
    overall_peers: tuple[float, float, float] | None = None
    between: dict[str, float] = {}

    @property
    def ours(self) -> list[Pair]:
        return [pair for pair in self.pairs if pair.ours]

    @property
    def peers(self) -> list[Pair]:
        return [pair for pair in self.pairs if not pair.ours]

    @property
    def regressions(self) -> list[Pair]:
        """What makes B worse than A."""
        return [pair for pair in self.ours if pair.verdict in ("slower", "lost")]


def compare(a: SeriesFile, b: SeriesFile, effect: float = EFFECT, level: float = LEVEL,
            seed: int = 0) -> Comparison:
    """Compare two files. Raises ConfigError where they have no set in common."""
    first, second = ({(s.suite, s.set): s for s in file.series} for file in (a, b))
    both = [key for key in first if key in second]
    if not both:
        raise ConfigError(f"{a.path} and {b.path} have no set in common: A has "
                          f"{_some(a.series)}, B has {_some(b.series)}")
    found: dict[tuple[str, str], Apart] = {}
    between: dict[str, float] = {}
    for ours, what in ((True, ""), (False, "the peers' ")):
        timed = [key for key in both if first[key].times and second[key].times
                 and first[key].ours is ours]
        by_host = [first[key].host or second[key].host for key in timed]
        apart, more = judged([(first[key].times, second[key].times) for key in timed],
                             kinds_of([suite for suite, _ in timed], by_host, what), by_host,
                             level, seed)
        found |= zip(timed, apart, strict=True)
        between |= more
    pairs = [judged_pair(first[key], second.get(key), found.get(key), effect, level)
             for key in first]
    pairs += [Pair(suite=s.suite, set=s.set, verdict="new" if s.times else "not measured",
                   ours=s.ours, runs=(0, len(s.times)), reason=s.reason)
              for key, s in second.items() if key not in first]
    means = [overall([p.ratio for p in pairs if p.ratio and p.ours is ours], seed)
             for ours in (True, False)]
    return Comparison(a=a.path, b=b.path, effect=effect, level=level, notes=_notes(a, b),
                      pairs=pairs, overall=means[0], overall_peers=means[1], between=between)


def judged_pair(mine: Series, other: Series | None, apart: Apart | None, effect: float,
                level: float) -> Pair:
    """A pair with what was found out about it. A set that B does not have at all was not asked of
    it, and one without times and a reason was not reached; one that B could not run is lost."""
    runs = (len(mine.times), len(other.times) if other else 0)
    if apart is not None and other is not None:
        return Pair(suite=mine.suite, set=mine.set, ours=mine.ours, runs=runs, p=apart.p,
                    ratio=math.exp(apart.difference), low=math.exp(apart.low),
                    high=math.exp(apart.high), reason=other.reason,
                    verdict=_verdict(apart.difference, apart.p, effect, level))
    lost = bool(mine.times) and other is not None and bool(other.reason)
    new = not mine.times and other is not None and bool(other.times)
    return Pair(suite=mine.suite, set=mine.set, ours=mine.ours, runs=runs,
                verdict="lost" if lost else "new" if new else "not measured",
                reason="B does not have it" if other is None else
                other.reason or ("B did not come to it" if mine.times and not new else ""))


def _verdict(difference: float, p: float, effect: float, level: float) -> Verdict:
    if abs(difference) < math.log1p(effect):
        return "same"
    if p > level:
        return "noise"
    return "slower" if difference > 0 else "faster"


def _notes(a: SeriesFile, b: SeriesFile) -> list[str]:
    """What makes the two files hard to compare."""
    notes = []
    if a.machine != b.machine:
        notes.append(f"the machines differ: A {a.machine}, B {b.machine}")
    if a.dataset != b.dataset:
        notes.append(f"the data differ: A {a.dataset}, B {b.dataset}")
    if a.environment.clocks != b.environment.clocks:
        notes.append(f"the locked clocks differ: A {a.environment.clocks or 'none'}, "
                     f"B {b.environment.clocks or 'none'}")
    short = [s for file in (a, b) for s in file.series if len(s.times) == 1]
    if short:
        notes.append(f"{len(short)} series have one run only, whose noise is taken from others, "
                     f"or from what is usual where those are few")
    if any(s.summarised for file in (a, b) for s in file.series):
        notes.append("a file keeps only medians and spreads; runs are restored from them")
    return notes


def _some(series: Sequence[Series]) -> str:
    words = [f"{s.suite}: {s.set}" for s in series]
    return ", ".join(words[:3]) + (f" and {len(words) - 3} more" if len(words) > 3 else "")
