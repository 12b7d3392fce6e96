"""Arithmetic as text, by which grids and extents follow from sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
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


def expression(generator: np.random.Generator, depth: int) -> str:
    """Random text of the syntax that is supported, brackets around every part."""
    kind = int(generator.integers(0, 8 if depth else 2))
    inner = [expression(generator, depth - 1) for _ in range(3)] if kind > 1 else []

    def one_of(*words: str) -> str:
        return str(generator.choice(words))

    match kind:
        case 0:
            return str(generator.integers(0, 9))
        case 1:
            return one_of("a", "b", "c")
        case 2:
            return f"({inner[0]} {one_of('+', '-', '*', '//', '%', '&', '|')} {inner[1]})"
        case 3:
            compared = one_of("<", "<=", ">", ">=", "==", "!=")
            last = expression(generator, 0)  # which always has a value: all sides are computed
            return f"({inner[0]} {compared} {inner[1]} {one_of('<', '!=')} {last})"
        case 4:
            word = one_of("and", "or")
            return f"({f' {word} '.join(inner)})"
        case 5:
            return f"({one_of('-', '+', 'not ')}{inner[0]})"
        case 6:
            return f"({inner[0]} if {inner[1]} else {inner[2]})"
        case _:
            return one_of(f"min({inner[0]}, {inner[1]})", f"max({inner[0]}, {inner[1]})",
                          f"abs({inner[0]})", f"({inner[0]} << {generator.integers(0, 5)})",
                          f"({inner[0]} >> {generator.integers(0, 5)})", f"({inner[0]} / 4)",
                          f"int({inner[0]})", f"({inner[0]} ** {generator.integers(0, 4)})")


def test_random_expressions_have_the_value_that_python_gives_them() -> None:
    """Operators, comparisons in chains, and what `and` and `or` return and leave out."""
    generator, names, valued = np.random.default_rng(7), {"a": 0, "b": 5, "c": -3}, 0
    for _ in range(1500):
        text = expression(generator, 3)
        try:
            wanted = eval(text, {"__builtins__": {"min": min, "max": max, "abs": abs, "int": int}},
                          names)
        except (ArithmeticError, TypeError):
            with pytest.raises(ConfigError, match="has no value"):
                evaluate(text, names, "grid")
        else:
            found = evaluate(text, names, "grid")
            assert (found, type(found)) == (wanted, type(wanted)), text
            valued += 1
    assert valued > 1000


@pytest.mark.parametrize(("given", "least", "found"), [
    (0, 0, 0), (-1, 0, None), (1, 1, 1), (0, 1, None), (-1, 1, None), ("n", 0, 3), ("n / 3", 1, 1),
    ("n - 3", 0, 0), ("n - 3", 1, None), ("n - 4", 0, None), ("n / 2", 0, None), (True, 0, None),
    (2.0, 1, 2), (2.5, 1, None)])
def test_a_whole_number_has_its_least_value(given: Any, least: int, found: int | None) -> None:
    if found is None:
        with pytest.raises(ConfigError, match=f"a whole number of at least {least}"):
            whole(given, {"n": 3}, "shared", least)
    else:
        assert whole(given, {"n": 3}, "shared", least) == found
