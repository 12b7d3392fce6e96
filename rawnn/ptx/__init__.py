"""Kernels: their CUDA C sources, and beside each what is to be known of it to launch it.

Importing this package is cheap: it finds the sources, and registers no kernel.
"""

from __future__ import annotations

from pathlib import Path

from rawnn.common.errors import ConfigError, nearest

SOURCES = Path(__file__).resolve().parent
"""The folder of the `.cu` and `.cuh` files; every compilation has it in its include path."""


def source_path(name: str) -> Path:
    """Path of the kernel source `name`, such as "gemm/matmul.cu", or of a file from elsewhere, given by
    its whole path.

    Raises ConfigError, with the nearest name, where there is no such file.
    """
    path = SOURCES / name
    if Path(name).is_absolute() and path.is_file():
        return path
    if path.parent != SOURCES or not path.is_file():
        known = [entry.name for entry in SOURCES.iterdir() if entry.suffix in (".cu", ".cuh")]
        raise ConfigError(f"there is no kernel source '{name}' in rawnn{nearest(name, known)}")
    return path
