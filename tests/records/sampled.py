"""Networks, recipes and GPUs drawn from a fixed seed. Only `Random.random` is used, the one method
whose numbers Python promises to keep."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rawnn.cli.plan import assumed
from rawnn.engine.config import Config
from rawnn.opts import Selection, select
from rawnn.plan.build import training_step
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy
from rawnn.plan.recipe import DataSpec

T = TypeVar("T")


class Draw:
    """Draws from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def one_of(self, choices: Sequence[T]) -> T:
        return choices[int(self._random() * len(choices))]

    def size(self, least: int, most: int) -> int:
        """Log-uniform."""
        return round(math.exp(math.log(least) + self._random() * math.log(most / least)))

    def is_hit(self, probability: float) -> bool:
        return self._random() < probability


@dataclass(frozen=True)
class Case:
    """A network with its recipe and data, the toggles and the GPU."""

    number: int
    options: dict[str, Any]
    data_spec: DataSpec
    gpu: str

    def __str__(self) -> str:
        o = self.options
        words = [
            "-".join(map(str, o["layers"])),
            *(f"{k} {v}" for k, v in o.items() if k not in ("layers", "opt")),
        ]
        spec = self.data_spec
        data = (
            f"{spec.examples} of {spec.inputs}"
            + (" normalised" if spec.normalised else "")
            + (" reconstructed" if spec.reconstruct else "")
        )
        return f"{self.number:03d} {' '.join(words)} | {data} | {o['opt']} | {self.gpu}"

    def config(self) -> Config:
        return Config(**self.options)


GPUS = ("H200", "H200", "H200", "H100", "A100", "L40", "B200", "RTX 4090", "T4")
OPTS = (
    "best",
    "best",
    "best,tf32",
    "best,bf16",
    "best,fp16",
    "best,bf16,sr",
    "best,fp8",
    "best,-persistent",
    "best,-persistent,bf16",
    "best,-persistent,tf32",
    "best,-persistent,fp16",
    "best,-graphs",
    "best,-fuse",
    "best,-pdl,-persistent",
    "none",
    "seed",
    "mma,fuse,pdl",
    "mma=sync,fuse,bf16",
    "tiled,fuse",
    "cublas,cudnn,fuse,bf16",
    "persistent",
    "persistent,bf16",
    "graphs=while,mma,fuse",
    "graphs=step,mma,fuse,streams",
)


def cases(
    count: int,
    seed: int,
    widest: int = 1400,
    deepest: int = 5,
    opts: Sequence[str] = OPTS,
    gpus: Sequence[str] = GPUS,
) -> Iterator[Case]:
    draw = Draw(seed)
    for number in range(count):
        layers = [draw.size(3, widest) for _ in range(1 + draw.one_of(range(1, deepest + 1)))]
        loss = draw.one_of(("cross_entropy", "cross_entropy", "mse", "bce"))
        if loss == "cross_entropy" and draw.is_hit(0.6):
            layers[-1] = draw.size(3, 32)
        if draw.is_hit(0.4):
            layers = [-(-n // 8) * 8 for n in layers]
        batch = draw.size(3, 3000)
        if draw.is_hit(0.5):
            batch = -(-batch // 8) * 8
        options: dict[str, Any] = {
            "batch": batch,
            "loss": loss,
            "optimizer": draw.one_of(("sgd", "sgd", "adam", "adamw")),
            "activation": draw.one_of(("relu", "relu", "tanh", "gelu")),
            "epochs": draw.one_of((1, 20, 400, 10_000)),
            "bias": draw.is_hit(0.8),
            "shuffle": draw.is_hit(0.5),
            "partial": draw.is_hit(0.4),
        }
        if options["optimizer"] == "sgd" and draw.is_hit(0.4):
            options["momentum"] = 0.9
        if draw.is_hit(0.2):
            options["schedule"] = draw.one_of(("cosine", "step:3:0.5", "warmup:1,cosine"))
        is_reconstruction = loss == "mse" and draw.is_hit(0.25)
        if is_reconstruction:
            layers[-1] = layers[0]
        examples = draw.size(batch, 60_000)
        labelled = loss == "cross_entropy"
        data_spec = DataSpec(
            examples,
            inputs=draw.one_of(("uint8", "uint8", "float32", "float16")),
            labels=("uint8" if layers[-1] <= 256 else "int32") if labelled else "",
            targets=0 if labelled or is_reconstruction else layers[-1],
            scale=1 / 255,
            normalised=draw.is_hit(0.2),
            reconstruct=is_reconstruction,
        )
        yield Case(
            number,
            {"layers": tuple(layers), **options, "opt": draw.one_of(opts)},
            data_spec,
            draw.one_of(gpus),
        )


def selected(case: Case) -> tuple[Selection, Plan, Policy]:
    """The toggles, the plan of a step and the policy. Raises ConfigError."""
    config = case.config()
    network, recipe = config.network(), config.recipe()
    selection = select(
        config.opt,
        network,
        max(recipe.steps(case.data_spec.examples), 1),
        assumed(case.gpu),
        batch=recipe.batch,
        recipe=recipe,
        data_spec=case.data_spec,
    )
    plan, policy = selection.apply(training_step(network, recipe, case.data_spec))
    return selection, plan, policy
