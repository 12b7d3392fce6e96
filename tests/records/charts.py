"""Every chart of results, as what it asks of matplotlib's axes: bars, lines, labels, ticks, limits.

A stand-in for the axes writes each call down, so that neither matplotlib's layout nor its fonts
play a part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rawnn.bench.render import charts as kinds
from rawnn.bench.render.charts import Axis, Chart, Line
from rawnn.bench.render.schedule_chart import choice_of, schedule_chart
from rawnn.bench.render.suites import SUITES
from rawnn.bench.render.timeline import timeline
from rawnn.bench.render.variation import WORDS, chart_of
from tests.bench.built import entry, results
from tests.records import Lines, outcome, record, short
from tests.records.tables import MANY, suites, uneven

VALUES = (0.5, 1.0, 20.0, 3000.0)
LIMITS = {"get_xlim": (0.5, 400.0), "get_ylim": (0.01, 9.0)}


class Axes:
    """Writes down what is called on it and on its parts."""

    def __init__(self, lines: list[str], name: str = "") -> None:
        self._lines, self._name = lines, name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in LIMITS:
            return lambda: LIMITS[name]
        return Axes(self._lines, f"{self._name}.{name}")

    def __call__(self, *values: Any, **named: Any) -> Axes:
        words = [*map(_text, values), *(f"{k}={_text(v)}" for k, v in named.items())]
        self._lines.append(f"{self._name.lstrip('.')}({', '.join(words)})")
        return Axes(self._lines, f"{self._name}()")

    def __iter__(self) -> Any:
        return iter((Axes(self._lines, f"{self._name}[0]"), Axes(self._lines, f"{self._name}[1]")))


def _text(value: Any) -> str:
    if isinstance(value, Axes):
        return value._name or "axes"
    if isinstance(value, str):
        return repr(value)
    if isinstance(value, np.ndarray):
        return _text(value.filled(-1).tolist() if np.ma.isMaskedArray(value) else value.tolist())
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, Sequence | range):
        return "[" + ", ".join(map(_text, value)) + "]"
    if callable(value) and not hasattr(value, "get_path"):
        if type(value).__module__.startswith("matplotlib"):
            return type(value).__name__
        return _texts_of(value)
    if hasattr(value, "get_bbox"):
        return (
            f"{type(value).__name__} {_text(value.get_bbox().bounds)} "
            f"{_text(list(value.get_facecolor()))} {_text(list(value.get_edgecolor()))}"
        )
    if hasattr(value, "get_label"):
        return (
            f"{type(value).__name__} {_text(value.get_label())} "
            f"{_text(list(value.get_facecolor()))}"
        )
    return short(value.item() if isinstance(value, np.generic) else value)


def _texts_of(formatter: Callable[..., str]) -> str:
    return "words " + " ".join(repr(formatter(value, 0)) for value in VALUES)


def drawn(name: str, chart: Chart) -> Lines:
    lines: list[str] = []
    axes: Any = Axes(lines)
    if chart.panels > 1:
        axes = [Axes(lines, f"panel {n + 1} ") for n in range(chart.panels)]
        axes = np.array(axes, object)
    chart.draw(axes)
    yield ""
    yield f"# {name}: {chart.title} / {chart.subtitle} / {short(chart.height)} inches high"
    yield from lines


@record
def charts() -> Lines:
    for suite, found in suites().items():
        if suite in SUITES:
            for name, chart in SUITES[suite].charts(found).items():
                yield from drawn(name, chart)
    for suite in SUITES:
        assert SUITES[suite].charts(results()) == {} or suite == "ladder"
    for suite in ("curves", "many", "peers", "sample", "scaling", "ladder"):
        for name, chart in SUITES[suite].charts(uneven(suites()[suite], 1)).items():
            yield from drawn(f"uneven {name}", chart)
    points = [(float(n), n * 2.0) for n in (1, 2, 4, 90)]
    several = [
        Line("a", points, "rawnn", "tf32"),
        Line("b" * 31, points[:2], "torch", "bf16"),
        Line("c", points[1:], "rawnn", "tf32"),
    ]
    x, y = Axis("x", "log2", ticks=(1, 2, 4)), Axis("y", "log", lambda v: f"<{v:g}>")
    yield from drawn("lines", kinds.lines("t", "s", several * 3, x, y))
    yield from drawn("plain lines", kinds.lines("t", "s", several, Axis("x"), y, marked=False))
    yield from drawn("scatter", kinds.scatter("t", "s", several, x, y, joined=True))
    yield from drawn("panels", kinds.panels("t", "s", {"p": several, "q": []}, x, y, diagonal=90.0))
    yield from drawn(
        "bars", kinds.bars("t", "s", ["m", "n"], {"u": [2.0, None], "v": [0.5, 3.0]}, "times")
    )
    yield f"colours {kinds.COLOURS} {kinds.LIGHT} {kinds.DARK}"

    for layers, batch, opt, gpu in (
        ((784, 128, 10), 64, "persistent=4x2", "H200"),
        ((60, 40, 30, 10), 96, "persistent", "A100"),
    ):
        chart = schedule_chart(choice_of(layers, batch, opt, gpu))
        yield from drawn("schedule", chart)
    ladder = results(
        *(
            entry(
                "ladder",
                name,
                {"step_us": [us], "epoch_ms": [us]},
                layers=[784, 8, 10],
                batch=2000,
                notes=[f"toggles: {toggles}"],
            )
            for name, us, toggles in TIMED
        )
    )
    for name in ("preload", "streams", "whole"):
        yield from drawn(f"timeline {name}", timeline(ladder, name))
    yield outcome(lambda: timeline(ladder, "baseline"))
    one = {**MANY, "settings": {"monitor": "test_accuracy", "varied": ["lr", "seed"]}}
    words = {**MANY, "settings": {"monitor": "train_loss", "varied": ["layers"]}}
    for name, found in (("map", MANY), ("one", one), ("words", words)):
        yield from drawn(f"variation {name}", chart_of(found))
    for name, values in (
        ("momentum", [0.8, 0.9, 0.95]), ("weight_decay", [0.0, 0.01, 1.0]),
        ("batch", [8, 79, 40]), ("eps", [0.5, 5.0, 1.0]),
    ):  # fmt: skip
        settings = {"monitor": "test_accuracy", "varied": [name]}
        of_one = {**MANY, "settings": settings, "table": {**MANY["table"], name: values * 4}}
        yield from drawn(f"variation {name}", chart_of(of_one))
    settings = {"monitor": "test_loss", "varied": ["beta1", "beta2", "seed"]}
    table = {**MANY["table"], "beta1": [n / 16 for n in range(12)], "beta2": [0.5, 0.75] * 6}
    yield from drawn("variation of many", chart_of({**MANY, "settings": settings, "table": table}))
    yield f"words of figures and options {WORDS}"
    yield outcome(
        lambda: chart_of({**MANY, "settings": {"monitor": "test_loss", "varied": ["seed"]}})
    )


TIMED = (
    ("baseline", 90.0, "none"),
    ("nosync", 80.0, "nosync"),
    ("preload", 40.0, "preload,arena,nosync"),
    ("fuse", 30.0, "preload,arena,nosync,fuse,mma"),
    ("graphs", 10.0, "preload,fuse,graphs=3"),
    ("streams", 8.0, "preload,fuse,mma,streams,graphs=epoch"),
    ("whole", 2.0, "persistent"),
)
