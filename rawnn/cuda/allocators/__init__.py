"""Allocators of device memory with one protocol: the driver at each use, an arena, a caching pool,
the driver's stream-ordered pool."""

from rawnn.cuda.allocators.arena import Arena
from rawnn.cuda.allocators.log import AllocationLog
from rawnn.cuda.allocators.pool import Pool
from rawnn.cuda.allocators.protocol import Allocator, Statistics
from rawnn.cuda.allocators.stream_ordered import StreamOrdered

__all__ = ["AllocationLog", "Allocator", "Arena", "Pool", "Statistics", "StreamOrdered"]
