"""Losses and updates: closed forms, what is fused against its parts, loss scaling and stochastic
rounding. Their gradients are in test_gradients.py, their training in tests/runners."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rawnn.common.dtypes import rounded
from rawnn.model.losses import LOSSES
from rawnn.model.optimizers import UPDATE_RULES
from rawnn.plan import OPS
from rawnn.plan.ops.metrics import report
from tests.plan.calculus import DIFFERENCE, numeric
from tests.plan.references import normal, run

ROWS, COLS = 5, 4


def answers(name: str) -> np.ndarray:
    if LOSSES[name].target_kind == "labels":
        return np.array([0, 3, 1, 1, 2])
    return normal(ROWS, COLS, seed=1) if name == "mse" else \
        np.random.default_rng(2).integers(0, 2, (ROWS, COLS)).astype(float)


def step(name: str, kinds: tuple[str, ...], z: np.ndarray, **more: Any) -> SimpleNamespace:
    """The ops of a loss, one behind the other, on one set of tensors."""
    t = SimpleNamespace(z=z, p=np.full_like(z, np.nan), dz=np.full_like(z, np.nan),
                        loss=np.full(2, np.nan), correct=np.full(2, -1),
                        cursor=np.array([1], np.int32), y=answers(name), t=answers(name), **more)
    for kind in kinds:
        OPS[kind].reference(t, {"offset": 0, "stored": {"dz": "float16"}})
    return t


def closed(name: str, z: np.ndarray) -> float:
    """The loss, term by term, as its definition has it."""
    a, total = answers(name), 0.0
    for i, row in enumerate(z):
        if name == "cross_entropy":
            total -= math.log(math.exp(row[a[i]]) / sum(map(math.exp, row))) / ROWS
            continue
        for value, target in zip(row, a[i], strict=True):
            if name == "mse":
                total += (value - target) ** 2 / z.size
            elif name == "bce":
                p = 1 / (1 + math.exp(-value))
                total -= (target * math.log(p) + (1 - target) * math.log(1 - p)) / z.size
            else:
                raise NotImplementedError(f"write the definition of {name} here")
    return total


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_its_definition(name: str) -> None:
    z = normal(ROWS, COLS)
    found = step(name, LOSSES[name].parts, z)
    assert found.loss[1] == pytest.approx(closed(name, z), rel=1e-13)
    assert np.isnan(found.loss[0])  # of another step


@pytest.mark.parametrize("name", LOSSES)
def test_its_gradient_is_the_derivative_of_its_definition(name: str) -> None:
    z = normal(ROWS, COLS)
    wanted = numeric(lambda: closed(name, z), z)
    for kinds in (LOSSES[name].parts, (LOSSES[name].fused,)):
        np.testing.assert_allclose(step(name, kinds, z).dz, wanted, atol=DIFFERENCE)


@pytest.mark.parametrize("name", LOSSES)
def test_what_is_fused_is_what_its_parts_are(name: str) -> None:
    z = normal(ROWS, COLS)
    parts, fused = step(name, LOSSES[name].parts, z), step(name, (LOSSES[name].fused,), z)
    np.testing.assert_allclose(fused.dz, parts.dz, rtol=1e-14)
    assert fused.loss[1] == parts.loss[1]
    assert (fused.correct == parts.correct).all()


@pytest.mark.parametrize(("name", "right"), [("cross_entropy", 3), ("bce", 3)])
def test_right_answers_are_counted(name: str, right: int) -> None:
    z = np.where(answers(name) > 0.5, 1.0, -1.0) if name == "bce" else np.eye(COLS)[answers(name)]
    z[1:2] *= -1  # a row of four answers, or of one
    if name == "cross_entropy":
        z[3] = [5, 0, 0, 0]
    wanted = ROWS * COLS - COLS if name == "bce" else right
    assert step(name, LOSSES[name].parts, z).correct[1] == wanted


@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0, 1e4])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", LOSSES)
def test_the_sum_and_the_right_answers_of_a_test_set_are_those_of_float64(
        name: str, dtype: str, scale: float) -> None:
    """Also where exp(z) overflows, and where outputs lie close to the border of two answers."""
    logits, a = (normal(ROWS, COLS, seed=3) * scale).astype(dtype), answers(name)
    z = logits.astype(np.longdouble)
    if name == "cross_entropy":
        wanted = sum(np.logaddexp.reduce(row) - row[k] for row, k in zip(z, a, strict=True))
        right = sum(max(range(COLS), key=row.__getitem__) == k for row, k in zip(z, a, strict=True))
    elif name == "bce":
        wanted = sum(np.logaddexp(0, v) - v * t for v, t in zip(z.flat, a.flat, strict=True))
        right = sum((v > 0) == (t == 1) for v, t in zip(z.flat, a.flat, strict=True))
    else:
        wanted, right = sum((v - t) ** 2 for v, t in zip(z.flat, a.flat, strict=True)), 0
    rel = 1e-5 if dtype == "float32" else 1e-13
    assert LOSSES[name].sum_of(logits, a.astype(dtype) if a.ndim > 1 else a) == pytest.approx(
        float(wanted), rel=rel)
    assert LOSSES[name].count_correct(logits, a) == right


@pytest.mark.parametrize("z", [-800.0, 800.0])
def test_binary_cross_entropy_of_extreme_logits_is_finite(z: float) -> None:
    found = step("bce", LOSSES["bce"].parts, np.full((ROWS, COLS), z))
    wrong = np.mean((answers("bce") > 0.5) != (z > 0))
    assert found.loss[1] == pytest.approx(800 * wrong)
    assert np.isfinite(found.dz).all()


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("fused", [False, True])
def test_loss_scaling_multiplies_the_gradient_and_sees_it_overflow(name: str, fused: bool) -> None:
    kinds = (LOSSES[name].fused,) if fused else LOSSES[name].parts
    z = normal(ROWS, COLS)
    plain = step(name, kinds, z)
    for scale, overflowed in ((1024.0, 0), (2.0**24, 1)):
        found = step(name, kinds, z, loss_scale=np.array([scale, 0]),
                     overflow=np.zeros(1, np.int32))
        np.testing.assert_allclose(found.dz, plain.dz * scale, rtol=1e-14)
        assert found.overflow[0] == overflowed
        assert found.loss[1] == plain.loss[1]


# -- updates --------------------------------------------------------------------------------------
COMMON = {"lr": 0.1, "decay": 0.2, "stochastic": False, "seed": 3, "stream": 1, "offset": 0,
          "copy_scale": 1.0}
EXTRA = {"sgd": {}, "momentum": {"momentum": 0.9, "nesterov": True},
         "adam": {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "decoupled": True}}


def update(kind: str, attributes: dict[str, Any] | None = None, **more: Any) -> SimpleNamespace:
    state = {"v": np.abs(normal(3, 4, seed=5)), "m": normal(3, 4, seed=6)}
    operands = {"w": normal(3, 4), "dw": normal(3, 4, seed=1),
                "cursor": np.array([2], np.int32), "clock": np.array([1, 40], np.int32),
                **{k: state[k] for k in {"momentum": "v", "adam": "mv"}.get(kind, "")}, **more}
    return run(kind, {**COMMON, **EXTRA[kind], **(attributes or {})}, **operands)


@pytest.mark.parametrize("kind", EXTRA)
def test_updates_divide_by_the_loss_scale(kind: str) -> None:
    plain = update(kind)
    scaled = update(kind, dw=normal(3, 4, seed=1) * 512, loss_scale=np.array([512.0, 0]))
    np.testing.assert_allclose(scaled.w, plain.w, rtol=1e-14)


@pytest.mark.parametrize("kind", EXTRA)
def test_a_step_that_overflowed_changes_nothing(kind: str) -> None:
    found = update(kind, overflow=np.ones(1, np.int32), copy=np.full((3, 4), 7.0))
    np.testing.assert_array_equal(found.w, normal(3, 4))
    np.testing.assert_array_equal(found.copy, 7.0)
    if kind == "adam":
        np.testing.assert_array_equal(found.m, normal(3, 4, seed=6))


@pytest.mark.parametrize("kind", EXTRA)
def test_updates_take_the_rate_of_the_step_and_write_the_copy(kind: str) -> None:
    rates = np.array([9.0, 9.0, 0.1, 9.0])
    found, plain = update(kind, {"lr": 7.0}, rates=rates, copy=np.zeros((3, 4))), update(kind)
    np.testing.assert_array_equal(found.w, plain.w)
    np.testing.assert_array_equal(found.copy, found.w)


@pytest.mark.parametrize("bias", [True, False])
def test_a_weight_update_is_the_gradient_and_sgd(bias: bool) -> None:
    dz, x, w, b = normal(6, 3), normal(6, 4, seed=1), normal(3, 4, seed=2), normal(3, seed=3)
    more = {"bias": b.copy()} if bias else {}
    found = run("weight_update", COMMON, dz=dz, x=x, w=w.copy(), **more)
    np.testing.assert_allclose(found.w, w - 0.1 * (dz.T @ x + 0.2 * w), rtol=1e-14)
    if bias:
        wanted = b - 0.1 * (dz.sum(axis=0) + 0.2 * b)
        np.testing.assert_allclose(found.bias, wanted, rtol=1e-14)
        alone = run("bias_sgd", COMMON, dz=dz, bias=b.copy())
        np.testing.assert_array_equal(alone.bias, found.bias)


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("slope", ["tanh", ""])
def test_passing_a_layer_back_is_its_input_gradient_and_its_update(slope: str, copy: bool) -> None:
    dz, x, w, b = normal(6, 3), np.tanh(normal(6, 4, seed=1)), normal(3, 4, seed=2), normal(3)
    read = rounded(w, "bfloat16") if copy else w.copy()
    more = {"copy": read.copy()} if copy else {}
    found = run("layer_backward", {**COMMON, "slope": slope}, dz=dz, x=x, w=w.copy(), bias=b.copy(),
                dx=np.full((6, 4), np.nan), **more)
    np.testing.assert_allclose(found.dx, dz @ read * (1 - x * x if slope else 1), rtol=1e-12)
    more = {"copy": read.copy()} if copy else {}
    alone = run("weight_update", COMMON, dz=dz, x=x, w=w.copy(), bias=b.copy(), **more)
    for operand in ("w", "bias", *more):
        np.testing.assert_array_equal(getattr(found, operand), getattr(alone, operand))


def test_stochastic_rounding_goes_to_a_neighbour_and_is_right_in_the_mean() -> None:
    """A weight of 1 that loses a tenth of a unit of bfloat16 in a step: rounding to nearest would
    lose it every time, this keeps it in the mean. 10,000 weights: the mean is off by less than
    four standard deviations, sqrt(0.1 * 0.9 / 10,000) units each."""
    count, unit = 10_000, 2.0**-8  # below 1 bfloat16 has steps of 2^-8
    w = np.ones(count, np.float32)
    found = run("sgd", {**COMMON, "lr": 1.0, "decay": 0.0, "stochastic": True}, w=w,
                dw=np.full(count, 0.1 * unit, np.float32), cursor=np.array([2], np.int32),
                clock=np.array([1, 40], np.int32)).w
    assert set(found.tolist()) == {1.0, 1.0 - unit}
    np.testing.assert_array_equal(found, rounded(found, "bfloat16"))
    lost = (1.0 - found.astype(np.float64).mean()) / unit
    assert lost == pytest.approx(0.1, abs=4 * math.sqrt(0.1 * 0.9 / count))


@pytest.mark.parametrize("kind", EXTRA)
def test_in_float64_nothing_is_rounded_at_random(kind: str) -> None:
    """What other runs are compared with."""
    np.testing.assert_array_equal(update(kind, {"stochastic": True}).w, update(kind).w)


@pytest.mark.parametrize("kind", [s.fused_kind for s in UPDATE_RULES.values() if s.is_fused])
def test_a_fused_update_rounds_weights_at_random_and_no_biases(kind: str) -> None:
    """Weights are stored in bfloat16, biases in float32: here a hundredth of a unit of bfloat16 is
    taken from each, of which biases lose no bit."""
    step = next(s for s in UPDATE_RULES.values() if s.fused_kind == kind)
    rows, cols, unit = 64, 32, 2.0**-8
    attributes = {**COMMON, **EXTRA[step.kind], "lr": 1.0, "decay": 0.0, "stochastic": True,
                  "momentum": 0.0, "eps": 1e-8}
    lost = 0.01 * unit
    if step.kind == "adam":  # a first step is as long as the rate, whatever the gradient
        attributes["lr"] = lost
    state = {f"{prefix}{name}": np.zeros(shape, np.float32) for name in step.keeps
             for prefix, shape in (("", (rows, cols)), ("bias_", (rows,)))}
    found = run(kind, attributes, w=np.ones((rows, cols), np.float32),
                bias=np.ones(rows, np.float32), dz=np.full((1, rows), lost, np.float32),
                x=np.ones((1, cols), np.float32), cursor=np.array([0], np.int32),
                clock=np.array([0, 0], np.int32), **state)
    np.testing.assert_allclose(found.bias, np.full(rows, 1.0 - lost), rtol=1e-6)
    assert set(found.w.ravel().tolist()) == {1.0, 1.0 - unit}


@pytest.mark.parametrize(("overflow", "good", "wanted"), [
    (1, 5.0, (512.0, 0.0)), (0, 5.0, (1024.0, 6.0)), (0, 1999.0, (2048.0, 0.0)),
])
def test_the_loss_scale_halves_at_once_and_doubles_in_time(
    overflow: int, good: float, wanted: tuple[float, float]
) -> None:
    found = run("adjust_scale", {"growth": 2000}, overflow=np.array([overflow], np.int32),
                loss_scale=np.array([1024.0, good]))
    assert tuple(found.loss_scale) == wanted
    assert found.overflow[0] == 0


def test_the_loss_scale_stays_between_its_ends() -> None:
    for overflow, scale in ((1, 1.0), (0, 2.0**24)):
        found = run("adjust_scale", {"growth": 1}, overflow=np.array([overflow], np.int32),
                    loss_scale=np.array([scale, 0.0]))
        assert found.loss_scale[0] == scale


def test_a_report_leaves_nothing_of_what_lay_in_its_parts() -> None:
    """Only the sum of a row has a meaning: of all that was there, and of the row of its step."""
    parts, right = np.full((2, 3), 7.0), np.full((2, 3), 7)
    t = SimpleNamespace(cursor=np.array([1]), loss_parts=parts, correct_parts=right)
    report(t, {"offset": 0}, 0.5, 8, 3)
    assert (parts[1].sum(), right[1].sum()) == (4.0, 3)
    assert (parts[0] == 7).all()
    assert (right[0] == 7).all()


@pytest.mark.parametrize("bits", [0x7F800000, 0xFF800000, 0x7FFFFFFF])
def test_stochastic_rounding_leaves_what_is_not_finite_as_it_is(bits: int) -> None:
    """Bits that are added to the last, a NaN, would carry into the sign, and make it -0."""
    value = np.array(bits, np.uint32).view(np.float32)
    w = np.zeros((4, 64), np.float32)
    t = SimpleNamespace(w=w, dw=np.broadcast_to(value, w.shape), clock=np.zeros(2, np.int32),
                        cursor=np.zeros(1, np.int32))
    OPS["sgd"].reference(t, {"lr": -1.0, "decay": 0.0, "stochastic": True, "seed": 1, "stream": 0,
                             "offset": 0})
    assert np.array_equal(w, t.dw, equal_nan=True)
