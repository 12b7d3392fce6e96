"""rawnn: neural-network training on the raw CUDA driver, every optimization a toggle.

The public names are imported on first use, so that `import rawnn` costs little.
"""

from __future__ import annotations

import importlib
import os.path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from rawnn.version import __version__

IMPORTED_AT = perf_counter()
"""When this package was first imported: what a result's `imports` and `process` count from. The
process itself may be older by any amount: a shell that ended in `exec`, a notebook."""

if not os.path.isdir(os.path.join(os.path.dirname(__file__), "ptx")):
    raise ImportError("rawnn reads its kernels' sources as files beside its code, which a zip "
                      "archive has not: install the wheel with pip, or unpack it")

if TYPE_CHECKING:
    from rawnn import errors as errors
    from rawnn import lab as lab
    from rawnn import run as run
    from rawnn.data import Dataset, from_arrays, load_dataset
    from rawnn.device import sim as sim
    from rawnn.lab import Kernel, array, check, empty, sanitize, sweep, tensor_map, time
    from rawnn.lab.graph import Graph
    from rawnn.lab.plug import impl
    from rawnn.network.layers import Network
    from rawnn.opts import TOGGLES
    from rawnn.run import export as export
    from rawnn.run.callbacks import Checkpoints, CsvLog, EarlyStopping
    from rawnn.run.config import Config
    from rawnn.run.listener import Listener
    from rawnn.run.model import Model
    from rawnn.run.result import Result
    from rawnn.run.training import train
    from rawnn.step import Plan

_HOMES = {
    "Checkpoints": "rawnn.run.callbacks",
    "Config": "rawnn.run.config",
    "CsvLog": "rawnn.run.callbacks",
    "Dataset": "rawnn.data",
    "EarlyStopping": "rawnn.run.callbacks",
    "Graph": "rawnn.lab.graph",
    "Kernel": "rawnn.lab",
    "Listener": "rawnn.run.listener",
    "Model": "rawnn.run.model",
    "Network": "rawnn.network.layers",
    "Plan": "rawnn.step",
    "Result": "rawnn.run.result",
    "TOGGLES": "rawnn.opts",
    "array": "rawnn.lab",
    "check": "rawnn.lab",
    "empty": "rawnn.lab",
    "from_arrays": "rawnn.data",
    "impl": "rawnn.lab.plug",
    "load_dataset": "rawnn.data",
    "sanitize": "rawnn.lab",
    "sweep": "rawnn.lab",
    "tensor_map": "rawnn.lab",
    "time": "rawnn.lab",
    "train": "rawnn.run.training",
}

__all__ = ["TOGGLES", "Checkpoints", "Config", "CsvLog", "Dataset", "EarlyStopping", "Graph",
           "Kernel", "Listener", "Model", "Network", "Plan", "Result", "__version__", "array",
           "check", "empty", "from_arrays", "impl", "load_dataset", "sanitize", "sweep",
           "tensor_map", "time", "train"]


_MODULES = {"errors": "rawnn.errors", "export": "rawnn.run.export", "lab": "rawnn.lab",
            "run": "rawnn.run", "sim": "rawnn.device.sim"}
"""That can be reached as `rawnn.lab` without an import of their own."""


if not TYPE_CHECKING:  # to which it would say that every name exists

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(_MODULES[name])
        if name in _HOMES:
            return getattr(importlib.import_module(_HOMES[name]), name)
        raise AttributeError(f"module 'rawnn' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
