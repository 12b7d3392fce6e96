"""What ranks do together on their devices: a communicator, and reductions made ready once."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rawnn.common.dtypes import itemsize
from rawnn.cuda.errors import check
from rawnn.cuda.libs.nccl import DATA_TYPE, DEFAULT_BLOCKS, MAX, NO_BLOCKS, SUM, SYMMETRIC
from rawnn.cuda.memory import Allocation

if TYPE_CHECKING:
    from rawnn.cuda.device import Device

WINDOWS = 22700
"""The version of NCCL from which on it has windows."""
COPY_ENGINES = 22800
"""That from which on copy engines gather what lies in them."""


class RankGroup(Protocol):
    """What a communicator asks of those who run it."""

    rank: int
    world_size: int

    @property
    def failed(self) -> bool:
        """Whether some rank is lost, so that nothing more comes of what is under way."""

    def broadcast(self, value: bytes | None) -> bytes:
        """Rank 0's value, on every rank."""

    def on_failure(self, act: Callable[[], None]) -> None:
        """Have `act` called, in whatever thread, once some rank is lost."""


class NcclContext:
    """A communicator of all ranks on the current device, which all of them make at once. That of
    `copies` has copy engines gather what lies in windows.

    Raises CallFailed with NCCL's name, code and last error text.
    """

    def __init__(self, api: Any, team: RankGroup, copies: bool = False) -> None:
        self.api, self.team = api, team
        self._reductions: dict[tuple[str, float], int] = {}
        self._lock = threading.Lock()
        self.communicator: Any = None
        what = f"rank {team.rank} of {team.world_size}"
        self.version: int = check(api, "ncclGetVersion", api.ncclGetVersion(), "for several ranks")
        made = check(api, "ncclGetUniqueId", api.ncclGetUniqueId(), what) \
            if team.rank == 0 else None
        self.communicator = check(api, "ncclCommInitRankConfig", api.ncclCommInitRankConfig(
            team.world_size, team.broadcast(made), team.rank,
            NO_BLOCKS if copies and self.version >= COPY_ENGINES else DEFAULT_BLOCKS), what)
        team.on_failure(self.abort)

    def sum_of(self, dtype: str, weight: float) -> int:
        """The reduction in which this rank's values count `weight` times."""
        if weight == 1.0:
            return SUM
        if (dtype, weight) not in self._reductions:
            self._reductions[dtype, weight] = check(
                self.api, "ncclRedOpCreatePreMulSum", self.api.ncclRedOpCreatePreMulSum(
                    weight, DATA_TYPE[dtype], self.communicator), f"a sum with weight {weight:g}")
        return self._reductions[dtype, weight]

    def all_reduce(self, label: str, parts: Sequence[tuple[str, int]], weight: float,
                   largest: bool = False) -> AllReduce:
        """A reduction in place of tensors, given as (type, elements): the sum over ranks of their
        values times the `weight` of each, or the largest of them."""
        made = [(count, DATA_TYPE[dtype], MAX if largest else self.sum_of(dtype, weight))
                for dtype, count in parts]
        return AllReduce(self, label, made)

    def reduce_scatter(self, label: str, parts: Sequence[tuple[str, int]],
                       weight: float) -> ReduceScatter:
        """The weighted sum of tensors of which each rank gets its part: (type, elements a rank)."""
        made = [(count, DATA_TYPE[dtype], self.sum_of(dtype, weight)) for dtype, count in parts]
        return ReduceScatter(self, label, made)

    def all_gather(self, label: str, parts: Sequence[tuple[str, int]]) -> AllGather:
        """Tensors from the parts of all ranks: (type, elements a rank), of any type."""
        made = [(count * itemsize(dtype), DATA_TYPE["uint8"], SUM) for dtype, count in parts]
        return AllGather(self, label, made)

    def abort(self) -> None:
        """End what is under way, from any thread; a second call is harmless."""
        with self._lock:
            communicator, self.communicator = self.communicator, None
        if communicator is not None:
            self.api.ncclCommAbort(communicator)

    def close(self) -> None:
        """Destroy reductions and communicator, or abort it where a rank is lost; a second call is
        harmless."""
        if self.team.failed:
            self.abort()
        with self._lock:
            communicator, self.communicator = self.communicator, None
        if communicator is None:
            return
        for op in self._reductions.values():
            self.api.ncclRedOpDestroy(op, communicator)
        check(self.api, "ncclCommDestroy", self.api.ncclCommDestroy(communicator),
              f"rank {self.team.rank} of {self.team.world_size}")


