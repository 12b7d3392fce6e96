"""`rawnn bench compare`: whether one results file is slower than another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import click
import msgspec

from rawnn.bench.compare import EFFECT, LEVEL, MEANING, Comparison, Pair
from rawnn.bench.compare import compare as compared
from rawnn.bench.series import read_series
from rawnn.cli.screen import sentences, table_console, working
from rawnn.cli.tables import print_table
from rawnn.common.errors import RawnnError
from rawnn.common.files import check_output, write_atomically
from rawnn.common.words import counted

HEADINGS = ("suite", "set", "B / A", "95 % interval", "p", "runs", "verdict")


@click.command()
@click.argument("a", metavar="A.json|DIRECTORY")
@click.argument("b", metavar="B.json|DIRECTORY")
@click.option("--effect", type=click.FloatRange(0, 1), default=EFFECT, show_default=True,
              help="The smallest difference that counts, as a share of the time.")
@click.option("--level", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=LEVEL,
              show_default=True, help="The chance of one false alarm among all sets.")
@click.option("--all", "everything", is_flag=True, help="Show sets that did not change, too.")
@click.option("--json", "json_file", metavar="FILE", help="Keep the comparison as JSON.")
def compare(a: str, b: str, effect: float, level: float, everything: bool,
            json_file: str | None) -> None:
    """Compare two results files of `bench`, set by set: is B slower than A? Or all files of two
    directories, as `bench all` writes them.

    Exits with 1 if a set of rawnn's is significantly slower, by at least the smallest difference
    that counts, or could not be run any more. The peers' are compared apart.
    """
    check_output("--json", json_file)
    with working("comparing"):
        found = compared(read_series(a), read_series(b), effect, level)
    if json_file:
        write_atomically(json_file, msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    _show(found, everything)
    if found.regressions:
        raise RawnnError(f"{len(found.regressions)} of {len(found.ours)} sets are worse in "
                         f"{b} than in {a}: {_named(found.regressions)}")


def _named(pairs: Sequence[Pair]) -> str:
    """The first sets, for a sentence."""
    words = [f"{p.suite}, {p.set}" for p in pairs[:3]]
    more = f" and {len(pairs) - 3} more" if len(pairs) > 3 else ""
    return "; ".join(words) + more


def _show(found: Comparison, everything: bool) -> None:
    console = table_console()
    _table(found.ours, everything, f"A = {found.a}, B = {found.b}")
    for line in said(found.ours, found.overall, "all sets together"):
        console.print(line, markup=False)
    judged = [p for p in found.pairs if p.p is not None]
    console.print(f"the smallest difference that counts is {found.effect:.0%}; p-values are "
                  f"adjusted for {counted(sum(p.ours for p in judged), 'set')} (Holm)",
                  markup=False)
    if found.peers:
        _table(found.peers, everything, "The peers, judged by themselves: no regression of ours")
        for line in said(found.peers, found.overall_peers, "all of the peers' sets together"):
            console.print(line, markup=False)
    if found.between:
        shares = sorted(found.between.items(), key=lambda pair: -pair[1])
        sentences(console, [
            "- beyond what repetitions explain the two differ, and intervals and p-values allow "
            "for it (one standard deviation): "
            + ", ".join(f"{what} {share:.1%}" for what, share in shares)])
    for note in found.notes:
        console.print(f"- {note}", markup=False)


def _table(pairs: Sequence[Pair], everything: bool, title: str) -> None:
    shown = [p for p in pairs if everything or p.verdict not in ("same", "not measured")]
    if shown:
        print_table(HEADINGS, [cells(pair) for pair in shown], title)


def said(pairs: Sequence[Pair], overall: tuple[float, float, float] | None, what: str
         ) -> list[str]:
    """How many pairs have which verdict, and their mean ratio."""
    counts: Counter[str] = Counter(p.verdict for p in pairs)
    lines = [f"{counts[verdict]} {verdict}: {meaning}" for verdict, meaning in MEANING.items()
             if counts[verdict]]
    if overall:
        lines.append("{}: B / A = {:.3f} [{:.3f}, {:.3f}] (geometric mean; interval over the sets)"
                     .format(what, *overall))
    return lines


def cells(pair: Pair) -> tuple[str, ...]:
    """The texts under HEADINGS."""
    runs = f"{pair.runs[0]} | {pair.runs[1]}"
    if pair.ratio is None:
        return (pair.suite, pair.set, "", "", "", runs,
                f"{pair.verdict}: {pair.reason}" if pair.reason else pair.verdict)
    return (pair.suite, pair.set, f"{pair.ratio:.3f}", f"{pair.low:.3f} - {pair.high:.3f}",
            f"{pair.p:.2g}", runs, pair.verdict)
