"""Results files of older versions are read into records: every sample, place and reason of them."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import pytest

from rawnn.bench import old_formats
from rawnn.bench.old_formats import converted, restored
from rawnn.bench.record import Results, read_results
from rawnn.bench.render.suites import SUITES
from rawnn.common.errors import ConfigError

OLD = Path(__file__).with_name("old_results")
FILES = sorted(OLD.glob("*.json"))


def raw(name: str) -> Any:
    return json.loads((OLD / f"{name}.json").read_bytes())


def read(name: str) -> Results:
    return read_results(OLD / f"{name}.json")


def test_a_ladder_keeps_every_epoch_and_what_could_not_run() -> None:
    found, old = read("ladder"), raw("ladder")
    baseline, nosync, cudnn, reference = found.entries("ladder")
    runs = old["rungs"][0]["runs"]
    assert baseline.samples("epoch_ms") == [run["average_epoch_ms"] for run in runs]
    assert baseline.samples("every_epoch_ms") == runs[0]["epoch_ms"] + runs[1]["epoch_ms"]
    assert nosync.notes[-1] == f"toggles: {','.join(old['rungs'][1]['toggles'])}"
    assert nosync.conditions["layers"] == [784, 10]
    assert (cudnn.status, cudnn.reason) == ("unavailable", "no package")
    assert not cudnn.samples("epoch_ms")
    assert reference.samples("accuracy") == old["oracle"]["accuracies"]
    assert reference.conditions["seeds"] == old["oracle"]["seeds"]
    steps = old["rungs"][0]["footprint"]["steps"]
    assert baseline.samples("step_us")[0] == runs[0]["average_epoch_ms"] * 1000 / steps
    assert found.place(baseline).commit == old["environment"]["commit"]


def test_sets_keep_their_samples_and_those_without_get_some_with_the_same_spread() -> None:
    found, old = read("workloads"), raw("workloads")
    assert [e.samples("epoch_ms") for e in found.entries("workloads")] == \
        [m["times_ms"] for m in old["measurements"]]
    entry, measured = read("toggles-without-samples").entries("toggles")[0], \
        raw("toggles-without-samples")["measurements"][0]
    samples = entry.samples("epoch_ms")
    assert len(samples) == measured["epoch_ms"]["n"]
    assert median(samples) == measured["epoch_ms"]["median"]
    assert any("stand for those measured" in note for note in entry.notes)
    assert entry.samples("accuracy") == measured["accuracies"]


@pytest.mark.parametrize("spread", [
    {"n": 1, "median": 2.0, "min": 2.0, "max": 2.0, "mad": 0.0},
    {"n": 2, "median": 2.0, "min": 1.0, "max": 3.0, "mad": 1.0},
    {"n": 5, "median": 2.0, "min": 1.0, "max": 4.0, "mad": 0.5},
    {"n": 6, "median": 2.0, "min": 1.0, "max": 4.0, "mad": 0.5}])
def test_restored_samples_have_the_spread_that_was_kept(spread: dict[str, float]) -> None:
    samples = restored(spread)
    assert len(samples) == spread["n"]
    assert (median(samples), min(samples), max(samples)) == (
        spread["median"], spread["min"], spread["max"])


def test_networks_keep_programs_and_those_that_were_not_reached() -> None:
    found, old = read("random-peers"), raw("random-peers")
    entries = found.entries("sample")
    programs = old["contests"][0]["entries"]
    measured = [e for e in entries if e.status != "not measured"]
    assert [e.samples("step_us") for e in measured] == [p["us"] for p in programs]
    assert [(e.conditions["system"], e.precision, e.conditions["form"]) for e in measured] == \
        [(p["system"], p["numbers"], p["form"]) for p in programs]
    left = [e for e in entries if e.status == "not measured"]
    assert [e.case for e in left] == [f"sample/{old['asked'][1]['seed']}"]
    assert found.ended == {"sample": old["ended"]}


def test_constants_keep_their_samples() -> None:
    constants = [e for e in read("floors").entries("lower-bounds") if e.variant != "gpu"]
    assert [e.samples("latency_us") for e in constants] == \
        [f["samples"] for f in raw("floors")["floors"]]


def test_what_older_files_leave_out_is_what_it_usually_was() -> None:
    """Constants that were steady, programs timed by events, nothing that is not known."""
    plain = {"unit": "us", "what": "a launch"}
    rows = [{"name": "a", **plain}, {"name": "b", **plain, "value": 2.0, "samples": [2.0, 3.0],
                                     "steady": False, "how": "by events"},
            {"name": "c", **plain, "reason": "no GPU"}]
    found = list(old_formats._floors({"floors": rows, "l2_bytes": 0}))
    assert [(r.variant, r.samples, r.status, r.reason, r.notes) for r in found] == [
        ("a", [], "unavailable", "", ["a launch", ""]),
        ("b", [2.0, 3.0], "measured", "", ["a launch", "by events; not steady"]),
        ("c", [], "unavailable", "no GPU", ["a launch", ""]),
        ("gpu", [], "measured", "", [])]
    problem = {"name": "seed 4", "seed": 4, "layers": [2, 1], "batch": 3, "loss": "mse",
               "optimizer": "sgd", "lr": 0.1, "steps": 5}
    raw = {"kind": "random-peers", "asked": [problem], "contests": [], "left_out": {"jax": "none"},
           "draw_version": 1}
    for ended in ("", "Ctrl-C"):
        first, left = old_formats._contests({**raw, "ended": ended})
        assert (first.case, first.variant, first.precision, first.status, first.reason) == (
            "sample/4", "rawnn best", "float32", "not measured", ended or "not reached")
        assert (left.case, left.variant, left.status, left.reason, left.conditions) == (
            "sample", "jax", "unavailable", "none", {"system": "jax"})


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_older_file_is_shown_and_written_anew_without_loss(path: Path, tmp_path: Path) -> None:
    found = read_results(path)
    assert all(SUITES[suite].grids(found) for suite in found.suites)
    found.write(tmp_path / "new.json")
    again = read_results(tmp_path / "new.json")
    assert (again.records, again.environments, again.ended) == (
        found.records, found.environments, found.ended)


FOLLOWS = {"n", "min", "median", "max", "mad", "iqr"}
"""Keys of a spread, which follows from samples where the file has them."""
UNREAD = {
    *("schema_version", "repeats", "rounds", "sittings", "systems", "data_source"),
    *("contests.seconds", "oracle.mean", "oracle.std", "rungs.opt", "rungs.runs.repeat"),
    *(f"config.{name}" for name in ("autoencoder", "dataset", "device", "min_delta", "monitor",
                                    "opt", "save_every", "validation")),
    *(f"oracle.{name}" for name in ("batch", "data_digest", "dataset", "epochs", "layers", "lr")),
    *(f"rungs.{name}" for name in ("accuracy_agrees", "accuracy_mean", "accuracy_std",
                                   "oracle_difference", "peak_memory_bytes")),
    *(f"rungs.runs.{name}" for name in ("seed", "clocks.mem_mhz", "clocks.power_w",
                                        "clocks.sm_mhz", "clocks.temperature_c")),
    *("measurements.footprint.floor.by", "rungs.footprint.floor.by")}
"""What no record has: what says how much was asked for, or the same as another key, or follows from
samples. A ladder's reference was trained with the ladder's own configuration."""


CLOCKS = {f"clocks.{name}" for name in ("mem_mhz", "power_w", "sm_mhz", "temperature_c")}
UNREAD_SPREADS = {
    "floors": {"floors.value"}, "random-peers": set[str](),
    "ladder": {f"rungs.{name}" for name in ("average_epoch_ms", "total_ms", *CLOCKS)},
    "toggles-without-samples": {"measurements.us"},
    "workloads": {f"measurements.{name}" for name in ("epoch_ms", "us", *CLOCKS)}}
"""Spreads of samples that the file has, or of readings that its `conditions` have."""


def leaves(value: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    """The paths of all numbers, texts and truth values."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, *path, key)
    elif value is not None:
        yield path


