"""The kernels, in CUDA C++ (PTX is what NVRTC makes of them), and beside each source a Python
module that says how it is launched.

Importing this package is cheap: it locates the sources and registers no kernel.
"""

from __future__ import annotations

from pathlib import Path

from rawnn.common.errors import ConfigError, nearest

SOURCES = Path(__file__).resolve().parent
"""The root of the `.cu` and `.cuh` files. Each kernel family has a subfolder, with its Python
modules."""
INCLUDE = (SOURCES, SOURCES / "primitives")
"""Include directories, the last ones of every compilation. A user's kernel includes "types.cuh" or
"device/barriers.cuh"; rawnn's own sources name the folder, as in "primitives/types.cuh"."""


def source_path(name: str) -> Path:
    """Path of the kernel source `name`, such as "gemm/matmul.cu", or an absolute path to a source
    outside the package.

    Raises ConfigError, with the nearest name, if the file does not exist.
    """
    path = SOURCES / name
    if Path(name).is_absolute() and path.is_file():
        return path
    if not path.is_relative_to(SOURCES) or path.suffix not in (".cu", ".cuh") \
            or not path.is_file():
        known = [file.name for file in SOURCES.rglob("*.cu*")]
        raise ConfigError(f"there is no kernel source '{name}' in rawnn{nearest(path.name, known)}")
    return path
