"""For which architectures the tests compile what, and the compiler."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import pytest

from rawnn.common.errors import MissingLibrary
from rawnn.cuda.nvrtc import Nvrtc
from tests.slices import FULL, SLICE, sliced


@cache
def installed_nvrtc() -> Nvrtc:
    """NVRTC; a test without it skips."""
    try:
        return Nvrtc()
    except MissingLibrary as error:
        pytest.skip(str(error))


def supported(arch: str) -> None:
    """Skips where NVRTC does not know the architecture."""
    if int(re.sub(r"\D", "", arch)) not in installed_nvrtc().nvrtcGetSupportedArchs()[1]:
        pytest.skip(f"this NVRTC does not know {arch}")


def some_instances(name: str, instances: Sequence[str]) -> tuple[str, ...]:
    """A tenth of each kernel's instances, one at least, other ones for another name and in each
    slice: the table of kernels says what each spills, and its own check compiles all."""
    start = zlib.crc32(name.encode()) + SLICE
    return tuple(sliced(instances, of=start, kind=lambda expression: expression.partition("<")[0]))


def some(name: str, architectures: Sequence[str], how_many: int = 2) -> list[str]:
    """One or two of the architectures that something called `name` can be compiled for, other ones
    in each slice, and by CUDA 13 others than by CUDA 12. Of a kernel source that changed,
    tools/kernel_table.py compiles all that the engine can ask for, for all of them."""
    if FULL:
        return list(architectures)
    try:
        major = int(version("cuda-bindings").partition(".")[0])
    except PackageNotFoundError:
        major = 12
    first, count = zlib.crc32(name.encode()) + major + SLICE, len(architectures)
    found = dict.fromkeys(architectures[(first + at) % count] for at in (0, count // 2))
    return list(found)[:how_many]
