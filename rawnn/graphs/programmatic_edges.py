"""Which edges of a plan may be programmatic: the consumer starts before its producer has ended.

What a kernel reads before its wait is proved from its PTX (rawnn.cuda.compiling.launch_proof);
what it must not read early follows from the plan. The edge stays full unless both agree.
"""

from __future__ import annotations

from collections.abc import Sequence

from rawnn.cuda.compiling.launch_proof import Proof
from rawnn.plan.op import AFTER, Op
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Role

OVERTAKEN = 2
"""An op with at least this many independent successors waits for full completion of its inputs. An
early start would not help: its waiting blocks would hold shared memory, which ops on the
critical path need (the next batch's gather, updates of the third layer and above). An op with
fewer, such as a second layer's update, is on the critical path itself."""


def programmatic_edges(ops: Sequence[Op], edges: Sequence[tuple[int, ...]],
                       proofs: Sequence[Proof | None]) -> list[tuple[int, ...]]:
    """For each op those of its `edges` that may be programmatic. `proofs` are those of its kernel,
    None for a copy or library call, whose edges stay full on either side.

    Completion stays transitive: a kernel with such an edge waits on every path, so that it ends
    after its producers, and these after theirs. Reads before the wait are safe from all ops but the
    producers if these trigger after their own wait, or if all of their own edges are full. Ops with
    many independent successors have full edges (`OVERTAKEN`).
    """
    found: list[tuple[int, ...]] = []
    for op, before, proof, successors in zip(ops, edges, proofs, independent_successors(edges),
                                             strict=True):
        if proof is None or not proof.waits or successors >= OVERTAKEN:
            found.append(())
            continue
        early, predecessor = _reads_before_wait(op, proof), op.attributes.get(AFTER)
        found.append(tuple(
            index for index in before
            if ops[index].own_name != predecessor
            and _may_be_overtaken(ops[index], proofs[index], bool(found[index]), early)
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


def _may_be_overtaken(producer: Op, proof: Proof | None, begins_early: bool,
                      read_early: set[str]) -> bool:
    if proof is None:
        return False
    if not read_early:
        return True
    if begins_early and not proof.ordered:
        return False
    return not read_early & {name for name, _ in producer.writes}


def may_overtake_any(op: Op, plan: Plan, proof: Proof) -> bool:
    """Whether a kernel may overtake any kernel before it on a stream: it waits, and before its wait
    reads only what no kernel writes: the data set, and the cursor if no op of the plan moves
    it."""
    written = {name for other in plan.ops for name, _ in other.writes}
    return proof.waits and all(
        plan[name].role in (Role.DATA, Role.CURSOR) and name not in written
        for name in _reads_before_wait(op, proof)
    )


def _reads_before_wait(op: Op, proof: Proof) -> set[str]:
    """The tensors that the op's kernel reads before its wait."""
    return {op.operands[role] for role in proof.early if role in op.operands}
