"""References in every form: what they ask for, and what they return of names that are known."""

from __future__ import annotations

import signal
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rawnn
from rawnn.common.errors import ConfigError
from rawnn.cuda.device import Device
from rawnn.lab.time_limit import time_limit
from rawnn.lab.work import reference_of

KNOWN: dict[str, Any] = {"x": np.arange(6.0), "y": np.arange(6.0)[::-1].copy(), "a": 2.0, "n": 6}
X, Y = KNOWN["x"], KNOWN["y"]


def with_default(x: Any, a: float = 5.0, other: float = 3.0) -> Any:
    return a * x + other


EXPRESSIONS: list[tuple[str, set[str], Any]] = [
    ("a * x + y", {"a", "x", "y"}, 2 * X + Y), ("x[1:]", {"x"}, X[1:]),
    ("x[:n // 2] if n > 3 else y", {"x", "y", "n"}, X[:3]),
    ("np.maximum(x, a)", {"x", "a"}, np.maximum(X, 2)),
    ("{'y': x, 'z': y}['z']", {"x", "y"}, Y), ("(lambda v: v + a)(x)", {"a", "x"}, X + 2),
    ("np.array([i * a for i in range(n)])", {"a", "n"}, 2 * np.arange(6)),
    (" sum(x) ", {"x"}, 15.0), ("max(a, n)", {"a", "n"}, 6), ("min(a, n)", {"a", "n"}, 2.0),
    ("abs(a - n) + len(x)", {"a", "n", "x"}, 10.0), ("int(a / 0.7)", {"a"}, 2),
    ("float('0.5') * a", {"a"}, 1.0)]


@pytest.mark.parametrize(("text", "wants", "value"), EXPRESSIONS, ids=[e[0] for e in EXPRESSIONS])
def test_an_expression_asks_for_its_names_and_no_others(text: str, wants: set[str], value: Any
                                                        ) -> None:
    found = reference_of(text)
    assert found.wants == wants
    assert np.array_equal(found(KNOWN), value)
    assert all(found.asks_for(name) == (name in wants) for name in KNOWN)


def test_a_table_of_expressions_has_a_value_for_each_name() -> None:
    found = reference_of({"y": "a * x", "z": "x[1:]"})
    assert found.wants == {"a", "x"}
    values = found(KNOWN)
    assert values.keys() == {"y", "z"}
    assert np.array_equal(values["y"], 2 * X)
    assert np.array_equal(values["z"], X[1:])


def test_a_function_gets_what_it_names_and_its_defaults_where_nothing_is_known() -> None:
    found = reference_of(with_default)
    assert (found.wants, found.takes) == ({"x"}, {"a", "other"})
    assert np.array_equal(found(KNOWN), 2 * X + 3)
    assert found.asks_for("other")
    assert not found.asks_for("y")
    every = reference_of(lambda **known: sorted(known))
    assert every.wants is None
    assert every(KNOWN) == sorted(KNOWN)
    assert every.asks_for("anything")
    keyword = reference_of(lambda in_: in_ + 1)  # as a kernel's own name may be
    assert keyword({"in": 4}) == 5


def test_a_function_of_a_file_is_called_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def doubled(x):\n    return 2 * x\nn = 3\n")
    for text in ("mine.py:doubled", "mine.py: doubled"):
        assert np.array_equal(reference_of(text, tmp_path)(KNOWN), 2 * X)
    for text, words in (("mine.py:double", "did you mean 'doubled'"), ("none.py:f", "is not there"),
                        ("mine.py:n", "has no function 'n'")):
        with pytest.raises(ConfigError, match=words):
            reference_of(text, tmp_path)


@pytest.mark.parametrize(("given", "words"), [
    (None, "a check needs a reference"), ("a +", "cannot be read"),
    (lambda *several: None, "does not say the names"), (dict, "does not say the names|needs"),
    (lambda x, /: x, "does not say the names")])
