"""What was chosen for a network, in words: who does what, what lies where, what it takes."""

from __future__ import annotations

from collections.abc import Iterator

from rawnn.persistent import cost
from rawnn.persistent.choose import Choice
from rawnn.persistent.layout import ALL, Layout
from rawnn.persistent.sharding import ALL_GATHERED, COLUMN_PARALLEL, ROW_PARALLEL, Sharding


def describe(choice: Choice) -> str:
    """Some lines on a choice."""
    return "\n".join(_lines(choice))


def _lines(choice: Choice) -> Iterator[str]:
    layout = choice.layout
    d, p = layout.sharding, layout.sharding.problem
    group = "group" if d.via_l2 else "cluster"
    yield f"on the chip: {d.dp_size} {group}(s) of {d.tp_size} block(s) of {d.threads} threads; " \
          f"{d.group_batch} example(s) a {group}" \
          f"{f' in {d.micro_batches} micro-batches' if d.micro_batches > 1 else ''}"
    for layer, kind in enumerate(d.layer_kinds):
        tiles = layout.layers[layer]
        split = f", split in {tiles.forward.split}" if tiles.forward.split > 1 else ""
        yield f"  layer {layer + 1}: {p.layers[layer]} -> {p.layers[layer + 1]} {kind}, " \
              f"{d.outs(layer)} x {d.ins(layer)} weights a block{split}; " \
              f"{_exchange(d, layer)}"
    meeting = {"": "", ALL: f"every {group} adds up and updates all"}.get(
        layout.sync, f"each {group} adds up and updates its share")
    if d.via_l2:
        yield "  the blocks of a group exchange through the L2 cache"
    if meeting:
        yield f"  gradients of the {group}s meet in the L2 cache; {meeting}"
    yield f"shared memory: {layout.nbytes:,} bytes a block"
    for words, nbytes in _places(layout).items():
        yield f"  {words:<24} {nbytes:>9,}"
    for name, size in layout.workspaces(1).items():
        if name == "tally":
            continue
        yield f"  workspace {name:<14} {4 * size:>9,} (global memory)"
    phases = cost.phases(d, choice.costs)
    yield f"expected: {choice.us:.1f} us a step, {sum(ph.cycles for ph in phases):,.0f} cycles"
    for phase in phases:
        yield f"  {phase.name:<24} {phase.cycles:>9,.0f}"


def _exchange(d: Sharding, layer: int) -> str:
    above = d.boundaries[layer + 1]
    if d.layer_kinds[layer] == ROW_PARALLEL:
        return f"partial sums are added up across the {'group' if d.via_l2 else 'cluster'}"
    if d.layer_kinds[layer] == COLUMN_PARALLEL:
        return "outputs gathered" if above == ALL_GATHERED else "outputs stay sliced"
    return "no exchange"


def _places(layout: Layout) -> dict[str, int]:
    """Bytes of what lies in shared memory."""
    found: dict[str, int] = {}
    starts = sorted((start, name) for name, start in layout.places.items())
    ends = [*(start for start, _ in starts[1:]), layout.dynamic_bytes // 4]
    for (start, name), end in zip(starts, ends, strict=True):
        words = layout.held[name]
        found[words] = found.get(words, 0) + 4 * (end - start)
    return {words: nbytes for words, nbytes in found.items() if nbytes}
