"""Emits the loss of a step: the gradient of the outputs, and what is reported."""

from __future__ import annotations

from rawnn.persistent.exchanges import ALL_GATHER, Exchange
from rawnn.persistent.inputs import InputWriter
from rawnn.persistent.layout import keeps_tallies
from rawnn.persistent.schedule import STATISTICS
from rawnn.persistent.sharding import ALL_GATHERED, SHARDED
from rawnn.persistent.tiles import softmax_of, statistics_floats
from rawnn.persistent.writer import literal


class LossWriter(InputWriter):
    """Emits what turns the outputs of the last layer into their gradients."""

    def loss(self) -> None:
        d, p, w = self.d, self.p, self.w
        w("// the loss")
        if p.scheduled:
            w("if (u + 1 < span) {")
            w(f"if (thread == {d.threads - 1}) rate = {self.rate('u + 1')};")
            w("}")
        if p.labelled:
            self.softmax()
            w("__syncthreads();")
            self.stamp("softmax")
        if not self.meets_ahead and not keeps_tallies(d):
            self.tally()

    @property
    def made(self) -> str:
        """C++ functor that scales a gradient; "" for none."""
        return "ScaledGradient{scaling->scale, found}" if self.p.scaled else ""

    def loss_of_outputs(self) -> str:
        """Emits the epilogue of the last GEMM, if the loss is a mean over elements, and returns its
        name."""
        d, p, w, last = self.d, self.p, self.w, self.p.depth
        if p.reconstruct:
            offset = f" + rank * {d.shards[last]}" \
                if d.boundaries[0] != SHARDED and d.boundaries[last] == SHARDED else ""
            targets, pitch = f"x{offset}", self.layout.input_pitch
        else:
            pitch = self.layout.target_pitch
            targets = f"{self.at('y')} + ({self.turn} & 1) * {d.columns * pitch}"
        made = f", {self.type_of(last)}" + (", ScaledGradient" if p.scaled else "")
        w("Tally tallied = {0.0f, 0};")
        w(f"const OutputsLoss<Shape, {p.loss}, {pitch}, {d.outs(last - 1)}{made}> of_outputs = {{"
          f"{self.z(last)}, {targets}, {self.count(last)}, present, "
          f"{self.share(p.batch * p.outputs)}, &tallied, {self.made or '{}'}}};")
        return "of_outputs"

    def softmax(self) -> None:
        """Emits the softmax of logits in shared memory."""
        d, p, w, last = self.d, self.p, self.w, self.p.depth
        made = f", {self.made}" if self.made else ""
        if d.shards_softmax or softmax_of(d).warps > 1:
            self.softmax_of_slices(made)
            return
        gathered = d.boundaries[last] == ALL_GATHERED
        first = f"rank * {d.shards[last]}" if gathered else "0"
        w(f"softmax_loss<Shape, {p.outputs}, {softmax_of(d).lanes}>({self.logits}, {self.z(last)}, "
          f"{first}, {self.count(last)}, y, present, {self.share(p.batch)}, "
          f"{self.places()}{made});")

    def softmax_of_slices(self, made: str) -> None:
        """The softmax of outputs that warps or blocks share: each has the statistics of its own
        outputs from the others."""
        d, p, w = self.d, self.p, self.w
        last, warps = p.depth, softmax_of(d).warps
        slices = f"reinterpret_cast<float4*>{self.at('scratch')}"
        shape = f"{d.outs(last - 1)}, {softmax_of(d).lanes}, {warps}"
        first = f"rank * {d.shards[last]}" if d.shards_softmax else "0"
        mine = f"{first}, {self.count(last)}, {slices}"
        statistics, parts, columns, publish = slices, warps, d.columns, "PublishNothing{}"
        w("{")
        if d.shards_softmax:
            message = self.exchange(ALL_GATHER, 4 * d.tp_size, 4, "4")
            publish = f"publish_statistics<{message.name}, {softmax_of(d).lanes}>(transport)"
        w(f"exponentials_of_slice<Shape, {shape}>({self.logits}, {mine}, {publish});")
        self.stamp("softmax", "slice")
        if d.shards_softmax:
            statistics = self.receive_statistics(message)
            parts, columns = d.tp_size, d.sent
        else:
            w("__syncthreads();")
        w(f"loss_of_slice<Shape, {p.outputs}, {shape}, {parts}, {columns}, "
          f"{literal(keeps_tallies(d))}>({self.logits}, {self.z(last)}, {mine}, {statistics}, y, "
          f"present, {self.share(p.batch)}, {self.places()}{made});")
        w("}")

    def places(self) -> str:
        """C++ arguments: where the tallies of examples go, and of how many."""
        d = self.d
        if not keeps_tallies(d):
            return f"tallies, {d.columns}"
        mine = str(d.group_batch) if d.shards_softmax or d.tp_size == 1 \
            else f"rank == 0 ? {d.group_batch} : 0"
        return f"reinterpret_cast<Tally*>(tally) + {self.turn} * {d.group_batch}ll, {mine}"

    def receive_statistics(self, message: Exchange) -> str:
        """Waits for the statistics of all blocks; C++ expression for the array of them."""
        self.fetch_once()
        self.w(f"const float* const {message.received} = transport.gather<{message.name}>("
               f"{self.at('scratch')} + {statistics_floats(self.d)});")
        self.stamp(STATISTICS, "wait")
        return f"reinterpret_cast<const float4*>({message.received})"
