"""A run: what is asked for, how it goes, and what is kept of it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rawnn.engine import export as export
else:  # to which it would say that every name exists

    def __getattr__(name: str) -> Any:
        if name == "export":
            return importlib.import_module("rawnn.engine.export")
        raise AttributeError(f"module 'rawnn.engine' has no attribute '{name}'")
