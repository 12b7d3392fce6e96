"""JSON of results: what a reader of JSON finds, also where a path is no text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from rawnn.common.jsontext import indented_json, json_bytes

BROKEN = "a\udcffb"


@dataclass
class Held:
    path: Any


@pytest.mark.parametrize("wrap", [
    lambda v: v, lambda v: [v, 1], lambda v: (v, None), lambda v: {"k": v}, lambda v: {v: 2.5},
    lambda v: {"k": (1, [v, {"d": (v,)}])}, Held, lambda v: [Held((v,))]])
def test_what_is_no_text_stands_as_on_the_screen_wherever_it_is(wrap: Any) -> None:
    for encode in (json_bytes, indented_json):
        assert json.loads(encode(wrap(BROKEN))) == json.loads(encode(wrap(r"a\udcffb")))
        assert b"\\\\udcff" in encode(wrap(BROKEN))


def test_compact_and_indented() -> None:
    value = {"a": [1, 2.5, None, True], "b": {"ä": "x"}}
    assert json_bytes(value) == '{"a":[1,2.5,null,true],"b":{"ä":"x"}}'.encode()
    assert indented_json(value).decode().splitlines()[1:3] == ['  "a": [', "    1,"]
