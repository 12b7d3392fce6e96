"""Edges between ops, derived from what they read and write.

Two ops must stay in order if one writes what the other reads or writes. The edges returned are the
transitive reduction of that relation: none is missing, and none is implied by others.
"""

from __future__ import annotations

from collections.abc import Sequence

from rawnn.plan.op import AFTER, Access, Op


def dependencies(ops: Sequence[Op]) -> list[tuple[int, ...]]:
    """For each op the indices of the ops that it must directly wait for, in ascending order: those
    of which it needs what they read or write, and the last ahead of it of the name that its
    attribute AFTER gives.

    The ancestors of an op are a number, below which all ops are ancestors, and a bit mask of the
    others, a Python integer. A step overwrites what the one before has read, so that masks span a
    step or two however long the epoch is.
    """
    writers: dict[str, dict[int | None, int]] = {}  # tensor -> slot -> last writer
    readers: dict[str, dict[int | None, list[int]]] = {}  # readers since the last write
    ancestors: list[tuple[int, int]] = []  # including the op itself
    edges: list[tuple[int, ...]] = []
    named: dict[str, int] = {}
    for index, op in enumerate(ops):
        before: set[int] = {named[n] for n in (op.attributes.get(AFTER),) if n in named}
        named[op.own_name] = index
        for access in op.reads:
            before |= _writers(writers, access)
        for access in op.writes:
            before |= _writers(writers, access) | _readers(readers, access)
        direct: list[int] = []
        all_below, covered = 0, 0
        for candidate in sorted(before, reverse=True):  # later ops first: they imply earlier ones
            if candidate < all_below or covered >> candidate - all_below & 1:
                continue
            direct.append(candidate)
            below, mask = ancestors[candidate]
            if below > all_below:
                all_below, covered = below, covered >> below - all_below | mask
            else:
                covered |= mask >> all_below - below
        ancestors.append(_compact(all_below, covered | 1 << index - all_below))
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


def _compact(below: int, mask: int) -> tuple[int, int]:
    """The same ancestors with the shortest mask."""
    ones = (~mask & mask + 1).bit_length() - 1  # trailing ones of the mask
    return below + ones, mask >> ones


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


def reason(before: Op, after: Op) -> str:
    """Why `after` must wait for `before`: "wrote a1; read x", the tensors that they have in common,
    or "is to run first"; "" where nothing is."""
    wrote = _shared(before.writes, (*after.reads, *after.writes))
    read = [name for name in _shared(before.reads, after.writes) if name not in wrote]
    found = "; ".join(f"{what} {', '.join(names)}" for what, names in (("wrote", wrote),
                                                                      ("read", read)) if names)
    return found or ("is to run first" if after.attributes.get(AFTER) == before.own_name else "")


def _shared(these: Sequence[Access], those: Sequence[Access]) -> list[str]:
    """Tensors of which both use the same slots."""
    return list(dict.fromkeys(
        name for name, slots in these for other, places in those
        if name == other and (slots is None or places is None
                              or max(slots.start, places.start) < min(slots.stop, places.stop))))
