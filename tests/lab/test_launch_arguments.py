"""What launches of a user's kernel hand to the driver, and what they refuse."""

from __future__ import annotations

import ctypes
import struct
import sys
import threading
from typing import Any

import numpy as np
import pytest

import rawnn
from rawnn.common.errors import ConfigError
from rawnn.cuda.device import Device
from rawnn.cuda.errors import CallFailed
from rawnn.cuda.launch import Arguments

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
        pointers = (ctypes.c_void_p * len(SIZES)).from_address(given[-2])
        found.append(b"".join(ctypes.string_at(pointer, size)
                              for pointer, size in zip(pointers, SIZES, strict=True) if pointer))
        return (0,)

    _launching(device, monkeypatch, launched)
    return found


def _launching(device: Device, monkeypatch: pytest.MonkeyPatch, launched: Any) -> None:
    """Let the driver's two calls, that of the first launch and that of those behind it, do this."""
    for call in ("cuLaunchKernel", "cuLaunchKernelEx"):
        monkeypatch.setattr(device.driver, call, launched)


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


def test_numbers_of_python_and_of_numpy_are_packed_alike(launch: Any, arrays: Any,
                                                         seen: list[bytes]) -> None:
    launch(*arrays, *REST)
    launch(*arrays, np.float32(0.5), np.int64(4), True, 1.5, PAIR)
    assert len(seen) == 3
    assert len(set(seen)) == 1
    launch(*reversed(arrays[:1] * 2), 0.25, 3, False, 0.5, PAIR)
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
    (4, "off", "argument 'on' \\(bool\\) cannot hold 'off': pass True or False"),
    (4, 2, "argument 'on' \\(bool\\) cannot hold 2"), (4, 1.0, "cannot hold 1.0: pass True"),
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


def test_any_part_of_the_arguments_may_be_named(launch: Any, arrays: Any, seen: list[bytes]
                                                ) -> None:
    given = dict(zip(("y", "any", "a", "n", "on", "h", "p"), [*arrays, *REST], strict=True))
    names, values = list(given), list(given.values())
    for count in range(len(names) + 1):
        others = dict(reversed([(name, given[name]) for name in names[count:]]))
        launch(*values[:count], **others)
        assert seen[-1] == seen[0]
        for twice in names[:count]:
            with pytest.raises(TypeError, match=f"two values for the argument '{twice}'"):
                launch(*values[:count], **others, **{twice: given[twice]})
        for left_out in others:
            some = {name: value for name, value in others.items() if name != left_out}
            if some:
                with pytest.raises(ConfigError, match=f"not 6: without {left_out}$"):
                    launch(*values[:count], **some)
    with pytest.raises(TypeError, match=r"no parameter 'onn'.*'on'.*\(y, any, a, n, on, h, p\)"):
        launch(*values, onn=True)
    assert len(seen) == 2 + len(names)  # nothing was launched by those refused


def test_without_parameters(device: Device, seen: list[bytes], monkeypatch: pytest.MonkeyPatch
                            ) -> None:
    _launching(device, monkeypatch, lambda *given: (seen.append(b""), (0,))[1])
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
    _launching(device, monkeypatch, lambda *given: (results.pop(),))
    launch = rawnn.Kernel(SOURCE, "many", device=device)[1, 32]
    launch(*arrays, *REST)
    with pytest.raises(CallFailed, match=r"many, grid \(1, 1, 1\), block \(32, 1, 1\)"):
        launch(*arrays, *REST)
    assert not results


FEW = "__global__ void few(float* y, const float* x, float a, int n) {}"
FEW_FORMAT = "=QQfi"


@pytest.fixture
def few(device: Device, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A launcher that has launched, two arrays, and what launches passed."""
    found: list[tuple[Any, ...]] = []

    def launched(*given: Any) -> tuple[int]:
        pointers = (ctypes.c_void_p * 4).from_address(given[-2])
        found.append(struct.unpack(FEW_FORMAT, b"".join(
            ctypes.string_at(p or 0, size) for p, size in zip(pointers, (8, 8, 4, 4),
                                                              strict=True))))
        return (0,)

    _launching(device, monkeypatch, launched)
    y, x = (rawnn.array(np.zeros(4, np.float32), device=device) for _ in "yx")
    launch = rawnn.Kernel(FEW, "few", device=device)[1, 32]
    launch(y, x, 2.0, 4)
    found.clear()
    return launch, y, x, found


def test_arguments_are_passed_as_they_are_whatever_was_passed_before(few: Any) -> None:
    launch, y, x, found = few
    calls = [(y, x, 2.0, 4), (y, x, 2.0, 4), (y, x, -0.0, 4), (y, x, 0.0, 4), (x, y, 0.0, 4),
             (x, y, 0, 4), (x, y, 0, 5), (x, y, 0, 4), (x, y, 0, 4)]
    for call in calls:
        launch(*call)
    expected = [(a.address, b.address, float(c), d) for a, b, c, d in calls]
    assert [(*map(repr, each),) for each in found] == [(*map(repr, each),) for each in expected]


def test_behind_a_number_that_does_not_fit_all_are_packed_anew(few: Any) -> None:
    launch, y, x, found = few
    launch(y, x, 2.0, 4)
    with pytest.raises(ConfigError, match="argument 'n' \\(int\\) cannot hold"):
        launch(x, y, 3.0, 2**40)  # the first three were packed
    launch(y, x, 2.0, 4)
    assert found == [(y.address, x.address, 2.0, 4)] * 2


def test_a_launch_within_a_launch_has_arguments_of_its_own(
    few: Any, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a signal's handler makes one, between the packing of a launch and the driver's call."""
    launch, y, x, found = few
    fill = Arguments.fill

    def interrupted(self: Any, values: Any) -> None:
        fill(self, values)
        monkeypatch.undo()
        _launching(device, monkeypatch, recording)
        launch(x, y, 9.0, 9)

    recording = device.driver.cuLaunchKernel
    monkeypatch.setattr(Arguments, "fill", interrupted)
    launch(y, x, 2.0, 4)
    launch(y, x, 2.0, 4)
    assert found == [(x.address, y.address, 9.0, 9), *[(y.address, x.address, 2.0, 4)] * 2]


def test_many_threads_launch_what_they_pass(few: Any) -> None:
    launch, y, x, found = few
    pairs, switch = [(i, float(i)) for i in range(8)], sys.getswitchinterval()

    def repeat(n: int, a: float) -> None:
        for _ in range(300):
            launch(y, x, a, n)

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=repeat, args=pair) for pair in pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch)
    assert sorted(found) == sorted((y.address, x.address, a, n) for n, a in pairs * 300)


def test_what_has_launched_can_do_all_that_a_launcher_can(
    device: Device, arrays: Any, seen: list[bytes]
) -> None:
    kernel = rawnn.Kernel(SOURCE, "many", device=device)
    before = kernel[2, 32]
    before(*arrays, *REST)
    after = kernel[2, 32]
    after(*arrays, *REST)
    kernel[(2,), (32,)](*arrays, *REST)
    before(*arrays, *REST)
    assert seen[0] == seen[1] == seen[2] == seen[3]
    assert after.using(shared=64) is before.using(shared=64)
    after.bind(*arrays, *REST)()
    assert seen[4] == seen[0]
    assert kernel[2, 32] is after
