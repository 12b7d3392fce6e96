"""Figures of the report, as SVG text that takes the page's colours. matplotlib is imported only
when one is drawn."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rawnn.bench.ablation import ablated_in, factors
from rawnn.bench.curves import Curve, CurvesResult
from rawnn.bench.peers.records import OURS, Contest, ContestsResult
from rawnn.bench.peers.summary import CLASSES, summary
from rawnn.bench.plot import require_matplotlib
from rawnn.bench.records import LadderResult
from rawnn.bench.sets import SetsResult
from rawnn.bench.table import milliseconds, rows, times_text

INK = "#123456"
"""Drawn in this, which becomes the page's own text colour."""
COLOURS = {"rawnn": "#d9534f", "torch": "#e08e0b", "jax": "#3b82c4", "numpy": "#7a8a99"}
OTHER = "#8a63b8"
CLASS_COLOURS = ("#3b82c4", "#d9534f", OTHER, "#e08e0b", "#7a8a99")
STYLES = {"float32": "-", "tf32": "--", "bf16": ":", "sr": "-."}
MARKS = {"float32": "o", "tf32": "s", "bf16": "^", "sr": "d"}
RATIO_TICKS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 20, 50, 100)
PAGE = ("svg { color: #1f2328; background: #ffffff } @media (prefers-color-scheme: dark) "
        "{ svg { color: #e6edf3; background: #0d1117 } }")
"""Colours of a figure that stands alone, whatever the page that shows it as an image."""


def _svg(size: tuple[float, float], draw: Callable[[Any], None], title: str) -> str:
    """A figure as one <svg> element without a background."""
    matplotlib = require_matplotlib()
    from matplotlib.figure import Figure

    with matplotlib.rc_context({
            "svg.fonttype": "none", "svg.hashsalt": "rawnn", "font.family": "sans-serif",
            "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
            "axes.edgecolor": INK, "grid.color": INK, "grid.alpha": 0.18, "axes.axisbelow": True,
            "legend.frameon": False, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure.add_subplot())
        content = io.BytesIO()
        figure.savefig(content, format="svg", transparent=True, metadata={"Date": None})
    text = content.getvalue().decode()
    text = text[text.index("<svg"):].replace(INK, "currentColor")
    head, rest = text.split(">", 1)
    head = re.sub(r' (width|height)="[^"]*"', "", head)  # as wide as the page; the viewBox stays
    return f'{head} role="img" aria-label="{title}">{rest}'


def standalone(figure: str) -> str:
    """A figure as a file of its own, which brings the background that its ink is legible on."""
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', figure)
    assert found is not None
    head, rest = figure.split(">", 1)
    return (f'{head} width="{found[1]}pt" height="{found[2]}pt"><style>{PAGE}</style>{rest}')


def _plain_ticks(axes: Any, words: Callable[[float, int], str]) -> None:
    """A logarithmic axis with numbers that are read at once: 1, 2 and 5 of each decade, and every
    step of one where there is less than a decade to show."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(words)
    axes.yaxis.set_minor_formatter(words if high < 4 * low else NullFormatter())


def ladder_figure(ladder: LadderResult) -> str:
    """A waterfall: each rung's epoch as a bar from the rung before it."""
    measured = [row for row in rows(ladder) if row.rung.average_epoch_ms]

    def draw(axes: Any) -> None:
        before = None
        for place, row in enumerate(measured):
            epoch = row.rung.average_epoch_ms
            assert epoch is not None
            start = epoch.median if before is None else before
            faster = epoch.median <= start
            axes.barh(place, min(start, epoch.median), color=COLOURS["jax"], height=0.62)
            axes.barh(place, abs(start - epoch.median), left=min(start, epoch.median),
                      color=COLOURS["jax"] if faster else COLOURS["rawnn"],
                      alpha=0.25 if faster else 1.0, height=0.62)
            factor = f"  {times_text(row.factor)} x" if row.factor else ""
            axes.annotate(f"{milliseconds(epoch.median)} ms{factor}",
                          (max(start, epoch.median), place), xytext=(5, 0),
                          textcoords="offset points", va="center", fontsize=9)
            before = epoch.median
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        axes.set_xlim(low / 1.5, high * 3)
        axes.set_yticks(range(len(measured)), [r.rung.name for r in measured])
        axes.invert_yaxis()
        axes.set_xlabel("milliseconds an epoch, log scale; pale: taken off (red: added)")
        axes.grid(axis="x")

    return _svg((8, 1.2 + 0.36 * len(measured)), draw, "The ladder of optimizations")


def ablation_figure(result: SetsResult) -> str:
    """What each toggle is worth alone and in the fastest set, as bars from 1 on."""
    toggles = ablated_in(result)
    several = len({t.workload for t in toggles}) > 1

    def draw(axes: Any) -> None:
        axes.axvline(1, color=INK, linewidth=1)
        for way, (label, colour) in enumerate((("alone", COLOURS["numpy"]),
                                               ("in the fastest set", COLOURS["jax"]))):
            for place, toggle in enumerate(toggles):
                factor = factors(toggle, result)[way]
                if factor is None:
                    continue
                axes.barh(place - 0.2 + 0.4 * way, factor - 1, left=1, height=0.36, color=colour,
                          label=label)
                axes.annotate(f"{times_text(factor)} x", (max(1.0, factor),
                                                          place - 0.2 + 0.4 * way),
                              xytext=(5, 0), textcoords="offset points", va="center", fontsize=8)
        axes.set_xscale("log")
        axes.set_xlim(right=2 * axes.get_xlim()[1])
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g} x")
        axes.xaxis.set_minor_formatter(lambda value, _: "")
        axes.set_yticks(range(len(toggles)), [
            f"{t.workload} {t.toggle}" if several else t.toggle for t in toggles])
        axes.invert_yaxis()
        axes.set_xlabel("times faster with the toggle, log scale")
        axes.grid(axis="x")
        shown = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        axes.legend(shown.values(), shown.keys(), loc="lower right", fontsize=8)

    return _svg((8, 1.2 + 0.42 * len(toggles)), draw, "What each toggle is worth")


