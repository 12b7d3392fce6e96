"""Random problems and shardings, for tests that compare walks over the schedule.

Every kind of boundary, loss, optimizer, dtype and transport comes up. A sample is a function of its
number alone.
"""

from __future__ import annotations

import random
from functools import cache
from itertools import product
from typing import Any

from rawnn.model.optimizers import Optimizer
from rawnn.persistent.layout import layout_of
from rawnn.persistent.problem import Problem
from rawnn.persistent.sharding import (
    ALL_GATHERED,
    DSMEM,
    L2,
    REPLICATED,
    SHARDED,
    Sharding,
    layer_kinds,
    output_boundaries,
)
from tests.catalogue import MORE_ACTIVATIONS
from tests.persistent.problems import HOPPER, problem

ADAM = Optimizer("adam", 1e-3)
OPTIMIZERS = (Optimizer("sgd", 0.05), Optimizer("sgd", 0.05, {"momentum": 0.9}), ADAM,
              Optimizer("adamw", 1e-3, {"decay": 0.01}))
DTYPES = ("", "tf32", "bf16", "fp16", "bf16,sr")
WIDTHS = (7, 9, 16, 21, 26, 33, 40, 64, 90, 150)
BATCHES = (5, 11, 16, 27, 32, 48, 64, 100)
FORMS: tuple[dict[str, Any], ...] = (
    {}, {"inputs": "float32", "scale": 1.0},
    {"inputs": "uint8", "scale": 1 / 255, "normalised": True})


@cache
def sampled(seed: int) -> Sharding:
    """Sharding number `seed`, which fits the shared memory of a Hopper GPU."""
    draw = random.Random(seed)
    while True:
        d = _sampled(draw)
        if d and layout_of(d, HOPPER.shared).nbytes <= HOPPER.shared:
            return d


def _sampled(draw: random.Random) -> Sharding | None:
    p = sampled_problem(draw)
    transport = draw.choice((DSMEM, L2))
    tp_size = draw.choice((1, 2, 4, 8, 16) if transport == DSMEM else (2, 3, 4, 8, 12, 33, 64))
    dp_size = draw.choice((1, 1, 2, 3, 4, 8))
    if dp_size > p.batch:
        return None
    micro_batches = draw.choice((1, 1, 2, 3)) \
        if (dp_size > 1 or transport == DSMEM) and not p.scaled else 1
    types = REPLICATED * (p.depth + 1) if tp_size == 1 else draw.choice(boundaries(p))
    threads = draw.choice((256, 384, 512))
    return Sharding(p, tp_size, dp_size, threads, types, micro_batches, transport)


def sampled_problem(draw: random.Random) -> Problem:
    """A network of one to five layers."""
    loss = draw.choice(("cross_entropy", "cross_entropy", "mse", "bce"))
    activation = draw.choice(("relu", "tanh", "gelu", *MORE_ACTIVATIONS))
    layers = tuple(draw.choice(WIDTHS) for _ in range(draw.randint(2, 6)))
    reconstruct = loss == "mse" and draw.random() < 0.3
    form = dict(draw.choice(FORMS))
    if reconstruct:
        layers, form = (*layers[:-1], layers[0]), {"labels": "", "targets": 0, "reconstruct": True}
    network: dict[str, Any] = {"loss": loss, "activation": activation,
                               "bias": draw.random() < 0.8}
    return problem(layers, draw.choice(BATCHES), draw.choice(DTYPES), network, form=form,
                   optimizer=draw.choice(OPTIMIZERS), shuffle=draw.random() < 0.3)


def boundaries(p: Problem) -> list[str]:
    """All boundaries that a problem can have."""
    first, middle = REPLICATED + SHARDED, REPLICATED + SHARDED + ALL_GATHERED
    every = product(first, *[middle] * (p.depth - 1), output_boundaries(p))
    return [found for found in map("".join, every) if layer_kinds(found) is not None
            and (not p.reconstruct or found[0] != SHARDED or found[-1] == SHARDED)]
