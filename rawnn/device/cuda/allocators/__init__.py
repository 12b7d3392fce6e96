"""Allocators of device memory, one behind the other's protocol: the driver at each use, an arena,
a caching pool, the driver's stream-ordered pool."""

from rawnn.device.cuda.allocators.arena import Arena
from rawnn.device.cuda.allocators.base import Allocator, Statistics
from rawnn.device.cuda.allocators.log import AllocationLog
from rawnn.device.cuda.allocators.pool import Pool
from rawnn.device.cuda.allocators.stream_ordered import StreamOrdered

__all__ = ["AllocationLog", "Allocator", "Arena", "Pool", "Statistics", "StreamOrdered"]
