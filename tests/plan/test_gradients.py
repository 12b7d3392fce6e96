"""The gradients of whole plans against finite differences of their loss, in float64.

With SGD, a rate of 1 and no decay a step leaves w - dw: so what a step changes is the gradient,
however its ops were fused.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rawnn.model.activations import ACTIVATIONS
from rawnn.model.layers import Network
from rawnn.model.losses import LOSSES
from rawnn.opts import select
from rawnn.plan.plan import Plan
from tests.engine import CAPABLE, dataset_for, step_plan
from tests.plan.calculus import DIFFERENCE, numeric
from tests.plan.execution import Arrays, arrays_of, execute

TOGGLES = ("", "preload,fuse", "cublas,fuse", "cudnn,fuse")
BATCH = 3

KINK = 1e-4
"""Ten difference steps: inputs of a ReLU that lie nearer to 0 may cross it."""


def start_of(network: Network, batch: int, seed: int) -> tuple[Plan, Arrays]:
    """The baseline step and its tensors, parameters drawn; biases are moved off 0."""
    plan = step_plan(network, batch, batch, lr=1.0)
    arrays = arrays_of(plan, dataset_for(network, batch, 1, seed), network.initial(seed))
    for tensor in network.parameters():
        if tensor.name.endswith("bias"):
            arrays[tensor.name] += 0.05
    return plan, arrays


def differences(network: Network, batch: int, seed: int) -> Arrays | None:
    """The derivative of the loss by each parameter; None where a ReLU is too near its kink."""
    plan, arrays = start_of(network, batch, seed)
    loss = plan.substitute(plan.find(kind="sgd"))
    execute(loss, arrays)
    if network.activation == "relu" and any(
            (np.abs(arrays[f"z{i}"]) < KINK).any() for i in range(1, network.depth)):
        return None

    def value() -> float:
        execute(loss, arrays)
        return float(arrays["loss"][0])

    return {t.name: numeric(value, arrays[t.name]) for t in network.parameters()}


def step_changes(network: Network, batch: int, seed: int, toggles: str) -> Arrays:
    """What one step of the rewritten plan takes away from each parameter."""
    plan, before = start_of(network, batch, seed)
    plan = select(f"none,{toggles}", network, 1, CAPABLE).apply(plan)[0]
    after = {**arrays_of(plan, dataset_for(network, batch, 1, seed), {}),
             **{t.name: before[t.name].copy() for t in network.parameters()}}
    execute(plan, after)
    return {t.name: before[t.name] - after[t.name] for t in network.parameters()}


def network_of(activation: str, loss: str, bias: bool) -> Network:
    return Network((6, 5, 4, 3), bias=bias, activation=activation, loss=loss, init="glorot")


@cache
def known_differences(network: Network) -> Arrays:
    """Of the first seed at which no ReLU is near its kink."""
    found = differences(network, BATCH, 0)
    assert found is not None
    return found


@pytest.mark.parametrize("toggles", TOGGLES)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_step_takes_the_gradient_of_the_loss(activation: str, loss: str, bias: bool,
                                               toggles: str) -> None:
    network = network_of(activation, loss, bias)
    found = step_changes(network, BATCH, 0, toggles)
    for name, wanted in known_differences(network).items():
        assert np.abs(wanted).max() > 100 * DIFFERENCE, f"{name} has no gradient to speak of"
        np.testing.assert_allclose(found[name], wanted, rtol=0, atol=DIFFERENCE, err_msg=name)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(layers=st.lists(st.integers(1, 7), min_size=2, max_size=5), batch=st.integers(1, 5),
       seed=st.integers(0, 2**32 - 1), bias=st.booleans(), toggles=st.sampled_from(TOGGLES),
       activation=st.sampled_from(sorted(ACTIVATIONS)), loss=st.sampled_from(sorted(LOSSES)))
def test_gradients_of_networks_of_any_shape(layers: list[int], batch: int, seed: int, bias: bool,
                                            toggles: str, activation: str, loss: str) -> None:
    network = Network(tuple(layers), bias, activation, loss)
    wanted = differences(network, batch, seed)
    if wanted is None:
        return
    found = step_changes(network, batch, seed, toggles)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=DIFFERENCE, err_msg=name)
