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
"""When this package was first imported: a result's `imports` and `process` count from here. The
process itself may be older: a shell that ended in `exec`, a notebook."""

if not os.path.isdir(os.path.join(os.path.dirname(__file__), "ptx")):
    raise ImportError("rawnn reads its kernels' sources as files beside its code, which a zip "
                      "archive has not: install the wheel with pip, or unpack it")

if TYPE_CHECKING:
    from rawnn import engine as engine
    from rawnn import errors as errors
    from rawnn import export as export
    from rawnn import lab as lab
    from rawnn import sim as sim
    from rawnn.common.listener import Listener
    from rawnn.data import Dataset, from_arrays, load_dataset
    from rawnn.engine.callbacks import Checkpoints, CsvLog, EarlyStopping
    from rawnn.engine.config import Config
    from rawnn.engine.model import Model
    from rawnn.engine.result import Result
    from rawnn.engine.training import train
    from rawnn.lab import Kernel, array, check, empty, sanitize, sweep, tensor_map, time
    from rawnn.lab.graph import Graph
    from rawnn.lab.plug import impl
    from rawnn.many.ensemble import Ensemble
    from rawnn.many.result import Many
    from rawnn.many.search import search
    from rawnn.many.spaces import int_uniform, log_uniform, uniform
    from rawnn.many.training import train_many
    from rawnn.model.layers import Network
    from rawnn.opts import TOGGLES
    from rawnn.plan import Plan

_HOMES = {
    "Checkpoints": "rawnn.engine.callbacks",
    "Config": "rawnn.engine.config",
    "CsvLog": "rawnn.engine.callbacks",
    "Dataset": "rawnn.data",
    "EarlyStopping": "rawnn.engine.callbacks",
    "Ensemble": "rawnn.many.ensemble",
    "Graph": "rawnn.lab.graph",
    "Kernel": "rawnn.lab",
    "Listener": "rawnn.common.listener",
    "Many": "rawnn.many.result",
    "Model": "rawnn.engine.model",
    "Network": "rawnn.model.layers",
    "Plan": "rawnn.plan",
    "Result": "rawnn.engine.result",
    "TOGGLES": "rawnn.opts",
    "array": "rawnn.lab",
    "check": "rawnn.lab",
    "empty": "rawnn.lab",
    "from_arrays": "rawnn.data",
    "impl": "rawnn.lab.plug",
    "int_uniform": "rawnn.many.spaces",
    "load_dataset": "rawnn.data",
    "log_uniform": "rawnn.many.spaces",
    "sanitize": "rawnn.lab",
    "search": "rawnn.many.search",
    "sweep": "rawnn.lab",
    "tensor_map": "rawnn.lab",
    "time": "rawnn.lab",
    "train": "rawnn.engine.training",
    "train_many": "rawnn.many.training",
    "uniform": "rawnn.many.spaces",
}

__all__ = ["TOGGLES", "Checkpoints", "Config", "CsvLog", "Dataset", "EarlyStopping", "Ensemble",
           "Graph", "Kernel", "Listener", "Many", "Model", "Network", "Plan", "Result",
           "__version__", "array", "check", "empty", "from_arrays", "impl", "int_uniform",
           "load_dataset", "log_uniform", "sanitize", "search", "sweep", "tensor_map", "time",
           "train", "train_many", "uniform"]


_MODULES = {"errors": "rawnn.errors", "export": "rawnn.export", "lab": "rawnn.lab",
            "run": "rawnn.engine", "sim": "rawnn.sim"}
"""Submodules that are reachable as attributes, such as `rawnn.lab`, without an import."""


if not TYPE_CHECKING:  # for a type checker every name would exist

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(_MODULES[name])
        if name in _HOMES:
            return getattr(importlib.import_module(_HOMES[name]), name)
        raise AttributeError(f"module 'rawnn' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
