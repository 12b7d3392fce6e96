"""The NumPy reference of a kernel on the simulated GPU: from rawnn's table of kernels, of a kernel
generated for an op, or registered by a user."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rawnn.plan import plan as _plan  # noqa: F401  (registers the kinds of ops)
from rawnn.plan.op import OPS
from rawnn.ptx.kernels import KERNELS, WRITTEN, Scalars, Shape
from rawnn.ptx.user_kernels import IMPL, find_user_kernel

Reference = Callable[[SimpleNamespace, Mapping[str, Any]], None]


@dataclass(frozen=True)
class KernelReference:
    """What a kernel computes, and how it may be launched.

    layout: that of a GEMM.
    geometry: the only grid and block allowed, in any of its `variants`.
    shared: the only bytes of dynamic shared memory.
    cluster: the only number of blocks in a cluster.
    boxes: the only rows of boxes.
    sites: the instances that plans ask for with all scalars of their ops, for a kernel whose
        parameters do not include what its reference needs.
    """

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
    sites: Sequence[tuple[str, Scalars]] | None = None


SET_CONDITION = "rawnn_set_condition"
"""The kernel with which a user's graph (rawnn.lab.graph) evaluates a conditional node: whether
flag[0] is not 0."""

_registered: dict[str, KernelReference] = {
    SET_CONDITION: KernelReference(("flag",), (), {"flag": ("1",)}, lambda t, a: None)}


def register(name: str, reference: Reference, shapes: Mapping[str, Shape], *,
             reads: tuple[str, ...], writes: tuple[str, ...],
             boxes: Callable[[Scalars], Mapping[str, int]] | None = None) -> None:
    """Register a reference for the kernel `name`, which is none of rawnn's, on the simulated GPU.

    `reference(operands, scalars)` works in place on NumPy views of the operands; `shapes` and
    `boxes` are as in rawnn.ptx.kernel_registry.KernelImpl, None leaves boxes unchecked.
    """
    _registered[name] = KernelReference(reads, writes, shapes, reference, boxes=boxes)


def forget(name: str) -> None:
    """Remove the reference of a user's kernel."""
    _registered.pop(name, None)


def reference_of(source: str, name: str) -> KernelReference | None:
    """The reference of the kernel `name` in a file called `source`; rawnn's own take precedence
    over a user's of that name. None if there is none."""
    entry = find_user_kernel(source, name)
    if entry is not None:
        spec = OPS[entry.word]
        return KernelReference(spec.reads, spec.writes, entry.kernel.shapes, spec.reference,
                               spec.optional,
                               geometry=entry.kernel.geometry, shared=entry.kernel.shared,
                               cluster=entry.kernel.cluster, sites=tuple(entry.sites.values()))
    found = _of_the_table(Path(source).name, name) or _registered.get(name)
    if found is None and name in WRITTEN:
        spec, impl = WRITTEN[name]
        found = KernelReference(spec.reads, spec.writes, impl.shapes, spec.reference, spec.optional,
                        geometry=impl.geometry, shared=impl.shared, cluster=impl.cluster)
    return found


def _of_the_table(file: str, name: str) -> KernelReference | None:
    """The reference of a kernel in the present table, which users' kernels change."""
    for key, impl in reversed(KERNELS.items()):
        if impl.name == name and key.impl != IMPL and Path(impl.source).name == file:
            spec = OPS[key.kind]
            return KernelReference(
                spec.reads, spec.writes, impl.shapes, spec.reference, spec.optional, key.layout,
                impl.geometry, impl.variants, impl.boxes, impl.shared, impl.cluster,
            )
    return None
