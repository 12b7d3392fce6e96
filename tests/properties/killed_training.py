"""The process that test_killed.py kills: trains, keeps checkpoints, continues from them."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from rawnn.common.listener import Listener
from rawnn.engine.checkpoint import find, listed
from rawnn.engine.result import Result
from rawnn.engine.session import Session
from rawnn.engine.training import train

EPOCHS = 25
RECIPES: dict[str, dict[str, Any]] = {
    "host": {"device": "host", "optimizer": "adamw", "lr": 0.01, "shuffle": True, "partial": True,
             "schedule": "cosine", "opt": "none"},
    "sim": {"device": "sim", "momentum": 0.9, "nesterov": True, "shuffle": True, "lr": 0.05,
            "schedule": "warmup:3,cosine", "opt": "preload,arena,nosync,fuse,report=2"},
}


class Announcing(Listener):
    """Says when training begins, so that the killer's clock can start."""

    def notify(self, message: str) -> None:
        print(message, flush=True)

    def started(self, session: Session) -> None:
        print("started", flush=True)


def run(recipe: str, directory: str) -> Result:
    """Train, from the newest good checkpoint in `directory` if it holds any."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(130, 12)).astype(np.float32)
    y = (x @ generator.normal(size=(12, 4))).argmax(axis=1)
    resume = {"resume": directory} if listed(directory) else {}
    return train(data=(x, y), normalise="learned", layers=(12, 9, 4), batch=16, epochs=EPOCHS,
                 save=directory, keep=3, listener=Announcing(), seed=5, **RECIPES[recipe], **resume)


def finished(directory: str) -> bool:
    """Whether the last epoch is behind it: the process was killed on its way out."""
    return bool(listed(directory)) and find(directory, print)[1].epoch == EPOCHS


if __name__ == "__main__":
    if not finished(sys.argv[2]):
        run(*sys.argv[1:])
