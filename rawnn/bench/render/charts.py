"""Charts in one style, light and dark: bars, ladders, lines, scatters.

They take plain numbers. matplotlib is imported only when one is drawn. A chart is drawn once, in
the colours of LIGHT; its SVG then takes those of a theme, or variables that follow the reader's
setting.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rawnn.bench.render.texts import factor, milliseconds
from rawnn.common.errors import ConfigError, MissingLibrary
from rawnn.common.files import write_atomically

LIGHT = {"paper": "#ffffff", "ink": "#1f2328", "muted": "#59636e", "grid": "#e6eaef",
         "blue": "#0969da", "orange": "#bf5600", "green": "#1a7f37", "purple": "#8250df",
         "grey": "#8c959f", "red": "#c21f2c", "bar": "#b6c2cf", "band": "#fdf0ef"}
DARK = {"paper": "#0d1117", "ink": "#f0f6fc", "muted": "#9aa4af", "grid": "#20262e",
        "blue": "#58a6ff", "orange": "#f0954a", "green": "#3fb950", "purple": "#bc8cff",
        "grey": "#6e7681", "red": "#ff8078", "bar": "#4a5561", "band": "#241517"}
COLOURS = {"rawnn": "blue", "torch": "orange", "jax": "green", "numpy": "grey"}
"""The colour of each system, in every chart; others are purple."""
CYCLE = ("blue", "orange", "green", "purple", "grey")
STYLES = {"float32": "-", "tf32": "--", "bf16": ":", "sr": "-."}
MARKS = {"float32": "o", "tf32": "s", "bf16": "^", "sr": "d"}
RATIO_TICKS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 20, 50, 100)
FEW_POINTS = 2
"""Marked points up to which a series has no line: what lies between them was not measured."""
WIDTH = 7.0
"""Inches. With it the smallest text, of SMALL points, is 7 px high on a phone of 400 px."""
SMALL, TEXT = 9.5, 10.5
LONG = 30
"""Characters of a label from which on it has a line of the legend to itself."""
WIDE = 1e5
"""The quotient of an axis's ends from which on its ticks are powers of ten."""


@dataclass(frozen=True)
class Line:
    """Points of one series; `system` and `precision` decide its colour, dashes and marks."""

    label: str
    points: Sequence[tuple[float, float]]
    system: str = ""
    precision: str = ""


