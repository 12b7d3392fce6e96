"""`nccl=sharded`: of every large matrix each rank sums and updates its own rows.

Of the sum of a gradient nobody has the whole then (Rajbhandari et al., ZeRO, 2020). Products read
the copies of the weights, or the weights where they have none: those are gathered behind each
update. Masters and the optimizer's state are gathered when they are asked for (step/around.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from rawnn.opts.precision import steps_a_parameter
from rawnn.step.op import Op
from rawnn.step.ops.collectives import (
    AXPBY,
    SCATTER,
    all_gather,
    all_reduce,
    axpby,
    reduce_scatter,
    wholes,
)
from rawnn.step.plan import Plan
from rawnn.step.tensor import MULTIPLIED, PART, Role, Tensor, whole

GRADIENT = ":gradient"


def reduction(plan: Plan, names: Sequence[str]) -> Op:
    """The op that sums whole gradients."""
    return all_reduce(f"{names[-1]}.all_reduce", {f"g{i}": n for i, n in enumerate(names)},
                      plan.weight)


class Shards:
    """The matrices of a plan of which each rank updates its rows: those whose gradients have
    `least` bytes, and rows that the ranks can share evenly."""

    def __init__(self, plan: Plan, least: float) -> None:
        self._plan = plan
        updates = [op for op in plan.ops if steps_a_parameter(op)]
        self._shared = {name for name in (op.operands["dw"] for op in updates)
                        if len(plan[name].shape) == 2 and plan[name].shape[0] % plan.ranks == 0
                        and plan[name].nbytes >= least}
        self._views: dict[str, Tensor] = {}
        self._updates = {op.operands["dw"]: self._of_rank(op) for op in updates
                         if op.operands["dw"] in self._shared}

    def _view(self, name: str, what: str = "", first: int | None = None, shares: int = 1) -> str:
        """The name of a view: this rank's rows of a matrix, or `shares` as many from the share
        `first` on."""
        t, rank = self._plan[name], self._plan.rank
        rows = t.shape[0] // self._plan.ranks
        made = replace(t, name=name + PART + what, shape=(rows * shares, t.shape[1]),
                       role=Role.VIEW, lines=t.lines or t.role in MULTIPLIED, symbol="",
                       source=name, first=rows * (rank if first is None else first))
        assert made.ld == t.ld  # its rows lie where those of the whole do
        self._views[made.name] = made
        return made.name

    def _of_rank(self, op: Op) -> Op:
        """An update of this rank's rows."""
        plan = self._plan
        mine = {role: self._view(name) for role, name in op.operands.items()
                if role != "dw" and plan[name].shape == plan[op.operands["w"]].shape}
        name = op.operands["dw"]
        mine["dw"] = self._view(name, ":own", 3 * plan.rank) if plan.ranks == 2 else \
            self._view(name)
        # Every rank rounds its rows by numbers of its own.
        stream = op.attributes["stream"] + (plan.rank << 16)
        return replace(op, operands={**op.operands, **mine},
                       attributes={**op.attributes, "stream": stream})

    def reductions(self, names: Sequence[str]) -> list[Op]:
        """Those of a bucket."""
        plan = self._plan
        whole = [name for name in names if name not in self._shared]
        shared = [name for name in names if name in self._shared]
        ops = [reduction(plan, whole)] if whole else []
        if plan.ranks == 2:
            return ops + [op for name in shared for op in self._exchanged(name)]
        if shared:
            ops.append(reduce_scatter(f"{shared[-1]}.reduce_scatter",
                                      [(name, self._view(name)) for name in shared], plan.weight))
        return ops

    def _exchanged(self, name: str) -> list[Op]:
        """What makes this rank's rows of the sum of a gradient, of two ranks.

        Each sends the other's rows and gets its own, which computes nothing, so that copy engines
        can do it: NCCL's do an all-gather, in place. In memory of four shares its two are the
        middle ones, the first sent by rank 0. The gradient is the two of which it sends one: the
        first two on rank 0, the last two on rank 1.
        """
        rank = self._plan.rank
        both = self._view(name, ":both", 1, 2)
        sent, got = self._view(name, ":sent", 1 + rank), self._view(name, ":got", 2 - rank)
        weight = self._plan.weight
        return [all_gather(f"{name}.exchange", [(both, sent)]),
                axpby(f"{name}.sum", self._updates[name].operands["dw"], got, 1 - weight, weight)]

    def updated(self, plan: Plan, early: bool) -> Plan:
        """The plan, in which the updates work on this rank's rows, and the parts are gathered. With
        `early` this stands behind the sum of each, ahead of the first product behind those that
        read the weights, else where updates stood: the next collective waits for it then."""
        read = {name: i for i, op in enumerate(plan.ops) if not steps_a_parameter(op)
                for name, _ in op.reads}  # where last
        ops: list[Op] = []
        held: dict[str, int] = {}
        for i, op in enumerate(plan.ops):
            ready = [name for name, last in held.items() if last < i] \
                if op.kind == "matmul" or steps_a_parameter(op) else []
            if early and ready:
                ops += self._stepped(ready)
                held = {name: last for name, last in held.items() if name not in ready}
            if not steps_a_parameter(op) or op.operands["dw"] not in self._shared:
                ops.append(op)
            elif not early:
                ops += self._stepped([op.operands["dw"]])
            held |= {name: max(read.get(n, 0) for n, _ in self._updates[name].writes)
                     for name in _summed(op)}
        plan = replace(plan.with_tensors(*self._views.values()), ops=tuple(ops))
        return self._in_place(plan, self._shared) if plan.ranks == 2 else plan

    def _stepped(self, gradients: Sequence[str]) -> list[Op]:
        """Updates, and what gathers the weights that products read."""
        made = [self._updates[name] for name in gradients]
        parts = [op.operands.get("copy", op.operands["w"]) for op in made]
        return [*made, all_gather(f"{whole(parts[-1])}.all_gather",
                                  [(whole(part), part) for part in parts])]

    def _in_place(self, plan: Plan, names: Collection[str]) -> Plan:
        """The plan whose gradients lie where they are exchanged from."""
        first = 2 * plan.rank
        views = {name: self._view(name, GRADIENT, first, 2) for name in names}
        room = [replace(plan[name], shape=(2 * plan[name].shape[0], plan[name].shape[1]))
                for name in names]
        ops = tuple(replace(op, operands={r: views.get(n, n) for r, n in op.operands.items()})
                    for op in plan.ops)
        return replace(plan.with_tensors(*room, *(self._views[v] for v in views.values())), ops=ops)


def _summed(op: Op) -> list[str]:
    """The gradients of which this rank has the sum of its rows behind an op."""
    if op.kind == AXPBY:
        return [whole(op.operands["y"])]
    return [op.operands[role] for role in wholes(op)] if op.kind == SCATTER else []
