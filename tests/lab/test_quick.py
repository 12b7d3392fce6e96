"""Launches with the usual arguments take the generated function, and all others the careful way."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np
import pytest

import rawnn
from rawnn.device.cuda.device import Device
from rawnn.device.cuda.errors import CallFailed
from rawnn.errors import ConfigError

SOURCE = """
#include "cuda_fp16.h"
struct Pair { float low, high; };
__global__ void many(float* y, const void* any, float a, int n, bool on, __half h, Pair p) {}
__global__ void no() {}
"""
SIZES = (8, 8, 4, 4, 1, 2, 8)
PAIR = np.array((1, 2), [("low", "f4"), ("high", "f4")])[()]
REST = (0.5, 4, True, 1.5, PAIR)


@pytest.fixture
def seen(device: Device, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the driver was given by each launch: the bytes of the arguments, one after the other."""
    found: list[bytes] = []

    def launched(*given: Any) -> tuple[int]:
        pointers = (ctypes.c_void_p * len(SIZES)).from_address(given[9])
        found.append(b"".join(ctypes.string_at(pointer, size)
                              for pointer, size in zip(pointers, SIZES, strict=True) if pointer))
        return (0,)

    monkeypatch.setattr(device.driver, "cuLaunchKernel", launched)
    return found


@pytest.fixture
def arrays(device: Device) -> Any:
    return [rawnn.array(np.zeros(4, np.float32), device=device),
            rawnn.array(np.zeros(4), device=device)]


@pytest.fixture
def launch(device: Device, arrays: Any, seen: list[bytes]) -> Any:
    """A launcher that has launched once."""
    made = rawnn.Kernel(SOURCE, "many", device=device)[1, 32]
    made(*arrays, *REST)
    return made


def test_both_ways_pack_the_same(launch: Any, arrays: Any, seen: list[bytes],
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    whole = launch._values
    monkeypatch.setattr(launch, "_values", lambda *given: (counts.append(1), whole(*given))[1])
    launch(*arrays, *REST)
    assert not counts
    launch(*arrays, np.float32(0.5), np.int64(4), True, 1.5, PAIR)
    assert counts == [1]
    assert len(seen) == 3
    assert len(set(seen)) == 1
    launch(*reversed(arrays[:1] * 2), 0.25, 3, False, 0.5, PAIR)
    assert counts == [1]
    y = arrays[0].address
    assert seen[3] == struct.pack("=QQfi?e2f", y, y, 0.25, 3, False, 0.5, 1, 2)


@pytest.mark.parametrize(("at", "wrong", "message"), [
    (0, 3, "argument 'y' is a pointer"),
    (0, "float64", "points to float, but the array holds float64"),
    (0, "elsewhere", "opened by itself"),
    (2, "text", "argument 'a'"),
    (2, 1e300, "argument 'a' \\(float\\) cannot hold 1e\\+300"),
    (3, 2**40, "argument 'n' \\(int\\) cannot hold 1099511627776"),
    (3, 1.5, "which is no whole number"),
    (5, 1e9, "argument 'h'"),
    (6, None, "only a pointer may be None"),
])
def test_what_is_wrong_is_said_behind_a_launch_too(
    launch: Any, arrays: Any, seen: list[bytes], at: int, wrong: Any, message: str
) -> None:
    if wrong == "float64":
        wrong = arrays[1]
    elif wrong == "elsewhere":
        wrong = rawnn.array(np.zeros(4, np.float32), device=rawnn.lab.simulated())
    given = [*arrays, *REST]
    given[at] = wrong
    with pytest.raises(ConfigError, match=message):
        launch(*given)
    assert len(seen) == 1  # nothing was launched
    launch(*arrays, *REST)
    assert seen[0] == seen[1]


def test_another_number_of_arguments(launch: Any, arrays: Any) -> None:
    with pytest.raises(ConfigError, match="takes 7 arguments"):
        launch(*arrays)


def test_without_parameters(device: Device, seen: list[bytes], monkeypatch: pytest.MonkeyPatch
                            ) -> None:
    monkeypatch.setattr(device.driver, "cuLaunchKernel", lambda *given: (seen.append(b""), (0,))[1])
    launch = rawnn.Kernel(SOURCE, "no", device=device)[1, 1]
    for _ in range(3):
        launch()
    assert len(seen) == 3
    with pytest.raises(ConfigError, match="takes 0 arguments"):
        launch(1)


def test_what_the_driver_says_comes_with_the_launch(
    device: Device, arrays: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [719, 0]
    monkeypatch.setattr(device.driver, "cuLaunchKernel", lambda *given: (results.pop(),))
    launch = rawnn.Kernel(SOURCE, "many", device=device)[1, 32]
    launch(*arrays, *REST)
    with pytest.raises(CallFailed, match=r"many, grid \(1, 1, 1\), block \(32, 1, 1\)"):
        launch(*arrays, *REST)
    assert not results
