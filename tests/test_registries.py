"""A registry is the only list: what is registered is offered, documented, drawn and tested."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

from rawnn.bench.specification import Limits, sample
from rawnn.cli.options import listed, setting
from rawnn.cli.train import train
from rawnn.model.activations import ACTIVATIONS, Activation
from rawnn.model.layers import INITIALISERS
from rawnn.model.losses import LOSSES
from rawnn.model.optimizers import OPTIMIZER_SPECS as OPTIMIZERS
from rawnn.model.optimizers import OptimizerSpec
from rawnn.model.schedules import SCHEDULE_SPECS as SCHEDULES
from rawnn.opts.registry import Machine
from tests.catalogue import SHAPES, VARIANTS
from tests.runners import torch_formulas

REGISTRIES = {"activation": ACTIVATIONS, "loss": LOSSES, "optimizer": OPTIMIZERS,
              "init": INITIALISERS, "schedule": SCHEDULES}


@pytest.mark.parametrize("field", REGISTRIES)
def test_everything_is_offered(field: str) -> None:
    text = " ".join(CliRunner().invoke(train, ["--help"]).output.split())
    offered = text[text.index(f"--{field} "):][:300]
    for name in REGISTRIES[field]:
        assert name in offered, name


def test_help_follows_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    assert listed(["b", "a", "c"]) == "b, a or c"
    for name in {*OPTIMIZERS} - {"sgd", "adam", "adamw"}:
        monkeypatch.delitem(OPTIMIZERS, name)
    assert setting("beta1") == ("Of adam and adamw.", "0.9")
    assert setting("decay") == ("Of adam, adamw and sgd.", "adam 0; adamw 0.01; sgd 0")
    monkeypatch.setitem(OPTIMIZERS, "lion", OptimizerSpec(
        "lion", {"beta1": 0.9, "decay": 0.0}, lambda s: "lion", lambda s: (), lambda s: {}))
    assert setting("beta1") == ("Of adam, adamw and lion.", "0.9")


def test_random_networks_draw_everything_and_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, limits = Machine("there is none"), Limits()
    monkeypatch.setitem(ACTIVATIONS, "leaky", Activation(
        "leaky", "Leaky", "output", lambda z: np.maximum(z, 0.1 * z), lambda a: np.sign(a)))
    found = [sample(seed, limits, machine) for seed in range(300)]
    assert {spec.network.activation for spec in found} == set(ACTIVATIONS)
    assert {spec.network.loss for spec in found} == set(LOSSES)
    assert {spec.network.init for spec in found} == set(INITIALISERS)
    assert {spec.optimizer.name for spec in found} == set(OPTIMIZERS)
    drawn = {part.partition(":")[0] for spec in found for part in spec.schedule.split(",")}
    assert drawn == {*SCHEDULES, "warmup"}


def test_everything_is_trained_in_the_tests_of_ops_and_against_torchs_formulas() -> None:
    variants = [*VARIANTS, *SHAPES]
    networks = [variant.network for variant in variants]  # options of Network
    assert {options.get("activation", "relu") for options in networks} == set(ACTIVATIONS)
    assert {options.get("loss", "cross_entropy") for options in networks} == set(LOSSES)
    assert set(torch_formulas.ACTIVATIONS) == set(ACTIVATIONS)
    assert set(torch_formulas.UPDATES) == set(OPTIMIZERS)
