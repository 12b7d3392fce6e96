"""Which kernels may start before their predecessors have ended (`pdl`): in a graph edge by edge,
on a stream behind any kernel.

What a kernel reads before its wait is proved from its PTX (rawnn.cuda.compiling.launch_proof);
what it must not read early follows from the plan. It starts early only if both agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rawnn.cuda.compiling.launch_proof import Proof
from rawnn.plan.op import AFTER, Op
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Role

MIN_INDEPENDENT_SUCCESSORS = 2
"""An op with at least this many independent successors waits for full completion of its inputs. An
early start would not help: its waiting blocks would hold shared memory, which ops on the
critical path need (the next batch's gather, updates of the third layer and above). An op with
fewer, such as a second layer's update, is on the critical path itself."""


class Prover(Protocol):
    """Knows what is proved about an op's kernel (rawnn.engine.runners.lowering)."""

    def proof(self, op: Op, plan: Plan) -> Proof | None: ...


def early_edges(plan: Plan, edges: Sequence[tuple[int, ...]], prover: Prover
                ) -> list[tuple[int, ...]]:
    """For each op of an unrolled plan those of its `edges` that may be programmatic: none without
    the toggle pdl, as the prover then has no proof."""
    proofs: dict[tuple[str, ...], Proof | None] = {}
    for op in plan.ops:
        if op.recurrence not in proofs:
            proofs[op.recurrence] = prover.proof(op, plan)
    return programmatic_edges(plan.ops, edges, [proofs[op.recurrence] for op in plan.ops])


def programmatic_edges(ops: Sequence[Op], edges: Sequence[tuple[int, ...]],
                       proofs: Sequence[Proof | None]) -> list[tuple[int, ...]]:
    """For each op those of its `edges` that may be programmatic. `proofs` are those of its kernel,
    None for a copy or library call, whose edges stay full on either side.

    Completion stays transitive: a kernel with such an edge waits on every path, so that it ends
    after its producers, and these after theirs. Reads before the wait are safe from all ops but the
    producers if these trigger after their own wait, or if all of their own edges are full. Ops with
    many independent successors have full edges (`MIN_INDEPENDENT_SUCCESSORS`).
    """
    found: list[tuple[int, ...]] = []
    for op, before, proof, successors in zip(ops, edges, proofs, independent_successors(edges),
                                             strict=True):
        if proof is None or not proof.waits or successors >= MIN_INDEPENDENT_SUCCESSORS:
            found.append(())
            continue
        early, predecessor = _reads_before_wait(op, proof), op.attributes.get(AFTER)
        found.append(tuple(
            index for index in before
            if ops[index].own_name != predecessor
            and _may_start_before(ops[index], proofs[index], bool(found[index]), early)
        ))
    return found


def independent_successors(edges: Sequence[tuple[int, ...]]) -> list[int]:
    """For each op a lower bound on the length of a chain of independent ops that can run before
    another op waits for it. Every op counts as equally long and starts as soon as it can; the end
    of the plan waits for all."""
    begins: list[int] = []
    for before in edges:
        begins.append(1 + max((begins[index] for index in before), default=-1))
    needed = [1 + max(begins, default=0)] * len(begins)
    for op, before in enumerate(edges):
        for index in before:
            needed[index] = min(needed[index], begins[op])
    return [wanted - begun - 1 for begun, wanted in zip(begins, needed, strict=True)]


def _may_start_before(producer: Op, proof: Proof | None, starts_early: bool,
                      read_early: set[str]) -> bool:
    """Whether an op that reads `read_early` before its wait may start before `producer` ends."""
    if proof is None:
        return False
    return not read_early or (proof.allows_early_reads(starts_early)
                              and not read_early & {name for name, _ in producer.writes})


def may_start_early_on_stream(op: Op, plan: Plan, proof: Proof) -> bool:
    """Whether a kernel may start before any kernel before it on a stream has ended: it waits, and
    before its wait reads only what no kernel writes: the data set, and the cursor if no op of the
    plan moves it."""
    written = {name for other in plan.ops for name, _ in other.writes}
    return proof.waits and all(
        plan[name].role in (Role.DATA, Role.CURSOR) and name not in written
        for name in _reads_before_wait(op, proof)
    )


def _reads_before_wait(op: Op, proof: Proof) -> set[str]:
    """The tensors that the op's kernel reads before its wait."""
    return {op.operands[role] for role in proof.early if role in op.operands}
