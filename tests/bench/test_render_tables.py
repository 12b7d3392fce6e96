"""Tables of records: what a cell says, which rows may share a table, what stands below it."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from rawnn.bench.harness import sample_of
from rawnn.bench.peers.worker import Timed
from rawnn.bench.record import Results
from rawnn.bench.render.grid import Grid
from rawnn.bench.render.networks import networks
from rawnn.bench.render.peer_programs import headline
from rawnn.bench.render.random_networks import (
    break_even_steps,
    sample,
    samples_of,
    setup_medians,
    summaries,
)
from rawnn.bench.render.suites import SUITES, markdown
from rawnn.bench.render.tables import groups, machine, unequal
from rawnn.bench.render.texts import bound_multiple, factor, milliseconds, three_digits
from rawnn.bench.render.training import ladder_remarks, toggle_grids
from rawnn.opts import TOGGLES
from tests.bench.built import entry, place, programs, reference, results, rung
from tests.records.tables import suites


@pytest.fixture
def ladder() -> Results:
    return results(rung("baseline", 20.0, 22.0, 21.0),
                   rung("cublas", status="unavailable", reason="no package"),
                   rung("fuse", 10.0, 10.5, 10.25, notes=["cudnn left out"]),
                   rung("cudnn", 11.5, 11.4, 12.0), reference(0.91, 0.93, 0.92))


def cells(found: Results, suite: str, heading: str) -> list[str]:
    [grid] = SUITES[suite].grids(found)
    place = list(grid.headings).index(heading)
    return [row[place] for row in grid.rows]


def test_speedups_of_a_ladder_skip_rungs_that_were_not_measured(ladder: Results) -> None:
    assert cells(ladder, "ladder", "epoch (ms)") == ["21.0", "unavailable", "10.2", "11.5"]
    assert cells(ladder, "ladder", "x before") == [
        "", "", f"{21 / 10.25:.2f}", f"{10.25 / 11.5:.2f}"]
    assert cells(ladder, "ladder", "x baseline") == ["", "", "2.05", "1.83"]
    assert cells(ladder, "ladder", "x lower bound") == ["21", "", "10", "12"]
    # Three samples a side have no interval worth the name: the range is 20/10.5 to 22/10.
    assert cells(ladder, "ladder", "95 %")[2] == "range 1.90-2.20"


def test_eight_samples_a_side_have_an_interval() -> None:
    found = results(rung("baseline", *[20.0 + i / 100 for i in range(8)]),
                    rung("fuse", *[10.0 + i / 100 for i in range(8)]))
    text = cells(found, "ladder", "95 %")[1]
    low, high = map(float, text.split("-"))
    assert low <= 20.035 / 10.035 <= high
    assert high - low < 0.02


def test_without_a_baseline_there_is_no_overall_speedup() -> None:
    found = results(rung("baseline", status="failed", reason="x"), rung("nosync", 5.0))
    [grid] = SUITES["ladder"].grids(found)
    assert "x baseline" not in grid.headings
    assert "x before" not in grid.headings


def test_accuracies_are_compared_with_the_reference(ladder: Results) -> None:
    # Samples 0.92 of seeds 0, 1, 2; references 0.91, 0.93, 0.92: the largest difference is 0.01.
    assert cells(ladder, "ladder", "reference")[0] == "agrees (0.0100)"
    wrong = results(rung("fuse", 1.0), reference(0.5, 0.5001, 0.4999))
    assert cells(wrong, "ladder", "reference") == ["DIFFERS (0.4200)"]
    assert any("NOT within two standard deviations" in text for text in ladder_remarks(wrong))


def test_accuracies_are_compared_with_the_baseline_where_float64_was_not_computed() -> None:
    found = results(rung("baseline", 20.0, 21.0), rung("fuse", 10.0, 11.0))
    found.where("ladder", variant="fuse", metric="accuracy")[0].samples[:] = [0.92, 0.5]
    assert cells(found, "ladder", "reference") == ["", "DIFFERS (0.4200)"]
    assert any("the accuracy of fuse, 0.7100, is NOT within" in t for t in ladder_remarks(found))
    assert ladder_remarks(found)[-1].startswith("reference: baseline (--oracle compute")


def test_remarks_name_reasons_notes_losses_and_noise(ladder: Results) -> None:
    text = "\n".join(ladder_remarks(ladder))
    assert "cublas unavailable: no package" in text
    assert "fuse: cudnn left out" in text
    assert "cudnn is slower than fuse (0.89x), and their samples do not overlap" in text
    close = results(rung("baseline", 10.0, 12.0, 11.0), rung("nosync", 11.5, 10.5, 11.6))
    assert any("may be noise" in text for text in ladder_remarks(close))
    equal = results(rung("baseline", 10.0, 12.0, 11.0), rung("nosync", 10.9, 10.5, 11.6))
    assert "nosync and baseline differ by no more than the noise" in ladder_remarks(equal)
    simulated = place(device="sim")
    made = results(rung("a", 1.0, where=simulated, synthetic=True), places=[simulated])
    assert "SIMULATED" in " ".join(ladder_remarks(made))
    assert "SYNTHETIC" in " ".join(ladder_remarks(made))


# -- which rows may share a table ------------------------------------------------------------------


def sets(*epochs: int, commits: tuple[str, ...] = ("abc1234",), gpus: tuple[str, ...] = ("A",)
         ) -> Results:
    places = [place(commit, gpu, f"2026-01-0{n + 1}") for n, commit in enumerate(commits)
              for gpu in gpus]
    return results(*(entry("workloads/mlp4", f"best,{n}{p.key}", {"epoch_ms": [1.0]}, where=p,
                           epochs=e) for n, e in enumerate(epochs) for p in places), places=places)


@pytest.mark.parametrize(("found", "why"), [
    (sets(3, 20), "unequal epochs: .* has 3, .* has 20"),
    (sets(3, commits=("abc1234", "def5678")), "unequal commits: .* has abc1234, .* has def5678"),
    (sets(3, gpus=("NVIDIA H100", "NVIDIA H200")),
     "unequal GPUs: .* has NVIDIA H100, .* has NVIDIA H200")])
def test_rows_of_unequal_epochs_gpus_or_commits_share_no_table(found: Results, why: str) -> None:
    entries = found.entries("workloads")
    assert re.search(why, unequal(found, entries))
    several = groups(found, entries)
    assert len(several) == 2
    assert all(not unequal(found, each) for each in several.values())
    assert all(not unequal(found, grid.entries) for grid in SUITES["workloads"].grids(found))


def test_rows_that_are_alike_share_one() -> None:
    found = sets(3, 3)
    assert not unequal(found, found.entries("workloads"))
    assert list(groups(found, found.entries("workloads"))) == ["A"]


# -- toggles and ablation --------------------------------------------------------------------------


def toggled(*epochs_ms: tuple[str, list[float]], epochs: int = 6) -> Results:
    return results(*(entry("toggles/linear", opt, {"epoch_ms": ms, "accuracy": [0.9] * len(ms)},
                           epochs=epochs, dataset="mnist") for opt, ms in epochs_ms))


def test_a_toggle_is_shown_without_it_and_with_it() -> None:
    found = toggled(("preload,arena,nosync", [30.0, 31.0, 29.0]),
                    ("preload,arena,nosync,fuse", [5.0, 5.1, 4.9]))
    [grid] = toggle_grids(TOGGLES["fuse"], found)
    assert [row[:4] for row in grid.rows] == [
        ["`linear`", "`preload,arena,nosync`", "30.0 ± 1.0", ""],
        ["", "with `fuse`", "5.00 ± 0.10", "6.00 x, range 5.69-6.33"]]
    once = toggled(("preload,arena,nosync", [30.0]), ("preload,arena,nosync,fuse", [5.0]))
    assert toggle_grids(TOGGLES["fuse"], once)[0].rows[1][3] == "6.00 x, run once"
    assert toggle_grids(TOGGLES["mma"], found) == []


@pytest.mark.parametrize("opt", ["preload,arena,nosync", "preload,arena,nosync,fuse"])
def test_half_of_a_pairing_shows_no_speedup_and_is_no_row(opt: str) -> None:
    assert toggle_grids(TOGGLES["fuse"], toggled((opt, [30.0, 31.0]))) == []


def test_a_toggle_of_the_batch_is_compared_by_epochs() -> None:
    """Twice the batch is half the steps: the time of a step would say that it is slower."""
    found = results(*(entry("toggles/linear", opt, {"epoch_ms": [ms], "step_us": [us]}, epochs=6)
                      for opt, ms, us in (("best", 20.0, 20.0), ("best,batch=256", 15.0, 30.0))))
    [grid] = toggle_grids(TOGGLES["batch"], found)
    assert grid.rows[1][3] == "1.33 x, run once"


def test_what_cannot_run_is_a_row_that_says_why() -> None:
    found = toggled(("preload,arena,nosync", [30.0]))
    found.records += entry("toggles/linear", "preload,arena,nosync,fuse", {"epoch_ms": []},
                           epochs=6, dataset="mnist", status="unavailable", reason="too old a GPU")
    [grid] = toggle_grids(TOGGLES["fuse"], found)
    assert grid.rows[1][2:4] == ["cannot run", ""]
    assert any("too old a GPU" in note for note in grid.notes)


def test_an_ablation_divides_both_ways() -> None:
    shared = {"epochs": 20, "dataset": "mnist", "base": "a", "full": "best"}
    found = results(*(entry("ablation/linear", opt, {"epoch_ms": [ms] * 3}, **shared) for opt, ms in
                      (("a", 40.0), ("best", 2.0), ("a,fuse", 20.0), ("best,-fuse", 8.0))))
    [grid] = SUITES["ablation"].grids(found)
    assert grid.rows == [["`linear`", "`fuse`", "2.00 x", "4.00 x", "2.00"]]
    refused = [entry("ablation/linear", opt, {"epoch_ms": []}, status="unavailable",
                     reason=f"{why}: in full", **shared)
               for opt, why in (("a", "one"), ("a,fuse", "two"), ("best", "three"))]
    [grid] = SUITES["ablation"].grids(results(*refused))
    assert grid.rows == [["`linear`", "`fuse`", "cannot run: one", "cannot run: three", ""]]


# -- peers -----------------------------------------------------------------------------------------

TIMES = {("rawnn", "float32"): 10.0, ("rawnn", "bf16"): 5.0, ("torch", "float32"): 30.0,
         ("jax", "float32"): 20.0, ("jax", "bf16"): 4.0}


def test_a_sample_is_summarised_against_the_better_peer_and_each() -> None:
    other = {key: us * (2 if key[0] == "rawnn" else 1) for key, us in TIMES.items()}
    found = results(programs("sample/1", TIMES, seed=1), programs("sample/2", other, seed=2))
    lines = {(s.name, s.against): s for s in summaries(networks(found, "sample"))}
    best = lines["float32 against true float32", "the best peer"]
    assert sorted(v for v, _ in best.speedups) == pytest.approx([1.0, 2.0])
    assert best.mean[0] == pytest.approx(2 ** 0.5)
    assert best.worst == (pytest.approx(1.0), "seed 2")
    assert lines["float32 against true float32", "torch"].mean[0] == pytest.approx(3 / 2 ** 0.5)
    assert lines["bf16 against bf16", "jax"].worst[0] == pytest.approx(0.4)
    summary, table = sample(found)
    assert "0.40 x (seed 2)" in summary.markdown()
    assert [row[0] for row in table.rows] == [
        f"seed {n}: 16-64-8, batch 32, mse, sgd" for n in (1, 2)]


def test_wrong_programs_never_count_and_are_named() -> None:
    found = results(programs("sample/1", TIMES, wrong=[("jax", "bf16")]))
    lines = {(s.name, s.against): s for s in summaries(networks(found, "sample"))}
    assert lines["bf16 against bf16", "jax"].missing == 1
    assert any("jax <form> bf16 wrong: off" in note for note in sample(found)[1].notes)
    grids = SUITES["peers"].grids(results(programs("peers/mlp4", TIMES, wrong=[("jax", "bf16")])))
    assert any("WRONG" in row for row in grids[-1].rows)
    for suite in ("peers", "sweep"):
        named = SUITES[suite].grids(results(programs(f"{suite}/mlp4", TIMES,
                                                     wrong=[("jax", "bf16")])))
        assert [note for grid in named for note in grid.notes if "wrong" in note] == \
            ["mlp4: jax <form> bf16 wrong: off"]


def test_the_headline_has_the_fastest_of_each_system() -> None:
    [grid] = headline(results(programs("peers/mlp4", TIMES)))
    assert grid.rows[0] == ["`mlp4`", "16-64-8, batch 32", "float32", "10.0", "30.0", "20.0", "",
                            "**2.00 x**", ""]
    assert grid.rows[2][2:] == ["bf16", "5.0", "", "4.0", "", "**0.80 x**", ""]


def test_networks_that_tensor_cores_bind_are_shown_apart_against_the_best_peer() -> None:
    """Of two one is bound: three products for one take three times as long there."""
    def of(name: str, bound: bool) -> list[Any]:
        made = []
        for precision, us, scale in (("float32", 10.0, 3.0), ("tf32", 6.0, 1.0)):
            parts: dict[str, Any] = {
                "lower_bound_us": [5.0], "lower_bound_memory_us": [1.0 if bound else 20.0],
                "lower_bound_arithmetic_us": [2.0 * scale], "lower_bound_waiting_us": [0.5],
                "lower_bound_exchanges": [4.0]}
            made += entry(f"sample/{name}", "rawnn best", {"step_us": [us], **parts},
                          precision=precision, system="rawnn", layers=[16, 64, 8], batch=32)
        return made + programs(f"sample/{name}", {("torch", "tf32"): 40.0 if bound else 50.0,
                                                  ("jax", "tf32"): 30.0 if bound else 80.0})

    found = networks(results(of("1", True), of("2", False)), "sample")
    lines = {(s.name, s.against): s.speedups for s in summaries(found)}
    name = "float32 against tf32"
    assert lines[name, "the best peer"] == [(3.0, "seed 1"), (5.0, "seed 2")]
    assert lines[f"{name}, tensor-bound", "the best peer"] == [(3.0, "seed 1")]
    assert lines[f"{name}, others", "the best peer"] == [(5.0, "seed 2")]
    assert {words for label, words in lines if "," in label} == {"the best peer"}


@pytest.mark.parametrize(("rawnn", "torch", "jax", "steps"), [
    ((7.0, 10.0), (1.0, 40.0), (15.0, 20.0), 200_000),  # 6 s at 30 us a step; ahead of JAX always
    ((7.0, 10.0), (9.0, 40.0), (15.0, 20.0), 0),
    ((7.0, 10.0), (1.0, 40.0), (6.0, 14.0), 250_000),
    ((7.0, 10.0), (8.0, 9.0), (15.0, 20.0), float("inf")),  # the faster step is ahead in the end
    ((7.0, 10.0), (7.0, 10.0), (7.0, 11.0), 0)])
def test_a_program_pays_from_the_step_at_which_setup_and_steps_took_less_than_each_peers(
        rawnn: tuple[float, float], torch: tuple[float, float], jax: tuple[float, float],
        steps: float) -> None:
    """The program that is the fastest counts, whatever the setup of the others."""
    systems = {"rawnn": rawnn, "torch": torch, "jax": jax}
    found = results(*(entry("sample/1", f"{name} {us}", {"step_us": [us], "setup_s": [seconds]},
                            system=name, layers=[8, 4], batch=2)
                      for name, (setup, step) in systems.items()
                      for us, seconds in ((step, setup), (step * 2, 0.0))))
    network = networks(found, "sample")
    assert break_even_steps(network) == [pytest.approx(steps, abs=1)]
    assert setup_medians(network) == {name: setup for name, (setup, _) in systems.items()}


def test_several_samples_are_shown_by_themselves() -> None:
    found = results(*(programs(f"sample/{n}", TIMES, seed=n) for n in (1, 2, 50)))
    text = markdown(found, "sample")
    assert "Geometric means of the random samples (seeds 1-2, 50-50)" in text


# -- others ----------------------------------------------------------------------------------------


def test_a_comparison_says_what_noise_explains() -> None:
    found = results(*(entry("compare", opt, {"step_us": us, "loss": [1.0]}, layers=[784, 10],
                            batch=1, dataset="mnist") for opt, us in (
        ("best", [10.0, 10.2, 9.8]), ("best,bf16", [5.0, 5.1, 4.9]), ("a", [10.1, 9.9, 10.0]))))
    [grid] = SUITES["compare"].grids(found)
    assert grid.notes[0] == "best,bf16 is 2.000 times faster than best (range 1.922-2.082)"
    assert grid.notes[1].startswith("a and best differ by no more than the noise")


def test_scaling_divides_examples_a_second() -> None:
    found = results(*(entry("scaling/mlp4", "rawnn", {"step_us": [us]}, ranks=n, batch=batch,
                            scaling=kind, epochs=8) for kind, n, batch, us in (
        ("strong", 1, 64, 100.0), ("strong", 2, 64, 60.0), ("weak", 1, 32, 60.0),
        ("weak", 2, 64, 80.0))))
    assert cells(found, "scaling", "speedup") == ["1.00", "1.67", "1.00", "1.50"]
    assert cells(found, "scaling", "efficiency")[3] == "75%"


def test_every_suite_is_empty_without_records() -> None:
    for suite in SUITES.values():
        assert suite.grids(results()) == []
        assert suite.charts(results()) == {}


def test_a_grid_is_markdown_with_its_columns_set() -> None:
    grid = Grid(("a", "b", "c"), [["x", "1", ""], ["y", "2", ""]], ("a",), notes=["n"], source="s")
    assert grid.without_empty(("b", "c")).markdown() == \
        "| a | b |\n|---|---:|\n| x | 1 |\n| y | 2 |\n\n- n\n\ns.\n"


@pytest.mark.parametrize(("made", "text"), [
    (milliseconds(2.4996), "2.50"), (milliseconds(1234.5), "1234"), (three_digits(1234.5), "1,234"),
    (factor(9.994), "9.99"), (factor(12.34), "12.3"), (factor(None), ""),
    (bound_multiple(20.0, 10.0), "2.00"), (bound_multiple(200.0, 10.0), "20"),
    (bound_multiple(1.0, None), "")])
def test_figures_have_the_digits_that_a_reader_needs(made: str, text: str) -> None:
    assert made == text


def test_a_time_that_never_became_steady_is_named_below_its_table() -> None:
    timed = sample_of(Timed(milliseconds=[1.0], steady=False), 10, None, "epoch_ms")
    assert timed.metrics == {"epoch_ms": [1.0], "step_us": [100.0]}
    found = results(entry("workloads/mlp4", "best", {"epoch_ms": [1.0]}, notes=timed.notes,
                          epochs=3))
    assert "- mlp4 best: it never became steady" in markdown(found, "workloads")
    assert not sample_of(Timed(milliseconds=[1.0]), 10, None).notes


@pytest.mark.parametrize(("changed", "named"), [
    ({}, "NVIDIA Test GPU, driver 580.1, CUDA 13.0"),
    ({"gpu": {"name": "A"}}, "A"), ({"gpu": {"name": "A", "cuda": "12.8"}}, "A, CUDA 12.8"),
    ({"gpu": {"name": "A", "driver": "7"}}, "A, driver 7"),
    ({"device": "host", "gpu": {}}, "host (Linux x86_64), by the wall clock"),
    ({"device": "sim"}, "a SIMULATED GPU, whose times say nothing about a real one"),
    ({"device": "sim", "gpu": {}}, "a SIMULATED GPU, whose times say nothing about a real one")])
def test_a_machine_is_named_with_its_driver(changed: dict[str, Any], named: str) -> None:
    assert machine(msgspec.structs.replace(place(), **changed)) == named


@pytest.mark.parametrize("suite", sorted(suites().keys() & SUITES.keys()))
def test_a_table_in_markdown_begins_behind_an_empty_line_and_all_are_there(suite: str) -> None:
    """Markdown makes one table of rows that follow each other, and takes a row behind a text for
    a part of it."""
    found = suites()[suite]
    lines = markdown(found, suite).split("\n")
    begins = [n for n, line in enumerate(lines)
              if line.startswith("|") and not (n and lines[n - 1].startswith("|"))]
    assert len(begins) == len(SUITES[suite].grids(found)) > 0
    assert all(n == 0 or not lines[n - 1] for n in begins)
    for begin, grid in zip(begins, SUITES[suite].grids(found), strict=True):
        assert lines[begin].strip("| ").split(" | ") == [h or "" for h in grid.headings]
        assert set(lines[begin + 1]) <= set("|-:")
        assert all(line.startswith("|") for line in lines[begin:begin + 2 + len(grid.rows)])


def test_a_sample_of_which_no_network_was_reached_is_none() -> None:
    found = results(programs("sample/1", TIMES, seed=1), programs("sample/2", TIMES, seed=2),
                    *(entry(f"sample/{n}", "rawnn", {"step_us": []}, status="not measured",
                            layers=[16, 8]) for n in (3, 50, 51)))
    assert [[network.name for network in part] for part in samples_of(found)] == [["1", "2"]]
