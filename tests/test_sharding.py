"""The option `sharding`: the persistent kernel of exactly that sharding, as the toggle has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rawnn
from rawnn.common.errors import ConfigError
from rawnn.engine.checkpoint import read

RNG = np.random.default_rng(7)
X = RNG.normal(size=(96, 6)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)
OPTIONS: dict[str, Any] = {"data": (X, Y), "layers": (6, 16, 2), "epochs": 2, "batch": 16,
                           "shuffle": True, "optimizer": "adam", "lr": 0.01}


def same(a: rawnn.Result, b: rawnn.Result) -> bool:
    return all(np.array_equal(a.parameters[name], b.parameters[name]) for name in a.parameters)


def test_a_sharding_means_the_toggle_with_that_value(tmp_path: Path) -> None:
    asked = rawnn.train(**OPTIONS, device="sim", sharding="1x1:128:FFF", save=str(tmp_path))
    typed = rawnn.train(**OPTIONS, device="sim", opt="best,persistent=1x1:128:FFF")
    assert asked.sharding == typed.sharding == "1x1:128:FFF"
    assert asked.toggles == typed.toggles
    assert same(asked, typed)
    assert [r.train_loss for r in asked.history] == [r.train_loss for r in typed.history]
    stored = read(tmp_path / "rawnn-000002.safetensors")
    assert stored.config["sharding"] == "1x1:128:FFF"
    resumed = rawnn.train(data=(X, Y), resume=str(tmp_path), epochs=3)
    assert resumed.sharding == "1x1:128:FFF"


def test_another_sharding_wins_over_the_one_of_the_run_before(tmp_path: Path) -> None:
    rawnn.train(**OPTIONS, device="sim", sharding="1x1:128:FFF", save=str(tmp_path))
    resumed = rawnn.train(data=(X, Y), resume=str(tmp_path), epochs=3, sharding="1x1:256:FFF")
    assert resumed.sharding == "1x1:256:FFF"


def test_the_host_ignores_it_and_says_so_by_an_empty_result() -> None:
    plain = rawnn.train(**OPTIONS, device="host")
    asked = rawnn.train(**OPTIONS, device="host", sharding="1x1:128:FFF")
    assert plain.sharding == asked.sharding == ""
    assert same(plain, asked)
    assert rawnn.train(**OPTIONS, device="sim", opt="none").sharding == ""


@pytest.mark.parametrize(("options", "said"), [
    ({"sharding": "4x8"}, "give it in full"), ({"sharding": "auto"}, "give it in full"),
    ({"sharding": 3}, "sharding = 3"),
    ({"sharding": "1x1:128:FFF", "opt": "best,persistent"}, "leave one of them out"),
    ({"sharding": "1x1:128:FFFF", "device": "sim"}, "persistent"),
])
def test_what_is_no_sharding_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=r"sharding|persistent") as error:
        rawnn.train(**{**OPTIONS, **options})
    assert said in str(error.value)


@pytest.mark.parametrize("numbers", ["bf16", "fp16"])
def test_the_partial_batch_is_the_kernels_own_whatever_else_is_on(numbers: str) -> None:
    """`fuse` behind it changes nothing in it: it would round less often."""
    data = (X[:77], Y[:77])
    alone, among = (rawnn.train(**{**OPTIONS, "data": data}, validation=(X, Y), device="sim",
                                opt=f"{opt},{numbers},persistent=1x1:128:FFF")
                    for opt in ("none,preload", "best"))
    assert "fuse" in among.toggles
    assert same(alone, among)
