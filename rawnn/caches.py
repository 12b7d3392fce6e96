"""Where rawnn keeps what it can make or fetch again: compiled kernels, data sets, references."""

from __future__ import annotations

import os
from pathlib import Path

ENVIRONMENT = "RAWNN_CACHE"


def cache_directory() -> Path:
    """`$RAWNN_CACHE` where that is set, else the user's cache directory (`~/.cache/rawnn` on
    Linux). It need not exist."""
    root = os.environ.get(ENVIRONMENT)
    if root:
        return Path(root).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("rawnn", appauthor=False))
