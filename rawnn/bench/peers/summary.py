"""What contests say together: how many times faster than the peers, by number class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import msgspec
import numpy as np

from rawnn.bench.columns import markdown_table
from rawnn.bench.footprint import x_floor
from rawnn.bench.peers.problem import draws
from rawnn.bench.peers.records import NUMBERS, OURS, Contest, ContestsResult, Entry
from rawnn.bench.statistics import ratio_interval
from rawnn.bench.table import times_text

CLASSES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "float32 against true float32": (("float32",), ("float32",)),
    "float32 against tf32": (("float32",), ("tf32",)),
    "tf32 against tf32": (("tf32",), ("tf32",)),
    "bf16 against bf16": (("bf16",), ("bf16",)),
    "fastest against fastest": (NUMBERS, NUMBERS),
}
"""A line of the summary -> our number classes and theirs. JAX takes tf32 for float32 unless it is
told otherwise, PyTorch with `set_float32_matmul_precision("high")`."""
THREE_FOR_ONE = "float32 against tf32"
"""The class in which ours makes three products of tf32 where theirs make one."""
RESAMPLES = 5000


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One class against one peer, or against the better of all. Ratios are their time over ours:
    above 1 we are faster. `mean` is geometric, with its bootstrap interval over the networks;
    `worst_of` names the network of the worst. `failures` are networks in which ours was refused,
    failed or wrong, `missing` those in which the peer has nothing right to compare with. A network
    for which a peer was not asked for the class (arrange.py, THOROUGH) has no ratio in it."""

    name: str
    against: str
    networks: int
    mean: float = math.nan
    low: float = math.nan
    high: float = math.nan
    median: float = math.nan
    worst: float = math.nan
    worst_of: str = ""
    faster: int = 0
    failures: int = 0
    missing: int = 0


def summary(result: ContestsResult) -> list[Line]:
    """All lines: each class against the better of the peers, and against each of them."""
    peers = tuple(s for s in result.systems if s != OURS)
    groups = [("the best peer", peers)] if len(peers) > 1 else []
    groups += [(peer, (peer,)) for peer in peers]
    held = {e.numbers for c in result.contests for e in c.entries}
    classes = {name: (ours, theirs) for name, (ours, theirs) in CLASSES.items()
               if held.intersection(ours) and held.intersection(theirs)}
    lines = []
    for name, (ours, theirs) in classes.items():
        lines += [_line(name, said, result.contests, ours, group, theirs) for said, group in groups]
        if name == THREE_FOR_ONE and any(map(tensor_bound, result.contests)):
            said, group = groups[0]
            lines += [_line(f"{name}, {word}", said, [c for c in result.contests
                                                      if tensor_bound(c) is bound], ours, group,
                            theirs) for word, bound in (("tensor-bound", True), ("others", False))]
    return lines


def tensor_bound(contest: Contest) -> bool:
    """Whether tensor cores are what a step waits for, so that three products for one are three
    times the work: by this GPU's limits (rawnn/bench/costing.py) products take longer than memory
    and than exchanges between multiprocessors, of which there are some, in tf32 as in float32, and
    in float32 three times as long. False where the limits are not known."""
    plain, coarse = (found.floor if (found := contest.footprint(n)) else None
                     for n in ("float32", "tf32"))
    return plain is not None and coarse is not None \
        and all(floor.by == "arithmetic" and floor.exchanges > 0 for floor in (plain, coarse)) \
        and math.isclose(plain.arithmetic_us, 3 * coarse.arithmetic_us, rel_tol=0.01)


def tensor_bound_line(result: ContestsResult) -> str:
    """Which networks are tensor-bound, and why they are shown apart; empty where none is."""
    found = [c.problem.name for c in result.contests if tensor_bound(c)]
    if not found:
        return ""
    return (f"tensor-bound ({', '.join(found)}): by this GPU's limits a step's products take "
            f"longer than memory and exchanges, even one product of tf32 for each; float32 as "
            f"three of them cannot be as fast there, so that these are shown apart as well")


