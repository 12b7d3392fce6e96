"""Emits the loss: the gradient of the outputs, and what each example contributes to the loss."""

from __future__ import annotations

from rawnn.persistent.exchanges import ExchangeEmitter
from rawnn.persistent.layout import tallies
from rawnn.persistent.phases import STATISTICS, Exchange, Softmax
from rawnn.persistent.schedule import stores_tallies
from rawnn.persistent.sharding import SHARDED
from rawnn.persistent.tiles import softmax_of, statistics_floats
from rawnn.persistent.writer import Emitter, Kernel, literal


class LossEmitter(Emitter):
    """Emits `Softmax`, `StoreTallies` and `LoadRate`, and the loss of an epilogue."""

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
