"""Small ragged networks that between them run every kernel family on the CPU emulator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

from rawnn.model.optimizers import Optimizer
from rawnn.opts import mma
from rawnn.plan.plan import Plan
from rawnn.ptx.gemm import deferred
from tests.catalogue import WITH_CODE
from tests.ptx.emulator.plans import Case

ADAM = {"optimizer": Optimizer("adamw", 0.01)}
MOMENTUM = {"optimizer": Optimizer("sgd", 0.1, given={"momentum": 0.9, "decay": 0.1})}
DECAYING = {"optimizer": Optimizer("sgd", 0.1, given={"decay": 0.1})}


def a_nan(weights: list[np.ndarray], biases: list[np.ndarray]) -> None:
    weights[0][1, 2] = np.nan


def infinite_in_part(weights: list[np.ndarray], biases: list[np.ndarray]) -> None:
    """A row of the last layer's weights: that class has the probability 0."""
    biases[-2][2] = 10.0  # what meets it is above 0
    weights[-1][1, 2] = -np.inf


CASES = {
    "products of floats": Case((29, 33, 17, 7), 9, "preload,tiled,fuse"),
    "products of bfloat16 without tensor cores": Case((40, 33, 7), 20, "preload,bf16,sr,tiled"),
    "mma of bfloat16": Case((33, 41, 24, 7), 20, "preload,bf16,mma=sync"),
    "mma of float16": Case((50, 70, 10), 33, "preload,fp16,mma=sync,fuse"),
    "mma of tf32": Case((50, 70, 10), 33, "preload,tf32,mma=sync,fuse"),
    "mma of three tf32": Case((37, 50, 10), 20, "preload,mma=sync,fuse"),
    "mma, stochastic rounding": Case((33, 41, 24, 7), 20, "preload,bf16,sr,mma=sync,fuse",
                                     spoil=(a_nan,), network={"activation": "tanh"}),
    "mma of 8 bits": Case((48, 64, 32, 10), 32, "preload,fp8,mma=sync,fuse", choice=10),
    "mma of bfloat16 in larger tiles": Case((130, 72, 40, 9), 70, "preload,bf16,mma=sync",
                                            choice=10),
    "mma of three tf32 in clusters": Case((37, 70, 10), 200, "preload,mma,fuse", choice=12,
                                          network={"activation": "gelu"}),
    "wgmma in clusters": Case((130, 72, 136, 9), 150, "preload,bf16,mma,fuse", choice=6),
    "wgmma in larger clusters, momentum": Case((72, 136, 9), 150, "preload,bf16,mma,fuse",
                                               choice=7, options=MOMENTUM),
    "wgmma": Case((130, 72, 136, 9), 70, "preload,bf16,mma"),
    "wgmma in larger tiles": Case((272, 136, 72, 10), 140, "preload,bf16,mma,fuse", choice=3),
    "wgmma of tf32": Case((70, 133, 48, 9), 70, "preload,tf32,mma"),
    "wgmma of three tf32": Case((70, 133, 48, 9), 70, "preload,mma,fuse"),
    "scaled float16": Case((70, 133, 48, 9), 70, "preload,mma,fuse", spoil=(a_nan,),
                          network={"activation": "tanh"}),
    "scaled float16 in large tiles": Case((70, 133, 140), 135, "preload,mma,fuse", choice=2,
                                          options=ADAM, spoil=(a_nan,),
                                          network={"activation": "tanh"}),
    "scaled float16 in large tiles, in clusters": Case((70, 133, 48, 9), 270,
                                                       "preload,mma,fuse", choice=4),
    "mma of three tf32, AdamW": Case((200, 37, 10), 33, "preload,mma=sync,fuse", choice=8,
                                     options=ADAM),  # more stages than a part has
    "mma of bfloat16, momentum": Case((21, 36, 10), 20, "preload,bf16,mma=sync,fuse",
                                      options=MOMENTUM),
    "wgmma, AdamW": Case((72, 136, 9), 70, "preload,bf16,mma,fuse", options=ADAM),
    "wgmma of three tf32, AdamW": Case((70, 133, 9), 70, "preload,mma,fuse", options=ADAM),
    "mma with a squared error": Case((37, 50, 70), 41, "preload,mma=sync,fuse",
                                     network={"loss": "mse", "activation": "tanh"}, spoil=(a_nan,)),
    "mma of bfloat16 with a binary cross-entropy": Case(
        (37, 50, 35), 41, "preload,bf16,mma=sync,fuse", network={"loss": "bce", "bias": False}),
    "mma of float16 with a squared error": Case(
        (37, 50, 70), 41, "preload,fp16,mma=sync,fuse", network={"loss": "mse"}),
    "mma of 8 bits with a squared error": Case((48, 64, 32, 32), 32, "preload,fp8,mma=sync,fuse",
                                               choice=10, network={"loss": "mse"}),
    "mma with a squared error, targets without padding": Case(
        (37, 50, 70), 41, "preload,mma=sync,fuse", network={"loss": "mse"}, packed="t"),
    "mma of 8 bits with a squared error, targets without padding": Case(
        (48, 64, 32, 30), 32, "preload,fp8,mma=sync,fuse", choice=10, network={"loss": "mse"},
        packed="t"),
    "mma of tf32 with a softmax": Case((37, 50, 61), 41, "preload,tf32,mma=sync,fuse",
                                       network={"activation": "tanh"},
                                       spoil=(a_nan, infinite_in_part)),
    "wgmma with a softmax": Case((37, 70, 75), 141, "preload,bf16,mma,fuse=-head"),
    "wgmma of three tf32 with a binary cross-entropy": Case(
        (37, 70, 75), 141, "preload,mma,fuse", network={"loss": "bce"}),
    "wgmma of three tf32 with a softmax": Case((37, 70, 63), 141, "preload,mma,fuse"),
    "losses of several blocks": Case((20, 33), 141, "preload,fuse", steps=3),
    "squared errors of several blocks": Case((20, 131), 41, "preload,fuse",
                                             network={"loss": "mse"}),
    "binary cross-entropies of several blocks": Case((20, 131), 41, "preload,fuse",
                                                     network={"loss": "bce"}),
    "streamed weights": Case((136, 264, 200, 10), 20, "preload,bf16,mma,fuse"),
    "streamed weights in float16": Case((136, 200, 144, 10), 20, "preload,fp16,mma,fuse",
                                        options=MOMENTUM),
    "head of streamed weights, stochastic rounding": Case(
        (139, 200, 261, 21), 32, "preload,bf16,sr,mma,fuse", spoil=(a_nan, infinite_in_part),
        network={"activation": "tanh"}),
    "streamed weights, backward alone": Case((136, 200, 144, 10), 20, "preload,bf16,mma"),
    "streamed weights in clusters": Case((3600, 24, 16, 10), 40, "preload,bf16,sr,mma,fuse",
                                         options=DECAYING),
    "deferred updates, Adam": Case((37, 41, 30, 7), 2, "preload,mma=many,fuse", steps=6,
                                   options=ADAM),
    "deferred updates of bfloat16, momentum": Case(
        (37, 70, 9), 3, "preload,bf16,mma=sync,fuse", steps=4, spoil=(a_nan,), options=MOMENTUM,
        network={"activation": "tanh"}),
    "deferred updates of bfloat16, AdamW": Case((1100, 22, 7), 1, "preload,bf16,mma=sync,fuse",
                                                steps=6, options=ADAM),
    "deferred updates of one row, decaying": Case(
        (1030, 21, 5), 1, "preload,tf32,mma=sync,fuse", steps=6, options=DECAYING,
        network={"bias": False}),
    "deferred updates of the largest batch": Case((29, 33, 5), 4, "preload,mma=sync,fuse",
                                                  steps=4),
    "biases of a wide layer": Case((9, 530, 3), 11, "preload,tiled"),
    "one layer": Case((50, 10), 20, "preload,fuse", spoil=(a_nan,)),
    "narrow layers": Case((50, 40, 24, 7), 20, "preload,bf16,mma,fuse",
                          network={"bias": False, "activation": "tanh"}),
    "narrow layers, weights by bulk copies": Case((70, *5 * (128,), 10), 19,
                                                  "preload,bf16,mma,fuse", spoil=(a_nan,),
                                                  network={"activation": "tanh"},
                                                  options={"shuffle": True}),
    "narrow layers, weights fetched twice": Case((99, 150, 131, 140, 160, 152, 20), 21,
                                                 "preload,bf16,mma,fuse"),
    "narrow layers, all weights at once": Case((50, 40, 24, 33, 20, 40, 7), 45,
                                               "preload,bf16,mma,fuse", options=DECAYING),
}
for _kind, _optimizer in WITH_CODE.items():
    _step = {"optimizer": _optimizer}
    CASES[f"{_kind} alone"] = Case((29, 33, 7), 9, "preload,tiled", options=_step)
    CASES[f"mma of bfloat16, {_kind}"] = Case((21, 36, 10), 20, "preload,bf16,mma=sync,fuse",
                                              options=_step)

SMALL: dict[str, dict[str, Any]] = {
    "wgmma": {"wgmma_is_faster": lambda product, target: True},
    "scaled": {"scaled_is_faster": lambda product, target: True},
    "streamed": {"MIN_SKINNY_WEIGHTS": 1 << 10},
    "head of streamed": {"MIN_SKINNY_WEIGHTS": 1 << 10},
}
"""Sizes from which on kernels are taken that are meant for large networks."""


@contextmanager
def taken_early(name: str) -> Iterator[None]:
    changed = next((v for k, v in SMALL.items() if name.startswith(k)), {})
    weights = 1 if name.startswith("deferred") else deferred.LEAST_WEIGHTS
    with mock.patch.multiple(mma, **changed) if changed else mock.patch.dict({}), \
            mock.patch.object(deferred, "LEAST_WEIGHTS", weights):
        yield


def plan_of(name: str) -> Plan:
    """The plan of a case."""
    with taken_early(name):
        return CASES[name].plan()
