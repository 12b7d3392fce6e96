"""Folders that may have NVIDIA's files: of wheels, of conda, of the loader, of a toolkit.

rawnn searches them itself. The bindings of CUDA 12.8 lack `cuda.pathfinder`; importing it takes 85
to 110 ms where this takes one; and it loads libraries where only their files are needed (for the
key of the cubin cache, and in `rawnn doctor`). It is used for headers that wheels lack
(compiling/headers.py).
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path


def wheels(package: str = "nvidia") -> list[Path]:
    """Folders of a package that several wheels share. It may exist in several site-packages folders
    (a virtual environment that sees the system's packages). If one of them has an __init__.py,
    Python knows only that one, so that nothing is imported here."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    known = [Path(entry) for entry in spec.submodule_search_locations or ()]
    others = [folder for entry in sys.path if (folder := Path(entry) / package).is_dir()]
    return list(dict.fromkeys([*known, *others]))


def conda() -> list[Path]:
    """The folder of conda's environment, if there is one."""
    prefix = os.environ.get("CONDA_PREFIX")
    return [Path(prefix)] if prefix else []


def loader() -> list[Path]:
    """The folders that the loader searches first."""
    return [Path(entry) for entry in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
            if entry]


def toolkits() -> Iterator[Path]:
    """CUDA toolkits, those named by the environment first."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable])
    yield Path("/usr/local/cuda")
