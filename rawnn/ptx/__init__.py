"""Kernels: CUDA C sources, their signatures, run-time compilation and the cubin cache.

Importing this package is cheap; nothing of CUDA is loaded before a kernel has to be compiled.
"""

from __future__ import annotations

from pathlib import Path

from rawnn.errors import ConfigError, nearest

SOURCES = Path(__file__).resolve().parent
"""The folder of the `.cu` and `.cuh` files; every compilation has it in its include path."""

ARCHITECTURE_SPECIFIC = frozenset({"wgmma.cu", "wgmma_tf32.cu"})
"""Sources with instructions that one architecture has and its successors have not: compiled for
sm_90a, not sm_90."""


def source_path(name: str) -> Path:
    """Path of the kernel source `name`, such as "matmul.cu".

    Raises ConfigError, with the nearest name, where there is no such file.
    """
    path = SOURCES / name
    if path.parent != SOURCES or not path.is_file():
        known = [entry.name for entry in SOURCES.iterdir() if entry.suffix in (".cu", ".cuh")]
        raise ConfigError(f"there is no kernel source '{name}' in rawnn{nearest(name, known)}")
    return path
