"""The caching allocator: its blocks, what makes reuse safe, and what happens when memory is out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rawnn.cuda.allocators import Pool
from rawnn.cuda.device import Device
from rawnn.cuda.memory import Allocation
from rawnn.cuda.stream import Stream
from rawnn.sim import Race, Simulation
from tests.sim.work import relu, vector

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture
def pool(device: Device) -> Iterator[Pool]:
    made = Pool(device.driver, device.memory, device.stream)
    yield made
    made.close()


def blocks(pool: Pool) -> list[Any]:
    """Every block, by address, free neighbours joined."""
    pool._join_all()
    out = list(pool._out.values()) + [block for block, _ in pool._deferred]
    free = [b for lane in pool._lanes.values() for f in lane.free.values() for b in f]
    return sorted(out + free, key=lambda block: block.address)


def check(pool: Pool) -> None:
    """The blocks of each segment fill it, are chained in order, and no two free neighbours of one
    stream lie beside each other."""
    found = blocks(pool)
    for segment in pool._segments.values():
        inside = [b for b in found if b.segment is segment]
        assert inside[0].address == segment.address
        assert inside[0].previous is None
        assert inside[-1].following is None
        assert sum(b.nbytes for b in inside) == segment.nbytes
        for first, second in pairwise(inside):
            assert first.address + first.nbytes == second.address
            assert first.following is second
            assert second.previous is first
            listed = [b in b.lane.free[b.large] for b in (first, second)]
            assert not (all(listed) and first.lane is second.lane)
    statistics = pool.statistics()
    assert statistics.reserved == sum(b.nbytes for b in found)
    assert statistics.current == sum(b.out.nbytes for b in found if b.out)
    assert statistics.largest_free <= statistics.free <= statistics.reserved
    assert 0 <= statistics.fragmentation < 1


# -- sizes, splits and merges ---------------------------------------------------------------------
def test_small_blocks_share_a_segment(pool: Pool, device: Device) -> None:
    first, second = pool.allocate(100, "first"), pool.allocate(512, "second")
    third = pool.allocate(1, "third")
    assert second.address == first.address + 512
    assert third.address == second.address + 1024  # 512 bytes and one to spare
    statistics = pool.statistics()
    assert (statistics.reserved, statistics.current, statistics.peak) == (2 * MIB, 613, 613)
    assert (statistics.hits, statistics.misses, statistics.splits) == (2, 1, 3)
    assert device.memory.calls == 1
    check(pool)


@pytest.mark.parametrize(("nbytes", "segment"), [
    (MIB - 1, 2 * MIB), (MIB, 2 * MIB), (2 * MIB - 512, 2 * MIB), (2 * MIB, 4 * MIB),
    (5 * MIB, 6 * MIB),
])
def test_sizes_of_segments(pool: Pool, nbytes: int, segment: int) -> None:
    pool.allocate(nbytes, "one")
    assert pool.statistics().reserved == segment
    check(pool)


@pytest.mark.parametrize(("nbytes", "segments"), [(MIB - 513, 1), (MIB - 1, 1), (MIB, 2),
                                                  (MIB + 1, 2)])
def test_from_a_mebibyte_on_a_request_shares_no_segment(pool: Pool, device: Device, nbytes: int,
                                                        segments: int) -> None:
    pool.allocate(512, "small")
    pool.allocate(nbytes, "at the boundary")
    assert device.memory.calls == segments
    check(pool)


@pytest.mark.parametrize(("left", "splits"), [(MIB - 512, 0), (MIB, 1), (MIB + 512, 1)])
def test_what_is_split_off_a_large_block_is_at_least_a_mebibyte(pool: Pool, left: int,
                                                                splits: int) -> None:
    pool.free(pool.allocate(4 * MIB - 1, "first"))  # a byte to spare: a segment of 4 MiB
    pool.allocate(4 * MIB - left - 1, "second")
    assert (pool.statistics().hits, pool.statistics().splits) == (1, splits)
    check(pool)


def test_a_large_request_has_a_segment_of_its_own(pool: Pool, device: Device) -> None:
    pool.allocate(512, "small")
    large = pool.allocate(3 * MIB, "large")
    assert device.memory.calls == 2
    pool.free(large)
    again = pool.allocate(3 * MIB, "again")
    assert again.address == large.address
    assert pool.statistics().hits == 1


def test_the_smallest_block_that_fits_is_taken(pool: Pool) -> None:
    kept, holes = [], []
    for size in (4000, 1000, 2000):
        holes.append(pool.allocate(size, "hole"))
        kept.append(pool.allocate(1, "between"))
    for hole in holes:
        pool.free(hole)
    assert pool.allocate(900, "fits the second").address == holes[1].address
    assert pool.allocate(1600, "fits the third").address == holes[2].address
    assert pool.allocate(1600, "fits the first").address == holes[0].address
    check(pool)


def test_neighbours_merge_on_both_sides(pool: Pool) -> None:
    parts = [pool.allocate(1000, str(i)) for i in range(4)]
    for index in (0, 2, 1, 3):
        pool.free(parts[index])
        check(pool)
    statistics = pool.statistics()
    assert statistics.merges == 4  # 1 joins two, 3 joins what is before and the rest of the segment
    assert (statistics.free, statistics.largest_free) == (2 * MIB, 2 * MIB)
    assert statistics.fragmentation == 0


def test_a_cached_large_segment_is_split_and_joined(pool: Pool) -> None:
    pool.free(pool.allocate(9 * MIB, "first"))
    half = pool.allocate(4 * MIB, "half")
    other = pool.allocate(4 * MIB, "other half")
    assert pool.statistics().reserved == 10 * MIB
    check(pool)
    pool.free(half)
    pool.free(other)
    assert pool.statistics().largest_free == 10 * MIB


def test_fragmentation(pool: Pool) -> None:
    parts = [pool.allocate(100 * KIB, str(i)) for i in range(20)]
    for part in parts[::2]:
        pool.free(part)
    statistics = pool.statistics()
    assert statistics.largest_free < statistics.free
    assert statistics.fragmentation == pytest.approx(1 - statistics.largest_free / statistics.free)


def test_freeing_twice_or_what_is_foreign_does_nothing(pool: Pool, device: Device) -> None:
    first = pool.allocate(100, "first")
    pool.free(first)
    pool.free(first)
    second = pool.allocate(100, "second")
    assert second.address == first.address
    pool.free(first)  # the block is the second's now
    pool.free(Allocation(4711, 1, "foreign"))
    pool.used_on(Allocation(4711, 1, "foreign"), pool._stream)
    assert pool.statistics().current == 100
    other = Stream(device.driver)
    busy(device, other, first.address)
    pool.used_on(first, other)  # of which nothing waits when the second is freed
    pool.free(second)
    assert not pool._deferred
    check(pool)
    other.close()


sizes = st.one_of(st.integers(0, 5000), st.integers(0, 3 * MIB))
actions = st.lists(st.tuples(st.sampled_from("aaffu"), sizes, st.integers(0, 2)), max_size=60)


@settings(max_examples=150, deadline=None)
@example([("a", 1024, 1), ("a", 0, 0), ("a", 0, 1), ("f", 0, 0), ("f", 0, 0), ("a", 512, 0)])
@given(actions)
def test_any_sequence_keeps_the_blocks_in_order(actions: list[tuple[str, int, int]]) -> None:
    simulation = Simulation()
    device = Device(simulation.backend())
    streams = [device.stream, Stream(device.driver), Stream(device.driver)]
    pool = Pool(device.driver, device.memory, device.stream)
    live: list[Allocation] = []
    for kind, number, which in actions:
        if kind == "a":
            made = pool.allocate(number, "made", streams[which])
            assert made.address % 256 == 0
            assert all(made.address + made.nbytes <= other.address
                       or other.address + other.nbytes <= made.address for other in live)
            live.append(made)
        elif live and kind == "f":
            pool.free(live.pop(number % len(live)))
        elif live:
            pool.used_on(live[number % len(live)], streams[which])
        check(pool)
    for allocation in live:
        pool.free(allocation)
    assert pool.statistics().current == 0
    assert pool.statistics().peak <= pool.statistics().reserved
    reserved = pool.statistics().reserved
    assert pool.release_cached() == reserved
    assert pool.statistics().reserved == 0
    pool.close()
    for stream in streams[1:]:
        stream.close()
    device.close()
    simulation.assert_clean()


def test_after_everything_is_free_everything_can_be_given_back(pool: Pool, device: Device) -> None:
    held = [pool.allocate(size, "held") for size in (10, 600 * KIB, 900 * KIB, 3 * MIB, 700 * KIB)]
    reserved = pool.statistics().reserved
    assert pool.release_cached() == 0
    for allocation in held:
        pool.free(allocation)
    assert pool.release_cached() == reserved
    assert device.memory.current == pool.statistics().reserved == 0
    check(pool)


def test_a_step_that_repeats_its_requests_needs_no_search(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step() -> list[int]:
        held = [pool.allocate(n, "held") for n in (100, 100, 5000, MIB, 3 * MIB, 0)]
        for allocation in held:
            pool.free(allocation)
        return [allocation.address for allocation in held]

    step()
    first = step()
    monkeypatch.setattr(pool, "_search", None)
    assert sorted(step()) == sorted(first)
    check(pool)


# -- streams --------------------------------------------------------------------------------------
def busy(device: Device, stream: Stream, address: int, count: int = 1) -> None:
    """Work on `stream` that writes 8 floats at `address`."""
    z = vector(device, 1.0)
    for _ in range(count):
        relu(device, z, address, stream=stream).run(0)


def test_the_stream_of_a_block_is_no_other_user_of_it(pool: Pool, device: Device,
                                                      sim: Simulation) -> None:
    first = pool.allocate(512, "first")
    pool.used_on(first, device.stream)
    records = sim.faults.count("cuEventRecord")
    pool.free(first)
    assert sim.faults.count("cuEventRecord") == records
    assert pool.allocate(512, "again").address == first.address


@pytest.mark.parametrize("seed", range(4))
def test_the_same_stream_reuses_at_once(seed: int) -> None:
    device = Device(Simulation(seed).backend())
    pool = Pool(device.driver, device.memory, device.stream)
    first = pool.allocate(32, "first")
    busy(device, device.stream, first.address)
    pool.free(first)
    second = pool.allocate(32, "second")
    assert second.address == first.address
    busy(device, device.stream, second.address)
    device.stream.synchronize()
    pool.close()
    device.close()
    device.driver.simulation.assert_clean()


@pytest.mark.parametrize("seed", range(8))
def test_another_stream_never_gets_memory_that_is_in_use(seed: int) -> None:
    device = Device(Simulation(seed).backend())
    other = Stream(device.driver)
    pool = Pool(device.driver, device.memory, device.stream)
    seen = set()
    for _ in range(12):
        for stream in (device.stream, other):
            made = pool.allocate(32, "made", stream)
            seen.add(made.address)
            busy(device, stream, made.address, 3)
            pool.free(made)
    device.driver.cuCtxSynchronize()  # a race would be raised here
    assert 2 <= len(seen) <= 4
    pool.close()
    other.close()
    device.close()
    device.driver.simulation.assert_clean()


def test_another_stream_gets_memory_that_the_device_is_done_with(device: Device) -> None:
    other = Stream(device.driver)
    pool = Pool(device.driver, device.memory, device.stream)
    first = pool.allocate(3 * MIB, "first")
    busy(device, device.stream, first.address, 8)
    pool.free(first)
    second = pool.allocate(3 * MIB, "second", other)
    assert second.address != first.address  # still at work: the driver is asked instead
    device.stream.synchronize()
    third = pool.allocate(3 * MIB, "third", other)
    assert third.address == first.address
    assert pool.statistics().misses == 2
    pool.free(third)
    assert pool.allocate(3 * MIB, "fourth", other).address == first.address
    pool.close()
    other.close()


@pytest.mark.parametrize("seed", range(4))
def test_memory_that_changed_its_stream_is_reused_in_the_order_of_the_new_one(seed: int) -> None:
    device = Device(Simulation(seed).backend())
    other = Stream(device.driver)
    pool = Pool(device.driver, device.memory, device.stream)
    first = pool.allocate(3 * MIB, "first")
    busy(device, device.stream, first.address)
    pool.free(first)
    assert pool.allocate(3 * MIB, "not yet", other).address != first.address
    device.stream.synchronize()
    taken = pool.allocate(3 * MIB, "taken over", other)
    assert taken.address == first.address
    busy(device, other, taken.address, 4)
    pool.free(taken)
    back = pool.allocate(3 * MIB, "while the other works")
    assert back.address != taken.address
    busy(device, device.stream, back.address)
    again = pool.allocate(3 * MIB, "in the other's order", other)
    assert again.address == taken.address
    busy(device, other, again.address)
    device.driver.cuCtxSynchronize()  # a race would be raised here
    check(pool)
    pool.close()
    other.close()
    device.close()
    device.driver.simulation.assert_clean()


def test_what_is_split_off_is_in_use_as_long_as_the_whole_was(device: Device) -> None:
    other = Stream(device.driver)
    pool = Pool(device.driver, device.memory, device.stream)
    whole = pool.allocate(4 * MIB - 1, "whole")
    for half in range(2):
        busy(device, device.stream, whole.address + half * 2 * MIB)
    pool.free(whole)
    assert pool.allocate(2 * MIB - 1, "first half").address == whole.address
    early = pool.allocate(2 * MIB - 1, "while the whole is in use", other)
    assert early.address != whole.address + 2 * MIB
    device.stream.synchronize()
    rest = pool.allocate(2 * MIB - 1, "second half", other)
    assert rest.address == whole.address + 2 * MIB
    busy(device, other, rest.address)
    device.driver.cuCtxSynchronize()  # a race would be raised here
    check(pool)
    pool.close()
    other.close()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("seed", range(2))
def test_joined_memory_is_in_use_as_long_as_either_part(seed: int, order: tuple[int, int]) -> None:
    """Two halves of a segment: the device is done with the one that is freed first alone."""
    device = Device(Simulation(seed).backend())
    other = Stream(device.driver)
    pool = Pool(device.driver, device.memory, device.stream)
    pool.free(pool.allocate(4 * MIB - 1, "both"))
    halves = [pool.allocate(2 * MIB - 1, "half") for _ in range(2)]
    assert halves[1].address == halves[0].address + 2 * MIB
    done, used = (halves[i] for i in order)
    busy(device, device.stream, done.address)
    pool.free(done)
    pool.allocate(2 * MIB - 1, "marks the first half's end", other)
    device.stream.synchronize()
    busy(device, device.stream, used.address, 4)
    pool.free(used)
    both = pool.allocate(4 * MIB - 1, "both", other)
    assert both.address != halves[0].address
    for half in range(2):
        busy(device, other, both.address + half * 2 * MIB)
    device.driver.cuCtxSynchronize()  # a race would be raised here
    assert pool.allocate(4 * MIB - 1, "now", other).address == halves[0].address
    check(pool)
    pool.close()
    other.close()
    device.close()
    device.driver.simulation.assert_clean()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("declared", [True, False])
def test_memory_that_two_streams_use(declared: bool, seed: int) -> None:
    """Without `used_on` the race is the caller's, and is seen."""
    device = Device(Simulation(seed).backend())
    other = Stream(device.driver)
    pool = Pool(device.driver, device.memory, device.stream)
    shared = pool.allocate(32, "shared")
    busy(device, other, shared.address, 6)
    if declared:
        pool.used_on(shared, other)
    pool.free(shared)
    second = pool.allocate(32, "second")
    busy(device, device.stream, second.address)
    if declared:
        assert second.address != shared.address
        device.driver.cuCtxSynchronize()
        third = pool.allocate(16, "third")
        assert third.address == shared.address
        check(pool)
        pool.close()
        other.close()
        device.close()
        device.driver.simulation.assert_clean()
    else:
        with pytest.raises(Race):
            device.driver.cuCtxSynchronize()
