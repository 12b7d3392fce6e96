"""What charts draw and tables count, against NumPy and against counts one by one."""

from __future__ import annotations

import math
from itertools import count, pairwise, product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from rawnn.bench.record import Results, read_all
from rawnn.bench.render import charts, heat, timeline, variation
from rawnn.bench.render.html_report import parts_of
from rawnn.bench.render.random_networks import _break_even
from rawnn.bench.render.texts import factor
from rawnn.bench.render.training import rungs
from tests import requires
from tests.bench.built import place, programs, results, rung

requires.module("jinja2")
requires.module("matplotlib")

SCORES = ("test_loss", "test_accuracy", "train_loss")


# -- setup and steps -------------------------------------------------------------------------------
@pytest.mark.parametrize("setup", [-3.0, 0.0, 0.5, 1.0, 2.5, 7.0])
@pytest.mark.parametrize("step", [-3.0, -1.0, -0.4, 0.0, 0.1])
def test_a_setup_is_earned_from_the_first_step_on_that_makes_up_for_it(setup: float, step: float
                                                                      ) -> None:
    found = _break_even(setup, step)
    if step > 0 or (step == 0 and setup > 0):  # behind for ever, or from some step on
        assert found == math.inf
    else:
        assert found == next(n for n in count() if setup + n * step <= 0)


# -- the order of the page -------------------------------------------------------------------------
def test_the_gpu_that_was_measured_last_comes_first_and_so_do_its_suites(tmp_path: Path) -> None:
    """Whatever else was measured on it before: each GPU has an old and a new file."""
    dates = {"NVIDIA A": ("2026-01-05", "2026-01-06"), "NVIDIA B": ("2026-01-01", "2026-01-09"),
             "NVIDIA C": ("2026-01-03", "2026-01-07")}
    for (gpu, both), number in product(dates.items(), (0, 1)):
        where = place(gpu=gpu, date=f"{both[number]}T00:00:00+00:00", commit=f"{number}234567")
        results(rung("baseline", 2.0, where=where), places=[where]).write(
            tmp_path / f"{gpu[-1]}{number}.json")
    parts = parts_of(read_all(tmp_path))
    assert [part.machine for part in parts] == ["NVIDIA B", "NVIDIA C", "NVIDIA A"]
    assert [part.anchor for part in parts] == ["gpu-1", "gpu-2", "gpu-3"]
    for part in parts:
        assert part.meta.startswith(dates[part.machine][1])
        new, old = part.blocks
        assert (new.is_older, old.is_older, new.badge) == (False, True, "")
        assert old.badge == f"{dates[part.machine][0]}, 0234567"
        assert [part.newest, part.older] == [[new], [old]]


# -- timelines -------------------------------------------------------------------------------------
def ladder(*steps_us: float) -> Results:
    """Rungs of so many microseconds a step, the toggles of each noted."""
    words = ("preload,arena", "preload,arena,nosync", "preload,arena,nosync,fuse",
             "preload,arena,nosync,fuse,graphs=epoch")
    return results(*(rung(f"rung{n}", us / 10, notes=[f"toggles: {toggles}"])
                     for n, (us, toggles) in enumerate(zip(steps_us, words, strict=False))))


def drawn(chart: Any) -> Any:
    """The axes of a chart."""
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    chart.draw(axes)
    return axes


@pytest.mark.parametrize("steps_us", [(90.0, 60.0, 40.0, 5.0), (40.0, 60.0, 60.0, 75.0)])
def test_a_timeline_is_as_long_as_the_slower_of_its_steps(steps_us: tuple[float, ...]) -> None:
    found = ladder(*steps_us)
    assert [timeline.step_us(entry) for entry in rungs(found)] == pytest.approx(steps_us)
    for number in range(1, len(steps_us)):
        chart = timeline.timeline(found, f"rung{number}")
        before, after = steps_us[number - 1:number + 1]
        assert chart.title == f"Step {number}, rung{number}: a training step of {before:.1f} µs " \
                              f"becomes {after:.1f} µs"
        axes = drawn(chart)
        assert axes.get_xlim() == pytest.approx((0, max(before, after)))
        bars = [path.get_extents() for bar in axes.collections for path in bar.get_paths()]
        assert max(bar.x1 for bar in bars) <= max(before, after) * 1.0001
        assert min(bar.x0 for bar in bars) == 0


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("window", [1.0, 2.5])
def test_the_boxes_of_a_lane_come_one_after_the_other_and_fill_the_window(number: int,
                                                                        window: float) -> None:
    """Every op of every step that begins in the window has a box, and a box follows its call."""
    us = 40.0
    calls = timeline.calls_of(rungs(ladder(us, us, us, us))[number])
    found = timeline.boxes(calls, us, window * us)
    lanes: dict[str, list[timeline.Box]] = {}
    for box in found:
        lanes.setdefault(box.lane, []).append(box)
    for boxes in lanes.values():
        boxes.sort(key=lambda box: box.start)
        for first, second in pairwise(boxes):
            assert first.start + first.length <= second.start + 1e-9
    assert {box.kind for box in lanes["Python"]} <= {timeline.PYTHON, timeline.WAIT}
    steps = math.ceil(window)
    on_gpu = [box for lane, boxes in lanes.items() if lane != "Python" for box in boxes]
    if calls.graph is None:
        per_step = len(on_gpu) / (int(window) + 1)
        assert per_step >= len(calls.ops)
        first = [box for box in on_gpu if box.start < us]
        assert len(first) == per_step
        kinds = [timeline.kind_of(op) for op in calls.ops]
        assert [box.kind for box in first if box.kind != timeline.COPY] == \
            [kind for kind in kinds if kind != timeline.COPY]
    else:
        assert sum(box.start < us * steps for box in on_gpu) >= steps * len(calls.ops)
        assert len(lanes["Python"]) == 1  # one launch for all steps of an epoch


