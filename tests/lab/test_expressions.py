"""Arithmetic as text, by which grids and extents follow from sizes."""

from __future__ import annotations

from typing import Any

import pytest

from rawnn.common.errors import ConfigError
from rawnn.lab.expressions import evaluate, names_in, whole

SIZES = {"n": 1000, "m": 7, "TILE": 256}


@pytest.mark.parametrize(("expression", "value"), [
    (5, 5), ("5", 5), ("n", 1000), ("(n + 255) // 256", 4), ("cdiv(n, TILE)", 4), ("-m ** 2", -49),
    ("n / 8", 125.0), ("max(1, n % m, min(3, 9))", 6), ("ceil(n / 300)", 4), ("1 << 4", 16),
    ("n if m > 7 else TILE", 256), ("0 < m <= 7 and not n == 3", True), ("m < 7 or n & 1", 0),
    ("sqrt(TILE) + log2(TILE)", 24), (" n ", 1000), (2.5, 2.5),
])
def test_values(expression: Any, value: Any) -> None:
    assert evaluate(expression, SIZES, "grid") == value


@pytest.mark.parametrize(("expression", "sentence"), [
    ("k", "asks for 'k', which is not known"), ("TIL", "did you mean 'TILE'?"),
    ("n +", "cannot be read"), ("n // 0", "has no value for n = 1000"),
    ("2 ** 10 ** 10", "too large an exponent"),
    ("__import__('os')", "is not understood"), ("n.real", "'n.real' is not understood"),
    ([1], "give a number, or an expression"), ("min()", "has no value"),
])
def test_what_is_none(expression: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        evaluate(expression, SIZES, "grid")
    assert str(caught.value).startswith("grid = ")
    assert sentence in str(caught.value)


def test_whole_numbers() -> None:
    assert whole("n / 8", SIZES, "grid") == 125
    for wrong in ("n / 3", "n - 1000", "n > 3"):
        with pytest.raises(ConfigError, match="it has to be a whole number of at least 1"):
            whole(wrong, SIZES, "grid")


def test_names() -> None:
    assert names_in("cdiv(n, TILE) + max(m, 2)", "grid") == {"n", "TILE", "m"}
    assert names_in(7, "grid") == set()
