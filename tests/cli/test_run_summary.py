"""The sentences that a run ends with: each figure with its unit, and by whose clock it is."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rawnn.cli.run_summary import epoch_text, initialisation_text, loss_text, training_text
from rawnn.engine.result import Times


@pytest.mark.parametrize("loss", [0.0, 0.5, 1.23456789, 99999.94, 1e5, 123456.0, 3e30, -0.25, -2e7])
@pytest.mark.parametrize("digits", [4, 6])
def test_a_loss_keeps_its_digits_and_its_width(loss: float, digits: int) -> None:
    text = loss_text(loss, digits)
    mantissa, _, exponent = text.partition("e")
    assert len(mantissa.partition(".")[2]) == digits
    assert bool(exponent) == (abs(loss) >= 1e5)
    assert float(text) == pytest.approx(loss, abs=0.51 * 10**-digits, rel=10**-digits)


def result(device: str, wall: float = 2.5) -> Any:
    return cast(Any, SimpleNamespace(
        environment=SimpleNamespace(device=device, gpu=None if device == "host" else {}),
        average_epoch_ms=1.25, average_epoch_wall_ms=wall,
        facts={"kernels_compiled": 3, "kernels_cached": 4}, times=Times(
            imports=11.0, data=12.0, driver=13.0, compile=14.0, setup=15.0, training=16.25,
            training_device=17.25, evaluation=18.25, process=19.0)))


@pytest.mark.parametrize(("device", "wall", "epoch", "training"), [
    ("host", 2.5, "1.250 ms by the wall clock (later half)",
     "16.2 ms by the wall clock; test evaluation 18.2 ms beside it"),
    ("sim", 2.5, "1.250 ms, SIMULATED (later half)",
     "SIMULATED, 16.2 ms by the wall clock; test evaluation 18.2 ms beside it"),
    ("cuda", 2.5, "1.250 ms device-timed, 2.500 ms by the wall clock (later half)",
     "17.2 ms device-timed, 16.2 ms by the wall clock; test evaluation 18.2 ms beside it"),
    ("cuda", math.nan, "1.250 ms device-timed (later half)",
     "17.2 ms device-timed, 16.2 ms by the wall clock; test evaluation 18.2 ms beside it")])
def test_times_are_named_by_their_clocks(device: str, wall: float, epoch: str, training: str
                                         ) -> None:
    assert epoch_text(result(device, wall)) == epoch
    assert training_text(result(device, wall)) == training


def test_the_start_is_listed_part_by_part() -> None:
    assert initialisation_text(result("host")) == (
        "start and imports 11 ms, data 12 ms, setup 15 ms; process so far 19 ms")
    on_a_gpu = result("cuda")
    on_a_gpu.environment.gpu = {"name": "a GPU"}
    assert initialisation_text(on_a_gpu) == (
        "start and imports 11 ms, data 12 ms, driver 13 ms, kernels 14 ms (3 compiled, 4 from the "
        "cache), setup 15 ms; process so far 19 ms")
