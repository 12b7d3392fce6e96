"""For which architectures the tests compile what."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from tests.engine import FULL


def some(name: str, architectures: Sequence[str]) -> list[str]:
    """Two of the architectures that something called `name` can be compiled for, all with
    RAWNN_FULL=1: by CUDA 13 other ones than by CUDA 12. Of a kernel source that changed,
    tools/kernel_table.py compiles all that the engine can ask for, for all of them."""
    if FULL:
        return list(architectures)
    try:
        major = int(version("cuda-bindings").partition(".")[0])
    except PackageNotFoundError:
        major = 12
    first, count = zlib.crc32(name.encode()) + major, len(architectures)
    return list(dict.fromkeys(architectures[(first + at) % count] for at in (0, count // 2)))
