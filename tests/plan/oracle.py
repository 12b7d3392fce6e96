"""The edges that a sequence of ops requires, found by brute force."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from rawnn.plan.op import Access, Op


def _touch(left: Access, right: Access) -> bool:
    same_slots = left[1] is None or right[1] is None or bool({*left[1]} & {*right[1]})
    return left[0] == right[0] and same_slots


def conflict(first: Op, second: Op) -> bool:
    """Whether one of two ops writes what the other reads or writes."""
    return any(
        _touch(a, b)
        for these, those in ((first.writes, second.writes), (first.writes, second.reads),
                             (first.reads, second.writes))
        for a in these for b in those
    )


def reduced_edges(ops: Sequence[Op]) -> list[tuple[int, ...]]:
    """Direct predecessors of each op in the transitive reduction of all conflicts in order.

    In an order that is given, the edge (i, j) is redundant if and only if some k between them is
    reachable from i and reaches j.
    """
    count = len(ops)
    reach = [[False] * count for _ in range(count)]
    for i, j in combinations(range(count), 2):
        reach[i][j] = conflict(ops[i], ops[j])
    edges = [row[:] for row in reach]
    for k in range(count):  # Warshall's closure
        for i in range(k):
            if reach[i][k]:
                for j in range(k + 1, count):
                    reach[i][j] |= reach[k][j]
    return [
        tuple(i for i in range(j) if edges[i][j]
              and not any(reach[i][k] and reach[k][j] for k in range(i + 1, j)))
        for j in range(count)
    ]
