"""Locates the file of a CUDA library: in wheels, conda, a toolkit, or the loader's path."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rawnn.common.errors import MissingLibrary
from rawnn.cuda import library_folders

SYSTEM_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64")


def candidates(wheel_folders: tuple[str, ...]) -> Iterator[Path]:
    """Folders that may hold a CUDA library, most likely first.

    `wheel_folders` are paths below that of NVIDIA's wheels, such as `cudnn/lib`. No package is
    imported.
    """
    for root in library_folders.wheels():
        yield from (root / folder for folder in wheel_folders)
    yield from (prefix / "lib" for prefix in library_folders.conda())
    yield from library_folders.loader()
    yield from (root / "lib64" for root in library_folders.toolkits())
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
    """The error for a library that cannot be loaded: its name, the places searched, and the fix."""
    looked = ", ".join(dict.fromkeys(str(folder) for folder in candidates(wheel_folders)))
    detail = f" ({reason})" if reason else ""
    return MissingLibrary(
        f"{library} ({' or '.join(file_names)}) cannot be loaded{detail}; looked on the loader's "
        f"path and in {looked}; install rawnn with its CUDA libraries: pip install 'rawnn[cu12]' "
        f"(or 'rawnn[cu13]' for CUDA 13)"
    )