# -- what varied -----------------------------------------------------------------------------------
def varied(monitor: str, **columns: Any) -> dict[str, Any]:
    """What `rawnn many --json` has of members whose options and scores are these columns."""
    table = {name: list(values) for name, values in columns.items()}
    options = [name for name in table if name not in (*SCORES, "fold", "status")]
    return {"members": len(table[monitor]), "table": table, "facts": {"dataset": "mnist"},
            "settings": {"monitor": monitor, "varied": options},
            "environment": msgspec.to_builtins(place())}


def grid_of_scores(spread: float) -> tuple[Any, Any, Any]:
    """Two options and a score of each pair, three times; one pair has diverged."""
    generator = np.random.default_rng(4)
    lr, width = (values.ravel() for values in np.meshgrid([0.1, 0.2, 0.4], [8, 16, 32, 64]))
    lr, width = np.tile(lr, 3), np.tile(width, 3)
    score = generator.uniform(1, spread, len(lr))
    score[(lr == 0.2) & (width == 32)] = np.nan
    score[0] = np.nan
    return lr, width, score


@pytest.mark.parametrize("monitor", SCORES)
@pytest.mark.parametrize("spread", [2.0, 1000.0])
def test_a_map_has_the_median_of_each_pair_the_best_the_brightest(monitor: str, spread: float
                                                                  ) -> None:
    from matplotlib.colors import LogNorm, Normalize

    lr, width, score = grid_of_scores(spread)
    chart = variation.chart_of(varied(monitor, lr=lr, batch=width, **{
        monitor: [None if math.isnan(value) else value for value in score]}))
    assert chart.title == f"{variation.WORDS[monitor].capitalize()} against learning rate and " \
                          f"batch size"
    axes = drawn(chart)
    [mesh] = axes.collections
    for (column, x), (row, y) in product(enumerate([0.1, 0.2, 0.4]), enumerate([8, 16, 32, 64])):
        of_pair = score[(lr == x) & (width == y)]
        found = mesh.get_array()[row, column]
        if np.isnan(of_pair).all():
            assert np.ma.is_masked(found)
        else:
            assert found == pytest.approx(np.nanmedian(of_pair))
    known = mesh.get_array().compressed()
    is_log = known.max() >= 10 * known.min()
    assert type(mesh.norm) is (LogNorm if is_log else Normalize)
    shades = mesh.cmap(mesh.norm(np.sort(known)))[:, :3].sum(axis=1)
    assert (shades[-1] > shades[0]) == (monitor == "test_accuracy")
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.1", "0.2", "0.4"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["8", "16", "32", "64"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("learning rate", "batch size")


@pytest.mark.parametrize("monitor", SCORES)
@pytest.mark.parametrize("values", [[0.1, 0.2, 0.4], [0.01, 0.1, 1.0], ["sgd", "adam", "adamw"]])
def test_a_line_is_of_medians_within_quartiles(monitor: str, values: list[Any]) -> None:
    generator = np.random.default_rng(5)
    option = np.array(values * 9)
    score = generator.uniform(1, 30, len(option))
    axes = drawn(variation.chart_of(varied(monitor, option=option.tolist(), seed=range(len(option)),
                                           **{monitor: score.tolist()})))
    distinct = sorted(set(values))
    quartiles = np.array([np.quantile(score[option == value], [0.25, 0.5, 0.75])
                          for value in distinct])
    [line] = axes.lines
    is_number = not isinstance(values[0], str)
    x = distinct if is_number else range(len(distinct))
    assert line.get_xdata() == pytest.approx(list(x))
    assert line.get_ydata() == pytest.approx(quartiles[:, 1])
    [area] = axes.collections
    corners = {(round(float(a), 6), round(float(b), 6)) for a, b in area.get_paths()[0].vertices}
    assert corners >= {(round(float(at), 6), round(float(q), 6)) for at, three in
                       zip(x, quartiles, strict=True) for q in (three[0], three[2])}
    assert axes.get_xscale() == ("log" if is_number and distinct[-1] >= 10 * distinct[0]
                                 else "linear")
    if not is_number:
        assert [label.get_text() for label in axes.get_xticklabels()] == distinct


