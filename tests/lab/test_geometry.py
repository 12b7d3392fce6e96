"""Launch geometries at the limits of a kernel and a GPU, and beyond them by as little as can be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from rawnn.common.errors import ConfigError, DeviceError, RawnnError
from rawnn.lab import geometry
from rawnn.lab.geometry import Launch, extents, shared_bytes

LIMITS = {"MAX_BLOCK_DIM_X": 1024, "MAX_BLOCK_DIM_Y": 1024, "MAX_BLOCK_DIM_Z": 64,
          "MAX_GRID_DIM_X": 2**31 - 1, "MAX_GRID_DIM_Y": 65535, "MAX_GRID_DIM_Z": 65535,
          "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232_448, "MULTIPROCESSOR_COUNT": 132}
MOST_THREADS, DECLARED, RESIDENT = 768, 1000, 2
AT_ONCE = {1: 132, 2: 66, 4: 31, 8: 14}
"""Clusters of each size that run at once."""


class Driver:
    """What a driver says of one kernel; `allowed` are the attributes that were raised for it,
    `asked` is what its occupancy was asked for."""

    def __init__(self) -> None:
        self.allowed: list[tuple[str, int]] = []
        self.asked: list[Any] = []

    def cuFuncGetAttribute(self, attribute: str, handle: Any) -> tuple[int, int]:
        return 0, {"MAX_THREADS_PER_BLOCK": MOST_THREADS, "SHARED_SIZE_BYTES": DECLARED}[attribute]

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, *given: Any) -> tuple[int, int]:
        self.asked.append(given)
        return 0, RESIDENT

    def launch_config(self, grid: Any, *given: Any) -> Any:
        self.asked.append((grid, *given))
        return grid[0] * grid[1] * grid[2]

    def cuOccupancyMaxActiveClusters(self, handle: Any, size: int) -> tuple[int, int]:
        assert handle == 1
        return 0, AT_ONCE.get(size, 0)


def checked(monkeypatch: pytest.MonkeyPatch, launch: Launch, capability: tuple[int, int] = (9, 0),
            waits: bool = True) -> Driver:
    driver = Driver()
    monkeypatch.setattr(geometry, "allow", lambda driver, handle, name, value, what:
                        driver.allowed.append((name, value)))
    device = SimpleNamespace(attribute=LIMITS.__getitem__, capability=capability, driver=driver,
                             info=SimpleNamespace(name="a GPU"),
                             stream=SimpleNamespace(handle=5))
    function = SimpleNamespace(expression="k", handle=1, proof=SimpleNamespace(
        waits=waits, reason="it does not wait"))
    launch.check(cast(Any, function), cast(Any, device))
    return driver


ENDS: dict[str, tuple[list[Launch], list[Launch]]] = {
    "threads": ([Launch((1, 1, 1), (768, 1, 1)), Launch((1, 1, 1), (12, 1, 64)),
                 Launch((1, 1, 1), (1, 768, 1))],
                [Launch((1, 1, 1), (769, 1, 1)), Launch((1, 1, 1), (1, 1, 65)),
                 Launch((1, 1, 1), (32, 25, 1))]),
    "blocks": ([Launch((2**31 - 1, 65535, 65535), (1, 1, 1))],
               [Launch((2**31, 1, 1), (1, 1, 1)), Launch((1, 65536, 1), (1, 1, 1)),
                Launch((1, 1, 65536), (1, 1, 1))]),
    "shared": ([Launch((1, 1, 1), (32, 1, 1), 232_448 - DECLARED)],
               [Launch((1, 1, 1), (32, 1, 1), 232_448 - DECLARED + 1)]),
    "clusters": ([Launch((16, 3, 1), (32, 1, 1), cluster=(8, 1, 1)),
                  Launch((4, 4, 2), (32, 1, 1), cluster=(2, 2, 2))],
                 [Launch((16, 3, 1), (32, 1, 1), cluster=(16, 1, 1)),
                  Launch((12, 3, 1), (32, 1, 1), cluster=(8, 1, 1)),
                  Launch((4, 3, 1), (32, 1, 1), cluster=(2, 2, 1))]),
    "cooperative": ([Launch((264, 1, 1), (32, 1, 1), cooperative=True),
                     Launch((2, 12, 11), (32, 1, 1), cooperative=True)],
                    [Launch((265, 1, 1), (32, 1, 1), cooperative=True),
                     Launch((2, 12, 12), (32, 1, 1), cooperative=True)])}


@pytest.mark.parametrize("what", ENDS)
def test_launches_are_refused_from_their_limits_on(monkeypatch: pytest.MonkeyPatch, what: str
                                                   ) -> None:
    allowed, refused = ENDS[what]
    for launch in allowed:
        checked(monkeypatch, launch)
    for launch in refused:
        with pytest.raises((DeviceError, ConfigError), match=r"^k: "):
            checked(monkeypatch, launch)


def test_a_cluster_that_is_too_large_says_the_largest_that_fits(monkeypatch: pytest.MonkeyPatch
                                                               ) -> None:
    with pytest.raises(DeviceError, match=r"has 16 blocks.*a cluster can have at most 8 here"):
        checked(monkeypatch, Launch((16, 1, 1), (32, 1, 1), cluster=(16, 1, 1)))
    with pytest.raises(DeviceError, match=r"clusters need compute capability 9\.0.* has 8\.9"):
        checked(monkeypatch, Launch((2, 1, 1), (32, 1, 1), cluster=(2, 1, 1)), (8, 9))
    with pytest.raises(DeviceError, match=r"of the 265 of this grid 264 fit \(2 on each of 132 "):
        checked(monkeypatch, Launch((265, 1, 1), (32, 1, 1), cooperative=True))


@pytest.mark.parametrize("blocks", [2, 8, 16])
def test_the_driver_is_asked_for_this_launch(monkeypatch: pytest.MonkeyPatch, blocks: int) -> None:
    monkeypatch.setitem(AT_ONCE, 16, 4)
    cluster, block = (blocks, 1, 1), (8, 4, 2)
    driver = checked(monkeypatch, Launch((blocks, 2, 1), block, 48, cluster, cooperative=True))
    assert driver.asked == [(cluster, block, 48, 5, cluster, False, False), (1, 64, 48)]
    assert driver.allowed == [("MAX_DYNAMIC_SHARED_SIZE_BYTES", 48)] + [
        ("NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)] * (blocks == 16)
    assert checked(monkeypatch, Launch((2, 1, 1), block, 48)).asked == []


def test_a_programmatic_launch_needs_a_kernel_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = Launch((1, 1, 1), (32, 1, 1), programmatic=True)
    checked(monkeypatch, launch)
    with pytest.raises(ConfigError, match="it does not wait"):
        checked(monkeypatch, launch, waits=False)
    checked(monkeypatch, Launch((1, 1, 1), (32, 1, 1)), waits=False)


@pytest.mark.parametrize(("given", "found"), [
    (5, (5, 1, 1)), ((5,), (5, 1, 1)), ((5, 6), (5, 6, 1)), ([5, 6, 7], (5, 6, 7)),
    (np.int64(5), (5, 1, 1)), (0, None), ((5, 0), None), ((), None), ((1, 2, 3, 4), None),
    (2.5, None), ("5", None), (-1, None)])
def test_extents_have_three_dimensions(given: Any, found: Any) -> None:
    if found is None:
        with pytest.raises(ConfigError, match=r"grid = .*whole numbers of at least 1"):
            extents(given, "grid")
    else:
        assert extents(given, "grid") == found


@pytest.mark.parametrize("given", [0, 48, np.int32(7), -1, 1.5, "8", None])
def test_shared_memory_is_a_number_of_bytes(given: Any) -> None:
    if isinstance(given, int | np.integer) and given >= 0:
        assert shared_bytes(given) == given
    else:
        with pytest.raises(RawnnError, match="shared memory is a number of bytes"):
            shared_bytes(given)


def test_a_launch_in_words_has_what_is_not_the_default() -> None:
    assert str(Launch((1, 2, 3), (4, 5, 6))) == "(1, 2, 3), (4, 5, 6)"
    assert str(Launch((1, 2, 3), (4, 5, 6), 7, (1, 2, 1), True, True)) == (
        "(1, 2, 3), (4, 5, 6), shared=7, cluster=(1, 2, 1), cooperative=True, programmatic=True")
