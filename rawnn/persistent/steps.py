"""The text of a step of a training kernel, phase by phase."""

from __future__ import annotations

from rawnn.persistent.exchanges import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, Exchange, share_of
from rawnn.persistent.inputs import BETWEEN
from rawnn.persistent.layout import tallies
from rawnn.persistent.loss import LossWriter
from rawnn.persistent.sharding import (
    ALL_GATHERED,
    COLUMN_PARALLEL,
    REPLICATED_LAYER,
    SHARDED,
    ceil,
)
from rawnn.persistent.writer import literal


class StepWriter(LossWriter):
    """Writes the phases of a step, one behind the other."""

    def step(self) -> None:
        d, p, w = self.d, self.p, self.w
        for layer, stream in enumerate(p.streams):
            n = layer + 1
            w(f"const StochasticRounding<{p.layers[layer]}> chance{n} = {{seed, {stream}u, "
              f"steps_before + u, part{n}.out, part{n}.in}};")
        self.emit_flag_bit()
        if d.micro_batches == 1:
            self.whole_turn()
            self.all_reduce_gradients(self.while_meeting)
            if p.scaled:
                w(f"if (thread == 0) scaling->adjust(left_out, {p.growth}, (u + 1) & 1);")
            self.next_turn()
            self.stamp(BETWEEN, "next input")
            return
        w(f"for (int part = 0; part < {d.micro_batches}; ++part) {{")
        w(f"const int t = u * {d.micro_batches} + part;")
        self.whole_turn()
        self.next_turn()
        self.in_turn = True
        self.stamp(BETWEEN, "next input")
        self.in_turn = False
        w("}")
        self.all_reduce_gradients(self.while_meeting)
        w("__syncthreads();")
        self.stamp(BETWEEN, "next step")

    def whole_turn(self) -> None:
        """From the examples of a turn to its gradients."""
        p, w, found = self.p, self.w, self.layout
        self.in_turn, self.fetched = True, False
        self.input()
        if p.scaled:
            w("int* const found = scaling->found + (u & 1);")
        for layer in range(p.depth):
            self.forward(layer)
        self.loss()
        waiting: list[int] = []  # a layer's weights are updated once its backward product is done
        whole = p.scaled and not found.sync  # no update before it is known that the step counts
        for layer in range(p.depth - 1, 0, -1):
            self.backward(layer, [] if whole else waiting)
            waiting.append(layer)
        if whole:
            self.publish_overflow()
            self.receive_overflow()
            self.stamp("overflow")
            w("if (!left_out) {")
        elif p.scaled:
            self.publish_overflow()
            self.stamp("overflow", "send")
        self.gradients([*waiting, 0])
        if whole:
            w("}")
        elif p.scaled:
            self.receive_overflow()
            self.stamp("overflow")
        self.in_turn = False

    def product(self, kind: str, layer: int, finish: str, count: str, *, sent: bool = False,
                biased: bool = False) -> None:
        """The forward or backward product of a layer, of which `count` rows are wanted. `finish` is
        a lambda of (m, e, v0, v1), or where the result is sent to other blocks of (m, e, v): with
        the layer's biases, if the product is to be `biased`."""
        d, w, part = self.d, self.w, self.layout.layers[layer]
        tiles = part.forward if kind == "forward" else part.backward
        assert tiles is not None
        ins, outs = d.ins(layer), d.outs(layer)
        n = layer + 1
        if kind == "forward":
            rows, inner = ceil(outs, 16), ceil(ins, 8)
            ways, right = f"false, {literal(layer == 0)}", self.a(layer)
            pitch = d.pitch if layer else self.layout.input_pitch
            type_ = self.type_of(layer)
        else:
            rows, inner = ceil(ins, 16), ceil(outs, 8)
            ways, right, pitch = "true, false", self.z(layer + 1), d.pitch
            type_ = self.type_of(layer + 1)
        self.scratched = tiles.split > 1
        first = kind == "forward" and layer == 0
        if first:
            self.make_rule("u", "rate" if self.p.scheduled else self.rate(""))
        of_weights, weights = self.weights_of(layer)
        head = f"Product<Shape, {ways}, {rows}, {d.columns // 8}, {inner}, {tiles.split}, " \
               f"{tiles.down}, {tiles.across}, {part.pitch}, {pitch}, false, {of_weights}, " \
               f"{type_}>::run({weights}, {right}, 0, "
        biased = biased and self.p.bias
        if tiles.split == 1:
            ends = f"{'quads' if sent else 'pairs'}({finish})"
            w(f"{head}{f'biased(biases{n}, {count}, {ends})' if biased else ends});")
            self.stamp(f"{kind} {n}")
            return
        scratch = self.at("scratch")
        w(f"{head}store_parts<Shape, {rows * 16}>({scratch}));")
        self.stamp(f"{kind} {n}")
        w("__syncthreads();")
        body = finish if sent else f"by_pairs({finish})"
        w(f"add_parts<Shape, {tiles.split}, {rows * 16}>({scratch}, {count}, "
          f"{self.with_bias(layer, body) if biased else body});")
        self.stamp(f"{kind} {n}", "parts")

    def with_bias(self, layer: int, body: str) -> str:
        """A body of four numbers of a row, to which its bias is added."""
        return f"with_bias(biases{layer + 1}, {body})" if self.p.bias else body

    @staticmethod
    def body(limit: str, text: str) -> str:
        """A lambda over pairs of a row `m` (below the limit) and the examples e, e + 1."""
        return f"[=](int m, int e, float v0, float v1) {{\nif (m < {limit}) {{\n{text}\n}}\n}}"

    def sender(self, limit: str, text: str) -> str:
        """A lambda over a row `m` below the limit and the examples e .. e + 3 that are sent."""
        there = f"m < {limit}" + (f" && e < {self.d.sent}" if self.d.sent < self.d.columns else "")
        return f"[=](int m, int e, float4 v) {{\nif ({there}) {{\n{text}\n}}\n}}"

    def store(self, to: str, first: str = "v0", second: str = "v1", row: str = "m") -> str:
        return f"store_two<Shape>({to} + ({row}) * {self.d.pitch} + e, {first}, {second});"

    def keep(self, boundary: int, to: str) -> str:
        """Text that applies the activation and stores at `to`."""
        if boundary == self.p.depth:
            return self.store(to)
        kept = [self.store(self.z(boundary))] if self.p.saves_input else []
        return "\n".join([*kept, self.store(to, "Between::apply(v0)", "Between::apply(v1)")])

    def keep_and_send(self, boundary: int, message: Exchange) -> str:
        """The same for a row of this block's shard, which is then sent to all blocks."""
        lines, each = [], "xyzw"
        if boundary < self.p.depth:
            if self.p.saves_input:
                lines.append(f"store_four<Shape>({self.z(boundary)} + m * {self.d.pitch} + e, v);")
            applied = ", ".join(f"Between::apply(v.{c})" for c in each)
            lines.append(f"v = make_float4({applied});")
        lines.append(message.send_row())
        return "\n".join(lines)

    def forward(self, layer: int) -> None:
        d, p, w = self.d, self.p, self.w
        kind, above = d.layer_kinds[layer], layer + 1
        type_, n = d.boundaries[above], p.layers[above]
        last = above == p.depth
        w(f"// forward {above}: {kind}")
        home = self.logits if last else self.a(above)
        count = self.count(above)
        finish = self.loss_of_outputs() if last and not p.labelled \
            else self.body(count, self.keep(above, home))
        if kind == REPLICATED_LAYER or (kind == COLUMN_PARALLEL and type_ == SHARDED):
            if not layer and not self.waits_for_others and self.free:
                self.fetch_once()  # by the warps that the product leaves without a task
            self.product("forward", layer, finish, count, biased=True)
            if not self.waits_for_others:
                self.fetch_once()
        elif kind == COLUMN_PARALLEL:
            idle = d.idle(above)
            message = self.exchange(ALL_GATHER, n, d.shards[above], f"n{above}", idle=idle,
                                    flags=idle)
            self.product("forward", layer, self.sender(
                count, self.keep_and_send(above, message)), count, sent=True, biased=True)
            phase = f"gather {above}"
            self.fetch_once()
            message.wait(phase)
            message.recv(n, f"by_pairs({self.body(str(n), self.store(home))})")
        else:
            phase = f"sum {above}"
            self.all_reduce("forward", layer, n, finish, [], phase)
        if last and not p.labelled:
            w(f"if (thread < {tallies(d)}) tallies[thread] = tallied;")
        w("__syncthreads();")
        if kind == REPLICATED_LAYER or (kind == COLUMN_PARALLEL and type_ == SHARDED):
            self.stamp(f"forward {above}", "barrier")
        else:
            self.stamp(phase)

    def all_reduce(self, kind: str, layer: int, n: int, body: str, meanwhile: list[int],
                   phase: str) -> None:
        """A GEMM whose partial sums are all-reduced: every block reduces all of them, or a
        reduce-scatter is followed by an all-gather."""
        d = self.d
        finish = f"by_pairs({body})"
        if kind == "forward":
            finish = self.with_bias(layer, finish)
        if d.is_one_shot(n):
            message = self.exchange(ALL_REDUCE, n * d.tp_size, n, str(n), parts=d.tp_size)
            self.product(kind, layer, self.sender(str(n), message.send_row()), str(n), sent=True)
            self.fetch_once()
            self.gradients(meanwhile)
            message.wait(phase)
            message.recv(n, finish)
            return
        size, mine = share_of(n, d.tp_size)
        parts = self.reduce(kind, layer, n, size, mine)
        self.fetch_once()
        self.gradients(meanwhile)
        parts.wait(phase)  # must precede the announcement of the next exchange
        sums = self.exchange(ALL_GATHER, n, size, mine)
        parts.recv(mine, self.sender(mine, sums.send_row()))
        self.stamp(phase, "share")
        sums.wait(phase)
        sums.recv(n, finish)

    def reduce(self, kind: str, layer: int, n: int, size: int, mine: str,
               idle: int = 0) -> Exchange:
        """A GEMM whose partial sums go to the block that `size` rows of them belong to. The last
        `idle` blocks have no rows and receive flags."""
        ranks = self.d.tp_size
        message = self.exchange(REDUCE_SCATTER, size * ranks, size, mine, parts=ranks, idle=idle,
                                flags=ranks if idle else 0)
        self.product(kind, layer, self.sender(str(n), message.send_row()), str(n), sent=True)
        return message

    def slope(self, boundary: int, row: str, saved_row: str) -> str:
        """Text that stores a gradient of the boundary's pre-activations."""
        p = self.p
        z = self.z(boundary)
        saved = f"{z} + ({row}) * {self.d.pitch}" if p.saves_input \
            else f"{self.a(boundary)} + ({saved_row}) * {self.d.pitch}"
        kept = f"const float2 kept = load_two<Shape>({saved} + e);\n"
        slopes = "Between::backward(v0, kept.x)", "Between::backward(v1, kept.y)"
        if not p.scaled:
            return kept + self.store(z, *slopes, row)
        return f"{kept}const float d0 = {slopes[0]}, d1 = {slopes[1]};\n" \
               "report_overflow(found, poison<float16>(v0) + poison<float16>(v1) + " \
               "poison<float16>(d0) + poison<float16>(d1));\n" + self.store(z, "d0", "d1", row)

    def backward(self, layer: int, waiting: list[int]) -> None:
        """The gradient of boundary `layer`, and the weight gradients that wait beside it."""
        d, p, w = self.d, self.p, self.w
        type_, n, size = d.boundaries[layer], p.layers[layer], d.shards[layer]
        phase = f"sum of gradient {layer}"
        w(f"// backward {layer + 1}: {d.layer_kinds[layer]}")
        if d.layer_kinds[layer] != COLUMN_PARALLEL:
            if type_ == ALL_GATHERED:
                text = f"const int own = m - rank * {size};\n" \
                       f"if (own >= 0 && own < n{layer}) {{\n{self.slope(layer, 'own', 'm')}\n}}"
                count = str(n)
            else:
                text, count = self.slope(layer, "m", "m"), self.count(layer)
            self.product("backward", layer, self.body(count, text), count)
            tiles = self.layout.layers[layer].backward
            assert tiles is not None
            self.gradients(waiting, tiles.tasks % d.warps if tiles.split == 1 else 0)
        elif type_ == ALL_GATHERED:
            idle = d.idle(layer)
            message = self.reduce("backward", layer, n, size, f"n{layer}", idle)
            self.gradients(waiting)
            body = self.body(f"n{layer}", self.slope(layer, "m", f"rank * {size} + m"))
            message.wait(phase)
            message.recv(f"n{layer}", f"by_pairs({body})")
        else:
            self.all_reduce("backward", layer, n, self.body(str(n), self.slope(layer, "m", "m")),
                            waiting, phase)
        w("__syncthreads();")
        self.stamp(*((phase,) if d.layer_kinds[layer] == COLUMN_PARALLEL
                     else (f"backward {layer + 1}", "barrier")))
