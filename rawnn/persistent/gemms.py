"""Emits GEMMs and the receiving ends of exchanges, with the epilogues of both."""

from __future__ import annotations

from rawnn.persistent import phases
from rawnn.persistent.exchanges import ExchangeEmitter, rows_of_block
from rawnn.persistent.layout import ALL
from rawnn.persistent.loss import LossEmitter
from rawnn.persistent.phases import Epilogue, Exchange, Gemm
from rawnn.persistent.sharding import TILE, ceil
from rawnn.persistent.updates import UpdateEmitter
from rawnn.persistent.writer import Emitter, Kernel, literal


class GemmEmitter(Emitter):
    """Emits `Gemm` and `Exchange`."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.exchanges = ExchangeEmitter(kernel)
        self.loss, self.updates = LossEmitter(kernel), UpdateEmitter(kernel)

    # -- phases ------------------------------------------------------------------------------------
    def begin_forward(self) -> None:
        """Declares what the epilogues use; ahead of a prefetch beside the first GEMM."""
        if self.p.scaled:
            self.w("int* const found = scaling->found + (u & 1);")
        if self.p.depth == 1 and not self.p.labelled:
            self.loss.declare_loss()

    def gemm(self, g: Gemm) -> None:
        """A forward or backward GEMM."""
        d, p, w, end = self.d, self.p, self.w, g.epilogue
        n, boundary = g.layer + 1, g.layer + (g.kind == phases.FORWARD)
        first = g.kind == phases.FORWARD and g.layer == 0
        w(f"// {g.kind} {n}: {d.layer_kinds[g.layer]}")
        if g.kind == phases.FORWARD and n == p.depth > 1 and not p.labelled:
            self.loss.declare_loss()
        if end.send:
            self.exchanges.begin_exchange(end.send)
        if first:
            self.updates.prepare_optimizer()
        # All rows of partial sums are sent; of values, those that the block has.
        whole = end.own_rows or (end.send and end.send.kind != phases.ALL_GATHER)
        limit = str(p.layers[boundary]) if whole else self.k.count(boundary)
        finish = self.function(end, boundary, limit)
        self.product(g, finish, limit)

    def product(self, g: Gemm, finish: str, limit: str) -> None:
        """Gemm<...>::run(weights, right operand, first warp, what happens to the sums)."""
        d, w, part, tiles = self.d, self.w, self.layout.layers[g.layer], g.tiling(self.d)
        sent, bias = g.epilogue.send is not None, self.biases(g.epilogue)
        if g.kind == phases.FORWARD:
            ways, right = f"false, {literal(g.layer == 0)}", g.layer
            pitch = d.pitch if g.layer else self.layout.input_pitch
        else:
            ways, right, pitch = "true, false", g.layer + 1, d.pitch
        type_, weights = self.k.weights_of(g.layer)
        head = f"Gemm<Shape, {ways}, {ceil(g.m, 16)}, {d.columns // 8}, {ceil(g.k, 8)}, " \
               f"{tiles.split}, {tiles.down}, {tiles.across}, {part.pitch}, {pitch}, false, " \
               f"{type_}, {self.k.type_of(right)}>::run({weights}, {self.k.buffer(g.right)}, 0, "
        if tiles.split == 1:
            ends = f"{'quads' if sent else 'pairs'}({finish})"
            w(f"{head}{f'biased({bias}, {limit}, {ends})' if bias else ends});")
            self.k.stamp(g.name)
            return
        rows, scratch = ceil(g.m, 16) * 16, self.k.at("scratch")
        w(f"{head}store_parts<Shape, {rows}>({scratch}));")
        self.k.stamp(g.name)
        w("__syncthreads();")
        body = finish if sent else f"by_pairs({finish})"
        w(f"add_parts<Shape, {tiles.split}, {rows}>({scratch}, {limit}, "
          f"{f'with_bias({bias}, {body})' if bias else body});")
        self.k.stamp(g.name, "parts")

    def exchange(self, e: Exchange) -> None:
        """Waits for an exchange, and hands what it brings to the epilogue."""
        end = e.epilogue
        if e.name == phases.OVERFLOW:
            return  # AgreeOnStep reads its flags
        if e.name == phases.STATISTICS:
            self.loss.receive_statistics(e)
            return
        self.exchanges.wait(e)  # must precede the announcement of the next exchange
        if end.send:
            self.exchanges.begin_exchange(end.send)
        count = rows_of_block(self.d, e)[1] if e.kind == phases.REDUCE_SCATTER \
            else str(self.p.layers[e.boundary])
        body = self.function(end, e.boundary, count)
        if not end.send:
            body = f"by_pairs({body})"
        if bias := self.biases(end):
            body = f"with_bias({bias}, {body})"
        self.exchanges.recv(e, count, body)
        if end.send:
            self.k.stamp(e.name, "share")

    def weight_gradient(self, g: Gemm, first_warp: int) -> None:
        """A weight gradient, whose first task is that of warp `first_warp`."""
        w, n = self.w, g.layer + 1
        w("{")
        w(f"// gradient {n}")
        if g.epilogue.function == phases.UPDATE:
            self.declare_update(g)
        else:
            self.declare_publication(g)
        operands = f"{self.k.buffer(g.left)}, {self.k.buffer(g.right)}"
        if self.k.holds(g.layer):
            micro_batch = "micro_batch" if self.d.micro_batches > 1 else "0"
            sums = self.k.at(f"s{g.layer}") if micro_batch != "0" and self.p.bias else "nullptr"
            w(f"held{n}.run({operands}, finish, {micro_batch}, {sums});")
        else:
            w(f"{self.k.weight_gradient_type(g)}::run({operands}, {first_warp}, finish);")
        w("}")
        self.k.stamp(g.name)

    def declare_update(self, g: Gemm) -> None:
        """The epilogue that updates weights and biases."""
        n, part, p = g.layer + 1, self.layout.layers[g.layer], self.p
        far = literal(part.is_state_global and bool(p.states))
        self.w("const Rule rule = *rule_of_step;")
        how = f", StochasticRounding<{p.layers[g.layer]}>" if p.streams else ""
        self.w(f"const UpdateTiles<Shape, Rule, {far}, {part.pitch}, {part.rows}, {part.across}, "
               f"{part.state_tiles}{how}> finish = {{rule, weights{n}, biases{n}, "
               f"{self.k.states_at(g.layer)}{f', rounding{n}' if p.streams else ''}}};")

    def declare_publication(self, g: Gemm) -> None:
        """The epilogue that stores tiles for the other groups, or adds to what earlier
        micro-batches stored. The others wait for the flag bit of the last micro-batch."""
        d, part = self.d, self.layout.layers[g.layer]
        copy = "(all_reduce & 1)" if self.layout.sync == ALL else "0"
        way, adds = "PublishTiles", ""
        if g.epilogue.function == phases.ACCUMULATE:
            way = "AccumulateTiles"
            adds = f" ^ (micro_batch < {d.micro_batches - 1} ? 1u : 0u), micro_batch > 0"
        published = self.k.published_type
        kind = f", {published}" if d.publishes_bf16 else ""
        self.w(f"const {way}<{part.across}, {part.tiles}{kind}> finish = {{"
               f"reinterpret_cast<{published}*>(gradients) + ((({copy} * {d.dp_size} + group) * "
               f"{d.tp_size}ll + rank) * {self.layout.tiles} + {part.base}) * {TILE // 4}, "
               f"flag_bit{adds}}};")

    # -- epilogues ---------------------------------------------------------------------------------
    def biases(self, end: Epilogue) -> str:
        """The biases that an epilogue adds, in C++; "" where it adds none."""
        return end.bias.replace("b", "biases")

    def function(self, end: Epilogue, boundary: int, limit: str) -> str:
        """The C++ function of an epilogue: over row `m` (below the limit) and the examples
        e .. e + 3 where it sends, else over row `m` and the examples e, e + 1."""
        if end.function == phases.LOSS:
            return "of_outputs"
        if end.send:
            columns = f" && e < {self.d.sent}" if self.d.sent < self.d.columns else ""
            return f"[=](int m, int e, float4 v) {{\nif (m < {limit}{columns}) {{\n" \
                   f"{self.sent(end)}\n}}\n}}"
        if end.own_rows and limit == str(self.p.layers[boundary]):  # all rows are there
            text = f"const int own = m - rank * {self.d.shards[boundary]};\n" \
                   f"if (own >= 0 && own < n{boundary}) {{\n{self.stored(end, 'own', 'm')}\n}}"
        elif end.own_rows:
            shard = f"rank * {self.d.shards[boundary]} + m"
            text = self.stored(end, "m", shard)
        else:
            text = self.stored(end, "m", "m")
        return f"[=](int m, int e, float v0, float v1) {{\nif (m < {limit}) {{\n{text}\n}}\n}}"

    def stored(self, end: Epilogue, row: str, saved_row: str) -> str:
        """C++ that applies the function to v0 and v1, and stores them. `row` is that of the block's
        shard, `saved_row` that of all features."""
        if end.function == phases.ACTIVATE_BACKWARD:
            return self.activation_gradient(end, row, saved_row)
        to = self.k.buffer(end.to)
        if end.function != phases.ACTIVATE:
            return self.store(to, "v0", "v1", row)
        saved = [self.store(self.k.buffer(end.saved), "v0", "v1", row)] if end.saved else []
        values = "Activation::apply(v0)", "Activation::apply(v1)"
        return "\n".join([*saved, self.store(to, *values, row)])

    def activation_gradient(self, end: Epilogue, row: str, saved_row: str) -> str:
        to = self.k.buffer(end.to)
        saved = f"{to} + ({row}) * {self.d.pitch}" if end.saved == end.to \
            else f"{self.k.buffer(end.saved)} + ({saved_row}) * {self.d.pitch}"
        kept = f"const float2 kept = load_two<Shape>({saved} + e);\n"
        slopes = "Activation::backward(v0, kept.x)", "Activation::backward(v1, kept.y)"
        if not self.p.scaled:
            return kept + self.store(to, *slopes, row)
        return f"{kept}const float d0 = {slopes[0]}, d1 = {slopes[1]};\n" \
               "report_overflow(found, poison<float16>(v0) + poison<float16>(v1) + " \
               "poison<float16>(d0) + poison<float16>(d1));\n" + self.store(to, "d0", "d1", row)

    def store(self, to: str, first: str, second: str, row: str) -> str:
        return f"store_two<Shape>({to} + ({row}) * {self.d.pitch} + e, {first}, {second});"

    def sent(self, end: Epilogue) -> str:
        """C++ that applies the function to `v`, and sends it."""
        lines = []
        if end.function == phases.ACTIVATE:
            if end.saved:
                saved = f"{self.k.buffer(end.saved)} + m * {self.d.pitch} + e"
                lines.append(f"store_four<Shape>({saved}, v);")
            applied = ", ".join(f"Activation::apply(v.{c})" for c in "xyzw")
            lines.append(f"v = make_float4({applied});")
        assert end.send is not None
        return "\n".join([*lines, self.exchanges.send_row(end.send)])
