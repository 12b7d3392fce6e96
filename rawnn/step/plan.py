"""The plan: the ordered ops of one or more steps, with their tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from rawnn.errors import ConfigError
from rawnn.losses import LOSSES
from rawnn.step import ops as _ops  # noqa: F401  (registers the kinds of ops)
from rawnn.step.joining import joined
from rawnn.step.op import OPS, Op
from rawnn.step.tensor import Role, Tensor


ASSUMED_MULTIPROCESSORS = 100
"""Of a GPU that nobody has named."""


@dataclass(frozen=True)
class Plan:
    """Ops in an order that is valid to run one by one, spanning `steps` training steps. `scale`
    is what the data set's inputs are multiplied by, `multiprocessors` how many the GPU has.

    Toggles rewrite it; runners execute it; neither changes one in place.
    """

    name: str
    tensors: Mapping[str, Tensor]
    ops: tuple[Op, ...]
    batch: int
    steps: int = 1
    scale: float = 1.0
    multiprocessors: int = ASSUMED_MULTIPROCESSORS

    def __getitem__(self, tensor: str) -> Tensor:
        return self.tensors[tensor]

    def find(self, **wanted: object) -> list[Op]:
        """The ops whose fields (`kind`, `impl`, `name`) equal the given ones, in order."""
        return [op for op in self.ops if all(getattr(op, k) == v for k, v in wanted.items())]

    def producer(self, tensor: str, before: Op) -> Op | None:
        """The last op ahead of `before` that writes `tensor`."""
        found = None
        for op in self.ops:
            if op is before:
                break
            if any(name == tensor for name, _ in op.writes):
                found = op
        return found

    def consumers(self, tensor: str) -> list[Op]:
        """The ops that read `tensor`."""
        return [op for op in self.ops if any(name == tensor for name, _ in op.reads)]

    def substitute(self, old: Iterable[Op], new: Iterable[Op] = ()) -> Plan:
        """Remove the ops `old` and put `new` where the last of them stood."""
        gone = list(old)
        last = max(i for i, op in enumerate(self.ops) if any(op is g for g in gone))
        ops: list[Op] = []
        for i, op in enumerate(self.ops):
            if not any(op is g for g in gone):
                ops.append(op)
            if i == last:
                ops.extend(new)
        return replace(self, ops=tuple(ops)).without_unused()

    def map_ops(self, change: Callable[[Op], Op]) -> Plan:
        return replace(self, ops=tuple(change(op) for op in self.ops))

    def with_tensors(self, *tensors: Tensor) -> Plan:
        return replace(self, tensors={**self.tensors, **{t.name: t for t in tensors}})

    def without_unused(self) -> Plan:
        """Drop temporaries that no op touches any more."""
        used = {name for op in self.ops for name in op.tensors}
        kept = {n: t for n, t in self.tensors.items() if n in used or not t.role.temporary}
        return replace(self, tensors=kept)

    def apart(self, prefix: str) -> Plan:
        """The same plan with temporaries of its own, their names behind `prefix`: for a plan of
        another batch beside it."""
        own = {n: prefix + n for n, t in self.tensors.items()
               if t.role.temporary or t.role is Role.SCRATCH}
        tensors = {own.get(n, n): replace(t, name=own.get(n, n)) for n, t in self.tensors.items()}
        ops = tuple(replace(op, operands={r: own.get(n, n) for r, n in op.operands.items()})
                    for op in self.ops)
        return replace(self, tensors=tensors, ops=ops)

    def without_metrics(self) -> Plan:
        """Drop the ops that do nothing but measure; one that also makes the gradient from the
        probabilities becomes the op that does only that."""
        ops = tuple(
            _only_gradient(op) for op in self.ops
            if not all(self[name].role in (Role.METRIC, Role.SCRATCH) for name, _ in op.writes)
        )
        return replace(self, ops=ops).without_unused()

    def unrolled(self, steps: int) -> Plan:
        """This one-step plan repeated for `steps` steps at offsets 0, 1, ... from the cursor.

        Batch tensors alternate between two buffers, so that the gather of one step may run beside
        the step before it. Ops of neighbouring steps that one launch can do are joined.
        """
        if self.steps != 1:
            raise ConfigError(f"the plan '{self.name}' spans {self.steps} steps already")
        tensors = dict(self.tensors)
        second: dict[str, str] = {}
        if steps > 1:
            for t in self.tensors.values():
                if t.role is Role.BATCH:
                    second[t.name] = t.name + "'"
                    tensors[t.name + "'"] = replace(t, name=t.name + "'")
        ops = joined([
            op.at_step(s, second if s % 2 else {}) for s in range(steps) for op in self.ops
        ])
        return replace(self, tensors=tensors, ops=ops, steps=steps)

    def advancing(self) -> Plan:
        """Move the cursor past the plan's steps at the end: in the last op, if that can do it on
        the side, else by an op of its own."""
        *before, last = self.ops
        if "cursor" in last.spec.optional and "cursor" in last.spec.writes \
                and "rates" not in last.operands:  # whose element the cursor says
            last = replace(last, operands={**last.operands, "cursor": "cursor"},
                           attributes={**last.attributes, "steps": self.steps})
            return replace(self, ops=(*before, last))
        return replace(self, ops=(*self.ops, advance(self.steps)))

    def check(self) -> Plan:
        """Raise ValueError unless every operand exists and everything read was written before."""
        persistent = {n for n, t in self.tensors.items() if not t.role.temporary}
        written: set[str] = set(persistent)
        for op in self.ops:
            known = {*op.spec.reads, *op.spec.writes}
            missing = [r for r in known - set(op.operands) if r not in op.spec.optional]
            if missing or not set(op.operands) <= known:
                raise ValueError(f"{op.name}: operands {sorted(op.operands)} do not fit {op.kind}")
            for role, name in op.operands.items():
                if name not in self.tensors:
                    raise ValueError(f"{op.name}: operand {role} names no tensor: {name}")
            for name, _ in op.reads:
                if name not in written:
                    raise ValueError(f"{op.name} reads {name} before anything wrote it")
            written.update(name for name, _ in op.writes)
        return self

    def __str__(self) -> str:
        head = f"plan {self.name}: batch {self.batch}, {self.steps} step(s), {len(self.ops)} ops"
        lines = [head, "tensors"]
        used = {name for op in self.ops for name in op.tensors}
        lines += [f"  {tensor}" for name, tensor in self.tensors.items() if name in used]
        lines += ["ops", *(f"  {i:>3}  {op}" for i, op in enumerate(self.ops))]
        return "\n".join(lines)


def advance(steps: int) -> Op:
    """The op that adds `steps` to the cursor."""
    return Op("advance", "advance", {"cursor": "cursor"}, {"steps": steps})


def _only_gradient(op: Op) -> Op:
    """The part of a loss op that does not measure; other ops as they are."""
    kind = _GRADIENTS.get(op.kind)
    if kind is None or not set(OPS[kind].reads) - set(OPS[kind].optional) <= set(op.operands):
        return op
    known = {*OPS[kind].reads, *OPS[kind].writes}
    operands = {role: name for role, name in op.operands.items() if role in known}
    return Op(kind, kind, operands)


_GRADIENTS = {"loss_gradient": "softmax_backward",
              **{loss.fused: loss.gradient for loss in LOSSES.values()}}
"""Op that measures and makes the gradient -> op that only makes the gradient."""
