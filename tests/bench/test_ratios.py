"""Every ratio is the right way round: what took twice as long before is twice as fast now, in every
table, sentence and figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from unittest.mock import MagicMock

import msgspec
import pytest

from rawnn.bench import figures
from rawnn.bench.ablation import Ablated, factors
from rawnn.bench.ablation import rows as ablation_rows
from rawnn.bench.attempt import Curves
from rawnn.bench.costing import Bound
from rawnn.bench.curves import LAST, Curve, CurvesResult
from rawnn.bench.duel import Duel, Side
from rawnn.bench.footprint import Footprint, traffic, x_floor
from rawnn.bench.peers.problem import Problem
from rawnn.bench.peers.summary import cells, network_line, network_rows, summary
from rawnn.bench.peers.workload_table import HEADINGS as WORKLOAD_HEADINGS
from rawnn.bench.peers.workload_table import table_rows
from rawnn.bench.records import GPU_TIMER
from rawnn.bench.sets import Measurement, SetsResult
from rawnn.bench.statistics import spread
from rawnn.engine.config import Config
from tests import requires
from tests.bench.conftest import make_ladder, make_rung
from tests.bench.contests import PLACE, contest_of, result_of, tiny

BASE, FULL = "none", "best"
TOGGLE = Ablated(workload="linear", toggle="fuse", base=BASE, full=FULL)


def sets(times: dict[str, Sequence[float]]) -> SetsResult:
    return SetsResult(
        kind="ablation", repeats=2, environment=PLACE, dataset="mnist", synthetic=False,
        timer=GPU_TIMER, measurements=[
            Measurement(workload="linear", opt=opt, epochs=2, steps=10, epoch_ms=spread(ms),
                        us=spread(ms)) for opt, ms in times.items()])


ABLATION = sets({BASE: [80.0, 81.0], FULL: [10.0, 10.1], TOGGLE.plus: [40.0, 40.5],
                 TOGGLE.less: [60.0, 60.6]})
"""Twice as fast alone, six times in the fastest set."""


def test_an_ablations_factors() -> None:
    assert factors(TOGGLE, ABLATION) == (pytest.approx(2.0), pytest.approx(6.0))
    (row,) = ablation_rows([TOGGLE], ABLATION)
    assert row[2:5] == ("2.00 x", "6.00 x", "3.00")
    slower = sets({BASE: [10.0, 11.0], FULL: [9.0, 12.0], TOGGLE.plus: [20.0, 21.0],
                   TOGGLE.less: [10.0, 13.0]})
    (row,) = ablation_rows([TOGGLE], slower)
    assert row[2:4] == ("0.51 x", "1.10 x, in the noise")


@pytest.mark.parametrize(("first", "second", "words"), [
    ([20.0, 20.2, 19.8], [10.0, 10.1, 9.9], "b is 2.000 times faster than a (95 % interval 1.9"),
    ([10.0, 10.1, 9.9], [20.0, 20.2, 19.8], "b is 2.000 times slower than a (95 % interval 0.4"),
    ([10.0, 11.0, 9.0], [10.1, 11.1, 9.1], "b and a differ by no more than the noise")])
def test_a_duels_verdict(first: list[float], second: list[float], words: str) -> None:
    sides = [Side(opt=name, toggles=[], notes=[], milliseconds=ms, steps=100, loss=1.0)
             for name, ms in (("a", first), ("b", second))]
    duel = Duel(config=Config(), environment=PLACE, dataset="d", rounds=3, sides=sides)
    assert duel.verdict(sides[1]).startswith(words)
    assert sides[0].us.median == pytest.approx(first[0] * 10)  # us a step, of 100 steps


def test_peers_that_take_twice_as_long() -> None:
    found = result_of(contest_of(rawnn_float32=[10.0, 10.1, 9.9], torch_float32=[20.0, 20.4, 19.6],
                                 jax_float32=[5.0, 5.1, 4.9]))
    place = WORKLOAD_HEADINGS.index("ours is faster")
    rows = {row[1]: row for row in table_rows(found)}
    assert rows["rawnn"][place] == ""
    assert rows["torch"][place] == "2.00 x"
    assert rows["jax"][place] == "0.50 x"
    low, high = map(float, rows["torch"][place + 1].split("-"))
    assert 1.9 < low <= 2.0 <= high < 2.1
    low, high = map(float, rows["jax"][place + 1].split("-"))
    assert 0.45 < low <= 0.5 <= high < 0.55


def test_a_networks_line_says_how_many_times_as_long_the_best_peer_takes() -> None:
    for theirs, words in ((20.0, "(2.00 x)"), (5.0, "(0.50 x)")):
        contest = contest_of(rawnn_float32=[10.0] * 3, torch_float32=[theirs] * 3,
                             jax_float32=[90.0] * 3)
        said = f"{theirs:.2f} us torch {words}"
        assert network_line(contest).endswith(f"float32 10.00 us | {said}")
        assert network_rows(result_of(contest))[0][1:3] == ["10.00", said.replace(" us", "")]


RATIOS = [math.exp(0.2 + 0.3 * math.sin(5 * i)) for i in range(60)]


def test_a_summarys_figures_are_those_of_scipy() -> None:
    """scipy.stats.gmean, and bootstrap(method="percentile", confidence_level=0.95): an interval of
    90 % is 16 % narrower."""
    contests = [msgspec.structs.replace(
        contest_of(rawnn_float32=[10.0], torch_float32=[10.0 * ratio]),
        problem=tiny(name=f"seed {n}")) for n, ratio in enumerate(RATIOS)]
    (line, *_) = summary(result_of(*contests, systems=["rawnn", "torch"]))
    width = 1.2864 - 1.1571
    assert (line.networks, line.mean) == (60, pytest.approx(1.220278144779201))
    assert line.low == pytest.approx(1.1571, abs=0.05 * width)
    assert line.high == pytest.approx(1.2864, abs=0.05 * width)
    assert line.median == pytest.approx(sorted(RATIOS)[29] / 2 + sorted(RATIOS)[30] / 2)
    assert line.worst == pytest.approx(min(RATIOS))
    assert line.worst_of == f"seed {RATIOS.index(min(RATIOS))}"
    assert line.faster == sum(ratio > 1 for ratio in RATIOS) == 45
    assert cells(line)[2:4] == ("1.22 x", f"{line.low:.2f}-{line.high:.2f}")
    stats = requires.module("scipy.stats")
    assert line.mean == pytest.approx(stats.gmean(RATIOS))


def test_a_draw_is_not_faster() -> None:
    (line, *_) = summary(result_of(contest_of(rawnn_float32=[10.0], torch_float32=[10.0]),
                                   systems=["rawnn", "torch"]))
    assert (line.faster, line.mean) == (0, 1.0)


def test_times_the_least_and_what_a_step_moves() -> None:
    floor = Bound(us=5.0, by="memory", memory_us=5.0, arithmetic_us=2.0, waiting_us=0.0,
                  exchanges=0)
    print_ = Footprint(launches=3.0, bytes=12_500_000, least_bytes=5, nodes=1200, floor=floor)
    assert x_floor(20.0, print_) == "4.00"
    assert traffic(print_) == ("3", "1,200", "12.5")


@pytest.mark.parametrize(("mine", "usual", "stayed"), [
    (7.9e-5, 1e-5, True), (8.1e-5, 1e-5, False), (7e-6, 0.0, True), (9e-6, 0.0, False)])
def test_a_curve_stays_within_eight_times_the_usual(mine: float, usual: float, stayed: bool
                                                    ) -> None:
    assert Curves(mine, usual).stayed is stayed


# -- figures ---------------------------------------------------------------------------------------


@pytest.fixture
def axes(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """In place of a figure's own: it remembers what was drawn."""
    made = MagicMock()
    made.get_ylim.return_value = made.get_xlim.return_value = (0.1, 10.0)
    made.get_legend_handles_labels.return_value = ([], [])
    monkeypatch.setattr(figures, "_svg", lambda size, draw, title: draw(made) or "")
    return made


