"""How far a random run may be off: each share of the tolerance, computed by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rawnn.bench.cases import check
from rawnn.bench.cases.check import Outcome, _compared, _Found
from rawnn.model.optimizers import Optimizer
from tests.bench.test_check import plain

LONGEST = 20
"""Of layers 20-12-7 and batch 16."""
FLOAT32 = 4 * 2.0**-24 * math.sqrt(LONGEST)


def left(spec: Any, moved: float = 1.0, off: float = 0.0, **more: Any) -> _Found:
    """What a run leaves whose parameters all moved by `moved`, and the first of each by `off`
    times the norm of that more."""
    parameters = {}
    for name, start in spec.network.initial(spec.seed).items():
        made = start.astype(np.float64) + moved
        made.flat[0] += off * moved * math.sqrt(start.size)
        parameters[name] = made
    values: dict[str, Any] = {"losses": np.array([2.0, 1.0]), "correct": 49, "test_loss": 0.5,
                              "parameters": parameters, "skipped": False, **more}
    return _Found(**values)


@pytest.mark.parametrize(("precision", "optimizer", "allowed"), [
    ("", "sgd", 8 * 0.01 + FLOAT32), ("", "adam", 24 * 0.01 + FLOAT32),
    ("bf16", "sgd", 2 * 0.01 + 16 * 2.0**-9), ("fp16", "adam", 6 * 0.01 + 16 * 2.0**-11),
    ("sr", "sgd", 2 * 0.01 + 16 * 2.0**-8), ("fp8", "sgd", 2 * 0.01 + 16 * 2.0**-4),
    ("tf32", "sgd", 8 * 2**13 * 0.01 + 16 * 2.0**-11),
    ("fp16=acc16", "sgd", 8 * 2**13 * 0.01 + 4 * 2.0**-11 * math.sqrt(LONGEST))])
def test_parameters(precision: str, optimizer: str, allowed: float) -> None:
    """The host is 1 % off the truth. Formats that are stored are compared with the host, others
    with the truth."""
    spec = replace(plain(precision), optimizer=Optimizer(optimizer, lr=0.1))
    stored = precision in ("bf16", "fp16", "sr", "fp8")
    exact, host = left(spec), left(spec, off=0.01)
    for share in (0.5, 2.0):
        found = left(spec, off=share * allowed + (0.01 if stored else 0.0))
        used, reason = _compared(spec, found, host, exact)
        assert used == pytest.approx(share, rel=1e-3)
        assert reason.startswith("the change of ")
    same = left(spec, off=0.01 if stored else 0.0)
    assert _compared(spec, same, host, exact)[0] == pytest.approx(0.0, abs=1e-3)


def test_each_parameter_is_compared() -> None:
    spec = plain("")
    exact, host = left(spec), left(spec, off=0.01)
    for name in exact.parameters:
        found = left(spec)
        found.parameters[name] += 0.2
        used, reason = _compared(spec, found, host, exact)
        assert used == pytest.approx(0.2 / (8 * 0.01 + FLOAT32), rel=1e-3)
        assert reason == f"the change of {name} is off by 0.2, the host by 0.01"


@pytest.mark.parametrize(("more", "used", "words"), [
    ({"losses": np.array([2.0, 1.0 + 0.05])}, 0.05 / (8 * 0.02 + FLOAT32 * 2.0), "the loss is"),
    ({"losses": np.array([2.5, 1.0])}, 0.5 / (8 * 0.02 + FLOAT32 * 2.0), "the loss is off by 0.25"),
    ({"losses": np.array([1.5])}, 0.5 / (8 * 0.02 + FLOAT32), "the loss is off by 0.5"),
    ({"test_loss": 0.6}, 0.1 / (8 * 0.03 + FLOAT32 * 0.5), "the test loss is off by 0.2"),
    ({"correct": 93}, 44 / (8 * (2 + 0.5 * 7) + FLOAT32 * 49), "the count of right answers"),
    ({"skipped": True}, math.inf, "steps were skipped"),
    ({"test_loss": math.nan}, math.inf, "the test loss")])
def test_losses_and_answers(more: dict[str, Any], used: float, words: str) -> None:
    """The host is 0.02 off in the loss, 0.03 in the test loss, and has two answers more right."""
    spec = plain("")
    host = left(spec, losses=np.array([2.0, 1.02]), test_loss=0.53, correct=51)
    found, reason = _compared(spec, left(spec, **more), host, left(spec))
    assert found == pytest.approx(used, rel=1e-3)
    assert reason.startswith(words)


def test_what_rounding_usually_costs_serves_parameters_that_it_spared() -> None:
    """The middle one of the relative costs of all."""
    spec = plain("")
    exact, host = left(spec), left(spec, off=0.01)
    first = next(iter(exact.parameters))
    host.parameters[first][...] = exact.parameters[first]
    found, _ = _compared(spec, left(spec, off=0.04), host, exact)
    assert found == pytest.approx(0.04 / (8 * 0.01 + FLOAT32), rel=1e-3)


@pytest.mark.parametrize(("used", "verdict"), [(0.99, "right"), (1.0, "right"), (1.01, "wrong")])
def test_more_than_the_tolerance_is_wrong(monkeypatch: pytest.MonkeyPatch, used: float,
                                          verdict: str) -> None:
    monkeypatch.setattr(check, "_compared", lambda *given: (used, "the loss is off"))
    spec = plain("")
    monkeypatch.setattr(check, "_on_device", lambda *given: (left(spec), 12.0))
    monkeypatch.setattr(check, "_trained", lambda *given: (left(spec), 1.0))
    outcome, usable = check.check_run(spec, random_opened())
    assert (outcome.verdict, outcome.us, outcome.used, usable) == (verdict, 12.0, used, True)
    assert bool(outcome.reason) == (verdict == "wrong")


def random_opened() -> Any:
    from rawnn.engine.machine import Opened
    from rawnn.opts.registry import Machine

    return Opened(None, Machine("there is none"), 0.0)


def test_microseconds_of_a_step_are_an_epochs_milliseconds_over_its_steps(
        monkeypatch: pytest.MonkeyPatch) -> None:
    from rawnn.engine.runners.host import HostRunner

    spec = plain("")
    data, opened = spec.data(), random_opened()
    work = spec.work(spec.opt(), data, opened.machine)
    monkeypatch.setattr(HostRunner, "epoch_milliseconds", lambda self: [99.0, 3.0])
    assert work.updates == 4
    assert check._trained(HostRunner(work), work)[1] == pytest.approx(750.0)


def test_an_outcome_is_one_line() -> None:
    line = str(Outcome(seed=7, opt="none", specification="it", verdict="right", us=12.34, used=0.5))
    assert line == "     7  right       12.3 us a step   0.50  it"
