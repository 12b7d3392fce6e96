"""Kernels: their CUDA C sources, and beside each what is to be known of it to launch it.

Importing this package is cheap: it finds the sources, and registers no kernel.
"""

from __future__ import annotations

from pathlib import Path

from rawnn.common.errors import ConfigError, nearest

SOURCES = Path(__file__).resolve().parent
"""The folder whose folders hold the `.cu` and `.cuh` files: a family lies in a folder, with its
Python modules."""
INCLUDE = (SOURCES, SOURCES / "primitives")
"""The include path that every compilation ends in. A kernel of a user includes "types.cuh" or
"device/barriers.cuh"; rawnn's own name the folder, as in "primitives/types.cuh"."""


def source_path(name: str) -> Path:
    """Path of the kernel source `name`, such as "gemm/matmul.cu", or of a file from elsewhere,
    given by its whole path.

    Raises ConfigError, with the nearest name, where there is no such file.
    """
    path = SOURCES / name
    if Path(name).is_absolute() and path.is_file():
        return path
    if not path.is_relative_to(SOURCES) or path.suffix not in (".cu", ".cuh") \
            or not path.is_file():
        known = [file.name for file in SOURCES.rglob("*.cu*")]
        raise ConfigError(f"there is no kernel source '{name}' in rawnn{nearest(path.name, known)}")
    return path
