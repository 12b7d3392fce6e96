"""The meaning of single ops: closed forms, and gradients against finite differences."""

from __future__ import annotations

import numpy as np
import pytest

from rawnn.model.activations import ACTIVATIONS
from rawnn.plan import OPS
from tests.plan.calculus import DIFFERENCE, numeric
from tests.plan.references import normal, run
from tests.runners import torch_formulas


def test_softmax_backward_is_the_gradient_of_the_mean_loss_in_the_logits() -> None:
    z, y = normal(4, 6), np.array([0, 5, 2, 2])
    loss, cursor = np.zeros(1), np.zeros(1, np.int32)

    def mean_loss() -> float:
        p = run("softmax", z=z, p=np.zeros_like(z)).p
        return float(run("cross_entropy", {"offset": 0}, p=p, z=z, y=y, cursor=cursor,
                         loss=loss).loss[0])

    wanted = numeric(mean_loss, z)
    p = run("softmax", z=z, p=np.zeros_like(z)).p
    dz = run("softmax_backward", p=p, y=y, dz=np.full_like(z, np.nan)).dz
    np.testing.assert_allclose(dz, wanted, atol=DIFFERENCE)
    np.testing.assert_allclose(dz.sum(axis=1), 0, atol=1e-15)
    fused = run("softmax_loss_gradient", {"offset": 0}, z=z, y=y, cursor=cursor, loss=loss,
                correct=np.zeros(1, np.int32), dz=np.full_like(z, np.nan))
    np.testing.assert_allclose(fused.dz, wanted, atol=DIFFERENCE)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_backward_pass_of_an_activation_is_its_gradient(name: str) -> None:
    z, da, attributes = normal(3, 5), normal(3, 5, seed=1), {"activation": name}
    a = run("activate", attributes, z=z, a=np.zeros_like(z)).a
    wanted = numeric(
        lambda: float((run("activate", attributes, z=z, a=np.zeros_like(z)).a * da).sum()), z)
    saved = a if ACTIVATIONS[name].saves == "output" else z
    found = run("activate_backward", attributes, da=da, saved=saved, dz=np.full_like(z, np.nan))
    np.testing.assert_allclose(found.dz, wanted, atol=DIFFERENCE)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_and_their_slopes_are_their_closed_forms(name: str) -> None:
    function, slope = torch_formulas.ACTIVATIONS[name]
    z, ours = np.linspace(-4, 4, 41), ACTIVATIONS[name]
    a = ours.function(z)
    np.testing.assert_allclose(a, function(z), rtol=1e-13, atol=1e-15)
    found = ours.slope(a if ours.saves == "output" else z)
    np.testing.assert_allclose(found, slope(z), rtol=1e-12, atol=1e-15)


def test_the_slope_of_relu_is_zero_at_zero() -> None:
    dz = run("activate_backward", {"activation": "relu"}, da=np.ones((1, 3)),
             saved=np.array([[0.0, -0.0, 1.0]]), dz=np.full((1, 3), np.nan)).dz
    assert dz.tolist() == [[0, 0, 1]]


def test_bias_grad_is_the_gradient_of_bias_add() -> None:
    z, bias, weights = normal(4, 3), normal(3), normal(4, 3, seed=1)
    wanted = numeric(
        lambda: float((run("bias_add", z=z.copy(), bias=bias).z * weights).sum()), bias)
    found = run("bias_grad", dz=weights, db=np.zeros(3)).db
    np.testing.assert_allclose(found, wanted, atol=DIFFERENCE)


@pytest.mark.parametrize(("layout", "a", "b"), [
    ("nt", (4, 5), (3, 5)), ("nn", (4, 5), (5, 3)), ("tn", (5, 4), (5, 3)),
])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (-0.5, 1.0), (2.0, 0.0), (1.0, 0.25)])
def test_products(layout: str, a: tuple[int, int], b: tuple[int, int], alpha: float,
                  beta: float) -> None:
    left, right = normal(*a), normal(*b, seed=1)
    start = normal(4, 3, seed=2) if beta else np.full((4, 3), np.nan)  # beta = 0 must not read c
    attributes = {"layout": layout, "alpha": alpha, "beta": beta, "bias": False,
                  "activation": "", "slope": ""}
    found = run("matmul", attributes, a=left, b=right, c=start.copy()).c
    wanted = alpha * np.einsum({"nt": "ik,jk->ij", "nn": "ik,kj->ij", "tn": "ki,kj->ij"}[layout],
                               left, right)
    np.testing.assert_allclose(found, wanted + (beta * start if beta else 0), atol=1e-12)


def test_product_with_its_epilogue() -> None:
    a, b, bias = normal(4, 5), normal(3, 5, seed=1), normal(3, seed=2)
    attributes = {"layout": "nt", "alpha": 1.0, "beta": 0.0, "bias": True,
                  "activation": "relu", "slope": ""}
    found = run("matmul", attributes, a=a, b=b, bias=bias, c=np.full((4, 3), np.nan)).c
    np.testing.assert_allclose(found, np.maximum(a @ b.T + bias, 0), atol=1e-12)


