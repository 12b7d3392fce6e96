"""Results as JSON: what is written fits the schema, and nothing is half written."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rawnn.common.errors import RawnnError
from rawnn.engine import result as result_module
from rawnn.engine.config import Config
from rawnn.engine.result import SCHEMA_VERSION, Report, Result, environment, schema
from tests.test_training import Recorder, run


def violations(value: Any, rule: dict[str, Any], root: dict[str, Any], at: str = "$") -> list[str]:
    """Where `value` breaks a JSON Schema, for the keywords that msgspec uses."""
    if "$ref" in rule:
        rule = root["$defs"][rule["$ref"].rpartition("/")[2]]
    if "anyOf" in rule:
        found = [violations(value, option, root, at) for option in rule["anyOf"]]
        return [] if any(not f for f in found) else [f"{at}: none of the alternatives"]
    types: dict[str, Any] = {"object": dict, "array": list, "string": str, "integer": int,
             "number": (int, float), "boolean": bool, "null": type(None)}
    kinds = rule.get("type", [])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if kinds and not any(isinstance(value, types[k])
                         and isinstance(value, bool) == (k == "boolean") for k in kinds):
        return [f"{at}: {value!r} is no {' or '.join(kinds)}"]
    errors: list[str] = []
    if isinstance(value, dict):
        errors += [f"{at}: no {key}" for key in rule.get("required", ()) if key not in value]
        for key, item in value.items():
            inner = rule.get("properties", {}).get(key, rule.get("additionalProperties"))
            if isinstance(inner, dict):
                errors += violations(item, inner, root, f"{at}.{key}")
            elif "properties" in rule:
                errors.append(f"{at}: unexpected {key}")
    if isinstance(value, list) and isinstance(rule.get("items"), dict):
        for index, item in enumerate(value):
            errors += violations(item, rule["items"], root, f"{at}[{index}]")
    if "minimum" in rule and value < rule["minimum"]:
        errors.append(f"{at}: {value} < {rule['minimum']}")
    return errors


def written(result: Result, path: Path) -> dict[str, Any]:
    """The JSON as strict readers see it."""
    result.write_json(path)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    found: dict[str, Any] = json.loads(path.read_text(), parse_constant=refuse)
    return found


@pytest.fixture(scope="module")
def result() -> Result:
    return run(seed=2)


def test_the_validator_sees_violations(result: Result, tmp_path: Path) -> None:
    good = written(result, tmp_path / "r.json")
    rule = schema()
    root = rule
    wrong = {"history": 3, "epoch_ms": ["a"], "config": {"lr": "x"}, "dataset": None}
    for key, value in wrong.items():
        assert violations({**good, key: value}, rule, root), key
    assert violations({k: v for k, v in good.items() if k != "times"}, rule, root)


@pytest.mark.parametrize("device", ["host", "sim"])
def test_what_is_written_fits_the_schema(device: str, tmp_path: Path) -> None:
    rule = schema()
    found = written(run(device=device), tmp_path / "r.json")
    assert violations(found, rule, rule) == []
    assert found["schema_version"] == SCHEMA_VERSION
    assert "parameters" not in found


@pytest.mark.parametrize("stop", [("epoch_done", 1), ("reported", 1)])
def test_an_interrupted_run_fits_the_schema(stop: tuple[str, int], tmp_path: Path) -> None:
    rule = schema()
    found = written(run(Recorder(stop)), tmp_path / "r.json")
    assert violations(found, rule, rule) == []
    assert found["interrupted"] is True
    assert (found["average_epoch_wall_ms"] is None) == (stop[0] == "epoch_done")  # JSON has no NaN


def test_what_is_written_can_be_read_back(result: Result, tmp_path: Path) -> None:
    found = written(result, tmp_path / "r.json")
    assert found == msgspec.json.decode(msgspec.json.encode(result.to_dict()))
    assert msgspec.convert(found["history"], list[Report]) == result.history
    assert msgspec.convert(found["config"], Config) == result.config
    assert found["config"]["layers"] == [12, 5, 4]
    assert found["toggles"] == {"preload": None, "fuse": None}


def test_a_file_is_replaced_whole(result: Result, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("old")
    result.write_json(path)
    assert path.read_text().startswith("{")
    assert os.listdir(tmp_path) == ["r.json"]
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


def test_a_directory_that_is_missing_is_one_sentence(result: Result, tmp_path: Path) -> None:
    with pytest.raises(RawnnError, match=r"cannot write .*: No such file or directory"):
        result.write_json(tmp_path / "none" / "r.json")


def test_the_environment_has_the_locked_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAWNN_CLOCKS", "RAWNN_LOCKED_GPU", "RAWNN_LOCKED_SM_MHZ", "RAWNN_LOCKED_MEM_MHZ"):
        monkeypatch.delenv(name, raising=False)
    assert environment("host", None, {}).clocks == {}
    monkeypatch.setenv("RAWNN_LOCKED_SM_MHZ", "1980")
    found = environment("cuda", {"name": "x"}, {"cudnn": "9.1.0"})
    assert found.clocks == {"locked_sm_mhz": "1980"}
    assert set(found.libraries) == {"numpy", "cudnn"}
    for name, value in (("RAWNN_CLOCKS", "locked"), ("RAWNN_LOCKED_GPU", "1"),
                        ("RAWNN_LOCKED_MEM_MHZ", "2619")):
        monkeypatch.setenv(name, value)
    assert environment("cuda", None, {}).clocks == {
        "clocks": "locked", "locked_gpu": "1", "locked_sm_mhz": "1980", "locked_mem_mhz": "2619"}


GPU = {"name": "NVIDIA H200", "driver": "580.1", "ordinal": 0}
PLACE: dict[str, Any] = {"device": "cuda", "gpu": GPU, "commit": "0123456789+",
                         "date": "2026-01-02", "platform": "Linux x86_64"}


@pytest.mark.parametrize(("changed", "key", "is_other"), [
    ({}, "2026-01-02 0123456 NVIDIA H200", False),
    ({"commit": ""}, "2026-01-02 unknown NVIDIA H200", True),
    ({"device": "sim"}, "2026-01-02 0123456 SIMULATED GPU", True),
    ({"gpu": None, "device": "host"}, "2026-01-02 0123456 host (Linux x86_64)", True),
    ({"gpu": {**GPU, "name": "A100"}}, "2026-01-02 0123456 A100", True),
    ({"gpu": {**GPU, "driver": "580.2"}}, "2026-01-02 0123456 NVIDIA H200", True),
    ({"gpu": {**GPU, "ordinal": 1}}, "2026-01-02 0123456 NVIDIA H200", False),
    ({"date": "2026-01-03", "python": "3.14"}, "2026-01-03 0123456 NVIDIA H200", False)])
def test_where_something_was_measured(changed: dict[str, Any], key: str, is_other: bool) -> None:
    here = msgspec.structs.replace(environment("cuda", GPU, {}), **PLACE)
    there = msgspec.structs.replace(here, **changed)
    assert there.key == key
    assert (there.place != here.place) == is_other


def test_the_commit_says_whether_files_are_changed(monkeypatch: pytest.MonkeyPatch,
                                                   tmp_path: Path) -> None:
    commit = result_module._commit.__wrapped__
    monkeypatch.delenv("RAWNN_COMMIT", raising=False)
    monkeypatch.setattr(result_module, "__file__", str(tmp_path / "rawnn" / "engine" / "r.py"))
    assert commit() == ""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *words],
            check=True, capture_output=True, text=True).stdout.strip()

    git("init")
    (tmp_path / "file").write_text("as it was")
    git("add", "file")
    git("commit", "-m", "One")
    (tmp_path / "other").write_text("git does not know it")
    head = git("rev-parse", "HEAD")
    assert commit() == head
    (tmp_path / "file").write_text("as it is")
    assert commit() == f"{head}+"
    monkeypatch.setenv("RAWNN_COMMIT", "abc")
    assert commit() == "abc"


def test_a_result_shows_no_parameters(result: Result) -> None:
    assert "fc1.weight" not in repr(result)
    assert result == replace(result, parameters={})


def test_what_a_result_and_its_model_show_is_a_line() -> None:
    result = run()
    assert re.fullmatch(r"rawnn\.Result\(12-5-4 on \S.*, host: 4 epochs, test accuracy 0\.\d{4}, "
                        r"test loss \d\.\d{4}, \d+\.\d{3} ms an epoch\)", repr(result))
    assert repr(result.model) == "rawnn.Model(12-5-4, relu, cross_entropy, 89 parameters)"
    ended = replace(result, history=result.history[:1], test_accuracy=math.nan, stopped="as asked")
    assert ": 1 epoch, test loss " in repr(ended)
    seldom = replace(result, history=[result.history[1], result.history[3]])
    assert ": 4 epochs, " in repr(seldom)  # two reports
    assert ": 0 epochs, " in repr(replace(result, history=[]))
    assert repr(ended).endswith(" ms an epoch, as asked)")
    for changed, words in (({"interrupted": True}, "interrupted"),
                           ({"interrupted": True, "broken_epoch": 3}, "interrupted in epoch 3"),
                           ({"interrupted": True, "stopped": "as asked"}, "interrupted")):
        assert repr(replace(result, **changed)).endswith(f" ms an epoch, {words})")
