"""Training on the host against torch's formulas, written down once more in plain NumPy: 50 steps of
every optimizer, schedule, activation and loss."""

from __future__ import annotations

import numpy as np
import pytest

from rawnn.common import random
from rawnn.engine.runners.host import HostRunner
from rawnn.engine.runners.prepared_run import PreparedRun
from rawnn.model.activations import ACTIVATIONS
from rawnn.model.layers import Network
from rawnn.model.losses import LOSSES
from rawnn.model.optimizers import OPTIMIZER_SPECS, Optimizer
from rawnn.model.schedules import SCHEDULE_SPECS as SCHEDULES
from tests.engine import dataset_for, make_work
from tests.runners import torch_formulas as torch

EPOCHS, BATCH, STEPS, REST = 5, 6, 10, 4
EXAMPLES = BATCH * STEPS + REST
LR = 0.05

SAME = 1e-11
"""Both in float64: 2^-53 a rounding, some hundred of them in a step, 50 steps, each of which may
double a difference at worst in the beginning."""
RATES = 1e-5
"""Where the rate follows a schedule: it is a float32 number (relative 4 * 2^-24 = 2.4e-7, see
Schedule.rates), 50 steps of which move a parameter by less than 50 * LR."""

OPTIMIZERS = [(name, given) for name, (_, several) in torch.UPDATES.items() for given in several]
UPDATES = EPOCHS * STEPS
TEXTS = {
    "constant": torch.constant(LR),
    "step:2:0.5": torch.step_lr(LR, 0.5, 2 * STEPS),
    "step:1:0.7": torch.step_lr(LR, 0.7, STEPS),
    "cosine": torch.cosine(LR, 0.0, UPDATES),
    "cosine:0.01": torch.cosine(LR, 0.01, UPDATES),
    "warmup:1,cosine": torch.warmed_up(torch.cosine(LR, 0.0, UPDATES - STEPS), LR, STEPS),
    "warmup:0.5": torch.warmed_up(torch.constant(LR), LR, STEPS // 2),
}


def batches_of(work: PreparedRun) -> list[tuple[np.ndarray, np.ndarray]]:
    """Inputs and answers of every step of the run."""
    data, recipe = work.data, work.recipe
    x = data.normalisation.apply(data.train_images).astype(np.float64)  # as they are uploaded
    answers = data.train_labels if data.train_targets is None else data.train_targets
    made = []
    for epoch in range(EPOCHS):
        order = random.permutation(recipe.seed, epoch, len(x)) if recipe.shuffle \
            else np.arange(len(x))
        for first in range(0, len(x) if recipe.partial else STEPS * BATCH, BATCH):
            rows = order[first : first + BATCH]
            made.append((x[rows], answers[rows]))
    return made


def compare(network: Network, optimizer: Optimizer, rate: torch.Rate, tolerance: float,
            **recipe: object) -> None:
    """Train both and compare every loss, and the parameters at the end."""
    work = make_work("none", network.layers, dataset_for(network, EXAMPLES, 5), batch=BATCH,
                     optimizer=optimizer, epochs=EPOCHS, network_options={
                         "bias": network.bias, "activation": network.activation,
                         "loss": network.loss}, **recipe)
    runner = HostRunner(work, "float64")
    wanted = {name: array.astype(np.float64) for name, array in runner.parameters().items()}
    losses = torch.train(wanted, batches_of(work), depth=network.depth,
                         activation=network.activation, loss=network.loss,
                         update=optimizer.name, rate=rate,
                         settings=dict(optimizer.settings))
    found: list[float] = []
    for _ in range(EPOCHS):
        runner.epoch(True)
        found += runner._arrays["loss"].tolist()
    assert len(found) == len(losses) >= 50
    np.testing.assert_allclose(found, losses, rtol=tolerance, atol=tolerance)
    for name, array in wanted.items():
        np.testing.assert_allclose(runner._arrays[name], array, rtol=0, atol=tolerance,
                                   err_msg=name)
    runner.close()


@pytest.mark.parametrize(("name", "given"), OPTIMIZERS, ids=str)
def test_optimizers(name: str, given: dict[str, float]) -> None:
    compare(Network((7, 5, 4)), Optimizer(name, LR, given), torch.constant(LR), SAME)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize("text", TEXTS)
def test_schedules(text: str, name: str) -> None:
    compare(Network((7, 5, 4)), Optimizer(name, LR), TEXTS[text],
            SAME if text == "constant" else RATES, schedule=text)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_and_losses(activation: str, loss: str, bias: bool) -> None:
    compare(Network((7, 6, 5, 4), bias, activation, loss), Optimizer("sgd", LR),
            torch.constant(LR), SAME)


@pytest.mark.parametrize("shuffle", [False, True], ids=["in order", "shuffled"])
@pytest.mark.parametrize("partial", [False, True], ids=["whole", "partial"])
def test_orders_and_partial_batches(shuffle: bool, partial: bool) -> None:
    compare(Network((7, 5, 4)), Optimizer("adam", LR), torch.constant(LR), SAME, shuffle=shuffle,
            partial=partial, seed=3)


def test_every_rule_is_compared() -> None:
    assert {name for name, _ in OPTIMIZERS} == set(OPTIMIZER_SPECS) == set(torch.UPDATES)
    assert {text.split(":")[0] for text in TEXTS if "," not in text} >= set(SCHEDULES)
    assert set(torch.ACTIVATIONS) == set(ACTIVATIONS)
    assert set(torch.LOSSES) == set(LOSSES)
