"""Collectives of ranks on their devices: a communicator, and reductions prepared once."""

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
"""The version of NCCL that introduced windows."""
COPY_ENGINES = 22800
"""The version in which copy engines gather buffers in windows."""


class RankGroup(Protocol):
    """What a communicator needs to know of the ranks."""

    rank: int
    world_size: int

    @property
    def failed(self) -> bool:
        """Whether some rank is lost, so that pending collectives never end."""

    def broadcast(self, value: bytes | None) -> bytes:
        """Rank 0's value, on every rank."""

    def on_failure(self, act: Callable[[], None]) -> None:
        """Have `act` called, in any thread, once some rank is lost."""


class NcclContext:
    """A communicator of all ranks on the current device, which all of them create at the same time.
    With `copies`, copy engines gather buffers in windows.

    Raises CallFailed with NCCL's name, code and last error text.
    """

    def __init__(self, api: Any, team: RankGroup, copies: bool = False) -> None:
        self.api, self.team = api, team
        self._reductions: dict[tuple[str, float], int] = {}
        self._lock = threading.Lock()
        self._communicator: Any = None
        what = f"rank {team.rank} of {team.world_size}"
        self.version: int = check(api, "ncclGetVersion", api.ncclGetVersion(), "for several ranks")
        prepared = check(api, "ncclGetUniqueId", api.ncclGetUniqueId(), what) \
            if team.rank == 0 else None
        self._communicator = check(api, "ncclCommInitRankConfig", api.ncclCommInitRankConfig(
            team.world_size, team.broadcast(prepared), team.rank,
            NO_BLOCKS if copies and self.version >= COPY_ENGINES else DEFAULT_BLOCKS), what)
        team.on_failure(self.abort)

    @property
    def communicator(self) -> Any:
        """None after it was destroyed or aborted. Waits for an abort that is under way: NCCL uses
        the device until that ends."""
        with self._lock:
            return self._communicator

    def sum_of(self, dtype: str, weight: float) -> int:
        """The reduction that multiplies this rank's values by `weight`."""
        if weight == 1.0:
            return SUM
        if (dtype, weight) not in self._reductions:
            self._reductions[dtype, weight] = check(
                self.api, "ncclRedOpCreatePreMulSum", self.api.ncclRedOpCreatePreMulSum(
                    weight, DATA_TYPE[dtype], self.communicator), f"a sum with weight {weight:g}")
        return self._reductions[dtype, weight]

    def all_reduce(self, label: str, parts: Sequence[tuple[str, int]], weight: float,
                   largest: bool = False) -> AllReduce:
        """An in-place reduction of tensors, given as (type, elements): the sum over ranks of their
        values times the `weight` of each, or with `largest` the maximum."""
        prepared = [(count, DATA_TYPE[dtype], MAX if largest else self.sum_of(dtype, weight))
                    for dtype, count in parts]
        return AllReduce(self, label, prepared)

    def reduce_scatter(self, label: str, parts: Sequence[tuple[str, int]],
                       weight: float) -> ReduceScatter:
        """A weighted sum of tensors of which each rank gets its part: (type, elements per rank)."""
        prepared = [(count, DATA_TYPE[dtype], self.sum_of(dtype, weight)) for dtype, count in parts]
        return ReduceScatter(self, label, prepared)

    def all_gather(self, label: str, parts: Sequence[tuple[str, int]]) -> AllGather:
        """Tensors from the parts of all ranks: (type, elements per rank), of any type."""
        prepared = [(count * itemsize(dtype), DATA_TYPE["uint8"], SUM) for dtype, count in parts]
        return AllGather(self, label, prepared)

    def abort(self) -> None:
        """Abort pending operations, from any thread. A second call waits for the first, and has no
        other effect."""
        with self._lock:
            communicator, self._communicator = self._communicator, None
            if communicator is not None:
                self.api.ncclCommAbort(communicator)

    def close(self) -> None:
        """Destroy reductions and communicator, or abort it if a rank is lost; a second call has no
        effect."""
        if self.team.failed:
            self.abort()
        with self._lock:
            communicator, self._communicator = self._communicator, None
        if communicator is None:
            return
        for op in self._reductions.values():
            self.api.ncclRedOpDestroy(op, communicator)
        check(self.api, "ncclCommDestroy", self.api.ncclCommDestroy(communicator),
              f"rank {self.team.rank} of {self.team.world_size}")


