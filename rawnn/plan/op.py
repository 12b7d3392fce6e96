"""An op of the plan, and the registry of what each kind of op reads, writes and computes.

An op names its operands by role (`z`, `p`, `dz`, ...). These are also the names of the kernels'
pointer parameters in the .cu files. Reads and writes of an op follow from its kind, and edges
follow from these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

from rawnn.plan.tensor import Role, Tensor

Attributes = Mapping[str, Any]
Reference = Callable[[SimpleNamespace, Attributes], None]

Access = tuple[str, range | None]
"""A tensor (for a view its source), and the slots of it that are used: None means all of it, a
range the elements of a metric at those offsets from the cursor."""


AFTER = "after"
"""The attribute that names an op which is to run first: a control dependency, beside those that
follow from reads and writes."""


@dataclass(frozen=True)
class OpSpec:
    """Properties of all ops of one kind.

    reads, writes: operand names.
    slotted: operands of which an op uses only the elements at its own steps.
    optional: operands that an op may leave out.
    reference(operands, attributes): computes the op with NumPy, in place, in the float type of the
        operands.
    unmeasured: for an op that also measures, the kind that does the rest alone.
    of(op): if operands vary from op to op, the properties of that op.
    """

    kind: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    reference: Reference
    slotted: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    unmeasured: str = ""
    summary: str = ""
    of: Callable[[Op], OpSpec] | None = None


OPS: dict[str, OpSpec] = {}


def define(
    kind: str,
    *,
    reads: tuple[str, ...],
    writes: tuple[str, ...],
    slotted: tuple[str, ...] = (),
    optional: tuple[str, ...] = (),
    unmeasured: str = "",
) -> Callable[[Reference], Reference]:
    """Register a NumPy reference as the definition of the op `kind`."""

    def register(reference: Reference) -> Reference:
        summary = (reference.__doc__ or "").strip().split("\n")[0]
        OPS[kind] = OpSpec(kind, reads, writes, reference, slotted, optional, unmeasured,
                           summary)
        return reference

    return register


@dataclass(frozen=True)
class Op:
    """One operation of a plan.

    impl: which code runs it ("naive", "tiled", "mma", "cublas", "cudnn", "fused", "memcpy").
    operands: operand names -> tensor names.
    attributes: everything static: sizes, learning rate, the `offset` of its step from the cursor,
        the `span` of steps if it does several.
    origin: in an unrolled plan, the op's name in the plan of one step; "" if it is unchanged.
    views: operands that are views -> the tensors in whose memory they are.
    """

    kind: str
    name: str
    operands: Mapping[str, str]
    attributes: Attributes = field(default_factory=dict)
    impl: str = "naive"
    origin: str = ""
    views: Mapping[str, str] = field(default_factory=dict)

    @property
    def own_name(self) -> str:
        """Its name in the plan of one step."""
        return self.origin or self.name

    @cached_property
    def recurrence(self) -> tuple[str, ...]:
        """What the copies of this op in an unrolled plan have in common if their commands differ in
        the offset alone: the name in the plan of one step, and the tensors."""
        return self.own_name, *self.operands.values()

    @property
    def spec(self) -> OpSpec:
        spec = OPS[self.kind]
        return spec.of(self) if spec.of else spec

    @cached_property
    def reads(self) -> tuple[Access, ...]:
        spec = self.spec
        names = spec.reads
        if self.attributes.get("beta", 0.0) != 0.0:  # a GEMM that accumulates reads its output
            names = (*names, "c")
        return self._accesses(spec, names)

    @cached_property
    def writes(self) -> tuple[Access, ...]:
        spec = self.spec
        return self._accesses(spec, spec.writes)

    def _accesses(self, spec: OpSpec, names: tuple[str, ...]) -> tuple[Access, ...]:
        return tuple(
            (self.views.get(self.operands[name], self.operands[name]),
             self.slots if name in spec.slotted else None)
            for name in names
            if name in self.operands
        )

    def viewing(self, tensors: Mapping[str, Tensor]) -> Op:
        """This op with the sources of those of its operands that are views in `tensors`."""
        made = [tensors[name] for name in self.tensors if name in tensors]
        return replace(self, views={t.name: t.source for t in made if t.role is Role.VIEW})

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of all tensors that the op uses, each once."""
        return tuple(dict.fromkeys(self.operands.values()))

    def at_step(self, offset: int, rename: Mapping[str, str]) -> Op:
        """This op `offset` steps later, with some tensors replaced by others."""
        attributes = self.attributes
        if "offset" in attributes:
            attributes = {**attributes, "offset": attributes["offset"] + offset}
        operands = self.operands
        if not rename.keys().isdisjoint(operands.values()):
            operands = {role: rename.get(name, name) for role, name in operands.items()}
        return Op(self.kind, f"{self.own_name}@{offset}", operands, attributes, self.impl,
                  self.own_name, self.views)

    @property
    def offset(self) -> int:
        """Steps between the cursor and the (first) step this op works on."""
        return int(self.attributes.get("offset", 0))

    @property
    def slots(self) -> range:
        """The steps this op works on, counted from the cursor."""
        return range(self.offset, self.offset + int(self.attributes.get("span", 1)))

    def __str__(self) -> str:
        def words(accesses: tuple[Access, ...]) -> str:
            return ", ".join(n if s is None else f"{n}[{_slots(s)}]" for n, s in accesses) or "-"

        static = ", ".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}"
                           for k, v in self.attributes.items()
                           if isinstance(v, (bool, int, float, str)))
        return (f"{self.name:<24} {self.kind}/{self.impl:<8} reads {words(self.reads)}; "
                f"writes {words(self.writes)}" + (f"  [{static}]" if static else ""))


def _slots(slots: range) -> str:
    """Text such as "cursor+2", or "cursor+2 to cursor+5" for four steps."""
    first = f"cursor+{slots.start}"
    return first if len(slots) == 1 else f"{first} to cursor+{slots.stop - 1}"
