"""What tests of many networks share."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from rawnn.persistent.problem import Unsupported


@pytest.fixture
def unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU on which no kernel trains members at once."""
    module = ModuleType("rawnn.many.gpu")

    def refuse(*arguments: Any, **named: Any) -> None:
        raise Unsupported("does not fit the chip", "leave persistent out")

    module.GpuMembers = refuse  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "rawnn.many.gpu", module)