@dataclass(frozen=True)
class Chart:
    """A title, one line below it (the GPU and the date: charts get shared alone), inches, and what
    draws its axes. `panels` axes stand side by side and share the vertical one."""

    title: str
    subtitle: str
    draw: Callable[[Any], None]
    height: float = 4.2
    panels: int = 1

    def svg(self, is_inline: bool = False) -> str:
        """One `<svg>` element, which follows the reader's setting by itself, or where inline takes
        the colours of the page that contains it. The same chart gives the same bytes."""
        text = self.encoded("svg").decode()
        text = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", text[text.index("<svg"):])
        text = re.sub(r'(?<= d=")[^"]*', lambda path: re.sub(r"(\.\d)\d+", r"\1", path[0]), text)
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
        head, rest = text.split(">", 1)
        for name, value in LIGHT.items():  # only styles can hold variables; matplotlib writes those
            rest = rest.replace(value, f"var(--{name})")
        style = "" if is_inline else f"<style>{VARIABLES}</style>"
        if is_inline:  # as wide as the page; the viewBox stays
            head = re.sub(r' (width|height)="[^"]*"', "", head)
        return (f'{head} role="img" aria-label="{_escaped(self.title)}" '
                f'data-matplotlib="{require_matplotlib().__version__}">{style}{rest}')

    def _repr_svg_(self) -> str:
        """What a notebook shows."""
        return self.svg()

    def encoded(self, ending: str) -> bytes:
        """The chart in light colours as a file of matplotlib's. Raises ConfigError for a format
        that it does not know, MissingLibrary."""
        matplotlib = require_matplotlib()
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine

        content = io.BytesIO()
        with matplotlib.rc_context(STYLE):
            figure = Figure(figsize=(WIDTH, self.height), layout=ConstrainedLayoutEngine(
                rect=(0, 0, 1, 1 - 0.5 / self.height)))
            axes = figure.subplots(1, self.panels, sharey=self.panels > 1)
            self.draw(axes)
            figure.text(0.01, 1 - 0.08 / self.height, self.title, fontsize=11.5, weight="bold",
                        va="top")
            figure.text(0.01, 1 - 0.32 / self.height, self.subtitle, fontsize=SMALL,
                        color=LIGHT["muted"], va="top")
            figure.savefig(content, format=ending, dpi=150,
                           metadata={"Date": None} if ending == "svg" else None)
        return content.getvalue()

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write it: SVG, or by its ending PNG or PDF. Raises ConfigError, RawnnError."""
        require_matplotlib(path)
        ending = _ending(path)
        try:
            content = self.svg().encode() + b"\n" if ending == "svg" else self.encoded(ending)
        except ValueError as error:
            raise ConfigError(f"cannot plot to {path}: {error}") from None
        write_atomically(path, content)


STYLE: dict[str, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "rawnn", "font.family": "sans-serif", "font.size": 11,
    "text.color": LIGHT["ink"], "axes.labelcolor": LIGHT["muted"], "xtick.color": LIGHT["muted"],
    "ytick.color": LIGHT["muted"], "axes.edgecolor": LIGHT["grid"], "grid.color": LIGHT["grid"],
    "figure.facecolor": LIGHT["paper"], "axes.facecolor": "none", "axes.axisbelow": True,
    "legend.frameon": False, "axes.spines.top": False, "axes.spines.right": False,
    "xtick.major.size": 0, "ytick.major.size": 0, "xtick.minor.size": 0, "ytick.minor.size": 0}


def _variables(colours: Mapping[str, str]) -> str:
    return ";".join(f"--{name}:{value}" for name, value in colours.items())


VARIABLES = (f"svg{{{_variables(LIGHT)}}}@media(prefers-color-scheme:dark){{svg{{"
             f"{_variables(DARK)}}}}}")
"""The colours of a chart that stands alone."""
PAGE_VARIABLES = VARIABLES.replace("svg{", ":root{")
"""The same for a page that contains charts."""


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")


def require_matplotlib(path: str | os.PathLike[str] | None = None) -> Any:
    """matplotlib, drawing without a display, and able to write a file with the ending of `path`.
    Raises MissingLibrary, and ConfigError for another ending."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingLibrary(
            f"charts need matplotlib, which cannot be imported ({error}): pip install matplotlib"
        ) from None
    matplotlib.use("Agg")
    if path is not None:
        from matplotlib.backend_bases import FigureCanvasBase

        if _ending(path) not in FigureCanvasBase.get_supported_filetypes():
            raise ConfigError(f"cannot plot to {path}: matplotlib writes no .{_ending(path)}; use "
                              f".svg, .png or .pdf")
    return matplotlib


def _ending(path: str | os.PathLike[str]) -> str:
    return Path(path).suffix.lstrip(".").lower() or "svg"


def colour(system: str) -> str:
    return LIGHT[COLOURS.get(system, "purple")]


# -- kinds of charts -------------------------------------------------------------------------------


