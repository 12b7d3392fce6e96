"""What CUDA C text includes: which files, and their texts, each read once until it changes."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)', re.MULTILINE)


def follow_includes(text: str, paths: Sequence[Path], *,
                    quoted: bool = False) -> tuple[list[tuple[str, str]], list[str]]:
    """(name and content of every file that `text` includes, directly or not, and that is found in
    `paths`; names of those that are not). With `quoted` those in angle brackets, CUDA's, are left
    out."""
    parts: list[tuple[str, str]] = []
    missing: list[str] = []
    seen: set[tuple[int, int]] = set()
    folders = [os.fspath(path) for path in paths]
    pending: list[tuple[str, str | None]] = [(text, None)]
    while pending:
        current, folder = pending.pop()
        for header, in_quotes in _included(current):
            if quoted and not in_quotes:
                continue
            # A quoted include is looked for beside the file that has it before the -I folders.
            beside = [folder] if in_quotes and folder is not None else []
            path = next((path for each in (*beside, *folders)
                         if os.path.isfile(path := os.path.join(each, header))), None)
            if path is None:
                missing.append(header)
                continue
            status = os.stat(path)
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                content = _read(path, status.st_mtime_ns, status.st_size)
                parts.append((header, content))
                pending.append((content, os.path.dirname(path)))
    return parts, missing


def with_included(text: str, folders: Sequence[Path]) -> list[str]:
    """`text`, and those of the headers that it includes in quotes, and these in turn, where one of
    `folders` has them."""
    return [text, *(content for _, content in follow_includes(text, folders, quoted=True)[0])]


@lru_cache(512)
def _included(text: str) -> tuple[tuple[str, bool], ...]:
    """Each header that a text names, and whether it stands in quotes."""
    return tuple((match[1] or match[2], bool(match[1])) for match in _INCLUDE.finditer(text))


@lru_cache(512)  # for every kernel of a product the same forty, which took 3 ms
def _read(path: str, changed: int, size: int) -> str:
    return Path(path).read_text(errors="replace")
