"""The plan: the ordered ops of one or more steps, with their tensors."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from rawnn.common.errors import ConfigError
from rawnn.common.target import HOST, Target
from rawnn.common.words import counted
from rawnn.plan import ops as _ops  # noqa: F401  (registers the kinds of ops)
from rawnn.plan.merging import DEFERRED, DEFERS, SPANS, defer_updates, merge_neighbours, spans
from rawnn.plan.op import OPS, Access, Op
from rawnn.plan.tensor import Role, Tensor

WITHOUT_TENSOR_CORES = ("naive", "tiled")
"""Implementations of GEMMs."""


@dataclass(frozen=True)
class Plan:
    """Ops in an order that is valid to run one by one, spanning `steps` training steps. `scale`
    is what the data set's inputs are multiplied by, `target` the GPU that the plan is for.
    `user_kernels` are the user's kernels that take the place of ops (rawnn.ptx.user_kernels). Of
    `world_size` ranks that share each batch, this one is number `rank`, and its examples are
    `weight` of it.

    Toggles rewrite it; runners execute it; neither changes one in place. What `find`, `producer`
    and `consumers` ask for is indexed once a plan: a rewrite that asks for each layer, and then
    substitutes all it found at once, takes time in proportion to the depth.

    Parameters
    ----------
    name
        what the plan does
    tensors
        by name: shape, type, role
    ops
        in their order
    batch
        examples a step of this rank
    world_size, rank, weight
        ranks that share a batch, the number of this one, its share of the examples
    """

    name: str
    tensors: Mapping[str, Tensor]
    ops: tuple[Op, ...]
    batch: int
    steps: int = 1
    scale: float = 1.0
    target: Target = HOST
    user_kernels: tuple[str, ...] = ()
    world_size: int = 1
    rank: int = 0
    weight: float = 1.0

    def __getitem__(self, tensor: str) -> Tensor:
        return self.tensors[tensor]

    @cached_property
    def _places(self) -> dict[int, int]:
        """The position of each op, by its identity."""
        return {id(op): i for i, op in enumerate(self.ops)}

    @cached_property
    def _kinds(self) -> dict[str, list[Op]]:
        found: dict[str, list[Op]] = {}
        for op in self.ops:
            found.setdefault(op.kind, []).append(op)
        return found

    @cached_property
    def _writers(self) -> dict[str, list[int]]:
        """By tensor the positions of the ops that write it, ascending."""
        return self._touching(lambda op: op.writes)

    @cached_property
    def _readers(self) -> dict[str, list[int]]:
        return self._touching(lambda op: op.reads)

    def _touching(self, accesses: Callable[[Op], tuple[Access, ...]]) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for i, op in enumerate(self.ops):
            for name, _ in accesses(op):
                places = found.setdefault(name, [])
                if not places or places[-1] != i:
                    places.append(i)
        return found

    def find(self, *, kind: str | None = None, **wanted: object) -> list[Op]:
        """The ops whose fields (`kind`, `impl`, `name`) equal the given ones, in order."""
        return [op for op in (self.ops if kind is None else self._kinds.get(kind, ()))
                if all(getattr(op, k) == v for k, v in wanted.items())]

    def producer(self, tensor: str, before: Op) -> Op | None:
        """The last op before `before` that writes `tensor`."""
        places = self._writers.get(tensor, [])
        ahead = bisect_left(places, self._places[id(before)])
        return self.ops[places[ahead - 1]] if ahead else None

    def consumers(self, tensor: str, kind: str | None = None) -> list[Op]:
        """The ops that read `tensor`, optionally of one kind."""
        found = (self.ops[i] for i in self._readers.get(tensor, ()))
        return [op for op in found if kind is None or op.kind == kind]

    def substitute(self, old: Iterable[Op], new: Iterable[Op] = ()) -> Plan:
        """Remove the ops `old` and put `new` in the place of the last of them."""
        return self.substitute_all([(old, new)])

    def substitute_all(self, changes: Iterable[tuple[Iterable[Op], Iterable[Op]]]) -> Plan:
        """For each (old, new) of `changes`, which share no op: remove the ops `old` and put `new`
        in the place of the last of them."""
        removed: set[int] = set()
        replacements: dict[int, tuple[Op, ...]] = {}
        for old, new in changes:
            places = {self._places[id(op)] for op in old}
            removed |= places
            replacements[max(places)] = tuple(new)
        if not removed:
            return self
        ops: list[Op] = []
        for i, op in enumerate(self.ops):
            if i not in removed:
                ops.append(op)
            ops += replacements.get(i, ())
        return replace(self, ops=tuple(ops)).without_unused()

    def map_ops(self, change: Callable[[Op], Op]) -> Plan:
        return replace(self, ops=tuple(change(op) for op in self.ops))

    def with_tensors(self, *tensors: Tensor) -> Plan:
        return replace(self, tensors={**self.tensors, **{t.name: t for t in tensors}})

    def storage_of(self, name: str) -> str:
        """The tensor in whose memory this one is: itself, or the source of a view."""
        return self[name].source if self[name].role is Role.VIEW else name

    def without_unused(self) -> Plan:
        """Drop temporaries that no op uses."""
        used = {name for op in self.ops for name in op.operands.values()}
        remaining = {n: t for n, t in self.tensors.items() if n in used or not t.role.temporary}
        return replace(self, tensors=remaining)

    def with_own_temporaries(self, prefix: str) -> Plan:
        """The same plan with temporaries of its own, whose names get `prefix`: for a plan of
        another batch size in the same run."""
        own = {n: prefix + n for n, t in self.tensors.items()
               if self[self.storage_of(n)].role.temporary or t.role is Role.SCRATCH}
        tensors = {own.get(n, n): replace(t, name=own.get(n, n), source=own.get(t.source, t.source))
                   for n, t in self.tensors.items()}
        ops = tuple(replace(op, operands={r: own.get(n, n) for r, n in op.operands.items()},
                            views={own.get(v, v): own.get(n, n) for v, n in op.views.items()})
                    for op in self.ops)
        return replace(self, tensors=tensors, ops=ops)

    def without_metrics(self) -> Plan:
        """Drop the ops that only measure. An op that also computes the gradient from the
        probabilities is replaced by one that does only that."""
        ops = tuple(
            _only_gradient(op) for op in self.ops
            if not all(self[name].role in (Role.METRIC, Role.SCRATCH) for name, _ in op.writes)
        )
        return replace(self, ops=ops).without_unused()

    def unrolled(self, steps: int) -> Plan:
        """This one-step plan repeated for `steps` steps at offsets 0, 1, ... from the cursor.

        Batch tensors alternate between two buffers, so that a step's gather may overlap with the
        step before it. So do the results of ops that read only the batch, which then need not wait
        for the updates that read the previous ones. If updates of several steps are deferred, what
        they read has a buffer for each of them and one more. Neighbouring ops of two steps are
        merged if one launch can do both, and so are updates with the next GEMM of their layer; an
        op that is the complete step does all of them; deferred ops run once, in the last step.
        """
        if self.steps != 1:
            raise ConfigError(f"the plan '{self.name}' spans {self.steps} steps already")
        if spans(self):
            merged = SPANS[self.ops[0].kind](self.ops[0], steps)
            return replace(self, ops=(merged,), steps=steps)
        tensors = dict(self.tensors)
        deferring = [op for op in self.ops if DEFERS in op.attributes]
        names = dict.fromkeys((*self.alternating(), *(
            op.operands[role] for op in deferring for role in ("dz", "x"))))
        count = max((op.attributes[DEFERS] for op in deferring), default=1) + 1
        buffers = [{name: name + i * "'" for name in names} if i else {}
                   for i in range(min(count, steps))]
        for each in buffers[1:]:
            tensors |= {new: replace(self[name], name=new) for name, new in each.items()}
        ops = merge_neighbours([
            DEFERRED[op.kind](op, steps) if op.kind in DEFERRED
            else op.at_step(s, buffers[s % count])
            for s in range(steps) for op in self.ops
            if op.kind not in DEFERRED or s == steps - 1
        ])
        if deferring:
            ops = defer_updates(replace(self, tensors=tensors), ops)
        return replace(self, tensors=tensors, ops=ops, steps=steps)

    def alternating(self) -> list[str]:
        """The tensors that alternate between steps: batches, and activations that ops compute from
        batches alone. Results of GEMMs without tensor cores do not alternate. Their many blocks
        keep all load units busy, so that an update concurrent with the next step's first GEMM takes
        longer than before it (epochs in bfloat16 with `streams` and `pdl`: by 20 and 57 % of
        784-784-784-784-784-10 and 784-1024-1024-1024-10, `tiled` by 26 %; H200)."""
        batch = {n for n, t in self.tensors.items() if t.role is Role.BATCH}
        passing = {n for n, t in self.tensors.items() if t.role.temporary} - batch
        made = {name for op in self.ops if op.impl not in WITHOUT_TENSOR_CORES
                for name, _ in op.writes
                if self[name].role is Role.ACTIVATION and self.consumers(name)
                and not batch.isdisjoint(read := {n for n, _ in op.reads})
                and passing.isdisjoint(read)}
        return [name for name in self.tensors if name in batch | made]

    def advancing(self) -> Plan:
        """Move the cursor past the plan's steps at the end: in the last op if it supports that,
        else by an op of its own."""
        *before, last = self.ops
        if "cursor" in last.spec.optional and "cursor" in last.spec.writes \
                and "rates" not in last.operands:  # whose element depends on the cursor
            last = replace(last, operands={**last.operands, "cursor": "cursor"},
                           attributes={**last.attributes, "steps": self.steps})
            return replace(self, ops=(*before, last))
        return replace(self, ops=(*self.ops, advance(self.steps)))

    def check(self) -> Plan:
        """Raise ValueError unless every operand exists, everything read was written before, and
        every copy of a parameter is up to date: no op after one that writes the parameter, in this
        step or the next, reads the copy before it is written, too."""
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
                if op.views.get(name, name) != self.storage_of(name):
                    raise ValueError(f"{op.name}: operand {role} is a view of "
                                     f"{self.storage_of(name)}, which the op does not say")
            for name, _ in op.reads:
                if name not in written:
                    raise ValueError(f"{op.name} reads {name} before anything wrote it")
            written.update(name for name, _ in op.writes)
        self._check_copies()
        return self

    def _check_copies(self) -> None:
        copies: dict[str, list[str]] = {}
        for t in self.tensors.values():
            if t.role is Role.COPY:
                copies.setdefault(t.source, []).append(t.name)
        if not copies:
            return
        stale: dict[str, str] = {}
        for op in (*self.ops, *self.ops):  # the next step reads what one step leaves
            for name, _ in op.reads:
                if name in stale:
                    raise ValueError(f"{op.name} reads {name}, which nothing writes behind "
                                     f"{stale[name]}: that changes {self[name].source} alone")
            written = {name for name, _ in op.writes}
            for name in written:
                stale.pop(name, None)
                stale.update({copy: op.name for copy in copies.get(name, ())
                              if copy not in written})

    def __str__(self) -> str:
        head = f"plan {self.name}: batch {self.batch}, {counted(self.steps, 'step')}, " \
               f"{counted(len(self.ops), 'op')}"
        lines = [head, "tensors"]
        used = {name for op in self.ops for name in op.tensors}
        lines += [f"  {tensor}" for name, tensor in self.tensors.items() if name in used]
        lines += ["ops", *(f"  {i:>3}  {op}" for i, op in enumerate(self.ops))]
        return "\n".join(lines)


def advance(steps: int) -> Op:
    """The op that adds `steps` to the cursor."""
    return Op("advance", "advance", {"cursor": "cursor"}, {"steps": steps})


def _only_gradient(op: Op) -> Op:
    """The part of a loss op that does not measure; other ops unchanged."""
    kind = op.spec.unmeasured
    if not kind or not set(OPS[kind].reads) - set(OPS[kind].optional) <= set(op.operands):
        return op
    known = {*OPS[kind].reads, *OPS[kind].writes}
    operands = {role: name for role, name in op.operands.items() if role in known}
    return Op(kind, kind, operands)
