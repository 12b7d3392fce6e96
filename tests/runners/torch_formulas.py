"""A network trained by a few lines of float64 NumPy that share nothing with rawnn: the formulas of
torch.optim, torch.nn and torch.optim.lr_scheduler as their documentation states them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

Array = np.ndarray
Arrays = dict[str, Array]
Rate = Callable[[int], float]
"""The learning rate of a step, counted from 0."""

_erf, _erfc = (np.vectorize(f, otypes=[float]) for f in (math.erf, math.erfc))

ACTIVATIONS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "relu": (lambda z: np.where(z > 0, z, 0.0), lambda z: np.where(z > 0, 1.0, 0.0)),
    "tanh": (lambda z: 1 - 2 / (np.exp(2 * z) + 1), lambda z: 1 / np.cosh(z) ** 2),
    "gelu": (lambda z: z * _erfc(-z / math.sqrt(2)) / 2,
             lambda z: 0.5 * (1 + _erf(z / math.sqrt(2)))
             + z * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)),
}
"""Function and derivative, by the input: every registered activation has an entry, and what tests
expect of it follows from that."""


def cross_entropy(z: Array, y: Array) -> tuple[float, Array]:
    """Loss and its gradient in the logits."""
    log_p = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    onehot = np.eye(z.shape[1])[y]
    return float(-(onehot * log_p).sum() / len(z)), (np.exp(log_p) - onehot) / len(z)


def mse(z: Array, t: Array) -> tuple[float, Array]:
    return float(((z - t) ** 2).sum() / z.size), 2 * (z - t) / z.size


def bce(z: Array, t: Array) -> tuple[float, Array]:
    p = 1 / (1 + np.exp(-z))
    loss = -(t * np.log(p) + (1 - t) * np.log(1 - p)).sum() / z.size
    return float(loss), (p - t) / z.size


LOSSES: dict[str, Callable[[Array, Array], tuple[float, Array]]] = {
    "cross_entropy": cross_entropy, "mse": mse, "bce": bce}


def gradients(w: Arrays, depth: int, activation: str, loss: str, x: Array,
              answers: Array) -> tuple[float, Arrays]:
    """Loss of one batch, and its gradient in every parameter."""
    function, slope = ACTIVATIONS[activation]
    inputs, sums = [x], []
    for layer in range(1, depth + 1):
        sums.append(inputs[-1] @ w[f"fc{layer}.weight"].T + w.get(f"fc{layer}.bias", 0.0))
        inputs.append(function(sums[-1]))
    value, upstream = LOSSES[loss](sums[-1], answers)
    found: Arrays = {}
    for layer in range(depth, 0, -1):
        if layer < depth:
            upstream = upstream * slope(sums[layer - 1])
        found[f"fc{layer}.weight"] = upstream.T @ inputs[layer - 1]
        found[f"fc{layer}.bias"] = upstream.sum(axis=0)
        upstream = upstream @ w[f"fc{layer}.weight"]
    return value, {name: found[name] for name in w}


def sgd(w: Arrays, g: Arrays, state: Any, lr: float, step: int, *, momentum: float = 0.0,
        nesterov: float = 0.0, decay: float = 0.0) -> None:
    """torch.optim.SGD: dampening 0, the first buffer being the gradient itself."""
    for name, gradient in g.items():
        gradient = gradient + decay * w[name]
        if momentum:
            if name in state:
                state[name] = momentum * state[name] + gradient
            else:
                state[name] = gradient
            gradient = gradient + momentum * state[name] if nesterov else state[name]
        w[name] = w[name] - lr * gradient


def adam(w: Arrays, g: Arrays, state: Any, lr: float, step: int, *, beta1: float = 0.9,
         beta2: float = 0.999, eps: float = 1e-8, decay: float = 0.0,
         decoupled: bool = False) -> None:
    """torch.optim.Adam; `decoupled` makes it AdamW. `step` is counted from 1."""
    for name, gradient in g.items():
        if decoupled:
            w[name] = w[name] * (1 - lr * decay)
        else:
            gradient = gradient + decay * w[name]
        m, v = state.get(name, (0.0, 0.0))
        m, v = beta1 * m + (1 - beta1) * gradient, beta2 * v + (1 - beta2) * gradient**2
        state[name] = m, v
        m_hat, v_hat = m / (1 - beta1**step), v / (1 - beta2**step)
        w[name] = w[name] - lr * m_hat / (np.sqrt(v_hat) + eps)


def adamw(*arguments: Any, decay: float = 0.01, **settings: float) -> None:
    adam(*arguments, decay=decay, decoupled=True, **settings)


UPDATES: dict[str, tuple[Callable[..., None], tuple[dict[str, float], ...]]] = {
    "sgd": (sgd, ({}, {"decay": 0.1}, {"momentum": 0.9}, {"momentum": 0.8, "decay": 0.05},
                  {"momentum": 0.9, "nesterov": 1.0},
                  {"momentum": 0.7, "nesterov": 1.0, "decay": 0.02})),
    "adam": (adam, ({}, {"beta1": 0.8, "beta2": 0.95, "eps": 1e-4, "decay": 0.1},
                    {"beta1": 0.0})),
    "adamw": (adamw, ({}, {"decay": 0.3, "beta2": 0.9})),
}
"""Every registered optimizer: its step, and settings to train with."""


def constant(lr: float) -> Rate:
    return lambda step: lr


def step_lr(lr: float, factor: float, every: int) -> Rate:
    """StepLR, `every` in steps."""
    return lambda step: lr * factor ** (step // every)


def cosine(lr: float, final: float, steps: int) -> Rate:
    """CosineAnnealingLR stepped every batch, T_max = `steps`."""
    return lambda step: final + (lr - final) * (1 + math.cos(math.pi * step / steps)) / 2


def warmed_up(after: Rate, lr: float, steps: int) -> Rate:
    """A linear rise to `lr` over the first `steps`, then what follows, from its beginning."""
    return lambda step: lr * (step + 1) / steps if step < steps else after(step - steps)


def train(w: Arrays, batches: Iterable[tuple[Array, Array]], *, depth: int, activation: str,
          loss: str, update: str, rate: Rate, settings: dict[str, float]) -> list[float]:
    """Train `w` in place; returns the loss of every step, before its update."""
    losses, state = [], {}
    for step, (x, answers) in enumerate(batches):
        value, g = gradients(w, depth, activation, loss, x, answers)
        losses.append(value)
        UPDATES[update][0](w, g, state, rate(step), step + 1, **settings)
    return losses