def _line(name: str, against: str, contests: Sequence[Contest], ours: tuple[str, ...],
          peers: tuple[str, ...], theirs: tuple[str, ...]) -> Line:
    ratios: list[tuple[float, str]] = []
    failures = missing = 0
    for contest in contests:
        mine, other = contest.best((OURS,), ours), contest.best(peers, theirs)
        failures += mine is None
        if not contest.compared(peers, theirs):
            continue
        missing += mine is not None and other is None
        if mine and other:
            ratios.append((other.time / mine.time, contest.problem.name))
    if not ratios:
        return Line(name=name, against=against, networks=0, failures=failures, missing=missing)
    logs = np.log([r for r, _ in ratios])
    drawn = np.random.default_rng(0).choice(logs, (RESAMPLES, len(logs))).mean(axis=1)
    low, high = np.exp(np.quantile(drawn, [0.025, 0.975]))
    worst, worst_of = min(ratios)
    return Line(name=name, against=against, networks=len(ratios),
                mean=math.exp(float(logs.mean())), low=float(low), high=float(high),
                median=median(r for r, _ in ratios), worst=worst, worst_of=worst_of,
                faster=sum(r > 1 for r, _ in ratios), failures=failures, missing=missing)


def by_draw(result: ContestsResult) -> list[list[Line]]:
    """The summary of each draw, in their order."""
    of = [{p.name for p in draw} for draw in draws(result.asked)]
    return [summary(msgspec.structs.replace(
        result, contests=[c for c in result.contests if c.problem.name in names])) for names in of]


def draws_line(result: ContestsResult) -> str:
    """The draws, and each one's geometric mean in the classes: whether another would say the same.
    Empty where there is one only."""
    seeds = [f"{draw[0].seed}-{draw[-1].seed}" for draw in draws(result.asked)]
    if len(seeds) < 2:
        return ""
    means: dict[str, list[str]] = {}
    for lines in by_draw(result):
        for line in lines:
            if line.against == lines[0].against:
                means.setdefault(line.name, []).append(f"{line.mean:.2f}")
    parts = "; ".join(f"{name} {', '.join(each)}" for name, each in means.items())
    return f"geometric means of the draws (seeds {', '.join(seeds)}) by themselves: {parts}" \
        if parts else ""


def setups(result: ContestsResult) -> str:
    """What making a network's programs ready took each system, in a sentence: the compilation that
    no time a step covers. Medians over the networks, of the program that was fastest in the end and
    of all that were tried."""
    fastest, every = [], []
    for system in result.systems:
        best = [e.setup_s for c in result.contests if (e := c.best((system,), NUMBERS))]
        sums = [sum(e.setup_s for e in mine) for c in result.contests
                if (mine := [e for e in c.entries if e.system == system])]
        fastest += [f"{system} {median(best):.1f}"] if best else []
        every += [f"{system} {median(sums):.1f}"] if sums else []
    return (f"seconds until a network's fastest program was ready, several at a time on all cores, "
            f"in the median: {', '.join(fastest) or 'none was right'} (all that were tried: "
            f"{', '.join(every)})")


HEADINGS = ("class", "against", "geometric mean", "95 % interval", "median", "worst", "faster in",
            "failed")


def cells(line: Line) -> tuple[str, ...]:
    """The texts under HEADINGS."""
    failed = str(line.failures) + (f", {line.missing} of theirs" if line.missing else "")
    if not line.networks:
        return (line.name, line.against, *[""] * 5, failed)
    return (line.name, line.against, f"{line.mean:.2f} x", f"{line.low:.2f}-{line.high:.2f}",
            f"{line.median:.2f} x", f"{line.worst:.2f} x ({line.worst_of})",
            f"{line.faster} of {line.networks}", failed)


def network_line(contest: Contest) -> str:
    """A contest in one line: our time in each class beside the best peer's."""
    parts = []
    for numbers in NUMBERS:
        mine, other = contest.best((OURS,), (numbers,)), _best_peer(contest, numbers)
        if mine is None and other is None:
            continue
        parts.append(f"{numbers} {_time(mine)} | {_time(other)}"
                     + (f" {other.system}" if other else "") + _factor(mine, other))
    bad = [f"{e.system} {e.numbers} {e.form} {e.status}: {e.reason}" for e in contest.entries
           if e.status != "measured"]
    text = f"{contest.problem.name:>9}  {contest.problem}: {'; '.join(parts)}"
    return "\n".join([text, *(f"           {words}" for words in bad)])


