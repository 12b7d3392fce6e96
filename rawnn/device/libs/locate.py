"""Where a CUDA library's file may lie: the wheels on Python's path, then the system's folders."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from rawnn.errors import MissingLibrary

SYSTEM_FOLDERS = ("/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib64")


def candidates(wheel_folders: tuple[str, ...]) -> Iterator[Path]:
    """Folders that may hold a CUDA library, likeliest first.

    `wheel_folders` are paths below a site-packages folder, as `nvidia/cudnn/lib`. Every entry of
    Python's path is looked at, and no package is imported: the wheels share the namespace
    `nvidia`, which may lie in several site-packages folders at once (a virtual environment that
    sees the system's packages).
    """
    for entry in dict.fromkeys(sys.path):
        if (Path(entry) / "nvidia").is_dir():
            for folder in wheel_folders:
                yield Path(entry) / folder
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if root := os.environ.get(variable):
            yield Path(root) / "lib64"
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        if folder:
            yield Path(folder)
    yield from map(Path, SYSTEM_FOLDERS)


def find(file_names: tuple[str, ...], wheel_folders: tuple[str, ...]) -> Path | None:
    """The first of `file_names` that exists in the first candidate folder holding one."""
    for folder in candidates(wheel_folders):
        for name in file_names:
            if (folder / name).is_file():
                return folder / name
    return None


def missing(library: str, file_names: tuple[str, ...], wheel_folders: tuple[str, ...],
            reason: object = None) -> MissingLibrary:
    """The error to raise for a library that cannot be loaded: what, where looked, and the cure."""
    places = ", ".join(dict.fromkeys(str(folder) for folder in candidates(wheel_folders)))
    said = f" ({reason})" if reason else ""
    return MissingLibrary(
        f"{library} ({' or '.join(file_names)}) cannot be loaded{said}; looked on the loader's "
        f"path and in {places}; install rawnn with its CUDA libraries: pip install 'rawnn[cu12]' "
        f"(or 'rawnn[cu13]' for CUDA 13)"
    )
