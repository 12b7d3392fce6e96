from pathlib import Path

import pytest

from rawnn.bench.accuracy import Oracle
from rawnn.bench.records import LadderResult, Rung, read_ladder
from rawnn.common.errors import ConfigError
from tests.bench.conftest import make_rung


def test_a_ladder_survives_its_file(ladder: LadderResult, tmp_path: Path) -> None:
    ladder.write_json(tmp_path / "ladder.json")
    assert read_ladder(tmp_path / "ladder.json") == ladder


def test_figures_follow_from_the_runs(oracle: Oracle) -> None:
    rung = make_rung("fuse", 10.0, 14.0, 11.0, oracle=oracle)
    assert rung.average_epoch_ms is not None
    assert rung.average_epoch_ms.median == 11.0
    assert rung.average_epoch_ms.n == 3
    assert rung.total_ms is not None
    assert rung.total_ms.max == 28.0
    assert (rung.accuracy_mean, rung.accuracy_std) == (pytest.approx(0.9), 0.0)
    assert rung.peak_memory_bytes == 1002
    assert rung.clocks["sm_mhz"].median == 1901
    assert rung.accuracy_agrees is True
    assert rung.oracle_difference == pytest.approx(0.02)  # seed 1; seed 2 has no reference


def test_a_wrong_accuracy_does_not_agree(oracle: Oracle) -> None:
    assert make_rung("fuse", 1.0, oracle=oracle, accuracy=0.88).accuracy_agrees is False
    assert make_rung("fuse", 1.0, oracle=oracle, accuracy=0.8901).accuracy_agrees is True
    assert make_rung("fuse", 1.0).accuracy_agrees is None


def test_without_runs_there_are_no_figures(oracle: Oracle) -> None:
    rung = Rung(name="fuse", opt="fuse")
    assert rung.with_runs([], oracle) == rung


@pytest.mark.parametrize(("content", "sentence"), [
    ("{}", "not a measurement"), ("[1", "not a measurement"), ("\xff", "not a measurement"),
    ('{"schema_version": 99, "kind": "ladder"}', "'ladder' of schema version 99"),
    ('{"schema_version": 2, "kind": "toggles"}', "'toggles'; what can be read here: ladder"),
    ('{"schema_version": 1, "kind": "ladder"}', "not a measurement"),
])
def test_other_files_are_refused(tmp_path: Path, content: str, sentence: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ConfigError, match=sentence):
        read_ladder(path)


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_ladder(tmp_path / "none.json")
