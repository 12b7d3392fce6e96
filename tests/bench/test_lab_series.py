"""The table of the series in examples/lab: measured (here on the simulated GPU), kept, written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import rawnn
from rawnn.bench.statistics import spread
from rawnn.common.errors import ConfigError, RawnnError
from tests import requires
from tools import lab_series, lab_tables
from tools.pages import filled

SMALL = {"transpose": {"rows": 64, "cols": 128}, "gemm": {"m": 64, "n": 64, "k": 64},
         "reduction": {"n": 8192}, "softmax": {"rows": 4, "cols": 64}}


def measured(*topics: str, also: tuple[str, ...] = ()) -> tuple[lab_series.LabResult, list[str]]:
    requires.module("cuda.bindings.nvrtc")
    said: list[str] = []
    device = rawnn.lab.simulated()
    opened: Any = SimpleNamespace(device=device, ordinal=0, machine=SimpleNamespace(gpu="none"))
    return lab_series.measure(opened, topics, SMALL, also, 1, said.append), said


@pytest.fixture
def one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every series the last step alone."""
    monkeypatch.setattr(lab_series, "steps_of", lambda topic: sorted(
        (lab_series.LAB / topic).glob("[1-9]_*.cu"))[-1:])


def test_every_topic_has_a_size() -> None:
    assert {p.parent.name for p in lab_series.LAB.glob("*/1_*.cu")} == set(lab_series.SIZES)


def test_steps_are_measured_beside_a_copy_and_kept(tmp_path: Path) -> None:
    result, said = measured("transpose")
    (topic,) = result.topics
    assert [s.name for s in topic.steps] == [p.stem for p in lab_series.steps_of("transpose")]
    assert topic.moved == 2 * 64 * 128 * 4
    assert [b.name for b in topic.beside] == ["a copy"]
    assert topic.steps[-1].us.n == lab_series.ROUNDS * (lab_series.BURST - lab_series.SKIPPED)
    assert any(line.startswith("transpose 5_four_by_four: 2.0 us") for line in said)
    path = tmp_path / "lab.json"
    path.write_bytes(msgspec.json.encode(result))
    assert lab_tables.read_lab(path).topics == result.topics
    text = lab_tables.table("transpose", [result])
    assert "| 5_four_by_four | 2.0 | 2.0-2.0 | 32.8 | 1.0 | 100.0% |" in text
    assert "| a copy | 2.0 | 2.0-2.0 | 32.8 |  | 100.0% |  |  |" in text
    assert "rows = 64, cols = 128; cold L2 cache; medians of 24 launches" in text
    assert "[1_naive](transpose/1_naive.cu): reads are in order" in text
    path.write_text('{"kind": "floors", "schema_version": 1}')
    with pytest.raises(ConfigError, match="of the kind 'floors'"):
        lab_tables.read_lab(path)


def test_steps_with_other_macros_stand_by_themselves(one_step: None) -> None:
    result, _ = measured("gemm", also=("gemm/8_clusters:STAGES=3,GROUP=4", "softmax/1_x",
                                       "gemm/8_clusters:STAGES=none"))
    (topic,) = result.topics
    assert [c.name for c in topic.steps] == ["8_clusters"]
    assert [c.name for c in topic.also] == ["8_clusters:STAGES=3,GROUP=4"]
    assert topic.computed == 2 * 64 ** 3
    assert topic.missing[0].startswith("8_clusters STAGES=none: ")
    assert "TFLOP/s" in lab_tables.table("gemm", [result])


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


@pytest.mark.parametrize(("last", "said"), [(1.1, []), (1.2, [
    "softmax: 2_warp reaches 83.3% of a copy, less than 90%"])])
def test_a_last_step_that_is_far_from_its_limit_is_named(last: float, said: list[str]) -> None:
    def candidate(name: str, us: float) -> lab_tables.Candidate:
        return lab_tables.Candidate(name=name, us=spread([us]), interval=(us, us))

    topic = lab_tables.Topic(
        name="softmax", sizes={}, moved=1, computed=None, beside=[candidate("a copy", 1.0)],
        steps=[candidate("1_naive", 9.0), candidate("2_warp", last)])
    result: Any = SimpleNamespace(topics=[topic])
    assert lab_series.short_of_limits(result) == said


def test_without_results_every_step_says_so() -> None:
    text = lab_tables.table("gemm", [])
    for path in lab_series.steps_of("gemm"):
        assert f"| [{path.stem}](gemm/{path.name}) | not measured | " in text
    assert filled("<!-- gemm -->\n<!-- /gemm -->\n", {"gemm": text}).count("not measured") == 8


def test_a_gpu_is_asked_for() -> None:
    opened: Any = SimpleNamespace(device=None, machine=SimpleNamespace(gpu="there is no GPU"))
    with pytest.raises(ConfigError, match="measured on a GPU: there is no GPU"):
        lab_series.measure(opened, ["gemm"], SMALL)