def test_what_cannot_be_called_by_names_is_refused(given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        reference_of(given)


def test_a_name_that_is_not_known_is_said_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match=r"asks for 'b'.*\(known: a, n, x, y\)"):
        reference_of("b * x")(KNOWN)


HALVES = """__global__ void lab_halves(const int* x, TYPE* y, int n) {
    int i = blockIdx.x * 32 + threadIdx.x;
    if (i < n) y[i] = x[i] / 2;
}"""
HALVED = {"grid": "cdiv(n, 32)", "block": 32, "sizes": {"n": [1, 40]}, "inputs": {"x": "0..9"},
          "trials": 4}


@pytest.mark.parametrize("kind", ["int", "unsigned char", "long long"])
def test_a_reference_with_fractions_for_whole_numbers_is_refused(device: Device, kind: str) -> None:
    kernel = rawnn.Kernel(HALVES, "lab_halves", defines={"TYPE": kind}, device=device)
    for wrong, value in ((lambda x: 0 * x + 2.25, "2.25"), (lambda x: x * np.nan, "nan"),
                         (lambda x: x + np.inf, "inf")):
        with pytest.raises(ConfigError, match=rf"returns {value} for y\[0\].*np\.trunc"):
            rawnn.check(kernel, wrong, **HALVED)
    assert rawnn.check(kernel, lambda x: x // 2, **HALVED)
    assert rawnn.check(kernel, lambda x: np.floor(x / 2), **HALVED)  # whole, though float64


def test_a_reference_of_which_no_array_can_be_made_is_refused(device: Device) -> None:
    kernel = rawnn.Kernel(HALVES, "lab_halves", defines={"TYPE": "int"}, device=device)
    with pytest.raises(ConfigError, match="returns 'y' as a list of which NumPy makes no array"):
        rawnn.check(kernel, lambda x: [[1, 2], [3]], **HALVED)


def test_whole_numbers_of_perturbed_inputs_need_not_be_whole(device: Device) -> None:
    """The check perturbs float inputs to find the size of terms: not what the reference means."""
    kernel = rawnn.Kernel("""__global__ void lab_inexact(const float* x, float* z, int* y, int n) {
        y[threadIdx.x] = x[threadIdx.x]; z[threadIdx.x] = x[threadIdx.x]; }""", "lab_inexact",
                          device=device)
    assert rawnn.check(kernel, lambda x: {"y": x, "z": x}, grid=1, block="n", sizes={"n": [1, 40]},
                       inputs={"x": lambda generator, shape: generator.integers(1, 9, shape)})


def endless(x: Any) -> Any:
    while True:
        with suppress(Exception):
            time.sleep(0.01)


def test_a_reference_that_never_ends_is_ended_at_the_limit(device: Device) -> None:
    kernel = rawnn.Kernel(HALVES, "lab_halves", defines={"TYPE": "int"}, device=device)
    before = signal.getsignal(signal.SIGALRM)
    work: dict[str, Any] = {n: v for n, v in HALVED.items() if n != "trials"}
    for call in (rawnn.check, rawnn.time,
                 lambda *a, **k: rawnn.sweep(a[0], {"block": [32, 64]}, *a[1:], **k)):
        with pytest.raises(ConfigError, match=r"the reference did not end within 0\.2 s"):
            call(kernel, endless, limit=0.2, **work)
    assert signal.getsignal(signal.SIGALRM) == before
    assert rawnn.check(kernel, lambda x: x // 2, limit=20.0, **HALVED)
    left = signal.getitimer(signal.ITIMER_REAL)[0]  # none, or that of pytest's own limit
    assert left == 0 or left > 20


def test_an_alarm_of_the_caller_goes_on_behind_a_time_limit() -> None:
    rung: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: rung.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(ConfigError, match=r"it did not end within 0\.2 s"), \
                time_limit(0.2, "it"):
            endless(None)
        time.sleep(0.1)
        assert rung == [signal.SIGALRM]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_code_that_catches_the_alarm_is_ended_by_the_next() -> None:
    """Of any kind of exception: the alarm comes again."""
    caught: list[int] = []

    def stubborn() -> None:
        while True:
            try:
                endless(None)
            except BaseException:
                if caught:
                    raise
                caught.append(1)

    with pytest.raises(ConfigError, match=r"it did not end within 0\.05 s, and was ended"), \
            time_limit(0.05, "it"):
        stubborn()
    assert caught


def failing(x: Any) -> Any:
    return {40: x}[len(x)]


def test_an_error_of_the_reference_at_one_size_is_not_blamed_on_the_kernel(device: Device) -> None:
    kernel = rawnn.Kernel(HALVES, "lab_halves", defines={"TYPE": "int"}, device=device)
    with pytest.raises(ConfigError, match="the reference fails with n = 41: KeyError: 41"):
        rawnn.check(kernel, failing, **{**HALVED, "sizes": {"n": [40, 41]}})


@pytest.mark.parametrize("given", [
    {"grid": lambda known: known["rows"]}, {"shared": lambda known: known["rows"]}])
def test_an_error_of_a_function_of_sizes_is_one_sentence(device: Device, given: dict[str, Any]
                                                         ) -> None:
    kernel = rawnn.Kernel(HALVES, "lab_halves", defines={"TYPE": "int"}, device=device)
    with pytest.raises(ConfigError, match=rf"{next(iter(given))}: the function fails with "
                                          rf"KeyError: 'rows'; it is given a dictionary of .*n"):
        rawnn.check(kernel, lambda x: x // 2, **{**HALVED, **given})
    with pytest.raises(ConfigError, match="restrict: the function fails with KeyError: 'rows'"):
        rawnn.sweep(kernel, {"block": [32, 64]}, lambda x: x // 2, grid="cdiv(n, block)",
                    restrict=[lambda each: each["rows"]], sizes={"n": 9})


@pytest.mark.parametrize(("given", "reference", "words"), [
    ({}, lambda x: np.ma.array(x // 2, mask=x == x[0]), "the reference's 'y': .* are masked"),
    ({"inputs": {"x": lambda g, shape: np.ma.array(np.ones(shape, int), mask=np.ones(shape))}},
     lambda x: x // 2, "inputs: x: .* are masked"),
    ({"types": {"x": "whole"}}, lambda x: x // 2, "types: x = 'whole': data type 'whole'")])
def test_what_numpy_would_take_for_other_numbers_is_refused(
        device: Device, given: dict[str, Any], reference: Any, words: str) -> None:
    kernel = rawnn.Kernel(HALVES, "lab_halves", defines={"TYPE": "int"}, device=device)
    with pytest.raises(ConfigError, match=words):
        rawnn.check(kernel, reference, **{**HALVED, **given})


def test_bytes_below_0_are_refused(device: Device) -> None:
    kernel = rawnn.Kernel(HALVES, "lab_halves", defines={"TYPE": "int"}, device=device)
    with pytest.raises(ConfigError, match="bytes = '-n' is -8: give 0 or more"):
        rawnn.time(kernel, lambda x: x // 2, grid=1, block=32, sizes={"n": 8}, bytes="-n",
                   samples=2)


def test_a_limit_that_is_no_number_is_refused(device: Device) -> None:
    kernel = rawnn.Kernel(HALVES, "lab_halves", defines={"TYPE": "int"}, device=device)
    with pytest.raises(ConfigError, match="limit = 5: give seconds above 0"):
        rawnn.check(kernel, lambda x: x // 2, **HALVED, limit="5")


def test_a_reference_in_float16_is_compared_without_a_warning(device: Device) -> None:
    kernel = rawnn.Kernel("""__global__ void lab_half(const float* x, float* y, int n) {
        y[threadIdx.x] = x[threadIdx.x]; }""", "lab_half", device=device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rawnn.check(kernel, lambda x: x.astype(np.float16), grid=1, block="n", sizes={"n": 900})
