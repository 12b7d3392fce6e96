"""Tables and charts of `bench many` and `bench grid`, from records made up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from rawnn.bench.record import Record, Results
from rawnn.bench.render import ensembles, heat
from rawnn.bench.render.suites import SUITES, markdown
from tests import requires
from tests.bench.built import entry, programs, results

TIMES = {("rawnn", "float32"): 20.0, ("rawnn", "tf32"): 10.0, ("rawnn", "bf16"): 8.0,
         ("jax", "tf32"): 50.0, ("torch", "tf32"): 200.0, ("jax", "bf16"): 48.0}


def of_members(records: Sequence[Record], members: int, call_s: float = 2.0) -> list[Record]:
    """Records of an ensemble of so many members."""
    found = []
    for record in records:
        record.conditions["members"] = members
        found.append(record)
        if record.conditions["system"] == "rawnn" and record.metric == "step_us":
            found += entry(record.case, record.variant, {"call_s": [call_s]},
                           precision=record.precision, **record.conditions)
    return found


def ensemble(name: str, members: int, times: Mapping[tuple[str, str], float] = TIMES,
             **more: Any) -> list[Record]:
    return of_members(programs(f"many/{name}", times, layers=(20, 64, 64, 3), **more), members)


def kept() -> Results:
    slow = {**TIMES, ("rawnn", "tf32"): 100.0}
    return results(
        ensemble("A/16", 16), ensemble("A/1056", 1056), ensemble("sampled/3", 100),
        ensemble("sampled/4", 400, slow))


def rows_of(suite: str, found: Results, number: int) -> list[dict[str, str]]:
    grid = SUITES[suite].grids(found)[number]
    return [dict(zip(grid.headings, row, strict=True)) for row in grid.rows]


def test_throughput_and_ratio_of_a_named_ensemble() -> None:
    rows = rows_of("many", kept(), 2)
    assert [r["class"] for r in rows[:3]] == list(ensembles.SHOWN[1:])
    # 16 members in 10 us are 1.6 million steps a second; JAX takes 50 us, so that 5 x.
    tf32 = rows[1]
    assert (tf32["rawnn"], tf32["best peer"], tf32["program"]) == ("1.60", "0.320", "jax <form>")
    assert tf32["ratio"] == "5.00 x"
    assert [r["members"] for r in rows] == ["16", "", "", "1,056", "", ""]  # once, in the first row
    assert rows[4]["rawnn"] == "106"  # 1056 / 10 us
    assert rows[0]["ratio"] == "2.50 x"  # float32 against the peers' tf32
    assert tf32["s to result"] == "2.00"
    assert tf32["peer's s"] == f"{1 + 20 * 64 * 50e-6:.3g}"  # its setup, and 20 epochs of 64 steps


def test_the_summary_of_random_ensembles_has_mean_worst_and_losses() -> None:
    found = kept()
    summary = SUITES["many"].grids(found)[0]
    by_class = {(row[0], row[1]): row for row in summary.rows}
    line = by_class["tf32 against tf32", "the best peer"]
    assert line[2] == f"{(5 * 0.5) ** 0.5:.2f} x"
    assert line[5] == "0.50 x (sampled/4)"
    assert line[6] == "1 of 2"
    assert summary.notes == ["rawnn is slower in 1: seed 4 of 400 (tf32 against tf32, 0.50 x)."]
    rows = rows_of("many", found, 3)
    assert rows[1]["tf32 against tf32"] == "0.50 x (4.00, 8.00 jax)"


def test_a_table_says_how_many_of_its_ensembles_were_reached_and_the_headline_does_not() -> None:
    left = [entry(f"many/B/{n}", "rawnn", {"step_us": []}, status="not measured", layers=[8, 1],
                  members=n) for n in (16, 132)]
    found = results(ensemble("A/16", 16), ensemble("sampled/3", 100), *left,
                    ended={"many": "the budget was spent"})
    random, named, *_ = SUITES["many"].grids(found)
    assert "; 1 of 1 ensemble, " in random.source
    assert "; 1 of 3 ensembles, " in named.source
    assert "ended early: the budget was spent" in named.source
    assert "budget" not in ensembles.headline(found)


def test_a_wrong_program_counts_for_nothing() -> None:
    found = results(ensemble("A/16", 16, wrong=[("jax", "tf32")]))
    rows = rows_of("many", found, 1)
    assert rows[1]["program"] == "torch <form>"
    assert "A/16: jax <form> tf32 wrong: off" in markdown(found, "many")


def test_no_cell_breaks_its_table() -> None:
    for suite, found in (("many", kept()), ("grid", cells())):
        for table in markdown(found, suite).split("\n\n"):
            bars = {line.count("|") for line in table.splitlines() if line.startswith("|")}
            assert len(bars) <= 1, table


def test_charts_of_many() -> None:
    requires.module("matplotlib")
    charts = ensembles.charts_of(kept())
    assert list(charts) == ["many-throughput", "many-ratio"]
    text = charts["many-ratio"].svg()
    assert "Faster than the best peer on 4 of 4 ensembles" in text
    assert "tf32 against tf32: geometric mean 2.81x" in text  # (5 * 5 * 5 * 0.5) ** (1 / 4)
    assert "rawnn slower" in text
    assert "NVIDIA Test GPU" in text
    assert "prefers-color-scheme:dark" in text
    assert "million network-steps a second" in charts["many-throughput"].svg()
    both = results(ensemble("A/16", 16), ensemble("B/16", 16))
    assert ensembles.charts_of(both)["many-throughput"].panels == 2
    assert ensembles.charts_of(results()) == {}


def cell(width: int, depth: int, batch: int, rule: str, ours: float) -> list[Record]:
    times = {("rawnn", p): ours for p in ("float32", "tf32", "bf16")} | {
        ("jax", "tf32"): 4.0, ("torch", "tf32"): 2.0, ("torch", "float32"): 8.0,
        ("torch", "bf16"): 1.0}
    records = programs(f"grid/{width}x{depth} batch {batch} {rule}", times,
                       layers=(width,) * (depth + 1) + (10,), batch=batch)
    for record in records:
        record.conditions.update(width=width, depth=depth, cell_batch=batch, optimizer=rule)
    return records


def cells() -> Results:
    return results(cell(64, 1, 32, "sgd", 1.0), cell(64, 3, 32, "adam", 4.0),
                   cell(8192, 6, 1, "sgd", 0.5))


def test_each_precision_is_compared_with_its_own() -> None:
    found = heat.networks(cells(), "grid")
    assert [heat.speedup(found[0], p) for p in ("float32", "tf32", "bf16")] == [8.0, 2.0, 1.0]
    assert heat.cells_of(found, "tf32", "width", "batch") == {(64, 32): [2.0, 0.5],
                                                              (8192, 1): [4.0]}


def test_a_precision_that_a_peer_was_not_asked_for_has_no_speedup() -> None:
    asked = {("rawnn", "float32"): 1.0, ("rawnn", "tf32"): 1.0, ("jax", "tf32"): 4.0,
             ("jax", "bf16"): 4.0, ("torch", "float32"): 8.0, ("torch", "tf32"): 2.0}
    (network,) = heat.networks(results(programs("grid/a", asked)), "grid")
    assert [heat.speedup(network, p) for p in ("float32", "tf32", "bf16")] == [None, 2.0, None]


def test_a_heat_map_has_geometric_means_and_marks_the_worst() -> None:
    by_axis, tf32 = SUITES["grid"].grids(cells())[1], SUITES["grid"].grids(cells())[3]
    assert by_axis.rows[0] == ["width", "64", "4.00 x (2)", "1.00 x (2)", "0.50 x (2)", "0.25 x"]
    assert tf32.headings == ("width", "batch 1", "batch 32")
    assert tf32.rows == [["64", "", "**1.00 (2), worst 0.50**"], ["8,192", "4.00 (1)", ""]]


def test_the_picture_of_the_grid() -> None:
    requires.module("matplotlib")
    chart = heat.grid_charts(cells())["grid"]
    assert chart.panels == 3
    text = chart.svg()
    for words in ("float32: geometric mean 6.35x",  # (8 * 2 * 16) ** (1 / 3)
                  "tf32: geometric mean 1.59x", "bf16: geometric mean 0.79x"):
        assert words in text
    assert heat.grid_charts(results()) == {}


@pytest.mark.parametrize("suite", ["many", "grid"])
def test_nothing_measured_makes_no_table(suite: str) -> None:
    assert SUITES[suite].grids(results()) == []
    assert SUITES[suite].charts(results()) == {}


@pytest.mark.parametrize("ratios", [[0.5, 1.0, 2.0], [1.0, 1.0], [0.25, 0.5], [3.0]])
def test_slower_and_faster_are_counted_and_as_fast_is_neither(ratios: Sequence[float]) -> None:
    found = results(*(ensemble(f"sampled/{n}", 16 * (n + 1), {
        ("rawnn", "tf32"): 10.0, ("torch", "tf32"): 10.0 * ratio}) for n, ratio in
        enumerate(ratios)), ensemble("A/16", 16, {("rawnn", "tf32"): 1.0, ("torch", "tf32"): 1.0}))
    worse = [f"seed {n} of {16 * (n + 1)} (tf32 against tf32, {ratio:.2f} x)"
             for n, ratio in enumerate(ratios) if ratio < 1]
    said = ensembles.slower([n for n in ensembles.measured(found) if ensembles.is_random(n)])
    assert said == (f"rawnn is slower in {len(worse)}: {', '.join(worse)}." if worse else
                    "rawnn is slower in none that has a peer's time.")
    mean = math.prod(ratios) ** (1 / len(ratios))
    words = " ".join(ensembles.headline(found).split())
    random = f"**{mean:.2f} x** on {len(ratios)} random ensembles (worst {min(ratios):.2f} x)"
    assert random in words
    assert "**1.00 x** on 1 named ensembles (worst 1.00 x)" in words
    chart = ensembles.charts_of(found)["many-ratio"]
    faster = sum(ratio > 1 for ratio in ratios)
    assert chart.title == f"Faster than the best peer on {faster} of {len(ratios) + 1} ensembles"


def test_seconds_to_a_result_are_of_a_call_or_of_a_setup_and_as_many_epochs() -> None:
    times = {("rawnn", "tf32"): 10.0, ("torch", "tf32"): 50.0}
    [network] = ensembles.measured(results(ensemble("A/16", 16, times)))
    ours, theirs = (network.best((who,), ("tf32",)) for who in ("rawnn", "torch"))
    assert ours is not None
    assert theirs is not None
    assert ensembles.result_seconds(ours) == 2.0
    assert ensembles.result_seconds(theirs) == pytest.approx(
        1.0 + ensembles.CALL_EPOCHS * 64 * 50e-6)
    assert ensembles.rate(ours) == pytest.approx(16 / 10)
    assert ensembles.seconds(None) == ""


def test_a_class_with_one_side_has_a_row_and_one_with_none_has_not() -> None:
    def without(*systems: str) -> dict[tuple[str, str], float]:
        return {key: us for key, us in TIMES.items() if key[1] != "bf16" or key[0] not in systems}

    rows = rows_of("many", results(
        ensemble("A/16", 16), ensemble("B/16", 16, without("rawnn")),
        ensemble("C/16", 16, without("jax")), ensemble("D/16", 16, without("rawnn", "jax"))), 1)
    own, peer = "rawnn", "best peer"
    assert [(r["class"].partition(" ")[0], r[own], r[peer], r["ratio"]) for r in rows] == [
        ("float32", "0.800", "0.320", "2.50 x"), ("tf32", "1.60", "0.320", "5.00 x"),
        ("bf16", "2.00", "0.333", "6.00 x"),
        ("float32", "0.800", "0.320", "2.50 x"), ("tf32", "1.60", "0.320", "5.00 x"),
        ("bf16", "-", "0.333", ""),
        ("float32", "0.800", "0.320", "2.50 x"), ("tf32", "1.60", "0.320", "5.00 x"),
        ("bf16", "2.00", "-", ""),
        ("float32", "0.800", "0.320", "2.50 x"), ("tf32", "1.60", "0.320", "5.00 x")]
