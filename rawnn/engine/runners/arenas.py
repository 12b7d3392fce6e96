"""Memory of tensors: an arena in symmetric memory for what ranks all-gather, one for everything
else, or an allocator that places each tensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from numpy.typing import NDArray

from rawnn.cuda.allocators import Allocator, Pool, StreamOrdered
from rawnn.cuda.device import Device, padded
from rawnn.cuda.memory import Source
from rawnn.cuda.pinned import PinnedMemory
from rawnn.engine.runners.lowering import Lowering
from rawnn.engine.runners.plan_data import contents, resident
from rawnn.engine.runners.prepared_run import PreparedRun
from rawnn.plan.ops.collectives import GATHER
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Role, Tensor


def shared_by_ranks(plans: Iterable[Plan]) -> dict[str, str]:
    """The tensors that ranks all-gather, which have the same size on each of them, with their
    communicators."""
    return {plan.storage_of(name): plan[op.operands["token"]].communicator for plan in plans
            for op in plan.ops if op.kind == GATHER for role, name in op.operands.items()
            if role != "token"}


class TensorMemory:
    """Memory for the tensors of a PreparedRun. `allocator` places temporaries at each use; it is
    None if they are placed once. Closing `closing` frees everything."""

    def __init__(self, device: Device, prepared: PreparedRun, lowering: Lowering,
                 closing: ExitStack) -> None:
        self._device, self._prepared = device, prepared
        self._lowering, self._closing = lowering, closing
        self._trained: dict[str, int] = {}
        self.allocator = self._allocator(prepared.policy.allocator)
        self.pinned = PinnedMemory(device.driver)
        closing.callback(self.pinned.close)

    def _allocator(self, kind: str) -> Allocator | None:
        device = self._device
        if kind == "arena":
            return None
        if kind == "each-use":
            return device.memory
        allocator: Allocator = Pool(device.driver, device.memory, device.stream) \
            if kind == "pool" else \
            StreamOrdered(device.driver, device.handle, device.memory, device.stream)
        self._closing.callback(allocator.close)
        return allocator

    def place(self, purpose: str, tensors: Mapping[str, Tensor], part: str, first: int = 0,
              shared: Mapping[str, str] = {}) -> tuple[dict[str, int], dict[str, NDArray[Any]]]:
        """Give every tensor an address, and fill in the data set's `part` from example `first` on.
        Tensors in `shared` (tensor -> communicator) are in symmetric memory.

        The first call places parameters; later calls use the same ones. If the policy allocates
        temporaries at each use, they get no address here, except batches that a second stream
        fills.
        """
        prepared, allocator = self._prepared, self.allocator
        placed_once = [Role.BATCH] if prepared.policy.streams else []
        addresses = {n: self._trained[n] for n in tensors if n in self._trained}
        resident_addresses = resident(prepared.data, tensors, part, first,
                                      self._device.info.ordinal)
        addresses |= resident_addresses
        wanted = [t for n, t in tensors.items()
                  if n not in addresses and t.role not in (Role.HOST, Role.VIEW)
                  and (allocator is None or not t.role.temporary or t.role in placed_once)]
        if allocator is None:
            addresses |= self._arenas(wanted, purpose, shared)
        else:
            for tensor in wanted:
                allocation = allocator.allocate(tensor.nbytes, tensor.name)
                self._closing.callback(allocator.free, allocation)
                addresses[tensor.name] = allocation.address
        addresses |= {n: addresses[t.source] + (t.first * t.ld + t.column) * t.itemsize
                      for n, t in tensors.items() if t.role is Role.VIEW}
        self._trained |= {n: addresses[n] for n, t in tensors.items()
                          if t.role in (Role.PARAMETER, Role.COPY)}
        host: dict[str, NDArray[Any]] = {}
        for name, tensor in tensors.items():
            if name in resident_addresses:
                continue
            if tensor.role is Role.DATA:
                array = contents(prepared.data, tensor, part, first)
                fill(self._device, tensor, addresses[name], array)
            elif tensor.role is Role.HOST:
                array = contents(prepared.data, tensor, part, first, prepared.shuffles_host)
                laid_out = padded(array, tensor.padded_shape, tensor.dtype)
                host[name] = self.pinned.copy_of(laid_out, name) \
                    if prepared.policy.pinned else laid_out
            elif tensor.role.zeroed and tensor in wanted:
                self._device.fill(addresses[name], 0, tensor.nbytes, name)
        return addresses, host

    def _arenas(self, tensors: Sequence[Tensor], purpose: str,
                shared: Mapping[str, str]) -> dict[str, int]:
        memory, lowering = self._device.memory, self._lowering
        addresses: dict[str, int] = {}
        for communicator in (*dict.fromkeys(shared.values()), ""):
            group = [(t.name, t.nbytes) for t in tensors if shared.get(t.name, "") == communicator]
            if group:
                source: Source = lowering.symmetric(communicator) if communicator else memory
                block, placed = memory.arena(group, purpose, source)
                self._closing.callback(source.free, block)
                addresses |= placed
        return addresses


def fill(device: Device, tensor: Tensor, address: int, array: NDArray[Any]) -> None:
    """Copy a host array to a tensor, with the tensor's padding of rows."""
    device.to_device(address, padded(array, tensor.padded_shape, tensor.dtype), tensor.name)
