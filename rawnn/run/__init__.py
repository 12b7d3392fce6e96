"""A run: what is asked for, how it goes, and what is kept of it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rawnn.run import export as export
else:  # to which it would say that every name exists

    def __getattr__(name: str) -> Any:
        if name == "export":
            return importlib.import_module("rawnn.run.export")
        raise AttributeError(f"module 'rawnn.run' has no attribute '{name}'")