@pytest.mark.parametrize("monitor", SCORES)
def test_the_table_of_the_best_has_the_ten_best(monitor: str) -> None:
    scores = np.random.default_rng(6).permutation(25) / 8
    grid = variation.best_of(varied(monitor, lr=np.arange(25.0).tolist(),
                                    **{monitor: scores.tolist()}))
    best = np.sort(scores)[::-1][:10] if monitor == "test_accuracy" else np.sort(scores)[:10]
    shown = [float(row[grid.headings.index(monitor.replace("_", " "))]) for row in grid.rows]
    assert shown == pytest.approx(best, rel=1e-3)
    assert [float(row[0]) for row in grid.rows] == [int(np.flatnonzero(scores == v)[0])
                                                    for v in best]


# -- bars, lines and points ------------------------------------------------------------------------
@pytest.mark.parametrize("count", [1, 2, 3])
def test_bars_of_a_name_stand_about_its_place_and_begin_at_one(count: int) -> None:
    names = ["a", "b", "c"]
    values = {f"series {n}": [2.0 + n, None, 0.25 * (n + 1)] for n in range(count)}
    axes = drawn(charts.bars("t", "s", names, values, "speedup"))
    rectangles = [(bar.get_x(), bar.get_x() + bar.get_width(), bar.get_y(), bar.get_height())
                  for container in axes.containers for bar in container]
    assert len(rectangles) == 2 * count
    expected = [value for of in values.values() for value in of if value is not None]
    for (left, right, _, _), value in zip(rectangles, expected, strict=True):
        assert (min(left, right), max(left, right)) == pytest.approx((min(1, value), max(1, value)))
    centers = np.array([y + height / 2 for _, _, y, height in rectangles]).reshape(count, 2)
    assert centers.mean(axis=0) == pytest.approx([0, 2])
    assert np.diff(centers, axis=0) == pytest.approx(0.8 / count)
    assert [height for *_, height in rectangles] == pytest.approx([0.9 * 0.8 / count] * 2 * count)
    written = [text.get_text() for text in axes.texts]
    assert written == [f"{factor(value)}x" for value in expected]
    assert [label.get_text() for label in axes.get_yticklabels()] == names
    assert axes.get_xscale() == "log"
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first on top
    assert axes.get_xlim()[1] >= 2 * max(expected)


@pytest.mark.parametrize("is_marked", [True, False])
@pytest.mark.parametrize("points", [2, 3, 9])
def test_lines_go_through_their_points_and_two_are_not_joined(is_marked: bool, points: int) -> None:
    generator = np.random.default_rng(points)
    series = [charts.Line(f"line {n}", [(float(x), float(y)) for x, y in
                                        generator.uniform(1, 50, (points, 2))], system, "tf32")
              for n, system in enumerate(("rawnn", "torch", "rawnn"))]
    axes = drawn(charts.lines("t", "s", series, charts.Axis("x", "log2"), charts.Axis("y"),
                              is_marked))
    for line, given in zip(axes.lines, series, strict=True):
        assert [tuple(point) for point in line.get_xydata()] == given.points
        assert line.get_label() == given.label
        assert (line.get_linestyle() == "None") == (is_marked and points == 2)
        assert (line.get_marker() not in ("", "None")) == is_marked
    assert axes.lines[0].get_color() == axes.lines[2].get_color() != axes.lines[1].get_color()
    assert axes.lines[2].get_alpha() < axes.lines[0].get_alpha()  # the second of the same system
    assert axes.lines[0].get_zorder() > axes.lines[1].get_zorder()
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "linear")
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("x", "y")