LIKE_WITH_LIKE = ("float32 against true float32", "tf32 against tf32", "bf16 against bf16")


def random_figure(result: ContestsResult, names: Sequence[str] = LIKE_WITH_LIKE) -> str:
    """How many times faster ours is than the best peer, against the size of the network, in the
    classes `names` of the summary."""
    peers = tuple(s for s in result.systems if s != OURS)
    means = {line.name: line.mean for line in reversed(summary(result))}

    def draw(axes: Any) -> None:
        axes.axhline(1, color=INK, linewidth=1)
        for name, mark, colour in zip(names, MARKS.values(), CLASS_COLOURS, strict=False):
            ours, theirs = CLASSES[name]
            points = []
            for contest in result.contests:
                mine, other = contest.best((OURS,), ours), contest.best(peers, theirs)
                if mine and other and contest.compared(peers, theirs):
                    points.append((contest.problem.flops / 2, other.time / mine.time))
            if points:
                axes.scatter(*zip(*points, strict=True), s=30, alpha=0.85, marker=mark,
                             color=colour, linewidths=0,
                             label=f"{name}: geometric mean {means[name]:.2f} x")
        for words, way in (("rawnn faster", 1), ("rawnn slower", -1)):
            axes.annotate(words, (1, 1), (-2, 5 * way), ("axes fraction", "data"), "offset points",
                          ha="right", va="bottom" if way > 0 else "top", fontsize=8)
        axes.set_xscale("log")
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        ticks = [t for t in RATIO_TICKS if low <= t <= high]
        axes.set_yticks(ticks, [f"{t:g} x" for t in ticks])
        axes.set_yticks([], minor=True)
        axes.set_xlabel("multiply-adds of a step's matrix products")
        axes.set_ylabel("the best peer's time over ours")
        axes.grid(which="major")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=min(2, len(names)), fontsize=9)

    return _svg((8, 4.2), draw, "Ratio of times against the size of the network")