def ladder(title: str, subtitle: str, rungs: Sequence[tuple[str, float, float, float]],
           unit: str) -> Chart:
    """Each rung's median as a bar from zero, with a whisker from the fastest to the slowest sample:
    (name, median, least, most). What it takes off the rung before is pale, what it adds is red.
    Raises ConfigError without rungs."""
    if not rungs:
        raise ConfigError("no rung was measured, so there is nothing to plot")

    def draw(axes: Any) -> None:
        first = before = rungs[0][1]
        for place, (_, median, least, most) in enumerate(rungs):
            axes.barh(place, min(before, median), color=LIGHT["blue" if place else "bar"],
                      height=0.62)
            axes.barh(place, abs(before - median), left=min(before, median), height=0.62,
                      color=LIGHT["bar" if median <= before else "red"],
                      alpha=0.45 if median <= before else 1.0)
            axes.errorbar(median, place, xerr=[[median - least], [most - median]], capsize=2.5,
                          color=LIGHT["ink"], linewidth=1)
            words = f"{milliseconds(median)} {unit}" + (
                f"  ({factor(first / median)}x)" if place else "")
            axes.annotate(words, (max(before, most), place), (6, 0), textcoords="offset points",
                          va="center", fontsize=TEXT)
            before = median
        axes.set_xlim(0, max(r[3] for r in rungs) * 1.15)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_yticks(range(len(rungs)), [r[0] for r in rungs])
        axes.invert_yaxis()
        axes.set_xlabel(f"{unit}: shorter is faster (brackets: speedup over the first)")
        axes.grid(axis="x")

    return Chart(title, subtitle, draw, 1.6 + 0.36 * len(rungs))


def bars(title: str, subtitle: str, names: Sequence[str],
         series: Mapping[str, Sequence[float | None]], label: str) -> Chart:
    """Speedups as grouped bars that begin at 1, on a log scale; None leaves a place empty."""

    def draw(axes: Any) -> None:
        axes.axvline(1, color=LIGHT["ink"], linewidth=1)
        step = 0.8 / len(series)
        for number, (name, values) in enumerate(series.items()):
            shift = step * (number - (len(series) - 1) / 2)
            known = [(place + shift, v) for place, v in enumerate(values) if v is not None]
            axes.barh([p for p, _ in known], [v - 1 for _, v in known], left=1,
                      height=0.9 * step, color=LIGHT[("grey", *CYCLE)[number]], label=name)
            for place, value in known:
                axes.annotate(f"{factor(value)}x", (max(1.0, value), place), (5, 0),
                              textcoords="offset points", va="center", fontsize=SMALL)
        axes.set_xscale("log")
        axes.set_xlim(right=2 * axes.get_xlim()[1])
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
        axes.xaxis.set_minor_formatter(lambda value, _: "")
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.set_xlabel(label)
        axes.grid(axis="x")
        axes.legend(loc="lower right", fontsize=SMALL)

    return Chart(title, subtitle, draw, 1.6 + 0.42 * len(names))


@dataclass(frozen=True)
class Axis:
    """What an axis is called, and how it is divided."""

    label: str
    scale: Literal["linear", "log", "log2"] = "linear"
    words: Callable[[float], str] = field(default=lambda value: f"{value:g}")
    ticks: Sequence[float] = ()


def lines(title: str, subtitle: str, series: Sequence[Line], x: Axis, y: Axis,
          marked: bool = True) -> Chart:
    """A line for each series."""

    def draw(axes: Any) -> None:
        _draw_lines(axes, series, marked)
        divide(axes, x, y)
        if is_crowded:  # below, where it covers no line
            axes.legend(loc="upper center", bbox_to_anchor=(0.45, -0.15), ncols=2, fontsize=SMALL)
        else:
            axes.legend(fontsize=SMALL)

    is_crowded = len(series) > 6
    return Chart(title, subtitle, draw, 5.6 if is_crowded else 4.2)


def panels(title: str, subtitle: str, parts: Mapping[str, Sequence[Line]], x: Axis, y: Axis,
           diagonal: float = 0.0) -> Chart:
    """The lines of each part in axes of their own, side by side, each with the legend of what it
    shows; with a dotted diagonal from 1 to `diagonal`. Two points are not joined: what lies between
    them was not measured."""

    def draw(several: Any) -> None:
        for axes, (name, series) in zip(several, parts.items(), strict=True):
            if diagonal:
                axes.plot([1, diagonal], [1, diagonal], ":", color=LIGHT["grey"])
            _draw_lines(axes, series, True)
            divide(axes, x, y)
            axes.set_title(name, loc="left", fontsize=11)
            if series:
                axes.legend(fontsize=SMALL)
        for axes in several[1:]:
            axes.set_ylabel("")

    return Chart(title, subtitle, draw, panels=len(parts))


