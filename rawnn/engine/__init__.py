"""From a configuration to a result: options are resolved, the run executes, its state is stored."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rawnn.engine import export as export
    from rawnn.engine import result as result
else:  # for a type checker every name would exist

    def __getattr__(name: str) -> Any:
        if name in ("export", "result"):
            return importlib.import_module(f"rawnn.engine.{name}")
        raise AttributeError(f"module 'rawnn.engine' has no attribute '{name}'")