class SymmetricMemory:
    """Allocates device memory that all ranks map: NCCL writes tensors in it from the other GPUs, at
    the same offset on all of them. So ranks must request the same sizes in the same order. The
    device's `Memory` counts it.

    In a step of wide4096 two H200s then gather 34 MB of weights in 57 us, on some 15
    multiprocessors; through NCCL's own buffers it takes 85 us, on some 21. By copy engines
    (NCCL_CTA_POLICY_ZERO) the copy takes 47 us and no multiprocessor, but another 30 us to
    synchronize both sides.

    Raises CallFailed.
    """

    def __init__(self, context: NcclContext, device: Device) -> None:
        self._context, self._api, self._device = context, context.api, device
        self._windows: dict[int, Any] = {}

    def allocate(self, nbytes: int, purpose: str) -> Allocation:
        """Zeroed memory. All ranks call it together."""
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
        prepared = Allocation(address, nbytes, purpose)
        try:
            self._gather(address, nbytes)
        except BaseException:
            self.free(prepared)
            raise
        return prepared

    def _gather(self, address: int, nbytes: int) -> None:
        """Gather once: NCCL's preparation for it is not possible within a capture."""
        self._device.fill(address, 0, nbytes, "symmetric memory")
        team, stream = self._context.team, self._device.stream
        part = nbytes // team.world_size
        if part:
            self._context.all_gather("symmetric memory", [("uint8", part)]).run(
                int(stream.handle), address, address + part * team.rank)
            stream.synchronize("symmetric memory")

    def free(self, allocation: Allocation) -> None:
        """Free it. If a rank is lost, the communicator and its window no longer exist."""
        window, what = self._windows.pop(allocation.address), f"freeing {allocation.purpose}"
        self._device.memory.count(-allocation.nbytes)
        communicator = self._context.communicator
        gone = (0,) if communicator is None else \
            self._api.ncclCommWindowDeregister(communicator, window)
        freed = self._api.ncclMemFree(allocation.address)
        check(self._api, "ncclCommWindowDeregister", gone, what)
        check(self._api, "ncclMemFree", freed, what)


class Collective(ABC):
    """One collective of several tensors, as one group of NCCL calls. `parts` are elements (per rank
    if each has its own part), type and reduction of each tensor."""

    call = ""

    def __init__(self, context: NcclContext, label: str,
                 parts: Sequence[tuple[int, int, int]]) -> None:
        self._label, self._parts = label, tuple(parts)
        self._api, self._communicator = context.api, context.communicator

    @abstractmethod
    def enqueue(self, addresses: tuple[int, ...], stream: int) -> Any:
        """Make the calls; returns the first failure, else the last result."""

    def run(self, stream: int, *addresses: int) -> None:
        """Enqueue on `stream`; `addresses` are those of the tensors, in order: of each the complete
        tensor, and then this rank's part if it has one."""
        api = self._api
        result = api.ncclGroupStart()
        if result[0]:
            check(api, "ncclGroupStart", result, self._label)
        result = self.enqueue(addresses, stream)
        ended = api.ncclGroupEnd()  # a group must be ended after a failure, too
        if result[0]:
            check(api, self.call, result, self._label)
        if ended[0]:
            check(api, "ncclGroupEnd", ended, self._label)


class AllReduce(Collective):
    """In-place reduction, with the result on all ranks."""

    call = "ncclAllReduce"

    def enqueue(self, addresses: tuple[int, ...], stream: int) -> Any:
        for address, (count, datatype, op) in zip(addresses, self._parts, strict=True):
            result = self._api.ncclAllReduce(address, address, count, datatype, op,
                                             self._communicator, stream)
            if result[0]:
                break
        return result


class ReduceScatter(Collective):
    """Reduction of complete tensors, of which each rank gets its part."""

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
    """Complete tensors from the parts of all ranks."""

    call = "ncclAllGather"

    def enqueue(self, addresses: tuple[int, ...], stream: int) -> Any:
        for whole, part, (count, datatype, _) in zip(addresses[::2], addresses[1::2], self._parts,
                                                     strict=True):
            result = self._api.ncclAllGather(part, whole, count, datatype, self._communicator,
                                             stream)
            if result[0]:
                break
        return result