def test_the_random_figure_shows_their_time_over_ours(axes: MagicMock) -> None:
    contest = contest_of(rawnn_float32=[10.0], torch_float32=[20.0], jax_float32=[40.0])
    figures.random_figure(result_of(contest))
    (xs, ys), = [call.args for call in axes.scatter.call_args_list]
    assert ys == (2.0,)
    assert xs == (contest.problem.flops / 2,)
    label = axes.scatter.call_args.kwargs["label"]
    assert label == "float32 against true float32: geometric mean 2.00 x"
    axes.set_ylabel.assert_called_with("the best peer's time over ours")
    above = next(call for call in axes.annotate.call_args_list if call.args[0] == "rawnn faster")
    assert above.args[2][1] > 0


def test_the_ladder_figure_shows_what_was_taken_off(axes: MagicMock) -> None:
    figures.ladder_figure(make_ladder(make_rung("baseline", 20.0), make_rung("fuse", 10.0),
                                      make_rung("cudnn", 12.5)))
    texts = [call.args[0] for call in axes.annotate.call_args_list]
    assert texts == ["20.0 ms", "10.0 ms  2.00 x", "12.5 ms  0.80 x"]
    changes = axes.barh.call_args_list[1::2]
    assert [(c.args[1], c.kwargs["left"]) for c in changes] == [(0.0, 20.0), (10.0, 10.0),
                                                                (2.5, 10.0)]
    red = [c.kwargs["color"] == figures.COLOURS["rawnn"] for c in changes]
    assert red == [False, False, True]


