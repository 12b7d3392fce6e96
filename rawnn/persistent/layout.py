"""Where everything lies: the shared memory of a block, and the workspaces in global memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from rawnn.persistent import buffers, by_examples
from rawnn.persistent.block_memory import FIXED_BYTES, LayerLayout, Memory
from rawnn.persistent.phases.gemm import BACKWARD, FORWARD
from rawnn.persistent.phases.gradient_all_reduce import ALL, SHARE
from rawnn.persistent.phases.input import orders_at_once
from rawnn.persistent.phases.learning_rate import rules_at_once
from rawnn.persistent.phases.loss import AT_ONCE, BY_FIRST, BY_LAST, tallies
from rawnn.persistent.problem import Problem
from rawnn.persistent.schedule import Schedule, build, can_be_compact, weight_gradient
from rawnn.persistent.sharding import (
    ALL_GATHERED,
    MOST_REGISTERS,
    SHARDED,
    TILE,
    Sharding,
    ceil,
    pitch,
    up,
)
from rawnn.persistent.streamed_layout import streamed_memory, streamed_quads
from rawnn.persistent.tiles import Tiling, global_state_tiling, update_tiling

STATE = "state of the optimizer"

COUNTS = ("counters", "generations", "all_reduces", "trace")
"""Workspaces of integers."""

LAUNCH_STAMPS, NANOSECOND_WORDS = 4, 4
"""Stamps of a warp ahead of and behind the steps, and words of a block's time by the GPU's clock
(persistent/trace.cuh)."""

RULE_BYTES = 64
PERMUTATION_BYTES = 48
"""At least those of a Permutation (primitives/random.cuh)."""
WORKING_REGISTERS = {"float32": 124, "tf32": 96, "bfloat16": 78, "float16": 84}
"""Of a thread, for everything but the weights that it holds from step to step: what the kernels of
20-64-64-3 need without these, and a few more."""
UPDATING_REGISTERS = 30
"""Of a thread that has summed a gradient, besides the sums and the state that it loads then (H200:
20-64-64-3 in float32 with three blocks of 128 threads spills two values)."""


@dataclass(frozen=True)
class Layout:
    """The memory of a schedule.

    places, contents: floats from the start of a block's shared memory by name, and what lies at
        each, in words.
    nbytes: shared memory of a block.
    input_pitch, input_floats: values of a row of the input, and floats of a micro-batch of it.
    raw_pitch: values of a row of the input as the data set stores it.
    target_pitch, target_width: the same of targets.
    receive_floats: floats of a receive buffer; 0 without exchanges.
    shared_state: the float where the optimizer state of all layers begins, with several groups.
    global_tiles: tiles whose optimizer state lies in global memory.
    traced, stamps: steps of a launch that are traced, and stamps of each.
    copies, copied: the float where 16-bit copies of the first `copied` floats begin, which GEMMs
        read: weights, and biases among them. None where there are no copies.
    has_epoch_boundary: a launch is an epoch, and also does what stands between two.
    """

    schedule: Schedule
    layers: tuple[LayerLayout, ...]
    places: dict[str, int] = field(hash=False)
    contents: dict[str, str] = field(hash=False)
    nbytes: int
    input_pitch: int
    input_floats: int
    raw_pitch: int
    target_pitch: int
    target_width: int
    receive_floats: int
    shared_state: int | None
    global_tiles: int
    traced: int = 0
    stamps: int = 0
    copies: int | None = None
    copied: int = 0
    has_epoch_boundary: bool = False

    @property
    def sharding(self) -> Sharding:
        return self.schedule.sharding

    @property
    def sync(self) -> str:
        """How data-parallel groups update: "" (there is one), ALL or SHARE."""
        found = self.schedule.all_reduce
        return "" if found is None else SHARE if found.sharded else ALL

    @property
    def dynamic_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return self.nbytes - FIXED_BYTES

    def with_partial_batch(self) -> Layout:
        """The same for epochs that end with a smaller batch."""
        d = self.sharding
        partial = replace(d, problem=replace(d.problem, partial=True))
        return replace(self, schedule=build(partial, compact=self.schedule.is_compact))

    @property
    def tiles(self) -> int:
        return sum(layer.all_tiles for layer in self.layers)

    @property
    def parts(self) -> int:
        """Parts of a step's loss: of each example where tallies are stored, else of each group, or
        of each block where outputs are sharded."""
        d = self.sharding
        if d.stores_tallies:
            return d.group_batch
        return d.blocks if d.boundaries[-1] == SHARDED else d.dp_size

    @property
    def reports(self) -> str:
        """When a step's loss is stored: AT_ONCE where one block has all of it; behind the steps
        BY_FIRST block, where the parts come from its own group; or BY_LAST block that gets there.
        """
        d = self.sharding
        if self.counters:  # which the last block resets
            return BY_LAST
        if not d.stores_tallies and self.parts * d.micro_batches == 1:
            return AT_ONCE
        return BY_FIRST if d.dp_size == 1 and not (d.via_l2 and self.all_report) else BY_LAST

    @property
    def all_report(self) -> bool:
        """Whether each block of a group has parts of a step's loss."""
        d = self.sharding
        return d.tp_size > 1 and (
            d.shards_softmax or d.splits_examples if d.stores_tallies
            else d.boundaries[-1] == SHARDED)

    def workspaces(self, steps: int) -> dict[str, int]:
        """4-byte words of each workspace of an epoch of so many steps; with members, of each."""
        d = self.sharding
        found = {} if d.members else {"counters": self.counters + 1}
        if d.evaluates:
            return {"parts": 4 * d.tp_size} if self.all_report else {}
        if self.reports != AT_ONCE:
            found["tally"] = 2 * self.parts * d.micro_batches * steps
        if self.sync:
            copies = 2 if self.sync == ALL else 1
            found["gradients"] = copies * d.blocks * self.tiles * TILE * d.published_bytes // 4
        if self.sync == SHARE:
            found["weight_changes"] = d.tp_size * self.tiles * TILE * d.published_bytes // 4
        if self.sync and d.problem.scaled:
            found["overflows"] = 2 * d.blocks * 4
        if self.sync:
            found["all_reduces"] = d.blocks
        if floats := buffers.group_floats(self.schedule):
            found["generations"] = d.blocks
            found["receive_buffers"] = buffers.copies(self.schedule) * d.dp_size * floats
        if d.is_streamed:
            found["generations"] = d.blocks
            found["receive_buffers"] = 4 * sum(streamed_quads(d))
        if self.global_tiles:
            found["optimizer_state"] = d.blocks * self.global_tiles * len(d.problem.states) * TILE
        if self.traced:
            of_warps = (self.traced * self.stamps + LAUNCH_STAMPS) * d.blocks * d.warps
            found["trace"] = of_warps + NANOSECOND_WORDS * d.blocks
        return found

    @property
    def counters(self) -> int:
        """Words of the counter of a grid barrier, for blocks that exchange nothing in a step, or
        only with other groups."""
        d = self.sharding
        if d.via_l2:
            return 0 if self.receive_floats else 1
        return 1 if self.sync and d.tp_size > 1 and not self.receive_floats else 0


