"""`nccl=sharded`: each rank sums and updates its own rows of every large matrix.

No rank then has the complete sum of a gradient (Rajbhandari et al., ZeRO, 2020). GEMMs read the
copies of the weights, or the weights if they have none, which are all-gathered after each update.
Masters and optimizer state are all-gathered on demand (plan/epoch_plans.py).

Two ranks send each other the rows that the other updates, and the update adds them to its own.
Nothing is computed on the way, so that copy engines do it and GEMMs keep all multiprocessors: it is
an in-place all-gather of the rows that one rank sends and the other receives.

The next step reads the first layer's matrix first. Each rank updates all of it, from the complete
sum or, with two ranks, from both complete gradients, so that no step begins with an all-gather.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rawnn.opts.precision import steps_a_parameter
from rawnn.plan.op import AFTER, Op
from rawnn.plan.ops.collectives import (
    COPIES,
    EXCHANGES,
    ORDERING_TOKEN,
    SCATTER,
    all_gather,
    all_reduce,
    reduce_scatter,
    wholes,
)
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy
from rawnn.plan.tensor import MULTIPLIED, PART, ROW_ALIGNMENT, Role, Tensor

TILE = 256 * 128
"""Elements of the largest tile that a multiprocessor computes at once (rawnn/ptx/gemm/mma.py)."""


OWN, SENT, GOT = ":own", ":sent", ":got"
RANKS = (":rank0", ":rank1")
"""Suffixes of views of the exchanged memory: rank 0's and rank 1's complete gradient."""


def reduction(plan: Plan, names: Sequence[str]) -> Op:
    """The op that sums complete gradients."""
    return all_reduce(f"{names[-1]}.all_reduce", {f"g{i}": n for i, n in enumerate(names)},
                      plan.weight)


class Shards:
    """The matrices of a plan of which each rank updates its own rows: those whose gradients have at
    least `least` bytes and a number of rows that divides by the ranks. With `first_whole` the first
    layer's matrix is excluded."""

    def __init__(self, plan: Plan, policy: Policy, least: float, first_whole: bool) -> None:
        self._plan = plan
        self._of = {op.operands["dw"]: op for op in plan.ops if steps_a_parameter(op)}
        large = [name for name in self._of
                 if len(plan[name].shape) == 2 and plan[name].nbytes >= least]
        lowest = min(map(self._layer, self._of), default=0)
        first = next((n for n in large if self._layer(n) == lowest), "") if first_whole else ""
        self._shared = {name for name in large
                        if name != first and plan[name].shape[0] % plan.world_size == 0}
        self._token = COPIES if policy.allocator == "arena" else ORDERING_TOKEN
        self._exchanged = {name for name in {*self._shared, first} - {""}
                           if self._token is COPIES and plan.world_size == 2
                           and not plan.user_kernels and self._is_exchanged(name)}
        self._first = first
        self._new: dict[str, Tensor] = {t.name: t for t in (self._token, EXCHANGES)}
        self._views = {name: t for name, t in plan.tensors.items() if t.role is Role.VIEW}

    @property
    def uses_copies(self) -> bool:
        """Whether copy engines move the gradients, which takes fewer multiprocessors than sums of
        complete gradients."""
        return bool(self._exchanged) or \
            (self._plan.world_size > 2 and self._token is COPIES and bool(self._shared))

    def _layer(self, name: str) -> int:
        return self._plan[self._of[name].operands["w"]].layer

    def _is_exchanged(self, name: str) -> bool:
        """Whether one GEMM writes the gradient and its update can read two parts of it."""
        writers = [op for op in self._plan.ops if any(n == name for n, _ in op.writes)]
        return "other" in self._of[name].spec.reads and len(writers) == 1 \
            and writers[0].kind == "matmul" and writers[0].attributes["layout"] == "tn"

    def _is_halved(self, op: Op) -> bool:
        """Whether half of a GEMM's rows fill the GPU, and its factor can be split by columns."""
        rows, cols = self._plan[op.operands["c"]].shape
        columns = rows // 2 * self._plan[op.operands["a"]].itemsize
        return columns % ROW_ALIGNMENT == 0 \
            and rows // 2 * cols >= TILE * self._plan.target.multiprocessors

    def _with(self, tensor: Tensor) -> str:
        """Register a new tensor; returns its name."""
        self._new[tensor.name] = tensor
        return tensor.name

    def _rows(self, name: str, what: str = "", first: int = -1, shares: int = 1) -> str:
        """The name of a view: this rank's rows of a matrix; or, with `what`, `shares` times as many
        rows from the share `first` on, of the memory in which a gradient is exchanged."""
        t = self._plan[name]
        rows, whole = t.shape[0] // self._plan.world_size, _both(name) if what else name
        begin = rows * (self._plan.rank if first < 0 else first)
        return self._with(_rows_of(t, whole + PART + what, begin, rows * shares,
                                   whole if what else ""))

    def last_in_halves(self) -> str:
        """The gradient of the last shared layer, if two halves of it should be computed, so that
        one is summed during the other; else ""."""
        last = max(self._shared, key=self._layer, default="")
        writers = [op for op in self._plan.ops if any(n == last for n, _ in op.writes)]
        is_split = self.uses_copies and len(writers) == 1 and writers[0].kind == "matmul" \
            and writers[0].attributes["layout"] == "tn" and self._is_halved(writers[0]) \
            and self._plan[last].shape[0] % (2 * self._plan.world_size) == 0
        return last if is_split else ""

    def reductions(self, names: Sequence[str]) -> list[Op]:
        """The reductions of a bucket, except exchanged gradients, whose ops follow the GEMMs."""
        plan = self._plan
        complete = [name for name in names if name not in self._shared | self._exchanged]
        scattered = [(name, self._rows(name)) for name in names
                     if name in self._shared - self._exchanged]
        return [*([reduction(plan, complete)] if complete else []),
                *([reduce_scatter(f"{scattered[-1][0]}.reduce_scatter", scattered,
                                  plan.weight).viewing(self._new)] if scattered else [])]

    def updated(self, plan: Plan, early: bool) -> Plan:
        """The plan with updates of this rank's rows and the all-gathers. With `early` they follow
        each gradient once all ops have read the weights; otherwise they stay where updates were,
        and the next collective waits for them."""
        read = {name: i for i, op in enumerate(plan.ops) if not steps_a_parameter(op)
                for name, _ in op.reads}  # index of the last reader
        sent = [op for op in plan.ops if op.kind == "matmul" and op.operands["c"] in
                self._exchanged]
        halved = sent[-1] if early and sent and sent[-1].operands["c"] != self._first \
            and self._is_halved(sent[-1]) else None
        ops: list[Op] = []
        last_readers: dict[str, int] = {}

        def sums(names: Sequence[str]) -> None:
            last_readers.update((name, max(read.get(n, 0) for n, _ in self._of[name].writes))
                                for name in names)

        for i, op in enumerate(plan.ops):
            if early and (op.kind == "matmul" or steps_a_parameter(op)):
                ready = [name for name, last in last_readers.items() if last < i]
                ops += self._stepped(ready)
                for name in ready:
                    del last_readers[name]
            if op is halved:
                ops += self._halves(op)
                sums([op.operands["c"]])
            elif any(op is each for each in sent):
                ops += self._sent_whole(op) if op.operands["c"] == self._first else self._sent(op)
                sums([op.operands["c"]])
            elif not steps_a_parameter(op):
                ops.append(op)
            elif op.operands["dw"] not in self._shared | self._exchanged:
                ops.append(_urgent(op))
            elif not early:
                ops += self._stepped([op.operands["dw"]])
            if op.kind == SCATTER:
                sums([op.operands[role] for role in wholes(op)])
        return replace(plan.with_tensors(*self._new.values()),
                       ops=tuple(op.viewing({**self._views, **self._new}) for op in ops))

    def _stepped(self, gradients: Sequence[str]) -> list[Op]:
        """Updates of this rank's rows, and the all-gather of the weights that GEMMs read."""
        complete = [self._of_both(name) for name in gradients if name == self._first]
        own = [self._of_rank(name) for name in gradients if name != self._first]
        parts = [op.operands.get("copy", op.operands["w"]) for op in own]
        pairs = [(part.removesuffix(PART), part) for part in parts]
        if not pairs:
            return complete
        return [*complete, *own, all_gather(f"{pairs[-1][0]}.all_gather", pairs, self._token.name)]

    def _of_both(self, name: str) -> Op:
        """The update of a complete matrix from both ranks' gradients, added in the order of ranks,
        so that both ranks get the same bits. Both compute the same float32 shares: for a batch of
        less than 2^25, k / batch is not the midpoint of two floats."""
        op, weight = self._of[name], self._plan.weight
        shares = [weight, 1 - weight] if self._plan.rank == 0 else [1 - weight, weight]
        dw, other = (_both(name) + PART + of for of in RANKS)
        return _urgent(replace(op, operands={**op.operands, "dw": dw, "other": other}, attributes={
            **op.attributes, "share": shares[0], "other_share": shares[1]}))

    def _of_rank(self, name: str) -> Op:
        """The update of this rank's rows of the matrix with this gradient."""
        plan, op = self._plan, self._of[name]
        mine = {role: self._rows(n) for role, n in op.operands.items()
                if plan[n].shape == plan[op.operands["w"]].shape and n not in self._exchanged}
        # Every rank rounds its rows with random numbers of its own.
        attributes = {**op.attributes, "stream": op.attributes["stream"] + (plan.rank << 16)}
        if name in self._exchanged:
            mine["other"] = _both(name) + PART + GOT
            if (own := _both(name) + PART + OWN) in self._new:
                mine["dw"] = own
            attributes |= {"share": plan.weight, "other_share": 1 - plan.weight}
        return _urgent(replace(op, operands={**op.operands, **mine}, attributes=attributes))

    def _exchange(self, name: str, count: int, first: int) -> Op:
        """Each rank sends one share of a gradient and receives one. The two shares are adjacent,
        rank 0's first, from share `first` on in memory for `count` shares."""
        t, rank = self._plan[name], self._plan.rank
        self._with(replace(t, name=_both(name), shape=(t.shape[0] // 2 * count, t.shape[1])))
        both = self._rows(name, ":both", first, 2)
        sent = self._rows(name, SENT, first + rank)
        self._rows(name, GOT, first + 1 - rank)
        return all_gather(f"{name}.exchange", [(both, sent)], EXCHANGES.name)

    def _sent_whole(self, op: Op) -> list[Op]:
        """The GEMM of a gradient, and the exchange of all of it: the gradients of both ranks are
        adjacent."""
        name = op.operands["c"]
        t = self._plan[name]
        both = self._with(replace(t, name=_both(name), shape=(2 * t.shape[0], t.shape[1])))
        mine = [self._rows(name, of, 2 * rank, 2)
                for rank, of in enumerate(RANKS)][self._plan.rank]
        return [replace(op, operands={**op.operands, "c": mine}),
                all_gather(f"{name}.exchange", [(both, mine)], EXCHANGES.name)]

    def _sent(self, op: Op) -> list[Op]:
        """The GEMM of a gradient, and the exchange of one share of it. In memory for four shares
        the middle two are exchanged; the gradient is the first two on rank 0, the last two on rank
        1."""
        name, rank = op.operands["c"], self._plan.rank
        exchange = self._exchange(name, 4, 1)
        self._rows(name, OWN, 3 * rank)
        gradient = self._rows(name, ":gradient", 2 * rank, 2)
        return [replace(op, operands={**op.operands, "c": gradient}), exchange]

    def _halves(self, op: Op) -> list[Op]:
        """The GEMM of a gradient in two halves; the half to be sent comes first and is sent during
        the other. This is for the last gradient, which has little else to overlap with."""
        name, rank = op.operands["c"], self._plan.rank
        t, factor = self._plan[name], self._plan[op.operands["a"]]
        rows = t.shape[0] // 2
        exchange = self._exchange(name, 2, 0)
        self._with(replace(t, shape=(rows, t.shape[1])))

        def half(which: int, named: str, c: str, **more: str) -> Op:
            columns = self._with(replace(
                factor, name=f"{factor.name}{PART}:{which}", shape=(factor.shape[0], rows),
                role=Role.VIEW, source=factor.name, column=rows * which, pitch=factor.ld))
            return replace(op, name=named, operands={**op.operands, "a": columns, "c": c},
                           attributes={**op.attributes, "m": rows, **more})

        first = half(1 - rank, f"{op.name}.sent", _both(name) + PART + SENT)
        return [first, exchange, half(rank, op.name, name, **{AFTER: first.name})]


def in_halves(plan: Plan, gradient: str) -> Plan:
    """The plan with two GEMMs for the halves of a gradient's rows, each with an update of its rows
    of the matrix."""
    gemm = next(op for op in plan.ops if any(n == gradient for n, _ in op.writes))
    update = next(op for op in plan.ops if steps_a_parameter(op)
                  and op.operands["dw"] == gradient)
    t, factor = plan[gradient], plan[gemm.operands["a"]]
    rows = t.shape[0] // 2
    tensors: dict[str, Tensor] = {}

    def named(tensor: Tensor) -> str:
        tensors[tensor.name] = tensor
        return tensor.name

    def half(op: Op, number: int, operands: dict[str, str], **more: int) -> Op:
        return replace(op, name=f"{op.name}:{number}", operands={**op.operands, **operands},
                       attributes={**op.attributes, **more})

    halves: dict[str, list[Op]] = {gemm.name: [], update.name: []}
    for number in (0, 1):
        part = named(replace(t, name=f"{gradient}:{number}", shape=(rows, t.shape[1])))
        columns = named(replace(
            factor, name=f"{factor.name}{PART}:{number}", shape=(factor.shape[0], rows),
            role=Role.VIEW, source=factor.name, column=rows * number, pitch=factor.ld))
        halves[gemm.name].append(half(gemm, number, {"a": columns, "c": part}, m=rows))
        own = {role: named(_rows_of(plan[name], f"{name}{PART}:{number}", rows * number, rows))
               for role, name in update.operands.items()
               if role != "dw" and plan[name].shape == t.shape}
        # Each half is rounded with random numbers of its own.
        halves[update.name].append(half(update, number, {**own, "dw": part}, stream=int(
            update.attributes["stream"]) + (number << 24)))
    return replace(plan.with_tensors(*tensors.values()), ops=tuple(
        each.viewing(tensors) if each is not op else each for op in plan.ops
        for each in halves.get(op.name, [op])))


def _rows_of(t: Tensor, name: str, first: int, rows: int, source: str = "") -> Tensor:
    """A view of rows from `first` on of a matrix, which may be such a view itself, or of `source`,
    which is laid out like it."""
    view = replace(t, name=name, shape=(rows, t.shape[1]), role=Role.VIEW,
                   lines=t.lines or t.role in MULTIPLIED, symbol="",
                   source=source or (t.source if t.role is Role.VIEW else t.name),
                   first=first + (t.first if t.role is Role.VIEW else 0))
    assert view.ld == t.ld  # its rows lie where those of the whole do
    return view


def _urgent(op: Op) -> Op:
    """Mark an op that gets the next free multiprocessors, before GEMMs: others wait for it."""
    return replace(op, attributes={**op.attributes, "urgent": True})


def _both(name: str) -> str:
    """The name of the memory in which a gradient is exchanged."""
    return f"{name}.both"
