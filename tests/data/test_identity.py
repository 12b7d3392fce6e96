"""What is said of data that are not those of before."""

from __future__ import annotations

from typing import Any

import pytest

from rawnn.data.identity import differences

DATA: dict[str, Any] = {
    "parts": {"training inputs": "[9, 4] of type uint8", "training labels": "[9]"}, "classes": 2,
    "label_names": ["a", "b"], "columns": ["x"], "split": None, "digest": "0"}


@pytest.mark.parametrize(("changed", "said"), [
    ({}, []),
    ({"digest": "1"}, ["their values are others"]),
    ({"parts": {**DATA["parts"], "test labels": "[3]"}},
     ["the test labels were none, and are [3]"]),
    ({"parts": {"training labels": "[9]"}},
     ["the training inputs were [9, 4] of type uint8, and are none"]),
    ({"parts": {**DATA["parts"], "training labels": "[8]"}, "digest": "1"},
     ["the training labels were [9], and are [8]"]),
    ({"split": [0.25, 3]},
     ["the test set was given by itself, and is a fraction of 0.25 split off by the seed 3"]),
    ({"label_names": ["a"]}, ["the classes were a, b, and are a"]),
    ({"columns": ["x", "y"], "digest": "1"}, ["the columns were x, and are x, y"]),
    ({"split": [0.5, 0], "columns": ["z"]},
     ["the test set was given by itself, and is a fraction of 0.5 split off by the seed 0",
      "the columns were x, and are z"])])
def test_each_difference_is_a_sentence(changed: dict[str, Any], said: list[str]) -> None:
    now = {**DATA, **changed}
    assert differences(DATA, now) == said
    assert len(differences(now, DATA)) == len(said)
