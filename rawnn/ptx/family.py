"""A kernel family: all that is to be known of kernels that belong together, in one place.

A family's module stands beside its `.cu`. It says which ops the kernels compute (with their NumPy
references, where no other kernel computes them), what a GPU must have, where in a plan they take
other ops' place, and for each (kind of op, implementation) how it is launched. All of it is data:
no driver is loaded, so that toggles can list families, and runners compile them.
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
    """Ops of a plan that become fewer.

    `apply(plan)` is the plan rewritten, or in words why it stays as it is. `claim` is one line.
    The name has no hyphen: fuse=-NAME leaves it out.
    """

    name: str
    claim: str
    apply: Callable[[Plan], Plan | str]

    def __post_init__(self) -> None:
        assert self.name.isidentifier(), self.name


@dataclass(frozen=True)
class Family:
    """Kernels by the ops that they run; `needs` are features of a GPU (rawnn.common.target) that
    all of them are made for; `fusion` is what they do that other kernels need several for."""

    name: str
    summary: str
    needs: tuple[str, ...] = ()
    fusion: Fusion | None = None
    kernels: dict[Key, KernelImpl] = field(default_factory=dict)

    def __post_init__(self) -> None:
        FAMILIES[self.name] = self

    def register(self, kind: str, impl: str, kernel: KernelImpl, layout: str = "") -> None:
        """Add the kernel of an implementation of a kind of op; `layout` is that of a product."""
        key = Key(kind, impl, layout)
        self.kernels[key] = KERNELS[key] = kernel

    def fits(self, target: Target) -> str:
        """Why it cannot run on a GPU; "" where it can."""
        return target.lacks(*self.needs)

    @property
    def ops(self) -> tuple[OpSpec, ...]:
        """What its kernels compute, with the references in NumPy."""
        return tuple(dict.fromkeys(OPS[key.kind] for key in self.kernels))

    @property
    def sources(self) -> tuple[str, ...]:
        """The `.cu` files that they are in."""
        return tuple(dict.fromkeys(kernel.source for kernel in self.kernels.values()))


FAMILIES: dict[str, Family] = {}
"""Every family, by name, once its module is imported (rawnn/ptx/kernels.py imports all)."""
