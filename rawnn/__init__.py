"""rawnn: neural-network training on the raw CUDA driver, every optimization a toggle.

The public names are imported on first use, so that `import rawnn` costs little.
"""

from __future__ import annotations

import importlib
from time import perf_counter
from typing import TYPE_CHECKING, Any

from rawnn.version import __version__

IMPORTED_AT = perf_counter()
"""When this package was first imported: what a result's `imports` and `process` count from. The
process itself may be older by any amount: a shell that ended in `exec`, a notebook."""

if TYPE_CHECKING:
    from rawnn.config import Config
    from rawnn.lab import Kernel, array, empty
    from rawnn.network import Network
    from rawnn.opts import TOGGLES
    from rawnn.result import Result
    from rawnn.step import Plan
    from rawnn.training import train

_HOMES = {
    "Config": "rawnn.config",
    "Kernel": "rawnn.lab",
    "Network": "rawnn.network",
    "Plan": "rawnn.step",
    "Result": "rawnn.result",
    "TOGGLES": "rawnn.opts",
    "array": "rawnn.lab",
    "empty": "rawnn.lab",
    "train": "rawnn.training",
}

__all__ = ["TOGGLES", "Config", "Kernel", "Network", "Plan", "Result", "__version__", "array",
           "empty", "train"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'rawnn' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
