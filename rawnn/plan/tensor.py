"""A tensor of the plan: a name, a shape, a dtype and a layout. It holds no memory."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import prod

from rawnn.common.dtypes import FLOATS, itemsize

ROW_ALIGNMENT = 16
"""Bytes to which every row of a matrix is padded: 128-bit loads and cuBLASLt's fast kernels need
it."""
LINE = 128
"""Bytes of a cache line. Rows of LONG bytes and more are padded to it if GEMMs read them, so that a
tile's part of a row is in one line. On an H200 a multiprocessor loads 50 bytes a cycle of such
tiles from L2, and 17 of tiles whose rows begin 16 bytes further on. A step of
97-80-106-673-789-621-38 at batch 3056 in bf16 takes 211 us with no row of activations and
gradients padded, and 180 us with all."""
LONG = 512

PART = "/part"
"""Separates, in the name of a view, its source from its own suffix, for readers."""


class Role(StrEnum):
    """The purpose of a tensor, which determines its lifetime and origin."""

    HOST = "host"  # the data set in host memory, copied batch by batch
    DATA = "data"  # the data set in device memory
    ROUNDED = "rounded"  # its inputs in the dtype that GEMMs read, made once at the start
    PARAMETER = "parameter"
    COPY = "copy"  # of a parameter, rounded to the dtype that GEMMs read
    STATE = "state"  # carried from step to step in addition to the parameters
    EPOCH = "epoch"  # computed at the start of each epoch
    BATCH = "batch"  # one batch of inputs and labels; double-buffered when steps are unrolled
    ACTIVATION = "activation"
    GRADIENT = "gradient"
    REDUCED = "reduced"  # a parameter's gradient that ranks sum in place, its padding zero
    VIEW = "view"  # rows of another tensor, in place
    SCRATCH = "scratch"  # counters of a kernel's blocks: zero at first, and after each kernel
    METRIC = "metric"  # one value per step of the epoch
    CURSOR = "cursor"  # the index of the current step

    @property
    def temporary(self) -> bool:
        """Whether the tensor lives within one step only."""
        return self in (Role.BATCH, Role.ACTIVATION, Role.GRADIENT)

    @property
    def of_data(self) -> bool:
        """Whether a step uses only the rows of its batch."""
        return self in (Role.HOST, Role.DATA, Role.ROUNDED)

    @property
    def zeroed(self) -> bool:
        """Whether the tensor is zeroed, padding included, before anything runs."""
        return not self.temporary and self not in (Role.HOST, Role.DATA, Role.VIEW)


MULTIPLIED = frozenset((Role.PARAMETER, Role.COPY, Role.STATE, Role.ACTIVATION, Role.GRADIENT))
"""Roles of operands of GEMMs, and of optimizer state. Rows of a batch are laid out like those of
the data set, which may be copied unchanged, unless a kernel gathers them (`lines`)."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A dense vector, or a row-major matrix whose rows are padded to 16 bytes, or to 128.

    dtype: a name of rawnn.common.dtypes.
    packed: no padding.
    lines: rows begin at cache lines, whatever the role; near: no row does.
    source: of a copy its parameter, of rounded inputs the data set's.
    scale: factor of a copy's values before they are rounded.
    bound: half the width of the distribution from which a parameter is initialised.
    layer: that of a parameter and its state, from 1.
    symbol: the tensor in formulas and in kernels of complete steps, if it is not the name: w1 and
        b1 for the first layer's parameters, w1_m for optimizer state, c1 for a copy; of a HOST
        tensor, the part of the data set that it holds.
    communicator: the rank's communicator whose collectives the tensor orders
        (plan/ops/collectives.py).

    A view's `source` is the matrix of which it is the rows from `first` on. Its name is that one,
    PART and a suffix. A view of columns has the number of the first one as `column`, and the
    matrix's leading dimension as `pitch`.
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
