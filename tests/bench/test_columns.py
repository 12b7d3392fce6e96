"""Columns and source lines that tables share: each cell from its samples, calculated here."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, median, stdev
from typing import Any

import msgspec
import numpy as np
import pytest

from rawnn.bench.record import Entry, Results
from rawnn.bench.render import tables
from rawnn.bench.render.networks import networks
from rawnn.bench.render.tables import WATCHED_S, Column
from tests.bench.built import entry, place, results

MS = [4.0, 7.0, 5.0, 4.5]
MEASURED: dict[str, Sequence[float]] = {
    "epoch_ms": MS, "step_us": [40.0, 70.0, 50.0, 45.0], "lower_bound_us": [4.0],
    "accuracy": [0.9, 0.95, 0.92, 0.91], "peak_memory_bytes": [3 * 2**20, 9 * 2**20, 5 * 2**20],
    "energy_j": [3.0, 5.0], "seconds": [WATCHED_S, 1.0], "launches": [2.0, 2.5, 3.0],
    "graph_nodes": [1234.0], "step_bytes": [2e6, 4e6, 6e6], "sm_mhz": [1200.0, 1980.0]}


def made(metrics: dict[str, Sequence[float]] = MEASURED, variant: str = "best", **more: Any
         ) -> Results:
    return results(entry("workloads/mlp4", variant, metrics, **{"epochs": 20, **more}))


def cell(column: Column, found: Results) -> str:
    entries = found.entries()
    return column.cell(entries[-1], tables.Scope(found, entries))


def first(scope: tables.Scope, of: Entry) -> Entry:
    return scope.entries[0]


@pytest.mark.parametrize(("column", "wanted"), [
    (tables.median_of("", "epoch_ms"), f"{median(MS):.2f}"),
    (tables.range_of("", "epoch_ms"), "4.00-7.00"),
    (tables.iqr_of("", "epoch_ms"), f"{np.subtract(*np.quantile(MS, [0.75, 0.25])):#.2g}"),
    (tables.BOUND, f"{47.5 / 4:.0f}"),
    (tables.PLAN[0], "2.5"), (tables.PLAN[1], "1,234"), (tables.PLAN[2], "4"),
    (tables.ENERGY, f"{8.0 / (20 * 4):.3g}"),  # of all runs, over their epochs
    (tables.ACCURACY, f"{mean(MEASURED['accuracy']):.4f} ± {stdev(MEASURED['accuracy']):.4f}"),
    (tables.MEMORY, "9 MiB")])
def test_a_cell_is_of_all_samples(column: Column, wanted: str) -> None:
    assert cell(column, made()) == wanted


@pytest.mark.parametrize(("column", "missing"), [
    (tables.median_of("", "epoch_ms"), "epoch_ms"), (tables.range_of("", "epoch_ms"), "epoch_ms"),
    (tables.iqr_of("", "epoch_ms"), "epoch_ms"), (tables.BOUND, "lower_bound_us"),
    (tables.BOUND, "step_us"), *((column, "launches") for column in tables.PLAN),
    (tables.PLAN[1], "graph_nodes"), (tables.PLAN[2], "step_bytes"), (tables.ENERGY, "energy_j"),
    (tables.ENERGY, "seconds"), (tables.ACCURACY, "accuracy"),
    (tables.MEMORY, "peak_memory_bytes")])
def test_without_its_metric_a_cell_is_empty(column: Column, missing: str) -> None:
    assert cell(column, made({n: v for n, v in MEASURED.items() if n != missing})) == ""


def test_cells_of_what_says_too_little_are_empty() -> None:
    """One sample has no quartiles, a step on the host no launches, and energy that was watched too
    briefly, or for an unknown number of epochs, says nothing."""
    assert cell(tables.iqr_of("", "epoch_ms"), made({"epoch_ms": [1.0]})) == ""
    on_host = {**MEASURED, "launches": [0.0]}
    assert [cell(column, made(on_host)) for column in tables.PLAN] == ["", "", ""]
    briefly = {**MEASURED, "seconds": [WATCHED_S / 2, WATCHED_S / 2 - 0.01]}
    assert cell(tables.ENERGY, made(briefly)) == ""
    assert cell(tables.ENERGY, made({**MEASURED, "seconds": [WATCHED_S / 2] * 2})) != ""
    assert cell(tables.ENERGY, made(epochs=None)) == ""
    absent = tables.median_of("", "nothing", absent="status")
    assert cell(absent, made(status="failed")) == "failed"


@pytest.mark.parametrize(("other", "speedup", "interval"), [
    ([10.0, 12.0, 11.0], "2.32", "range 1.43-3.00"), ([2.0], "0.42", "")])
def test_an_entry_is_compared_with_another(other: list[float], speedup: str,
                                           interval: str) -> None:
    """The median of the other's samples over that of ours; the least over our greatest, and so
    on."""
    found = results(entry("workloads/mlp4", "none", {"epoch_ms": other}),
                    entry("workloads/mlp4", "best", {"epoch_ms": MS}))
    assert cell(tables.speedup_over("", first), found) == speedup
    assert cell(tables.interval_over("", first), found) == interval
    assert cell(tables.speedup_over("", lambda scope, of: None), found) == ""
    lost = results(entry("workloads/mlp4", "none", {"epoch_ms": other}, status="wrong"),
                   entry("workloads/mlp4", "best", {"epoch_ms": MS}))
    assert cell(tables.speedup_over("", first), lost) == ""
    assert cell(tables.interval_over("", first), lost) == ""


@pytest.mark.parametrize(("nbytes", "words"), [
    (1.5e3, "0.0015"), (999e6, "999"), (999.6e6, "1e+03"), (1e9, "1,000"), (2.5e9, "2,500")])
def test_megabytes_have_three_digits(nbytes: float, words: str) -> None:
    assert tables.megabytes(nbytes) == words


@pytest.mark.parametrize(("metrics", "wanted"), [
    ({"launch_us": [3.0], "step_us": [2.0], "epoch_ms": [1.0]}, [1.0]),
    ({"launch_us": [3.0], "step_us": [2.0]}, [2.0]), ({"launch_us": [3.0]}, [3.0]),
    ({"accuracy": [0.5]}, [])])
def test_entries_are_compared_by_the_longest_time_they_have(
        metrics: dict[str, Sequence[float]], wanted: list[float]) -> None:
    [found] = made(metrics).entries()
    assert tables.time_of(found) == wanted
    assert tables.is_measured(found) == bool(wanted)


# -- where, when and how ---------------------------------------------------------------------------


def sources(**second: Any) -> str:
    """The source line of two entries, of which the second has other conditions."""
    shared: dict[str, Any] = {"epochs": 20, "lr": 0.1, "batch": 4096, "seed": 7,
                              "layers": [784, 10], "dataset": "mnist"}
    found = results(entry("workloads/a", "best", {"epoch_ms": [1.0]}, **shared),
                    entry("workloads/b", "best", {"epoch_ms": [2.0]}, **{**shared, **second}))
    return tables.provenance(found, found.entries(), libraries=False, shared=tuple(shared))


ALIKE = {"epochs": "20 epochs", "lr": "lr 0.1", "batch": "batch 4,096", "seed": "seeds from 7",
         "layers": "784-10", "dataset": "on mnist"}


@pytest.mark.parametrize("changed", ["", *ALIKE])
def test_conditions_that_all_rows_have_are_said(changed: str) -> None:
    other = {"layers": [784, 20], "dataset": "other"}.get(changed, 9)
    parts = sources(**({changed: other} if changed else {})).split("; ")
    assert parts == ["NVIDIA Test GPU, driver 580.1, CUDA 13.0",
                     "one run each, so that no spread is known",
                     *(words for name, words in ALIKE.items() if name != changed),
                     "2026-01-01, commit abc1234"]


@pytest.mark.parametrize(("clocks", "said"), [
    ([], []), ([[1980.0]], ["SM at 1980 MHz"]),
    ([[1500.0, 1980.0], [1200.0]], ["SM at 1200-1980 MHz"])])
def test_clocks_are_those_of_all_rows(clocks: list[list[float]], said: list[str]) -> None:
    found = results(*(entry("workloads/a", f"{n}", {"epoch_ms": [1.0], "sm_mhz": mhz})
                      for n, mhz in enumerate(clocks or [[]])))
    parts = tables.provenance(found, found.entries(), libraries=False).split("; ")
    assert parts[1:-2] == said


def test_a_source_says_how_often_where_and_what_ended_it() -> None:
    old, new = place("1234567890", date="2025-12-31T00:00:00+00:00"), place()
    new = msgspec.structs.replace(new, clocks={"sm": "1980 MHz"})
    found = results(
        entry("workloads/a", "best", {"epoch_ms": [1.0] * 3}, where=old),
        entry("workloads/b", "best", {"epoch_ms": [1.0] * 5}, where=new),
        entry("workloads/c", "best", {"epoch_ms": [1.0] * 9}, where=new, status="wrong"),
        places=[old, new], ended={"workloads": "out of time", "ladder": "no"})
    assert tables.provenance(found, found.entries(), "by events, {runs}", closing="the end").split(
        "; ") == ["NVIDIA Test GPU, driver 580.1, CUDA 13.0", "numpy 2",
                  "by events, medians of 3-5 interleaved runs", "in 2 sittings", "sm 1980 MHz",
                  "2026-01-01, commit abc1234", "ended early: out of time", "the end"]
    assert tables.provenance(found, []) == ""


# -- which rows, and which network -----------------------------------------------------------------


def test_groups_are_named_by_what_sets_them_apart_the_newest_first() -> None:
    """By GPU, commit and epochs, of which only those are said that differ; the GPU always."""
    gpus = {name: place("abc1234def", name, f"2026-01-0{day}T00:00:00+00:00")
            for name, day in (("A", 1), ("B", 3), ("C", 2))}
    newer = place("def5678abc", "B", "2026-02-01T00:00:00+00:00")

    def of(where: Any, epochs: int) -> Any:
        return entry("workloads/x", f"{where.key}{epochs}", {"epoch_ms": [1.0]}, where=where,
                     epochs=epochs)

    for rows, names in (
            ([(gpus["A"], 3), (gpus["A"], 3)], ["A"]),
            ([(where, 3) for where in gpus.values()], ["B", "C", "A"]),
            ([(gpus["A"], 20), (gpus["A"], 3)], ["A, 20 epochs", "A, 3 epochs"]),
            ([(gpus["B"], 3), (newer, 3)], ["B, commit def5678", "B, commit abc1234"]),
            ([(gpus["A"], 1), (newer, 3), (gpus["B"], 3)], [
                "B, commit def5678, 3 epochs", "B, commit abc1234, 3 epochs",
                "A, commit abc1234, 1 epoch"])):
        found = results(*(of(where, epochs) for where, epochs in rows),
                        places=[*gpus.values(), newer])
        assert list(tables.groups(found, found.entries("workloads"))) == names


BOUND_BY = {"memory": (9.0, 3.0, 1.0), "arithmetic": (3.0, 9.0, 1.0), "waiting": (1.0, 3.0, 9.0)}


@pytest.mark.parametrize(("plain", "coarse", "exchanges", "times", "wanted"), [
    ("arithmetic", "arithmetic", (4, 4), 3.0, True), ("memory", "arithmetic", (4, 4), 3.0, False),
    ("arithmetic", "memory", (4, 4), 3.0, False), ("waiting", "waiting", (4, 4), 3.0, False),
    ("arithmetic", "arithmetic", (0, 4), 3.0, False),
    ("arithmetic", "arithmetic", (4, 0), 3.0, False),
    ("arithmetic", "arithmetic", (4, 4), 2.9, False), ("arithmetic", "", (4, 4), 3.0, False),
    ("", "arithmetic", (4, 4), 3.0, False)])
def test_a_step_is_bound_by_tensor_cores_if_it_waits_for_products_in_both_precisions(
        plain: str, coarse: str, exchanges: tuple[int, int], times: float, wanted: bool) -> None:
    """And in float32 for three in the place of one. Without limits nobody knows."""
    made = []
    for precision, by, count, scale in (("float32", plain, exchanges[0], times),
                                        ("tf32", coarse, exchanges[1], 1.0)):
        memory, arithmetic, waiting = BOUND_BY[by] if by else (0.0, 0.0, 0.0)
        limits: dict[str, Sequence[float]] = {
            "lower_bound_us": [99.0], "lower_bound_memory_us": [memory * scale],
            "lower_bound_arithmetic_us": [arithmetic * scale],
            "lower_bound_waiting_us": [waiting * scale], "lower_bound_exchanges": [float(count)]}
        made.append(entry("sample/1", "rawnn best", {"step_us": [100.0], **(limits if by else {})},
                          precision=precision, layers=[30, 20, 10], batch=7))
    [network] = networks(results(*made), "sample")
    assert network.is_tensor_bound is wanted
    # Forward, weight gradients, and the input gradient of the second layer alone.
    assert network.multiply_adds == 7 * (2 * 30 * 20 + 3 * 20 * 10)
    assert (network.weights, str(network)) == (800, "30-20-10, batch 7, , ")
