"""What ran on the GPU and when, by CUPTI through `cupti-python`, where that is installed; and
ranges for NVIDIA's own tools through `nvtx`. Without the packages nothing else changes.

Source: the CUPTI activity API (`cuptiActivityRegisterCallbacks`), cupti-python 13.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rawnn.common.errors import MissingLibrary

PACKAGE = "cupti-python"
BUFFER = 8 << 20
KINDS = ("CONCURRENT_KERNEL", "MEMCPY", "MEMSET")
"""Activities that are asked for; copies and fills have no name of their own."""


@dataclass(frozen=True)
class Activity:
    """A kernel, copy or fill: its (mangled) name, and nanoseconds of the GPU's clock."""

    name: str
    start: int
    end: int


def missing() -> str:
    """Why CUPTI cannot be asked; "" where it can."""
    try:
        importlib.import_module("cupti.cupti")
    except Exception as error:  # no package, or its library does not load
        return f"{PACKAGE} cannot be imported ({error})"
    return ""


def activities(run: Callable[[], None]) -> list[Activity]:
    """What ran on the GPU while `run`, which waits for it, was under way, by its start.

    Raises MissingLibrary without CUPTI, or where it refuses: another profiler may hold it.
    """
    if reason := missing():
        raise MissingLibrary(f"{reason}: pip install {PACKAGE}")
    cupti: Any = importlib.import_module("cupti.cupti")
    found: list[Activity] = []

    def completed(records: list[Any]) -> None:
        for record in records:
            name = str(getattr(record, "name", "") or type(record).__name__)
            found.append(Activity(name, int(record.start), int(record.end)))

    kinds = [getattr(cupti.ActivityKind, kind) for kind in KINDS]
    try:
        cupti.activity_register_callbacks(lambda: (BUFFER, 0), completed)
        for kind in kinds:
            cupti.activity_enable(kind)
    except Exception as error:
        raise MissingLibrary(f"CUPTI does not work here: {error}") from None
    try:
        run()
    finally:
        cupti.activity_flush_all(1)
        for kind in kinds:
            cupti.activity_disable(kind)
    return sorted(found, key=lambda activity: activity.start)


def ranges() -> Callable[[str], Any]:
    """`with ranges()("name"):` shows in NVIDIA's tools what the host is at; nothing without the
    package nvtx."""
    try:
        nvtx: Any = importlib.import_module("nvtx")
    except Exception:  # not installed, or broken
        return _nothing
    return lambda name: nvtx.annotate(name, domain="rawnn")


@contextmanager
def _nothing(name: str) -> Iterator[None]:
    yield