@pytest.mark.parametrize("slices", [1, 2, 6])
def test_slices_add_up_to_the_product(slices: int) -> None:
    a, b, bias = normal(4, 12), normal(3, 12, seed=1), normal(3, seed=2)
    partial = run("matmul_slices",
                  {"layout": "nt", "m": 4, "n": 3, "k": 12, "slices": slices}, a=a, b=b,
                  partial=np.full((slices * 4, 3), np.nan)).partial
    found = run("sum_slices", {"slices": slices, "bias": True, "activation": ""},
                partial=partial, bias=bias, c=np.full((4, 3), np.nan)).c
    np.testing.assert_allclose(found, a @ b.T + bias, atol=1e-12)


@pytest.mark.parametrize("decay", [0.0, 0.5])
@pytest.mark.parametrize("slices", [1, 2, 4])
def test_an_update_from_slices_is_the_update_from_the_whole_gradient(slices: int,
                                                                     decay: float) -> None:
    dz, x, w, bias = normal(8, 3), normal(8, 5, seed=1), normal(3, 5, seed=2), normal(3, seed=3)
    partial = run("matmul_slices",
                  {"layout": "tn", "m": 3, "n": 5, "k": 8, "slices": slices}, a=dz, b=x,
                  partial=np.full((slices * 3, 5), np.nan)).partial
    found = run("slices_sgd", {"slices": slices, "lr": 0.25, "decay": decay, "steps": 0},
                partial=partial, w=w.copy(), dz=dz, bias=bias.copy(),
                copy=np.full((3, 5), np.nan))
    np.testing.assert_allclose(found.w, w - 0.25 * (dz.T @ x + decay * w), atol=1e-12)
    np.testing.assert_allclose(found.bias, bias - 0.25 * (dz.sum(axis=0) + decay * bias),
                               atol=1e-12)
    np.testing.assert_array_equal(found.copy, found.w)


def test_a_loss_that_is_nan_stays_nan_and_one_of_a_vanishing_probability_is_exact() -> None:
    y, cursor = np.zeros(1, int), np.zeros(1, np.int32)

    def loss(p: float) -> float:
        return float(run("cross_entropy", {"offset": 0}, p=np.array([[p, 0.0]]),
                         z=np.array([[-500.0, 2.0]]), y=y, cursor=cursor, loss=np.zeros(1)).loss[0])

    assert np.isnan(loss(np.nan))
    assert loss(0.0) == pytest.approx(502.0)
    assert loss(0.5) == pytest.approx(np.log(2.0))


def test_the_first_of_equal_probabilities_wins() -> None:
    p, cursor = np.array([[0.4, 0.4, 0.2], [0.2, 0.4, 0.4]]), np.array([1], np.int32)
    correct = run("accuracy", {"offset": 1}, p=p, y=np.array([0, 2]), cursor=cursor,
                  correct=np.full(3, -1)).correct
    assert correct.tolist() == [-1, -1, 1]


def test_every_op_has_a_summary_and_names_its_operands_once() -> None:
    for kind, spec in OPS.items():
        assert spec.kind == kind
        assert spec.summary.endswith((".", "]"))
        assert set(spec.slotted) <= {*spec.reads, *spec.writes}
        assert set(spec.optional) <= {*spec.reads, *spec.writes}


@pytest.mark.parametrize("is_normalised", [False, True])
@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_a_batch_is_gathered_scaled_and_normalised(is_normalised: bool, is_ordered: bool,
                                                   dtype: str) -> None:
    """Row by row: (value * scale - mean) / deviation of the examples that the order says."""
    generator, rows, step = np.random.default_rng(2), 4, 2
    images = generator.integers(0, 256, (20, 5)).astype(dtype)
    labels = generator.integers(0, 7, 20).astype(np.int32)
    targets = generator.normal(size=(20, 3))
    mean, std = generator.normal(size=5), generator.uniform(0.5, 3, 5)
    order = generator.permutation(20).astype(np.int32)
    more = {**({"mean": mean, "inverse_std": 1 / std} if is_normalised else {}),
            **({"order": order} if is_ordered else {})}
    found = run("gather", {"offset": 0, "stride": rows, "scale": 1 / 255}, images=images,
                labels=labels, targets=targets, cursor=np.array([step]),
                x=np.full((rows, 5), np.nan), y=np.full(rows, -1), t=np.full((rows, 3), np.nan),
                **more)
    for row in range(rows):
        example = step * rows + row
        example = int(order[example]) if is_ordered else example
        wanted = images[example].astype(np.float64) / 255
        wanted = (wanted - mean) / std if is_normalised else wanted
        np.testing.assert_allclose(found.x[row], wanted, rtol=1e-12)
        assert found.y[row] == labels[example]
        assert np.array_equal(found.t[row], targets[example])