@pytest.mark.parametrize("values", [[0.5, 3.0, 2.0], [1.1, 1.2, 1.05], [0.9, 0.3, 0.4], [8.0] * 3])
def test_ratios_lie_about_one_within_their_axes(values: list[float]) -> None:
    line = charts.Line("all", list(zip([1.0, 10.0, 100.0], values, strict=True)), "", "")
    axes = drawn(charts.scatter("t", "s", [line], charts.Axis("size", "log"),
                                charts.Axis("speedup", "log"), joined=True))
    low, high = axes.get_ylim()
    assert low < min(*values, 0.81) < max(*values, 1.24) < high
    assert axes.collections[-1].get_offsets().tolist() == [list(point) for point in line.points]
    level = [each for each in axes.lines if list(each.get_ydata()) == [1, 1]]
    assert len(level) == 1
    [joined] = [each for each in axes.lines if each not in level]
    assert joined.get_ydata().tolist() == values
    [band] = axes.patches
    assert band.get_extents().transformed(axes.transData.inverted()).y1 == pytest.approx(1)
    ticks = [label.get_text() for label in axes.get_yticklabels()]
    assert "1x" in ticks
    assert all(low <= float(text.removesuffix("x")) <= high for text in ticks)


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 6])
def test_the_five_worst_networks_stand_first_and_the_rest_is_counted(tmp_path: Path,
                                                                     count: int,
                                                                     more: bool) -> None:
    """Networks of which a peer is faster, each by another ratio, in any order: in float32, and in
    whatever the peer has, which is the same here. One `more` is slower in bf16 alone."""
    ratios = np.random.default_rng(count).permutation(np.linspace(0.3, 0.9, count)).tolist()
    networks = [programs(f"sample/{n}", {("rawnn", "float32"): 10.0, ("torch", "float32"):
                                         10.0 * ratio}, layers=(16, 64, 8), seed=n)
                for n, ratio in enumerate([*ratios, 2.0])]
    if more:
        networks.append(programs("sample/99", {
            ("rawnn", "bf16"): 10.0, ("torch", "bf16"): 9.5, ("rawnn", "float32"): 9.0},
            layers=(16, 64, 8), seed=99))
    every = sorted([*ratios, *ratios, *([0.95] if more else [])])
    results(*networks).write(tmp_path / "s.json")
    [part] = parts_of(read_all(tmp_path / "s.json"))
    assert part.losses is not None
    place_of = part.losses.headings.index("speedup")
    assert [row[place_of] for row in part.losses.rows] == [
        f"{ratio:.2f}x" for ratio in every[:5]]
    left = len(every) - 5
    assert part.losses.notes == (["No network of these is slower."] if not every else
                                 [f"{left} more {'is' if left == 1 else 'are'} in the blocks below"]
                                 if left > 0 else [])


# -- the grid --------------------------------------------------------------------------------------
@pytest.mark.parametrize(("seed", "names"), [
    (0, ("float32", "tf32")), (1, ("float32", "tf32", "bf16")), (2, ("bf16",)), (3, ("a", "b"))])
def test_a_heat_map_has_each_mean_at_its_place_and_frames_the_worst_cell(
        seed: int, names: tuple[str, ...]) -> None:
    """The cell with the worst single speedup, which need not have the worst mean."""
    generator = np.random.default_rng(seed)
    widths, batches = (64, 256, 1024), (8, 32)
    maps = {name: {(w, b): np.exp(generator.normal(0, 1, 3)).tolist()
                   for w, b in product(widths, batches) if (w, b) != (256, 8)}
            for name in names}
    chart = heat.heat_map("t", "s", maps)
    assert chart.panels == len(names)
    from matplotlib.colors import to_rgb
    from matplotlib.figure import Figure

    several = Figure().subplots(1, len(names))
    chart.draw(several)
    for axes, (name, cells) in zip(np.ravel(several), maps.items(), strict=True):
        means = {key: math.exp(np.mean(np.log(values))) for key, values in cells.items()}
        written = {text.xy: text.get_text() for text in axes.texts}
        filled = {patch.get_xy(): patch for patch in axes.patches if patch.get_fill()}
        assert len(written) == len(filled) == len(cells)
        for (width, batch), mean in means.items():
            x, y = batches.index(batch), widths.index(width)
            assert written[x, y] == factor(mean)
            patch = filled[corner_of(x), corner_of(y)]
            assert to_rgb(patch.get_facecolor()[:3]) == to_rgb(
                charts.LIGHT["blue" if mean >= 1 else "red"])
            strength = min(abs(math.log(mean, 4.0)), 1)
            assert patch.get_alpha() == pytest.approx(0.12 + 0.5 * strength)
        [frame] = [patch for patch in axes.patches if not patch.get_fill()]
        worst = min(cells, key=lambda key: min(cells[key]))
        assert frame.get_xy() == pytest.approx((batches.index(worst[1]) - 0.46,
                                                widths.index(worst[0]) - 0.46))
        mean = math.exp(np.mean(np.log([v for values in cells.values() for v in values])))
        assert axes.get_title(loc="left") == f"{name}: geometric mean {mean:.2f}x"
        assert [label.get_text() for label in axes.get_xticklabels()] == ["8", "32"]
        assert [label.get_text() for label in axes.get_yticklabels()] == ["64", "256", "1024"]


def corner_of(at: int) -> float:
    """Where the rectangle of a cell begins."""
    return at - 0.48
