"""Checks of the optimizers (kernel_cases.py), against PyTorch's rules in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import ml_dtypes
import numpy as np
from cases_products import template
from emulated_arrays import DTYPES, EPS, apart, close, f64, filled, padding_untouched, pitched
from emulated_kernels import SOURCES_AND_EXPRESSIONS, Emulator

from rawnn.common.random import rounding_bits

Step = Callable[[np.ndarray, np.ndarray, dict[str, np.ndarray], dict[str, float]], np.ndarray]
CLOCK, CURSOR, OFFSET = 40, 1, 2  # t = 43 counts from 0
COPY_SCALE = 8.0


def sgd64(w: np.ndarray, g: np.ndarray, state: dict[str, np.ndarray],
          a: dict[str, float]) -> np.ndarray:
    return w - a["lr"] * (g + a["decay"] * w)


def momentum64(w: np.ndarray, g: np.ndarray, state: dict[str, np.ndarray],
               a: dict[str, float]) -> np.ndarray:
    g = g + a["decay"] * w
    state["v"] = a["momentum"] * state["v"] + g
    return w - a["lr"] * (g + a["momentum"] * state["v"] if a["nesterov"] else state["v"])


def adam64(w: np.ndarray, g: np.ndarray, state: dict[str, np.ndarray],
           a: dict[str, float]) -> np.ndarray:
    t = a["t"]
    if a["decoupled"]:
        w = w * (1 - a["lr"] * a["decay"])
    else:
        g = g + a["decay"] * w
    state["m"] = a["beta1"] * state["m"] + (1 - a["beta1"]) * g
    state["v"] = a["beta2"] * state["v"] + (1 - a["beta2"]) * g**2
    spread = np.sqrt(state["v"] / (1 - a["beta2"] ** t)) + a["eps"]
    return w - a["lr"] * state["m"] / (1 - a["beta1"] ** t) / spread


RULES: dict[str, tuple[Step, tuple[str, ...], tuple[dict[str, float], ...]]] = {
    "sgd": (sgd64, (), ({},)),
    "momentum": (momentum64, ("v",), ({"momentum": 0.9, "nesterov": False},
                                      {"momentum": 0.9, "nesterov": True})),
    "adam": (adam64, ("m", "v"), (
        {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decoupled": False},
        {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decoupled": True},
    )),
}  # fmt: skip


def optimizer(name: str, emulator: Emulator, rng: np.random.Generator) -> None:
    rule, states, variants = RULES[name]
    columns = (33,) if emulator.quick else (1, 16, 33, 127)
    shapes = itertools.product((1, 5), columns, (0, 3, 9), variants)  # 127 + 9: whole vectors
    for (rows, cols, pad, variant), expression in itertools.product(
        shapes, SOURCES_AND_EXPRESSIONS[f"optimizers/{name}"]
    ):
        tw, tg, tc = (DTYPES[kind] for kind in template(expression))
        w = filled(rng.standard_normal((rows, cols)), pad, tw)
        dw = filled(rng.standard_normal((rows, cols)), apart(pad, 1) + (pad == 3), tg)
        copy = pitched(rows, cols, apart(pad, 2), tc)
        state = {operand: filled(rng.random((rows, cols)), apart(pad, place))
                 for place, operand in enumerate(states, 4)}
        before = f64(w)
        exact = {operand: f64(array) for operand, array in state.items()}
        numbers = {"lr": 0.125, "decay": 0.25, **variant}
        first = 0 if pad else CLOCK
        clock = np.array([7, first], np.int32)
        common = {"w": w, "dw": dw, "rows": rows, "cols": cols, "clock": clock,
                  "cursor": np.array([CURSOR], np.int32), "offset": OFFSET,
                  "copy_scale": COPY_SCALE, **state, **numbers}
        if pad:  # with everything that an update can have
            common |= {"copy": copy, "lr": 9.0, "overflow": np.zeros(1, np.int32),
                       "rates": np.array([9, 9, 9, 0.125], np.float32),
                       "loss_scale": np.array([4.0, 0.0], np.float32)}
        gradient = f64(dw) / (4.0 if pad else 1.0)
        if pad == 9:  # with what another rank has of the gradient
            other = filled(rng.standard_normal((rows, cols)), apart(pad, 3), tg)
            common |= {"other": other, "share": 0.25, "other_share": 0.75}
            gradient = f64((0.25 * f64(dw) + 0.75 * f64(other)).astype(np.float32).astype(tg)) / 4
        emulator.call(expression, (3,), (32,), **common)
        numbers["t"] = first + CURSOR + OFFSET + 1
        expected = rule(before, gradient, exact, numbers)
        # A step's terms: the weight, its decay, and a move whose own error is a few roundings;
        # Adam's divides, takes a root, and raises to powers.
        move = np.abs(expected - before) + numbers["lr"] * (np.abs(gradient) + 1)
        bound = 16 * EPS * (np.abs(before) + move)
        close(w, expected, bound)
        for operand, array in state.items():
            close(array, exact[operand],
                  8 * EPS * (np.abs(exact[operand]) + np.abs(gradient) + np.abs(before) + 1) ** 2)
            padding_untouched(array)
        padding_untouched(w, copy)
        if pad:
            close(copy, COPY_SCALE * expected, COPY_SCALE * bound)
            left_alone = {operand: f64(array) for operand, array in {"w": w, **state}.items()}
            emulator.call(expression, (3,), (32,), **{**common, "overflow": np.ones(1, np.int32)})
            for operand, array in {"w": w, **state}.items():
                assert np.array_equal(f64(array), left_alone[operand]), "overflow: no update"


def check_sgd(emulator: Emulator, rng: np.random.Generator) -> None:
    optimizer("sgd", emulator, rng)


def check_momentum(emulator: Emulator, rng: np.random.Generator) -> None:
    optimizer("momentum", emulator, rng)


def check_adam(emulator: Emulator, rng: np.random.Generator) -> None:
    optimizer("adam", emulator, rng)


def stochastic(values: np.ndarray, seed: int, stream: int, step: int) -> np.ndarray:
    """float32 values rounded to bfloat16 by the bits of rawnn.common.random for each element."""
    elements = np.arange(values.size).reshape(values.shape)
    drawn = rounding_bits(seed, stream, step, elements)
    bits = (values.view(np.uint32) + drawn.astype(np.uint32)) >> np.uint32(16)
    return bits.astype(np.uint16).view(ml_dtypes.bfloat16)


def check_stochastic(emulator: Emulator, rng: np.random.Generator) -> None:
    """Stochastic rounding takes the bits that NumPy takes, whatever the width, pitch and kernel;
    a step too small for bfloat16 still moves the mean."""
    seed, stream = (7 << 40) + 3, 5
    how = {"stochastic": True, "seed": seed, "stream": stream}
    step = CLOCK + CURSOR + OFFSET
    place = {"clock": np.array([7, CLOCK], np.int32), "cursor": np.array([CURSOR], np.int32),
             "offset": OFFSET}
    for rows, cols, pad in itertools.product((1, 3), (1, 8, 31, 64), (0, 1, 8)):
        start = rng.standard_normal((rows, cols)).astype(ml_dtypes.bfloat16)
        dw = filled(rng.standard_normal((rows, cols)), pad)
        w = filled(start, apart(pad, 1), ml_dtypes.bfloat16)
        emulator.call("sgd<bfloat16,float,float>", (1,), (64,), w=w, dw=dw, rows=rows, cols=cols,
                      lr=0.0625, **place, **how)
        exact = start.astype(np.float32) - np.float32(0.0625) * dw  # rounded as the kernel does
        assert np.array_equal(f64(w), f64(stochastic(exact, seed, stream, step)))
        padding_untouched(w)
        side = 8 if emulator.quick else 16
        x = filled(dw[:1], pad)  # the gradient is x itself
        ones = filled(np.ones((1, rows)), apart(pad, 1))
        w = filled(start, pad, ml_dtypes.bfloat16)
        emulator.call("weight_update<float,bfloat16,float>", (-(-cols // side), -(-rows // side)),
                      (side, side), dz=ones, x=x, w=w, m=rows, n=cols, k=1, lr=0.0625, **place,
                      **how)
        exact = start.astype(np.float32) - np.float32(0.0625) * dw[:1]
        assert np.array_equal(f64(w), f64(stochastic(exact, seed, stream, step)))
    # 1 - 2^-12 lies 1/16 of the way from 1 to its neighbour below, 1 - 2^-8.
    w = np.ones((1, 4096), ml_dtypes.bfloat16)
    dw = np.full((1, 4096), 2.0**-12, np.float32)
    emulator.call("sgd<bfloat16,float,float>", (1,), (64,), w=w, dw=dw, rows=1, cols=4096, lr=1.0,
                  **place, **how)
    moved = int((f64(w) == 1 - 2.0**-8).sum())
    assert set(np.unique(f64(w))) == {1.0, 1 - 2.0**-8}
    assert abs(moved - 4096 / 16) < 5 * np.sqrt(4096 / 16)  # five standard deviations