class SymmetricMemory:
    """Gives device memory that all ranks map: NCCL writes tensors in it from the other GPUs, where
    they lie at the same place on all. So ranks ask for the same sizes in the same order. The
    device's tally counts it.

    In a step of wide4096 two H200s gather 34 MB of weights in 57 us then, on some 15
    multiprocessors; through NCCL's own buffers it takes 85 us, on some 21. By copy engines
    (NCCL_CTA_POLICY_ZERO) the copy takes 47 us and no multiprocessor, but 30 us pass around it
    until both sides have seen each other's marks.

    Raises CallFailed.
    """

    def __init__(self, context: NcclContext, device: Device) -> None:
        self._context, self._api, self._device = context, context.api, device
        self._windows: dict[int, Any] = {}

    def allocate(self, nbytes: int, purpose: str) -> Allocation:
        """All ranks call it together. What is there is zero."""
        what = f"{nbytes:,} bytes, {purpose}"
        address = check(self._api, "ncclMemAlloc", self._api.ncclMemAlloc(nbytes), what)
        try:
            self._windows[address] = check(
                self._api, "ncclCommWindowRegister", self._api.ncclCommWindowRegister(
                    self._context.communicator, address, nbytes, SYMMETRIC), what)
        except BaseException:
            self._api.ncclMemFree(address)
            raise
        self._device.memory.count(nbytes)
        made = Allocation(address, nbytes, purpose)
        try:
            self._gather(address, nbytes)
        except BaseException:
            self.free(made)
            raise
        return made

    def _gather(self, address: int, nbytes: int) -> None:
        """Gather once: what NCCL makes ready for it then could not be made within a capture."""
        self._device.fill(address, 0, nbytes, "symmetric memory")
        team, stream = self._context.team, self._device.stream
        part = nbytes // team.world_size
        if part:
            self._context.all_gather("symmetric memory", [("uint8", part)]).run(
                int(stream.handle), address, address + part * team.rank)
            stream.synchronize("symmetric memory")

    def free(self, allocation: Allocation) -> None:
        """Give it back. Without the communicator, which is gone where a rank is lost, its window
        is gone, too."""
        window, what = self._windows.pop(allocation.address), f"freeing {allocation.purpose}"
        self._device.memory.count(-allocation.nbytes)
        communicator = self._context.communicator
        gone = (0,) if communicator is None else \
            self._api.ncclCommWindowDeregister(communicator, window)
        freed = self._api.ncclMemFree(allocation.address)
        check(self._api, "ncclCommWindowDeregister", gone, what)
        check(self._api, "ncclMemFree", freed, what)


class Collective(ABC):
    """One collective of several tensors, which NCCL does as one: calls within a group. `parts` are
    elements (of a rank, where each has its own), type and reduction of each tensor."""

    call = ""

    def __init__(self, context: NcclContext, label: str,
                 parts: Sequence[tuple[int, int, int]]) -> None:
        self._label, self._parts = label, tuple(parts)
        self._api, self._communicator = context.api, context.communicator

    @abstractmethod
    def enqueue(self, addresses: tuple[int, ...], stream: int) -> Any:
        """Make the calls; the first result that is a failure, else that of the last."""

    def run(self, stream: int, *addresses: int) -> None:
        """Enqueue on `stream`; `addresses` are those of the tensors, in order: of each the whole,
        and then its part where it has one."""
        api = self._api
        result = api.ncclGroupStart()
        if result[0]:
            check(api, "ncclGroupStart", result, self._label)
        result = self.enqueue(addresses, stream)
        ended = api.ncclGroupEnd()  # a group is ended whatever went wrong inside
        if result[0]:
            check(api, self.call, result, self._label)
        if ended[0]:
            check(api, "ncclGroupEnd", ended, self._label)


class AllReduce(Collective):
    """In place."""

    call = "ncclAllReduce"

    def enqueue(self, addresses: tuple[int, ...], stream: int) -> Any:
        for address, (count, datatype, op) in zip(addresses, self._parts, strict=True):
            result = self._api.ncclAllReduce(address, address, count, datatype, op,
                                             self._communicator, stream)
            if result[0]:
                break
        return result


class ReduceScatter(Collective):
    """From wholes to parts."""

    call = "ncclReduceScatter"

    def enqueue(self, addresses: tuple[int, ...], stream: int) -> Any:
        for whole, part, (count, datatype, op) in zip(addresses[::2], addresses[1::2], self._parts,
                                                      strict=True):
            result = self._api.ncclReduceScatter(whole, part, count, datatype, op,
                                                 self._communicator, stream)
            if result[0]:
                break
        return result


class AllGather(Collective):
    """From parts to wholes."""

    call = "ncclAllGather"

    def enqueue(self, addresses: tuple[int, ...], stream: int) -> Any:
        for whole, part, (count, datatype, _) in zip(addresses[::2], addresses[1::2], self._parts,
                                                     strict=True):
            result = self._api.ncclAllGather(part, whole, count, datatype, self._communicator,
                                             stream)
            if result[0]:
                break
        return result
