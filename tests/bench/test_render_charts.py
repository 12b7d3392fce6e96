"""Charts: one style, light and dark, the same bytes from the same records."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from rawnn.bench.record import Results
from rawnn.bench.render.charts import DARK, LIGHT, Axis, Chart, Line, lines
from rawnn.bench.render.suites import SUITES, plot_ladder
from rawnn.common.errors import ConfigError
from tests import requires
from tests.bench.built import entry, programs, results, rung

requires.module("matplotlib")

LADDER = results(rung("baseline", 20.0, 22.0), rung("fuse", 10.0), rung("cudnn", 12.0))
TIMES = {("rawnn", "float32"): 10.0, ("torch", "tf32"): 30.0, ("jax", "tf32"): 5.0}


def charts() -> dict[str, Chart]:
    sweep = results(*(programs(f"sweep/width {n}", TIMES, layers=(16, n, 8)) for n in (64, 128)))
    curves = results(*(entry(
        f"curves/{name}", "rawnn best", {"loss": [2.0, 1.0, 0.5], "step_us": [5.0]}, system="rawnn",
        form="best", layers=layers, batch=32) for name, layers in
        (("linear", [784, 10]), ("wide", [784, 64, 10]))))
    scaling = results(*(entry("scaling/mlp4", "rawnn", {"step_us": [us]}, ranks=n, batch=64,
                              scaling=kind, epochs=8) for kind in ("strong", "weak")
                        for n, us in ((1, 100.0), (2, 60.0))))
    ablation = results(*(entry("ablation/linear", opt, {"epoch_ms": [ms]}, epochs=6, base="a",
                               full="best") for opt, ms in
                         (("a", 30.0), ("best", 5.0), ("a,fuse", 9.0), ("best,-fuse", 20.0))))
    found: dict[str, Chart] = {}
    for suite, several in (("ladder", LADDER), ("sweep", sweep), ("curves", curves),
                           ("scaling", scaling), ("ablation", ablation),
                           ("sample", results(programs("sample/1", TIMES)))):
        found |= SUITES[suite].charts(several)
    return found


CHARTS = charts()


def test_every_kind_of_chart_is_drawn() -> None:
    assert set(CHARTS) == {"ladder", "sweep-width", "curves-linear", "curves-wide",
                           "curves-by-size-speed", "curves-by-size-loss", "scaling",
                           "ablation", "sample"}


def texts(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_is_the_same_each_time_and_well_formed(name: str) -> None:
    svg = CHARTS[name].svg()
    assert svg == CHARTS[name].svg()
    ElementTree.fromstring(svg)
    found = texts(svg)
    assert any("Test GPU" in text and "2026-01-01" in text for text in found)  # it is shared alone


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_has_the_colours_of_the_page_or_of_both_settings(name: str) -> None:
    chart = CHARTS[name]
    alone, inline = chart.svg(), chart.svg(is_inline=True)
    assert texts(alone) == texts(inline)
    assert "var(--ink)" in inline
    assert "prefers-color-scheme" in alone
    assert LIGHT["ink"] in alone
    assert DARK["ink"] in alone
    assert not set(re.findall(r"#[0-9a-f]{6}", inline))


def test_a_ladder_shows_each_rung_and_what_is_slower() -> None:
    svg = CHARTS["ladder"].svg(is_inline=True)
    assert {"baseline", "fuse", "cudnn", "10.0 ms  (2.10x)"} <= set(texts(svg))
    assert "var(--red)" in svg  # cudnn is slower than fuse
    assert "var(--red)" not in SUITES["ladder"].charts(
        results(rung("a", 2.0), rung("b", 1.0)))["ladder"].svg(is_inline=True)


@pytest.mark.parametrize(("name", "wanted"), [
    ("curves-by-size-speed", 32 / 5e-6),  # a batch of 32 in 5 us
    ("curves-by-size-loss", (2.0 + 1.0 + 0.5) / 3)], ids=["speed", "loss"])
def test_charts_over_the_size_have_the_units_of_their_axes(name: str, wanted: float) -> None:
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    CHARTS[name].draw(axes)
    line, = axes.get_lines()
    assert sorted(line.get_xdata()) == [784 * 10, 784 * 64 + 64 * 10]
    assert list(line.get_ydata()) == pytest.approx([wanted] * 2)


def test_a_long_curve_is_drawn_as_means_and_ends_in_that_of_its_last_steps() -> None:
    from matplotlib.figure import Figure

    losses = [1000.0 / (1 + step) for step in range(250)]
    found = SUITES["curves"].charts(results(*(entry(
        f"curves/{name}", "rawnn best", {"loss": losses, "step_us": [5.0]}, system="rawnn",
        form="best", layers=layers, batch=32) for name, layers in
        (("linear", [784, 10]), ("wide", [784, 64, 10])))))
    axes = Figure().subplots(1, 2)
    found["curves-linear"].draw(axes[0])
    found["curves-by-size-loss"].draw(axes[1])
    (curve,), (last,) = (each.get_lines() for each in axes)
    assert list(curve.get_xdata()) == list(range(0, 250, 2))
    assert list(curve.get_ydata()) == pytest.approx(
        [(losses[at] + losses[at + 1]) / 2 for at in range(0, 250, 2)])
    assert list(last.get_ydata()) == pytest.approx([sum(losses[200:]) / 50] * 2)


def test_the_ladder_is_written_by_the_ending_of_the_file(tmp_path: Path) -> None:
    for ending in ("svg", "png", "pdf"):
        plot_ladder(LADDER, tmp_path / f"ladder.{ending}")
        assert (tmp_path / f"ladder.{ending}").stat().st_size > 1000
    with pytest.raises(ConfigError, match=r"cannot plot to .*ladder\.nonsense"):
        plot_ladder(LADDER, tmp_path / "ladder.nonsense")


@pytest.mark.parametrize("found", [results(), results(rung("a", status="failed", reason="x"))])
def test_nothing_measured_is_nothing_to_plot(found: Results, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to plot"):
        plot_ladder(found, tmp_path / "ladder.svg")


def test_names_are_never_taken_for_markup() -> None:
    chart = lines('a "<b>"', "s & t", [Line("<l>", [(1, 1), (2, 2)])], Axis("x"), Axis("y", "log"))
    ElementTree.fromstring(chart.svg())


# -- what is drawn ---------------------------------------------------------------------------------


def axes_of(chart: Chart, count: int = 1) -> list[Any]:
    """The axes as the chart draws them."""
    from matplotlib.figure import Figure

    several = [Figure().subplots() for _ in range(count)]
    chart.draw(several if count > 1 else several[0])
    return several


def test_the_bars_of_a_ladder_begin_at_zero_on_a_linear_scale() -> None:
    axes, = axes_of(CHARTS["ladder"])
    assert axes.get_xscale() == "linear"
    assert axes.get_xlim()[0] == 0
    widths = [bar.get_x() + bar.get_width() for bar in axes.patches]
    assert max(widths) == 21.0  # the median of the baseline


def scaled(ranks: tuple[int, ...]) -> list[Any]:
    found = results(
        *(entry("scaling/mlp4", "rawnn", {"step_us": [100.0 / n]}, ranks=n, batch=64,
                scaling="strong", epochs=8) for n in ranks),
        *(entry(f"scaling/{name}", "rawnn", {"step_us": [100.0]}, ranks=n, batch=64 * n,
                scaling="weak", epochs=8) for name, n in
          (("mlp4", 1), ("mlp4", 2), ("wide", 1))))
    return axes_of(SUITES["scaling"].charts(found)["scaling"], 2)


def test_points_of_scaling_are_joined_where_there_are_three() -> None:
    for ranks, style in (((1, 2), "None"), ((1, 2, 4), "-")):
        strong = [line for line in scaled(ranks)[0].lines if line.get_marker() != "None"]
        assert [line.get_linestyle() for line in strong] == [style]


def test_scaling_has_no_legend_of_what_ran_on_one_gpu_alone() -> None:
    weak = scaled((1, 2))[1]
    assert [text.get_text() for text in weak.get_legend().get_texts()] == ["mlp4, rawnn"]


def test_a_sweep_shows_the_ratio_to_the_fastest_peer_about_one() -> None:
    axes, = axes_of(CHARTS["sweep-width"])
    assert any(list(line.get_ydata()) == [1, 1] for line in axes.lines)
    points = [tuple(map(float, point)) for point in axes.collections[0].get_offsets()]
    assert points == [(64.0, 0.5), (128.0, 0.5)]  # JAX 5 us, rawnn 10 us


def test_curves_show_the_distance_from_float64() -> None:
    def curve(system: str, precision: str, losses: list[float]) -> Any:
        return entry("curves/linear", f"{system} best", {"loss": losses}, precision=precision,
                     system=system, form="best", layers=[784, 10], batch=32)

    found = results(curve("rawnn", "float32", [2.0, 1.25, 0.5]),
                    curve("torch", "float64", [2.5, 1.0]))  # which ended early
    axes, = axes_of(SUITES["curves"].charts(found)["curves-linear"])
    line, = axes.lines
    assert list(line.get_ydata()) == [0.5, 0.25]
    assert axes.get_ylabel() == "|loss - loss in float64|"
    alone, = axes_of(CHARTS["curves-linear"])
    assert list(alone.lines[0].get_ydata()) == [2.0, 1.0, 0.5]