def with_another(value: Any, path: Sequence[Any]) -> Any:
    """A copy with another leaf at the path."""
    if not path:
        return not value if isinstance(value, bool) else f"{value} and more" \
            if isinstance(value, str) else value + 1
    copied = copy.copy(value)
    copied[path[0]] = with_another(value[path[0]], path[1:])
    return copied


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_value_of_an_older_file_is_in_its_records(path: Path) -> None:
    """Each is changed by itself, and then the results are others: nothing is lost in reading."""
    old = raw(path.stem)
    before = converted(msgspec.json.encode(old), "old.json")
    found: dict[str, bool] = {}
    for leaf in leaves(old):
        try:
            after = converted(msgspec.json.encode(with_another(old, leaf)), "old.json")
        except ConfigError:  # it was read, and the new value means nothing
            is_read = True
        else:
            is_read = after != before
        name = ".".join(key for key in leaf if isinstance(key, str))
        found[name] = found.get(name, False) or is_read
    unread = {name for name, is_read in found.items() if not is_read}
    assert {name for name in unread if name.rpartition(".")[2] not in FOLLOWS} <= UNREAD
    spreads = {name.rpartition(".")[0] for name in unread if name.endswith(".median")}
    assert spreads <= UNREAD_SPREADS[path.stem]


@pytest.mark.parametrize(("content", "why"), [
    ('{"kind": "song"}', "holds 'song', which is no results file"),
    ('{"kind": "ladder"}', "holds 'ladder', but not as rawnn wrote it"),
    ('{"kind": "floors", "environment": {"rawnn": 3}, "floors": []}', "not as rawnn wrote it"),
    ('{"config": 1, "toggles": 1, "history": 1, "epoch_ms": 1}', "the result of one training run"),
    ("[1]", "is not a results file"), ("{", "is not a results file")])
def test_what_is_no_older_file_is_refused_in_a_sentence(content: str, why: str, tmp_path: Path
                                                        ) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(ConfigError, match=why):
        read_results(tmp_path / "x.json")


@pytest.mark.parametrize(("words", "keys"), old_formats.OTHERS.items())
def test_another_file_of_rawnn_is_known_by_all_of_its_keys(words: str, keys: set[str]) -> None:
    def said(**more: Any) -> str:
        with pytest.raises(ConfigError) as error:
            converted(json.dumps(more).encode(), "f.json")
        return str(error.value)

    whole = dict.fromkeys(keys, 1)
    assert said(**whole, more=2) == f"f.json is {words}, and no measurement of `rawnn bench`"
    for key in keys:
        others = {k: v for k, v in whole.items() if k != key}
        assert said(**others) == "f.json is not a results file of rawnn"
    assert said(**whole, kind="x").startswith("f.json holds 'x'")


@pytest.mark.parametrize("kind", ["random-peers", "floors"])
def test_what_does_not_say_that_it_was_unsteady_was_steady(kind: str) -> None:
    """Files from before that was written down."""
    for steady, counts in ((None, False), (True, False), (False, True)):
        whole = raw(kind)
        for each in whole["floors"] if kind == "floors" else whole["contests"][0]["entries"]:
            each.pop("steady", None)
            each |= {} if steady is None else {"steady": steady}
        notes = [n for r in converted(json.dumps(whole).encode(), "f").records for n in r.notes]
        assert any("steady" in note for note in notes) is counts
