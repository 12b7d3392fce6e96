"""Problems that tests of the on-chip kernels share."""

from __future__ import annotations

from typing import Any

from rawnn.common.target import known
from rawnn.model.layers import Network
from rawnn.model.optimizers import Optimizer
from rawnn.opts import TOGGLES
from rawnn.persistent.chip import chip_of
from rawnn.persistent.problem import Problem, problem_of
from rawnn.persistent.rounding import with_rounded_inputs
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy
from tests.catalogue import MORE_ACTIVATIONS, WITH_CODE
from tests.engine import step_plan

HOPPER = chip_of(known((9, 0)))
AMPERE = chip_of(known((8, 0)))
STEPS = 64


def prepared(network: Network, batch: int = 32, numbers: str = "", left: int = 0,
             steps: int = STEPS, **options: Any) -> Plan:
    """A step's plan with its data on the device, as `persistent` makes a kernel of it; `options` go
    to step_plan. An epoch has `steps` whole batches, and `left` examples in a partial one at its
    end."""
    options = {**options, "partial": left > 0}
    plan = step_plan(network, batch, steps * batch + left, **options)
    for word in filter(None, ("preload", *numbers.split(","))):
        name, _, value = word.partition("=")
        plan, _ = TOGGLES[name].apply(plan, Policy(), TOGGLES[name].parse(value or None))
    return with_rounded_inputs(plan)


def problem(layers: tuple[int, ...] = (40, 64, 17, 10), batch: int = 32, numbers: str = "",
            network: dict[str, Any] | None = None, **options: Any) -> Problem:
    """The problem of a network of these layers; `network` goes to Network."""
    return problem_of(prepared(Network(layers, **(network or {})), batch, numbers, **options))


VARIETY: dict[str, dict[str, Any]] = {
    "softmax, SGD": {},
    "Adam in an order": {"optimizer": Optimizer("adam", 1e-3), "shuffle": True},
    "float32 inputs, a schedule": {"form": {"inputs": "float32", "scale": 1.0},
                                   "schedule": "cosine"},
    "float16 inputs, normalised": {"form": {"inputs": "float16", "normalised": True},
                                   "optimizer": Optimizer("sgd", 0.1, {"momentum": 0.9})},
    "mean squares, gelu, no bias": {"network": {"loss": "mse", "activation": "gelu",
                                                "bias": False}},
    "binary cross-entropy, tanh": {"network": {"loss": "bce", "activation": "tanh"},
                                   "optimizer": Optimizer("adamw", 1e-3, {"decay": 0.01})},
    "relu, mean squares": {"network": {"loss": "mse"}, "batch": 27},
    "an autoencoder": {"layers": (33, 8, 33), "network": {"loss": "mse"},
                       "form": {"labels": "", "targets": 0, "reconstruct": True}},
    "bfloat16": {"numbers": "bf16"},
    "bfloat16, float32 inputs in an order": {
        "numbers": "bf16", "form": {"inputs": "float32", "scale": 1.0}, "shuffle": True},
    "bfloat16, normalised": {
        "numbers": "bf16", "form": {"inputs": "uint8", "scale": 1 / 255, "normalised": True},
        "network": {"activation": "gelu"}},
    "bfloat16, long rows": {"numbers": "bf16", "layers": (551, 12), "batch": 13, "shuffle": True,
                            "form": {"inputs": "float32", "scale": 1.0}},
    "stochastic rounding": {"numbers": "bf16,sr"},
    "stochastic rounding, Adam": {"numbers": "bf16,sr", "optimizer": Optimizer("adam", 1e-3),
                                "shuffle": True},
    "stochastic rounding, decay alone": {
        "numbers": "bf16,sr", "network": {"bias": False}, "seed": 12_345_678_901,
        "optimizer": Optimizer("sgd", 0.1, {"decay": 0.02, "momentum": 0.9})},
    "float16": {"numbers": "fp16"},
    "float16, Adam, tanh": {"numbers": "fp16", "optimizer": Optimizer("adam", 1e-3),
                            "network": {"activation": "tanh"}, "shuffle": True},
    "float16, mean squares": {"numbers": "fp16", "network": {"loss": "mse", "activation": "gelu"},
                              "optimizer": Optimizer("sgd", 0.1, {"momentum": 0.9})},
    "float16, float32 inputs": {
        "numbers": "fp16", "layers": (85, 90, 40, 7), "batch": 37,
        "form": {"inputs": "float32", "scale": 1.0}, "network": {"activation": "tanh"}},
    "float16, one layer": {"numbers": "fp16", "layers": (21, 12)},
    "narrow outputs, mean squares": {"layers": (96, 16), "batch": 16, "network": {"loss": "mse"}},
    "tf32, one layer": {"numbers": "tf32", "layers": (50, 12)},
    "a wide middle": {"layers": (21, 90, 40, 7)},
    "a wide layer of outputs": {"layers": (21, 26, 9, 40), "network": {"activation": "tanh"}},
    "a wide middle, mean squares": {"layers": (21, 90, 40, 7), "network": {"loss": "mse"}},
    "many outputs, mean squares": {"layers": (21, 40, 88), "batch": 62, "network": {"loss": "mse"}},
    "one layer in an order": {"layers": (21, 40), "network": {"loss": "mse"}, "shuffle": True,
                              "optimizer": Optimizer("adam", 1e-3)},
    "long rows": {"layers": (551, 12), "batch": 13, "shuffle": True,
                  "form": {"inputs": "float32", "scale": 1.0}},
    "more outputs than a register file": {"layers": (20, 700), "batch": 5},
    "clusters share sums": {"layers": (20, 300), "batch": 11},
    "five layers": {"layers": (21, 40, 24, 40, 40, 7)},
    **{f"softmax, {kind}": {"optimizer": optimizer} for kind, optimizer in WITH_CODE.items()},
    **{f"softmax, {name}": {"network": {"activation": name}} for name in MORE_ACTIVATIONS},
}
"""Kinds of problems, by what is special about them: keywords of `problem`."""
