"""What the shapes of a data set, or nothing of it, decide is refused before the set is fetched."""

from __future__ import annotations

from typing import Any

import pytest

import rawnn as library
from rawnn.common.errors import ConfigError, DataError
from tests import requires
from tests.cli.conftest import Rawnn
from tests.cli.test_errors import one_sentence


@pytest.fixture(autouse=True)
def _mnist_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def acquired(entry: Any, store: Any, notify: Any, offline: bool, stand_in: bool) -> None:
        if offline:
            raise DataError("it is not there")
        raise AssertionError("the data set is fetched")

    monkeypatch.delenv("RAWNN_DATA", raising=False)
    monkeypatch.setattr("rawnn.data.dataset._named", acquired)


MANY: dict[str, tuple[dict[str, Any], str]] = {
    "features": ({"layers": [(784, 10), (700, 10)]}, "the network takes 700 features, but mnist"),
    "outputs": ({"layers": (784, 5), "lr": [0.1, 0.2]}, "ends in 5 outputs, but mnist has 10"),
    "batch": ({"batch": [128, 60_001]}, "batch = 60001 is larger than the training set"),
    "batch of a fold": ({"batch": 40_001, "folds": 3}, "larger than the training set .40000"),
    "loss": ({"loss": "mse"}, "compares with target values, but mnist has class labels"),
    "autoencoder": ({"layers": (784, 9), "loss": "mse", "autoencoder": True}, "ends in 9 outputs"),
    "folds": ({"folds": 1}, "folds = 1: give 2 or more"),
    "no folds": ({"folds": "five"}, "folds = 'five': give a number of folds"),
    "repeats": ({"folds": 3, "repeats": 0}, "repeats = 0"),
    "rows": ({"rows": [[0, 60_000]]}, r"rows\[0\] has the row 60000"),
    "toggles": ({"opt": "graphs"}, "graphs: only for a GPU"),
    "both": ({"opt": "bf16,fp16"}, "exclude each other"),
    "normalise": ({"normalise": "lerned"}, "did you mean 'learned'"),
    "mean": ({"normalise": {"mean": [1.0, 2.0]}}, r"mean is of shape \[2\], but the data have 784"),
    "validation": ({"validation": 0.3}, "validation = 0.3 is for a table .* its own test set"),
}


@pytest.mark.parametrize("case", MANY)
def test_many_networks(case: str) -> None:
    options, sentence = MANY[case]
    with pytest.raises(ConfigError, match=sentence):
        library.train_many(**{"layers": (784, 10), "device": "host", **options})


@pytest.mark.parametrize("case", [name for name in MANY if name not in
                                  ("folds", "no folds", "repeats", "rows", "batch of a fold")])
def test_one_network(case: str) -> None:
    options, sentence = MANY[case]
    one = {name: value[-1] if isinstance(value, list) else value for name, value in options.items()}
    with pytest.raises(ConfigError, match=sentence):
        library.train(**{"layers": (784, 10), "device": "host", **one})


def test_a_search() -> None:
    with pytest.raises(ConfigError, match="the network takes 700 features, but mnist has 784"):
        library.search(space={"lr": [0.1, 0.2]}, budget=2, layers=(700, 10), device="host",
                       halving=None)


def test_networks_that_fit_are_fetched_for() -> None:
    """A cross-validator divides by the labels, which are not there yet."""
    class Splitter:
        def split(self, x: Any, y: Any) -> Any:
            raise AssertionError("it is asked before the data are there")

    for options in ({"lr": [0.1, 0.2]}, {"folds": 3}, {"folds": Splitter()}):
        with pytest.raises(AssertionError, match="the data set is fetched"):
            library.train_many(layers=(784, 10), device="host", **options)


@pytest.mark.parametrize(("arguments", "words"), [
    (("many", "--vary", "lr=0.1,0.2", "--layers", "700-10", "--device", "host"), "700 features"),
    (("many", "--vary", "lr=0.1,0.2", "--plot", "x.nope", "--device", "host"),
     "cannot plot to x.nope: matplotlib writes no .nope; use .svg, .png or .pdf"),
    (("compare", "--opt", "none", "--opt", "arena", "--device", "sim", "--layers", "700-10"),
     "700 features"),
    (("profile", "--device", "sim", "--layers", "700-10"), "700 features"),
    (("profile", "--device", "host"), "a profile is of a GPU"),
    (("bench", "ladder", "--device", "sim", "--layers", "700-10"), "700 features"),
    (("bench", "ladder", "--device", "sim", "--plot", "x.nope"), "matplotlib writes no .nope"),
])
def test_commands(rawnn: Rawnn, arguments: tuple[str, ...], words: str) -> None:
    if "--plot" in arguments:
        requires.module("matplotlib")
    one_sentence(rawnn(*arguments), words, status=2)
