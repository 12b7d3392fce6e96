"""What toggles are worth: what each asks to be measured, and the table that comes of it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rawnn.bench.records import GPU_TIMER
from rawnn.bench.sets import Measurement, SetsResult
from rawnn.bench.statistics import spread
from rawnn.bench.suites import read_suites
from rawnn.bench.worth import comparison_sets, has_all, markdown, pairings, toggles_named
from rawnn.common.errors import ConfigError
from rawnn.engine.config import Config
from rawnn.engine.result import Environment
from rawnn.model.workloads import workload
from rawnn.opts import TOGGLES, select
from rawnn.opts.presets import PRESETS
from tests.bench.conftest import GPU
from tests.engine import CAPABLE

EVERY = comparison_sets(list(TOGGLES.values()))


@pytest.mark.parametrize(("name", "opt"), EVERY)
def test_every_set_can_run_where_every_toggle_can(name: str, opt: str) -> None:
    config = Config(**{**workload(name), "opt": opt})
    selection = select(opt, config.network(), 100, CAPABLE, batch=config.recipe().batch)
    asked = {word.partition("=")[0] for word in opt.split(",") if word} - {*PRESETS}
    assert asked <= set(selection.values)


@pytest.mark.parametrize("toggle", TOGGLES.values(), ids=lambda toggle: toggle.name)
def test_every_toggle_is_compared_with_its_absence(toggle) -> None:
    found = pairings(toggle)
    assert bool(found) == (toggle.group != "scale")  # `bench scaling` is for that
    assert all(c.of_part(toggle) for c in found) == (not found)
    for comparison in found:
        beside = [w for w in comparison.beside.split(",") if w.partition("=")[0] == toggle.name]
        assert bool(beside) == comparison.of_part(toggle)
        assert all("=-" in word for word in beside)  # one of its parts is left out
        added = comparison.added or (toggle.name,)
        assert any(word.partition("=")[0] == toggle.name for word in added)


def test_equal_sets_are_measured_once() -> None:
    assert len({(name, frozenset(opt.split(","))) for name, opt in EVERY}) == len(EVERY)


def test_an_unknown_toggle_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'nosync'"):
        toggles_named(["nosink"])


def result_of(gpu: str, times: dict[str, list[float]]) -> SetsResult:
    place = Environment("0.1", "abc", "3.11", "Linux x86_64", "cuda", {**GPU, "name": gpu}, {}, {},
                        "2026-01-01T00:00:00+00:00")
    measured = [Measurement(
        workload="linear", opt=opt, epochs=20, steps=10, us=spread(ms),
        epoch_ms=spread(ms), accuracies=[0.9, 0.92], peak_memory_bytes=3 << 20)
        for opt, ms in times.items()]
    return SetsResult(kind="toggles", repeats=3, environment=place, dataset="mnist",
                      synthetic=False, timer=GPU_TIMER, measurements=measured)


def test_a_run_that_was_ended_early_has_not_what_it_did_not_come_to() -> None:
    toggle = TOGGLES["tiled"]
    sets = comparison_sets([toggle])
    whole = [Measurement(workload=name, opt=opt, epochs=1, epoch_ms=spread([1.0]))
             for name, opt in sets]
    ended = [*whole[:-1], Measurement(workload=sets[-1][0], opt=sets[-1][1], epochs=1)]
    result = result_of("H200", {})
    assert has_all(msgspec.structs.replace(result, measurements=whole), toggle)
    assert not has_all(msgspec.structs.replace(result, measurements=ended), toggle)


def test_a_table_says_how_many_times_faster_and_whether_that_is_noise() -> None:
    one = result_of("One", {"preload": [80, 82, 90], "preload,arena": [40, 41, 42],
                            "preload,nosync": [50, 51, 52], "preload,arena,nosync": [49, 50, 53]})
    two = result_of("Two", {"preload": [8, 8, 8], "preload,arena": [10, 10, 10]})
    text = markdown(TOGGLES["arena"], [one, two])
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()
            if line.startswith("|")]
    assert rows[0] == ["workload", "toggles", "One", "Two", "other GPUs", "test accuracy", "memory"]
    assert rows[2] == ["`linear`", "`none,preload`", "82.0 ± 2.0", "8.00 ± 0.00", "not measured",
                       "0.9100 ± 0.0141", "3 MiB"]
    assert rows[3][:4] == ["", "with `arena`", "41.0 ± 1.0 (2.00 x, 1.90-2.25)",
                           "10.0 ± 0.0 (0.80 x, 0.80-0.80)"]
    assert rows[5][2:4] == ["50.0 ± 1.0 (1.02 x, 0.94-1.06, in the noise)", "not measured"]
    assert "cannot run" not in text
    spelled = result_of("One", {f"none,{m.opt}": [80, 82, 90] for m in one.measurements})
    assert "82.0 ± 2.0" in markdown(TOGGLES["arena"], [spelled])  # as lists are spelled now
    assert text.index("One, driver") < text.index("Two, driver")


def test_what_could_not_run_is_said_below_the_table() -> None:
    [measured] = result_of("One", {"preload": [1.0]}).measurements
    failed = msgspec.structs.replace(measured, opt="preload,arena", us=None, epoch_ms=None,
                                     accuracies=[], reason="arena: only for a GPU")
    result = msgspec.structs.replace(result_of("One", {}), measurements=[measured, failed])
    text = markdown(TOGGLES["arena"], [result])
    assert "| cannot run |" in text
    assert "- One cannot run linear with `none,preload,arena`: arena: only for a GPU" in text


def test_parts_are_measured_and_shown_once_they_are() -> None:
    fuse = TOGGLES["fuse"]
    without, with_it = (f"preload,arena,nosync,{word},graphs=epoch"
                        for word in ("fuse=-linear", "fuse"))
    assert {("linear", without), ("linear", with_it)} <= set(comparison_sets([fuse]))
    both = markdown(fuse, [result_of("H", {without: [3.0], with_it: [2.0]})])
    assert "| `linear` | `preload,arena,nosync,graphs=epoch,fuse=-linear` | 3.00" in both
    assert "fuse=-linear" not in markdown(fuse, [result_of("H", {with_it: [2.0]})])


def test_every_fusion_is_shown_where_it_finds_a_place() -> None:
    """Of the built-in workloads none has an activation that keeps its input, or a loss that several
    blocks share."""
    from rawnn.opts.fuse import FUSIONS

    asked = {word for c in pairings(TOGGLES["fuse"]) for word in c.beside.split(",")}
    assert {name for name in FUSIONS if f"fuse=-{name}" not in asked} == {"late_slope",
                                                                             "loss_sums"}


def test_a_file_of_ones_own_says_what_shows_a_toggle(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('[toggles.compare]\nfuse = [{ workloads = ["wide64"], beside = "none" }]\n')
    suite = read_suites(str(own)).toggles
    assert comparison_sets([TOGGLES["fuse"]], suite) == [
        ("wide64", "none"), ("wide64", "none,fuse")]
    assert pairings(TOGGLES["pdl"], suite) == pairings(TOGGLES["pdl"])
    own.write_text("[toggles.compare]\nfuse = []\n")
    with pytest.raises(ConfigError, match=r"nothing under \[toggles.compare\] shows"):
        toggles_named(["fuse"], read_suites(str(own)).toggles)