def _best_peer(contest: Contest, numbers: str) -> Entry | None:
    """None, too, where not all were asked, so that nobody knows which is the best."""
    systems = tuple(sorted({e.system for e in contest.entries} - {OURS}))
    return contest.best(systems, (numbers,)) if contest.compared(systems, (numbers,)) else None


def _time(entry: Entry | None) -> str:
    return "-" if entry is None else f"{entry.time:.2f} us"


def _factor(mine: Entry | None, other: Entry | None) -> str:
    """How many times faster ours is, and whether noise may explain it."""
    if mine is None or other is None:
        return ""
    low, high = ratio_interval(other.us, mine.us)
    unsure = ", in the noise" if low <= 1 <= high else ""
    return f" ({times_text(other.time / mine.time)} x{unsure})"


def _floored(contest: Contest, mine: Entry | None) -> str:
    """How many times the least time ours takes."""
    times = x_floor(mine.time, contest.footprint(mine.numbers)) if mine else ""
    return f" ({times} x floor)" if times else ""


NETWORKS = "Microseconds a step; the peer's in brackets is how many times as long."
NETWORK_HEADINGS = ("network", *(f"{who} {n}" for n in NUMBERS for who in (OURS, "best peer")))


def network_rows(result: ContestsResult) -> list[list[str]]:
    """The texts under NETWORK_HEADINGS, a network a row."""
    made = []
    for contest in result.contests:
        apart = ", tensor-bound" if tensor_bound(contest) else ""
        row = [f"{contest.problem.name}: {contest.problem}{apart}"]
        for numbers in NUMBERS:
            mine, other = contest.best((OURS,), (numbers,)), _best_peer(contest, numbers)
            row += [_time(mine).removesuffix(" us") + _floored(contest, mine),
                    "-" if other is None else f"{other.time:.2f} {other.system}"
                    + _factor(mine, other)]
        made.append(row)
    return made


def markdown(result: ContestsResult) -> str:
    """The summary, every network, and what failed, with provenance."""
    lines = markdown_table(HEADINGS, [cells(line) for line in summary(result)], HEADINGS[:2])
    for each in filter(None, (tensor_bound_line(result), draws_line(result))):
        lines += ["", f"{each[0].upper()}{each[1:]}."]
    peers = [s for s in result.systems if s != OURS]
    lines += ["", NETWORKS, "", *markdown_table(NETWORK_HEADINGS, network_rows(result),
                                                NETWORK_HEADINGS[:1])]
    failed = [f"- {c.problem.name}: {e.system} {e.numbers} {e.form} {e.status}: {e.reason}"
              for c in result.contests for e in c.entries if e.status != "measured"]
    lines += ["", *(failed or ["Nothing failed, was refused or was wrong."]), ""]
    if not peers:
        lines += ["No peer was there.", ""]
    return "\n".join([*lines, f"{setups(result)}  ", provenance(result), ""])


def provenance(result: ContestsResult) -> str:
    """Where, when and with what it was measured."""
    env = result.environment
    machine = f"{env.gpu['name']}, driver {env.gpu['driver']}, CUDA {env.gpu['cuda']}" \
        if env.gpu else f"host ({env.platform})"
    versions = ", ".join(f"{name} {version}" for name, version in env.libraries.items())
    draw = f"draw {result.draw_version}, " if result.kind == "random-peers" else ""
    runs = f"`best` for runs of {result.run_steps:,} steps, "
    ended = f"; ended early: {result.ended}" if result.ended else ""
    return (f"{machine}; {versions}; {draw}{runs}{len(result.contests)} of {len(result.asked)} "
            f"contests, medians of samples in {result.rounds} turns each; {env.date}, commit "
            f"{env.commit or 'unknown'}{ended}")
