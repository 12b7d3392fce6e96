"""A tensor of the plan: a name, a shape, a type and a layout. It holds no memory."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import prod

from rawnn.common.dtypes import FLOATS, itemsize

ROW_ALIGNMENT = 16
"""Bytes that every row of a matrix is padded to: what a 128-bit load and cuBLASLt's fast
kernels ask for."""
LINE = 128
"""Bytes of a cache line, to which rows of LONG bytes and more are padded where products multiply
them: a tile's part of a row then lies in one line. On an H200 a multiprocessor gets 50 bytes a
cycle of such tiles from the L2 cache, and 17 of tiles whose rows begin 16 bytes further on. A step
of 97-80-106-673-789-621-38 at batch 3056 in bf16 takes 211 us with no row of activations and
gradients padded so, and 180 us with all."""
LONG = 512

PART = "/part"
"""What stands in the name of a view behind that of its source, for readers."""


class Role(StrEnum):
    """What a tensor is for, which decides how long it lives and where it comes from."""

    HOST = "host"  # the data set in host memory, ready to be copied batch by batch
    DATA = "data"  # the data set in device memory
    ROUNDED = "rounded"  # its inputs as products read them, made once at the start
    PARAMETER = "parameter"
    COPY = "copy"  # of a parameter, rounded to what the products read
    STATE = "state"  # what training carries from step to step besides the parameters
    EPOCH = "epoch"  # made anew at the start of each epoch
    BATCH = "batch"  # one batch of inputs and labels; double-buffered when steps are unrolled
    ACTIVATION = "activation"
    GRADIENT = "gradient"
    REDUCED = "reduced"  # a parameter's gradient that ranks sum: in place, its padding zero
    VIEW = "view"  # rows of another tensor, where they lie
    SCRATCH = "scratch"  # counters of a kernel's blocks: zero at first, and left at zero
    METRIC = "metric"  # one value per step of the epoch
    CURSOR = "cursor"  # the index of the current step

    @property
    def temporary(self) -> bool:
        """Whether the tensor lives within one step only."""
        return self in (Role.BATCH, Role.ACTIVATION, Role.GRADIENT)

    @property
    def of_data(self) -> bool:
        """Whether a step touches the rows of its batch alone."""
        return self in (Role.HOST, Role.DATA, Role.ROUNDED)

    @property
    def zeroed(self) -> bool:
        """Whether the tensor is filled with zeros before anything runs, padding included."""
        return not self.temporary and self not in (Role.HOST, Role.DATA, Role.VIEW)


MULTIPLIED = frozenset((Role.PARAMETER, Role.COPY, Role.STATE, Role.ACTIVATION, Role.GRADIENT))
"""Roles of what products multiply, and of the state that goes with it. The rows of a batch are as
those of the data set, which may be copied as they are, unless a kernel gathers them (`lines`)."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A dense vector, or a row-major matrix whose rows are padded to 16 bytes, or to 128.

    `dtype` is a name of rawnn.common.dtypes. `packed` leaves the padding out, `lines`
    asks for rows that begin with cache lines whatever the role, `near` for none that do. `source`
    names the parameter that a copy is made from, or the data set's inputs that are rounded, `scale`
    what a copy's values are multiplied by before they are rounded. `bound` is half the width of the
    distribution that a parameter is drawn from.
    A view's `source` is the matrix whose rows it is, from `first` on; its name is that one, PART
    and what tells it from other views of the matrix. One that is columns of it has the number of
    the first as `column`, and as `pitch` the matrix's elements from one row to the next.

    `layer` is that of a parameter, from 1 on, and of what is kept of it. `symbol` is what formulas
    and the kernels of whole steps call a tensor, where that is not its name: w1 and b1 the first
    layer's parameters, w1_m what an optimizer keeps of them, c1 a copy; of a HOST tensor, the part
    of the data set that it holds.

    `communicator` tells which of a rank's communicators the collectives use whose order the tensor
    is (plan/ops/collectives.py).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Role
    packed: bool = False
    lines: bool = False
    near: bool = False
    source: str = ""
    scale: float = 1.0
    bound: float = 0.0
    first: int = 0
    column: int = 0
    pitch: int = 0
    layer: int = 0
    symbol: str = ""
    communicator: str = ""

    @property
    def itemsize(self) -> int:
        return itemsize(self.dtype)

    @property
    def floating(self) -> bool:
        return self.dtype in FLOATS

    @property
    def ld(self) -> int:
        """Leading dimension: elements from one row to the next (the length, for a vector)."""
        if self.pitch:
            return self.pitch
        if len(self.shape) < 2 or self.packed:
            return self.shape[-1]
        length = self.shape[-1] * self.itemsize
        wide = (self.role in MULTIPLIED or self.lines) and not self.near and length >= LONG
        row = (LINE if wide else ROW_ALIGNMENT) // self.itemsize
        return -(-self.shape[-1] // row) * row

    @property
    def padded_shape(self) -> tuple[int, ...]:
        """The shape in memory, padding included."""
        return (*self.shape[:-1], self.ld)

    @property
    def nbytes(self) -> int:
        """Bytes in memory, padding included."""
        return prod(self.padded_shape) * self.itemsize

    def __str__(self) -> str:
        pitch = f" ld {self.ld}" if self.ld != self.shape[-1] else ""
        return f"{self.name}: {self.dtype}{list(self.shape)}{pitch} ({self.role})"
