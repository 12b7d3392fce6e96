"""How far an op of the table may be off, against what rounding does to honest results."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from rawnn.common.tolerances import TENSOR_CORE, of_op
from rawnn.lab.ops import Examined, Outcome, fill_operands, tolerance_of
from rawnn.model.optimizers import Optimizer
from tests.catalogue import Variant

DRAWS = 64
Array = NDArray[np.float64]


def _tf32(values: Array) -> Array:
    """Rounded to 10 bits of mantissa, halves up."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x1000) & 0xFFFFE000).astype(np.uint32).view(np.float32).astype(np.float64)


def _gradient(a: Array, b: Array, bias: Array, labels: NDArray[np.int32]) -> Array:
    z = a @ b.T + bias
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(p)), labels] -= 1.0
    return p


def test_a_softmaxs_gradient_in_tf32_is_as_near_as_its_logits_let_it_be() -> None:
    """Of a sum of 2048, at the end of an epoch whose last batch has 16 examples."""
    op, plan = next(
        (op, plan) for plan in Variant((16, 2048, 10), 32).plans("preload,tf32,mma,fuse")
        for op in plan.ops if op.kind == "matmul_loss" and op.attributes["m"] == 16)
    assert op.impl == "mma"
    assert {"loss": "cross_entropy", "compute": "tf32", "k": 2048}.items() <= op.attributes.items()
    errors = []
    for seed in range(DRAWS):
        drawn = fill_operands(op, plan, seed)
        a, b, bias, y = (drawn[op.operands[role]] for role in ("a", "b", "bias", "y"))
        true = _gradient(a, b, bias, y.ravel())
        found = _gradient(_tf32(a), _tf32(b), bias, y.ravel())
        errors.append(float(np.linalg.norm(found - true) / np.linalg.norm(true)))
    allowed = tolerance_of(op, plan, plan[op.operands["dz"]])
    assert max(errors) < allowed
    of_a_sum = of_op("float32", int(op.attributes["k"]), "tf32", TENSOR_CORE)
    assert max(errors) > of_a_sum, "as any sum it would be refused"
    assert np.median(errors) < of_a_sum


def test_only_means_of_squares_are_drawn_without_a_sign() -> None:
    """Adam's second moment is none below 0; a velocity, Adam's mean and weights are both."""
    for kind, optimizer in (("adam", Optimizer("adam", 1e-3)),
                            ("momentum", Optimizer("sgd", 0.1, {"momentum": 0.9}))):
        variant = Variant((16, 32, 10), 32, recipe={"optimizer": optimizer})
        op, plan = next((op, plan) for plan in variant.plans("") for op in plan.ops
                        if op.kind == kind and len(plan[op.operands["w"]].shape) == 2)
        drawn = fill_operands(op, plan, 0)
        for role, name in op.operands.items():
            if role in ("w", "m", "v", "dw") and plan[name].floating:
                below = drawn[name].min() < 0
                assert below == ((kind, role) != ("adam", "v")), (kind, role)


@pytest.mark.parametrize(("errors", "trespasses", "right"), [
    ((), (), True), ((0.5, 1.0), (), True), ((0.5, 1.01), (), False), ((1.01, 0.5), (), False),
    ((float("inf"),), (), False), ((0.5,), ("wrote outside",), False)])
def test_an_op_is_right_if_all_of_its_outcomes_are(errors: tuple[float, ...],
                                                   trespasses: tuple[str, ...],
                                                   right: bool) -> None:
    found = Examined("relu1", tuple(Outcome(f"a{n}", error, 1.0)
                                    for n, error in enumerate(errors)), trespasses)
    assert found.right is right


def test_nothing_stands_behind_a_narrower_layer() -> None:
    """64 units are room for each of the layers of 40, 24 and 7."""
    plan = next(iter(Variant((50, 40, 24, 7), 20).plans("preload,bf16,mma,fuse")))
    (op,) = plan.find(kind="narrow_update")
    drawn = fill_operands(op, plan, 0)
    for role in ("activations", "gradients"):
        rows = drawn[op.operands[role]].any(axis=1)
        assert rows.tolist() == [i % 64 < (40, 24, 7)[i // 64] for i in range(192)], role


@pytest.mark.parametrize(("error", "said"), [
    (0.25, "a1: off by 2.5e-01 of 5.0e-01 allowed"), (0.5, "a1: off by 5.0e-01 of 5.0e-01 allowed"),
    (2.0, "a1: off by 2.0e+00, of which 5.0e-01 are allowed; [3, 1] = 7"),
    (np.inf, "a1: [3, 1] = 7 was not written, or is no number")])
def test_an_outcome_says_how_far_off_it_is(error: float, said: str) -> None:
    assert str(Outcome("a1", error, 0.5, "[3, 1] = 7")) == said


@pytest.mark.parametrize(("words", "factor", "unit"), [
    ("cublas", "float32", 2.0**-24), ("cublas,tf32", "tf32", TENSOR_CORE),
    ("cublas,fp16", "float32", TENSOR_CORE), ("cublas,bf16", "float32", TENSOR_CORE)])
def test_sums_of_a_library_are_tensor_cores_where_its_factors_let_them(
        words: str, factor: str, unit: float) -> None:
    plan = next(iter(Variant((16, 64, 10), 32).plans(words)))
    products = [op for op in plan.ops if op.kind == "matmul" and op.impl == "cublas"]
    lengths = {"z1": 16, "dw2": 32, "da1": 10, "dw1": 32}
    assert {op.operands["c"] for op in products} <= set(lengths)
    for op in products:
        made = plan[op.operands["c"]]
        assert tolerance_of(op, plan, made) == pytest.approx(
            of_op(made.dtype, lengths[op.operands["c"]], factor, unit))
