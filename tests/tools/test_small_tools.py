"""tools/float32_error.py and tools/fault_table.py: what they write of what was measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tools import fault_table, float32_error


def test_errors_are_kept_draw_by_draw_with_their_worst_and_median(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
        ) -> None:
    ratios = [(1.25, 0.5), (3.0004, 0.75), (0.5, 2.0)]  # of the update, of the gradient
    monkeypatch.setattr(float32_error, "RECORD", tmp_path / "errors.json")
    monkeypatch.setattr(float32_error.errors, "DRAWS", 3)
    monkeypatch.setattr(float32_error.errors, "draw", lambda seed: seed)
    monkeypatch.setattr(float32_error.errors, "measured", lambda seed: SimpleNamespace(
        ratios=ratios[seed], drawn=f"draw {seed}",
        chosen=SimpleNamespace(sharding=f"{seed}x1")))
    float32_error.main()
    found = json.loads((tmp_path / "errors.json").read_text())
    assert found["draws"] == [
        {"seed": n, "what": f"draw {n}", "blocks": f"{n}x1", "update": round(update, 3),
         "gradient": gradient} for n, (update, gradient) in enumerate(ratios)]
    assert found["worst"] == {"update": 3.0, "gradient": 2.0}
    assert found["median"] == {"update": 1.25, "gradient": 0.75}
    assert "worst {'update': 3.0, 'gradient': 2.0}" in capsys.readouterr().out


class Pool:
    """In this process."""

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def map(self, function: Callable[[str], Any], names: Iterable[str]) -> Any:
        return map(function, names)


@pytest.mark.parametrize("missed", [[], ["a race in step 2"]])
def test_every_fault_of_every_plan_is_in_the_table_and_what_is_missed_is_named(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], missed: list[str]
        ) -> None:
    committed: list[Any] = []

    def tally(plan: str) -> dict[str, Any]:
        return {"leak": SimpleNamespace(planted=3, missed=[]),
                "race": SimpleNamespace(planted=5, missed=missed if plan == "second" else [])}

    monkeypatch.setattr(fault_table, "PLANS", ("first", "second"))
    monkeypatch.setattr(fault_table, "tally", tally)
    monkeypatch.setattr(fault_table, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(fault_table, "table", lambda found: list(found))
    monkeypatch.setattr(fault_table, "commit", committed.append)
    assert fault_table.main() == (1 if missed else 0)
    assert committed == [["first", "second"]]
    said = capsys.readouterr().out.split("\n")
    assert said[:2] == ["first  leak: 3  race: 5", "second  leak: 3  race: 5"]
    assert [line for line in said[2:] if line] == [f"not caught: second, race: {what}"
                                                   for what in missed]
