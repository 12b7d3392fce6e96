"""Tensor maps: descriptors for the copy engine (TMA) of compute capability 9.0 and later.

A kernel takes a map by value (`const __grid_constant__ TensorMap w_map`) and copies boxes of the
matrix between device and shared memory with it. The map contains the matrix's address, so that
another address needs another map.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rawnn.common.dtypes import itemsize
from rawnn.common.errors import ConfigError
from rawnn.cuda.compiling.c_types import MAP_SIZE
from rawnn.cuda.errors import check

BOX_BYTES = 128
"""Bytes of a row of a box, within which the swizzle permutes."""
BOX_ROWS = 256
"""Most rows of a box."""
ALIGNMENT = 16
"""Required alignment of addresses and row pitches, in bytes."""
DTYPES = ("float16", "bfloat16", "float32")
NO_MAP = bytes(MAP_SIZE)
"""The argument for an operand that is left out."""


@dataclass(frozen=True)
class MappedMatrix:
    """A row-major matrix [rows, cols] of a dtype in DTYPES, with a leading dimension of `ld`
    elements, in boxes of 128 bytes x `box_rows` rows. In shared memory the eight 16-byte chunks of
    a box's row are permuted (128-byte swizzle). Outside the matrix zeros are read; nothing is
    written there except the rest of a row's last 16 bytes.

    `label` names it in messages. Raises ConfigError for a dtype or a layout that has no map.
    """

    driver: Any
    label: str
    rows: int
    cols: int
    ld: int
    dtype: str
    box_rows: int

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(f"{self.label} has no tensor map: its elements are {self.dtype}, "
                              f"not {', '.join(DTYPES)}")
        if self.pitch % ALIGNMENT:
            raise ConfigError(f"{self.label} has no tensor map: its rows are {self.pitch} bytes "
                              f"apart, which is no multiple of {ALIGNMENT}")
        if not 1 <= self.box_rows <= BOX_ROWS:
            raise ConfigError(f"{self.label} has no tensor map: boxes have 1 to {BOX_ROWS} rows, "
                              f"not {self.box_rows}")
        if min(self.rows, self.cols) < 1 or self.ld < self.cols:
            raise ConfigError(f"{self.label} has no tensor map: {self.rows} rows of {self.cols} "
                              f"elements, {self.ld} apart")

    @property
    def pitch(self) -> int:
        """Bytes from row to row."""
        return self.ld * itemsize(self.dtype)

    @property
    def box(self) -> tuple[int, int]:
        """Columns and rows of a box."""
        return BOX_BYTES // itemsize(self.dtype), self.box_rows

    def at(self, address: int) -> bytes:
        """The map (128 bytes) of the matrix at a device address; zeros for address 0.

        Raises ConfigError for an address that is no multiple of 16, CallFailed if the driver
        refuses it.
        """
        if not address:
            return NO_MAP
        if address % ALIGNMENT:
            raise ConfigError(f"{self.label} has no tensor map: its address {address:#x} is no "
                              f"multiple of {ALIGNMENT}")
        result = self.driver.cuTensorMapEncodeTiled(
            self.dtype.upper(), address, (self.cols, self.rows), (self.pitch,), self.box,
            "128B", "L2_256B",
        )
        encoded: bytes = check(self.driver, "cuTensorMapEncodeTiled", result, str(self))
        return encoded

    def __str__(self) -> str:
        cols, rows = self.box
        return (f"{self.label}: {self.dtype}[{self.rows}, {self.cols}] in rows of {self.pitch:,} "
                f"bytes, boxes of {cols} columns x {rows} rows")
