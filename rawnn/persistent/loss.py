"""Emits the loss: the gradient of the outputs, what each example contributes to the loss, and the
losses of all steps behind the steps."""

from __future__ import annotations

from rawnn.persistent.exchanges import ExchangeEmitter
from rawnn.persistent.layout import AT_ONCE, BY_FIRST, BY_LAST, tallies
from rawnn.persistent.phases import STATISTICS, Exchange, Phase, Softmax
from rawnn.persistent.schedule import stores_tallies
from rawnn.persistent.sharding import SHARDED
from rawnn.persistent.tiles import softmax_of, statistics_floats
from rawnn.persistent.writer import Emitter, Kernel, literal


class LossEmitter(Emitter):
    """Emits `LoadRate`, `Softmax`, `StoreTallies` and `SumLoss`, and the loss of an epilogue."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.exchanges = ExchangeEmitter(kernel)

    def load_rate(self) -> None:
        self.w("if (u + 1 < span) {")
        self.w(f"if (thread == {self.d.threads - 1}) rate = {self.k.rate('u + 1')};")
        self.w("}")

    @property
    def scaling(self) -> str:
        """What becomes of gradients of the outputs in fp16; "" in other dtypes."""
        return "ScaledGradient{scaling->scale, found}" if self.p.scaled else ""

    def declare_loss(self) -> None:
        """The epilogue of the last phase of the forward pass, of a mean over elements."""
        d, p, w, last = self.d, self.p, self.w, self.p.depth
        if p.reconstruct:
            offset = f" + rank * {d.shards[last]}" \
                if d.boundaries[0] != SHARDED and d.boundaries[last] == SHARDED else ""
            targets, pitch = f"x{offset}", self.layout.input_pitch
        else:
            pitch = self.layout.target_pitch
            targets = f"{self.k.at('y')} + ({self.k.counter} & 1) * {d.columns * pitch}"
        scaled = f", {self.k.type_of(last)}" + (", ScaledGradient" if p.scaled else "")
        w("Tally tallied = {0.0f, 0};")
        w(f"const OutputsLoss<Shape, {p.loss}, {pitch}, {d.outs(last - 1)}{scaled}> of_outputs = {{"
          f"{self.k.z(last)}, {targets}, {self.k.count(last)}, present, "
          f"{self.k.mean(p.batch * p.outputs)}, &tallied, {self.scaling or '{}'}}};")

    def store_tallies(self) -> None:
        self.w(f"if (thread < {tallies(self.d)}) tallies[thread] = tallied;")

    def softmax(self, phase: Softmax) -> None:
        """Of logits in shared memory: whole, or one of its two halves."""
        d, p, w, last = self.d, self.p, self.w, self.p.depth
        scaling = f", {self.scaling}" if self.scaling else ""
        ends = f"y, present, {self.k.mean(p.batch)}, {self.tallies_at()}{scaling});"
        if not d.shards_softmax and softmax_of(d).warps == 1:
            w(f"softmax_loss<Shape, {p.outputs}, {softmax_of(d).lanes}>({self.k.logits}, "
              f"{self.k.z(last)}, {self.k.first(last)}, {self.k.count(last)}, {ends}")
            return
        warps = softmax_of(d).warps
        statistics = f"reinterpret_cast<float4*>{self.k.at('scratch')}"
        shape = f"{d.outs(last - 1)}, {softmax_of(d).lanes}, {warps}"
        mine = f"{self.k.first(last)}, {self.k.count(last)}, {statistics}"
        if phase.statistics:
            w("{")
            publish = "PublishNothing{}"
            if phase.send:
                self.exchanges.begin_exchange(phase.send)
                publish = self.exchanges.publish_statistics(phase.send)
            w(f"exponentials_of_slice<Shape, {shape}>({self.k.logits}, {mine}, {publish});")
            self.k.stamp(phase.name, "slice")
            return
        parts, columns = warps, d.columns
        if d.shards_softmax:
            parts, columns = d.tp_size, d.sent
            (sums,) = (each for each in self.schedule.exchanges if each.name == STATISTICS)
            received = f"received_{self.k.type_of_exchange(sums)}"
            statistics = f"reinterpret_cast<const float4*>({received})"
        w(f"loss_of_slice<Shape, {p.outputs}, {shape}, {parts}, {columns}, "
          f"{literal(stores_tallies(d))}>({self.k.logits}, {self.k.z(last)}, {mine}, {statistics}, "
          f"{ends}")
        w("}")

    def tallies_at(self) -> str:
        """Where tallies of examples go, and of how many."""
        d = self.d
        if not stores_tallies(d):
            return f"tallies, {d.columns}"
        mine = str(d.group_batch) if d.shards_softmax or d.tp_size == 1 \
            else f"rank == 0 ? {d.group_batch} : 0"
        return f"reinterpret_cast<Tally*>(tally) + {self.k.counter} * {d.group_batch}ll, {mine}"

    def receive_statistics(self, exchange: Exchange) -> None:
        """Waits for the statistics of all blocks, and declares the array of them."""
        name = self.k.type_of_exchange(exchange)
        self.w(f"const float* const received_{name} = transport.gather<{name}>("
               f"{self.k.at('scratch')} + {statistics_floats(self.d)});")
        self.k.stamp(exchange.name, "wait")

    def sum_loss(self, phase: Phase) -> None:
        """The last warp adds up the tallies of a block, or of a group where all blocks have the
        same outputs."""
        d, w = self.d, self.w
        repeated = d.boundaries[-1] != SHARDED
        place = "group" if repeated else "rank" if d.members else "blockIdx.x"
        w(f"if (warp_index() == {d.warps - 1}{' && rank == 0' if repeated else ''}) {{")
        w(f"const Tally total = add_tallies<{tallies(d)}, {literal(self.p.labelled)}>(tallies);")
        w("if (lane_index() == 0) {")
        if d.evaluates:
            w("evaluated.loss += static_cast<double>(total.loss);")
            w("evaluated.right += total.right;")
        elif self.layout.reports == AT_ONCE:
            w(f"loss[cursor_now + u] = total.loss / {self.k.terms('u')};")
            if self.p.measured:
                w("correct[cursor_now + u] = total.right;")
        else:
            w(f"reinterpret_cast<float2*>(tally)[{self.k.counter} * {self.layout.parts}ll + "
              f"{place}] = make_float2(total.loss, __int_as_float(total.right));")
        w("}")
        w("}")
        self.k.stamp(phase.name, "tally")

    # -- behind the steps --------------------------------------------------------------------------
    def take_ticket(self) -> None:
        """Finds out which block is the last one while weights are stored."""
        if self.layout.reports == BY_LAST:
            self.w(f"int* const last = reinterpret_cast<int*>{self.k.at('tallies')};")
            self.w("take_ticket<Shape>(counters, last);")

    def report(self) -> None:
        """Adds up and stores the losses of all steps, unless each step has stored its own."""
        d, p, w, found = self.d, self.p, self.w, self.layout
        if found.reports == AT_ONCE:
            return
        w("const auto report = [=](int step, const Tally& total) {")
        w(f"loss[cursor_now + step] = total.loss / {self.k.terms('step')};")
        if p.measured:
            w("correct[cursor_now + step] = total.right;")
        w("};")
        left, parts = "reinterpret_cast<const float2*>(tally)", found.parts * d.micro_batches
        total = f"sum_kept<Shape>({left}, {parts}, span, report);" if stores_tallies(d) else \
            f"sum_parts<Shape, {parts}, {found.dynamic_bytes // 4}>({left}, shared, span, report);"
        if found.reports == BY_FIRST:
            w(f"{'if (rank == 0) ' * (d.tp_size > 1)}{total}")
            return
        w("__syncthreads();")
        w("if (*last != 0) {")
        w(total)
        w(f"if (thread <= {found.counters}) counters[thread] = 0u;")
        if found.has_epoch_boundary:
            w("if (thread == 0) tick_clock(clock, steps);")
        w("}")
