"""The phases of a step whose operands stream from L2 (ptx/persistent/streamed.cuh): in each, a
block receives what the others published, multiplies it as it arrives, and publishes its share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rawnn.model.activations import activation
from rawnn.persistent.phases.phase import BETWEEN, OTHER_BLOCKS, TENSOR_CORES, Line, Phase
from rawnn.persistent.phases.softmax import place_of_tallies
from rawnn.persistent.phases.streamed_text import (
    NET,
    SCRATCH,
    WEIGHTS,
    biases_of,
    called,
    fetch_ahead,
    gathered,
    gathered_of,
    net_for,
    other,
    rank_for,
    scratch_for,
    stage,
    stages,
    weights_called,
    weights_of,
    words_of,
)
from rawnn.persistent.sharding import STREAMED_WIDTH, Sharding, ceil
from rawnn.persistent.streamed import splits_of
from rawnn.persistent.tiles import softmax_of

if TYPE_CHECKING:
    from rawnn.persistent.cost import CostModel
    from rawnn.persistent.interpreter import Array, Block, Interpreter
    from rawnn.persistent.writer import Kernel

PRODUCT, SUMS = 24.0, 420.0
"""Cycles in which a warp multiplies 16 features of 16 examples, on its quarter of a multiprocessor,
and those in which the block adds up its warps' sums, with the epilogue. This and all below is from
traces of 784-256-256-256-10 to 784-1024-1024-1024-10 (H200)."""
GRADIENT, GRADIENT_TILE = 300.0, 185.0
"""Cycles of the gradient below the last layer: in any case, and for each 16 features of 16 examples
of a warp."""
UPDATE, UPDATE_TILE = 200.0, 95.0
"""Likewise of an update of weights."""
STAGED = 500.0
"""Cycles in which a cluster's share of a boundary gets to shared memory."""
SHARED_STEP, PARTS, PART_BYTES, LOGITS, AFTER_SEND = 75.0, 1030.0, 24.0, 1900.0, 700.0
"""Likewise for each step of it that a warp multiplies, those of the exchange of partial sums, and
bytes of them in a cycle."""
SEND, SEND_PAIR = 300.0, 0.13
"""Cycles in which new weights are sent: in any case, and for each ordered pair of blocks."""