def test_the_ablation_figure_names_each_bar(axes: MagicMock) -> None:
    figures.ablation_figure(ABLATION)
    bars = {c.kwargs["label"]: c.args[1] + c.kwargs["left"] for c in axes.barh.call_args_list}
    assert bars == {"alone": pytest.approx(2.0), "in the fastest set": pytest.approx(6.0)}
    assert [c.args[0] for c in axes.annotate.call_args_list] == ["2.00 x", "6.00 x"]


def curve(workload: str, us: list[float], losses: Sequence[float | None], form: str = "f") -> Curve:
    return Curve(workload=workload, system="rawnn", numbers="float32", form=form, us=us,
                 losses=list(losses))


def sizes() -> CurvesResult:
    problems = [Problem(name=name, seed=0, layers=layers, batch=50, loss="mse", optimizer="sgd",
                        lr=0.1) for name, layers in (("small", (4, 3)), ("large", (10, 20)))]
    return CurvesResult(
        environment=PLACE, systems=["rawnn"], left_out={}, steps={"small": 60, "large": 60},
        problems=problems, curves=[
            curve("small", [25.0, 20.0, 30.0], [9.0] * 20 + [2.0] * LAST),
            curve("small", [100.0] * 3, [9.0] * 20 + [1.0] * LAST, "slow"),
            curve("large", [50.0] * 3, [9.0] * 20 + [3.0] * LAST)])


def test_the_sizes_figure_shows_the_fastest_form(axes: MagicMock) -> None:
    requires.module("matplotlib")
    figures.sizes_figure(sizes(), throughput=True)
    assert axes.plot.call_args.args[:2] == ((12, 200), (50 / 25e-6, 50 / 50e-6))
    figures.sizes_figure(sizes(), throughput=False)
    assert axes.plot.call_args.args[:2] == ((12, 200), (2.0, 3.0))


def test_the_sweep_figure_shows_the_fastest_form(axes: MagicMock) -> None:
    requires.module("matplotlib")
    contests: list[Any] = []
    for width, us in ((17, 6.0), (40, 9.0)):
        made = contest_of(rawnn_float32=[us])
        contests.append(msgspec.structs.replace(
            made, problem=tiny(layers=(12, width, 5)), entries=[
                *made.entries, msgspec.structs.replace(made.entries[0], us=[us * 2])]))
    figures.sweep_figure("width", contests)
    assert axes.plot.call_args.args[:2] == ((17, 40), (6.0, 9.0))
    axes.set_xlabel.assert_called_with("width of the hidden layers")


def test_the_last_loss_is_the_mean_of_the_last_steps() -> None:
    assert curve("w", [], [9.0] * 20 + [1.0, 3.0] * (LAST // 2)).last == pytest.approx(2.0)
    assert curve("w", [], [1.0, 2.0]).last == pytest.approx(1.5)
    assert curve("w", [], [*[1.0] * LAST, None]).last is None
    assert curve("w", [], [None, *[1.0] * LAST]).last == pytest.approx(1.0)
    assert curve("w", [], []).last is None
