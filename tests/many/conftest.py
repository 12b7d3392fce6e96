"""What tests of many networks share."""

from __future__ import annotations

from typing import Any

import pytest

from rawnn.persistent.problem import Unsupported


@pytest.fixture
def unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU on which no kernel trains members at once."""
    def refuse(*arguments: Any, **named: Any) -> None:
        raise Unsupported("does not fit the chip", "leave persistent out")

    monkeypatch.setattr("rawnn.many.launches.kind_of", refuse)
