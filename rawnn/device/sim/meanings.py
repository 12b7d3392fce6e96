"""Which NumPy reference a kernel has on the simulated GPU: that of rawnn's table of kernels, of a
kernel written for an op, or what a user registered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rawnn.ptx.kernels import KERNELS, WRITTEN, Scalars, Shape
from rawnn.step import plan as _plan  # noqa: F401  (registers the kinds of ops)
from rawnn.step.op import OPS

Reference = Callable[[SimpleNamespace, Mapping[str, Any]], None]


@dataclass(frozen=True)
class Meaning:
    """What a kernel computes. `layout` is that of a product; `geometry`, where given, is the only
    grid and block allowed, in any of its `variants`, `shared` the only bytes of dynamic shared
    memory, `cluster` the only blocks of a cluster; `boxes` the only rows of boxes."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    shapes: Mapping[str, Shape]
    reference: Reference
    optional: tuple[str, ...] = ()
    layout: str = ""
    geometry: Callable[[Scalars], Any] | None = None
    variants: Callable[[Scalars], int] = lambda scalars: 1
    boxes: Callable[[Scalars], Mapping[str, int]] | None = None
    shared: Callable[[Scalars], int] | None = None
    cluster: Callable[[Scalars], int] | None = None


_registered: dict[str, Meaning] = {}


def register(name: str, reference: Reference, shapes: Mapping[str, Shape], *,
             reads: tuple[str, ...], writes: tuple[str, ...],
             boxes: Callable[[Scalars], Mapping[str, int]] | None = None) -> None:
    """Give the kernel `name`, which is none of rawnn's own, a meaning on the simulated GPU.

    `reference(operands, scalars)` works in place on NumPy views of the operands; `shapes` and
    `boxes` are as in rawnn.ptx.table.KernelImpl, None leaves boxes unchecked.
    """
    _registered[name] = Meaning(reads, writes, shapes, reference, boxes=boxes)


def meaning_of(source: str, name: str) -> Meaning | None:
    """Of the kernel `name` in a file called `source`: rawnn's own before a user's of that name.
    None for one that nobody gave a meaning."""
    if len(_by_name()) < len({(impl.source, impl.name) for impl in KERNELS.values()}):
        _by_name.cache_clear()  # a family was registered since
    found = _by_name().get((Path(source).name, name)) or _registered.get(name)
    if found is None and name in WRITTEN:
        spec, impl = WRITTEN[name]
        found = Meaning(spec.reads, spec.writes, impl.shapes, spec.reference, spec.optional,
                        geometry=impl.geometry)
    return found


@cache
def _by_name() -> dict[tuple[str, str], Meaning]:
    """(source file, kernel) -> meaning, for every kernel of the table."""
    found: dict[tuple[str, str], Meaning] = {}
    for key, impl in KERNELS.items():
        spec = OPS[key.kind]
        found[Path(impl.source).name, impl.name] = Meaning(
            spec.reads, spec.writes, impl.shapes, spec.reference, spec.optional, key.layout,
            impl.geometry, impl.variants, impl.boxes, impl.shared, impl.cluster,
        )
    return found
