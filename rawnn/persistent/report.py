"""A choice in words: who does what, what lies where, and the phases of a step with their cycles."""

from __future__ import annotations

from collections.abc import Iterator

from rawnn.persistent import cost
from rawnn.persistent.choose import Choice
from rawnn.persistent.layout import Layout
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
    if d.is_streamed:
        yield "  a block owns 8 features of each hidden boundary; operands stream from the L2 " \
              "cache to registers"
        if d.peers > 1:
            yield f"  clusters of {d.peers} blocks share the inner dimension of each GEMM"
    for layer, kind in enumerate(() if d.is_streamed else d.layer_kinds):
        tiles = layout.layers[layer]
        split = f", split in {tiles.forward.split}" if tiles.forward.split > 1 else ""
        yield f"  layer {layer + 1}: {p.layers[layer]} -> {p.layers[layer + 1]} {kind}, " \
              f"{d.outs(layer)} x {d.ins(layer)} weights a block{split}; {_outputs(d, layer)}"
    if d.via_l2 and not d.is_streamed:
        yield "  the blocks of a group exchange through the L2 cache"
    yield f"shared memory: {layout.nbytes:,} bytes a block"
    for words, nbytes in _places(layout).items():
        yield f"  {words:<24} {nbytes:>9,}"
    for name, size in layout.workspaces(1).items():
        if name == "tally":
            continue
        yield f"  {name:<24} {4 * size:>9,} (global memory)"
    yield from _phases(choice)


def _phases(choice: Choice) -> Iterator[str]:
    """The phases that cost something, in program order."""
    d = choice.sharding
    lines = [(line.name, line.cycles, phase.describe(d) if line.name == phase.name else "")
             for phase, line in cost.table(choice.layout.schedule, choice.costs)]
    lines.append((cost.LAUNCH, cost.launch_cycles(d, choice.costs) / cost.LAUNCHED,
                  f"a share of one with {cost.LAUNCHED} steps"))
    total = sum(cycles for _, cycles, _ in lines)
    yield f"expected: {choice.us:.1f} us a step, {total:,.0f} cycles"
    for name, cycles, what in lines:
        yield f"  {name:<24} {cycles:>9,.0f}  {what}".rstrip()


def _outputs(d: Sharding, layer: int) -> str:
    if d.splits_examples:
        return "each block adds up the outputs of its examples"
    if d.layer_kinds[layer] == ROW_PARALLEL:
        return "outputs all-reduced"
    if d.layer_kinds[layer] == COLUMN_PARALLEL:
        return "outputs all-gathered" if d.boundaries[layer + 1] == ALL_GATHERED \
            else "outputs stay sharded"
    return "no exchange"


def _places(layout: Layout) -> dict[str, int]:
    """Bytes of what lies in shared memory."""
    found: dict[str, int] = {}
    starts = sorted((start, name) for name, start in layout.places.items())
    ends = [*(start for start, _ in starts[1:]), layout.dynamic_bytes // 4]
    for (start, name), end in zip(starts, ends, strict=True):
        words = layout.contents[name]
        found[words] = found.get(words, 0) + 4 * (end - start)
    return {words: nbytes for words, nbytes in found.items() if nbytes}
