"""The files that CUDA C text includes, and their texts, each read once until it changes."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)', re.MULTILINE)


_BOMS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF32_LE: "utf-32-le",
         codecs.BOM_UTF32_BE: "utf-32-be", codecs.BOM_UTF16_LE: "utf-16-le",
         codecs.BOM_UTF16_BE: "utf-16-be"}
"""Byte-order marks; of two with a common beginning the longer comes first."""


def read_source(path: str | os.PathLike[str]) -> str:
    """The text of a source in the encoding of its byte-order mark, else UTF-8, else UTF-16 if every
    other byte is zero, else Latin-1, which accepts any bytes. Lines end in "\\n"."""
    return decode_source(Path(path).read_bytes())


def decode_source(data: bytes) -> str:
    """The text of a source's bytes, decoded as by `read_source`."""
    bom = next((bom for bom in _BOMS if data.startswith(bom)), b"")
    head = data[:256]
    if bom:
        encoding = _BOMS[bom]
    elif head[1::2].count(0) > len(head) // 4:
        encoding = "utf-16-le"
    elif head[::2].count(0) > len(head) // 4:
        encoding = "utf-16-be"
    else:
        encoding = "utf-8"
    data = data[len(bom):]
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    return text.replace("\r\n", "\n").replace("\r", "\n")


@dataclass
class IncludedFiles:
    """A project's own files that a source and its headers include.

    texts: by absolute path ("" for the source).
    targets: the path that a file includes by a name.
    missing: names that are not found, and whether they are in quotes.
    encoded: headers that the compiler cannot read because of their encoding.
    """

    texts: dict[str, str]
    targets: dict[tuple[str, str], str] = field(default_factory=dict)
    missing: dict[str, bool] = field(default_factory=dict)
    encoded: set[str] = field(default_factory=set)

    def rewrite(self, file: str, text: str) -> str:
        """The text of a file, with included names replaced by their paths."""
        def replaced(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            target = self.targets.get((file, name))
            whole = match[0]
            return whole if target is None else (
                whole[: match.start(1 if match[1] else 2) - match.start() - 1] + f'"{target}"')
        return _INCLUDE.sub(replaced, text)


def find_included_files(text: str, paths: Sequence[Path], is_foreign: Callable[[str], bool],
                        is_skipped: Callable[[str], bool]) -> IncludedFiles:
    """Follow the includes of `text` through `paths`. Folders for which `is_foreign` holds are not
    the project's; names in angle brackets for which `is_skipped` holds count as missing."""
    found = IncludedFiles({"": text})
    folders = [os.path.abspath(path) for path in paths]
    pending = [""]
    while pending:
        file = pending.pop()
        for name, in_quotes in _included(found.texts[file]):
            own_folder = [os.path.dirname(file)] if in_quotes and file else []
            path = None if is_skipped(name) and not in_quotes else next(
                (path for each in (*own_folder, *folders)
                 if os.path.isfile(path := os.path.join(each, name))), None)
            if path is None:
                found.missing[name] = found.missing.get(name, False) or in_quotes
                continue
            path = os.path.normpath(path)
            if is_foreign(os.path.dirname(path)):
                continue
            found.targets[file, name] = path
            if path not in found.texts:
                data = Path(path).read_bytes()
                found.texts[path] = decode_source(data)
                if data.startswith(tuple(_BOMS)) or b"\0" in data:
                    found.encoded.add(path)
                pending.append(path)
    return found


def follow_includes(text: str, paths: Sequence[Path], *,
                    quoted: bool = False) -> tuple[list[tuple[str, str]], list[str]]:
    """(name and content of every file that `text` includes, directly or not, and that `paths` have;
    names of the others). With `quoted`, names in angle brackets, which are CUDA's, are left out."""
    parts: list[tuple[str, str]] = []
    missing: list[str] = []
    visited: set[tuple[int, int]] = set()
    folders = [os.fspath(path) for path in paths]
    pending: list[tuple[str, str | None]] = [(text, None)]
    while pending:
        current, folder = pending.pop()
        for header, in_quotes in _included(current):
            if quoted and not in_quotes:
                continue
            # A quoted include is searched in the folder of its file before the -I folders.
            own_folder = [folder] if in_quotes and folder is not None else []
            path = next((path for each in (*own_folder, *folders)
                         if os.path.isfile(path := os.path.join(each, header))), None)
            if path is None:
                missing.append(header)
                continue
            status = os.stat(path)
            if (status.st_dev, status.st_ino) not in visited:
                visited.add((status.st_dev, status.st_ino))
                content = _read(path, status.st_mtime_ns, status.st_size)
                parts.append((header, content))
                pending.append((content, os.path.dirname(path)))
    return parts, missing


def with_included(text: str, folders: Sequence[Path]) -> list[str]:
    """`text` and the texts of the headers that it includes in quotes from `folders`,
    recursively."""
    return [text, *(content for _, content in follow_includes(text, folders, quoted=True)[0])]


@lru_cache(512)
def _included(text: str) -> tuple[tuple[str, bool], ...]:
    """Each header that a text includes, and whether in quotes."""
    return tuple((match[1] or match[2], bool(match[1])) for match in _INCLUDE.finditer(text))


@lru_cache(512)  # all kernels of a GEMM include the same forty, which took 3 ms
def _read(path: str, changed: int, size: int) -> str:
    return read_source(path)