def beyond(features: int, step: int) -> int:
    """Floats behind the last row that a tile of 16 features reads, whose values are not used."""
    return max(up(features, 16) - step, 0)


def least_bytes(problem: Problem, tp_size: int, columns: int = 8, compact: bool = True) -> int:
    """A lower bound of a block's shared memory in any sharding by up to `tp_size` blocks and for at
    least so many examples: weights, biases, inputs and sums of each layer, cut as is best for it.
    Sums are the next layer's inputs where a schedule may be `compact`."""
    def floats(ins: int, outs: int, first: bool) -> int:
        inputs = 0 if first else up(ins, 16)  # the first layer's lie elsewhere
        weights = up(ins, 8) * up(outs, 8)
        values = (inputs + up(outs, 8)) * pitch(columns) // (1 + compact)
        return weights + TILE * problem.bias + (values // 2 if problem.halved else values)

    layers = Counter((pair, not n) for n, pair in enumerate(pairwise(problem.layers)))
    return 4 * sum(times * min(floats(ins, outs, first), floats(ins, ceil(outs, tp_size), first),
                               floats(ceil(ins, tp_size), outs, first))
                   for ((ins, outs), first), times in layers.items())


def layout_of(d: Sharding, room: int) -> Layout:
    """The layout of a sharding, whether or not it fits in `room` bytes of shared memory.

    Optimizer state lies in shared memory as far as there is room. So do 16-bit copies of weights
    for GEMMs that take such, where no optimizer state needs the room. Buffers share memory where
    the layout fits only so, or with one group more of the state lies there."""
    schedule = build(d)
    if d.is_streamed:
        memory = streamed_memory(d, room)
        return Layout(
            schedule, (), memory.places, memory.contents,
            nbytes=up(memory.cursor, 4) * 4 + FIXED_BYTES, input_pitch=0, input_floats=0,
            raw_pitch=0, target_pitch=0, target_width=0, receive_floats=1, shared_state=None,
            global_tiles=0)
    found = _layout(schedule, room, False)
    if can_be_compact(d) and (found.nbytes > room or (d.dp_size == 1 and found.global_tiles)):
        compact = build(d, compact=True)
        smaller = _layout(compact, room, False)
        if found.nbytes > room or smaller.global_tiles < found.global_tiles:
            schedule, found = compact, smaller
    if d.problem.halved and found.nbytes < room:
        copied = _layout(schedule, room, True)
        if copied.nbytes <= room and copied.global_tiles == found.global_tiles:
            return copied
    return found


def _layout(schedule: Schedule, room: int, copied: bool) -> Layout:
    d, p, memory = schedule.sharding, schedule.sharding.problem, Memory()
    layers = [_take_weights(schedule, layer, memory, copied) for layer in range(p.depth)]
    base = 0
    for layer in reversed(range(p.depth)):  # tiles are numbered from the last layer on
        layers[layer] = replace(layers[layer], base=base)
        base += layers[layer].all_tiles
    weights = up(memory.cursor, 4) if copied else 0
    copies = memory.take("copies", weights // 2, "weights in 16 bits") if copied else None
    ins = d.ins(0)
    input_pitch = pitch(up(ins, 8))
    raw_pitch = up(ins * p.input_size, 16) // p.input_size
    inputs = d.columns * input_pitch + beyond(ins, input_pitch)
    input_floats = up(inputs, 8) // 2 if p.rounded else up(inputs, 4)
    if d.splits_examples:  # in 16 bits, and of two steps
        input_pitch, input_floats = by_examples.input_pitch(d), by_examples.input_floats(d)
    target_width = 0 if p.labelled or p.reconstruct else d.outs(p.depth - 1)
    target_pitch = up(target_width, 4) + (4 - up(target_width, 4)) % 16 if target_width else 0
    times = schedule.input_buffers
    of_steps = 1 if p.converted and not d.splits_examples else times
    memory.take("x", of_steps * input_floats, "inputs")
    if p.converted:
        memory.take("raw", times * (d.columns * raw_pitch * p.input_size // 4), "inputs as stored")
    if p.normalised:
        memory.take("mean", up(ins, 4), "means of inputs")
        memory.take("inverse_std", up(ins, 4), "scales of inputs")
    _take_values(schedule, memory)
    of_steps = times if d.splits_examples else 1
    memory.take("y", d.columns * (of_steps if p.labelled else times * target_pitch), "targets")
    if p.ordered:
        memory.take("order", (orders_at_once(d) + 1) * d.columns, "numbers of examples")
    memory.take("rules", rules_at_once(p) * RULE_BYTES // 4, "optimizer step")
    if d.members:
        memory.take("settings", 2 * len(p.numeric_settings), "settings of the member")
        memory.take("permutation", PERMUTATION_BYTES // 4, "order of the epoch")
    memory.take("barriers", 8, "barriers")
    for phase in schedule.phases:
        for name, (floats, what) in phase.own_floats(d).items():
            memory.take(name, floats, what)
    memory.take("tallies", 2 * tallies(d), "losses")
    if p.scaled:
        memory.take("scaling", 4, "loss scale")
    receive_floats = buffers.dsmem_floats(schedule)
    if receive_floats and not d.via_l2:
        memory.take("exchange", 2 * receive_floats, "receive buffers")
    memory.take("scratch", max(phase.scratch_floats(d) for phase in schedule.phases), "scratch")
    memory.cursor = up(memory.cursor, 4)
    if d.micro_batches > 1 and d.holds_tiles and p.bias:
        for layer in range(p.depth):
            memory.take(f"s{layer}", up(d.outs(layer), 8), "sums of gradients of biases")
    layers, shared_state, global_tiles = _with_state(schedule, layers, memory, room)
    return Layout(
        schedule, tuple(layers), memory.places, memory.contents,
        nbytes=memory.cursor * 4 + FIXED_BYTES, input_pitch=input_pitch,
        input_floats=input_floats, raw_pitch=raw_pitch, target_pitch=target_pitch,
        target_width=target_width, receive_floats=receive_floats, shared_state=shared_state,
        global_tiles=global_tiles, copies=copies, copied=weights)


def _take_weights(schedule: Schedule, layer: int, memory: Memory, copied: bool) -> LayerLayout:
    """Weights and biases of a layer, and the default tilings of its GEMMs."""
    d, p = schedule.sharding, schedule.sharding.problem
    ins, outs = d.ins(layer), d.outs(layer)
    wide = up(outs, 8)
    # The first layer's inputs lie by examples, so that pairs of rows are read. A pitch of 4 more
    # than a multiple of 16 then uses all 32 banks.
    step = pitch(wide) if layer or copied else wide + (4 - wide) % 16
    rows = up(ins, 16 if layer else 8)  # a backward GEMM reads whole tiles of 16 rows
    tiles, bias_tiles = ceil(ins, 16) * ceil(outs, 8), ceil(outs, TILE) if p.bias else 0
    weights = memory.take(f"w{layer}", rows * step + beyond(outs, step), "weights")
    bias = memory.take(f"b{layer}", bias_tiles * TILE, "biases")
    tilings = {gemm.kind: gemm.tiling(d) for gemm in schedule.gemms if gemm.layer == layer}
    return LayerLayout(rows=rows, pitch=step, weights=weights, bias=bias, across=ceil(outs, 8),
                       tiles=tiles, bias_tiles=bias_tiles, forward=tilings[FORWARD],
                       backward=tilings.get(BACKWARD), update=weight_gradient(d, layer).tiling(d))


def _take_values(schedule: Schedule, memory: Memory) -> None:
    """Values between layers: operands of GEMMs alone, in 16 bits where these take such."""
    d = schedule.sharding
    if d.splits_examples:  # its phases have their own
        return
    p, size = d.problem, 2 if d.problem.halved else 1
    floats = {f"a{n}": up(d.ins(n), 16) * d.pitch // size for n in range(1, p.depth)}
    gradients = {f"z{n}": up(d.outs(n - 1), 8) * d.pitch // size for n in range(1, p.depth + 1)}
    for name, of in schedule.aliases.items():
        floats[of] = max(floats[of], gradients.pop(name))
    for name, many in floats.items():
        memory.take(name, many, "activations")
    for name, many in gradients.items():
        memory.take(name, many, "sums and gradients")
    for name, of in schedule.aliases.items():
        memory.places[name], memory.contents[name] = memory.places[of], memory.contents[of]
    if d.separates_logits:
        rows = p.outputs if d.boundaries[-1] == ALL_GATHERED else d.outs(p.depth - 1)
        memory.take("logits", rows * d.pitch, "outputs")


def _with_state(schedule: Schedule, layers: Sequence[LayerLayout], memory: Memory,
                room: int) -> tuple[list[LayerLayout], int | None, int]:
    """The layers with their optimizer state, the place of that of all layers together with several
    groups, and the tiles whose state lies in global memory.

    State of the largest layers lies in shared memory as far as there is room. In global memory it
    costs round trips to the L2 cache."""
    d, p, found = schedule.sharding, schedule.sharding.problem, list(layers)
    states, global_tiles = len(p.states), 0
    if schedule.all_reduce and states:
        owned = schedule.all_reduce.owned(d)
        if memory.has(owned * states * TILE, room):
            return found, memory.take("state", owned * states * TILE, STATE), 0
        return found, None, owned
    by_size = sorted(range(p.depth), key=lambda i: -layers[i].all_tiles) if states else []
    held = _held_in_registers(d, layers, by_size)
    while held and (far := _beyond_room(layers, by_size, held, states, memory, room)):
        fewer = _held_in_registers(d, layers, by_size, max(
            layers[layer].loaded(states) for layer in far))
        if held & far:  # not even the state of biases fits
            held = set()
        elif fewer == held:
            break
        else:
            held = fewer
    floats = {layer: _state_floats(layers[layer], states, layer in held) for layer in by_size}
    tilings = _tilings_of_single(d, room)
    for layer in by_size:
        part, rows = layers[layer], ceil(d.ins(layer), 16)
        state = memory.take(f"m{layer}", floats[layer], STATE) \
            if memory.has(floats[layer], room) else None
        if d.holds_tiles:
            update = part.update
        elif tilings:
            update = tilings[layer]
        elif state is not None:
            update = update_tiling(rows, part.across, d.columns // 8, d.warps, p.numbers, states)
        else:
            update = global_state_tiling(rows, part.across, d.warps)
        found[layer] = replace(part, state=state, update=update, in_registers=layer in held,
                               global_tile=0 if state is not None else global_tiles)
        global_tiles += part.all_tiles if state is None else 0
    return found, None, global_tiles


def _state_floats(part: LayerLayout, states: int, held: bool) -> int:
    """Floats of a layer's optimizer state in memory, if that of its weights is `held` in registers
    or not."""
    return (part.bias_tiles if held else part.all_tiles) * states * TILE


def _beyond_room(layers: Sequence[LayerLayout], by_size: Sequence[int], held: set[int], states: int,
                 memory: Memory, room: int) -> set[int]:
    """The layers with state in global memory, if registers hold that of some layers' weights."""
    used, found = 0, set()
    for layer in by_size:
        floats = _state_floats(layers[layer], states, layer in held)
        if memory.has(used + floats, room):
            used += up(floats, 4)
        else:
            found.add(layer)
    return found


def _held_in_registers(d: Sharding, layers: Sequence[LayerLayout], by_size: Sequence[int],
                       loaded: int = 0) -> set[int]:
    """The layers whose optimizer state may lie in registers, the largest ones first: as far as
    those of a thread go, besides the sums of micro-batches. Behind a GEMM `loaded` registers more
    are needed for state in global memory and the sums that it belongs to."""
    if not d.holds_tiles or not d.resident:
        return set()
    left = min(d.registers // 8 * 8, MOST_REGISTERS) - max(
        WORKING_REGISTERS[d.problem.numbers], loaded + UPDATING_REGISTERS)
    if d.micro_batches > 1:
        left -= sum(part.registers(d.warps) for part in layers)
    found = set()
    for layer in by_size:
        needed = layers[layer].registers(d.warps) * len(d.problem.states)
        if needed <= left:
            found.add(layer)
            left -= needed
    return found


def _tilings_of_single(d: Sharding, room: int) -> list[Tiling]:
    """How the kernel of one network tiles the gradients, where members do the same: on it depends
    the order of sums. There, more state may lie in shared memory."""
    if d.members is None or d.members.single is None or d.holds_tiles or d.evaluates:
        return []
    single = replace(d, problem=d.members.single, members=None)
    return [part.update for part in layout_of(single, room).layers]
