"""`nccl=sharded`: of every large matrix each rank sums and updates its own rows.

Of the sum of a gradient nobody has the whole then (Rajbhandari et al., ZeRO, 2020). Products read
the copies of the weights, or the weights where they have none: those are gathered behind each
update. Masters and the optimizer's state are gathered when they are asked for (step/around.py).

Two ranks send each other what the other updates, and add it to their own. That computes nothing on
the way, so that copy engines do it and products keep all multiprocessors: an all-gather in place, of
the rows that the one sends and the other gets. A rank computes what it sends first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rawnn.opts.precision import steps_a_parameter
from rawnn.run.policy import Policy
from rawnn.step.op import Op
from rawnn.step.ops.collectives import (
    AXPBY,
    COPIES,
    SCATTER,
    TURN,
    all_gather,
    all_reduce,
    axpby,
    reduce_scatter,
    wholes,
)
from rawnn.step.plan import Plan
from rawnn.step.tensor import MULTIPLIED, PART, ROW_ALIGNMENT, Role, Tensor, whole


TILE = 256 * 128
"""Elements of the largest tile that a multiprocessor computes at once (rawnn/ptx/mma.py)."""


def reduction(plan: Plan, names: Sequence[str]) -> Op:
    """The op that sums whole gradients."""
    return all_reduce(f"{names[-1]}.all_reduce", {f"g{i}": n for i, n in enumerate(names)},
                      plan.weight)


class Shards:
    """The matrices of a plan of which each rank updates its rows: those whose gradients have
    `least` bytes, and rows that the ranks can share evenly. `exchanges` says whether there are
    some of which two ranks send each other parts."""

    def __init__(self, plan: Plan, policy: Policy, least: float) -> None:
        self._plan = plan
        updates = [op for op in plan.ops if steps_a_parameter(op)]
        self._shared = {name for name in (op.operands["dw"] for op in updates)
                        if len(plan[name].shape) == 2 and plan[name].shape[0] % plan.ranks == 0
                        and plan[name].nbytes >= least}
        self._turn = COPIES if policy.allocator == "arena" else TURN
        self._exchanged = {name for name in self._shared if self._turn is COPIES
                           and plan.ranks == 2 and self._is_halved(name)}
        self._made: dict[str, Tensor] = {self._turn.name: self._turn}
        self._updates = {op.operands["dw"]: self._of_rank(op) for op in updates
                         if op.operands["dw"] in self._shared}

    @property
    def exchanges(self) -> bool:
        return bool(self._exchanged)

    def _is_halved(self, name: str) -> bool:
        """Whether the rows of a gradient can be computed half by half."""
        made = [op for op in self._plan.ops if any(n == name for n, _ in op.writes)]
        return len(made) == 1 and made[0].kind == "matmul" and made[0].attributes["layout"] == "tn" \
            and self._plan[name].shape[0] // 2 * self._plan[made[0].operands["a"]].itemsize \
            % ROW_ALIGNMENT == 0

    def _with(self, tensor: Tensor) -> str:
        """The name of a tensor that is made."""
        self._made[tensor.name] = tensor
        return tensor.name

    def _rows(self, name: str, what: str = "", first: int = -1) -> str:
        """The name of a view: this rank's share of the rows of a matrix, or the share `first`."""
        t, rank = self._made.get(name, self._plan[name]), self._plan.rank
        rows = self._plan[name].shape[0] // self._plan.ranks
        made = replace(t, name=name + PART + what, shape=(rows, t.shape[1]), role=Role.VIEW,
                       lines=t.lines or t.role in MULTIPLIED, symbol="", source=name,
                       first=rows * (rank if first < 0 else first))
        assert made.ld == t.ld  # its rows lie where those of the whole do
        return self._with(made)

    def _of_rank(self, op: Op) -> Op:
        """An update of this rank's rows."""
        plan, name = self._plan, op.operands["dw"]
        mine = {role: self._rows(n) for role, n in op.operands.items()
                if plan[n].shape == plan[op.operands["w"]].shape
                and n not in self._exchanged}  # which is its rows alone
        # Every rank rounds its rows by numbers of its own.
        stream = op.attributes["stream"] + (plan.rank << 16)
        return _urgent(replace(op, operands={**op.operands, **mine},
                               attributes={**op.attributes, "stream": stream}))

    def reductions(self, names: Sequence[str]) -> list[Op]:
        """Those of a bucket, but for what is exchanged: that stands amid the products."""
        plan = self._plan
        whole = [name for name in names if name not in self._shared]
        scattered = [(name, self._rows(name)) for name in names
                     if name in self._shared - self._exchanged]
        weight = plan.weight
        return [*([reduction(plan, whole)] if whole else []),
                *([reduce_scatter(f"{scattered[-1][0]}.reduce_scatter", scattered, weight)]
                  if scattered else []),
                *(axpby(f"{name}.sum", name, _got(name), 1 - weight, weight)
                  for name in names if name in self._exchanged)]

    def updated(self, plan: Plan, early: bool) -> Plan:
        """The plan, in which the updates work on this rank's rows, and the parts are gathered. With
        `early` this stands behind the sum of each, once all have read the weights, and behind the
        next exchange if that is of a layer that the next step comes to earlier. Else it stands
        where updates stood: the next collective waits for it then."""
        read = {name: i for i, op in enumerate(plan.ops) if not steps_a_parameter(op)
                for name, _ in op.reads}  # where last
        layer = {name: self._made[op.operands["w"]].layer for name, op in self._updates.items()}
        ops: list[Op] = []
        held: dict[str, int] = {}
        for i, op in enumerate(plan.ops):
            ready = [name for name, last in held.items() if last < i] if early and (
                op.kind == "matmul" or steps_a_parameter(op)) else []
            held = {name: last for name, last in held.items() if name not in ready}
            if op.kind == "matmul" and (made := op.operands["c"]) in self._exchanged:
                before = [name for name in ready if layer[name] < layer[made]]
                behind = [name for name in ready if name not in before]
                ops += [*self._stepped(before), *self._halves(op), *self._stepped(behind)]
                continue
            ops += self._stepped(ready)
            if not steps_a_parameter(op):
                ops.append(op)
            elif op.operands["dw"] not in self._shared:
                ops.append(_urgent(op))
            elif not early:
                ops += self._stepped([op.operands["dw"]])
            held |= {name: max(read.get(n, 0) for n, _ in self._updates[name].writes)
                     for name in _summed(op)}
        return replace(plan.with_tensors(*self._made.values()), ops=tuple(ops))

    def _stepped(self, gradients: Sequence[str]) -> list[Op]:
        """Updates, and what gathers the weights that products read."""
        if not gradients:
            return []
        made = [self._updates[name] for name in gradients]
        parts = [op.operands.get("copy", op.operands["w"]) for op in made]
        return [*made, all_gather(f"{whole(parts[-1])}.all_gather",
                                  [(whole(part), part) for part in parts], self._turn.name)]

    def _halves(self, op: Op) -> list[Op]:
        """The product of a gradient in two: of the rows that are sent, and of those that this rank
        updates. These wait for the others where either fills the GPU."""
        name, rank = op.operands["c"], self._plan.rank
        gradient, factor = self._plan[name], self._plan[op.operands["a"]]
        rows = gradient.shape[0] // 2
        self._with(replace(gradient, shape=(rows, gradient.shape[1])))
        both = self._with(replace(gradient, name=_both(name)))
        sent, _ = (self._with(replace(
            gradient, name=n, shape=(rows, gradient.shape[1]), role=Role.VIEW, source=both,
            first=rows * first)) for n, first in ((_sent(name), rank), (_got(name), 1 - rank)))

        def half(which: int, named: str, c: str, behind: str) -> Op:
            columns = self._with(replace(
                factor, name=f"{factor.name}{PART}:{which}", shape=(factor.shape[0], rows),
                role=Role.VIEW, source=factor.name, column=rows * which, pitch=factor.ld))
            return replace(op, name=named, operands={**op.operands, "a": columns, "c": c},
                           attributes={**op.attributes, "m": rows,
                                       **({"behind": behind} if behind else {})})

        first = half(1 - rank, f"{op.name}.sent", sent, "")
        fills = rows * gradient.shape[1] >= TILE * self._plan.target.multiprocessors
        return [first, all_gather(f"{name}.exchange", [(both, sent)], self._turn.name),
                half(rank, op.name, name, first.name if fills else "")]


def _urgent(op: Op) -> Op:
    """An op that somebody waits for, but no product beside it: it takes the multiprocessors that
    come free ahead of theirs."""
    return replace(op, attributes={**op.attributes, "urgent": True})


def _both(name: str) -> str:
    """Of a gradient what rank 0 sends, and then what rank 1 does."""
    return f"{name}.both"


def _sent(name: str) -> str:
    return f"{_both(name)}{PART}:sent"


def _got(name: str) -> str:
    return f"{_both(name)}{PART}:got"


def _summed(op: Op) -> list[str]:
    """The gradients of which this rank has the sum of its rows behind an op."""
    if op.kind == AXPBY:
        return [op.operands["y"]]
    return [op.operands[role] for role in wholes(op)] if op.kind == SCATTER else []
