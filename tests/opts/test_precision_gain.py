"""`best` in fewer bits, beside what it takes in more."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from rawnn.model.layers import Network
from rawnn.model.optimizers import Optimizer
from rawnn.opts import best_table, persistent_payoff, select
from rawnn.opts.precision_gain import CLEAR
from rawnn.persistent.chip import chip_of
from rawnn.persistent.choose import choose
from rawnn.persistent.problem import problem_of
from rawnn.persistent.sharding import Sharding
from rawnn.plan.recipe import DataSpec, Recipe
from tests.engine import CAPABLE

HOPPER = replace(CAPABLE, name="NVIDIA H200")
SMALL = Network((24, 46), loss="mse")
LARGER = Network((64, 96, 46), loss="mse")
WIDE = Network((784, 256, 256, 256, 10))
LINEAR = Network((784, 10))


@pytest.fixture(autouse=True)
def no_table_of_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(best_table.ENVIRONMENT, str(tmp_path / "best.json"))


def notes(precision: str, network: Network, batch: int, epochs: int, steps: int = 64) -> list[str]:
    recipe = Recipe(batch, Optimizer(), epochs=epochs)
    labelled = network.loss_spec.labelled
    data_spec = DataSpec(batch * steps, labels="uint8" if labelled else "",
                         targets=0 if labelled else network.outputs)
    return list(select(",".join(filter(None, ("best", precision))), network, steps, HOPPER,
                       batch=batch, recipe=recipe, data_spec=data_spec).notes)


def expected(precision: str, network: Network, batch: int, steps: int = 64) -> float:
    """Microseconds of a step with the sharding that is searched for this precision by itself."""
    data_spec = DataSpec(batch * steps, labels="", targets=network.outputs)
    plan = persistent_payoff._step(network, Recipe(batch, Optimizer()), data_spec, precision)
    return choose(problem_of(plan), chip_of(HOPPER.target)).launched(steps).us


def faster(found: list[str]) -> list[str]:
    return [note for note in found if "is expected to be faster here than" in note]


def test_a_precision_that_is_expected_to_be_clearly_slower_says_so() -> None:
    """A loss scale costs an agreement in every step, by which float16 loses to tf32. What is said
    of tf32 is with the sharding of float16."""
    least, us = expected("tf32", SMALL, 2), expected("fp16", SMALL, 2)
    note, = faster(notes("fp16", SMALL, 2, 100_000))
    found = re.fullmatch(r"tf32 is expected to be faster here than fp16: ([0-9.]+) us a step in "
                         r"place of ([0-9.]+)", note)
    assert found
    assert found[2] == f"{us:.1f}"
    assert least - 0.05 <= float(found[1]) < us / CLEAR


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_with_the_sharding_of_a_precision_its_own_estimate_comes_out(optimizer: str) -> None:
    recipe = Recipe(8, Optimizer(optimizer, 0.01))
    spec = DataSpec(512, labels="", targets=46)
    found = persistent_payoff.evaluate_payoff(LARGER, recipe, spec, "tf32", HOPPER).estimate
    assert found is not None
    assert found.choice is not None
    assert persistent_payoff.estimate_sharding(LARGER, recipe, spec, "tf32", HOPPER, None,
                                               found.choice.sharding) == found


@pytest.mark.parametrize(("batch", "is_held"), [(64, True), (4096, False)])
def test_a_sharding_that_does_not_fit_in_a_precision_is_none_of_it(batch: int,
                                                                   is_held: bool) -> None:
    recipe, spec = Recipe(batch, Optimizer()), DataSpec(64 * batch, labels="", targets=46)
    problem = problem_of(persistent_payoff._step(LARGER, recipe, spec, "bf16"))
    found = persistent_payoff.estimate_sharding(LARGER, recipe, spec, "tf32", HOPPER, 5.0,
                                                Sharding(problem, 1, 1, 256, "FFF"))
    assert (found.choice is not None, found.launches) == (is_held, 5.0)


def test_nothing_is_said_within_the_error_of_the_model() -> None:
    assert expected("tf32", LARGER, 8) < expected("fp16", LARGER, 8)
    for precision in ("", "tf32", "bf16", "fp16"):
        assert not faster(notes(precision, LARGER, 8, 100_000))


def test_measured_launches_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, `fuse` makes two kernels of one layer; in tf32 there are GEMMs by `mma`."""
    # Else both take persistent.
    monkeypatch.setattr(persistent_payoff, "COMPILE_US_OF_LAUNCHES", 0.0)
    us = {entry.precision: entry.us for entry in best_table.read(best_table.PACKAGED)
          if entry.layers == LINEAR.layers and entry.batch == 128}
    assert us["tf32"] > CLEAR * us[""]
    assert faster(notes("tf32", LINEAR, 128, 2)) == [
        f"float32 is expected to be faster here than tf32: {us['']:.1f} us a step in place of "
        f"{us['tf32']:.1f}"]
    assert not faster(notes("tf32", LINEAR, 128, 100_000))  # both take persistent


def test_persistent_is_taken_in_fewer_bits_where_it_is_in_more() -> None:
    """The faster launches are, the more steps earn its compilation; a run in bf16 by launches would
    be slower than one in float32 by persistent."""
    taken = {precision: [any(note.startswith("best takes persistent") for note in notes(
        precision, WIDE, 32, epochs)) for epochs in (100, 1200, 1300, 1600, 100_000)]
        for precision in ("", "tf32", "bf16")}
    for more, fewer in (("", "tf32"), ("tf32", "bf16")):
        assert all(b or not a for a, b in zip(taken[more], taken[fewer], strict=True)), taken
    assert taken[""][0] is False
    assert all(each[-1] for each in taken.values())
    lent = [note for epochs in range(1000, 1600, 100) for note in notes("tf32", WIDE, 32, epochs)
            if "earn its compilation in" in note]
    assert lent
    assert all(note.endswith("earn its compilation in float32, so that tf32 takes it, too")
               for note in lent)
