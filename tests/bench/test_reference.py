"""The accuracy that float64 reaches on the host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rawnn.bench.reference import host_accuracy
from rawnn.common.errors import TrainingDiverged
from rawnn.common.listener import Listener
from rawnn.engine.config import Config
from rawnn.engine.session import Session
from tests.engine import random_dataset

DATA = random_dataset(train=140)
CONFIG = Config(layers=(29, 11, 7), batch=8, epochs=3, lr=0.2, device="host")


def test_it_agrees_with_a_float32_run_of_the_same_seed() -> None:
    received: list[tuple[int, float]] = []
    found = host_accuracy(CONFIG, DATA, (0, 1, 2), lambda s, a: received.append((s, a)))
    assert received == list(zip((0, 1, 2), found.samples, strict=True))
    with Session(replace(CONFIG, opt="none", seed=1), Listener(), data=DATA) as session:
        assert session.run().test_accuracy == pytest.approx(found.samples[1], abs=0.05)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_divergence_is_an_error() -> None:
    with pytest.raises(TrainingDiverged, match="seed 0"):
        host_accuracy(replace(CONFIG, lr=1e38, weight_decay=1e38), DATA, (0,))
