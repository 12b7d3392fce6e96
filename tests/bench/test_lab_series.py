"""The table of the series in examples/lab: measured (here on the simulated GPU), kept, written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rawnn
from rawnn.bench.record import Record, Results, read_results
from rawnn.bench.render.machine import lab
from rawnn.common.errors import ConfigError, RawnnError
from tests import requires
from tools import lab_series

SMALL = {"transpose": {"rows": 64, "cols": 128}, "gemm": {"m": 64, "n": 64, "k": 64},
         "reduction": {"n": 8192}, "softmax": {"rows": 4, "cols": 64}}


def measured(*topics: str, also: tuple[str, ...] = ()) -> tuple[Results, list[str], list[str]]:
    """The records, what is missing, and what was said."""
    requires.module("cuda.bindings.nvrtc")
    said: list[str] = []
    device = rawnn.lab.simulated()
    opened: Any = SimpleNamespace(device=device, ordinal=0, machine=SimpleNamespace(gpu="none"))
    return *lab_series.measure(opened, topics, SMALL, also, 1, said.append), said


def table(found: Results, topic: str) -> str:
    [grid] = lab(found, topic, [p.stem for p in lab_series.steps_of(topic)])
    return grid.markdown()


@pytest.fixture
def one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every series the last step alone."""
    monkeypatch.setattr(lab_series, "steps_of", lambda topic: sorted(
        (lab_series.LAB / topic).glob("[1-9]_*.cu"))[-1:])


def test_every_topic_has_a_size() -> None:
    assert {p.parent.name for p in lab_series.LAB.glob("*/1_*.cu")} == set(lab_series.SIZES)


def test_steps_are_measured_beside_a_copy_and_kept(tmp_path: Path) -> None:
    result, missing, said = measured("transpose")
    assert missing == []
    entries = result.entries("lab")
    assert [e.variant for e in entries] == [
        *(p.stem for p in lab_series.steps_of("transpose")), "a copy"]
    assert all(e.samples("moved_bytes") == [2 * 64 * 128 * 4] for e in entries)
    assert len(entries[0].samples("launch_us")) == \
        lab_series.ROUNDS * (lab_series.BURST - lab_series.SKIPPED)
    assert any(line.startswith("transpose 5_four_by_four: 2.0 us") for line in said)
    result.write(tmp_path / "lab.json")
    assert read_results(tmp_path / "lab.json").records == result.records
    text = table(result, "transpose")
    assert "| 5_four_by_four | 2.0 | 2.0-2.0 | 32.8 | 1.0 | 100.0% |" in text
    assert "| a copy | 2.0 | 2.0-2.0 | 32.8 |  | 100.0% |  |  |" in text
    assert "rows = 64, cols = 128; cold L2 cache; medians of 24 launches" in text
    assert "[1_naive](transpose/1_naive.cu): reads are in order" in lab_series.lessons("transpose")


def test_steps_with_other_macros_stand_by_themselves(one_step: None) -> None:
    result, missing, _ = measured("gemm", also=("gemm/8_clusters:STAGES=3,GROUP=4", "softmax/1_x",
                                                "gemm/8_clusters:STAGES=none"))
    roles = {e.variant: e.conditions["role"] for e in result.entries("lab")}
    assert roles == {"8_clusters": "steps", "8_clusters:STAGES=3,GROUP=4": "also"}
    assert result.entries("lab")[0].samples("operations") == [2 * 64 ** 3]
    assert missing[0].startswith("gemm/8_clusters STAGES=none: ")
    assert "TFLOP/s" in table(result, "gemm")


def test_a_wrong_result_is_not_timed(one_step: None, monkeypatch: pytest.MonkeyPatch,
                                     tmp_path: Path) -> None:
    """The simulated GPU computes what the reference says, so the reference is spoilt behind it."""
    compare = lab_series.Step.compare

    def other(step: lab_series.Step, device: Any, rows_of: str | None) -> None:
        step.contents = {n: v + 1 for n, v in step.contents.items()}
        compare(step, device, rows_of)

    monkeypatch.setattr(lab_series.Step, "compare", other)
    with pytest.raises(RawnnError, match=r"5_four_by_four: the result at the size that is timed is "
                                         r"off by .* of its norm, and .* is allowed"):
        measured("transpose")


def test_a_step_without_samples_says_so(one_step: None) -> None:
    result, _, _ = measured("gemm")
    [grid] = lab(result, "gemm", ["7_none", "8_clusters"])
    assert [row[1] == "not measured" for row in grid.rows] == [True, False]


def test_a_gpu_is_asked_for() -> None:
    opened: Any = SimpleNamespace(device=None, machine=SimpleNamespace(gpu="there is no GPU"))
    with pytest.raises(ConfigError, match="measured on a GPU: there is no GPU"):
        lab_series.measure(opened, ["gemm"], SMALL)


@pytest.mark.parametrize(("last", "said"), [(10.0, []), (11.2, [
    "reduction: 7_last reaches 89.3% of a copy, less than 90%"])])
def test_a_last_step_far_from_its_limit_is_named(last: float, said: list[str]) -> None:
    found = Results(records=[
        Record(case="lab/reduction", variant=name, precision="", metric="launch_us", samples=[us],
               conditions={"role": role})
        for name, us, role in (("1_first", 99.0, "steps"), ("7_last", last, "steps"),
                               ("a copy", 10.0, "comparison"))])
    assert lab_series.short_of_limits(found) == said
