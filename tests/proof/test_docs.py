"""The code of docs/testing.md runs as it stands there, and its sample of a race is a real one."""

from __future__ import annotations

import re

import pytest

from rawnn.graphs import unrolling as graphplan
from rawnn.opts.registry import TOGGLES
from rawnn.plan.dependencies import dependencies
from rawnn.sim import Race, Simulation
from tests import tolerances
from tests.proof.runs import planted_work, train
from tests.proof.table import DOCUMENT

BLOCKS = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)


def test_a_toggle_in_five_minutes(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        exec(compile(BLOCKS[0], "docs/testing.md", "exec"), {"__name__": "onepass"})
    finally:
        TOGGLES.pop("onepass", None)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert all(line.endswith("agrees with the host") for line in lines)


def test_a_call_made_to_fail(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(BLOCKS[1], "docs/testing.md", "exec"), {"__name__": "failing"})
    output = capsys.readouterr().out
    assert "cuStreamCreate failed with CUDA_ERROR_ECC_UNCORRECTABLE [214]" in output


def test_the_table_of_tolerances_is_that_of_the_tests() -> None:
    shown = re.search(r"tolerances: begin -->\n(.*?)\n<!-- tol", DOCUMENT.read_text(), re.DOTALL)
    assert shown is not None
    assert shown[1] == tolerances.table()


def words(text: str) -> list[str]:
    """The message without what changes as the code above it does: handles, addresses, lines."""
    return re.sub(r"0x[0-9a-f]+|[\d,]+ bytes|:\d+", "#", text).split()


def test_the_sample_of_a_race_is_what_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def less(ops: object) -> list[tuple[int, ...]]:
        return [tuple(i for i in before if (i, after) != (0, 1))
                for after, before in enumerate(dependencies(ops))]  # type: ignore[arg-type]

    monkeypatch.setattr(graphplan, "dependencies", less)
    with pytest.raises(Race) as caught:
        train(Simulation(), planted_work("preload,streams,graphs=step", (8, 3)))
    shown = re.search(r"race: begin -->\n```text\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert shown is not None
    assert words(str(caught.value)) == words(shown[1])