@dataclass(frozen=True)
class Streamed(Phase):
    """What the phases share: the numbers of the templates."""

    layer: int = 0
    header, lane = "streamed.cuh", TENSOR_CORES

    @staticmethod
    def tiles(d: Sharding) -> int:
        """Tiles of 16 features and 16 examples of a hidden boundary that a warp multiplies."""
        return ceil(d.problem.layers[1] // 16, d.warps) * ceil(d.columns, 16)

    def products(self, d: Sharding, tiles: int = 0) -> float:
        """Cycles in which all warps multiply so many tiles each (0: of a hidden boundary), and add
        up their sums."""
        return (tiles or self.tiles(d)) * ceil(d.warps, 4) * PRODUCT + SUMS

    def input_tiles(self, d: Sharding) -> int:
        """Tiles of the inputs that a warp multiplies: two at a time, of 32 features."""
        return 2 * ceil(ceil(d.problem.layers[0], 32), d.warps) * ceil(d.columns, 16)

    def fetched(self, model: CostModel) -> float:
        """Cycles until the inputs of a step are in registers, from L2."""
        nbytes = model.p.layers[0] * model.d.columns * 2 / model.d.peers
        return model.costs.fetch + nbytes / model.costs.via_l2_bytes

    def multiplied(self, model: CostModel, is_first: bool = False) -> float:
        """Cycles of a GEMM behind the first layer, or of the first one, until the sums of all warps
        or blocks are added up."""
        d = model.d
        if d.peers == 1:
            return self.products(d, self.input_tiles(d) if is_first else 0)
        steps = 2 * ceil(ceil(d.problem.layers[0], 32), d.peers) if is_first else \
            d.problem.layers[1] // 16 // d.peers
        parts = splits_of(d)
        return SHARED_STEP * ceil(steps, parts) * ceil(d.columns * d.peers, 256) \
            + PARTS + parts * d.peers * d.columns * STREAMED_WIDTH * 4 / PART_BYTES

    def received(self, model: CostModel) -> float:
        """Cycles from the first store of an exchange until all of it is in registers."""
        d, costs = model.d, model.costs
        nbytes = d.problem.layers[1] * d.columns * 2 / d.peers
        staged = STAGED if d.peers > 1 else 0.0
        return costs.via_l2 + costs.via_l2_block * d.tp_size + nbytes / costs.via_l2_bytes + staged

    # -- text --------------------------------------------------------------------------------------
    def claim_stamps(self, k: Kernel, of_layer: str = "") -> str:
        """C++: the stamps of the phase, whose numbers no later phase gets. In a loop over layers
        `of_layer` is added to those of the first."""
        first = k.stamped[k.in_micro_batch]
        k.stamped[k.in_micro_batch] += len(self.stamps(k.d))
        return f"{{stamps, u, {first}{of_layer}}}" if k.layout.traced else "{}"

    def passed_back(self, k: Kernel, n: str) -> str:
        """What pass_back gets of the layer `n` (C++)."""
        places, p = k.layout.places, k.p
        size = places["own a2"] - places["own a1"]
        own_z = f"{places.get('own z1', 0)} + ({n} - 2) * {size if p.bias else 0}"
        to = "nullptr"
        if p.depth > 3 or k.d.peers > 1:
            to = f"{gathered_of(k.d, 'z', n, -1)} + rank * {NET}::kQuads"
        if p.depth > 3 and k.d.peers == 1:
            to = f"({n} > 2 ? {to} : nullptr)"
        return f"{places['own a1']} + ({n} - 2) * {size}, {own_z}, " \
               f"{weights_of(k.layout, n)}, {to}, bit, rule"

    # -- meaning -----------------------------------------------------------------------------------
    def publish(self, run: Interpreter, block: Block, name: str, v: Array) -> None:
        """Keeps the block's own values or gradients of a boundary, and sends them."""
        block.at[f"own {name}"] = v
        send(run, block, name, v)

    def activated(self, run: Interpreter, block: Block, sums: Array) -> None:
        n = self.layer + 1
        v = sums + block.at[f"b{n}"][:, None] if run.p.bias else sums
        self.publish(run, block, f"a{n}", activation(run.p.activation).function(v))

    def pass_back(self, run: Interpreter, block: Block, n: int, gradient: Array) -> None:
        """The backward GEMM of layer `n`, and the update of its weights."""
        below = block.at[f"own a{n - 1}"]
        v = block.at[f"w{n}"].T @ gradient * activation(run.p.activation).slope(below)
        block.at[f"own z{n - 1}"] = v
        if n > 2:
            send(run, block, f"z{n - 1}", v)
        run.update(block, f"w{n}", gradient @ below.T, slice(None))


def send(run: Interpreter, block: Block, name: str, v: Array) -> None:
    for each in run.group(block):
        each.received.setdefault(name, {})[block.tp_rank] = v


def gather(run: Interpreter, block: Block, name: str, axis: int = 0) -> Array:
    parts = block.received.pop(name)
    return np.concatenate([parts[rank] for rank in range(run.d.tp_size)], axis=axis)


class FirstForward(Streamed):
    """The first layer, whose inputs come from the data set."""

    def stamps(self, d: Sharding) -> Sequence[str]:
        return ("fetch", "work", "send")

    def cost(self, model: CostModel) -> Iterator[Line]:
        yield Line(self.name, self.fetched(model) + self.multiplied(model, is_first=True))

    def emit(self, k: Kernel) -> None:
        places = k.layout.places
        if k.d.peers > 1:
            k.w("typename Net::Early early_weights;")
            k.w("net.request_weights(early_weights, sent_weights);")
            k.w(f"net.first_forward({stage(k, 'u')}, {places['weights1']}, "
                f"{biases_of(k.layout, 1)}, {places['own a1']}, {gathered(k.d, 'a1')} + rank * "
                f"{NET}::kQuads, bit, {self.claim_stamps(k)});")
            return
        k.w(f"int {SCRATCH} = {places['scratch0']};")
        k.w(f"{NET}::first_forward(images, ldimages, {places['rows']} + (u & 1) * {k.d.columns}, "
            f"{stage(k, 'u')}, {places['weights1']}, {biases_of(k.layout, 1)}, "
            f"{places['own a1']}, {gathered(k.d, 'a1')} + rank * {NET}::kQuads, bit, {SCRATCH}, "
            f"{self.claim_stamps(k)});")

    def interpret(self, run: Interpreter, block: Block) -> None:
        self.activated(run, block, block.at["w1"] @ block.at["x"])


class ReceiveWeights(Streamed):
    """The weights that other blocks updated at the end of the step before."""

    lane = OTHER_BLOCKS

    def stamps(self, d: Sharding) -> Sequence[str]:
        return ("wait",)

    def cost(self, model: CostModel) -> Iterator[Line]:
        yield Line(self.name, 0.0)  # while the first exchange is on its way

    def emit(self, k: Kernel) -> None:
        places = k.layout.places
        k.w("if (u > 0) {")
        if k.d.peers > 1:
            k.w(f"net.receive_weights<{k.p.depth - 2}>(early_weights, sent_weights, "
                f"{places['words']}, changed ^ 1u);")
        else:
            k.w(f"{WEIGHTS}::receive_weights<{k.p.depth - 2}>(sent_weights, rank, "
                f"{places['words']}, changed ^ 1u);")
        if k.p.depth == 3:  # what is received ahead of the last exchange but one is not overtaken
            k.w(f"{weights_called(k)}receive_last({net_for(k)}sent_last, {places['last words']}, "
                f"changed ^ 1u);")
        k.w("}")
        k.stamp(self.name, "wait")

    def interpret(self, run: Interpreter, block: Block) -> None:
        for n in range(2, run.p.depth + 1):
            rows = slice(None) if n == run.p.depth else run.own(block, n)
            if f"w{n}" in block.received:
                block.at[f"rows{n}"] = gather(run, block, f"w{n}", axis=1)[rows]
            else:  # the first step of a launch
                block.at[f"rows{n}"] = run.arrays[f"w{n}"][rows]


class Forward(Streamed):
    """A layer between the first and the last."""

    def stamps(self, d: Sharding) -> Sequence[str]:
        return ("wait", "work", "send")

    def cost(self, model: CostModel) -> Iterator[Line]:
        yield Line(self.name, self.received(model) + self.multiplied(model))

    def emit(self, k: Kernel) -> None:
        """The first of these layers emits a loop over all."""
        places, w = k.layout.places, k.w
        if self.layer > 1:
            self.claim_stamps(k)  # the loop of the first of these layers stamps them
            return
        size = places["own a2"] - places["own a1"]
        w("#pragma unroll 1")
        w(f"for (int n = 2; n < {k.p.depth}; ++n) {{")
        w(f"if (n == 3 && u > 0) {weights_called(k)}receive_last({net_for(k)}sent_last, "
          f"{places['last words']}, changed ^ 1u);")
        if k.d.peers == 1:
            w(f"{SCRATCH} = {other(k)};")
        w(f"float4* const from = {gathered_of(k.d, 'a', 'n', -1)};")
        # In `gathers` the next layer's follows. Counted from `from`, which is in a register.
        w(f"{called(k)}forward(from, {words_of(k.layout, 'n')}, {biases_of(k.layout, 'n')}, "
          f"{places['own a1']} + (n - 1) * {size}, "
          f"from + ({NET}::kBlocks + rank) * {NET}::kQuads, bit, {scratch_for(k)}"
          f"{self.claim_stamps(k, f' + (n - 2) * {len(self.stamps(k.d))}')});")
        w("if (n == 2) {  // while what was sent is on its way")
        if stages(k) == 2:
            fetch_ahead(k)
        else:
            w(f"if (warp_index() == {k.d.warps - 1}) {NET}::load_ahead(images, ldimages, "
              f"{places['rows']} + ((u + 1) & 1) * {k.d.columns}, {places['copies']}, rank);")
        w("}")
        w("}")

    def interpret(self, run: Interpreter, block: Block) -> None:
        n = self.layer + 1
        self.activated(run, block, block.at[f"rows{n}"] @ gather(run, block, f"a{n - 1}"))


class Last(Streamed):
    """The last layer and the loss, in all blocks alike; what is received becomes the gradient of
    the boundary below, in registers, and the operand of the backward GEMM below."""

    def stamps(self, d: Sharding) -> Sequence[str]:
        return ("wait", "logits", "softmax", "gradient", "work", "send", "update")

    def cost(self, model: CostModel) -> Iterator[Line]:
        d, costs, halves = model.d, model.costs, ceil(model.p.outputs, STREAMED_WIDTH)
        yield Line(self.name, self.received(model) + (
            LOGITS if d.peers > 1 else (1 + 0.3 * (halves - 1)) * self.products(d)))
        yield Line("softmax", costs.softmax + costs.softmax_rows * softmax_of(d).cycles)
        yield Line(f"backward {self.layer}", GRADIENT + GRADIENT_TILE * self.tiles(d) / d.peers
                   + self.multiplied(model))

    def emit(self, k: Kernel) -> None:
        d, p, w, n, places = k.d, k.p, k.w, k.p.depth, k.layout.places
        gradient = k.values("gradient")
        w("const auto of_batch = [=] {")
        w(f"softmax_loss<Shape, {p.outputs}, {softmax_of(d).lanes}>({k.at('logits')}, {gradient}, "
          f"0, {p.outputs}, y_now, present, {k.mean(p.batch)}, {place_of_tallies(k)});")
        w("};")
        if d.peers > 1:
            self.emit_in_clusters(k)
            return
        w(f"{SCRATCH} = {other(k)};")
        w(f"{NET}::last_layer({gathered(k.d, f'a{n - 1}')}, "
          f"{places['last words']}, {biases_of(k.layout, n)}, {places['logits']}, "
          f"{places['gradient']}, "
          f"{SCRATCH}, {other(k)}, of_batch, {self.passed_back(k, str(n - 1))}, "
          f"{self.claim_stamps(k)});")
        if p.outputs > STREAMED_WIDTH:
            w(f"{SCRATCH} = {other(k)};")
        self.update(k, f"{NET}::at_as<const uint4>({places['last words']})")
        if k.layout.traced:
            w(f"stamps.stamp(u, {k.stamped[True] - 1});")

    def emit_in_clusters(self, k: Kernel) -> None:
        """A loop over all backward GEMMs, those of `Backward` included, so that their code is there
        once."""
        w, n, places = k.w, k.p.depth, k.layout.places
        first = k.stamped[k.in_micro_batch]
        stamps = self.claim_stamps(k)
        each = len(Backward("").stamps(k.d))

        def of_layer(ahead: int) -> str:  # those of `Backward` follow, a layer each
            place = first + len(self.stamps(k.d)) - ahead
            return f"{{stamps, u, {place} + ({n - 2} - n) * {each}}}" if k.layout.traced else "{}"

        w("#pragma unroll 1")
        w(f"for (int n = {n - 1}; n > 1; --n) {{")
        w(f"if (n == {n - 1}) {{")
        w(f"net.last_layer({gathered(k.d, f'a{n - 1}')}, {gathered(k.d, f'a{n - 2}')}, "
          f"{places['last words']}, {biases_of(k.layout, n)}, {places['logits']}, "
          f"{places['gradient']}, of_batch, bit, {stamps});")
        w("} else {")
        w(f"net.receive_gradient({gathered_of(k.d, 'z', 'n')}, {gathered_of(k.d, 'a', 'n', -1)}, "
          f"bit, {of_layer(0)});")
        w("}")
        w(f"net.pass_back({self.passed_back(k, 'n')}, {of_layer(-1)});")
        w(f"if (n == {n - 1}) {{")
        self.update(k, f"net.own_last({places['last words']})")
        w("}")
        if k.layout.traced:
            last = first + len(self.stamps(k.d)) + each - 1
            w(f"stamps.stamp(u, {last} + ({n - 2} - n) * {each});")
        w("}")

    def update(self, k: Kernel, words: str) -> None:
        """The update of the last layer, whose `words` (C++) that of the biases below takes."""
        d, p, w, n, places = k.d, k.p, k.w, k.p.depth, k.layout.places
        gradient = k.values("gradient")
        own = f"{NET}::at_as<float4>({places[f'own a{n - 1}']})"
        w(f"if (warp_index() == {d.warps - 1}) {{")
        w(f"{NET}::update_last({gradient}, {own}, "
          f"{NET}::at_as<float4>({places['last weights']}), {NET}::at({biases_of(k.layout, n)}), "
          f"sent_last, rank, changed, rule);")
        w("}")
        if p.bias:
            w(f"if (warp_index() == {d.warps - 2}) {{")
            w(f"{NET}::update_biases_below({gradient}, {words}, rank, {own}, "
              f"{NET}::at({biases_of(k.layout, n - 1)}), rule);")
            w("}")

    def interpret(self, run: Interpreter, block: Block) -> None:
        n = run.p.depth
        values = gather(run, block, f"a{n - 1}")
        z = block.at[f"rows{n}"] @ values
        z = z + block.at[f"b{n}"][:, None] if run.p.bias else z
        power = np.exp(z - z.max(axis=0))
        hot = np.arange(run.p.outputs)[:, None] == block.at["y"][None]
        gradient = (power / power.sum(axis=0) - hot) / len(run.inputs)
        below = block.at[f"rows{n}"].T @ gradient * activation(run.p.activation).slope(values)
        self.pass_back(run, block, n - 1, below)
        run.update(block, f"w{n}", gradient @ block.at[f"own a{n - 1}"].T, slice(None))
        if run.p.bias:
            run.update(block, f"b{n}", gradient.sum(axis=1), slice(None))
            own = below[run.own(block, n - 1)]
            run.update(block, f"b{n - 1}", own.sum(axis=1), slice(None))


class Backward(Streamed):
    """A layer between the first and the last: its gradient of the inputs, and its update."""

    def stamps(self, d: Sharding) -> Sequence[str]:
        return ("wait", "work", "send", "update")

    def cost(self, model: CostModel) -> Iterator[Line]:
        """The update of the layer above runs while the gradient is on its way."""
        yield Line(self.name, self.received(model) + self.multiplied(model))

    def emit(self, k: Kernel) -> None:
        """The first of these layers emits a loop over all."""
        w, first = k.w, k.p.depth - 2
        if self.layer + 1 < first or k.d.peers > 1:
            self.claim_stamps(k)  # a loop of the first of these layers stamps them, or of the last
            return
        w("#pragma unroll 1")
        w(f"for (int n = {first}; n > 1; --n) {{")
        w(f"const float4* const from = {gathered_of(k.d, 'z', 'n')};")
        w(f"{NET}::backward(from, {SCRATCH}, {self.passed_back(k, 'n')}, "
          f"{self.claim_stamps(k, f' + ({first} - n) * {len(self.stamps(k.d))}')});")
        w(f"{SCRATCH} = {other(k)};")
        w("}")

    def interpret(self, run: Interpreter, block: Block) -> None:
        n = self.layer + 1
        self.pass_back(run, block, n, gather(run, block, f"z{n}"))


class UpdateFirst(Streamed):
    """New weights are sent to the blocks that need them in the next step, and the first layer is
    updated."""

    def stamps(self, d: Sharding) -> Sequence[str]:
        return ("send", "fetch", "work")

    def cost(self, model: CostModel) -> Iterator[Line]:
        d = model.d
        yield Line("new weights", UPDATE + UPDATE_TILE * self.tiles(d)
                   + SEND + SEND_PAIR * d.tp_size**2)
        update = UPDATE + UPDATE_TILE * self.input_tiles(d)
        if d.peers > 1:  # gradients of the cluster come while new weights are sent
            yield Line(self.name, AFTER_SEND + update)
        else:
            yield Line(self.name, self.fetched(model) + update)
        yield Line(BETWEEN, model.costs.step)

    def emit(self, k: Kernel) -> None:
        d, p, w, places = k.d, k.p, k.w, k.layout.places
        if d.peers > 1:
            w(f"const float4 early_z1 = ptx::load_flagged(net.quad_of_peers({gathered(d, 'z1')}));")
        w(f"{weights_called(k)}send_weights<{p.depth - 2}>({net_for(k)}sent_weights, {rank_for(k)}"
          f"{places['weights']}, changed);")
        if d.peers == 1:
            w("__syncthreads();")
        stamped = self.claim_stamps(k)
        if k.layout.traced:
            w(f"stamps.stamp(u, {k.stamped[True] - 3});")
        next_rows = f"{places['rows']} + ((u + 1) & 1) * {d.columns}"
        if d.peers == 1:
            self.update_biases(k)
        if d.peers > 1:
            w(f"net.update_first(images, ldimages, {next_rows}, {gathered(d, 'z1')}, "
              f"early_z1, {stage(k, 'u')}, {places['weights1']}, bit, rule, {stamped});")
            self.update_biases(k)  # behind a barrier of update_first
        else:
            w(f"{NET}::update_first(images, ldimages, {places['rows']} + (u & 1) * {d.columns}, "
              f"{next_rows}, {stage(k, 'u')}, {places['own z1']}, {places['weights1']}, rule, "
              f"{stamped});")
        w(f"if (thread < {d.columns}) y[((u + 1) & 1) * {d.columns} + thread] = next_label, "
          f"next_row = row_after_next;")
        if stages(k) == 0:
            w("ptx::wait_for_copies<0>();")
        w("__syncthreads();")
        if k.layout.traced:
            w(f"stamps.stamp(u, {k.stamped[True] - 1});")

    def update_biases(self, k: Kernel) -> None:
        for n in range(1, k.p.depth - 1) if k.p.bias else ():
            k.w(f"if (warp_index() == {k.d.warps - n}) {NET}::update_biases({NET}::at_as<const "
                f"float4>({k.layout.places[f'own z{n}']}), {NET}::at({biases_of(k.layout, n)}), "
                f"rule);")

    def interpret(self, run: Interpreter, block: Block) -> None:
        for n in range(2, run.p.depth + 1):
            send(run, block, f"w{n}", block.at[f"w{n}"].copy())
        for n in range(1, run.p.depth - 1) if run.p.bias else ():
            run.update(block, f"b{n}", block.at[f"own z{n}"].sum(axis=1), slice(None))
        run.update(block, "w1", block.at["own z1"] @ block.at["x"].T, slice(None))
