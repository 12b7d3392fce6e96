"""The simulated NCCL: what it computes, and the mistakes that it reports."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import sleep
from typing import Any

import numpy as np
import pytest

from rawnn.cuda.device import Device
from rawnn.cuda.errors import CallFailed
from rawnn.cuda.libs.collectives import NcclContext, SymmetricMemory
from rawnn.cuda.stream import Stream
from rawnn.engine.runners.lowering import Lowering
from rawnn.graphs import Graph
from rawnn.sim import Fault, Faults, Race, Simulation, SimulationError, nccl
from rawnn.sim.codes import CODES
from rawnn.sim.nccl import ABORTED, SimNccl
from tests.together import Waiting, all_fine, together


class Rank:
    """A simulated GPU with a communicator, and buffers of float32."""

    def __init__(self, waiting: Waiting, rank: int, faults: Faults | None = None) -> None:
        self.simulation = Simulation(seed=rank, faults=faults)
        self.device = Device(self.simulation.backend())
        self.stream = self.device.stream
        self.context = NcclContext(self.device.backend.nccl(), waiting.of(rank))
        self._held: list[Any] = []

    def unwritten(self, count: int) -> int:
        block, placed = self.device.memory.arena([("buffer", 4 * count)], "a test")
        self._held.append(block)
        return int(placed["buffer"])

    def buffer(self, values: Any) -> int:
        array = np.asarray(values, np.float32)
        address = self.unwritten(array.size)
        self.device.to_device(address, array, "buffer")
        return address

    def read(self, address: int, count: int) -> Any:
        found = np.zeros(count, np.float32)
        self.device.to_host(found, address, "buffer")
        return found

    def reduce(self, address: int, count: int, stream: Any = None, weight: float = 1.0) -> None:
        call = self.context.all_reduce("gradients", [("float32", count)], weight)
        call.run(int((stream or self.stream).handle), address)

    def close(self) -> None:
        self.context.close()
        for block in self._held:
            self.device.memory.free(block)
        self.device.close()


def ranks(size: int, act: Callable[[Rank, int], Any]) -> list[Any]:
    waiting = Waiting(size)

    def run(number: int) -> Any:
        rank = Rank(waiting, number)
        try:
            return act(rank, number)
        finally:
            rank.close()
            if not rank.simulation.errors:
                rank.simulation.assert_clean()

    return together(size, run)


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rawnn.sim.nccl_rendezvous.PATIENCE", 1.0)


def test_the_weighted_sum_is_on_every_rank_and_the_same_bits() -> None:
    def act(rank: Rank, number: int) -> Any:
        buffer = rank.buffer([number + 1, 10 * number, -1])
        rank.reduce(buffer, 3, weight=(number + 1) / 6)
        return rank.read(buffer, 3)

    found = all_fine(ranks(3, act))
    np.testing.assert_allclose(found[0], [(1 + 4 + 9) / 6, (20 + 60) / 6, -1], rtol=1e-6)
    assert all(np.array_equal(each, found[0]) for each in found)


def test_parts_are_gathered_and_scattered_to_memory_that_nothing_wrote() -> None:
    def act(rank: Rank, number: int) -> Any:
        part, whole, own = rank.buffer([number, 10 + number]), rank.unwritten(6), rank.unwritten(2)
        parts = [("float32", 2)]
        rank.context.all_gather("parts", parts).run(rank.stream.handle, whole, part)
        rank.context.reduce_scatter("sums", parts, 0.5).run(rank.stream.handle, whole, own)
        return [*rank.read(whole, 6), *rank.read(own, 2)]

    for number, found in enumerate(all_fine(ranks(3, act))):
        assert found == [0, 10, 1, 11, 2, 12, 1.5 * number, 1.5 * (10 + number)]


def test_collectives_are_captured_into_a_graph() -> None:
    def act(rank: Rank, number: int) -> Any:
        buffer = rank.buffer([1.0 + number])
        graph = Graph(rank.device.driver, rank.device.context)
        call = rank.context.all_reduce("gradients", [("float32", 1)], 1.0)
        after: list[Any] = []
        for _ in range(2):
            after = graph.capture_as_child(
                after, rank.stream, lambda: call.run(int(rank.stream.handle), buffer), "gradients")
        executable = graph.instantiate("two")
        graph.close()
        executable.launch(rank.stream)
        executable.launch(rank.stream)
        found = rank.read(buffer, 1)
        executable.close()
        return found

    assert [each.item() for each in all_fine(ranks(2, act))] == [24.0, 24.0]


def test_they_are_not_captured_into_a_graph_that_exists() -> None:
    """As NCCL 2.28 refuses it on a GPU."""
    def act(rank: Rank, number: int) -> None:
        buffer = rank.buffer([1.0])
        graph = Graph(rank.device.driver, rank.device.context)
        call = rank.context.all_reduce("gradients", [("float32", 1)], 1.0)
        try:
            with pytest.raises(CallFailed, match="ncclGroupEnd failed with ncclUnhandledCudaError"):
                graph.capture((), rank.stream,
                              lambda: call.run(int(rank.stream.handle), buffer), "gradients")
        finally:
            graph.close()

    all_fine(ranks(2, act))


def test_different_sizes_are_reported_with_both_ops_on_both_ranks() -> None:
    def act(rank: Rank, number: int) -> None:
        buffer = rank.buffer(np.zeros(8))
        rank.reduce(buffer, 4 + number)
        rank.stream.synchronize()

    for error in ranks(2, act):
        assert isinstance(error, SimulationError)
        assert "collective 1 differs between ranks" in str(error)
        assert "sum of 4 float32" in str(error)
        assert "sum of 5 float32" in str(error)


def test_a_different_order_is_reported() -> None:
    def act(rank: Rank, number: int) -> None:
        small, large = rank.buffer(np.zeros(2)), rank.buffer(np.zeros(8))
        for buffer, count in ((small, 2), (large, 8))[:: 1 - 2 * number]:
            rank.reduce(buffer, count)
        rank.stream.synchronize()

    assert all("differs between ranks" in str(error) for error in ranks(2, act))


def test_different_types_are_reported() -> None:
    def act(rank: Rank, number: int) -> None:
        buffer = rank.buffer(np.zeros(8))
        kind = ("float32", "bfloat16")[number]
        rank.context.all_reduce("gradients", [(kind, 4)], 1.0).run(int(rank.stream.handle), buffer)
        rank.stream.synchronize()

    assert all("sum of 4 bfloat16" in str(error) for error in ranks(2, act))


def test_a_rank_that_has_left_is_reported_with_what_it_did_last() -> None:
    def act(rank: Rank, number: int) -> None:
        buffer = rank.buffer(np.zeros(8))
        for count in (4, 8)[: 2 - number]:
            rank.reduce(buffer, count)
        rank.stream.synchronize()

    first, second = ranks(2, act)
    assert second is None
    assert "for rank 1, which has destroyed its communicator" in str(first)
    assert "ncclAllReduce of 8" in str(first)
    assert "ncclAllReduce of 4" in str(first)


def test_a_rank_that_never_comes_is_reported() -> None:
    waiting = Waiting(2)
    found, = together(1, lambda rank: Rank(waiting, rank))
    assert "rank 0 waits in ncclCommInitRankConfig for rank 1, which has not come within 1 s" \
        in str(found)


def test_two_collectives_that_nothing_orders_are_reported() -> None:
    def act(rank: Rank, number: int) -> None:
        one, two = rank.buffer(np.zeros(4)), rank.buffer(np.zeros(4))
        other = Stream(rank.device.driver)
        try:
            rank.stream.synchronize()
            rank.reduce(one, 4)
            rank.reduce(two, 4, other)
            other.synchronize()
            rank.stream.synchronize()
        finally:
            other.close()

    found = ranks(2, act)
    assert any(isinstance(error, Race) and "nothing orders" in str(error) for error in found)


@pytest.mark.parametrize("when", ["before", "behind"])
def test_a_buffer_reused_too_early_is_a_race(when: str) -> None:
    """Filled on another stream, without an event between."""

    def act(rank: Rank, number: int) -> None:
        buffer = rank.buffer(np.zeros(4))
        rank.stream.synchronize()
        other, driver = Stream(rank.device.driver), rank.device.driver
        try:
            if when == "behind":
                rank.reduce(buffer, 4)
            assert driver.cuMemsetD8Async(buffer, 0, 16, other.handle)[0] == 0
            if when == "before":
                rank.reduce(buffer, 4)
            rank.stream.synchronize()
            other.synchronize()
        finally:
            other.close()

    found = ranks(2, act)
    assert any(isinstance(error, Race) and "buffer 0" in str(error) for error in found), found


def test_a_rank_outside_the_communicator_is_refused() -> None:
    with pytest.raises(CallFailed, match=r"ncclInvalidArgument \[4\]"):
        Rank(Waiting(0), 0)


def test_ranks_reach_into_memory_that_lies_alike_on_all() -> None:
    def act(rank: Rank, number: int) -> Any:
        source = SymmetricMemory(rank.context, rank.device)
        block, placed = rank.device.memory.arena([("a", 4), ("b", 8)], "a test", source)
        assert rank.device.memory.current == block.nbytes
        rank.device.to_device(placed["b"], np.float32([number, 1]), "b")
        rank.reduce(placed["b"], 2)
        found = rank.read(placed["b"], 2)
        source.free(block)
        assert rank.device.memory.current == 0
        return found.tolist()

    assert all_fine(ranks(2, act)) == [[1.0, 2.0]] * 2


@pytest.mark.parametrize(("version", "is_symmetric"), [
    (22605, False), (22699, False), (22700, True), (22809, True)])
def test_only_versions_with_windows_give_symmetric_memory(
        monkeypatch: pytest.MonkeyPatch, version: int, is_symmetric: bool) -> None:
    monkeypatch.setattr(SimNccl, "ncclGetVersion", lambda self: (0, version))

    def act(rank: Rank, number: int) -> bool:
        lowering = Lowering(rank.device, team=rank.context.team)
        try:
            source = lowering.symmetric("")
            assert isinstance(source, SymmetricMemory) != (source is rank.device.memory)
            return isinstance(source, SymmetricMemory)
        finally:
            lowering.close()

    assert all_fine(ranks(1, act)) == [is_symmetric]


@pytest.mark.parametrize(("copies", "version", "blocks"), [
    (True, 22799, 0), (True, 22800, 2), (False, 22800, 0), (False, 22799, 0)])
def test_copy_engines_gather_from_their_version_on(monkeypatch: pytest.MonkeyPatch, copies: bool,
                                                   version: int, blocks: int) -> None:
    monkeypatch.setattr(SimNccl, "ncclGetVersion", lambda self: (0, version))
    init, seen = SimNccl.ncclCommInitRankConfig, []
    monkeypatch.setattr(SimNccl, "ncclCommInitRankConfig", lambda self, *given: (
        seen.append(given[3]), init(self, *given))[1])

    def act(rank: Rank, number: int) -> None:
        NcclContext(rank.context.api, rank.context.team, copies).close()

    all_fine(ranks(1, act))
    assert seen == [0, blocks]


def test_windows_of_different_sizes_are_reported() -> None:
    def act(rank: Rank, number: int) -> None:
        SymmetricMemory(rank.context, rank.device).allocate(512 + number, "a test")

    for error in ranks(2, act):
        assert "a window of 512 bytes" in str(error)
        assert "a window of 513 bytes" in str(error)


@pytest.mark.parametrize(("more", "code"), [(0, 0), (1, 1)])
def test_all_memory_that_is_free_can_be_allocated(more: int, code: int) -> None:
    def act(rank: Rank, number: int) -> int:
        memory = rank.simulation.memory
        memory.total = memory.used + 512
        found, address = rank.context.api.ncclMemAlloc(512 + more)
        if not found:
            rank.context.api.ncclMemFree(address)
        return int(found)

    assert all_fine(ranks(1, act)) == [code]


def test_a_rank_that_is_aborted_while_it_waits_says_so() -> None:
    is_over = threading.Event()

    def act(rank: Rank, number: int) -> None:
        if number:
            assert is_over.wait(10)
            return
        timer = threading.Timer(0.1, rank.context.abort)
        timer.start()
        try:
            rank.reduce(rank.buffer([1.0]), 1)
            rank.stream.synchronize()
        finally:
            is_over.set()
            timer.join()

    first, _ = ranks(2, act)
    assert f"rank 0 {ABORTED} while it waited in" in str(first)


def test_buffers_at_different_places_of_a_window_are_reported() -> None:
    def act(rank: Rank, number: int) -> None:
        source = SymmetricMemory(rank.context, rank.device)
        block = source.allocate(512, "a test")
        rank.device.fill(block.address, 0, 512, "all")
        rank.reduce(block.address + 256 * number, 4)
        rank.stream.synchronize()

    for error in ranks(2, act):
        assert isinstance(error, SimulationError)
        assert "sum of 4 float32 at byte 0 of window 0" in str(error)
        assert "sum of 4 float32 at byte 256 of window 0" in str(error)


def test_a_rank_that_is_alone_with_its_window_is_reported() -> None:
    def act(rank: Rank, number: int) -> None:
        if number == 0:
            SymmetricMemory(rank.context, rank.device).allocate(512, "a test")

    first, _ = ranks(2, act)
    assert "rank 0 waits in ncclCommWindowRegister of 512 bytes for rank 1" in str(first)


CALLS = ("ncclGetUniqueId", "ncclCommInitRankConfig", "ncclRedOpCreatePreMulSum", "ncclGroupStart",
         "ncclAllReduce", "ncclGroupEnd", "ncclCommDestroy", "ncclMemAlloc",
         "ncclCommWindowRegister", "ncclCommWindowDeregister", "ncclMemFree")


def test_nothing_is_released_while_another_thread_aborts() -> None:
    begun, may_end, order = threading.Event(), threading.Event(), []

    def act(rank: Rank, number: int) -> None:
        class Slow:
            def __getattr__(self, name: str) -> Any:
                return getattr(api, name)

            def ncclCommAbort(self, communicator: Any) -> Any:
                begun.set()
                assert may_end.wait(10)
                order.append("aborted")
                return api.ncclCommAbort(communicator)

        api, context = rank.context.api, rank.context
        context.api = Slow()
        acts = [threading.Thread(target=context.abort)]
        acts[0].start()
        assert begun.wait(10)
        for name, call in {"close": context.close, "abort": context.abort,
                           "communicator": lambda: context.communicator}.items():
            acts.append(threading.Thread(target=lambda n=name, c=call: (c(), order.append(n))))
            acts[-1].start()
        sleep(0.1)
        may_end.set()
        for each in acts:
            each.join(10)

    ranks(1, act)
    assert order[0] == "aborted"
    assert set(order) == {"aborted", "close", "abort", "communicator"}


def _whole_life(made: list[Rank], faults: Faults) -> None:
    made.append(Rank(Waiting(1), 0, faults))
    made[0].reduce(made[0].buffer([1.0]), 1, weight=0.5)
    source = SymmetricMemory(made[0].context, made[0].device)
    source.free(source.allocate(512, "a test"))
    made[0].close()


@pytest.mark.parametrize("call", CALLS)
def test_every_code_of_every_call_is_said_and_nothing_is_left(call: str) -> None:
    """One rank: what others do about it is the launcher's business."""
    for code, (value, text) in CODES["nccl"].items():
        if not value:
            continue
        made: list[Rank] = []
        with pytest.raises(CallFailed) as caught:
            _whole_life(made, Faults(Fault(code, call=call)))
        assert f"{call} failed with {code} [{value}]: {text}" in str(caught.value)
        for rank in made if call not in ("ncclCommDestroy", "ncclMemFree") else ():
            rank.close()
            rank.simulation.assert_clean()


def test_a_rank_that_is_there_or_of_another_number_of_ranks_is_refused(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rawnn.sim.nccl_rendezvous.PATIENCE", 20.0)
    usage, waiting = CODES["nccl"]["ncclInvalidUsage"][0], Waiting(2)

    def act(rank: int) -> None:
        device = Device(Simulation(rank).backend())
        api, team = device.backend.nccl(), waiting.of(rank)
        number = team.broadcast(api.ncclGetUniqueId()[1] if rank == 0 else None)
        if rank:
            for _ in range(1000):  # until the other one is there
                if getattr(nccl._RENDEZVOUS.get(bytes(number)), "present", ()):
                    break
                sleep(0.01)
            for size, wrong in ((2, 0), (3, 1)):
                assert api.ncclCommInitRankConfig(size, number, wrong, 0)[0] == usage
        code, comm = api.ncclCommInitRankConfig(2, number, rank, 0)
        assert code == 0
        assert api.ncclCommDestroy(comm) == (0,)
        device.close()

    all_fine(together(2, act))
