"""Gradients of the references against finite differences, and the meaning of single ops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rawnn.network import Network
from rawnn.step import OPS
from rawnn.step.build import training_step
from rawnn.step.plan import Plan
from tests.engine import random_dataset
from tests.step.execution import Arrays, arrays_of, execute

STEP = 1e-5


def numeric(function: Any, at: np.ndarray) -> np.ndarray:
    """Central differences of a scalar function, element by element of `at` (changed in place and
    put back)."""
    gradient = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        kept = at[index]
        at[index] = kept + STEP
        above = function()
        at[index] = kept - STEP
        gradient[index] = (above - function()) / (2 * STEP)
        at[index] = kept
    return gradient


def run(kind: str, attributes: dict[str, Any] | None = None, **operands: Any) -> SimpleNamespace:
    t = SimpleNamespace(**operands)
    OPS[kind].reference(t, attributes or {})
    return t


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def without_updates(plan: Plan) -> Plan:
    return plan.substitute(plan.find(kind="sgd"))


@settings(max_examples=12, deadline=None, derandomize=True)
@given(layers=st.lists(st.integers(1, 7), min_size=2, max_size=5), batch=st.integers(1, 5),
       seed=st.integers(0, 2**32 - 1))
def test_gradients_of_a_whole_plan_are_those_of_the_mean_cross_entropy(
    layers: list[int], batch: int, seed: int
) -> None:
    data = random_dataset(layers[0], layers[-1], batch, 1, seed % 1000)
    network = Network(tuple(layers))
    plan = without_updates(training_step(network, batch, batch, 0.1))
    arrays = arrays_of(plan, data, network.initial(seed))
    for tensor in network.parameters():  # away from the kinks of ReLU at 0
        if tensor.name.endswith("bias"):
            arrays[tensor.name] += 0.05
    execute(plan, arrays)
    found = {n: arrays[n].copy() for n in plan.tensors if n.startswith(("dw", "db"))}
    close = min((np.abs(arrays[f"z{i}"]).min() for i in range(1, network.depth)), default=1.0)
    if close < 1e-4:
        return  # a difference across the kink is no derivative
    assert len(found) == 2 * network.depth
    for layer in range(1, network.depth + 1):
        for gradient, name in ((f"dw{layer}", "weight"), (f"db{layer}", "bias")):
            wanted = numeric(lambda: _loss(plan, arrays), arrays[f"fc{layer}.{name}"])
            np.testing.assert_allclose(found[gradient], wanted, rtol=1e-5, atol=1e-9)


def _loss(plan: Plan, arrays: Arrays) -> float:
    execute(plan, arrays)
    return float(arrays["loss"][0])


def test_softmax_backward_is_the_gradient_of_the_mean_loss_in_the_logits() -> None:
    z, y = normal(4, 6), np.array([0, 5, 2, 2])
    loss, cursor = np.zeros(1), np.zeros(1, np.int32)

    def mean_loss() -> float:
        p = run("softmax", z=z, p=np.zeros_like(z)).p
        return float(run("cross_entropy", {"offset": 0}, p=p, y=y, cursor=cursor,
                         loss=loss).loss[0])

    wanted = numeric(mean_loss, z)
    p = run("softmax", z=z, p=np.zeros_like(z)).p
    dz = run("softmax_backward", p=p, y=y, dz=np.full_like(z, np.nan)).dz
    np.testing.assert_allclose(dz, wanted, atol=1e-9)
    np.testing.assert_allclose(dz.sum(axis=1), 0, atol=1e-15)
    fused = run("softmax_loss_gradient", {"offset": 0}, z=z, y=y, cursor=cursor, loss=loss,
                correct=np.zeros(1, np.int32), dz=np.full_like(z, np.nan))
    np.testing.assert_allclose(fused.dz, wanted, atol=1e-9)


def test_relu_backward_is_the_gradient_of_relu() -> None:
    z, da = normal(3, 5), normal(3, 5, seed=1)
    wanted = numeric(lambda: float((run("relu", z=z, a=np.zeros_like(z)).a * da).sum()), z)
    a = run("relu", z=z, a=np.zeros_like(z)).a
    np.testing.assert_allclose(
        run("relu_backward", da=da, a=a, dz=np.full_like(z, np.nan)).dz, wanted, atol=1e-9)


def test_relu_backward_is_zero_at_zero() -> None:
    dz = run("relu_backward", da=np.ones((1, 3)), a=np.array([[0.0, -0.0, 1.0]]),
             dz=np.full((1, 3), np.nan)).dz
    assert dz.tolist() == [[0, 0, 1]]


def test_bias_grad_is_the_gradient_of_bias_add() -> None:
    z, bias, weights = normal(4, 3), normal(3), normal(4, 3, seed=1)
    wanted = numeric(
        lambda: float((run("bias_add", z=z.copy(), bias=bias).z * weights).sum()), bias)
    np.testing.assert_allclose(run("bias_grad", dz=weights, db=np.zeros(3)).db, wanted, atol=1e-9)


@pytest.mark.parametrize(("layout", "a", "b"), [
    ("nt", (4, 5), (3, 5)), ("nn", (4, 5), (5, 3)), ("tn", (5, 4), (5, 3)),
])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (-0.5, 1.0), (2.0, 0.0), (1.0, 0.25)])
def test_products(layout: str, a: tuple[int, int], b: tuple[int, int], alpha: float,
                  beta: float) -> None:
    left, right = normal(*a), normal(*b, seed=1)
    start = normal(4, 3, seed=2) if beta else np.full((4, 3), np.nan)  # beta = 0 must not read c
    attributes = {"layout": layout, "alpha": alpha, "beta": beta, "bias": False, "relu": False}
    found = run("matmul", attributes, a=left, b=right, c=start.copy()).c
    wanted = alpha * np.einsum({"nt": "ik,jk->ij", "nn": "ik,kj->ij", "tn": "ki,kj->ij"}[layout],
                               left, right)
    np.testing.assert_allclose(found, wanted + (beta * start if beta else 0), atol=1e-12)


def test_product_with_its_epilogue() -> None:
    a, b, bias = normal(4, 5), normal(3, 5, seed=1), normal(3, seed=2)
    attributes = {"layout": "nt", "alpha": 1.0, "beta": 0.0, "bias": True, "relu": True}
    found = run("matmul", attributes, a=a, b=b, bias=bias, c=np.full((4, 3), np.nan)).c
    np.testing.assert_allclose(found, np.maximum(a @ b.T + bias, 0), atol=1e-12)


@pytest.mark.parametrize("slices", [1, 2, 6])
def test_slices_add_up_to_the_product(slices: int) -> None:
    a, b, bias = normal(4, 12), normal(3, 12, seed=1), normal(3, seed=2)
    partial = run("matmul_slices",
                  {"layout": "nt", "m": 4, "n": 3, "k": 12, "slices": slices}, a=a, b=b,
                  partial=np.full((slices * 4, 3), np.nan)).partial
    found = run("sum_slices", {"slices": slices, "bias": True, "relu": False}, partial=partial,
                bias=bias, c=np.full((4, 3), np.nan)).c
    np.testing.assert_allclose(found, a @ b.T + bias, atol=1e-12)


@pytest.mark.parametrize("slices", [1, 2, 4])
def test_an_update_from_slices_is_the_update_from_the_whole_gradient(slices: int) -> None:
    dz, x, w, bias = normal(8, 3), normal(8, 5, seed=1), normal(3, 5, seed=2), normal(3, seed=3)
    partial = run("matmul_slices",
                  {"layout": "tn", "m": 3, "n": 5, "k": 8, "slices": slices}, a=dz, b=x,
                  partial=np.full((slices * 3, 5), np.nan)).partial
    found = run("slices_sgd", {"slices": slices, "lr": 0.25}, partial=partial, w=w.copy(), dz=dz,
                bias=bias.copy())
    np.testing.assert_allclose(found.w, w - 0.25 * dz.T @ x, atol=1e-12)
    np.testing.assert_allclose(found.bias, bias - 0.25 * dz.sum(axis=0), atol=1e-12)


def test_a_loss_that_is_nan_stays_nan_and_a_vanishing_probability_is_clamped() -> None:
    y, cursor, tiny = np.zeros(1, int), np.zeros(1, np.int32), np.finfo(np.float32).tiny

    def loss(p: float) -> float:
        return float(run("cross_entropy", {"offset": 0}, p=np.array([[p, 0.0]]), y=y,
                         cursor=cursor, loss=np.zeros(1)).loss[0])

    assert np.isnan(loss(np.nan))
    assert loss(0.0) == pytest.approx(-np.log(float(tiny)))


def test_the_first_of_equal_probabilities_wins() -> None:
    p, cursor = np.array([[0.4, 0.4, 0.2], [0.2, 0.4, 0.4]]), np.array([1], np.int32)
    correct = run("accuracy", {"offset": 1}, p=p, y=np.array([0, 2]), cursor=cursor,
                  correct=np.full(3, -1)).correct
    assert correct.tolist() == [-1, -1, 1]


def test_every_op_has_a_summary_and_names_its_operands_once() -> None:
    for kind, spec in OPS.items():
        assert spec.kind == kind
        assert spec.summary.endswith((".", "]"))
        assert set(spec.slotted) <= set(spec.writes)
        assert set(spec.optional) <= {*spec.reads, *spec.writes}
