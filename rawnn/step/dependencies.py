"""Edges between ops, derived from what they read and write.

Two ops must stay in order when one writes what the other reads or writes. The edges returned are
the transitive reduction of that relation: none missing, none that others imply.
"""

from __future__ import annotations

from collections.abc import Sequence

from rawnn.step.op import Access, Op


def dependencies(ops: Sequence[Op]) -> list[tuple[int, ...]]:
    """For each op the indices of the ops that it must directly wait for, in ascending order.

    Ancestors are kept as bit masks in Python's integers: an epoch of some thousand ops takes
    milliseconds.
    """
    writers: dict[str, dict[int | None, int]] = {}  # tensor -> slot -> last writer
    readers: dict[str, dict[int | None, list[int]]] = {}  # readers since that write
    ancestors: list[int] = []
    edges: list[tuple[int, ...]] = []
    for index, op in enumerate(ops):
        before: set[int] = set()
        for access in op.reads:
            before.update(_writers(writers, access))
        for access in op.writes:
            before.update(_writers(writers, access))
            before.update(_readers(readers, access))
        before.discard(index)
        direct: list[int] = []
        covered = 0
        for candidate in sorted(before, reverse=True):  # later ops first: they imply earlier ones
            if not covered >> candidate & 1:
                direct.append(candidate)
                covered |= ancestors[candidate] | 1 << candidate
        ancestors.append(covered)
        edges.append(tuple(sorted(direct)))
        for name, slots in op.writes:
            if slots is None:
                writers[name] = {None: index}
                readers[name] = {}
                continue
            for slot in slots:
                writers.setdefault(name, {})[slot] = index
                readers.setdefault(name, {}).pop(slot, None)
        for name, slots in op.reads:
            for each in (None,) if slots is None else slots:
                readers.setdefault(name, {}).setdefault(each, []).append(index)
    return edges


def _writers(writers: dict[str, dict[int | None, int]], access: Access) -> set[int]:
    name, wanted = access
    slots = writers.get(name, {})
    if wanted is None:
        return set(slots.values())
    return {slots[s] for s in (None, *wanted) if s in slots}


def _readers(readers: dict[str, dict[int | None, list[int]]], access: Access) -> set[int]:
    name, wanted = access
    slots = readers.get(name, {})
    if wanted is None:
        return {i for group in slots.values() for i in group}
    return {i for s in (None, *wanted) for i in slots.get(s, [])}
