"""A kernel family: everything rawnn knows about a group of related kernels.

A family's module stands beside its `.cu` file. It declares the ops that the kernels compute, with
NumPy references where no other kernel computes them. It also declares the GPU features they need,
the plan rewrite that uses them, and how each (kind of op, implementation) is launched. All of it is
data: no driver is loaded, so toggles can list families and runners can compile them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rawnn.common.target import Target
from rawnn.plan.op import OPS, OpSpec
from rawnn.plan.plan import Plan
from rawnn.ptx.kernel_registry import KERNELS, KernelImpl, Key


@dataclass(frozen=True)
class Fusion:
    """A plan rewrite that replaces several ops by fewer.

    `apply(plan)` returns the rewritten plan, or the reason, in words, why it stays as it is.
    `claim` is a one-line description. `fuse=-NAME` leaves the rewrite out, so a name has no hyphen.
    """

    name: str
    claim: str
    apply: Callable[[Plan], Plan | str]

    def __post_init__(self) -> None:
        assert self.name.isidentifier(), self.name


@dataclass(frozen=True)
class Family:
    """Kernels by the ops they run. `needs` are the GPU features (rawnn.common.target) that all of
    them require. `fusion` rewrites a plan to use the ones that replace several ops."""

    name: str
    summary: str
    needs: tuple[str, ...] = ()
    fusion: Fusion | None = None
    kernels: dict[Key, KernelImpl] = field(default_factory=dict)

    def __post_init__(self) -> None:
        FAMILIES[self.name] = self

    def register(self, kind: str, impl: str, kernel: KernelImpl, layout: str = "") -> None:
        """Add the kernel of (`kind`, `impl`); `layout` is that of a matrix product, such as
        "nt"."""
        key = Key(kind, impl, layout)
        self.kernels[key] = KERNELS[key] = kernel

    def fits(self, target: Target) -> str:
        """Why the family cannot run on a GPU, or ""."""
        return target.lacks(*self.needs)

    @property
    def ops(self) -> tuple[OpSpec, ...]:
        """The ops that its kernels compute, with their NumPy references."""
        return tuple(dict.fromkeys(OPS[key.kind] for key in self.kernels))

    @property
    def sources(self) -> tuple[str, ...]:
        """The `.cu` files of its kernels."""
        return tuple(dict.fromkeys(kernel.source for kernel in self.kernels.values()))


FAMILIES: dict[str, Family] = {}
"""Every imported family by name. Importing rawnn/ptx/kernels.py imports all of them."""