def sweep_figure(name: str, contests: Sequence[Contest]) -> str:
    """Time a step against width, or batch: the fastest form of each system and number class."""
    widths = len({c.problem.layers for c in contests}) > 1

    def draw(axes: Any) -> None:
        series: dict[tuple[str, str], list[tuple[int, float]]] = {}
        for contest in contests:
            for system, numbers in {(e.system, e.numbers) for e in contest.entries}:
                best = contest.best((system,), (numbers,))
                if best:
                    x = max(contest.problem.layers[1:-1], default=0) if widths \
                        else contest.problem.batch
                    series.setdefault((system, numbers), []).append((x, best.time))
        for (system, numbers), points in sorted(series.items()):
            axes.plot(*zip(*sorted(points), strict=True), STYLES.get(numbers, "-"),
                      color=COLOURS.get(system, OTHER), marker=MARKS.get(numbers, "o"),
                      markersize=4, linewidth=1.6, label=f"{system} {numbers}")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        _plain_ticks(axes, lambda value, _: f"{value:g}")
        axes.set_xlabel("width of the hidden layers" if widths else "batch")
        axes.set_ylabel("microseconds a step")
        axes.grid()
        axes.legend(ncols=2, fontsize=8)

    return _svg((8, 4.4), draw, f"Time a step, sweep {name}")


def sizes_figure(result: CurvesResult, throughput: bool) -> str:
    """Over the size of the networks: examples a second, or the loss behind as many steps; the
    fastest form of each system and number class, which is the one whose loss is drawn, too."""
    best: dict[tuple[str, str, str], tuple[float, Curve]] = {}
    for curve in result.curves:
        key = curve.workload, curve.system, curve.numbers
        if curve.us and (key not in best or np.median(curve.us) < best[key][0]):
            best[key] = float(np.median(curve.us)), curve
    series: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for problem in result.problems:
        for (workload, system, numbers), (us, curve) in best.items():
            y = problem.batch / us * 1e6 if throughput else curve.last
            if workload == problem.name and y:
                series.setdefault((system, numbers), []).append((problem.weights, y))

    def draw(axes: Any) -> None:
        for (system, numbers), points in sorted(series.items()):
            axes.plot(*zip(*sorted(points), strict=True), STYLES.get(numbers, "-"),
                      color=COLOURS.get(system, OTHER), marker=MARKS.get(numbers, "o"),
                      markersize=4, linewidth=1.4, alpha=0.85, label=f"{system} {numbers}")
        axes.set_xscale("log")
        _plain_ticks(axes, lambda value, _: f"{value / 1e6:g} M" if throughput else f"{value:g}")
        axes.set_xlabel("weights of the network")
        axes.set_ylabel("examples a second" if throughput else "loss at the end of the curves")
        axes.grid()
        axes.legend(ncols=2, fontsize=8)

    what = "Examples a second" if throughput else "Loss"
    return _svg((8, 3.8), draw, f"{what} over the size of the network")


def curves_figure(workload: str, result: CurvesResult) -> str:
    """The losses of one workload, each system and number class a line."""

    def draw(axes: Any) -> None:
        for curve in result.curves:
            if curve.workload != workload or not curve.losses:
                continue
            losses = np.array([np.nan if v is None else v for v in curve.losses])
            window = max(1, len(losses) // 100)
            whole = losses[:len(losses) // window * window].reshape(-1, window).mean(axis=1)
            axes.plot(np.arange(len(whole)) * window, whole, STYLES.get(curve.numbers, "-"),
                      color=COLOURS.get(curve.system, OTHER), linewidth=1.3, alpha=0.8,
                      label=f"{curve.system} {curve.numbers}, {curve.form}")
        _plain_ticks(axes, lambda value, _: f"{value:.4g}")
        axes.set_title(workload, loc="left", fontsize=11)
        axes.set_xlabel("step")
        axes.set_ylabel("loss")
        axes.grid()
        axes.legend(fontsize=7)

    return _svg((8, 3.6), draw, f"Loss curves of {workload}")
