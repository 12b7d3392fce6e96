"""Detects whether a user's function, which runs in this process, has replaced a clock, a comparison
or a statistic that measures or checks it."""

from __future__ import annotations

import time
from importlib import import_module
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np

from rawnn.common.errors import RawnnError

_MODULES = ("rawnn.bench.statistics", "rawnn.cuda.errors", "rawnn.cuda.stream",
            "rawnn.lab.checking", "rawnn.lab.comparison", "rawnn.lab.red_zones",
            "rawnn.lab.measuring", "rawnn.lab.kernel_problem", "rawnn.lab.candidate_runner",
            "rawnn.lab.timing")
_NUMPY = ("abs", "argmin", "array_equal", "dot", "flatnonzero", "isfinite", "isnan", "maximum",
          "median", "quantile", "where")


class Refused(RawnnError):
    """A time that cannot be true; the message says why."""


def _functions() -> dict[str, Any]:
    """The functions that measure and check, by name."""
    found: dict[str, Any] = {f"numpy.{name}": getattr(np, name) for name in _NUMPY}
    found["time.perf_counter"] = time.perf_counter
    for module in map(import_module, _MODULES):
        for name, value in vars(module).items():
            if isinstance(value, FunctionType | BuiltinFunctionType | type):
                found[f"{module.__name__}.{name}"] = value
            if isinstance(value, type) and value.__module__ == module.__name__:
                found |= {f"{module.__name__}.{name}.{inner}": function
                          for inner, function in vars(value).items() if callable(function)}
    return found


class Integrity:
    """The functions that measure and check, as they are at construction."""

    def __init__(self) -> None:
        self._before = _functions()

    def replaced(self) -> list[str]:
        """Names of the functions that have been replaced."""
        now = _functions()
        return [name for name, function in self._before.items() if now.get(name) is not function]

    def require(self) -> None:
        """Raise Refused if any has been replaced."""
        names = self.replaced()
        if names:
            raise Refused(f"what was measured replaced {', '.join(names[:3])}"
                          + (f" and {len(names) - 3} more" if len(names) > 3 else "")
                          + ": neither its times nor its results can be believed")
