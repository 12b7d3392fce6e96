"""What a name that is none of ours may mean: words of other libraries, features that are missing,
misspellings; and nothing where two words are only a little alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import rawnn
from rawnn.common.errors import ConfigError, nearest
from rawnn.common.suggestions import ALIASES, MISSING
from rawnn.data.normalise import Normalisation
from rawnn.engine.config import Config
from rawnn.model.activations import ACTIVATIONS
from rawnn.model.layers import INITIALISERS
from rawnn.model.losses import LOSSES
from rawnn.model.optimizers import OPTIMIZER_SPECS as OPTIMIZERS
from rawnn.model.schedules import SCHEDULE_SPECS as SCHEDULES
from rawnn.opts import TOGGLES

OURS = {*Config.known(), "listener", *LOSSES, *ACTIVATIONS, *OPTIMIZERS, *INITIALISERS, *SCHEDULES,
        *TOGGLES, "host", "gpu", "learned", "pixels"}



def all_of(registry: Iterable[str]) -> str:
    *others, last = sorted(registry)
    return f"{', '.join(others)} and {last}"


OPTIONS = [
    ("learning_rate", "did you mean 'lr'?"), ("learning_rate_init", "did you mean 'lr'?"),
    ("batch_size", "did you mean 'batch'?"), ("hidden_layer_sizes", "did you mean 'layers'?"),
    ("max_iter", "did you mean 'epochs'?"), ("n_epochs", "did you mean 'epochs'?"),
    ("random_state", "did you mean 'seed'?"), ("alpha", "did you mean 'weight_decay'?"),
    ("beta_1", "did you mean 'beta1'?"), ("epoch", "did you mean 'epochs'?"),
    ("dropout", "rawnn has no dropout: weight_decay"), ("class_weight", "repeat the rows"),
    ("clipnorm", "does not clip gradients"), ("dtype", "opt='best,bf16'"),
]


@pytest.mark.parametrize("call", [rawnn.train, Config])
@pytest.mark.parametrize(("name", "message"), OPTIONS)
def test_options_of_the_library(call: Any, name: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        call(**{name: 1})
    assert str(refused.value).startswith(f"unknown option '{name}'; ")
    assert message in str(refused.value)


@pytest.mark.parametrize(("options", "message"), [
    ({"loss": "huber"}, "unknown loss 'huber'; rawnn does not have this loss: there are "
     + all_of(LOSSES) + ", of which mse is for values"),
    ({"loss": "BCEWithLogitsLoss"}, "did you mean 'bce'?"),
    ({"loss": "sparse_categorical_crossentropy"}, "did you mean 'cross_entropy'?"),
    ({"activation": "sigmoid"}, "; there is none between layers; the loss bce applies it"),
    ({"activation": "prelu"}, "rawnn does not have it: there are " + all_of(ACTIVATIONS)),
    ({"activation": "ReLU"}, "did you mean 'relu'?"),
    ({"optimizer": "SGD"}, "did you mean 'sgd'?"), ({"optimizer": "AdamW "}, "mean 'adamw'?"),
    ({"optimizer": "nadam"}, "rawnn does not have it: there are " + all_of(OPTIMIZERS)),
    ({"init": "xavier"}, "did you mean 'glorot'?"),
    ({"schedule": "cosine_annealing"}, "did you mean 'cosine'?"),
    ({"device": "cpu"}, "use auto, gpu, gpu:N, host or sim; did you mean 'host'?"),
    ({"device": "cuda:1"}, "did you mean 'gpu'?"), ({"device": "tpu"}, "GPUs of NVIDIA"),
    ({"opt": "cuda_graphs"}, "unknown toggle 'cuda_graphs'; did you mean 'graphs'?"),
    ({"opt": "float16"}, "did you mean 'fp16'?"), ({"opt": "amp"}, "did you mean 'bf16'?"),
    ({"opt": "fp32"}, "a run computes in float32 where no toggle says otherwise"),
])
def test_values(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        rawnn.train(**{"dataset": "synthetic", "device": "host", "epochs": 1, **options})
    assert message in str(refused.value)


def test_normalisation() -> None:
    with pytest.raises(ConfigError, match="did you mean 'learned'"):
        Normalisation.of("standardize", np.zeros((2, 2), np.float32))


@pytest.mark.parametrize(("word", "known"), [
    ("class_weight", ["weights_of_all"]), ("dropout", ["opt", "out"]), ("huber", ["bce"]),
    ("xpu", ["tpx"]), ("", ["a"]), ("%", ["percent"]), ("learning_rate", ["running_date_of_it"]),
])
def test_words_that_are_only_a_little_alike(word: str, known: list[str]) -> None:
    assert nearest(word, known) == ""


def test_every_word_of_the_tables_is_of_one_of_ours_and_is_none_itself() -> None:
    assert set(ALIASES) | set(MISSING) <= OURS
    words = [word for text in ALIASES.values() for word in text.split()]
    assert not set(words) & (set(Config.known()) | {*LOSSES, *ACTIVATIONS, *OPTIMIZERS})
    words += [word for rows in MISSING.values() for text in rows for word in text.split()]
    assert not set(words) & set(Config.known())
    for ours, text in ALIASES.items():
        for word in text.split():
            assert nearest(word, [ours, "zzz"]) == f"; did you mean '{ours}'?"
            assert nearest(f"--{word.replace('_', '-')}", [f"--{ours}"]) == \
                f"; did you mean '--{ours}'?"


def registry_of(anchor: str) -> set[str]:
    """The names that a sentence about an anchor is about."""
    return next(set(names) for names in (Config.known(), LOSSES, ACTIVATIONS, OPTIMIZERS, TOGGLES,
                                         ("host",)) if anchor in names)


def test_what_is_said_to_be_missing_is_not_registered() -> None:
    """Give the entry of what rawnn has by now away."""
    for anchor, rows in MISSING.items():
        words = {word for text in rows for word in text.split()}
        assert not words & registry_of(anchor), anchor
        # "only" and "none" would be wrong as soon as a user registers one
        assert not [s for s in rows.values() if "only" in s], anchor
    assert LOSSES["mse"].unit_power  # it is for values, as a sentence says


@pytest.mark.parametrize(("registry", "anchor"), [
    (ACTIVATIONS, "relu"), (OPTIMIZERS, "adam"), (LOSSES, "mse")])
def test_what_a_user_registers_is_not_said_to_be_missing(registry: Iterable[str],
                                                         anchor: str) -> None:
    words = [word for text in MISSING[anchor] for word in text.split()]
    assert len(words) > 10
    for word in words:
        spelled = word.replace("_", "-").upper()
        assert "did you mean" not in nearest(spelled, registry)
        assert nearest(spelled, [*registry, word]) == f"; did you mean '{word}'?"
    assert ", prelu, " in nearest("swish", [*ACTIVATIONS, "prelu"])  # the rest of the sentence, too
    assert nearest("mae", [*LOSSES, "huber"]).endswith("huber and mse, of which mse is for values")


def test_a_column_of_a_table_is_no_option() -> None:
    """Aliases count only where ours is among the names that are known."""
    assert nearest("batch_size", ["height", "width"]) == ""
    assert nearest("dropout", ["height", "width"]) == ""
