"""Records: selected, put together, written and read; files that are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from rawnn.bench.record import Record, Results, read_directory, read_results
from rawnn.common.errors import ConfigError
from tests.bench.measuring import place, record, results


def test_records_are_selected_by_fields_and_conditions() -> None:
    found = results(record("a", [1.0]),
                    record("a", [3.0], metric="accuracy"),
                    record("b", [2.0], conditions={"epochs": 2}),
                    record("b", [4.0], case="ladder"))
    assert [r.samples for r in found.where("toggles", metric="epoch_ms")] == [[1.0], [2.0]]
    assert [r.samples for r in found.where(epochs=2)] == [[2.0]]
    assert [r.samples for r in found.where("ladder", variant="b")] == [[4.0]]
    assert found.suites == ["toggles", "ladder"]


def test_an_entry_is_a_variant_with_all_its_metrics() -> None:
    found = results(record("a", [1.0, 5.0, 2.0], notes=["said"]), record("b", [9.0]),
                    record("a", [0.9], metric="accuracy"),
                    record("a", [7.0], conditions={"batch": 2}))
    first, second, other = found.entries("toggles")
    assert (first.median("epoch_ms"), first.samples("accuracy"), first.notes) == (2.0, [0.9],
                                                                                 ["said"])
    assert "accuracy" in first
    assert "total_ms" not in first
    assert first.median("total_ms") is None
    assert (second.variant, other.conditions) == ("b", {"batch": 2})
    assert found.place(first) == place()


def test_what_is_measured_again_takes_the_place_of_what_was() -> None:
    found = results(record("a", [1.0]), record("a", [0.5], metric="accuracy"), record("b", [2.0]))
    found.update([record("c", [3.0]), record("a", [7.0]), record("a", [8.0], metric="total_ms")])
    assert [(r.variant, r.metric, r.samples) for r in found.records] == [
        ("a", "epoch_ms", [7.0]), ("a", "total_ms", [8.0]), ("b", "epoch_ms", [2.0]),
        ("c", "epoch_ms", [3.0])]
    found.replace(record("b").program, [record("d", [4.0]), record("e", [5.0])])
    assert [r.variant for r in found.records] == ["a", "a", "d", "e", "c"]


def test_a_suite_is_whole_when_all_of_it_was_reached() -> None:
    found = results(record("a", [1.0]), record("b", status="failed", reason="a fault"))
    assert found.is_whole("toggles")
    assert not found.is_whole("ladder")
    found.ended["toggles"] = "it was interrupted"
    assert not found.is_whole("toggles")
    found = results(record("a", [1.0]), record("b", status="not measured"))
    assert not found.is_whole("toggles")


def test_files_are_merged_unless_both_have_measured_the_same() -> None:
    asked = record("b", status="not measured")
    one = results(record("a", [1.0]), asked, ended={"toggles": "the budget was spent"})
    one.merge(results(record("b", [2.0]), record("a", status="not measured"),
                      where=place(date="2026-02-02")), "two.json")
    assert [(r.variant, r.samples) for r in one.records] == [("a", [1.0]), ("b", [2.0])]
    assert len(one.environments) == 2
    assert one.is_whole("toggles")
    with pytest.raises(ConfigError, match=r"two.json has toggles/linear, a \(float32\) a second "):
        one.merge(results(record("a", [3.0])), "two.json")


@pytest.mark.parametrize("first", ["unavailable", "measured"])
def test_what_one_machine_could_not_run_is_what_the_other_measured(first: str) -> None:
    """Whichever file is merged into the other."""
    lacking = results(record("a", status="unavailable", reason="needs a newer GPU"),
                      record("b", [5.0]))
    able = results(record("a", [2.0, 3.0]), where=place(date="2026-02-02"))
    one, other = (lacking, able) if first == "unavailable" else (able, lacking)
    one.merge(other)
    assert {r.variant: (r.status, r.samples, r.reason) for r in one.records} == {
        "a": ("measured", [2.0, 3.0], ""), "b": ("measured", [5.0], "")}
    assert one.is_whole("toggles")


@pytest.mark.parametrize("first", [True, False])
def test_why_a_suite_ended_is_kept_while_something_of_it_is_left(first: bool) -> None:
    """The file that is merged into has the last word."""
    def part(suite: str, variant: str, status: Any = "measured") -> Record:
        return record(variant, [1.0] if status == "measured" else [], f"{suite}/{variant}",
                      status=status)

    one = results(part("toggles", "a"), part("toggles", "b", "not measured"), part("peers", "a"),
                  ended={"toggles": "the budget was spent", "peers": "by mistake"})
    other = results(part("toggles", "c"), part("sweep", "a", "not measured"),
                    ended={"toggles": "it was interrupted", "sweep": "no time"})
    mine, its = (one, other) if first else (other, one)
    mine.merge(its)
    assert mine.ended == {"toggles": "the budget was spent" if first else "it was interrupted",
                          "sweep": "no time"}


@pytest.mark.parametrize("status", ["measured", "failed", "wrong"])
def test_what_both_machines_ran_is_refused(status: Any) -> None:
    one = results(record("a", [2.0] if status == "measured" else [], status=status))
    with pytest.raises(ConfigError, match="a second time"):
        one.merge(results(record("a", [1.0])))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    found = results(
        record("a", [1.0, 2.5], unit="ms", conditions={"layers": [784, 10], "batch": 3, "lr": 0.1,
                                                       "shuffle": True}, notes=["toggles: none"]),
        record("b", unit="ms", status="failed", reason="a fault"), ended={"toggles": "a reason"})
    found.write(file)
    assert read_results(file) == found
    assert len(file.read_text().splitlines()) > len(found.records)  # a record a line
    raw = msgspec.json.decode(file.read_bytes())
    assert raw["format"] == 2


@pytest.mark.parametrize(("content", "words"), [
    ("{", "is not a results file of rawnn"), ("[1, 2", "is not a results file of rawnn"),
    ('{"format": 3}', "has format 3, and this rawnn reads 2 and older ones: use a newer rawnn"),
    ('{"format": 2, "environments": [], "conditions": [], "records": [{"case": 1}]}', "names"),
    ('{"format": "x"}', "is not a results file of rawnn")])
def test_what_is_no_results_file_is_refused_in_a_sentence(tmp_path: Path, content: str,
                                                          words: str) -> None:
    file = tmp_path / "r.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match=words) as caught:
        read_results(file)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot read"):
        read_results(tmp_path / "none.json")


def test_a_directory_is_read_as_one(tmp_path: Path) -> None:
    results(record("a", [1.0])).write(tmp_path / "toggles.json")
    results(record("b", [2.0], case="ladder")).write(tmp_path / "ladder.json")
    (tmp_path / "other.json").write_text('{"a": 1}')
    assert sorted(read_directory(tmp_path).suites) == ["ladder", "toggles"]
    assert read_directory(tmp_path / "ladder.json").suites == ["ladder"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="has no results file"):
        read_directory(tmp_path / "empty")


def test_the_key_of_a_record_is_all_that_says_what_it_measures() -> None:
    base = record("a", [1.0])
    changed: list[dict[str, Any]] = [{"case": "ladder"}, {"variant": "b"}, {"precision": "bf16"},
                                     {"metric": "total_ms"}, {"conditions": {"batch": 1}}]
    for change in changed:
        assert msgspec.structs.replace(base, **change).key != base.key
    for change in ({"samples": [2.0]}, {"notes": ["n"]}, {"reason": "r"}, {"environment": "e"}):
        assert msgspec.structs.replace(base, **change).key == base.key
    assert isinstance(base, Record)
    assert isinstance(results(base), Results)