def _draw_lines(axes: Any, series: Sequence[Line], marked: bool) -> None:
    used: dict[tuple[str, str], int] = {}
    for line in series:
        again = used.setdefault((line.system, line.precision), 0)
        used[line.system, line.precision] += 1
        joined = not marked or len(line.points) > FEW_POINTS
        axes.plot(*zip(*line.points, strict=True),
                  linestyle=STYLES.get(line.precision, "-") if joined else "None",
                  color=colour(line.system), zorder=3 if line.system == "rawnn" else 2,
                  marker=MARKS.get(line.precision, "o") if marked else "", markersize=4,
                  linewidth=1.5, alpha=max(0.9 - 0.25 * again, 0.3),
                  label=line.label)


def scatter(title: str, subtitle: str, series: Sequence[Line], x: Axis, y: Axis,
            joined: bool = False) -> Chart:
    """Ratios against a size, both on log scales, about a line at 1, below which is a band; the
    points of a series `joined` by a line or not."""

    def draw(axes: Any) -> None:
        values = [v for line in series for _, v in line.points]
        low, high = min([*values, 0.8]) / 1.15, max([*values, 1.25]) * 1.2
        axes.axhspan(low, 1, color=LIGHT["band"], linewidth=0, zorder=0)
        axes.axhline(1, color=LIGHT["ink"], linewidth=1.2)
        for line, mark, name in zip(series, MARKS.values(), CYCLE, strict=False):
            if line.points:
                axes.scatter(*zip(*line.points, strict=True), s=26, alpha=0.75, marker=mark,
                             color=LIGHT[name], linewidths=0, label=line.label)
                if joined and len(line.points) > FEW_POINTS:
                    axes.plot(*zip(*line.points, strict=True), color=LIGHT[name], linewidth=1.2)
        for words, way in (("rawnn faster", 1), ("rawnn slower", -1)):
            axes.annotate(words, (0, 1), (4, 5 * way), ("axes fraction", "data"), "offset points",
                          ha="left", va="bottom" if way > 0 else "top", fontsize=SMALL)
        divide(axes, x, y)
        axes.set_ylim(low, high)
        ticks = [t for t in RATIO_TICKS if low <= t <= high]
        axes.set_yticks(ticks, [f"{t:g}x" for t in ticks])
        axes.set_yticks([], minor=True)
        columns = 1 if max(len(line.label) for line in series) > LONG else 2
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, fontsize=SMALL)

    return Chart(title, subtitle, draw, 4.6)


def divide(axes: Any, x: Axis, y: Axis) -> None:
    """Scales, ticks and names of both axes."""
    from matplotlib.ticker import LogLocator, NullFormatter

    for name, axis in (("x", x), ("y", y)):
        getattr(axes, f"set_{name}label")(axis.label)
        where = getattr(axes, f"{name}axis")
        if axis.scale == "linear":
            where.set_major_formatter(_formatter(axis))
        else:
            base = 2 if axis.scale == "log2" else 10
            getattr(axes, f"set_{name}scale")("log", base=base)
            low, high = getattr(axes, f"get_{name}lim")()
            if base == 10 and high < 1000 * low:  # 1, 2 and 5 of each decade
                where.set_major_locator(LogLocator(subs=(1, 2, 5)))
            where.set_minor_formatter(_formatter(axis) if base == 10 and high < 4 * low
                                      else NullFormatter())
            if high < WIDE * low:  # beyond that matplotlib's powers of ten are read sooner
                where.set_major_formatter(_formatter(axis))
        if axis.ticks:
            getattr(axes, f"set_{name}ticks")(axis.ticks)
    axes.grid(which="major")


def _formatter(axis: Axis) -> Callable[[float, int], str]:
    return lambda value, _: axis.words(value)
